//! How many bytes are in use, and their peak, without a counter that every hit writes.
//!
//! A stream's cache keeps its own *balance* under the lock that it holds anyway: bytes handed out through it minus
//! bytes taken back. The pool knows the cache's *charge*. The charge is at least the balance, and a hit can only raise
//! it. So the charged total is at least the bytes in use, and while it does not exceed the peak, the bytes in use do
//! not either. Where it does exceed the peak, every charge is set to its balance, and the peak to the resulting sum. In
//! the steady state nothing is shared.
//!
//! All caches are locked for that. If they were read one after the other, memory that one stream frees and another
//! takes meanwhile would count twice.

use crate::pool::Pool;
use crate::pool::stream_cache::Inner;
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::sync::broken;

/// The pool's part of these counters.
#[derive(Default)]
pub struct InUse {
    /// Bytes handed out minus bytes taken back outside the caches, plus the charges of the caches.
    total: AtomicI64,
    peak: AtomicU64,
}

impl InUse {
    /// The most bytes in use at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// Adds bytes that were handed out here, and returns by how much this raised the charge.
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
    /// Adds bytes by which a charge was raised, or that were handed out outside the caches.
    #[cold]
    pub fn charge(&self, bytes: u64) {
        let total = self.in_use.total.fetch_add(bytes as i64, Ordering::Relaxed) + bytes as i64;
        let raises = total > self.in_use.peak() as i64;
        if raises && !broken("a charge that may be a peak is checked") {
            self.in_use();
        }
    }

    /// Subtracts bytes that were taken back outside the caches.
    pub fn taken_back(&self, bytes: u64) {
        self.in_use.total.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// Bytes in use now. It takes every cache's lock, always in the same order; the caller holds none.
    pub fn in_use(&self) -> u64 {
        let mut held: Vec<_> = self.caches.all().map(|cache| cache.inner.lock()).collect();
        for inner in &mut held {
            if inner.serves(self.device) {
                self.balance_charge(inner);
            }
        }
        if broken("all caches are locked for the sum") {
            held.clear();
        }
        let now = self.in_use.total.load(Ordering::Relaxed).max(0) as u64;
        self.in_use.peak.fetch_max(now, Ordering::Relaxed);
        now
    }

    /// Sets a cache's charge to its balance.
    fn balance_charge(&self, inner: &mut Inner) {
        let over = inner.charged - inner.balance;
        // A block that grows calls this at each step, and mostly the two are equal.
        if over != 0 {
            inner.charged = inner.balance;
            self.in_use.total.fetch_sub(over, Ordering::Relaxed);
        }
    }

    /// A cache leaves its stream: the pool itself counts from now on what the cache had handed out.
    pub(in crate::pool) fn take_over_charge(&self, inner: &mut Inner) {
        self.balance_charge(inner);
        (inner.balance, inner.charged) = (0, 0);
    }

    /// Restarts the peak at the bytes in use now.
    pub(in crate::pool) fn reset_peak_in_use(&self) {
        self.in_use.peak.store(0, Ordering::Relaxed);
        self.in_use();
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, Request};
    use crate::driver::Stream;
    use crate::driver::sim::{SimConfig, SimDriver};
    use crate::support::config::Config;

    /// The peak is exact however the streams alternate, though no hit writes what another reads.
    #[test]
    fn peak_is_the_highest_sum() {
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
