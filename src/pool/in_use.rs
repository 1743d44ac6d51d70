//! How many bytes are handed out, and the most there have been, without a counter that every hit writes.
//!
//! A stream's cache keeps its own balance under the lock it holds anyway: bytes handed out through it less bytes taken back.
//! What the pool knows of it is its *charge*, which is at least the balance and only raised by a hit. So the charged total is
//! at least what is handed out, and as long as it does not pass the peak, neither does what is handed out. Where it does
//! pass, every charge is set to its balance, and the peak to what that gives. In the steady state nothing is shared.
//! All caches are held for that: looked at one after the other, what one stream gives back and another takes meanwhile would
//! count twice.

use super::Pool;
use super::stream_cache::Inner;
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::sync::broken;

/// The pool's side of it.
#[derive(Default)]
pub struct InUse {
    /// Bytes handed out less bytes taken back outside the caches, and the charges of the caches.
    total: AtomicI64,
    peak: AtomicU64,
}

impl InUse {
    /// The most bytes handed out at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// So many bytes were handed out here: by how much the charge had to be raised.
    #[inline]
    pub fn handed_out(&mut self, bytes: u64) -> u64 {
        self.balance += bytes as i64;
        let more = self.balance - self.charged;
        if more <= 0 {
            return 0;
        }
        self.charged = self.balance;
        more as u64
    }
}

impl Pool {
    /// A charge was raised, or so many bytes were handed out outside the caches.
    #[cold]
    pub fn charge(&self, bytes: u64) {
        let total = self.in_use.total.fetch_add(bytes as i64, Ordering::Relaxed) + bytes as i64;
        let raises = total > self.in_use.peak() as i64;
        if raises && !broken("a charge is looked at where it may be a peak") {
            self.in_use();
        }
    }

    /// So many bytes were taken back outside the caches.
    pub fn taken_back(&self, bytes: u64) {
        self.in_use.total.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// Bytes handed out now. Takes every cache's lock, in the one order there is; the caller holds none.
    pub fn in_use(&self) -> u64 {
        let mut held: Vec<_> = self.caches.all().map(|cache| cache.inner.lock()).collect();
        for inner in &mut held {
            if inner
                .generation
                .as_ref()
                .is_some_and(|generation| generation.device == self.device)
            {
                self.settle_charge(inner);
            }
        }
        if broken("all caches are held for the sum") {
            held.clear();
        }
        let now = self.in_use.total.load(Ordering::Relaxed).max(0) as u64;
        self.in_use.peak.fetch_max(now, Ordering::Relaxed);
        now
    }

    /// Sets a cache's charge to its balance.
    fn settle_charge(&self, inner: &mut Inner) {
        let over = inner.charged - inner.balance;
        // A block that grows comes by at each step, and mostly there is nothing to settle.
        if over != 0 {
            inner.charged = inner.balance;
            self.in_use.total.fetch_sub(over, Ordering::Relaxed);
        }
    }

    /// A cache leaves its generation: what it had handed out is the pool's own affair from now on.
    pub(super) fn take_over_charge(&self, inner: &mut Inner) {
        self.settle_charge(inner);
        (inner.balance, inner.charged) = (0, 0);
    }

    /// Starts the peak anew.
    pub(super) fn reset_peak_in_use(&self) {
        self.in_use.peak.store(0, Ordering::Relaxed);
        self.in_use();
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, Request};
    use crate::config::Config;
    use crate::driver::Stream;
    use crate::driver::sim::{SimConfig, SimDriver};

    /// The peak is exact however the streams take turns, though no hit writes what another reads.
    #[test]
    fn the_peak_is_the_highest_sum() {
        let driver = SimDriver::new(SimConfig::default());
        let machine = driver.machine().clone();
        machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
        let streams: Vec<_> = (0..4).map(|_| machine.stream_create(true).unwrap()).collect();
        let allocator = Allocator::with_driver(driver, Config::default()).unwrap();
        let (mut live, mut now, mut peak) = (Vec::new(), 0, 0);
        let mut random = 1u64;
        for round in 0..20_000u64 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let draw = random >> 33;
            let stream = Some(Stream(streams[(draw % 4) as usize])).filter(|_| !draw.is_multiple_of(31));
            if (draw / 4).is_multiple_of(2) || live.is_empty() {
                let size = 512 << (draw / 8 % 8);
                let request = Request {
                    size,
                    alignment: 0,
                    flags: 0,
                    stream,
                    device: None,
                };
                live.push((allocator.allocate(request).unwrap(), size));
                now += size;
                peak = peak.max(now);
            } else {
                let (address, size) = live.swap_remove((draw / 8) as usize % live.len());
                allocator.deallocate(address, stream).unwrap();
                now -= size;
            }
            if round % 5_000 == 2_500 {
                allocator.reset_peaks(Some(0)).unwrap();
                peak = now;
            }
            if draw.is_multiple_of(97) {
                let stats = allocator.stats(Some(0)).unwrap();
                assert_eq!((stats.allocated, stats.allocated_peak), (now, peak), "round {round}");
            }
        }
        let stats = allocator.stats(Some(0)).unwrap();
        assert_eq!((stats.allocated, stats.allocated_peak), (now, peak));
    }
}
