//! The cases that are run with each pool. A case is prepared once for a pool, and then run round after round.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use trtalloc::trace::random::Random;

use crate::pools::Pool;

/// The size of a pair's block.
const SIZE: u64 = 1 << 20;

/// How many allocated blocks wait to be freed.
const QUEUE: usize = 16;

/// One row of the table.
#[derive(Clone, Copy)]
pub enum Case {
    /// Pairs of allocation and free, on a stream for each thread or on one.
    Pairs { threads: usize, one_stream: bool },
    /// Blocks allocated on one stream and freed on another, in the order of their allocation.
    Passed { threads: usize },
    /// Pairs whose size fits no hole of a stream exactly, after blocks of that many other sizes were freed.
    Misses { holes: u64, sizes: u64 },
    /// RMM's benchmark random_allocations: uniform sizes, at most 16,000 MiB in use. While there is something left to
    /// allocate, 73 of 100 operations allocate.
    Random { allocations: usize, largest: u64 },
}

/// The cases, in the order of the table.
pub const CASES: [Case; 14] = [
    Case::Pairs {
        threads: 1,
        one_stream: false,
    },
    Case::Pairs {
        threads: 2,
        one_stream: false,
    },
    Case::Pairs {
        threads: 4,
        one_stream: false,
    },
    Case::Pairs {
        threads: 2,
        one_stream: true,
    },
    Case::Pairs {
        threads: 4,
        one_stream: true,
    },
    Case::Passed { threads: 1 },
    Case::Passed { threads: 2 },
    Case::Misses { holes: 10, sizes: 0 },
    Case::Misses { holes: 1_000, sizes: 0 },
    Case::Misses {
        holes: 10_000,
        sizes: 0,
    },
    Case::Misses {
        holes: 10,
        sizes: 2_000,
    },
    Case::Random {
        allocations: 10_000,
        largest: 1 << 20,
    },
    Case::Random {
        allocations: 10_000,
        largest: 64 << 20,
    },
    Case::Random {
        allocations: 1_000,
        largest: 1 << 30,
    },
];

/// Runs about so many operations and returns the nanoseconds per operation; `None` where a request was refused.
pub type Round<'a> = Box<dyn FnMut(u64) -> Option<f64> + 'a>;

impl Case {
    pub fn name(self) -> String {
        match self {
            Case::Pairs { threads: 1, .. } => "pair, 1 thread".into(),
            Case::Pairs {
                threads,
                one_stream: false,
            } => format!("pair, {threads} threads, a stream each"),
            Case::Pairs { threads, .. } => format!("pair, {threads} threads, one stream"),
            Case::Passed { threads: 1 } => "allocated on one stream, freed on another".into(),
            Case::Passed { .. } => "the same by two threads, over a queue".into(),
            Case::Misses { holes, sizes: 0 } => format!("miss with {holes} holes, and its free"),
            Case::Misses { holes, sizes } => format!("miss with {holes} holes, after {sizes} other sizes"),
            Case::Random { allocations, largest } => {
                format!("random, {allocations} of up to {} MiB, an operation", largest >> 20)
            }
        }
    }

    /// This case with smaller numbers, for a run that only checks that it works.
    pub fn short(self) -> Case {
        match self {
            Case::Misses { holes, sizes } => Case::Misses {
                holes: holes.min(500),
                sizes: sizes.min(500),
            },
            Case::Random { allocations, largest } => Case::Random {
                allocations: allocations.min(500),
                largest,
            },
            other => other,
        }
    }

    /// The peak of bytes in use of a random case.
    pub fn peak(self) -> Option<u64> {
        let Case::Random { allocations, largest } = self else {
            return None;
        };
        let (mut in_use, mut peak) = (0, 0);
        for step in steps(allocations, largest) {
            match step {
                Step::Allocate(_, size) => in_use += size,
                Step::Free(_, size) => in_use -= size,
            }
            peak = peak.max(in_use);
        }
        Some(peak)
    }

    /// Prepares this case for `pool`, on this thread.
    pub fn prepare<P: Pool>(self, pool: &P) -> Round<'_> {
        match self {
            Case::Pairs { threads: 1, .. } => {
                let stream = pool.stream(0);
                Box::new(move |count| timed(OWN, count, || pair(pool, SIZE, stream)))
            }
            Case::Pairs { threads, one_stream } => Box::new(move |count| pairs(pool, threads, one_stream, count)),
            Case::Passed { threads: 1 } => {
                let (from, to) = (pool.stream(0), pool.stream(1));
                let (mut ring, mut at) = ([0; QUEUE], 0);
                Box::new(move |count| {
                    timed(OWN, count, || {
                        let slot = &mut ring[at % QUEUE];
                        at += 1;
                        let before = std::mem::replace(slot, pool.allocate(SIZE, from));
                        *slot != 0 && (before == 0 || pool.deallocate(before, SIZE, to))
                    })
                })
            }
            Case::Passed { .. } => Box::new(move |count| passed(pool, count)),
            Case::Misses { holes, sizes } => misses(pool, holes, sizes),
            Case::Random { allocations, largest } => {
                let steps = steps(allocations, largest);
                let mut blocks = vec![0; allocations];
                let stream = pool.stream(0);
                Box::new(move |count| {
                    let passes = count.div_ceil(steps.len() as u64);
                    let time = timed(OWN, passes, || {
                        steps.iter().all(|&step| step.run(pool, stream, &mut blocks))
                    });
                    time.map(|time| time / steps.len() as f64)
                })
            }
        }
    }
}

#[inline]
fn pair<P: Pool>(pool: &P, size: u64, stream: usize) -> bool {
    match pool.allocate(size, stream) {
        0 => false,
        block => pool.deallocate(block, size, stream),
    }
}

/// This thread's processor time, which other programs on the machine do not change.
pub const OWN: libc::clockid_t = libc::CLOCK_THREAD_CPUTIME_ID;
/// Wall-clock time, where threads wait for each other.
const WALL: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// The clock's time in nanoseconds.
fn now(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes to it. Every Linux has both clocks.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds of one call of `once` by that clock; `None` where a call fails.
pub fn timed(clock: libc::clockid_t, count: u64, mut once: impl FnMut() -> bool) -> Option<f64> {
    let begun = now(clock);
    let all = (0..count).all(|_| once());
    let time = now(clock) - begun;
    all.then_some(time / count as f64)
}

/// The mean time of a pair on several threads at the same time, in nanoseconds.
fn pairs<P: Pool>(pool: &P, threads: usize, one_stream: bool, count: u64) -> Option<f64> {
    let start = Barrier::new(threads);
    let one = |number: usize| {
        pool.enter();
        let stream = pool.stream(if one_stream { 0 } else { number });
        start.wait();
        let time = timed(WALL, count, || pair(pool, SIZE, stream));
        pool.leave();
        time
    };
    let times: Option<Vec<f64>> = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(move || one(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    times.map(|times| times.iter().sum::<f64>() / threads as f64)
}

/// One thread allocates on its stream, and another frees on its own stream.
fn passed<P: Pool>(pool: &P, count: u64) -> Option<f64> {
    let ring = [const { AtomicUsize::new(0) }; QUEUE];
    let start = Barrier::new(2);
    let slots = || ring.iter().cycle().take(count as usize);
    std::thread::scope(|scope| {
        let free = scope.spawn(|| {
            pool.enter();
            start.wait();
            let stream = pool.stream(1);
            let all = slots().all(|slot| {
                let block = until(|| slot.swap(0, Ordering::AcqRel), |block| block != 0);
                block == REFUSED || pool.deallocate(block, SIZE, stream)
            });
            pool.leave();
            all
        });
        start.wait();
        let begun = now(WALL);
        let stream = pool.stream(0);
        let mut all = true;
        for slot in slots() {
            let block = pool.allocate(SIZE, stream);
            all &= block != 0;
            until(|| slot.load(Ordering::Acquire), |block| block == 0);
            slot.store(if block == 0 { REFUSED } else { block }, Ordering::Release);
        }
        let freed = free.join().unwrap();
        let time = now(WALL) - begun;
        (all && freed).then_some(time / count as f64)
    })
}

/// Marks a refused request; 0 marks an empty place.
const REFUSED: usize = usize::MAX;

/// Calls `look` until its result is `good`.
fn until(look: impl Fn() -> usize, good: impl Fn(usize) -> bool) -> usize {
    let mut turns = 0;
    loop {
        let found = look();
        if good(found) {
            return found;
        }
        if turns < 64 {
            turns += 1;
            std::hint::spin_loop();
        } else {
            // Both threads may share one core.
            std::thread::yield_now();
        }
    }
}

/// Holes of 1 to 64 KiB between live blocks. No hole has a requested size, and no size is requested twice in a row.
/// This is `trtalloc::trace::steady::Holes` for any pool.
fn misses<P: Pool>(pool: &P, count: u64, sizes: u64) -> Round<'_> {
    let stream = pool.stream(0);
    let other: Vec<(usize, u64)> = (100..100 + sizes)
        .map(|units| (pool.allocate(units << 9, stream), units << 9))
        .collect();
    let known = other
        .iter()
        .all(|&(block, size)| block != 0 && pool.deallocate(block, size, stream));
    let mut between = vec![pool.allocate(512, stream)];
    let mut holes = Vec::new();
    for number in 0..count {
        let size = (1 + number * 7_919 % 64) << 10;
        holes.push((pool.allocate(size, stream), size));
        between.push(pool.allocate(512, stream));
    }
    let made = known && !between.contains(&0) && holes.iter().all(|&(hole, size)| pool.deallocate(hole, size, stream));
    let mut odd = false;
    Box::new(move |count| {
        timed(OWN, count, || {
            odd = !odd;
            made && pair(pool, if odd { 31 << 9 } else { 41 << 9 }, stream)
        })
    })
}

/// One operation of a random run. A block is identified by the number of its allocation.
#[derive(Clone, Copy)]
enum Step {
    Allocate(usize, u64),
    Free(usize, u64),
}

impl Step {
    #[inline]
    fn run<P: Pool>(self, pool: &P, stream: usize, blocks: &mut [usize]) -> bool {
        match self {
            Step::Allocate(number, size) => {
                blocks[number] = pool.allocate(size, stream);
                blocks[number] != 0
            }
            Step::Free(number, size) => pool.deallocate(blocks[number], size, stream),
        }
    }
}

/// The operations of a random run, in which every block is freed.
fn steps(allocations: usize, largest: u64) -> Vec<Step> {
    const MAX_IN_USE: u64 = 16_000 << 20;
    let mut random = Random::new(1);
    let (mut live, mut steps) = (Vec::new(), Vec::new());
    let (mut made, mut in_use) = (0, 0);
    while made < allocations || !live.is_empty() {
        let size = random.between(1, largest);
        let more = made < allocations && in_use + size < MAX_IN_USE;
        if live.is_empty() || random.percent(73) && more {
            live.push((made, size));
            steps.push(Step::Allocate(made, size));
            (made, in_use) = (made + 1, in_use + size);
        } else {
            let (number, size) = live.swap_remove(random.below(live.len() as u64) as usize);
            steps.push(Step::Free(number, size));
            in_use -= size;
        }
    }
    steps
}

/// Runs all operations until one is refused.
fn whole<P: Pool>(steps: &[Step], pool: &P, blocks: &mut [usize]) -> bool {
    let stream = pool.stream(0);
    steps.iter().all(|&step| step.run(pool, stream, blocks))
}

/// Whether a random case runs once without a refusal.
pub fn fits<P: Pool>(case: Case, pool: &P) -> bool {
    let Case::Random { allocations, largest } = case else {
        return false;
    };
    whole(&steps(allocations, largest), pool, &mut vec![0; allocations])
}

/// Runs a random case once and returns whether no two live blocks overlapped.
pub fn keeps_blocks_apart<P: Pool>(pool: &P) -> bool {
    let stream = pool.stream(0);
    let mut blocks = vec![0; 2_000];
    let mut live = BTreeMap::new();
    steps(blocks.len(), 1 << 20).iter().all(|&step| {
        if let Step::Free(number, _) = step {
            live.remove(&blocks[number]);
        }
        step.run(pool, stream, &mut blocks) && {
            let Step::Allocate(number, size) = step else {
                return true;
            };
            let (start, end) = (blocks[number], blocks[number] + size as usize);
            let before = live.range(..end).next_back();
            let apart = before.is_none_or(|(_, &before)| before <= start);
            live.insert(start, end);
            apart
        }
    })
}
