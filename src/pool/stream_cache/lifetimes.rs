//! Which end of a stream's arena serves a request: blocks that outlive others lie apart from them.
//!
//! A request's outputs live on, and its scratch memory does not. Where both are cut from the same end, each output that
//! is left splits what the next request needs. So the stream compares how long its *smaller* and its *larger* blocks
//! live, and takes the smaller ones from the high end of its arena while they live longer. Where both live equally long,
//! as with two contexts on one stream, one end for all holds less
//! (docs/decisions/0002-two-ends-of-an-arena.md).

use crate::pool::free_space::{APART, End};

/// A block is smaller if it is below this part of what its stream needs, and larger otherwise.
const SMALLER: u64 = 8;
/// A smaller block outlives larger ones if its stream made this many times as many requests during its life as during
/// that of an average larger one.
const LONGER: u64 = 2;
/// Smaller blocks are placed apart while one in this many outlives larger ones.
const ONE_IN: u64 = 8;
/// Each block moves an average by one in this many of the difference.
const WEIGHT: u64 = 64;
/// A larger block counts as at most so many times the average, so that a few weights do not decide it.
const MOST: u64 = 4;
/// The unit of averages: one request, or one block.
const ONE: u64 = 1 << 16;

/// How long the blocks of a stream live that are large enough to be placed apart.
#[derive(Debug, Default)]
pub struct Lifetimes {
    /// Blocks below this size are smaller.
    divider: u64,
    /// The requests during the life of a larger block, a moving average; 0 before the first.
    larger: u64,
    /// How many of the smaller blocks outlived larger ones, a moving average.
    outliving: u64,
}

impl Lifetimes {
    /// Whether the lives of blocks of that size are noted.
    #[inline]
    pub fn notes(size: u64) -> bool {
        size >= APART
    }

    /// Notes the free of a block, during whose life its stream made so many requests.
    pub fn note(&mut self, size: u64, requests: u64) {
        let requests = requests.saturating_mul(ONE).max(ONE);
        let moved = |average: u64, now: u64| average - average / WEIGHT + now / WEIGHT;
        match size < self.divider {
            true if self.larger == 0 => {}
            true => {
                let outlived = requests > LONGER * self.larger;
                self.outliving = moved(self.outliving, u64::from(outlived) * ONE);
            }
            false if self.larger == 0 => self.larger = requests.min(u64::from(u32::MAX)),
            false => self.larger = moved(self.larger, requests.min(MOST * self.larger)),
        }
    }

    /// The end of its arena that serves a request of a stream which needs `needs` bytes in all.
    pub fn end(&mut self, size: u64, needs: u64) -> End {
        self.divider = needs / SMALLER;
        match size < self.divider && self.outliving > ONE / ONE_IN {
            true => End::High,
            false => End::Low,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Context, Stream};
    use crate::pool::free_space::FreeSpace;
    use crate::pool::stream_cache::{Key, StreamCaches};

    const NEEDS: u64 = 64 * APART;
    const SMALLER: u64 = NEEDS / 16;
    const LARGER: u64 = NEEDS / 4;

    /// Frees 200 of each, whose lives had so many requests: of the smaller ones, every `every`th had the second number.
    fn lives(lifetimes: &mut Lifetimes, larger: u64, smaller: (u64, u64), every: usize) {
        for number in 0..200 {
            lifetimes.end(LARGER, NEEDS);
            lifetimes.note(LARGER, larger);
            lifetimes.note(SMALLER, if number % every == 0 { smaller.1 } else { smaller.0 });
        }
    }

    #[test]
    fn smaller_blocks_that_outlive_larger_ones_lie_apart() {
        let mut lifetimes = Lifetimes::default();
        lives(&mut lifetimes, 4, (3, 20), 3);
        assert_eq!(lifetimes.end(SMALLER, NEEDS), End::High);
        assert_eq!(lifetimes.end(LARGER, NEEDS), End::Low);
        // Until they do so no more.
        lives(&mut lifetimes, 4, (3, 3), 3);
        assert_eq!(lifetimes.end(SMALLER, NEEDS), End::Low);
    }

    #[test]
    fn blocks_that_live_equally_long_share_an_end() {
        for (larger, smaller, every) in [
            (8, (5, 8), 2),
            (100, (100, 150), 2),
            (4, (3, 200), 33),
            (20, (3, 30), 2),
        ] {
            let mut lifetimes = Lifetimes::default();
            lives(&mut lifetimes, larger, smaller, every);
            assert_eq!(lifetimes.end(SMALLER, NEEDS), End::Low, "{larger} {smaller:?} {every}");
        }
    }

    /// Before the first larger block is freed, there is nothing to compare with.
    #[test]
    fn smaller_blocks_alone_stay_at_the_low_end() {
        let mut lifetimes = Lifetimes::default();
        for _ in 0..200 {
            lifetimes.end(SMALLER, NEEDS);
            lifetimes.note(SMALLER, 50);
        }
        assert_eq!(lifetimes.end(SMALLER, NEEDS), End::Low);
    }

    /// A few weights that live for very long do not make all other blocks short-lived.
    #[test]
    fn one_long_life_counts_little() {
        let mut lifetimes = Lifetimes::default();
        lives(&mut lifetimes, 4, (3, 20), 3);
        lifetimes.note(LARGER, u64::MAX);
        lives(&mut lifetimes, 4, (3, 20), 3);
        assert_eq!(lifetimes.end(SMALLER, NEEDS), End::High);
    }

    #[test]
    fn all_blocks_lie_together_where_memory_is_short() {
        let caches = StreamCaches::default();
        let key = Key::default_stream(Stream::LEGACY, Context(0));
        let (_, mut inner) = caches.lock(key);
        let mut free_space = FreeSpace::new(2 * NEEDS, 512, 2 << 20);
        let owner = free_space.add_owner();
        free_space.raise_peak(owner, NEEDS);
        lives(&mut inner.lifetimes, 4, (3, 20), 3);
        assert_eq!(inner.arena_end(SMALLER, &free_space, owner, || false), End::High);
        assert_eq!(inner.arena_end(SMALLER, &free_space, owner, || true), End::Low);
    }
}
