//! Stream capture: captured memory has one owner, and the allocator ends no capture.

use std::time::{Duration, Instant};

use super::{MIB, Random};
use crate::device::Mode;
use crate::world::{Setup, World};

pub fn captured_memory_belongs_to_the_graph(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    world.begin_capture(stream);
    let block = world.get_on(stream, 5 * MIB);
    world.write_edges(stream, block, 5 * MIB, 1);
    world.put_on(stream, block);
    let kept = world.get_on(stream, 3 * MIB);
    world.write_edges(stream, kept, 3 * MIB, 2);
    let graph = world.end_capture(stream).expect("nothing ended the capture");
    let executable = world.instantiate(graph);
    for _ in 0..3 {
        world.launch(executable, stream);
    }
    // While the graph can be launched, no request gets its memory.
    let others = [
        world.get_on(stream, 5 * MIB),
        world.get_on(stream, 3 * MIB),
        world.get(5 * MIB),
        world.get_on(0, 3 * MIB),
    ];
    let apart = |other: usize, size: u64| {
        let apart = |at: usize, len: u64| other as u64 + size <= at as u64 || at as u64 + len <= other as u64;
        apart(block, 5 * MIB) && apart(kept, 3 * MIB)
    };
    assert!(apart(others[0], 5 * MIB) && apart(others[1], 3 * MIB));
    assert!(apart(others[2], 5 * MIB) && apart(others[3], 3 * MIB));
    world.put_on(stream, kept);
    let another = world.get_on(stream, 3 * MIB);
    assert!(apart(another, 3 * MIB), "its owner gave it back, the graph did not");
    world.launch(executable, stream);
    world.wait(stream);
    world.destroy_graph(graph);
    let another = world.get_on(stream, 3 * MIB);
    assert!(apart(another, 3 * MIB), "there still is the executable");
    world.launch(executable, stream);
    world.wait(stream);
    world.destroy_executable(executable);
    world.wait_for_graph_destructors();
    world.finish();
}

pub fn capture_reuses_its_own_memory(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    // The capture must not get what the stream freed before.
    let before = world.get_on(stream, 4 * MIB);
    world.write_edges(stream, before, 4 * MIB, 9);
    world.put_on(stream, before);
    world.begin_capture(stream);
    let first = world.get_on(stream, 4 * MIB);
    for byte in 0..20 {
        world.write_edges(stream, first, 4 * MIB, byte);
        world.put_on(stream, first);
        assert_eq!(world.get_on(stream, 4 * MIB), first, "inside, at once");
    }
    world.put_on(stream, first);
    world.check_books();
    let graph = world.end_capture(stream).expect("nothing ended the capture");
    let executable = world.instantiate(graph);
    world.launch(executable, stream);
    let ordinary = world.get_on(stream, 4 * MIB);
    assert_ne!(ordinary, first);
    world.put_on(stream, ordinary);
    world.wait(stream);
    world.destroy_executable(executable);
    world.destroy_graph(graph);
    world.wait_for_graph_destructors();
    // The memory is free now: a second capture of the same shape needs no more memory than there is.
    let held = world.stats().reserved;
    world.begin_capture(stream);
    let again = world.get_on(stream, 4 * MIB);
    world.write_edges(stream, again, 4 * MIB, 1);
    world.put_on(stream, again);
    let graph = world.end_capture(stream).expect("nothing ended the capture");
    assert!(world.stats().reserved <= held + 4 * MIB, "{:?}", world.stats());
    world.destroy_graph(graph);
    world.wait_for_graph_destructors();
    world.finish();
}

pub fn memory_from_before_a_capture_is_usable_in_its_graph(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    let block = world.get_on(stream, 2 * MIB);
    let plain = world.get(2 * MIB);
    world.begin_capture(stream);
    world.write_edges(stream, block, 2 * MIB, 3);
    world.write_edges(stream, plain, 2 * MIB, 4);
    let graph = world.end_capture(stream).expect("nothing ended the capture");
    let executable = world.instantiate(graph);
    world.launch(executable, stream);
    assert!(world.holds(block, 2 * MIB, 3) && world.holds(plain, 2 * MIB, 4));
    world.launch(executable, stream);
    world.destroy_executable(executable);
    world.destroy_graph(graph);
    world.put_on(stream, block);
    world.put_on(stream, plain);
    world.wait_for_graph_destructors();
    world.finish();
}

pub fn dropped_graph_returns_its_memory(setup: &Setup) {
    let world = setup.world("");
    let stream = world.stream();
    for round in 0..6 {
        world.begin_capture(stream);
        let inside = world.get_on(stream, MIB);
        let outlives = world.get_on(stream, MIB);
        world.write_edges(stream, inside, MIB, round);
        world.put_on(stream, inside);
        let graph = world.end_capture(stream).expect("nothing ended the capture");
        world.destroy_graph(graph);
        world.wait_for_graph_destructors();
        // A block that is still allocated is an ordinary one from now on.
        world.write_edges(stream, outlives, MIB, 7);
        assert!(world.holds(outlives, MIB, 7));
        world.put_on(stream, outlives);
        // A stream records a completion event only in calls that name it outside of a capture. Without such a call,
        // what graphs leave on it would wait for a call without a stream.
        let between = world.get_on(stream, MIB);
        world.put_on(stream, between);
    }
    assert!(
        world.stats().reserved <= 8 * MIB || world.keeps_captures(),
        "{:?}",
        world.stats()
    );
    world.finish();
}

pub fn frees_without_a_stream_do_not_end_a_capture(setup: &Setup) {
    let world = setup.world("wait_ms=300");
    let (blocking, other) = (world.blocking_stream(), world.stream());
    let blocks = [0; 6].map(|_| world.get(3 * MIB));
    world.begin_capture(blocking);
    let captured = world.get_on(blocking, MIB);
    world.write_edges(blocking, captured, MIB, 1);
    for block in blocks {
        world.put(block);
        let ordered = world.get_on(other, 5 * MIB);
        world.put_on(other, ordered);
        let plain = world.get(20 * MIB);
        world.put(plain);
    }
    world.put_on(blocking, captured);
    let graph = world.end_capture(blocking).expect("nothing ended the capture");
    world.destroy_graph(graph);
    world.wait_for_graph_destructors();
    world.finish();
}

/// A capture of an earlier case counts as running for a while where the driver does not report the end of its graph.
fn wait_until_no_capture_is_seen(world: &World) {
    let block = world.get(MIB);
    world.put(block);
    let deadline = Instant::now() + Duration::from_secs(60);
    while world.stats().pending > 0 {
        assert!(Instant::now() < deadline, "{:?}", world.stats());
        world.trim(0);
    }
}

/// Runs `work` on another thread beside a capture that is known to the process, by a request inside it or else by the option
/// `captures`: on blocking and non-blocking streams, in each mode. Checks that it ends none.
fn beside_captures(setup: &Setup, inside: bool, work: impl Fn(&World) + Sync) {
    for blocking in [false, true] {
        for mode in [Mode::Global, Mode::ThreadLocal, Mode::Relaxed] {
            let world = setup.world(if inside { "" } else { "captures=1" });
            // The stand-in for AscendCL refuses every query then.
            if mode == Mode::Global && world.is_ascend() {
                continue;
            }
            let stream = match blocking {
                true => world.blocking_stream(),
                false => world.stream(),
            };
            let block = world.get(MIB);
            wait_until_no_capture_is_seen(&world);
            world.begin_capture_in(stream, mode);
            let within = inside.then(|| world.get_on(stream, MIB));
            world.write(stream, within.unwrap_or(block), MIB, 1);
            world.on_thread(|| work(&world));
            world.write(stream, block, MIB, 2);
            let graph = world.end_capture(stream);
            let what = format!("blocking: {blocking}, {mode:?}");
            world.destroy_graph(graph.unwrap_or_else(|| panic!("{what}: the capture was ended")));
            // A driver may not report the end of a graph. A request of its stream outside of it shows that it is over.
            let after = world.get_on(stream, MIB);
            world.put_on(stream, after);
            within.into_iter().for_each(|within| world.put_on(stream, within));
            world.put(block);
            world.wait_for_graph_destructors();
            world.finish();
        }
    }
}

fn engines_come_and_go(setup: &Setup, inside: bool) {
    beside_captures(setup, inside, |world| {
        let stream = world.stream();
        // Weights, and smaller blocks. All engines at once fit into the device.
        let weights = (world.total(0) / 32).min(256 * MIB);
        let load = || [weights, 64 * MIB, MIB, 64 << 10, 512].map(|size| world.get(size));
        let mut engine = load();
        for round in 0..12 {
            let next = load();
            world.write_edges(stream, next[0], weights, round);
            engine.into_iter().for_each(|block| world.put(block));
            engine = next;
            let ordered = world.get_on(stream, 5 * MIB);
            world.put_on(stream, ordered);
        }
        engine.into_iter().for_each(|block| world.put(block));
        // The application must not wait for work beside a global capture.
        world.destroy(stream);
    });
}

pub fn engines_that_come_and_go_end_no_capture(setup: &Setup) {
    engines_come_and_go(setup, true);
}

pub fn engines_that_come_and_go_end_no_declared_capture(setup: &Setup) {
    engines_come_and_go(setup, false);
}

fn small_blocks_come_and_go(setup: &Setup, inside: bool) {
    beside_captures(setup, inside, |world| {
        for round in 0..2000 {
            let block = world.get(1 + round % 7 * (96 << 10));
            world.put(block);
        }
    });
}

pub fn small_blocks_without_a_stream_end_no_capture(setup: &Setup) {
    small_blocks_come_and_go(setup, true);
}

pub fn small_blocks_without_a_stream_end_no_declared_capture(setup: &Setup) {
    small_blocks_come_and_go(setup, false);
}

/// Without a free byte below the limit, a request waits for a capture that the pool can see, and is refused rather than
/// end it, however often it is made. A trim ends none either.
pub fn request_at_the_limit_ends_no_capture_that_is_seen(setup: &Setup) {
    for blocking in [true, false] {
        let world = setup.world("limit=128MiB,wait_ms=100");
        let stream = match blocking {
            true => world.blocking_stream(),
            false => world.stream(),
        };
        let kept = world.get_on(stream, MIB);
        world.begin_capture(stream);
        // A request inside it shows a capture on a stream that is not blocking.
        let inside = (!blocking).then(|| world.get_on(stream, MIB));
        world.write(stream, kept, MIB, 1);
        world.on_thread(|| {
            let block = world.get(100 * MIB);
            world.put(block);
            for _ in 0..3 {
                assert_eq!(world.try_get(60 * MIB, 0, 0), 0, "100 MiB are filed");
                world.trim(0);
            }
        });
        let graph = world.end_capture(stream).expect("nothing ended the capture");
        // A request of its stream outside of it shows that it is over.
        let after = world.get_on(stream, MIB);
        world.put_on(stream, after);
        let block = world.get(100 * MIB);
        world.put(block);
        world.destroy_graph(graph);
        inside.into_iter().for_each(|inside| world.put_on(stream, inside));
        world.put_on(stream, kept);
        world.wait_for_graph_destructors();
        world.finish();
    }
}

/// What was freed without a stream beside a capture serves requests once the limit is reached. That the capture is over
/// is known only from its stream's next request or its graph's end; here neither comes.
pub fn memory_freed_beside_a_capture_comes_back(setup: &Setup) {
    for inside in [false, true] {
        let world = setup.world(&format!("limit=512MiB,wait_ms=200,captures={}", u8::from(!inside)));
        let stream = world.stream();
        world.begin_capture(stream);
        let within = inside.then(|| world.get_on(stream, MIB));
        world.on_thread(|| {
            for _ in 0..4 {
                let block = world.get(100 * MIB);
                world.put(block);
            }
        });
        let graph = world.end_capture(stream).expect("memory could grow");
        let executable = world.instantiate(graph);
        // Only time shows that it is over. Until then, requests are refused rather than end it.
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut served = 0;
        while served < 4 {
            match world.try_get(400 * MIB, 0, 0) {
                0 => assert!(Instant::now() < deadline),
                block => {
                    served += 1;
                    world.put(block);
                }
            }
        }
        world.destroy_executable(executable);
        world.destroy_graph(graph);
        within.into_iter().for_each(|within| world.put_on(stream, within));
        world.wait_for_graph_destructors();
        world.finish();
    }
}

/// While no capture is known, what was freed without a stream is covered before it is much.
pub fn blocks_without_a_stream_hold_little_more_than_is_needed(setup: &Setup) {
    for need in [4 << 10, 3 * MIB, 31 * MIB, 200 * MIB, 900 * MIB] {
        let world = setup.world("");
        for _ in 0..2000.min(4096 * MIB / need) {
            let block = world.get(need);
            world.put(block);
        }
        let most = need + (32 * MIB).max(need / 8) + 2 * MIB;
        assert!(world.stats().reserved <= most, "{need}: {:?}", world.stats());
        world.finish();
    }
}

/// Blocks that a graph may write to whenever it is launched.
struct Theirs(Vec<(usize, u64)>);

impl Theirs {
    /// Whether a block overlaps none of them.
    fn spare(&self, block: usize, size: u64) -> bool {
        let apart = |(at, len): &(usize, u64)| block as u64 + size <= *at as u64 || *at as u64 + len <= block as u64;
        self.0.iter().all(apart)
    }

    /// Allocates and frees on `streams` and checks that no block overlaps the graph's memory.
    fn left_alone(&self, world: &World, streams: &[usize], random: &mut Random) {
        let mut live = Vec::new();
        for round in 0..60 {
            let (stream, size) = (streams[round % streams.len()], 1 + random.below(4 * MIB));
            let block = if round % 7 == 0 {
                world.get(size)
            } else {
                world.get_on(stream, size)
            };
            assert!(self.spare(block, size), "memory of a graph was handed out");
            world.write_edges(stream, block, size, round as u8);
            live.push((stream, block));
            if live.len() > 6 {
                let (stream, block) = live.swap_remove(random.below(live.len() as u64) as usize);
                world.put_on(stream, block);
            }
        }
        live.into_iter().for_each(|(stream, block)| world.put_on(stream, block));
    }
}

/// Captures a few blocks of work on `stream`; two of the blocks stay allocated.
fn capture(world: &World, stream: usize) -> (usize, Theirs, [usize; 2]) {
    world.begin_capture(stream);
    let out = [0; 2].map(|_| world.get_on(stream, 3 * MIB));
    let freed = world.get_on(stream, 2 * MIB);
    for (block, size) in [(out[0], 3 * MIB), (out[1], 3 * MIB), (freed, 2 * MIB)] {
        world.write_edges(stream, block, size, 1);
    }
    world.put_on(stream, freed);
    let graph = world.end_capture(stream).expect("nothing ended the capture");
    let theirs = Theirs(vec![(out[0], 3 * MIB), (out[1], 3 * MIB), (freed, 2 * MIB)]);
    (graph, theirs, out)
}

/// While the graph or the executable exists, whichever goes first, no request gets its memory. This holds between
/// launches, and where the owner frees it during one.
pub fn replayed_graph_keeps_its_memory_while_the_pool_is_busy(setup: &Setup) {
    for graph_first in [true, false] {
        let world = setup.world("");
        let (stream, others) = (world.stream(), [world.stream(), world.stream()]);
        let mut random = Random::new(5);
        let (graph, theirs, out) = capture(&world, stream);
        let executable = world.instantiate(graph);
        theirs.left_alone(&world, &others, &mut random);
        let hold = world.hold(stream);
        world.launch(executable, stream);
        world.put_on(stream, out[0]);
        world.put(out[1]);
        theirs.left_alone(&world, &[others[0], others[1], stream], &mut random);
        hold.let_go();
        if graph_first {
            world.destroy_graph(graph);
        } else {
            world.wait(stream);
            world.destroy_executable(executable);
        }
        world.wait_for_graph_destructors();
        for _ in 0..3 {
            if graph_first {
                world.launch(executable, stream);
            }
            theirs.left_alone(&world, &[others[0], stream], &mut random);
        }
        world.wait(stream);
        if graph_first {
            world.destroy_executable(executable);
        } else {
            world.destroy_graph(graph);
        }
        world.wait_for_graph_destructors();
        // The memory is ordinary memory now.
        let held = world.stats().reserved;
        let all = [0; 2].map(|_| world.get(3 * MIB));
        all.into_iter().for_each(|block| world.put(block));
        assert!(world.keeps_captures() || world.stats().reserved <= held + 2 * MIB);
        world.finish();
        setup.device().leave();
    }
}

pub fn captures_at_once_do_not_share_memory(setup: &Setup) {
    let world = setup.world("");
    let streams = [0; 4].map(|_| world.stream());
    let free = world.stream();
    streams.iter().for_each(|stream| world.begin_capture(*stream));
    let mut theirs = Theirs(Vec::new());
    for round in 0..5u8 {
        let mut mine = Vec::new();
        for stream in streams {
            let block = world.get_on(stream, 2 * MIB);
            assert!(theirs.spare(block, 2 * MIB) || round > 0);
            world.write_edges(stream, block, 2 * MIB, round);
            mine.push((block, 2 * MIB));
        }
        if round == 0 {
            theirs.0 = mine.clone();
        }
        // Each capture gets its own memory back, and no other capture's.
        assert_eq!(mine, theirs.0);
        let ordinary = world.get_on(free, 2 * MIB);
        assert!(theirs.spare(ordinary, 2 * MIB));
        world.put_on(free, ordinary);
        for (stream, (block, _)) in streams.into_iter().zip(mine) {
            world.put_on(stream, block);
        }
    }
    let graphs = streams.map(|stream| world.end_capture(stream).expect("nothing ended the capture"));
    let executables = graphs.map(|graph| world.instantiate(graph));
    for (executable, stream) in executables.into_iter().zip(streams) {
        world.launch(executable, stream);
    }
    theirs.left_alone(&world, &[streams[0], free], &mut Random::new(6));
    world.wait_for_all();
    for (graph, executable) in graphs.into_iter().zip(executables) {
        world.destroy_graph(graph);
        world.destroy_executable(executable);
    }
    world.wait_for_graph_destructors();
    world.finish();
}

/// A capture that something ends leaves no graph. Its memory is released, and allocated blocks stay their owner's.
pub fn failed_capture_returns_its_memory(setup: &Setup) {
    let world = setup.world("");
    let (stream, outside) = (world.stream(), world.stream());
    for round in 0..4 {
        world.begin_capture(stream);
        let (freed, out) = (world.get_on(stream, 3 * MIB), world.get_on(stream, 3 * MIB));
        world.write_edges(stream, out, 3 * MIB, 1);
        world.put_on(stream, freed);
        assert!(!world.order(outside, stream), "a capture waits for nothing outside");
        assert_eq!(world.try_get_on(stream, MIB, 0, 0), 0, "it is over, and not ended");
        if round % 2 == 0 {
            world.put_on(stream, out);
        }
        assert_eq!(world.end_capture(stream), None);
        world.wait_for_graph_destructors();
        if round % 2 == 1 {
            world.write_edges(stream, out, 3 * MIB, 2);
            assert!(world.holds(out, 3 * MIB, 2));
            world.put_on(stream, out);
        }
        let next = world.get_on(stream, 3 * MIB);
        world.write_edges(stream, next, 3 * MIB, 3);
        world.put_on(stream, next);
    }
    assert!(
        // Without stream ids, what graphs leave is pending until it is needed.
        world.stats().reserved <= 16 * MIB || !world.features().stream_ids,
        "{:?}",
        world.stats()
    );
    world.finish();
}

/// A graph's memory belongs to every graph that contains it.
pub fn child_graph_keeps_its_memory(setup: &Setup) {
    let world = setup.world("");
    let (stream, other) = (world.stream(), world.stream());
    let (inner, theirs, out) = capture(&world, stream);
    let executable = world.instantiate(inner);
    world.begin_capture(stream);
    world.launch(executable, stream);
    let outer = world.end_capture(stream).expect("nothing ended the capture");
    world.destroy_executable(executable);
    world.destroy_graph(inner);
    out.into_iter().for_each(|block| world.put(block));
    world.wait_for_graph_destructors();
    let executable = world.instantiate(outer);
    for _ in 0..3 {
        world.launch(executable, stream);
        theirs.left_alone(&world, &[stream, other], &mut Random::new(8));
    }
    world.wait(stream);
    world.destroy_graph(outer);
    world.destroy_executable(executable);
    world.wait_for_graph_destructors();
    world.finish();
}
