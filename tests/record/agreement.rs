//! A snapshot's history leads to its state, whatever threads do meanwhile and however little the ring holds: thousands of
//! snapshots, each gone through as PyTorch's viewer does it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::driver::sim::SimDriver;
use trtalloc::driver::{Driver, Stream};
use trtalloc::history::snapshot::Snapshot;
use trtalloc::history::state::PieceState;
use trtalloc::trace::random::Random;

use crate::common;
use crate::program::{Program, request};
use crate::replay::Seen;

/// What threads do to a pool.
struct Kind {
    name: &'static str,
    options: &'static str,
    /// The recordings that are switched between; none: there is one.
    switches: &'static [&'static str],
    /// Whether blocks are allocated and freed on streams, and not only without.
    streams: bool,
    /// Whether blocks are resized.
    resizes: bool,
    snapshots: usize,
}

/// Blocks that a thread has.
const BLOCKS: usize = 24;
/// What all threads do between two snapshots.
const STEPS: i64 = 400;

/// One of an application's threads.
struct Worker<'a> {
    allocator: &'a Allocator,
    driver: &'a SimDriver,
    kind: &'a Kind,
    random: Random,
    streams: [Stream; 2],
    held: Vec<(u64, Option<Stream>, bool)>,
}

impl Worker<'_> {
    fn stream(&mut self) -> Option<Stream> {
        let stream = self.streams[usize::from(self.random.percent(20))];
        Some(stream).filter(|_| self.kind.streams && self.random.percent(85))
    }

    fn step(&mut self) {
        let (allocator, machine) = (self.allocator, self.driver.machine());
        match self.random.below(100) {
            0..45 if self.held.len() < BLOCKS => {
                let resizable = self.kind.resizes && self.random.percent(15);
                let (most, stream) = (1 << self.random.between(9, 23), self.stream());
                let wanted = Request {
                    flags: if resizable { RESIZABLE } else { 0 },
                    ..request(self.random.between(1, most), stream)
                };
                // A limit, or a device that is full for a moment, may refuse it.
                if let Ok(address) = allocator.allocate(wanted) {
                    self.held.push((address, stream, resizable));
                }
            }
            45..50 if self.kind.streams => {
                let stream = self.streams[self.random.below(2) as usize];
                let duration = self.random.below(100_000);
                machine.launch(stream.0, duration, &[]).unwrap();
            }
            50..55 => machine.advance(self.random.below(20_000)),
            55 => {
                let _ = allocator.trim(None, self.random.below(64 << 20));
            }
            draw => {
                let Some(at) = self.held.len().checked_sub(1) else {
                    return;
                };
                let at = self.random.between(at as u64 / 2, at as u64) as usize;
                let (address, stream, resizable) = self.held[at];
                if draw < 65 && self.kind.streams {
                    let _ = allocator.record_stream(address, self.streams[1]);
                } else if draw < 75 && resizable {
                    let size = self.random.between(1, 16 << 20);
                    if let Ok(moved) = allocator.reallocate(address, 0, size) {
                        self.held[at].0 = moved;
                    }
                } else {
                    self.held.swap_remove(at);
                    let other = [stream, None, Some(self.streams[0])][self.random.below(3) as usize];
                    let on = if self.random.percent(70) { stream } else { other };
                    let on = on.filter(|_| self.kind.streams);
                    allocator.deallocate(address, on).unwrap();
                }
            }
        }
    }
}

/// Bytes asked for of what is handed out or pending, and bytes of segments, as the state has them.
fn sums(snapshot: &Snapshot, device: usize) -> (u64, u64) {
    let device = snapshot.devices.iter().find(|of| of.device as usize == device);
    let segments = device.map_or(&[][..], |device| &device.segments);
    let active = segments.iter().flat_map(|segment| &segment.pieces);
    let active = active.filter(|piece| piece.state != PieceState::Inactive);
    (
        active.map(|piece| piece.requested).sum(),
        segments.iter().map(|segment| segment.size).sum(),
    )
}

/// Events in the snapshot, and those that were left out.
fn look(snapshot: &Snapshot, file: &Path) -> (usize, u64) {
    snapshot.write(file).unwrap();
    let mut seen = Seen::read(file);
    let mut events = 0;
    for (number, device) in seen.devices.iter_mut().enumerate() {
        assert_eq!(device.sums(), sums(snapshot, number));
        if device.events() > 0 {
            assert_eq!(device.timeline(), device.sums().0, "the timeline's end");
        }
        events += device.events();
        device.back();
    }
    (events, seen.left_out)
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn agrees(kind: &Kind) {
    let program = Program::on(2, kind.options);
    let (allocator, driver) = (&*program.allocator, &*program.driver);
    // A plain run looks at a part of the thousands of snapshots.
    let snapshots = kind.snapshots / if common::in_full() { 1 } else { 4 };
    let file = common::scratch(&format!("agreement-{}", kind.name)).join("snapshot.json");
    let (context, over) = (program.application.context(), &AtomicBool::new(false));
    let left = &AtomicI64::new(0);
    let (mut random, mut events, mut left_out) = (Random::new(9), 0, 0);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let mut worker = Worker {
                allocator,
                driver,
                kind,
                random: Random::new(thread + 1),
                streams: [program.stream(), program.stream()],
                held: Vec::new(),
            };
            scope.spawn(move || {
                driver.context_push(context).unwrap();
                while !over.load(Ordering::Relaxed) {
                    if left.fetch_sub(1, Ordering::Relaxed) > 0 {
                        worker.step();
                    } else {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
                driver.context_pop().unwrap();
            });
        }
        // Also where this panics.
        let _over = Over(over);
        for round in 0..snapshots {
            // In the middle of some steps.
            left.store(STEPS, Ordering::Relaxed);
            let until = random.below(STEPS as u64) as i64;
            while left.load(Ordering::Relaxed) > until {
                std::thread::yield_now();
            }
            let snapshot = allocator.snapshot().unwrap();
            let of = look(&snapshot, &file);
            (events, left_out) = (events + of.0, left_out + of.1);
            if !kind.switches.is_empty() {
                let next = kind.switches[round % kind.switches.len()];
                allocator.history(next).unwrap();
            }
        }
    });
    println!("{}: {events} events, {left_out} left out", kind.name);
    assert!(events > snapshots, "{}: {events} events", kind.name);
    assert!(
        left_out == 0 || kind.resizes,
        "{}: {left_out} of {events} left out",
        kind.name
    );
    allocator.validate().unwrap();
    look(&allocator.snapshot().unwrap(), &file);
}

#[test]
fn a_ring_that_holds_little() {
    for (name, options) in [
        ("one", "history=all,max_entries=1"),
        ("few", "history=all,max_entries=20"),
        ("some", "history=all,max_entries=150"),
        ("malloc", "history=all,max_entries=100,backing=malloc"),
        ("limit", "history=all,max_entries=200,limit=64MiB,wait_ms=0"),
    ] {
        agrees(&Kind {
            name,
            options,
            switches: &[],
            streams: true,
            resizes: false,
            snapshots: 200,
        });
    }
}

/// The viewer has no streams then, and what events map does not become one with what is there at the end.
#[test]
fn requests_without_streams_agree() {
    for (name, options) in [
        ("streamless", "history=all,max_entries=300"),
        ("streamless-malloc", "history=all,max_entries=300,backing=malloc"),
    ] {
        agrees(&Kind {
            name,
            options,
            switches: &[],
            streams: false,
            resizes: name == "streamless",
            snapshots: 150,
        });
    }
}

#[test]
fn blocks_are_resized() {
    for (name, options) in [
        ("resized", "history=all,max_entries=200"),
        ("resized-malloc", "history=all,max_entries=200,backing=malloc"),
    ] {
        agrees(&Kind {
            name,
            options,
            switches: &[],
            streams: true,
            resizes: true,
            snapshots: 200,
        });
    }
}

#[test]
fn recording_is_switched() {
    agrees(&Kind {
        name: "switched",
        options: "history=all,max_entries=200",
        switches: &[
            "all,max_entries=200",
            "state",
            "all,max_entries=50",
            "off",
            "all,max_entries=50",
            "all,max_entries=50,device=1",
            "all,max_entries=50",
        ],
        streams: true,
        resizes: true,
        snapshots: 400,
    });
}
