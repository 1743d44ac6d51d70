//! More memory for a dedicated allocation: in place, or with all its handles at a larger range.

use super::*;

/// The largest handle of a new block. A growth is one handle, whatever its size.
const LARGEST: u64 = 1 << 30;

/// The result of a growth.
#[derive(Debug, PartialEq, Eq)]
pub enum Grown {
    /// The block has grown at the same address.
    InPlace,
    /// The block has grown at another address, with the same memory.
    Moved,
    /// `create` bytes of new memory did not suffice; nothing changed.
    Short,
}

impl DedicatedMemory {
    /// Makes room for `size` bytes, more than there are. A refusal by the driver leaves everything as it was.
    pub fn grow(
        &mut self,
        calls: &DriverCalls,
        physical: &mut PhysicalMemory,
        size: u64,
        create: u64,
    ) -> Result<Grown> {
        let page = physical.page;
        let Backing::Mapped { ranges, committed, .. } = &self.backing else {
            return Ok(Grown::Short);
        };
        let (current, had) = (ranges[ranges.len() - 1], *committed);
        let Some(least) = align_up(size, page) else {
            return Ok(Grown::Short);
        };
        if least - had > create.saturating_add(physical.cached_bytes()) {
            return Ok(Grown::Short);
        }
        let moves = least > current.size;
        let range = if moves {
            let Some(room) = room_for(size, page) else {
                return Ok(Grown::Short);
            };
            Range::reserve(calls, page, room.max(current.size.saturating_mul(2)), least)?
        } else {
            current
        };
        let most = ahead(size, page).min(range.size);
        match self.extend(calls, physical, range, (least - had, most - had), create, moves) {
            Ok(true) if moves => {
                self.address = range.base;
                Ok(Grown::Moved)
            }
            Ok(true) => Ok(Grown::InPlace),
            outcome => {
                if moves {
                    physical.release_or_defer(range.nothing());
                }
                outcome.map(|_| Grown::Short)
            }
        }
    }

    /// Maps at least `bytes.0` and at most `bytes.1` more bytes behind what `range` holds. Where the block `moves`
    /// there, its handles come first. False where there is not that much.
    pub(in crate::pool::physical::dedicated_memory) fn extend(
        &mut self,
        calls: &DriverCalls,
        physical: &mut PhysicalMemory,
        range: Range,
        bytes: (u64, u64),
        create: u64,
        moves: bool,
    ) -> Result<bool> {
        let Backing::Mapped {
            ranges,
            handles,
            committed,
        } = &mut self.backing
        else {
            return Ok(false);
        };
        let reserved = physical.reserved();
        let largest = if handles.is_empty() { LARGEST } else { u64::MAX };
        let Some(more) = gather(physical, bytes, create, largest)? else {
            return Ok(false);
        };
        let (from, old) = if moves {
            (0, &handles[..])
        } else {
            (*committed, &[][..])
        };
        let mut at = from;
        let mut outcome = Ok(());
        for (handle, size) in old.iter().chain(&more) {
            outcome = calls.submit(|driver| driver.map(range.base + at, *size, *handle));
            if outcome.is_err() {
                break;
            }
            at += size;
        }
        if outcome.is_ok() {
            outcome = calls.submit(|driver| driver.set_access(range.base + from, at - from, physical.access()));
        }
        if let Err(error) = outcome {
            physical.release_or_defer(DeferredRelease {
                mappings: (at > from)
                    .then_some((range.base + from, at - from))
                    .into_iter()
                    .collect(),
                handles: more,
                ..DeferredRelease::default()
            });
            // Handles that were created for this have no use now, so they do not stay.
            physical.release_cached(reserved);
            return Err(error);
        }
        handles.extend(more);
        *committed = at;
        if moves {
            ranges.push(range);
        }
        if let Some(current) = ranges.last_mut() {
            current.mapped = at;
        }
        Ok(true)
    }
}

/// Gathers handles of between `least` and `most` bytes in total: one if possible, a cached one before a new one;
/// otherwise several. None where `create` bytes of new memory do not suffice. On a failure it holds nothing.
fn gather(
    physical: &mut PhysicalMemory,
    (least, most): (u64, u64),
    create: u64,
    largest: u64,
) -> Result<Option<Vec<(Handle, u64)>>> {
    if let Some(size) = physical.largest_cached(most).filter(|size| *size >= least)
        && let Some(handle) = physical.handle(size, 0)?
    {
        return Ok(Some(vec![(handle, size)]));
    }
    let mut refusal = None;
    // Memory ahead of the size takes only a part of what may be created at all, because others need some too.
    let ahead = create.saturating_sub(least) / 2 / physical.page * physical.page;
    let most_new = least.saturating_add(ahead).min(most);
    for size in [most_new, least] {
        if size > largest {
            continue;
        }
        match physical.handle(size, create) {
            Ok(Some(handle)) => return Ok(Some(vec![(handle, size)])),
            Ok(None) => {}
            Err(error) if error.failure == Failure::OutOfMemory => refusal = Some(error),
            Err(error) => return Err(error),
        }
    }
    let reserved = physical.reserved();
    let enough = most <= create.saturating_add(physical.cached_bytes()) && refusal.is_none();
    let mut left = if enough { most } else { least };
    let mut found = Vec::new();
    while left > 0 {
        let size = physical.largest_cached(left).unwrap_or(left.min(LARGEST));
        let allowance = create.saturating_sub(physical.reserved() - reserved);
        match physical.handle(size, allowance) {
            Ok(Some(handle)) => found.push((handle, size)),
            outcome => {
                physical.release_or_defer(DeferredRelease {
                    handles: found,
                    ..DeferredRelease::default()
                });
                physical.release_cached(reserved);
                return outcome.and(refusal.map_or(Ok(None), Err));
            }
        }
        left -= size;
    }
    Ok(Some(found))
}
