//! Arenas: where they grow, which ranges go back to them, and what their owners need.

use proptest::prelude::*;

use crate::pool::free_space::*;

const GRANULE: u64 = 512;
const PAGE: u64 = 8 * GRANULE;
const WINDOW: u64 = (64 << 10) * PAGE;

/// Takes memory in the name of `owner`, and maps more where there is none.
fn take(free_space: &mut FreeSpace, owner: Owner, size: u64) -> NodeId {
    let fit = |free_space: &mut FreeSpace| free_space.take_either(owner, size, GRANULE, Cut::Fair, End::Low);
    let id = fit(free_space).or_else(|| {
        free_space.raise_peak(owner, size);
        let place = free_space.place(owner, size, GRANULE, PAGE).unwrap();
        assert!(free_space.open(place.offset, place.size, place.owner, 0));
        fit(free_space)
    });
    let (id, _) = id.unwrap();
    free_space.hold(id, owner);
    id
}

fn ranges(free_space: &FreeSpace, owner: Owner) -> Vec<(u64, u64)> {
    let mut ranges: Vec<_> = free_space
        .ranges(owner)
        .map(|(_, offset, size)| (offset, size))
        .collect();
    ranges.sort();
    ranges
}

#[test]
fn arenas_that_grow_in_turns_stay_contiguous() {
    let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
    let owners: Vec<Owner> = (0..8).map(|_| free_space.add_owner()).collect();
    let mut blocks = Vec::new();
    for granules in 1..40 {
        for owner in &owners {
            blocks.push((take(&mut free_space, *owner, granules * GRANULE), *owner));
        }
    }
    for (id, owner) in blocks {
        free_space.give(id, owner, 1);
    }
    let needed = (1..40).sum::<u64>() * GRANULE;
    for owner in &owners {
        let ranges = ranges(&free_space, *owner);
        assert_eq!(ranges.len(), 1, "{ranges:?}");
        assert!(ranges[0].1 < needed / 4 * 5, "{} for {needed}", ranges[0].1);
    }
    free_space.validate().unwrap();
}

#[test]
fn arena_grows_by_what_is_missing() {
    let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
    let owner = free_space.add_owner();
    let small = take(&mut free_space, owner, 10 * PAGE);
    free_space.give(small, owner, 1);
    let large = take(&mut free_space, owner, 13 * PAGE);
    assert_eq!(free_space.span(large), (0, 13 * PAGE));
    assert_eq!(free_space.backed(), 13 * PAGE);
}

#[test]
fn arena_that_lost_its_end_grows_from_where_it_ends_now() {
    let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
    let owner = free_space.add_owner();
    let first = take(&mut free_space, owner, 2 * PAGE);
    let last = take(&mut free_space, owner, 2 * PAGE);
    free_space.give(last, owner, 1);
    let (id, offset, size) = free_space.ranges(owner).next().unwrap();
    assert!(free_space.close(id, offset, size));
    free_space.validate().unwrap();
    let next = take(&mut free_space, owner, 4 * PAGE);
    assert_eq!(free_space.span(next), (2 * PAGE, 4 * PAGE));
    free_space.give(first, owner, 1);
    free_space.validate().unwrap();
}

#[test]
fn guest_goes_home_once_its_event_has_completed() {
    let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
    let (home, other) = (free_space.add_owner(), free_space.add_owner());
    let ids = [1, 2].map(|_| take(&mut free_space, home, PAGE));
    free_space.give(ids[0], other, 1);
    free_space.give(ids[1], other, 2);
    assert_eq!(
        ranges(&free_space, other).len(),
        2,
        "guests behind different events do not coalesce"
    );
    assert!(
        free_space
            .take_either(other, PAGE, GRANULE, Cut::Fair, End::Low)
            .is_none()
    );
    free_space.send_guests_home(other, 1);
    assert_eq!(ranges(&free_space, home), [(0, PAGE)]);
    assert_eq!(ranges(&free_space, other), [(PAGE, PAGE)]);
    free_space.adopt_guests(other);
    assert!(
        free_space
            .take_either(other, PAGE, GRANULE, Cut::Fair, End::Low)
            .is_some()
    );
    free_space.validate().unwrap();
}

#[test]
fn number_of_an_owner_that_is_gone_waits_for_its_guests_and_blocks() {
    let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
    let (gone, other) = (free_space.add_owner(), free_space.add_owner());
    let ids = [1, 2].map(|_| take(&mut free_space, gone, PAGE));
    free_space.give(ids[0], other, 1);
    assert!(free_space.remove_owner(gone));
    assert_ne!(free_space.add_owner(), gone, "a guest names it");
    free_space.send_guests_home(other, 1);
    assert_eq!(
        ranges(&free_space, COMMON),
        [(0, PAGE)],
        "nothing of it is left to go home to"
    );
    assert_ne!(free_space.add_owner(), gone, "a block names it");
    free_space.give(ids[1], other, 1);
    assert_eq!(free_space.add_owner(), gone);
    free_space.validate().unwrap();
}

#[test]
fn needs_are_the_sum_of_what_each_owner_needed_at_once() {
    let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
    let (first, second) = (free_space.add_owner(), free_space.add_owner());
    let id = take(&mut free_space, first, 3 * PAGE);
    free_space.give(id, first, 1);
    assert_eq!(free_space.needs_with(second, 2 * PAGE), 5 * PAGE);
    let id = take(&mut free_space, second, 2 * PAGE);
    assert_eq!(free_space.needs_with(first, 0), 5 * PAGE);
    // What is freed and pending is no need.
    free_space.end_use(id);
    free_space.lower_peaks();
    assert_eq!(free_space.needs_with(first, PAGE), PAGE);
    free_space.give_home(id);
    assert_eq!(ranges(&free_space, second), [ranges(&free_space, second)[0]]);
    free_space.validate().unwrap();
}

#[derive(Debug, Clone)]
enum Step {
    Take { owner: usize, granules: u64 },
    EndUse { which: usize },
    Give { which: usize, owner: usize },
    GiveHome { which: usize },
    SendHome { owner: usize, behind: u64 },
    Adopt { owner: usize },
    Share { owner: usize, behind: u64 },
    Replace { owner: usize },
    LowerPeaks,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..4usize, 1..60u64).prop_map(|(owner, granules)| Step::Take { owner, granules }),
        1 => any::<usize>().prop_map(|which| Step::EndUse { which }),
        6 => (any::<usize>(), 0..4usize).prop_map(|(which, owner)| Step::Give { which, owner }),
        2 => any::<usize>().prop_map(|which| Step::GiveHome { which }),
        2 => (0..4usize, 0..20u64).prop_map(|(owner, behind)| Step::SendHome { owner, behind }),
        1 => (0..4usize).prop_map(|owner| Step::Adopt { owner }),
        1 => (0..4usize, 0..20u64).prop_map(|(owner, behind)| Step::Share { owner, behind }),
        1 => (0..4usize).prop_map(|owner| Step::Replace { owner }),
        1 => Just(Step::LowerPeaks),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Owners come and go while ranges move between them: no byte is lost, and every invariant holds.
    #[test]
    fn arenas_stay_consistent(steps in prop::collection::vec(step(), 1..200)) {
        let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
        let mut owners: Vec<Owner> = (0..4).map(|_| free_space.add_owner()).collect();
        let mut used: Vec<NodeId> = Vec::new();
        for (now, step) in (1..).zip(steps) {
            let before = free_space.backed();
            match step {
                Step::Take { owner, granules } => {
                    let id = take(&mut free_space, owners[owner], granules * GRANULE);
                    prop_assert_eq!(free_space.span(id).1, granules * GRANULE);
                    used.push(id);
                }
                Step::EndUse { which } if !used.is_empty() => free_space.end_use(used[which % used.len()]),
                Step::Give { which, owner } if !used.is_empty() => {
                    let id = used.swap_remove(which % used.len());
                    free_space.give(id, owners[owner], now);
                }
                Step::GiveHome { which } if !used.is_empty() => {
                    let id = used.swap_remove(which % used.len());
                    free_space.give_home(id);
                }
                Step::SendHome { owner, behind } => free_space.send_guests_home(owners[owner], now.saturating_sub(behind)),
                Step::Adopt { owner } => free_space.adopt_guests(owners[owner]),
                Step::Share { owner, behind } => {
                    free_space.transfer(owners[owner], COMMON, now.saturating_sub(behind), 0);
                }
                Step::Replace { owner } => {
                    free_space.transfer(owners[owner], COMMON, u64::MAX, 0);
                    prop_assert!(free_space.remove_owner(owners[owner]));
                    let new = free_space.add_owner();
                    prop_assert!(!owners.iter().any(|of| *of == new && *of != owners[owner]));
                    owners[owner] = new;
                }
                Step::LowerPeaks => free_space.lower_peaks(),
                Step::EndUse { .. } | Step::Give { .. } | Step::GiveHome { .. } => {}
            }
            if let Err(broken) = free_space.validate() {
                prop_assert!(false, "{broken}");
            }
            prop_assert!(free_space.backed() >= before);
        }
    }
}

/// A block that is placed apart takes the highest range that fits, and the end of it; others take the lowest.
#[test]
fn blocks_are_taken_from_either_end_of_an_arena() {
    let mut free_space = FreeSpace::new(64 * APART, GRANULE, PAGE);
    let owner = free_space.add_owner();
    let blocks: Vec<NodeId> = (0..9).map(|_| take(&mut free_space, owner, 2 * APART)).collect();
    for at in [0, 3, 4, 7] {
        free_space.give(blocks[at], owner, 1);
    }
    let mut from = |size, align, end| {
        let (id, _) = free_space.take_either(owner, size, align, Cut::Any, end).unwrap();
        free_space.span(id).0
    };
    assert_eq!(from(APART, GRANULE, End::High), 15 * APART);
    assert_eq!(from(APART, GRANULE, End::Low), 0);
    // Only one range is large enough.
    assert_eq!(from(3 * APART, GRANULE, End::High), 7 * APART);
    assert_eq!(from(APART, 2 * APART, End::High), 14 * APART);
    free_space.validate().unwrap();
}
