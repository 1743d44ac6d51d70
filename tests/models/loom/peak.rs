//! `stream_cache/peak.rs`: the peak is the most that was allocated at once, whichever thread reads it while streams take turns.

use crate::world::{UNIT, World, caught, explore};

/// One stream frees, then another allocates: there are never two blocks, though a thread reads the statistics in
/// between.
fn turns() {
    let world = World::new("");
    let [first, second] = world.warm(1);
    let block = world.get(UNIT, first);
    let view = world.thread(move |world| {
        world.put(block, Some(first));
        world.get(UNIT, second)
    });
    world.stats();
    view.join().unwrap();
    assert_eq!(world.stats().allocated_peak, UNIT, "the peak was never two blocks");
    world.check(UNIT);
}

/// Two streams allocate at once, and the peak shows it.
fn together() {
    let world = World::new("");
    let streams: [usize; 2] = world.warm(1);
    let other = world.thread(move |world| world.get(UNIT, streams[1]));
    world.get(UNIT, streams[0]);
    other.join().unwrap();
    assert_eq!(world.stats().allocated_peak, 2 * UNIT, "both were out");
    world.check(2 * UNIT);
}

/// As above, and one block is freed before any thread reads the statistics.
fn taken_together_and_given_back() {
    let world = World::new("");
    let streams: [usize; 2] = world.warm(1);
    let other = world.thread(move |world| world.get(UNIT, streams[1]));
    let block = world.get(UNIT, streams[0]);
    other.join().unwrap();
    world.put(block, Some(streams[0]));
    assert_eq!(world.stats().allocated_peak, 2 * UNIT, "both were out");
    world.check(UNIT);
}

#[test]
fn the_peak_is_not_more_than_there_was() {
    explore("peak, turns", 2, turns);
}

#[test]
fn the_peak_is_not_less_than_there_was() {
    explore("peak, together", 2, together);
    explore("peak, together, then one", 2, taken_together_and_given_back);
}

#[test]
fn looked_at_one_after_the_other() {
    caught(
        "a cache whose charge was settled stays exact",
        &["the peak was never two blocks"],
        || explore("", 2, turns),
    );
}

#[test]
fn a_charge_that_is_never_read() {
    let words = ["both were out"];
    caught("a charge that may be a peak is checked", &words, || {
        explore("", 2, taken_together_and_given_back)
    });
}
