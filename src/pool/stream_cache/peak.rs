//! How many bytes are in use, and their peak, without a counter that every hit writes.
//!
//! A stream's cache keeps its own *balance* under the lock that it holds anyway: bytes handed out through it minus
//! bytes taken back. The pool knows the cache's *charge*, which is at least the balance, and adds the charges to a total.
//! So the total is at least the bytes in use, and while it does not exceed the peak, the bytes in use do not either.
//!
//! A *lazy* cache lowers no charge: its hits write nothing that streams share. An *exact* cache keeps its charge equal to
//! its balance, so each of its hits and frees changes the total. It subtracts a freed block before any request can have
//! that block again. Where the total exceeds the peak, the lazy caches are locked one after the other, and become exact.
//! Then the total is the bytes in use, and the peak rises to it. If the caches stayed lazy, memory that one stream frees and
//! another takes meanwhile would count twice. A cache becomes lazy again after `EXACT_PAIRS` frees. So streams that take
//! turns pay two changes of the total for a pair, and one lock of each cache for `EXACT_PAIRS` pairs.
//!
//! [`Pool::in_use`] holds the list of lazy caches while it locks them. A cache that becomes lazy therefore only tries to take
//! the list, and stays exact where another thread has it.

use crate::pool::Pool;
use crate::pool::stream_cache::list::CacheList;
use crate::pool::stream_cache::{Inner, StreamCache};
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::sync::broken;

/// How many frees a cache stays exact. The models have lazy caches from the start.
const EXACT_PAIRS: u32 = if cfg!(loom) { 0 } else { 1024 };

/// The pool's part of these counters.
#[derive(Default)]
pub struct InUse {
    /// Bytes handed out minus bytes taken back outside the caches, plus the charges of the caches.
    total: AtomicI64,
    peak: AtomicU64,
    /// Every lazy cache.
    lazy: CacheList,
    /// How often a cache was locked for the sum.
    #[cfg(test)]
    locked: AtomicU64,
}

impl InUse {
    /// The most bytes in use at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

/// One cache's part of these counters.
pub struct Balance {
    /// Bytes handed out through the cache minus bytes taken back.
    bytes: i64,
    /// The part of `bytes` that the pool knows, or more.
    charged: i64,
    charging: Charging,
}

/// How a cache keeps its charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charging {
    /// Equal to its balance, for so many frees more.
    Exact(u32),
    /// At least its balance. The pool's list has the cache.
    Lazy,
}

impl Default for Balance {
    fn default() -> Balance {
        Balance {
            bytes: 0,
            charged: 0,
            charging: Charging::Exact(EXACT_PAIRS),
        }
    }
}

impl Balance {
    /// Adds bytes that were handed out, and returns by how much this raised the charge.
    #[inline]
    pub fn handed_out(&mut self, bytes: u64) -> u64 {
        self.bytes += bytes as i64;
        let more = self.bytes - self.charged;
        if more <= 0 {
            return 0;
        }
        self.charged = self.bytes;
        more as u64
    }

    /// Subtracts bytes that were taken back. Returns whether the charge may stay as it is.
    #[inline]
    pub fn take_back(&mut self, bytes: u64) -> bool {
        self.bytes -= bytes as i64;
        self.charging == Charging::Lazy
    }

    /// Makes the charge exact, and returns by how much this lowered it.
    fn settle(&mut self) -> i64 {
        if !broken("a cache whose charge was settled stays exact") {
            self.charging = Charging::Exact(EXACT_PAIRS);
        }
        std::mem::replace(&mut self.charged, self.bytes) - self.bytes
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

    /// Subtracts bytes that are taken back into `cache`, which the caller has locked. No request may have them yet.
    #[inline]
    pub(in crate::pool) fn taken_back_into(&self, cache: &StreamCache, balance: &mut Balance, bytes: u64) {
        if !balance.take_back(bytes) {
            self.take_back_exactly(cache, balance, bytes);
        }
    }

    fn take_back_exactly(&self, cache: &StreamCache, balance: &mut Balance, bytes: u64) {
        match balance.charging {
            Charging::Exact(left @ 1..) => balance.charging = Charging::Exact(left - 1),
            _ if self.in_use.lazy.try_add(cache) => {
                balance.charging = Charging::Lazy;
                return;
            }
            _ => {}
        }
        balance.charged -= bytes as i64;
        self.taken_back(bytes);
    }

    /// Bytes in use now. It locks every lazy cache, one after the other; the caller holds no cache's lock.
    pub fn in_use(&self) -> u64 {
        let mut lazy = self.in_use.lazy.lock();
        for cache in lazy.drain(&self.caches) {
            #[cfg(test)]
            self.in_use.locked.fetch_add(1, Ordering::Relaxed);
            let mut inner = cache.inner.lock();
            if inner.serves(self.device) {
                self.settle(&mut inner);
            }
        }
        let now = self.in_use.total.load(Ordering::Relaxed).max(0) as u64;
        self.in_use.peak.fetch_max(now, Ordering::Relaxed);
        now
    }

    fn settle(&self, inner: &mut Inner) {
        let over = inner.balance.settle();
        if over != 0 {
            self.in_use.total.fetch_sub(over, Ordering::Relaxed);
        }
    }

    /// A cache leaves its stream: the pool itself counts from now on what the cache had handed out.
    pub(in crate::pool) fn take_over_charge(&self, inner: &mut Inner) {
        self.settle(inner);
        inner.balance = Balance::default();
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

    /// A pair costs the same however many streams take turns: no hit locks the caches of all others.
    #[test]
    fn streams_that_take_turns_do_not_lock_each_other() {
        const STREAMS: usize = 64;
        const ROUNDS: u64 = 4 * super::EXACT_PAIRS as u64;
        let driver = SimDriver::new(SimConfig::default());
        let machine = driver.machine().clone();
        machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
        let streams: Vec<_> = (0..STREAMS).map(|_| machine.stream_create(true).unwrap()).collect();
        let allocator = Allocator::with_driver(driver, Config::default()).unwrap();
        let request = |stream| Request {
            size: 1 << 20,
            alignment: 0,
            flags: 0,
            stream,
            device: None,
        };
        for _ in 0..ROUNDS {
            for stream in &streams {
                let stream = Some(Stream(*stream));
                let block = allocator.allocate(request(stream)).unwrap();
                allocator.deallocate(block, stream).unwrap();
            }
        }
        assert_eq!(allocator.stats(Some(0)).unwrap().allocated_peak, 1 << 20);
        let locked = allocator
            .pool_of(0)
            .in_use
            .locked
            .load(std::sync::atomic::Ordering::Relaxed);
        // Each cache is locked once when its 1,024 pairs are over, and for the first requests, which miss.
        let most = STREAMS as u64 * (ROUNDS / u64::from(super::EXACT_PAIRS) + 1);
        assert!(locked <= most, "{locked} locks, {most} expected");
    }
}
