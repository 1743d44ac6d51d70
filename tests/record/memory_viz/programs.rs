//! Programs whose snapshots are looked at.

use std::sync::atomic::{AtomicBool, Ordering};

use trtalloc::allocator::Request;
use trtalloc::driver::{Driver, Stream};
use trtalloc::error::Error;
use trtalloc::history::snapshot::Snapshot;
use trtalloc::trace::generate::generate;
use trtalloc::trace::random::Random;
use trtalloc::trace::{OpKind, Trace, csv};

use super::{Expected, Viewer};
use crate::common;
use crate::program::{Program, path, request};

/// One inference: activations in stack order on a stream.
#[inline(never)]
fn infer_once(program: &Program, stream: Stream, rows: u64) {
    let held: Vec<u64> = (1..8)
        .map(|layer| program.get(rows * layer * 10_000, Some(stream)))
        .collect();
    for address in held.into_iter().rev() {
        program.give(address, Some(stream));
    }
}

#[test]
fn inference_with_stacks_and_tags() {
    let mut viewer = Viewer::start("inference");
    let program = Program::new("history=all,stacks=native");
    let stream = program.stream();
    trtalloc::tags::set(Some("weights")).unwrap();
    let weights: Vec<u64> = (1..6).map(|of| program.get(of << 22, None)).collect();
    trtalloc::tags::set(Some("activations")).unwrap();
    let output = program.get_resizable(1 << 20, Some(stream)).unwrap();
    (1..20).for_each(|rows| infer_once(&program, stream, rows));
    let last = program.get(123_456, Some(stream));
    trtalloc::tags::set(None).unwrap();
    viewer.look(&program, "inference", &[0]);
    viewer.show("Active Memory Timeline", 0);
    let text = viewer.hovered("polygon", "one => one.size === 5 << 22");
    assert!(
        text.contains("(20971520 bytes) allocation") && text.contains("stream 0"),
        "{text}"
    );
    assert!(
        text.contains("memory_viz/programs.rs") && text.contains("inference_with_stacks_and_tags"),
        "{text}"
    );
    let text = viewer.hovered("polygon", "one => one.size === 19 * 7 * 10000");
    assert!(text.contains("infer_once"), "{text}");
    let most: u64 = (1..6).map(|of| of << 22).sum::<u64>() + (1 << 20) + (1..8).map(|of| 19 * of * 10_000).sum::<u64>();
    assert!(
        text.contains(&format!(
            "Total memory used after allocation: {:.1}MiB ({most} bytes)",
            most as f64 / 1048576.0
        )),
        "{text}"
    );
    viewer.show("Allocator State History", 0);
    let text = viewer.hovered(
        "svg rect",
        &format!("one => one.addr === {} && one.requested_size", weights[4]),
    );
    assert!(
        text.contains("(20971520 bytes) allocation") && text.contains("inference_with_stacks_and_tags"),
        "{text}"
    );
    for address in weights {
        program.give(address, None);
    }
    program.give(output, Some(stream));
    program.give(last, Some(stream));
    program.application.synchronize().unwrap();
    program.allocator.trim(None, 0).unwrap();
    viewer.look(&program, "inference-over", &[0]);
}

/// The first rows of a trace, up to the last allocation among them. What the viewer draws is what the trace asks for.
fn replayed(viewer: &mut Viewer, name: &str, trace: &Trace, rows: usize) {
    let program = Program::new("history=all,max_entries=1000000");
    let streams: Vec<Stream> = trace.streams().iter().map(|_| program.stream()).collect();
    let ops = &trace.ops()[..rows.min(trace.ops().len())];
    let end = ops
        .iter()
        .rposition(|op| matches!(op.kind, OpKind::Alloc { .. }))
        .unwrap()
        + 1;
    let mut held = vec![(0, 0); trace.blocks()];
    let (mut now, mut most) = (0, 0);
    for op in &ops[..end] {
        let stream = op.stream.map(|stream| streams[stream as usize]);
        let (address, bytes) = &mut held[op.block as usize];
        now -= *bytes;
        (*address, *bytes) = match op.kind {
            OpKind::Alloc { resizable: true } => (program.get_resizable(op.bytes, stream).unwrap(), op.bytes),
            OpKind::Alloc { .. } => (program.get(op.bytes, stream), op.bytes),
            OpKind::Realloc => (program.allocator.reallocate(*address, 0, op.bytes).unwrap(), op.bytes),
            OpKind::Free => {
                program.give(*address, stream);
                (0, 0)
            }
        };
        now += *bytes;
        most = most.max(now);
    }
    viewer.look(&program, name, &[0]);
    viewer.show("Active Memory Timeline", 0);
    let drawn = viewer
        .browser
        .number("process_alloc_data(Object.values(snapshot_cache)[0], 0, false, 15000).max_size");
    // What other streams have yet to be done with is drawn until then.
    assert!(
        drawn as u64 == most || streams.len() > 1 && drawn as u64 > most,
        "{name}: {drawn} {most}"
    );
}

#[test]
fn traces() {
    let mut viewer = Viewer::start("traces");
    for name in ["serving", "growing", "varying", "streams"] {
        replayed(&mut viewer, name, &generate(name, 1).unwrap(), 1500);
    }
    let recorded = common::root().join("../shared/traces/training_step.csv.gz");
    if recorded.exists() {
        replayed(&mut viewer, "training_step", &csv::open(&recorded).unwrap(), 4000);
    }
}

#[test]
fn several_streams_with_pending_blocks() {
    let mut viewer = Viewer::start("pending");
    let program = Program::new("history=all,wait_ms=0");
    let streams = [program.stream(), program.stream()];
    let machine = program.driver.machine();
    let kernels = streams.map(|stream| machine.launch_persistent(stream.0, &[]).unwrap());
    let blocks: Vec<u64> = (1..30u64)
        .map(|of| program.get(of * 300_000, Some(streams[of as usize % 2])))
        .collect();
    for (at, address) in blocks.iter().enumerate().filter(|(at, _)| at % 3 > 0) {
        if at % 2 == 0 {
            program.allocator.record_stream(*address, streams[1]).unwrap();
        }
        program.give(*address, [Some(streams[0]), None][at / 3 % 2]);
    }
    let waits = Expected::of(&program.allocator.snapshot().unwrap(), 0).blocks.1;
    assert!(waits > 5, "{waits}");
    viewer.look(&program, "pending", &[0]);
    // Afresh: going back in time, the viewer forgets for good what was pending.
    viewer.open(&path("memory_viz-pending.pickle"));
    viewer.show("Allocator State History", 0);
    viewer.browser.wait_for("info().includes('reserved')");
    let text = viewer.hovered("svg rect", "one => one.free_requested && one.requested_size > 5e6");
    assert!(text.contains("block freed but waiting"), "{text}");
    assert!(kernels.into_iter().all(|kernel| machine.release_persistent(kernel)));
    program.application.synchronize().unwrap();
    for (_, address) in blocks.iter().enumerate().filter(|(at, _)| at % 3 == 0) {
        program.give(*address, Some(streams[0]));
    }
    viewer.look(&program, "pending-done", &[0]);
    program.application.synchronize().unwrap();
    program.allocator.trim(None, 0).unwrap();
    viewer.look(&program, "pending-over", &[0]);
}

/// The viewer does not draw a pending block that was handed out before the first recorded event.
#[test]
fn pending_blocks_that_a_ring_forgot() {
    let mut viewer = Viewer::start("forgotten");
    let program = Program::new("history=all,wait_ms=0,max_entries=30");
    let streams = [program.stream(), program.stream()];
    let machine = program.driver.machine();
    let kernel = machine.launch_persistent(streams[1].0, &[]).unwrap();
    let blocks: Vec<u64> = (1..7).map(|of| program.get(of << 20, Some(streams[0]))).collect();
    for address in &blocks {
        program.allocator.record_stream(*address, streams[1]).unwrap();
    }
    for (at, address) in blocks.iter().enumerate() {
        program.give(*address, Some(streams[0]));
        // Of the first, their frees are forgotten too.
        (0..5).for_each(|of| {
            program.get((at as u64 * 5 + of + 1) << 10, Some(streams[0]));
        });
    }
    assert_eq!(Expected::of(&program.allocator.snapshot().unwrap(), 0).blocks.1, 6);
    viewer.look(&program, "forgotten", &[0]);
    assert!(viewer.ends_with_an_allocation(0));
    assert!(machine.release_persistent(kernel));
}

#[test]
fn out_of_memory() {
    let mut viewer = Viewer::start("oom");
    let file = path("memory_viz-refused.pickle");
    let _ = std::fs::remove_file(&file);
    let options = format!("history=all,limit=64MiB,wait_ms=0,snapshot_on_oom={}", file.display());
    let program = Program::new(&options);
    let stream = Some(program.stream());
    let _held: Vec<u64> = (1..5).map(|of| program.get(of << 22, stream)).collect();
    let refusal = program.allocator.allocate(request(48 << 20, stream)).unwrap_err();
    assert!(matches!(refusal, Error::OutOfMemory(_)), "{refusal}");
    viewer.open(&file);
    viewer.show("Allocator State History", 0);
    viewer.browser.wait_for("info().includes('reserved')");
    let events = viewer
        .browser
        .text("[...shown().querySelectorAll('pre')].map(one => one.textContent).join('\\n')");
    assert!(
        events.contains("OOM (requested 48.0MiB (50331648 bytes), CUDA has "),
        "{events}"
    );
    viewer.picture("refused", 0);
    viewer.look(&program, "oom", &[0]);
}

#[test]
fn a_resizable_blocks_life() {
    let mut viewer = Viewer::start("resizable");
    for options in ["history=all", "history=all,backing=malloc"] {
        let program = Program::new(options);
        let stream = Some(program.stream());
        let other = program.get(9 << 20, stream);
        let mut address = program.get_resizable(1 << 20, stream).unwrap();
        for size in [3 << 20, 60 << 20, 5 << 20, 300 << 20] {
            address = program.allocator.reallocate(address, 0, size).unwrap();
            viewer.look(&program, &format!("resizable-{}", size >> 20), &[0]);
        }
        viewer.show("Allocator State History", 0);
        let text = viewer.hovered("svg rect", "one => one.requested_size === 300 << 20");
        assert!(text.contains("300.0MiB (314572800 bytes) allocation"), "{text}");
        program.give(address, stream);
        program.give(other, None);
        viewer.look(&program, "resizable-freed", &[0]);
        program.application.synchronize().unwrap();
        program.allocator.trim(None, 0).unwrap();
        viewer.look(&program, "resizable-over", &[0]);
    }
}

#[test]
fn other_kinds_of_memory_and_dropped_events_are_shown() {
    let mut viewer = Viewer::start("kinds");
    for (name, options) in [
        ("malloc", "history=all,backing=malloc"),
        ("passthrough", "history=all,passthrough=1"),
        ("guard", "history=all,guard=1"),
        ("overflow", "history=all,max_entries=100"),
        ("overflow-malloc", "history=all,max_entries=70,backing=malloc"),
        ("state", "history=state,stacks=native"),
        ("off", ""),
    ] {
        let program = Program::new(options);
        let stream = Some(program.stream());
        // Where nothing is recorded, and nothing held, the viewer has no device to show.
        if options.contains("all") {
            viewer.look(&program, &format!("{name}-nothing"), &[]);
        }
        let mut held: Vec<u64> = (1..40).map(|of| program.get(of * 300_001, stream)).collect();
        for round in 0..60 {
            let at = round * 7 % held.len();
            program.give(held.swap_remove(at), [stream, None][round % 2]);
            held.push(program.get((round as u64 % 40 + 1) * 250_000, stream));
        }
        viewer.look(&program, name, &[0]);
        held.drain(..).for_each(|address| program.give(address, stream));
        program.application.synchronize().unwrap();
        program.allocator.trim(None, 0).unwrap();
        let devices: &[i32] = if options.contains("all") { &[0] } else { &[] };
        viewer.look(&program, &format!("{name}-over"), devices);
    }
}

#[test]
fn two_devices() {
    let mut viewer = Viewer::start("devices");
    let program = Program::on(3, "history=all");
    let get = |device, size| {
        let request = Request {
            device: Some(device),
            ..request(size, None)
        };
        program.allocator.allocate(request).unwrap()
    };
    let second: Vec<u64> = (1..9).map(|of| get(2, of << 20)).collect();
    viewer.look(&program, "third-device", &[2]);
    program.give(second[3], None);
    (1..5).for_each(|of| {
        get(0, of << 21);
    });
    viewer.look(&program, "two-devices", &[0, 2]);
}

#[test]
fn a_graphs_memory() {
    let mut viewer = Viewer::start("graph");
    let program = Program::new("history=all");
    let stream = program.stream();
    program.driver.machine().stream_begin_capture(stream.0, 0).unwrap();
    let blocks: Vec<u64> = (1..5).map(|of| program.get(of << 20, Some(stream))).collect();
    program.give(blocks[1], Some(stream));
    program.give(blocks[2], None);
    viewer.look(&program, "graph", &[0]);
}

/// What happened while nothing was recorded is missing in the middle: it is filled in, or what cannot be is left out.
#[test]
fn a_history_with_a_gap() {
    let mut viewer = Viewer::start("gap");
    for (name, options) in [("gap", "history=all"), ("gap-malloc", "history=all,backing=malloc")] {
        let program = Program::new(options);
        let stream = Some(program.stream());
        let mut held: Vec<u64> = (1..20).map(|of| program.get(of << 20, stream)).collect();
        program.allocator.history("off").unwrap();
        held.drain(5..15).for_each(|address| program.give(address, stream));
        viewer.look(&program, &format!("{name}-off"), &[0]);
        program.application.synchronize().unwrap();
        program.allocator.trim(None, 0).unwrap();
        held.extend((1..8).map(|of| program.get(of << 21, None)));
        viewer.look(&program, &format!("{name}-trimmed"), &[0]);
        program.allocator.history("all").unwrap();
        held.drain(..10).for_each(|address| program.give(address, stream));
        held.push(program.get(1000, stream));
        viewer.look(&program, &format!("{name}-again"), &[0]);
    }
}

#[test]
fn while_threads_allocate() {
    let mut viewer = Viewer::start("threads");
    let program = Program::new("history=all,max_entries=3000");
    let over = AtomicBool::new(false);
    let context = program.application.context();
    let snapshots: Vec<Snapshot> = std::thread::scope(|scope| {
        for thread in 1..4 {
            let (allocator, driver, over) = (&program.allocator, &program.driver, &over);
            let stream = Some(program.stream());
            scope.spawn(move || {
                driver.context_push(context).unwrap();
                let mut random = Random::new(thread);
                let mut held = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    if held.len() < 30 && random.percent(55) {
                        held.push(allocator.allocate(request(random.between(1, 5 << 20), stream)).unwrap());
                    } else if let Some(address) = held.pop() {
                        let on = stream.filter(|_| random.percent(80));
                        allocator.deallocate(address, on).unwrap();
                    } else if random.percent(1) {
                        allocator.trim(None, 0).unwrap();
                    }
                }
                driver.context_pop().unwrap();
            });
        }
        let snapshots = (0..4).map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(30));
            program.allocator.snapshot().unwrap()
        });
        let snapshots = snapshots.collect();
        over.store(true, Ordering::Relaxed);
        snapshots
    });
    for (number, snapshot) in snapshots.iter().enumerate() {
        viewer.look_at(snapshot, &format!("threads-{number}"));
    }
    viewer.look(&program, "threads-over", &[0]);
}
