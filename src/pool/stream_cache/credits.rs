//! Credits: bytes of a tag that were freed on a stream, and that the pool still counts for the tag.
//!
//! A request of the same tag on the same stream takes its bytes from the credit, under the lock of the cache. So a
//! stream that requests again and again what it frees writes nothing that other streams read. See `pool/tags.rs`.

use crate::support::tags::Tag;

/// How many tags have a credit in one cache at a time. Another tag takes the place of one whose number has the same
/// remainder.
const PLACES: usize = 32;

/// What the pool does not know yet of one tag's blocks on one stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct Credit {
    /// The tag; 0: none.
    pub tag: Tag,
    /// Bytes that were freed, and not taken again.
    pub bytes: u64,
    /// Requests that took their bytes here.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
}

/// The credits of one cache. It takes memory only once a block with a tag is freed on the stream.
#[derive(Default)]
pub struct Credits(Option<Box<[Credit; PLACES]>>);

impl Credits {
    #[inline]
    fn of(&mut self, tag: Tag) -> Option<&mut Credit> {
        let place = &mut self.0.as_mut()?[tag as usize % PLACES];
        (place.tag == tag).then_some(place)
    }

    /// Whether the tag has so many bytes of credit.
    #[inline]
    pub fn cover(&mut self, tag: Tag, bytes: u64) -> bool {
        self.of(tag).is_some_and(|credit| credit.bytes >= bytes)
    }

    /// Takes the bytes of a request that the credit covers.
    #[inline]
    pub fn take(&mut self, tag: Tag, bytes: u64) {
        if let Some(credit) = self.of(tag) {
            credit.bytes -= bytes;
            credit.allocations += 1;
        }
    }

    /// Adds a block that was freed. Returns the credit of another tag that had the place; the pool must be informed of
    /// it.
    #[inline]
    pub fn give(&mut self, tag: Tag, bytes: u64) -> Option<Credit> {
        let places = self.0.get_or_insert_with(Box::default);
        let place = &mut places[tag as usize % PLACES];
        let other = (place.tag != tag).then(|| std::mem::take(place));
        place.tag = tag;
        place.bytes += bytes;
        place.frees += 1;
        other.filter(|other| other.tag != 0)
    }

    /// Takes every credit out.
    pub fn drain(&mut self) -> impl Iterator<Item = Credit> {
        let places = self.0.iter_mut().flat_map(|places| places.iter_mut());
        places.filter(|place| place.tag != 0).map(std::mem::take)
    }
}
