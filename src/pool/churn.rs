//! How much may be created beyond the peak in use, where moving handles has become the work.
//!
//! At 1.04 times the peak a workload that repeats moves hardly any handles once it is warm. Sizes drawn at random, large ones
//! among small, never settle: free memory is there and always in pieces, and each request moves many handles, which costs
//! tens of microseconds each on a GPU. Blocks that are large enough to be worth that do not count. Such a pool is given more
//! room, step by step, for as long as that goes on.

/// Requests that are looked at together.
const WINDOW: u64 = 4096;

/// So many handles moved among them are too many: one for ten requests.
const MANY: u64 = WINDOW / 10;

/// What one request counts at most: a single large one is no restlessness.
const MOST: u64 = 32;

/// So many bytes of a request pay for one handle that is moved for it: moving it takes the device's driver about as long as the
/// device takes to go through them a few times.
const MOVED: u64 = 16 << 20;

/// The part of the peak that may be created beyond it, at each step.
const PARTS: [u64; 6] = [25, 16, 10, 7, 5, 3];

/// What a pool knows of its own restlessness.
#[derive(Default)]
pub struct Churn {
    requests: u64,
    /// Handles moved until the last request.
    remaps: u64,
    /// Bytes of the last request.
    size: u64,
    /// What counts of them since the window began.
    moved: u64,
    step: usize,
}

impl Churn {
    /// A request for `size` bytes came that its stream's cache could not meet; so many handles were moved until now.
    pub fn request(&mut self, remaps: u64, size: u64) {
        let paid = std::mem::replace(&mut self.size, size) / MOVED;
        let moved = remaps - std::mem::replace(&mut self.remaps, remaps);
        self.moved += moved.saturating_sub(paid).min(MOST);
        self.requests += 1;
        if self.moved > MANY && self.step + 1 < PARTS.len() {
            self.step += 1;
        } else if self.requests < WINDOW {
            return;
        }
        (self.requests, self.moved) = (0, 0);
    }

    /// One part in so many of the peak may be created beyond it.
    pub fn part(&self) -> u64 {
        PARTS[self.step]
    }

    /// Memory is wanted back: it begins anew.
    pub fn calm(&mut self) {
        self.step = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_room_only_while_much_is_moved() {
        let (mut churn, mut large) = (Churn::default(), Churn::default());
        let mut remaps = 0;
        let mut run = |churn: &mut Churn, every: u64, handles: u64| {
            for request in 0..2 * WINDOW {
                remaps += if request % every == 0 { handles } else { 0 };
                churn.request(remaps, 0);
            }
            churn.part()
        };
        assert_eq!(run(&mut churn, 16, 1), 25);
        for request in 1..2 * WINDOW {
            large.request(request * 32, 512 << 20);
        }
        assert_eq!(large.part(), 25, "as many as large blocks are worth");
        for request in 2 * WINDOW..4 * WINDOW {
            large.request(request * 64, 512 << 20);
        }
        assert!(large.part() < 25, "more");
        assert_eq!(run(&mut churn, WINDOW, 10_000), 25, "one large request");
        assert!(run(&mut churn, 8, 1) < 25);
        let after = churn.part();
        assert_eq!(run(&mut churn, 16, 1), after);
        assert_eq!(run(&mut churn, 1, 1), 3);
        churn.calm();
        assert_eq!(churn.part(), 25);
    }
}
