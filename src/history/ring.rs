//! A ring of events that many threads write and one thread reads, without a lock and without torn events.
//!
//! An event's number determines its slot. A slot begins with a sequence number, as in a seqlock: `2 × number + 1`
//! while the event is written, `2 × number + 2` once it is complete. Writers do not claim a slot, since that would be
//! a locked instruction on a line that the processor may not have. A writer that is suspended for a complete round of
//! the ring can therefore overwrite parts of a later event. So a slot ends with a checksum over the number and the
//! words; a reader finds a mixed event by it, and counts the event as lost.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use super::event::Words;
use crate::support::config::history::RecordingOptions;
use crate::support::error::{Error, Result};

#[repr(C, align(64))]
struct Slot {
    sequence: AtomicU64,
    words: [AtomicU64; 6],
    checksum: AtomicU64,
}

/// A checksum that changes with the number and with every word.
#[inline]
fn checksum(number: u64, words: &Words) -> u64 {
    // The factors are odd, so that no change of a single word is lost, and irregular, so that changes of several
    // words do not cancel out.
    const FACTORS: [u64; 6] = [
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
        0xd6e8_feb8_6659_fd93,
        0xa076_1d64_78bd_642f,
        0xe703_7ed1_a0b4_28db,
    ];
    let products = words
        .iter()
        .zip(FACTORS)
        .map(|(word, factor)| word.wrapping_mul(factor));
    products.fold(number, u64::wrapping_add)
}

/// Slots in a mapping of their own. Its pages are zeroed and touched only as they are used.
pub(in crate::history) struct Ring {
    slots: NonNull<Slot>,
    count: usize,
}

// SAFETY: every access to the slots is atomic.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// `count` is a power of two.
    fn new(count: usize) -> Result<Ring> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            // A ring may be larger than the host's memory, since it takes memory only as it fills. A host that commits memory
            // strictly counts all of it nevertheless.
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a fresh mapping, to which no other pointer exists.
        let memory = unsafe { libc::mmap(null_mut(), count * size_of::<Slot>(), protection, flags, -1, 0) };
        match NonNull::new(memory.cast::<Slot>()) {
            Some(slots) if memory != libc::MAP_FAILED => Ok(Ring { slots, count }),
            _ => Err(Error::OutOfMemory(format!(
                "host memory for a history of {count} entries"
            ))),
        }
    }

    pub(in crate::history) fn len(&self) -> u64 {
        self.count as u64
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        // SAFETY: the index is below `count`; zeroed memory is a valid slot, and the mapping lives as long as `self`.
        unsafe { self.slots.add(number as usize & (self.count - 1)).as_ref() }
    }

    /// Writes event `number`, which no other thread writes. Returns false where the slot holds a later event.
    #[inline]
    pub(in crate::history) fn write(&self, number: u64, words: &Words) -> bool {
        let slot = self.slot(number);
        let before = slot.sequence.load(Ordering::Relaxed);
        let (writing, written) = (2 * number + 1, 2 * number + 2);
        if before > writing {
            return false;
        }
        slot.sequence.store(writing, Ordering::Relaxed);
        // A reader that sees a word of this event sees the sequence number above too.
        fence(Ordering::Release);
        for (to, word) in slot.words.iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        slot.checksum.store(checksum(number, words), Ordering::Relaxed);
        slot.sequence.store(written, Ordering::Release);
        true
    }

    /// Reads event `number`; `None` where it is lost or overwritten. Waits for an event that is being written, at
    /// most `retries` times in all.
    pub(in crate::history) fn read(&self, number: u64, retries: &mut u32) -> Option<Words> {
        let slot = self.slot(number);
        loop {
            let sequence = slot.sequence.load(Ordering::Acquire);
            if sequence == 2 * number + 2 {
                let words = std::array::from_fn(|at| slot.words[at].load(Ordering::Relaxed));
                let complete = slot.checksum.load(Ordering::Relaxed) == checksum(number, &words);
                fence(Ordering::Acquire);
                return (complete && slot.sequence.load(Ordering::Relaxed) == sequence).then_some(words);
            }
            if sequence > 2 * number + 2 || *retries == 0 {
                return None;
            }
            *retries -= 1;
            std::thread::yield_now();
        }
    }

    /// Whether a later event has overwritten event `number`.
    pub(in crate::history) fn is_overwritten(&self, number: u64) -> bool {
        self.slot(number).sequence.load(Ordering::Acquire) > 2 * number + 2
    }

    /// Returns the pages to the system; all slots read as zero from now on.
    fn release_pages(&self) {
        let bytes = self.count * size_of::<Slot>();
        // SAFETY: the mapping is this ring's own, and zeroed slots are valid ones.
        let _ = unsafe { libc::madvise(self.slots.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, and `&mut self` excludes other users.
        let _ = unsafe { libc::munmap(self.slots.as_ptr().cast(), self.count * size_of::<Slot>()) };
    }
}

/// Slots of the smallest ring: 64 KiB.
const MIN_SLOTS: u64 = 1024;
/// Slots of the largest ring: 4 GiB.
const MAX_SLOTS: u64 = RecordingOptions::MAX_ENTRIES.next_power_of_two();

/// The slots of a ring for at least `entries` events. It has an eighth more, so that a reader can read the oldest events before
/// they are overwritten, and a writer that is suspended for a moment does not lose its event. The largest ring has fewer to
/// spare.
fn slots(entries: u64) -> u64 {
    (entries + entries / 8).clamp(MIN_SLOTS, MAX_SLOTS).next_power_of_two()
}

/// The ring in use, and earlier rings of other sizes, since a thread may still be writing into one of them. Sizes are
/// powers of two, so rings are few. The pages of unused rings are returned to the system.
pub(in crate::history) struct Rings {
    current: AtomicPtr<Ring>,
    // Boxed, since `current` points to one while others are added.
    #[allow(clippy::vec_box)]
    all: Mutex<Vec<Box<Ring>>>,
}

impl Default for Rings {
    fn default() -> Rings {
        Rings {
            current: AtomicPtr::new(null_mut()),
            all: Mutex::new(Vec::new()),
        }
    }
}

impl Rings {
    #[inline]
    pub(in crate::history) fn current(&self) -> Option<&Ring> {
        // SAFETY: null, or a ring of `all`, which is dropped with `self` only.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }
    }

    /// Makes a ring for at least `entries` events the current one.
    pub(in crate::history) fn make(&self, entries: u64) -> Result<()> {
        let count = slots(entries) as usize;
        let mut all = self.all.lock();
        if !all.iter().any(|ring| ring.count == count) {
            all.push(Box::new(Ring::new(count)?));
        }
        for ring in all.iter() {
            if ring.count == count {
                self.current
                    .store(std::ptr::from_ref(&**ring).cast_mut(), Ordering::Release);
            } else {
                ring.release_pages();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_read_while_eight_threads_write_are_not_torn() {
        let rings = Rings::default();
        rings.make(100).unwrap();
        let ring = rings.current().unwrap();
        let next = AtomicU64::new(0);
        let over = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let number = next.fetch_add(1, Ordering::AcqRel);
                        ring.write(number, &[number; 6]);
                    }
                    over.fetch_add(1, Ordering::Release);
                });
            }
            let mut complete = 0u64;
            while over.load(Ordering::Acquire) < 8 || complete == 0 {
                let until = next.load(Ordering::Acquire);
                for number in until.saturating_sub(100)..until {
                    if let Some(words) = ring.read(number, &mut 10) {
                        assert_eq!(words, [number; 6], "torn");
                        complete += 1;
                    }
                }
            }
        });
        let last = next.load(Ordering::Acquire) - 1;
        assert_eq!(ring.read(last, &mut 0), Some([last; 6]));
        assert_eq!(ring.read(0, &mut 0), None, "overwritten long ago");
    }

    /// docs/snapshots.md says what a history takes.
    #[test]
    fn the_largest_ring_takes_four_gibibytes() {
        assert_eq!(size_of::<Slot>(), 64);
        assert_eq!(slots(RecordingOptions::MAX_ENTRIES) * 64, 4 << 30);
        for (entries, count) in [
            (1, 1024),
            (910, 1024),
            (911, 1024),
            (912, 2048),
            (100_000, 131_072),
            (1 << 20, 1 << 21),
            (1 << 25, 1 << 26),
            ((1 << 26) - 1, 1 << 26),
        ] {
            assert_eq!(slots(entries), count, "{entries}");
            assert!(count >= entries);
        }
    }

    #[test]
    fn a_writer_suspended_for_a_round_loses_its_event() {
        let ring = Ring::new(64).unwrap();
        assert!(ring.write(64, &[1; 6]));
        assert!(!ring.write(0, &[2; 6]));
        assert_eq!(ring.read(64, &mut 0), Some([1; 6]));
        assert_eq!(ring.read(128, &mut 0), None);
        assert_eq!(
            [0, 64, 128].map(|number| ring.is_overwritten(number)),
            [true, false, false]
        );
    }

    #[test]
    fn an_event_mixed_from_two_writers_is_lost() {
        let ring = Ring::new(64).unwrap();
        let (old, new) = ([1, 0, 3, 4, 5, 6], [1, 1, 2, 4, 5, 7]);
        // Every mixture of the words and the checksum of both.
        for mix in 0u32..1 << 7 {
            let number = 64 * u64::from(mix + 1);
            assert!(ring.write(number, &new));
            let slot = ring.slot(number);
            let late = |at: usize| mix & 1 << at != 0;
            for (at, word) in old.iter().enumerate().filter(|(at, _)| late(*at)) {
                slot.words[at].store(*word, Ordering::Relaxed);
            }
            if late(6) {
                slot.checksum.store(checksum(number - 64, &old), Ordering::Relaxed);
            }
            let read = ring.read(number, &mut 0);
            assert!(read.is_none_or(|words| words == new), "{mix:#b}");
            assert_eq!(
                read.is_some(),
                !late(6) && [1, 2, 5].iter().all(|at| !late(*at)),
                "{mix:#b}"
            );
        }
    }
}
