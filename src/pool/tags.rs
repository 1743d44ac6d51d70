//! The bytes that each tag holds of one pool, and its limit.
//!
//! A tag's *total* is at least the bytes that it holds. A free on a stream does not lower the total: the stream's cache
//! keeps a [credit](crate::pool::stream_cache::credits), which the next request of the tag on that stream takes. So a
//! hit writes no counter that streams share. Every other request raises the total. Where the bytes must be exact - for
//! a new peak, at a limit, for statistics - the caches with credits are locked one after the other, and every credit is
//! subtracted from its total. Meanwhile no cache gets a credit, so the totals are exact then. While no total exceeds its
//! peak, the bytes do not either, so the peak is exact.
//!
//! The tag of a block is written by the call that allocates it, and taken by the call that has claimed it.

use crate::pool::Pool;
use crate::pool::dedicated::Cell;
use crate::pool::stream_cache::block::Block;
use crate::pool::stream_cache::credits::Credit;
use crate::pool::stream_cache::list::CacheList;
use crate::pool::stream_cache::{Inner, StreamCache};
use crate::support::error::{Error, Result};
use crate::support::stats::TagStats;
use crate::support::tags::{self, Tag};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Mutex, OnceBox};

/// The counters of one tag.
#[derive(Default)]
struct Use {
    /// The tag's total.
    total: AtomicU64,
    peak: AtomicU64,
    allocations: AtomicU64,
    frees: AtomicU64,
    out_of_memory: AtomicU64,
    limit: AtomicU64,
}

/// The counters of every tag that was used here, by its number.
pub(super) struct Tags {
    uses: OnceBox<[OnceBox<Use>; tags::MAX_TAGS]>,
    /// Whether some tag holds more than its limit, which was lowered. Then no request takes a credit, because the total
    /// may not come back to where it was.
    exceeded: AtomicBool,
    limits: Mutex<()>,
    /// The caches that have credits.
    credited: CacheList,
}

impl Tags {
    pub(super) fn new() -> Tags {
        Tags {
            uses: OnceBox::new(),
            exceeded: AtomicBool::new(false),
            limits: Mutex::new(()),
            credited: CacheList::default(),
        }
    }

    fn of(&self, tag: Tag) -> &Use {
        let all = self.uses.get_or_init(|| crate::sync::boxed(OnceBox::new));
        // Only `tags::intern` assigns numbers, from 1 to MAX_TAGS.
        all[(tag as usize - 1) % tags::MAX_TAGS].get_or_init(Box::default)
    }

    fn all(&self) -> impl Iterator<Item = (Tag, &Use)> {
        let all = self.uses.get().into_iter().flatten();
        all.enumerate().filter_map(|(at, of)| Some((at as Tag + 1, of.get()?)))
    }

    fn subtract(&self, credit: Credit) {
        let of = self.of(credit.tag);
        of.total.fetch_sub(credit.bytes, Relaxed);
        of.allocations.fetch_add(credit.allocations, Relaxed);
        of.frees.fetch_add(credit.frees, Relaxed);
    }
}

#[cold]
fn refusal(tag: Tag, held: u64, bytes: u64, limit: u64) -> Error {
    let name = tags::name(tag).unwrap_or_default();
    Error::OutOfMemory(format!(
        "{bytes} bytes for tag `{name}`, which holds {held} of at most {limit}: {} too many",
        held.saturating_add(bytes).saturating_sub(limit)
    ))
}

/// Credits.
impl Pool {
    /// Whether a request takes its bytes from the tag's credit with its stream.
    #[inline]
    pub(in crate::pool) fn has_credit(&self, inner: &mut Inner, tag: Tag, bytes: u64) -> bool {
        !self.tags.exceeded.load(Relaxed) && inner.credits.cover(tag, bytes)
    }

    /// Takes the tag from a block that was claimed to be freed into the cache of `inner`.
    #[inline]
    pub(in crate::pool) fn credit(&self, cache: &StreamCache, inner: &mut Inner, block: &Block) {
        let tag = block.tag.load(Relaxed);
        if tag != 0 {
            self.give_credit(cache, inner, block, tag);
        }
    }

    /// Not inlined, so that the free of a block without a tag stays as short as it was.
    #[inline(never)]
    fn give_credit(&self, cache: &StreamCache, inner: &mut Inner, block: &Block, tag: Tag) {
        if inner.credited != Some(self.device) && !self.tags.credited.try_add(cache) {
            // Another thread needs exact totals just now.
            return self.untag_block(block);
        }
        inner.credited = Some(self.device);
        block.tag.store(0, Relaxed);
        if let Some(other) = inner.credits.give(tag, block.size()) {
            self.tags.subtract(other);
        }
    }

    /// Subtracts the credits of one cache, whose stream is gone or belongs to another device.
    pub(in crate::pool) fn subtract_credits(&self, inner: &mut Inner) {
        inner.credits.drain().for_each(|credit| self.tags.subtract(credit));
    }

    /// Subtracts all credits, and calls `exact` before any cache gets one again. The caller holds no cache's lock.
    fn settle_tags<T>(&self, exact: impl FnOnce() -> T) -> T {
        let mut credited = self.tags.credited.lock();
        for cache in credited.drain(&self.caches) {
            let mut inner = cache.inner.lock();
            if inner.credited == Some(self.device) {
                inner.credited = None;
                self.subtract_credits(&mut inner);
            }
        }
        exact()
    }
}

impl Pool {
    /// Adds `bytes` to a tag's total where the limit allows it. The caller holds no cache's lock, and calls
    /// [`Pool::note_tag_peak`] once the bytes are in use.
    fn charge_tag(&self, tag: Tag, bytes: u64) -> Result<()> {
        let of = self.tags.of(tag);
        let limit = of.limit.load(Relaxed);
        // The total never exceeds the limit, not even for a moment: another thread may read it.
        let charge = || {
            of.total.fetch_update(Relaxed, Relaxed, |held| {
                let now = held.saturating_add(bytes);
                (limit == 0 || now <= limit).then_some(now)
            })
        };
        let charged = charge().or_else(|_| self.settle_tags(charge));
        charged.map_err(|held| refusal(tag, held, bytes, limit)).map(drop)
    }

    fn note_tag_peak(&self, tag: Tag) {
        let of = self.tags.of(tag);
        if of.total.load(Relaxed) > of.peak.load(Relaxed) {
            self.settle_tags(|| of.peak.fetch_max(of.total.load(Relaxed), Relaxed));
        }
    }

    /// Whether the tag has a limit here.
    pub fn is_tag_limited(&self, tag: Tag) -> bool {
        self.tags.uses.get().is_some() && self.tags.of(tag).limit.load(Relaxed) != 0
    }

    /// Fails if `bytes` more for a tag exceed its limit, before anything is allocated for it.
    pub fn tag_fits(&self, tag: Tag, bytes: u64) -> Result<()> {
        let of = self.tags.of(tag);
        let limit = of.limit.load(Relaxed);
        let beyond = |held: u64| limit != 0 && held.saturating_add(bytes) > limit;
        if !beyond(of.total.load(Relaxed)) {
            return Ok(());
        }
        match self.settle_tags(|| of.total.load(Relaxed)) {
            held if beyond(held) => Err(refusal(tag, held, bytes, limit)),
            _ => Ok(()),
        }
    }

    /// Assigns the block that was just handed out at `address` to a tag; an error where the tag's limit does not allow
    /// it. A block that was handed out from the tag's credit has its tag already.
    pub fn tag_block(&self, address: u64, tag: Tag) -> Result<()> {
        let (of, bytes) = match (self.find(address), self.dedicated.find(address)) {
            (Some((_, block)), _) => (&block.tag, block.size()),
            (None, Some(cell)) => (&cell.tag, cell.size.load(Relaxed)),
            (None, None) => return Ok(()),
        };
        if of.load(Relaxed) == tag {
            return Ok(());
        }
        self.charge_tag(tag, bytes)?;
        of.store(tag, Relaxed);
        self.tags.of(tag).allocations.fetch_add(1, Relaxed);
        self.note_tag_peak(tag);
        Ok(())
    }

    fn untag(&self, tag: Tag, bytes: u64) {
        if tag != 0 {
            let of = self.tags.of(tag);
            of.total.fetch_sub(bytes, Relaxed);
            of.frees.fetch_add(1, Relaxed);
        }
    }

    /// Takes the tag from a block that was claimed to be freed, and goes into no cache.
    pub fn untag_block(&self, block: &Block) {
        self.untag(block.tag.swap(0, Relaxed), block.size());
    }

    /// As [`Pool::untag_block`], for a dedicated allocation.
    pub(in crate::pool) fn untag_dedicated(&self, cell: &Cell) {
        self.untag(cell.tag.swap(0, Relaxed), cell.size.load(Relaxed));
    }

    /// The tag of the block at `address`; 0 where it has none.
    pub fn tag_at(&self, address: u64) -> Tag {
        match self.find(address) {
            Some((_, block)) => block.tag.load(Relaxed),
            None => self.dedicated.find(address).map_or(0, |cell| cell.tag.load(Relaxed)),
        }
    }

    /// Passes the tag of a block that was copied to the block at `address`.
    pub(in crate::pool) fn move_tag(&self, from: &std::sync::atomic::AtomicU32, address: u64) {
        let tag = from.swap(0, Relaxed);
        match self.find(address) {
            Some((_, block)) => block.tag.store(tag, Relaxed),
            None => {
                if let Some(cell) = self.dedicated.find(address) {
                    cell.tag.store(tag, Relaxed);
                }
            }
        }
    }

    /// Runs a resize of a claimed block with a tag from `old` to `new` bytes. The tag is charged for the growth first;
    /// an error where the limit does not allow it. `resize` returns its outcome and the bytes that the block has then.
    pub(in crate::pool) fn resize_with_tag<T>(
        &self,
        tag: Tag,
        (old, new): (u64, u64),
        resize: impl FnOnce() -> (Result<T>, u64),
    ) -> Result<T> {
        let growth = new.saturating_sub(old);
        if growth > 0 {
            self.charge_tag(tag, growth)?;
        }
        let (outcome, now) = resize();
        let less = (old + growth).saturating_sub(now);
        self.tags.of(tag).total.fetch_sub(less, Relaxed);
        if outcome.is_ok() && growth > 0 {
            self.note_tag_peak(tag);
        }
        outcome
    }

    /// The bytes of the block at `address`; 0 where there is none.
    pub(in crate::pool) fn allocated_at(&self, address: u64) -> u64 {
        match self.find(address) {
            Some((_, block)) => block.size(),
            None => self.dedicated.find(address).map_or(0, |cell| cell.size.load(Relaxed)),
        }
    }

    /// Counts a refused request of a tag.
    pub fn tag_refused(&self, tag: Tag) {
        self.tags.of(tag).out_of_memory.fetch_add(1, Relaxed);
    }

    /// Limits what a tag holds of this pool, in allocated bytes; 0 means no limit.
    pub fn set_tag_limit(&self, tag: Tag, bytes: u64) {
        let _one_at_a_time = self.tags.limits.lock();
        self.tags.of(tag).limit.store(bytes, Relaxed);
        self.tags.exceeded.store(true, Relaxed);
        self.settle_tags(|| {
            let exceeds = |of: &Use| {
                let limit = of.limit.load(Relaxed);
                limit != 0 && of.total.load(Relaxed) > limit
            };
            let exceeded = self.tags.all().any(|(_, of)| exceeds(of));
            self.tags.exceeded.store(exceeded, Relaxed);
        });
    }

    /// Every tag's statistics, in the order in which the names first appeared.
    pub fn tag_stats(&self) -> Vec<TagStats> {
        if self.tags.uses.get().is_none() {
            return Vec::new();
        }
        let figures = |(tag, of): (Tag, &Use)| TagStats {
            tag: tags::name(tag).unwrap_or_default(),
            allocated: of.total.load(Relaxed),
            allocated_peak: of.peak.load(Relaxed),
            limit: of.limit.load(Relaxed),
            allocations: of.allocations.load(Relaxed),
            frees: of.frees.load(Relaxed),
            out_of_memory: of.out_of_memory.load(Relaxed),
        };
        self.settle_tags(|| self.tags.all().map(figures).collect())
    }

    /// Restarts every tag's peak at its present bytes.
    pub(super) fn reset_tag_peaks(&self) {
        if self.tags.uses.get().is_none() {
            return;
        }
        self.settle_tags(|| {
            for (_, of) in self.tags.all() {
                of.peak.store(of.total.load(Relaxed), Relaxed);
            }
        });
    }
}
