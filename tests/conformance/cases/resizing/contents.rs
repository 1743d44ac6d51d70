//! Blocks keep their bytes through random growth, moves, shrinks and refusals.

use trtalloc::allocator::RESIZABLE;

use super::super::{KIB, MIB, Random};
use crate::world::{Setup, World};

/// Extends the model of a block to `size` bytes, and writes what was added: each MiB gets a byte of its own, so that no
/// page can take another's place unnoticed.
fn extend(world: &World, stream: usize, block: usize, model: &mut Vec<u8>, size: u64, random: &mut Random) {
    let mut piece = vec![0; MIB as usize];
    while (model.len() as u64) < size {
        let from = model.len() as u64;
        let bytes = size.min((from / MIB + 1) * MIB) - from;
        let byte = random.below(256) as u8;
        world.write(stream, block + from as usize, bytes, byte);
        // Without optimization `resize` is slow.
        piece.fill(byte);
        model.extend_from_slice(&piece[..bytes as usize]);
    }
}

/// Whether every byte of a block is what the model has. It is read in pieces, since a buffer of the block's size would cost
/// more than the comparison.
fn matches(world: &World, block: usize, model: &[u8]) -> bool {
    const PIECE: usize = 4 << 20;
    let mut pieces = model.chunks(PIECE).enumerate();
    pieces.all(|(at, expected)| world.read(block + at * PIECE, expected.len() as u64) == expected)
}

/// Random growth, moves, shrinks and refusals of a few blocks. Every byte of each block is what was last written to it.
fn random_resizes(world: &World, rounds: u64, largest: u64, too_much: u64) {
    let stream = world.stream();
    let mut random = Random::new(rounds ^ largest);
    let mut blocks: Vec<(usize, Vec<u8>)> = Vec::new();
    let (mut moves, mut refusals) = (0, 0);
    for round in 0..rounds {
        if blocks.len() < 3 {
            let size = 1 + random.below(largest / 8);
            let block = match random.below(2) {
                0 => world.get_resizable(size),
                _ => world.try_get_on(stream, size, 0, RESIZABLE),
            };
            assert_ne!(block, 0, "{}", world.interface().last_error());
            let mut model = Vec::new();
            extend(world, stream, block, &mut model, size, &mut random);
            blocks.push((block, model));
        }
        let at = random.below(blocks.len() as u64) as usize;
        let (block, model) = &mut blocks[at];
        for _ in 0..6 {
            let from = random.below(model.len() as u64) as usize;
            let bytes = 1 + random.below(MIB.min((model.len() - from) as u64)) as usize;
            let byte = random.below(256) as u8;
            world.write(stream, *block + from, bytes as u64, byte);
            model[from..from + bytes].fill(byte);
        }
        let had = model.len() as u64;
        let size = match random.below(8) {
            0 => too_much,
            1 | 2 => 1 + random.below(had),
            3 | 4 => had + 1 + random.below(64 * KIB),
            _ => 1 + random.below(largest),
        };
        let new = world.try_resize(*block, size);
        if new == 0 {
            assert_eq!(size, too_much, "{}", world.interface().last_error());
            refusals += 1;
        } else {
            moves += u32::from(new != *block);
            *block = new;
            model.truncate(size as usize);
            extend(world, stream, new, model, size, &mut random);
        }
        assert!(matches(world, *block, model), "round {round}");
        if random.below(6) == 0 {
            let (block, _) = blocks.swap_remove(at);
            match random.below(2) {
                0 => world.put(block),
                _ => world.put_on(stream, block),
            }
        }
        world.check_books();
    }
    assert!(moves > 0 && refusals > 0, "{moves} {refusals}");
}

pub fn random_resizes_keep_every_byte(setup: &Setup) {
    let world = setup.world("limit=600MiB,wait_ms=300");
    let rounds = if crate::common::in_full() { 60 } else { 20 };
    random_resizes(&world, rounds, 150 * MIB, 700 * MIB);
    assert_eq!(world.stats().bytes_copied, 0);
    world.finish();
}

pub fn random_resizes_by_copies_keep_every_byte(setup: &Setup) {
    for options in [
        "backing=malloc,limit=160MiB,wait_ms=1000",
        "passthrough=1,limit=160MiB,wait_ms=1000",
    ] {
        let world = setup.world(options);
        random_resizes(&world, 80, 12 * MIB, 300 * MIB);
        assert!(world.stats().bytes_copied > 0);
        world.finish();
    }
}
