//! A ring of events that many threads write at once and one reads, without a lock and without a torn event.
//!
//! Each event has a number, and its number a slot. A slot begins with a stamp: `2 × number + 1` while the event is written,
//! one more when it is there. It ends with a sum over the number and the words, for nobody claims a slot: that would be a locked
//! instruction on a line that the processor may not have yet. A thread that was held up for a whole round of the ring may so
//! write into what is another's by now; then the sum is that of neither, and the event is lost, and counted.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use super::event::Words;
use crate::error::{Error, Result};

#[repr(C, align(64))]
struct Slot {
    stamp: AtomicU64,
    words: [AtomicU64; 6],
    sum: AtomicU64,
}

/// A sum that changes with the number and with every word.
#[inline]
fn sum(number: u64, words: &Words) -> u64 {
    // Odd, so that no change of a single word is lost; and without pattern, so that changes of several do not make up for
    // each other.
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

/// Slots in memory of their own, which is zeroed and touched only as it is used.
pub(super) struct Ring {
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
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a fresh mapping, which nobody else knows.
        let memory = unsafe { libc::mmap(null_mut(), count * size_of::<Slot>(), protection, flags, -1, 0) };
        match NonNull::new(memory.cast::<Slot>()) {
            Some(slots) if memory != libc::MAP_FAILED => Ok(Ring { slots, count }),
            _ => Err(Error::OutOfMemory(format!(
                "host memory for a history of {count} entries"
            ))),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.count as u64
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        // SAFETY: the index is below `count`; zeroed memory is a valid slot, and the mapping lives as long as `self`.
        unsafe { self.slots.add(number as usize & (self.count - 1)).as_ref() }
    }

    /// Writes event `number`, which no other thread writes; false where the slot is a later event's.
    #[inline]
    pub(super) fn write(&self, number: u64, words: &Words) -> bool {
        let slot = self.slot(number);
        let before = slot.stamp.load(Ordering::Relaxed);
        let (writing, written) = (2 * number + 1, 2 * number + 2);
        if before > writing {
            return false;
        }
        slot.stamp.store(writing, Ordering::Relaxed);
        // A reader that sees a word of this event sees the stamp above too.
        fence(Ordering::Release);
        for (to, word) in slot.words.iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        slot.sum.store(sum(number, words), Ordering::Relaxed);
        slot.stamp.store(written, Ordering::Release);
        true
    }

    /// Event `number` as a whole; none where it is lost or was overwritten. Waits for one that is being written, as often
    /// as `patience` allows.
    pub(super) fn read(&self, number: u64, patience: &mut u32) -> Option<Words> {
        let slot = self.slot(number);
        loop {
            let stamp = slot.stamp.load(Ordering::Acquire);
            if stamp == 2 * number + 2 {
                let words = std::array::from_fn(|at| slot.words[at].load(Ordering::Relaxed));
                let whole = slot.sum.load(Ordering::Relaxed) == sum(number, &words);
                fence(Ordering::Acquire);
                return (whole && slot.stamp.load(Ordering::Relaxed) == stamp).then_some(words);
            }
            if stamp > 2 * number + 2 || *patience == 0 {
                return None;
            }
            *patience -= 1;
            std::thread::yield_now();
        }
    }

    /// Whether event `number` has made room for a later one.
    pub(super) fn is_past(&self, number: u64) -> bool {
        self.slot(number).stamp.load(Ordering::Acquire) > 2 * number + 2
    }

    /// Gives the pages back; what was written is zero from now on.
    fn forget(&self) {
        let bytes = self.count * size_of::<Slot>();
        // SAFETY: the mapping is this ring's own, and zeroed slots are valid ones.
        let _ = unsafe { libc::madvise(self.slots.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, and nobody borrows it any more.
        let _ = unsafe { libc::munmap(self.slots.as_ptr().cast(), self.count * size_of::<Slot>()) };
    }
}

/// Slots of the smallest ring: 64 KiB.
const LEAST: u64 = 1024;

/// The ring in use, and those of other sizes that were: a thread may still be writing into one of them. As sizes are powers
/// of two, they are few, and the pages of those not in use are given back.
pub(super) struct Rings {
    current: AtomicPtr<Ring>,
    // Boxed, since `current` points to one while others join.
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
    pub(super) fn current(&self) -> Option<&Ring> {
        // SAFETY: null, or a ring of `all`, which is dropped with `self` only.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }
    }

    /// Makes a ring for at least `entries` events the current one. Some more than that, so that what is read is not
    /// overwritten meanwhile, and whoever is held up while writing does not lose his event at once.
    pub(super) fn make(&self, entries: u64) -> Result<()> {
        let count = ((entries + entries / 8).max(LEAST) as usize).next_power_of_two();
        let mut all = self.all.lock();
        if !all.iter().any(|ring| ring.count == count) {
            all.push(Box::new(Ring::new(count)?));
        }
        for ring in all.iter() {
            if ring.count == count {
                self.current
                    .store(std::ptr::from_ref(&**ring).cast_mut(), Ordering::Release);
            } else {
                ring.forget();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_whole_while_eight_threads_write() {
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
            let mut whole = 0u64;
            while over.load(Ordering::Acquire) < 8 || whole == 0 {
                let until = next.load(Ordering::Acquire);
                for number in until.saturating_sub(100)..until {
                    if let Some(words) = ring.read(number, &mut 10) {
                        assert_eq!(words, [number; 6], "torn");
                        whole += 1;
                    }
                }
            }
        });
        let last = next.load(Ordering::Acquire) - 1;
        assert_eq!(ring.read(last, &mut 0), Some([last; 6]));
        assert_eq!(ring.read(0, &mut 0), None, "overwritten long ago");
    }

    #[test]
    fn a_writer_that_was_held_up_for_a_round_loses_its_event() {
        let ring = Ring::new(64).unwrap();
        assert!(ring.write(64, &[1; 6]));
        assert!(!ring.write(0, &[2; 6]));
        assert_eq!(ring.read(64, &mut 0), Some([1; 6]));
        assert_eq!(ring.read(128, &mut 0), None);
        assert_eq!([0, 64, 128].map(|number| ring.is_past(number)), [true, false, false]);
    }

    #[test]
    fn what_two_wrote_into_one_slot_is_nobodys() {
        let ring = Ring::new(64).unwrap();
        let (old, new) = ([1, 0, 3, 4, 5, 6], [1, 1, 2, 4, 5, 7]);
        // Each word, and the sum, of either.
        for mix in 0u32..1 << 7 {
            let number = 64 * u64::from(mix + 1);
            assert!(ring.write(number, &new));
            let slot = ring.slot(number);
            let late = |at: usize| mix & 1 << at != 0;
            for (at, word) in old.iter().enumerate().filter(|(at, _)| late(*at)) {
                slot.words[at].store(*word, Ordering::Relaxed);
            }
            if late(6) {
                slot.sum.store(sum(number - 64, &old), Ordering::Relaxed);
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
