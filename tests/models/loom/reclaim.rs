//! Completion events, context events and reused stream handles in the real allocator, over the simulated device. Its
//! order checker knows for each byte whether its last use is ordered before the new owner.

use crate::world::{UNIT, World, caught, explore};

const PAGE: u64 = 2 << 20;
const UNORDERED: &[&str] = &["is not known to be over"];

/// A stream frees a page that is in use on it, while a request without a stream needs all memory and a context event
/// covers everything free.
fn cover() {
    let world = World::new("limit=4MiB,wait_ms=0");
    let stream = world.stream();
    let (cached, block) = (world.get(UNIT, stream), world.get(PAGE, stream));
    world.put(cached, Some(stream));
    let other = world.thread(move |world| {
        world.launch(stream, block, PAGE);
        world.put(block, Some(stream));
        // The work takes longer than this.
        world.machine.advance(100_000);
    });
    let got = world.allocate(2 * PAGE, None);
    other.join().unwrap();
    world.check(got.map_or(0, |_| 2 * PAGE));
}

/// A stream frees a page on one thread. On another thread it records a completion event for what it has freed, and a
/// second stream takes what it can.
fn record_event() {
    let world = World::new("limit=4MiB,wait_ms=0");
    let (first, second) = (world.stream(), world.stream());
    let (cached, block) = (world.get(UNIT, first), world.get(PAGE, first));
    assert!(world.allocate(2 * PAGE, Some(second)).is_err(), "the second is hungry");
    world.launch(first, cached, UNIT);
    world.put(cached, Some(first));
    let frees = world.thread(move |world| {
        world.launch(first, block, PAGE);
        world.put(block, Some(first));
    });
    // A size that the stream never freed, under memory pressure: a miss, which records a completion event.
    let mut out = world.allocate(2 * UNIT, Some(first)).map_or(0, |_| 2 * UNIT);
    out += world.allocate(PAGE, Some(second)).map_or(0, |_| PAGE);
    frees.join().unwrap();
    world.check(out);
}

/// A stream is destroyed with work on what it freed, and its handle comes back. While the new stream is used for the
/// first time, another stream requests that memory too.
fn served() {
    let world = World::new("limit=4MiB,wait_ms=0");
    let (dying, other) = (world.stream(), world.stream());
    let blocks = [(); 2].map(|()| world.get(PAGE, dying));
    for block in blocks {
        world.launch(dying, block, PAGE);
        world.put(block, Some(dying));
    }
    world.machine.stream_destroy(dying).unwrap();
    let born = world.stream();
    assert_eq!(born, dying, "the handle comes back");
    let there = world.thread(move |world| world.allocate(PAGE, Some(born)).is_ok());
    let here = world.allocate(PAGE, Some(other)).is_ok();
    let got = u64::from(here) + u64::from(there.join().unwrap());
    world.check(got * PAGE);
}

/// A trim releases everything free, while a stream frees a page that is in use on it.
fn trim() {
    let world = World::new("wait_ms=0");
    let stream = world.stream();
    let block = world.get(PAGE, stream);
    let other = world.thread(move |world| {
        world.launch(stream, block, PAGE);
        world.put(block, Some(stream));
    });
    world.allocator.trim(Some(0), 0).unwrap();
    other.join().unwrap();
    world.check(0);
    world.machine.context_synchronize().unwrap();
    world.allocator.trim(Some(0), 0).unwrap();
    let stats = world.stats();
    assert_eq!((stats.reserved, stats.pending), (0, 0), "everything was given back");
}

#[test]
fn a_context_event_covers_only_earlier_frees() {
    explore("reclaim, context event", 2, cover);
}

#[test]
fn an_event_covers_only_earlier_frees() {
    explore("reclaim, completion event", 2, record_event);
}

#[test]
fn a_handle_that_comes_back() {
    explore("reclaim, stream id", 2, served);
}

#[test]
fn a_trim_and_a_free() {
    explore("reclaim, trim", 2, trim);
}

#[test]
fn rules_of_reclaiming_broken() {
    caught("what is freed after a context event is not covered", UNORDERED, || {
        explore("", 2, cover)
    });
    caught(
        "what is freed after a completion event is not covered",
        UNORDERED,
        || explore("", 2, record_event),
    );
    caught("a hit compares the stream's id", UNORDERED, || explore("", 1, served));
}
