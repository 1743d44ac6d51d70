//! More memory for a dedicated allocation: in place, or with all its handles at a larger range.

use super::gather::Plan;
use super::*;

/// The result of a growth.
#[derive(Debug, PartialEq, Eq)]
pub enum Grown {
    /// The block has grown at the same address.
    InPlace,
    /// The block has grown at another address, with the same memory.
    Moved,
}

impl DedicatedMemory {
    /// Makes room for `size` bytes, more than there are. A refusal by the driver leaves everything as it was.
    pub fn grow(
        &mut self,
        calls: &DriverCalls,
        lock: &mut impl Locked,
        size: u64,
        budget: Budget,
    ) -> Result<Built<Grown>> {
        let page = lock.physical().page;
        let Backing::Mapped { ranges, committed, .. } = &self.backing else {
            return Ok(Built::Short(u64::MAX));
        };
        let (current, had) = (ranges[ranges.len() - 1], *committed);
        let Some((least, room)) = align_up(size, page).zip(room_for(size, page)) else {
            return Ok(Built::Short(u64::MAX));
        };
        let moves = least > current.size;
        let room = room.max(current.size.saturating_mul(2));
        let at_most = ahead(size, page).min(if moves { room } else { current.size });
        let bytes = (least - had, at_most - had);
        let mut plan = match Plan::new(lock.physical(), had, bytes, true, budget) {
            Ok(plan) => plan,
            Err(lacking) => return Ok(Built::Short(lacking)),
        };
        let mut range = current;
        if moves {
            range = Range::reserve(calls, page, room, had + plan.bytes())?;
            plan.shorten(range.size - had);
        }
        match self.extend(calls, lock, range, plan, moves) {
            Ok(Built::Done(())) if moves => {
                self.address = range.base;
                Ok(Built::Done(Grown::Moved))
            }
            Ok(Built::Done(())) => Ok(Built::Done(Grown::InPlace)),
            outcome => {
                if moves {
                    lock.release(range.nothing());
                }
                outcome.map(|short| short.map(|()| Grown::InPlace))
            }
        }
    }

    /// Maps the handles of `plan` behind what `range` holds. Where the block `moves` there, its handles come first.
    pub(in crate::pool::physical::dedicated_memory) fn extend(
        &mut self,
        calls: &DriverCalls,
        lock: &mut impl Locked,
        range: Range,
        plan: Plan,
        moves: bool,
    ) -> Result<Built<()>> {
        let Backing::Mapped {
            ranges,
            handles,
            committed,
        } = &mut self.backing
        else {
            return Ok(Built::Short(u64::MAX));
        };
        let more = match plan.take(lock)? {
            Built::Done(more) => more,
            Built::Short(lacking) => return Ok(Built::Short(lacking)),
        };
        let (from, old) = if moves {
            (0, &handles[..])
        } else {
            (*committed, &[][..])
        };
        let mut at = from;
        let mut outcome = Ok(());
        for (handle, size) in old.iter().chain(more.handles()) {
            outcome = calls.submit(|driver| driver.map(range.base + at, *size, *handle));
            if outcome.is_err() {
                break;
            }
            at += size;
        }
        if outcome.is_ok() {
            outcome = calls.submit(|driver| driver.set_access(range.base + from, at - from, lock.physical().access()));
        }
        if let Err(error) = outcome {
            let mappings = (at > from).then_some((range.base + from, at - from));
            more.put_back(lock, mappings);
            return Err(error);
        }
        handles.extend(more.handles());
        *committed = at;
        if moves {
            ranges.push(range);
        }
        if let Some(current) = ranges.last_mut() {
            current.mapped = at;
        }
        Ok(Built::Done(()))
    }
}
