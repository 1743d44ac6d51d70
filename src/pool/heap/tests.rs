//! The heap against a model that keeps one letter for each granule.

use proptest::prelude::*;

use super::*;

const GRANULE: u64 = 512;
const PAGE: u64 = 8 * GRANULE;
const WINDOW: u64 = 64 * PAGE;

#[derive(Debug, Clone)]
enum Step {
    Take { owner: u8, granules: u64, align: u32 },
    Joined { owner: u8, granules: u64 },
    Give { which: usize, owner: u8 },
    Transfer { from: u8, through: u64 },
    Grow { owner: u8, granules: u64 },
    Close { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3u8, 1..40u64, 0..4u32).prop_map(|(owner, granules, align)| Step::Take { owner, granules, align }),
        1 => (1..3u8, 1..40u64).prop_map(|(owner, granules)| Step::Joined { owner, granules }),
        4 => (any::<usize>(), 0..3u8).prop_map(|(which, owner)| Step::Give { which, owner }),
        1 => (1..3u8, 0..60u64).prop_map(|(from, through)| Step::Transfer { from, through }),
        2 => (1..3u8, 1..40u64).prop_map(|(owner, granules)| Step::Grow { owner, granules }),
        1 => any::<usize>().prop_map(|which| Step::Close { which }),
    ]
}

/// What each granule is: '.' a hole, 'u' used, '0'.. free for that owner.
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn keeps_to_the_model(steps in prop::collection::vec(step(), 1..120)) {
        let mut heap = Heap::new(WINDOW, GRANULE, PAGE);
        let owners = [COMMON, heap.add_owner(), heap.add_owner()];
        let letter = |owner: u8| b'0' + owner;
        let mut model = Model(vec![b'.'; (WINDOW / GRANULE) as usize]);
        let mut used: Vec<NodeId> = Vec::new();
        let mut clock = 0;
        for step in steps {
            clock += 1;
            match step {
                Step::Take { owner, granules, align } => {
                    let align = GRANULE << align;
                    if let Some(id) = heap.take(owners[owner as usize], granules * GRANULE, align) {
                        let (offset, size) = heap.span(id);
                        prop_assert_eq!((offset % align, size), (0, granules * GRANULE));
                        model.set(offset, size, &[letter(owner)], b'u');
                        used.push(id);
                    } else if align == GRANULE {
                        let run = vec![letter(owner); granules as usize];
                        prop_assert!(!model.0.windows(run.len()).any(|part| part == run), "a range that fits was missed");
                    }
                }
                Step::Joined { owner, granules } => {
                    if let Some(id) = heap.take_joined(owners[owner as usize], granules * GRANULE, GRANULE) {
                        let (offset, size) = heap.span(id);
                        model.set(offset, size, &[b'0', letter(owner)], b'u');
                        used.push(id);
                        // Common neighbours of what was taken belong to the owner now.
                        for at in 0..model.0.len() as u64 {
                            let free = owners.iter().position(|owner| heap.ranges(*owner)
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
                    let (offset, size) = heap.span(id);
                    model.set(offset, size, b"u", letter(owner));
                    heap.give(id, owners[owner as usize], clock);
                }
                Step::Transfer { from, through } => {
                    let before: Vec<_> = heap.ranges(owners[from as usize]).collect();
                    let moved = heap.transfer(owners[from as usize], COMMON, through, 0);
                    prop_assert!(heap.oldest_stamp(owners[from as usize]).is_none_or(|stamp| stamp > through));
                    let mut sum = 0;
                    for (_, offset, size) in before {
                        let left = heap.ranges(owners[from as usize]).any(|(_, o, s)| o <= offset && offset < o + s);
                        if !left {
                            model.set(offset, size, &[letter(from)], b'0');
                            sum += size;
                        }
                    }
                    prop_assert_eq!(sum, moved);
                }
                Step::Grow { owner, granules } => {
                    let size = granules * GRANULE;
                    let mine = owners[owner as usize];
                    if heap.take(mine, size, GRANULE).map(|id| heap.give(id, mine, clock)).is_some() { continue }
                    if let Some(place) = heap.place(mine, size, GRANULE, PAGE) {
                        prop_assert_eq!((place.offset % PAGE, place.size % PAGE), (0, 0));
                        let owner = if place.owner == COMMON { 0 } else { owner };
                        model.set(place.offset, place.size, b".", letter(owner));
                        prop_assert!(heap.open(place.offset, place.size, place.owner, clock));
                        let id = heap.take(place.owner, size, GRANULE);
                        prop_assert!(id.is_some(), "the mapped place does not hold the request");
                        let id = id.unwrap_or_default();
                        let (offset, size) = heap.span(id);
                        model.set(offset, size, &[letter(owner)], b'u');
                        used.push(id);
                    }
                }
                Step::Close { which } => {
                    let pages: Vec<_> = heap.ranges(COMMON).flat_map(|(id, offset, size)| {
                        let first = offset.next_multiple_of(PAGE);
                        (first..offset + size).step_by(PAGE as usize)
                            .filter(move |page| page + PAGE <= offset + size).map(move |page| (id, page))
                    }).collect();
                    if let Some((id, page)) = pages.get(which % pages.len().max(1)) {
                        prop_assert!(heap.close(*id, *page, PAGE));
                        model.set(*page, PAGE, b"0", b'.');
                    }
                }
                Step::Give { .. } => {}
            }
            if let Err(broken) = heap.validate() {
                prop_assert!(false, "{broken}");
            }
        }
    }
}

#[test]
fn takes_the_smallest_range_that_fits() {
    let mut heap = Heap::new(WINDOW, GRANULE, PAGE);
    assert!(heap.open(0, 16 * PAGE, COMMON, 0));
    let ids: Vec<_> = [4, 1, 2, 1, 8, 1]
        .map(|n| heap.take(COMMON, n * GRANULE, GRANULE).unwrap_or_default())
        .into();
    for at in [0, 2, 4] {
        heap.give(ids[at], COMMON, 0);
    }
    let id = heap.take(COMMON, 2 * GRANULE, GRANULE).unwrap_or_default();
    // Small pieces come from the end of the window: the third lay below the first two.
    assert_eq!(heap.span(id), (WINDOW / 4 - 7 * GRANULE, 2 * GRANULE));
}

#[test]
fn a_late_comer_waits_for_the_youngest_stamp() {
    let mut heap = Heap::new(WINDOW, GRANULE, PAGE);
    let owner = heap.add_owner();
    assert!(heap.open(0, PAGE, COMMON, 0));
    let ids: Vec<_> = (0..3)
        .map(|_| heap.take(COMMON, GRANULE, GRANULE).unwrap_or_default())
        .collect();
    heap.give(ids[0], owner, 5);
    heap.give(ids[2], owner, 3);
    assert_eq!(
        heap.transfer(owner, COMMON, 4, 0),
        0,
        "a range behind stamp 5 hides nothing that could go at 4"
    );
    assert_eq!(heap.transfer(owner, COMMON, 5, 0), 2 * GRANULE);
    assert!(heap.remove_owner(owner));
}
