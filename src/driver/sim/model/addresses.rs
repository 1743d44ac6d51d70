//! Which addresses the driver returns. CUDA guarantees little about them: `malloc` memory begins at multiples of 256,
//! and a reservation is aligned as requested. Two of them may be adjacent, in either order, and a freed address may be
//! returned again at once.

use std::collections::BTreeMap;

/// Where `malloc` memory, pinned memory and reservations lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// One of the others for each piece, drawn at random from this seed.
    Drawn(u64),
    /// Directly behind the previous piece.
    Ascending,
    /// Directly in front of the previous piece.
    Descending,
    /// At the place of the piece that was freed last.
    Returning,
    /// At multiples of 2 MiB, with gaps between.
    Apart,
    /// At multiples of 256 and of no larger power of two, with gaps between. The host chooses the place of a
    /// reservation.
    Odd,
}

/// `malloc` memory and pinned memory begin at multiples of this.
pub(super) const START: u64 = 256;
/// Adjacent pieces begin at multiples of this, as with a real driver.
const STEP: u64 = 512;
const LARGE: u64 = 2 << 20;
/// How many places of freed pieces are kept.
const FREED: usize = 16;

/// Chooses a place for each piece.
#[derive(Debug)]
pub(super) struct Chooser {
    policy: Addresses,
    random: u64,
    /// Start and end of the previous piece.
    last: Option<(u64, u64)>,
    /// Starts of freed pieces, the most recent at the end.
    freed: Vec<u64>,
}

impl Chooser {
    pub(super) fn new(policy: Addresses) -> Chooser {
        let random = match policy {
            Addresses::Drawn(seed) => seed,
            _ => 0,
        };
        Chooser {
            policy,
            random,
            last: None,
            freed: Vec::new(),
        }
    }

    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Where the next piece should lie, if there is space: a multiple of `alignment`. `within` limits the choice where
    /// pieces lie apart.
    pub(super) fn propose(&mut self, size: u64, alignment: u64, within: Option<(u64, u64)>) -> Option<u64> {
        let policy = match self.policy {
            Addresses::Drawn(_) => match self.draw() % 8 {
                0..3 => Addresses::Ascending,
                3 => Addresses::Descending,
                4..6 => Addresses::Returning,
                6 => Addresses::Apart,
                _ => Addresses::Odd,
            },
            policy => policy,
        };
        let apart = |draw: u64| {
            let (start, end) = within?;
            let first = start.next_multiple_of(LARGE);
            let places = end.checked_sub(first.checked_add(size)?)? / LARGE;
            (places > 0).then(|| first + draw % places * LARGE)
        };
        match policy {
            Addresses::Ascending => self.last.and_then(|(_, end)| end.checked_next_multiple_of(alignment)),
            Addresses::Descending => self
                .last?
                .0
                .checked_sub(size)
                .map(|start| start / alignment * alignment),
            Addresses::Returning => self.freed.pop().filter(|start| start.is_multiple_of(alignment)),
            Addresses::Apart => apart(self.draw()),
            Addresses::Odd | Addresses::Drawn(_) => {
                let odd = START + self.draw() % (LARGE / STEP) * STEP;
                apart(self.draw()).map(|start| start + odd)
            }
        }
    }

    /// Records a new piece.
    pub(super) fn record_placed(&mut self, start: u64, size: u64) {
        self.last = Some((start, start + size));
    }

    /// Records that a piece was freed.
    pub(super) fn record_freed(&mut self, start: u64) {
        if self.freed.len() == FREED {
            self.freed.remove(0);
        }
        self.freed.push(start);
    }
}

/// A range of addresses in which pieces lie.
#[derive(Debug)]
pub(super) struct Places {
    start: u64,
    end: u64,
    chooser: Chooser,
    /// Starts and ends.
    taken: BTreeMap<u64, u64>,
}

impl Places {
    pub(super) fn new(policy: Addresses, start: u64, size: u64) -> Places {
        let mut chooser = Chooser::new(policy);
        // There is space in either direction.
        chooser.record_placed((start + size / 2).next_multiple_of(LARGE), 0);
        Places {
            start,
            end: start + size,
            chooser,
            taken: BTreeMap::new(),
        }
    }

    /// Places a piece of `size` bytes and returns its address. `None` where there is no space.
    pub(super) fn take(&mut self, size: u64) -> Option<u64> {
        let size = size.checked_next_multiple_of(STEP)?;
        let within = Some((self.start, self.end));
        let propose = self.chooser.propose(size, START, within);
        let at = propose
            .filter(|at| self.is_free(*at, size))
            .or_else(|| self.gap(size))?;
        self.taken.insert(at, at + size);
        self.chooser.record_placed(at, size);
        Some(at)
    }

    pub(super) fn give(&mut self, at: u64) {
        if self.taken.remove(&at).is_some() {
            self.chooser.record_freed(at);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    fn is_free(&self, at: u64, size: u64) -> bool {
        let Some(end) = at.checked_add(size).filter(|end| *end <= self.end && at >= self.start) else {
            return false;
        };
        self.taken.range(..end).next_back().is_none_or(|(_, end)| *end <= at)
    }

    /// The first gap that is large enough.
    fn gap(&self, size: u64) -> Option<u64> {
        let mut at = self.start;
        for (start, end) in &self.taken {
            if start - at >= size {
                return Some(at);
            }
            at = end.next_multiple_of(START);
        }
        self.is_free(at, size).then_some(at)
    }

    /// The pages that `size` bytes at `at` touch and that no piece touches: their start and bytes.
    pub(super) fn pages(&self, at: u64, size: u64, page: u64) -> (u64, u64) {
        let (mut from, mut to) = (at / page * page, (at + size).next_multiple_of(page));
        if self.taken.range(..at).next_back().is_some_and(|(_, end)| *end > from) {
            from += page;
        }
        if self.taken.range(at..to).next().is_some() {
            to -= page;
        }
        (from, to.saturating_sub(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 1 << 40;
    const SIZE: u64 = 1 << 32;

    fn places(policy: Addresses) -> Places {
        Places::new(policy, BASE, SIZE)
    }

    #[test]
    fn each_policy_places_pieces_as_documented() {
        let mut up = places(Addresses::Ascending);
        let (a, b) = (up.take(LARGE).unwrap(), up.take(700).unwrap());
        assert_eq!((a % LARGE, b), (0, a + LARGE));
        assert_eq!(up.take(1), Some(b + 1024));
        let mut down = places(Addresses::Descending);
        let (a, b) = (down.take(LARGE).unwrap(), down.take(LARGE).unwrap());
        assert_eq!(b + LARGE, a);
        let mut back = places(Addresses::Returning);
        let (a, b) = (back.take(LARGE).unwrap(), back.take(LARGE).unwrap());
        back.give(a);
        back.give(b);
        assert_eq!((back.take(LARGE), back.take(512)), (Some(b), Some(a)));
        let mut apart = places(Addresses::Apart);
        let (a, b) = (apart.take(512).unwrap(), apart.take(512).unwrap());
        assert_eq!((a % LARGE, b % LARGE), (0, 0));
        assert_ne!(a, b);
        let mut odd = places(Addresses::Odd);
        assert_eq!(odd.take(LARGE).unwrap() % STEP, START);
    }

    #[test]
    fn pieces_never_overlap_and_stay_within() {
        for policy in [
            Addresses::Drawn(3),
            Addresses::Ascending,
            Addresses::Descending,
            Addresses::Returning,
            Addresses::Apart,
            Addresses::Odd,
        ] {
            let mut places = Places::new(policy, BASE, 64 * LARGE);
            let mut random = Chooser::new(Addresses::Drawn(1));
            let mut out: Vec<(u64, u64)> = Vec::new();
            for _ in 0..2000 {
                let draw = random.draw();
                if out.len() < 24 && !draw.is_multiple_of(3) {
                    let size = 1 + draw % (2 * LARGE);
                    let Some(at) = places.take(size) else { continue };
                    assert!(at.is_multiple_of(START) && at >= BASE && at + size <= BASE + 64 * LARGE);
                    assert!(
                        out.iter().all(|(a, s)| at + size <= *a || a + s <= at),
                        "{policy:?} {at:#x}"
                    );
                    out.push((at, size));
                } else if !out.is_empty() {
                    let (at, _) = out.swap_remove(draw as usize % out.len());
                    places.give(at);
                }
            }
        }
    }

    #[test]
    fn pages_shared_with_a_neighbour_are_excluded() {
        let mut places = places(Addresses::Ascending);
        let (a, b, c) = (places.take(512).unwrap(), places.take(8192).unwrap(), places.take(512));
        assert_eq!(c, Some(b + 8192));
        places.give(b);
        // From the second page to the page in which the third piece lies.
        assert_eq!(places.pages(b, 8192, 4096), (a + 4096, 4096));
        places.give(a);
        assert_eq!(places.pages(a, 512, 4096), (a, 4096));
    }
}
