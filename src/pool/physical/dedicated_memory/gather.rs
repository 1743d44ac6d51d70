//! The handles for a block: cached ones first, then new ones.
//!
//! A handle is mapped and unmapped whole, so a block that shrinks keeps the handle that its new end lies in. A handle
//! of a block that may shrink is therefore at most as large as all that lies before it. It is also at most a part of
//! what is reserved, or of the growth that it is for. The first handles are at least a part of the block, so that a
//! large block needs few. Only in a small pool a handle may have any size.

use std::collections::BTreeMap;

use super::*;
use crate::pool::physical::Quota;

/// A handle is at most this part of what is reserved, or of the growth that it is for.
const PART_OF_RESERVED: u64 = 16;
const PART_OF_GROWTH: u64 = 4;
/// The first handles may be this part of their block, and those of a growth this part of the block before it.
const PART_OF_FIRST: u64 = 16;
const PART_OF_BLOCK: u64 = 8;
/// A cached handle is used where a new one would do, if it has at least this part of the bytes needed. Several smaller
/// ones are used only where no memory may be created.
const WORTHWHILE: u64 = 2;
/// A pool of up to so many bytes has handles of any size.
const SMALL: u64 = 64 << 20;
/// The largest handle.
const LARGEST: u64 = 1 << 30;

/// How much memory a dedicated allocation may create.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Bytes that may be created while cached handles that do not fit stay.
    pub keeping: u64,
    /// Bytes that may be created at all, beyond those of cached handles that go back to the driver for them.
    pub exchanging: u64,
}

/// What became of a request for memory.
#[derive(Debug, PartialEq, Eq)]
pub enum Built<T> {
    /// It was met.
    Done(T),
    /// So many bytes are lacking, and nothing changed, except that cached handles may have gone back to the driver.
    Short(u64),
}

impl<T> Built<T> {
    /// Changes the result of a request that was met.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Built<U> {
        match self {
            Built::Done(built) => Built::Done(change(built)),
            Built::Short(lacking) => Built::Short(lacking),
        }
    }
}

/// A handle that a block is to get.
#[derive(Debug, Clone, Copy)]
struct Piece {
    size: u64,
    cached: bool,
}

/// The handles that a block is to get, in the order of their offsets.
pub struct Plan {
    pieces: Vec<Piece>,
    /// How many bytes of them are new.
    new: u64,
    /// How many bytes of a new handle at the end are ahead of the size.
    ahead: u64,
    /// The bytes of cached handles to be returned to the driver first.
    exchange: u64,
    budget: Budget,
}

/// Handles that a plan has taken, each with its bytes, and whether it is new.
pub struct Taken(Vec<((Handle, u64), bool)>);

impl Plan {
    /// Plans at least `bytes.0` and at most `bytes.1` bytes for the end of a block of `at` bytes, which may shrink
    /// later. An error is the number of bytes that are lacking.
    pub fn new(
        physical: &PhysicalMemory,
        at: u64,
        bytes: (u64, u64),
        shrinks: bool,
        budget: Budget,
    ) -> std::result::Result<Plan, u64> {
        let with = |smallest| Plan::with(physical, at, bytes, smallest, shrinks, budget);
        with(bytes.0 / WORTHWHILE).or_else(|_| with(0))
    }

    /// As [`Plan::new`], without cached handles below `smallest` bytes where larger ones could lie.
    fn with(
        physical: &PhysicalMemory,
        at: u64,
        (least, at_most): (u64, u64),
        smallest: u64,
        shrinks: bool,
        budget: Budget,
    ) -> std::result::Result<Plan, u64> {
        let page = physical.page;
        let first = if at == 0 { least / PART_OF_FIRST } else { 0 };
        let total = physical.reserved() + least;
        let cap = (total / PART_OF_RESERVED)
            .max(least / PART_OF_GROWTH)
            .max(at / PART_OF_BLOCK);
        let largest_at = |at: u64| match shrinks && total > SMALL {
            true => at.max(first).min(cap).clamp(page, LARGEST) / page * page,
            false => LARGEST,
        };
        let (mut at, end, far_end) = (at, at + least, at + at_most);
        let mut used: BTreeMap<u64, usize> = BTreeMap::new();
        let mut cached = |at: u64| {
            let at_most = largest_at(at).min(far_end - at);
            let sizes = physical.cached_handles.range(smallest.min(at_most)..=at_most).rev();
            let left = |size: &u64| used.get(size).copied().unwrap_or(0);
            let (size, _) = sizes.into_iter().find(|(size, handles)| handles.len() > left(size))?;
            *used.entry(*size).or_default() += 1;
            Some(*size)
        };
        let (mut pieces, mut new, mut from_cache) = (Vec::new(), 0, 0);
        while at < end {
            let size = cached(at);
            let piece = Piece {
                size: size.unwrap_or_else(|| largest_at(at).min(end - at)),
                cached: size.is_some(),
            };
            match piece.cached {
                true => from_cache += piece.size,
                false => new += piece.size,
            }
            pieces.push(piece);
            at += piece.size;
        }
        let exchange = new.saturating_sub(budget.keeping);
        let exchange = exchange.min(physical.cached_handle_bytes - from_cache);
        if new - exchange > budget.exchanging {
            return Err(new - exchange - budget.exchanging);
        }
        let mut ahead = 0;
        // Memory ahead of the size takes only a part of what may be created at all, because others need some too.
        if let Some(last) = pieces.last_mut().filter(|last| !last.cached) {
            let largest = largest_at(at - last.size);
            let may_create = budget.keeping.saturating_sub(new) / 2 / page * page;
            ahead = may_create.min(far_end - at).min(largest - last.size);
            last.size += ahead;
        }
        if exchange == 0 && ahead == 0 {
            while let Some(size) = cached(at) {
                pieces.push(Piece { size, cached: true });
                at += size;
            }
        }
        Ok(Plan {
            pieces,
            new: new + ahead,
            ahead,
            exchange,
            budget,
        })
    }

    /// The bytes that it has without memory ahead of the size.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.size).sum::<u64>() - self.ahead
    }

    /// Does without memory ahead where all of it is more than `room` bytes.
    pub fn shorten(&mut self, room: u64) {
        if self.bytes() + self.ahead > room {
            self.drop_ahead();
        }
    }

    fn drop_ahead(&mut self) {
        if let Some(last) = self.pieces.last_mut() {
            last.size -= self.ahead;
        }
        self.new -= std::mem::take(&mut self.ahead);
    }

    /// Takes cached handles, returns others to the driver for new ones, and creates those.
    pub fn take(mut self, lock: &mut impl Locked) -> Result<Built<Taken>> {
        let mut physical = lock.physical();
        // The cached ones come first, so that none of them is returned.
        let mut take = |piece: &Piece| piece.cached.then(|| physical.take_cached(piece.size)).flatten();
        let cached: Vec<Option<Handle>> = self.pieces.iter().map(&mut take).collect();
        let mut taken = Taken(Vec::with_capacity(cached.len()));
        let mut outcome = Ok(Built::Done(()));
        if self.exchange > 0 {
            let leaving = physical.begin_leaving_handles(Quota::Exchange(self.exchange), usize::MAX);
            let gone = lock.let_go(leaving).gone;
            physical = lock.physical();
            let released = gone - physical.refill_after(gone, self.exchange);
            // Other threads may have created memory meanwhile.
            let at_most = self
                .budget
                .exchanging
                .saturating_add(released)
                .min(physical.room_below_limit());
            let lacking = self.new.saturating_sub(at_most);
            if lacking > 0 {
                outcome = Ok(Built::Short(lacking));
            }
        }
        for (at, handle) in cached.into_iter().enumerate() {
            let created = handle.is_none();
            let handle = match handle {
                Some(handle) => handle,
                None if outcome != Ok(Built::Done(())) => continue,
                None => match self.create(physical, at) {
                    Ok(handle) => handle,
                    Err(error) => {
                        outcome = Err(error);
                        continue;
                    }
                },
            };
            taken.0.push(((handle, self.pieces[at].size), created));
        }
        if outcome == Ok(Built::Done(())) {
            return Ok(Built::Done(taken));
        }
        taken.put_back(lock, None);
        outcome.map(|short| short.map(|()| Taken(Vec::new())))
    }

    /// Creates the handle at that place. Without memory ahead, the driver may have enough.
    fn create(&mut self, physical: &mut PhysicalMemory, at: usize) -> Result<Handle> {
        match physical.create_handle(self.pieces[at].size) {
            Err(error) if error.failure == Failure::OutOfMemory && self.ahead > 0 && at + 1 == self.pieces.len() => {
                self.drop_ahead();
                physical.create_handle(self.pieces[at].size)
            }
            created => created,
        }
    }
}

impl Taken {
    /// The handles and their bytes.
    pub fn handles(&self) -> impl Iterator<Item = &(Handle, u64)> {
        self.0.iter().map(|(handle, _)| handle)
    }

    /// Unmaps `mappings`, where the handles may be mapped by now. Caches them again, and returns the new ones to the
    /// driver, because they have no use now.
    pub fn put_back(self, lock: &mut impl Locked, mappings: Option<(u64, u64)>) {
        lock.release(DeferredRelease {
            mappings: mappings.into_iter().collect(),
            handles: self.handles().copied().collect(),
            ..DeferredRelease::default()
        });
        let created: Vec<(Handle, u64)> = self
            .0
            .into_iter()
            .filter_map(|(handle, created)| created.then_some(handle))
            .collect();
        lock.discard(&created);
    }
}
