//! What each tag holds of one pool, and its limit. Written only by calls of threads that have a tag, and by frees of what
//! they allocated.

use super::Pool;
use crate::error::{Error, Result};
use crate::stats::TagStats;
use crate::sync::OnceBox;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;
use crate::tags::{self, Tag};

/// One tag's books.
#[derive(Default)]
struct Use {
    bytes: AtomicU64,
    peak: AtomicU64,
    allocations: AtomicU64,
    frees: AtomicU64,
    out_of_memory: AtomicU64,
    limit: AtomicU64,
}

/// The books of every tag that has come by, by its number.
pub(super) struct Tags(OnceBox<[OnceBox<Use>; tags::MOST]>);

impl Tags {
    pub(super) fn new() -> Tags {
        Tags(OnceBox::new())
    }

    fn of(&self, tag: Tag) -> &Use {
        let all = self.0.get_or_init(|| super::block::boxed(OnceBox::new));
        // Numbers are given out by `tags::intern` only, from 1 to MOST.
        all[(tag as usize - 1) % tags::MOST].get_or_init(Box::default)
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
    /// Why `bytes` more for a tag are beyond its limit, before anything is allocated for it.
    pub fn tag_fits(&self, tag: Tag, bytes: u64) -> Result<()> {
        let of = self.tags.of(tag);
        let (held, limit) = (of.bytes.load(Relaxed), of.limit.load(Relaxed));
        match limit != 0 && held.saturating_add(bytes) > limit {
            true => Err(of.refusal(tag, held, bytes, limit)),
            false => Ok(()),
        }
    }

    /// The block that was just handed out at `address` is a tag's; an error where its limit does not allow it.
    pub fn tag_block(&self, address: u64, tag: Tag) -> Result<()> {
        let of = self.tags.of(tag);
        match self.find(address) {
            Some((_, block)) => {
                of.charge(tag, block.size())?;
                block.tag.store(tag, Relaxed);
            }
            None => {
                let Some(block) = self.beside.find(address) else {
                    return Ok(());
                };
                of.charge(tag, block.size.load(Relaxed))?;
                block.tag.store(tag, Relaxed);
            }
        }
        of.allocations.fetch_add(1, Relaxed);
        Ok(())
    }

    /// The block at `address` is about to be freed: it is no tag's any more. Of two frees that race one finds the tag, and
    /// one of them takes the block back, so that the books are right.
    pub fn untag_block(&self, address: u64) {
        let (tag, bytes) = self.take_tag(address);
        if tag != 0 {
            let of = self.tags.of(tag);
            of.bytes.fetch_sub(bytes, Relaxed);
            of.frees.fetch_add(1, Relaxed);
        }
    }

    /// The tag of the block at `address`, which it has no more, and the block's bytes.
    pub fn take_tag(&self, address: u64) -> (Tag, u64) {
        match self.find(address) {
            Some((_, block)) => {
                let bytes = block.size();
                (block.tag.swap(0, Relaxed), bytes)
            }
            None => match self.beside.find(address) {
                Some(block) => (block.tag.swap(0, Relaxed), block.size.load(Relaxed)),
                None => (0, 0),
            },
        }
    }

    /// The block at `address` has that tag again.
    pub fn put_tag(&self, address: u64, tag: Tag) {
        match (self.find(address), self.beside.find(address)) {
            (Some((_, block)), _) => block.tag.store(tag, Relaxed),
            (None, Some(block)) => block.tag.store(tag, Relaxed),
            (None, None) => {}
        }
    }

    /// A tag's block grows by so many bytes, or does not.
    pub fn tag_grows(&self, tag: Tag, bytes: u64) -> Result<()> {
        match tag {
            0 => Ok(()),
            _ => self.tags.of(tag).charge(tag, bytes),
        }
    }

    /// A tag's block has become smaller by so many bytes, or did not grow after all.
    pub fn tag_shrinks(&self, tag: Tag, bytes: u64) {
        if tag != 0 {
            self.tags.of(tag).bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// A request of a tag was refused.
    pub fn tag_refused(&self, tag: Tag) {
        self.tags.of(tag).out_of_memory.fetch_add(1, Relaxed);
    }

    /// Caps what a tag holds of this pool, in bytes as handed out; 0: no cap.
    pub fn set_tag_limit(&self, tag: Tag, bytes: u64) {
        self.tags.of(tag).limit.store(bytes, Relaxed);
    }

    /// Every tag's figures, in the order in which the names first came.
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

    /// Starts every tag's peak anew.
    pub(super) fn reset_tag_peaks(&self) {
        for (_, of) in self.tags.all() {
            of.peak.store(of.bytes.load(Relaxed), Relaxed);
        }
    }
}
