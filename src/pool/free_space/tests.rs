//! Compares the free-space bookkeeping with a model that keeps one letter for each granule.

mod arenas;

use proptest::prelude::*;

use super::*;

const GRANULE: u64 = 512;
const PAGE: u64 = 8 * GRANULE;
const WINDOW: u64 = 64 * PAGE;

#[derive(Debug, Clone)]
enum Step {
    Take {
        owner: u8,
        granules: u64,
        align: u32,
    },
    Joined {
        owner: u8,
        granules: u64,
    },
    Fair {
        granules: u64,
    },
    Give {
        which: usize,
        owner: u8,
    },
    Transfer {
        from: u8,
        through: u64,
    },
    /// `extent` is the size of each extent in pages.
    Grow {
        owner: u8,
        granules: u64,
        extent: u64,
    },
    Close {
        which: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3u8, 1..40u64, 0..4u32).prop_map(|(owner, granules, align)| Step::Take { owner, granules, align }),
        1 => (1..3u8, 1..40u64).prop_map(|(owner, granules)| Step::Joined { owner, granules }),
        2 => (1..200u64).prop_map(|granules| Step::Fair { granules }),
        4 => (any::<usize>(), 0..3u8).prop_map(|(which, owner)| Step::Give { which, owner }),
        1 => (1..3u8, 0..60u64).prop_map(|(from, through)| Step::Transfer { from, through }),
        2 => (1..3u8, 1..200u64, 1..6u64)
            .prop_map(|(owner, granules, extent)| Step::Grow { owner, granules, extent }),
        1 => any::<usize>().prop_map(|which| Step::Close { which }),
    ]
}

/// The state of each granule: '.' is a hole, 'u' is used, '0' and up is free for that owner.
struct Model(Vec<u8>);

impl Model {
    fn set(&mut self, offset: u64, size: u64, from: &[u8], to: u8) {
        for at in offset / GRANULE..(offset + size) / GRANULE {
            assert!(
                from.contains(&self.0[at as usize]),
                "granule {at} is {}",
                self.0[at as usize] as char
            );
            self.0[at as usize] = to;
        }
    }
}

/// Whether a block leaves little unused of each extent that it takes a part of.
fn is_fair(extents: &[(u64, u64)], start: u64, size: u64) -> bool {
    let little = |unused: u64| unused < PAGE || unused <= size / 16;
    extents.iter().all(|(at, extent)| {
        let (from, to) = (start.max(*at), (start + size).min(at + extent));
        from >= to || little(from - at) && little(at + extent - to)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn free_space_equals_the_model(steps in prop::collection::vec(step(), 1..120)) {
        let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
        let owners = [COMMON, free_space.add_owner(), free_space.add_owner()];
        let letter = |owner: u8| b'0' + owner;
        let mut model = Model(vec![b'.'; (WINDOW / GRANULE) as usize]);
        let mut used: Vec<NodeId> = Vec::new();
        let mut extents: Vec<(u64, u64)> = Vec::new();
        let mut clock = 0;
        for step in steps {
            clock += 1;
            match step {
                Step::Take { owner, granules, align } => {
                    let align = GRANULE << align;
                    if let Some(id) = free_space.take(owners[owner as usize], granules * GRANULE, align) {
                        let (offset, size) = free_space.span(id);
                        prop_assert_eq!((offset % align, size), (0, granules * GRANULE));
                        model.set(offset, size, &[letter(owner)], b'u');
                        used.push(id);
                    } else if align == GRANULE {
                        let run = vec![letter(owner); granules as usize];
                        prop_assert!(!model.0.windows(run.len()).any(|part| part == run), "a range that fits was missed");
                    }
                }
                Step::Joined { owner, granules } => {
                    if let Some(id) = free_space.take_joined(owners[owner as usize], granules * GRANULE, GRANULE, Cut::Any) {
                        let (offset, size) = free_space.span(id);
                        model.set(offset, size, &[b'0', letter(owner)], b'u');
                        used.push(id);
                        // Common ranges adjacent to what was taken belong to the owner now.
                        for at in 0..model.0.len() as u64 {
                            let free = owners.iter().position(|owner| free_space.ranges(*owner)
                                .any(|(_, offset, size)| offset <= at * GRANULE && at * GRANULE < offset + size));
                            if let Some(owner) = free {
                                let now = letter(owner as u8);
                                prop_assert!(model.0[at as usize] == now || model.0[at as usize] == b'0');
                                model.0[at as usize] = now;
                            }
                        }
                    }
                }
                Step::Give { which, owner } if !used.is_empty() => {
                    let id = used.swap_remove(which % used.len());
                    let (offset, size) = free_space.span(id);
                    model.set(offset, size, b"u", letter(owner));
                    free_space.give(id, owners[owner as usize], clock);
                }
                Step::Transfer { from, through } => {
                    let before: Vec<_> = free_space.ranges(owners[from as usize]).collect();
                    let moved = free_space.transfer(owners[from as usize], COMMON, through, 0);
                    prop_assert!(free_space.oldest_event(owners[from as usize]).is_none_or(|event_number| event_number > through));
                    let mut sum = 0;
                    for (_, offset, size) in before {
                        let left = free_space.ranges(owners[from as usize]).any(|(_, o, s)| o <= offset && offset < o + s);
                        if !left {
                            model.set(offset, size, &[letter(from)], b'0');
                            sum += size;
                        }
                    }
                    prop_assert_eq!(sum, moved);
                }
                Step::Fair { granules } => {
                    let size = granules * GRANULE;
                    let ranges: Vec<_> = free_space.ranges(COMMON).filter(|(.., free)| *free >= size).collect();
                    if let Some((id, _)) = free_space.take_either(COMMON, size, GRANULE, Cut::Fair, End::Low) {
                        let (offset, size) = free_space.span(id);
                        prop_assert!(is_fair(&extents, offset, size));
                        model.set(offset, size, b"0", b'u');
                        used.push(id);
                    } else {
                        for (_, offset, free) in ranges {
                            prop_assert!(!is_fair(&extents, offset, size), "a fair cut was missed");
                            prop_assert!(!is_fair(&extents, offset + free - size, size), "a fair cut was missed");
                        }
                    }
                }
                Step::Grow { owner, granules, extent } => {
                    let size = granules * GRANULE;
                    let mine = owners[owner as usize];
                    if free_space.take(mine, size, GRANULE).map(|id| free_space.give(id, mine, clock)).is_some() { continue }
                    if let Some(place) = free_space.place(mine, size, GRANULE, PAGE) {
                        prop_assert_eq!((place.offset % PAGE, place.size % PAGE), (0, 0));
                        let owner = if place.owner == COMMON { 0 } else { owner };
                        model.set(place.offset, place.size, b".", letter(owner));
                        prop_assert!(place.owner != COMMON || is_fair(&extents, place.start, size));
                        prop_assert!(free_space.open(place.offset, place.size, place.owner, clock));
                        for at in (place.offset..place.offset + place.size).step_by((extent * PAGE) as usize) {
                            let size = (extent * PAGE).min(place.offset + place.size - at);
                            if size > PAGE {
                                free_space.join_extent(at, size);
                                extents.push((at, size));
                            }
                        }
                        let id = free_space.take(place.owner, size, GRANULE);
                        prop_assert!(id.is_some(), "the mapped place does not hold the request");
                        let id = id.unwrap_or_default();
                        let (offset, size) = free_space.span(id);
                        model.set(offset, size, &[letter(owner)], b'u');
                        used.push(id);
                    }
                }
                Step::Close { which } => {
                    // Pages that are no part of an extent, and whole extents.
                    let single = |page: &u64| !extents.iter().any(|(at, size)| at <= page && *page < at + size);
                    let pages = (0..WINDOW).step_by(PAGE as usize).filter(single).map(|page| (page, PAGE));
                    let all: Vec<_> = pages.chain(extents.iter().copied()).collect();
                    let closable: Vec<_> = free_space.ranges(COMMON).flat_map(|(id, offset, free)| {
                        let inside = move |(at, size): &&(u64, u64)| offset <= *at && at + size <= offset + free;
                        all.iter().filter(inside).map(move |piece| (id, *piece))
                    }).collect();
                    if let Some((id, (at, size))) = closable.get(which % closable.len().max(1)).copied() {
                        prop_assert!(free_space.close(id, at, size));
                        model.set(at, size, b"0", b'.');
                        extents.retain(|extent| *extent != (at, size));
                    }
                }
                Step::Give { .. } => {}
            }
            if let Err(broken) = free_space.validate() {
                prop_assert!(false, "{broken}");
            }
        }
    }
}

#[test]
fn takes_the_smallest_range_that_fits() {
    let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
    assert!(free_space.open(0, 16 * PAGE, COMMON, 0));
    let ids: Vec<_> = [4, 1, 2, 1, 8, 1]
        .map(|n| free_space.take(COMMON, n * GRANULE, GRANULE).unwrap_or_default())
        .into();
    for at in [0, 2, 4] {
        free_space.give(ids[at], COMMON, 0);
    }
    let id = free_space.take(COMMON, 2 * GRANULE, GRANULE).unwrap_or_default();
    // Small pieces come from the end of the address range: the third lies below the first two.
    assert_eq!(free_space.span(id), (WINDOW / 4 - 7 * GRANULE, 2 * GRANULE));
}

/// Only whole pages can be moved, so a piece comes from the end that breaks fewer of them.
#[test]
fn piece_leaves_whole_pages() {
    let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
    assert!(free_space.open(0, 3 * PAGE, COMMON, 0));
    assert!(free_space.take_at(COMMON, 0, PAGE / 2).is_some());
    let id = free_space.take(COMMON, PAGE / 2, GRANULE).unwrap_or_default();
    assert_eq!(free_space.span(id), (PAGE / 2, PAGE / 2));
    // Both ends break none: small pieces come from the end.
    let id = free_space.take(COMMON, PAGE, GRANULE).unwrap_or_default();
    assert_eq!(free_space.span(id), (2 * PAGE, PAGE));
}

#[test]
fn late_free_waits_for_the_youngest_event() {
    let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
    let owner = free_space.add_owner();
    assert!(free_space.open(0, PAGE, COMMON, 0));
    let ids: Vec<_> = (0..3)
        .map(|_| free_space.take(COMMON, GRANULE, GRANULE).unwrap_or_default())
        .collect();
    free_space.give(ids[0], owner, 5);
    free_space.give(ids[2], owner, 3);
    assert_eq!(
        free_space.transfer(owner, COMMON, 4, 0),
        0,
        "a range behind event 5 hides nothing that could go at 4"
    );
    assert_eq!(free_space.transfer(owner, COMMON, 5, 0), 2 * GRANULE);
    assert!(free_space.remove_owner(owner));
}

#[test]
fn isolated_ranges_stay_apart_until_they_are_closed() {
    let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
    let owner = free_space.add_owner();
    // Whole pages, one behind the other, as segments of the driver's malloc may come.
    let islands: Vec<u64> = (0..4)
        .map(|_| free_space.open_apart(2 * PAGE, PAGE, 0).unwrap())
        .collect();
    assert!(islands.is_sorted());
    assert!(
        free_space.take(COMMON, 2 * PAGE + GRANULE, GRANULE).is_none(),
        "two islands are one"
    );
    let blocks: Vec<_> = islands
        .iter()
        .map(|_| free_space.take(COMMON, 2 * PAGE, GRANULE).unwrap())
        .collect();
    blocks.iter().for_each(|block| free_space.give(*block, owner, 1));
    assert!(
        free_space
            .take_joined(owner, 2 * PAGE + GRANULE, GRANULE, Cut::Any)
            .is_none()
    );
    free_space.transfer(owner, COMMON, 1, 0);
    let second = free_space
        .ranges(COMMON)
        .find(|(_, offset, _)| *offset == islands[1])
        .unwrap();
    assert!(free_space.close(second.0, islands[1], 2 * PAGE));
    // Its place is taken again, and a hole stays on either side.
    assert_eq!(free_space.open_apart(PAGE, PAGE, 0), Some(islands[1]));
    assert_eq!(free_space.ranges(COMMON).count(), 4);
    free_space.validate().unwrap();
}

#[derive(Debug, Clone)]
enum Islands {
    Open {
        granules: u64,
        rest: u64,
    },
    Close {
        which: usize,
    },
    Take {
        owner: u8,
        granules: u64,
        align: u32,
        joined: bool,
    },
    Give {
        which: usize,
        owner: u8,
    },
    Transfer {
        from: u8,
    },
}

fn on_islands() -> impl Strategy<Value = Islands> {
    prop_oneof![
        3 => (1..40u64, prop_oneof![Just(0), 0..8u64]).prop_map(|(granules, rest)| Islands::Open { granules, rest }),
        2 => any::<usize>().prop_map(|which| Islands::Close { which }),
        5 => (0..3u8, 1..24u64, 0..4u32, any::<bool>())
            .prop_map(|(owner, granules, align, joined)| Islands::Take { owner, granules, align, joined }),
        5 => (any::<usize>(), 0..3u8).prop_map(|(which, owner)| Islands::Give { which, owner }),
        1 => (1..3u8).prop_map(|from| Islands::Transfer { from }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The model is a list of segments: every range lies in exactly one of them.
    #[test]
    fn every_range_lies_in_one_isolated_range(steps in prop::collection::vec(on_islands(), 1..150)) {
        let mut free_space = FreeSpace::new(WINDOW, GRANULE, PAGE);
        let owners = [COMMON, free_space.add_owner(), free_space.add_owner()];
        let mut islands: Vec<(u64, u64)> = Vec::new();
        let mut used: Vec<NodeId> = Vec::new();
        for step in steps {
            match step {
                Islands::Open { granules, rest } => {
                    let (size, rest) = (granules * GRANULE, rest * GRANULE);
                    if let Some(offset) = free_space.open_apart(size, PAGE, rest) {
                        prop_assert_eq!(offset % PAGE, rest);
                        prop_assert!(offset > 0 && offset + size < WINDOW);
                        // Not even their ends meet.
                        prop_assert!(islands.iter().all(|(at, bytes)| offset + size < *at || at + bytes < offset));
                        islands.push((offset, size));
                    }
                }
                Islands::Close { which } if !islands.is_empty() => {
                    let at = which % islands.len();
                    let (offset, size) = islands[at];
                    let whole = free_space.ranges(COMMON).find(|range| (range.1, range.2) == (offset, size));
                    if let Some((id, ..)) = whole {
                        prop_assert!(free_space.close(id, offset, size));
                        islands.swap_remove(at);
                    }
                }
                Islands::Take { owner, granules, align, joined } => {
                    let (owner, size) = (owners[owner as usize], granules * GRANULE);
                    let id = match joined && owner != COMMON {
                        true => free_space.take_joined(owner, size, GRANULE, Cut::Any),
                        false => free_space.take(owner, size, GRANULE << align),
                    };
                    used.extend(id);
                }
                Islands::Give { which, owner } if !used.is_empty() => {
                    let id = used.swap_remove(which % used.len());
                    free_space.give(id, owners[owner as usize], 1);
                }
                Islands::Transfer { from } => {
                    free_space.transfer(owners[from as usize], COMMON, u64::MAX, 0);
                }
                Islands::Close { .. } | Islands::Give { .. } => {}
            }
            if let Err(broken) = free_space.validate() {
                prop_assert!(false, "{broken}");
            }
            let mut bytes = 0;
            for tile in free_space.tiles() {
                let inside = islands.iter().any(|(at, size)| *at <= tile.offset && tile.offset + tile.size <= at + size);
                prop_assert!(inside, "{tile:?} is in no single island");
                bytes += tile.size;
            }
            prop_assert_eq!(bytes, islands.iter().map(|(_, size)| size).sum::<u64>());
        }
    }
}
