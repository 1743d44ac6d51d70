//! The table compared with a plain list, through random work.

use std::collections::BTreeMap;

use super::*;
use crate::pool::free_space::COMMON;
use crate::trace::random::Random;

const OWNERS: usize = 4;
const SIZE: u64 = 512;

/// What a block waits for, in the plain list.
#[derive(Debug, Clone, PartialEq)]
enum Plain {
    Filed,
    Batch(u64),
    Streams(Vec<(Owner, u64)>),
}

struct World {
    sets: Sets,
    free_space: FreeSpace,
    owners: Vec<Owner>,
    /// For each owner, the number of its next event, and up to which they are complete.
    next: [u64; OWNERS],
    complete: [u64; OWNERS],
    blocks: BTreeMap<NodeId, Plain>,
    /// Batches that were made, and those that have completed.
    batches: (u64, u64),
}

impl World {
    fn new() -> World {
        let mut free_space = FreeSpace::new(1 << 30, SIZE, 2 << 20);
        assert!(free_space.open(0, 256 << 20, COMMON, 0));
        let owners = (0..OWNERS).map(|_| free_space.add_owner()).collect();
        World {
            sets: Sets::default(),
            free_space,
            owners,
            next: [1; OWNERS],
            complete: [0; OWNERS],
            blocks: BTreeMap::new(),
            batches: (0, 0),
        }
    }

    fn block(&mut self) -> (NodeId, Freed) {
        let id = self.free_space.take(COMMON, SIZE, SIZE).expect("there is room");
        (id, Freed::Block { id, give_back: false })
    }

    fn is_complete(&self, (owner, number): &(Owner, u64)) -> bool {
        let at = self.owners.iter().position(|of| of == owner).expect("it is known");
        self.complete[at] >= *number
    }

    /// Takes the blocks of complete sets out of the list, where they have to be due.
    fn ends(&mut self, sets: impl IntoIterator<Item = Set>, is_due: impl Fn(&World, &Plain) -> bool) {
        for set in sets {
            for freed in set.pieces() {
                let Freed::Block { id, .. } = freed else { continue };
                let plain = self.blocks.remove(id).expect("it waited");
                assert!(is_due(self, &plain), "{plain:?}");
                self.free_space.give(*id, COMMON, 0);
            }
        }
    }

    fn complete(&mut self, at: usize, through: u64) {
        self.complete[at] = through;
        let complete = self.complete;
        let owners = self.owners.clone();
        let is_complete = |(owner, number): &(Owner, u64)| {
            let at = owners.iter().position(|of| of == owner).expect("it is known");
            complete[at] >= *number
        };
        let ended = self.sets.complete_stream(self.owners[at], through, is_complete);
        let due = |world: &World, plain: &Plain| match plain {
            Plain::Streams(streams) => streams.iter().all(|stream| world.is_complete(stream)),
            _ => false,
        };
        self.ends(ended.into_iter().map(|(_, set)| set), due);
        let late = self.blocks.values().find(|plain| due(self, plain));
        assert_eq!(late, None, "it is complete, and still waits");
    }

    fn step(&mut self, random: &mut Random) {
        let at = random.below(OWNERS as u64) as usize;
        match random.below(12) {
            0..=3 => {
                let (id, freed) = self.block();
                let count = 1 + random.below(3) as usize;
                let of = (0..count).map(|_| random.below(OWNERS as u64) as usize);
                let streams: Vec<_> = of.map(|at| (self.owners[at], self.next[at])).collect();
                self.blocks.insert(id, Plain::Streams(streams.clone()));
                self.sets.wait_for_streams(streams, freed, &self.free_space);
            }
            4 | 5 => {
                let (id, freed) = self.block();
                self.blocks.insert(id, Plain::Filed);
                self.sets.file(freed, &self.free_space);
            }
            6 => self.next[at] += 1,
            7 | 8 if self.complete[at] + 1 < self.next[at] => {
                let beyond = self.next[at] - 1 - self.complete[at];
                self.complete(at, self.complete[at] + 1 + random.below(beyond));
            }
            9 => {
                self.sets.cover(Batch {
                    events: Vec::new(),
                    covers: Vec::new(),
                });
                let filed = self.blocks.values_mut().filter(|plain| **plain == Plain::Filed);
                filed.for_each(|plain| *plain = Plain::Batch(self.batches.0));
                self.batches.0 += 1;
            }
            10 if self.batches.1 < self.batches.0 => {
                let (id, _) = self.sets.oldest_batch().expect("there is one");
                let set = self.sets.remove(id);
                let now = self.batches.1;
                self.batches.1 += 1;
                self.ends(set, |_, plain| *plain == Plain::Batch(now));
                let late = self.blocks.values().find(|plain| **plain == Plain::Batch(now));
                assert_eq!(late, None);
            }
            _ => {}
        }
    }

    fn check(&self) {
        self.sets.validate(&self.free_space).unwrap();
        let bytes = |of: fn(&Plain) -> bool| self.blocks.values().filter(|plain| of(plain)).count() as u64 * SIZE;
        let account = Account {
            filed: bytes(|plain| matches!(plain, Plain::Filed)),
            contexts: bytes(|plain| matches!(plain, Plain::Batch(_))),
            streams: bytes(|plain| matches!(plain, Plain::Streams(_))),
            ..Account::default()
        };
        assert_eq!(self.sets.account(), account);
        assert_eq!(self.sets.account().total(), self.blocks.len() as u64 * SIZE);
        for (at, owner) in self.owners.iter().enumerate() {
            for last in [0, self.complete[at], self.next[at] - 1, u64::MAX] {
                let beyond = |(of, number): &(Owner, u64)| of == owner && *number > last;
                let waits = self.blocks.values().any(|plain| match plain {
                    Plain::Streams(streams) => streams.iter().any(beyond),
                    _ => false,
                });
                assert_eq!(self.sets.waits_for(*owner, last), waits);
            }
        }
    }
}

#[test]
fn table_agrees_with_a_plain_list() {
    let mut ended = 0;
    for seed in 1..=20 {
        let (mut world, mut random) = (World::new(), Random::new(seed));
        for _ in 0..500 {
            let before = world.blocks.len();
            world.step(&mut random);
            world.check();
            ended += before.saturating_sub(world.blocks.len());
        }
        for at in 0..OWNERS {
            world.next[at] += 1;
            world.complete(at, world.next[at] - 1);
        }
        world.check();
        assert_eq!(world.sets.account().streams, 0, "everything is complete");
    }
    assert!(ended > 1000, "{ended} blocks came to the end of their waits");
}

/// Blocks that wait for the same are one set, however many they are.
#[test]
fn blocks_that_wait_for_the_same_are_one_set() {
    let mut world = World::new();
    for _ in 0..100 {
        let (_, freed) = world.block();
        let streams = vec![(world.owners[0], 1), (world.owners[1], 1)];
        world.sets.wait_for_streams(streams, freed, &world.free_space);
    }
    assert_eq!(world.sets.iter().count(), 1);
    let (_, freed) = world.block();
    let streams = vec![(world.owners[0], 1), (world.owners[1], 2)];
    world.sets.wait_for_streams(streams, freed, &world.free_space);
    assert_eq!(world.sets.iter().count(), 2);
}
