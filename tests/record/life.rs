//! Histories of whole lives, replayed backwards as PyTorch's viewer does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trtalloc::driver::{Driver, Stream};

use crate::program::{Program, path, request};

#[test]
fn several_streams_with_pending_blocks() {
    let program = Program::new("history=all,wait_ms=0");
    let streams = [program.stream(), program.stream()];
    let machine = program.driver.machine();
    let kernels = streams.map(|stream| machine.launch_persistent(stream.0, &[]).unwrap());
    let mut held = Vec::new();
    for round in 1..200u64 {
        let stream = Some(streams[(round % 2) as usize]);
        held.push((program.get(round * 7000, stream), stream));
        if round % 3 == 0 {
            let (address, of) = held.swap_remove((round * 7 % held.len() as u64) as usize);
            // Some without a stream, and some on another than they were allocated on.
            let on = [of, None, Some(streams[0])][(round / 3 % 3) as usize];
            if round % 2 == 0 {
                // Used on another stream too: not even its own may have it at once.
                program.allocator.record_stream(address, streams[1]).unwrap();
            }
            program.give(address, on);
        }
    }
    let seen = program.snapshot("streams");
    assert!(seen.number("active_pending_free") > 0, "{seen}");
    assert!(seen.number("free_requested") > seen.number("free_completed"), "{seen}");
    assert!(seen.number("alloc") == 199 && seen.number("segment_map") > 0, "{seen}");
    assert_eq!((seen.number("dropped"), seen.number("left_out")), (0, 0), "{seen}");
    for kernel in kernels {
        assert!(machine.release_persistent(kernel));
    }
    program.application.synchronize().unwrap();
    for (address, stream) in held {
        program.give(address, stream);
    }
    program.allocator.trim(None, 0).unwrap();
    let seen = program.snapshot("streams-over");
    assert_eq!(seen.number("free_requested"), 199, "{seen}");
    assert_eq!(seen.number("free_completed"), 199, "{seen}");
    assert_eq!((seen.number("total"), seen.number("left_out")), (0, 0), "{seen}");
    assert!(seen.number("segment_unmap") > 0, "{seen}");
}

#[test]
fn malloc_backing_and_dedicated_allocations_replay() {
    for options in ["backing=malloc", "passthrough=1", "guard=1", "fill=7"] {
        let program = Program::new(&format!("history=all,{options}"));
        let stream = Some(program.stream());
        let blocks: Vec<u64> = (1..40).map(|of| program.get(of * 300_001, stream)).collect();
        for (at, address) in blocks.iter().enumerate() {
            if at % 2 == 0 {
                program.give(*address, [stream, None][at / 2 % 2]);
            }
        }
        let seen = program.snapshot("special");
        assert_eq!(seen.number("left_out"), 0, "{options}: {seen}");
        assert_eq!(seen.number("active_allocated"), 19, "{options}: {seen}");
        for (at, address) in blocks.iter().enumerate() {
            if at % 2 == 1 {
                program.give(*address, stream);
            }
        }
        program.application.synchronize().unwrap();
        program.allocator.trim(None, 0).unwrap();
        let seen = program.snapshot("special-over");
        assert_eq!(
            (seen.number("left_out"), seen.number("alloc")),
            (0, 39),
            "{options}: {seen}"
        );
    }
}

#[test]
fn a_resizable_blocks_life() {
    let program = Program::new("history=all");
    let stream = Some(program.stream());
    let mut address = program.get_resizable(1 << 20, stream).unwrap();
    let first = address;
    for size in [3 << 20, 60 << 20, 5 << 20, 300 << 20] {
        address = program.allocator.reallocate(address, 0, size).unwrap();
        let seen = program.snapshot("resizable");
        assert_eq!(seen.number("left_out"), 0, "{seen}");
        assert_eq!(seen.number("active_allocated"), 1, "{seen}");
    }
    assert_ne!(first, address, "it has moved");
    let seen = program.snapshot("resizable");
    assert_eq!((seen.number("alloc"), seen.number("free_completed")), (5, 4), "{seen}");
    assert!(seen.number("segment_unmap") > 0, "the place it moved from: {seen}");
    program.give(address, None);
    program.application.synchronize().unwrap();
    program.allocator.trim(None, 0).unwrap();
    let seen = program.snapshot("resizable-over");
    assert_eq!((seen.number("total"), seen.number("left_out")), (0, 0), "{seen}");
}

#[test]
fn dropped_events_are_counted() {
    let program = Program::new("history=all,max_entries=100");
    let stream = Some(program.stream());
    let kept = program.get(4 << 20, stream);
    for size in 1..300 {
        let address = program.get(size * 5000, stream);
        program.give(address, stream);
    }
    let history = program.allocator.snapshot().unwrap().history;
    assert_eq!(history.events.len(), 100, "as many as `max_entries` says");
    let seen = program.snapshot("overflow");
    assert!(seen.number("dropped") >= 2 * 299 - 100, "{seen}");
    assert!(seen.number("entries") <= 151, "a free is two: {seen}");
    assert_eq!(seen.number("active_allocated"), 1, "{seen}");
    program.give(kept, stream);
}

#[test]
fn a_history_begun_late_fits_what_was_there_before() {
    let program = Program::new("");
    let stream = Some(program.stream());
    let before: Vec<u64> = (1..20).map(|of| program.get(of << 18, stream)).collect();
    program.allocator.history("all").unwrap();
    before
        .iter()
        .take(10)
        .for_each(|address| program.give(*address, stream));
    let after = program.get(3 << 18, stream);
    let seen = program.snapshot("late");
    assert_eq!((seen.number("alloc"), seen.number("free_requested")), (1, 10), "{seen}");
    program.allocator.history("off").unwrap();
    program.give(after, stream);
    // Later events appear as far as the state shows them.
    let seen = program.snapshot("off");
    assert_eq!((seen.number("alloc"), seen.number("free_requested")), (1, 11), "{seen}");
    program.allocator.history("state").unwrap();
    let seen = program.snapshot("state");
    assert_eq!(seen.number("entries"), 0, "{seen}");
    for bad in ["", "some", "all,stacks=few"] {
        assert!(program.allocator.history(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_graphs_memory_is_pending() {
    let program = Program::new("history=all");
    let stream = program.stream();
    let machine = program.driver.machine();
    machine.stream_begin_capture(stream.0, 0).unwrap();
    let blocks: Vec<u64> = (1..5).map(|of| program.get(of << 20, Some(stream))).collect();
    program.give(blocks[1], Some(stream));
    program.give(blocks[2], None);
    let seen = program.snapshot("graph");
    assert_eq!(seen.number("left_out"), 0, "{seen}");
    assert!(seen.number("active_pending_free") >= 1, "{seen}");
    assert_eq!(seen.number("active_allocated"), 2, "{seen}");
}

/// Two neighbours that a graph's capture freed are one piece until the graph is gone, and free from then on: not only when the
/// snapshot is written.
#[test]
fn memory_of_a_destroyed_graph_is_free() {
    for destroyed in [false, true] {
        let program = Program::new("history=all");
        let stream = program.stream();
        let machine = program.driver.machine();
        machine.stream_begin_capture(stream.0, 0).unwrap();
        let blocks: Vec<u64> = (0..4).map(|_| program.get(1 << 20, Some(stream))).collect();
        program.give(blocks[1], Some(stream));
        program.give(blocks[2], Some(stream));
        let graph = machine.stream_end_capture(stream.0).unwrap();
        let seen = program.snapshot("graph-before");
        assert_eq!(
            (seen.number("left_out"), seen.number("active_pending_free")),
            (0, 1),
            "{seen}"
        );
        if destroyed {
            program.allocator.stream_release(stream).unwrap();
        }
        machine.graph_destroy(graph).unwrap();
        machine.drain_user_objects();
        program.allocator.trim(None, u64::MAX).unwrap();
        program.application.synchronize().unwrap();
        program.allocator.trim(None, 0).unwrap();
        let after = program.get(12345, None);
        let snapshot = program.allocator.snapshot().unwrap();
        let file = path("graph-after.json");
        snapshot.write(&file).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let text: serde_json::Value = serde_json::from_str(&text).unwrap();
        let trace = text["device_traces"][0].as_array().unwrap();
        let [.., last, taken] = &trace[..] else {
            panic!("{trace:#?}")
        };
        assert_eq!(taken["action"], "snapshot");
        assert_eq!(
            (&last["action"], last["size"].as_u64()),
            (&"alloc".into(), Some(12345)),
            "{trace:#?}"
        );
        for block in &blocks[1..3] {
            let of_it = |action| trace.iter().any(|one| one["action"] == action && one["addr"] == *block);
            assert!(of_it("free_requested") && of_it("free_completed"), "{trace:#?}");
        }
        program.give(after, None);
    }
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Switching, snapshots and eight threads at once: every snapshot is whole and can be replayed.
#[test]
fn snapshots_while_eight_threads_allocate_and_recording_is_switched() {
    let program = Program::new("history=all,max_entries=5000");
    let over = AtomicBool::new(false);
    // Nothing is tested while a snapshot is looked at.
    let paused = AtomicBool::new(false);
    let context = program.application.context();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (allocator, driver, over, paused) = (&program.allocator, &program.driver, &over, &paused);
            let stream = program.stream();
            scope.spawn(move || {
                driver.context_push(context).unwrap();
                let mut held: Vec<(u64, Option<Stream>)> = Vec::new();
                let mut random = thread + 1;
                while !over.load(Ordering::Relaxed) {
                    if paused.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let draw = random >> 40;
                    if held.len() < 20 && !draw.is_multiple_of(3) {
                        let on = Some(stream).filter(|_| !draw.is_multiple_of(11));
                        held.push((allocator.allocate(request(512 << (draw % 12), on)).unwrap(), on));
                    } else if let Some((address, on)) = held.pop() {
                        allocator.deallocate(address, on).unwrap();
                    }
                }
                for (address, on) in held {
                    allocator.deallocate(address, on).unwrap();
                }
                driver.context_pop().unwrap();
            });
        }
        let switches = [
            "all,max_entries=5000",
            "state",
            "all,max_entries=300,stacks=native",
            "off",
            "all,stacks=native",
        ];
        // Also where this panics.
        let _over = Over(&over);
        for round in 0..12 {
            let name = format!("switched-{}.pickle", round % 5);
            program.allocator.write_snapshot(&path(&name)).unwrap();
            paused.store(true, Ordering::Relaxed);
            crate::viewer::open(&path(&name));
            paused.store(false, Ordering::Relaxed);
            program.allocator.history(switches[round % switches.len()]).unwrap();
            // Time in which every thread records something.
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    program.snapshot("switched-over");
    program.allocator.validate().unwrap();
}

#[test]
fn a_path_that_cannot_be_written_leaves_no_half_file() {
    let program = Program::new("history=all");
    let address = program.get(1 << 20, None);
    let dir = crate::common::scratch("half");
    for bad in ["x.txt", "x", "none/x.pickle", "none/x.html"] {
        assert!(program.allocator.write_snapshot(&dir.join(bad)).is_err(), "{bad}");
    }
    assert!(
        program
            .allocator
            .write_snapshot(std::path::Path::new("/dev/full/x.json"))
            .is_err()
    );
    // A name that is a folder cannot be renamed over; what was begun is taken away.
    std::fs::create_dir(dir.join("folder.pickle")).unwrap();
    assert!(program.allocator.write_snapshot(&dir.join("folder.pickle")).is_err());
    std::fs::remove_dir(dir.join("folder.pickle")).unwrap();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing is left behind");
    program.give(address, None);
    program.allocator.allocate(request(1, None)).unwrap();

    // What a killed process left, as another of the same id begins: that is so in containers. And the longest of names.
    for number in 0..300 {
        std::fs::write(
            dir.join(format!(".trtalloc-{}-{number}.tmp", std::process::id())),
            "half",
        )
        .unwrap();
    }
    let long = dir.join(format!("{}.json", "x".repeat(250)));
    program.allocator.write_snapshot(&long).unwrap();
    assert!(long.exists());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 301);
    // One file from several threads: whichever is last, it is whole.
    let file = dir.join("shared.json");
    std::thread::scope(|scope| {
        let write = || (0..10).for_each(|_| program.allocator.write_snapshot(&file).unwrap());
        (0..4).for_each(|_| drop(scope.spawn(write)));
        for _ in 0..20 {
            if let Ok(bytes) = std::fs::read(&file) {
                serde_json::from_slice::<serde_json::Value>(&bytes).unwrap();
            }
        }
    });
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 302);
}

#[test]
fn pytorchs_own_viewer_reads_a_snapshot() {
    crate::viewer::require_pytorchs();
    let program = Program::new("history=all");
    let block = program.get(1 << 20, Some(program.stream()));
    assert_eq!(program.snapshot("pytorch").number("active_allocated"), 1);
    program.give(block, None);
}
