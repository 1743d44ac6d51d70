//! The bytes that each tag holds of one pool, and its limit. Only calls of threads that have a tag write here, and
//! frees of what such threads allocated.

use crate::pool::Pool;
use crate::support::error::{Error, Result};
use crate::support::stats::TagStats;
use crate::support::tags::{self, Tag};
use crate::sync::OnceBox;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;

/// The counters of one tag.
#[derive(Default)]
struct Use {
    bytes: AtomicU64,
    peak: AtomicU64,
    allocations: AtomicU64,
    frees: AtomicU64,
    out_of_memory: AtomicU64,
    limit: AtomicU64,
}

/// The counters of every tag that was used here, by its number.
pub(super) struct Tags(OnceBox<[OnceBox<Use>; tags::MAX_TAGS]>);

impl Tags {
    pub(super) fn new() -> Tags {
        Tags(OnceBox::new())
    }

    fn of(&self, tag: Tag) -> &Use {
        let all = self.0.get_or_init(|| crate::sync::boxed(OnceBox::new));
        // Only `tags::intern` assigns numbers, from 1 to MOST.
        all[(tag as usize - 1) % tags::MAX_TAGS].get_or_init(Box::default)
    }

    fn all(&self) -> impl Iterator<Item = (Tag, &Use)> {
        let all = self.0.get().into_iter().flatten();
        all.enumerate().filter_map(|(at, of)| Some((at as Tag + 1, of.get()?)))
    }
}

impl Use {
    /// Adds `bytes` where the limit allows it.
    fn charge(&self, tag: Tag, bytes: u64) -> Result<()> {
        let now = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        let limit = self.limit.load(Relaxed);
        if limit != 0 && now > limit {
            self.bytes.fetch_sub(bytes, Relaxed);
            return Err(self.refusal(tag, now - bytes, bytes, limit));
        }
        self.peak.fetch_max(now, Relaxed);
        Ok(())
    }

    #[cold]
    fn refusal(&self, tag: Tag, held: u64, bytes: u64, limit: u64) -> Error {
        let name = tags::name(tag).unwrap_or_default();
        Error::OutOfMemory(format!(
            "{bytes} bytes for tag `{name}`, which holds {held} of at most {limit}"
        ))
    }
}

impl Pool {
    /// Fails if `bytes` more for a tag exceed its limit, before anything is allocated for it.
    pub fn tag_fits(&self, tag: Tag, bytes: u64) -> Result<()> {
        let of = self.tags.of(tag);
        let (held, limit) = (of.bytes.load(Relaxed), of.limit.load(Relaxed));
        match limit != 0 && held.saturating_add(bytes) > limit {
            true => Err(of.refusal(tag, held, bytes, limit)),
            false => Ok(()),
        }
    }

    /// Assigns the block that was just handed out at `address` to a tag; an error where the tag's limit does not allow
    /// it.
    pub fn tag_block(&self, address: u64, tag: Tag) -> Result<()> {
        let of = self.tags.of(tag);
        match self.find(address) {
            Some((_, block)) => {
                of.charge(tag, block.size())?;
                block.tag.store(tag, Relaxed);
            }
            None => {
                let Some(block) = self.dedicated.find(address) else {
                    return Ok(());
                };
                of.charge(tag, block.size.load(Relaxed))?;
                block.tag.store(tag, Relaxed);
            }
        }
        of.allocations.fetch_add(1, Relaxed);
        Ok(())
    }

    /// The block at `address` is about to be freed: takes it from its tag. Of two frees that race, one finds the tag,
    /// and one takes the block back, so the counters are right.
    pub fn untag_block(&self, address: u64) {
        let (tag, bytes) = self.take_tag(address);
        if tag != 0 {
            let of = self.tags.of(tag);
            of.bytes.fetch_sub(bytes, Relaxed);
            of.frees.fetch_add(1, Relaxed);
        }
    }

    /// Takes the tag from the block at `address`, and returns the tag and the block's bytes.
    pub fn take_tag(&self, address: u64) -> (Tag, u64) {
        match self.find(address) {
            Some((_, block)) => {
                let bytes = block.size();
                (block.tag.swap(0, Relaxed), bytes)
            }
            None => match self.dedicated.find(address) {
                Some(block) => (block.tag.swap(0, Relaxed), block.size.load(Relaxed)),
                None => (0, 0),
            },
        }
    }

    /// The bytes of the block at `address`.
    pub fn allocated_at(&self, address: u64) -> u64 {
        match self.find(address) {
            Some((_, block)) => block.size(),
            None => self.dedicated.find(address).map_or(0, |block| block.size.load(Relaxed)),
        }
    }

    /// Gives the block at `address` that tag again.
    pub fn put_tag(&self, address: u64, tag: Tag) {
        match (self.find(address), self.dedicated.find(address)) {
            (Some((_, block)), _) => block.tag.store(tag, Relaxed),
            (None, Some(block)) => block.tag.store(tag, Relaxed),
            (None, None) => {}
        }
    }

    /// Charges a tag for the bytes by which its block grows; an error where the limit does not allow it.
    pub fn tag_grows(&self, tag: Tag, bytes: u64) -> Result<()> {
        match tag {
            0 => Ok(()),
            _ => self.tags.of(tag).charge(tag, bytes),
        }
    }

    /// Subtracts the bytes by which a tag's block has become smaller, or by which it did not grow after all.
    pub fn tag_shrinks(&self, tag: Tag, bytes: u64) {
        if tag != 0 {
            self.tags.of(tag).bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// Counts a refused request of a tag.
    pub fn tag_refused(&self, tag: Tag) {
        self.tags.of(tag).out_of_memory.fetch_add(1, Relaxed);
    }

    /// Limits what a tag holds of this pool, in allocated bytes; 0 means no limit.
    pub fn set_tag_limit(&self, tag: Tag, bytes: u64) {
        self.tags.of(tag).limit.store(bytes, Relaxed);
    }

    /// Every tag's statistics, in the order in which the names first appeared.
    pub fn tag_stats(&self) -> Vec<TagStats> {
        let figures = |(tag, of): (Tag, &Use)| TagStats {
            tag: tags::name(tag).unwrap_or_default(),
            allocated: of.bytes.load(Relaxed),
            allocated_peak: of.peak.load(Relaxed),
            limit: of.limit.load(Relaxed),
            allocations: of.allocations.load(Relaxed),
            frees: of.frees.load(Relaxed),
            out_of_memory: of.out_of_memory.load(Relaxed),
        };
        self.tags.all().map(figures).collect()
    }

    /// Restarts every tag's peak at its present bytes.
    pub(super) fn reset_tag_peaks(&self) {
        for (_, of) in self.tags.all() {
            of.peak.store(of.bytes.load(Relaxed), Relaxed);
        }
    }
}
