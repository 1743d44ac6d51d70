//! The stream that frees a block ends in every way, on each version of the driver. A request gets the block only once the work
//! on it is complete, and everything comes back.

use std::sync::Arc;
use std::time::Duration;

use super::{Bench, MIB, RESIZABLE};
use crate::allocator::Request;
use crate::driver::Stream;
use crate::driver::sim::SimConfig;
use crate::driver::sim::model::Machine;
use crate::support::error::Result;

const SIZE: u64 = 64 * MIB;

/// The context of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The device's primary context.
    Primary,
    /// One that the application has made.
    Own,
    /// A green one.
    Green,
    /// One of a second device, which may access the memory of the first.
    OtherDevice,
}

/// Where the work on the block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// On the stream.
    There,
    /// On a stream of the primary context, and the stream has waited for it.
    WaitedFor,
    /// On the stream that has the handle afterwards.
    OnNext,
}

/// What happens to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    None,
    Destroyed,
    /// It is destroyed, and another stream of its context gets its handle.
    Back,
    /// It is destroyed, and a stream of another context gets its handle.
    BackElsewhere,
    ContextDestroyed,
    /// Its context is destroyed. Another context gets that one's handle, and a stream of it the stream's.
    ContextBack,
}

impl End {
    fn is_of_context(self) -> bool {
        matches!(self, End::ContextDestroyed | End::ContextBack)
    }

    fn is_back(self) -> bool {
        matches!(self, End::Back | End::BackElsewhere | End::ContextBack)
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    version: u32,
    kind: Kind,
    work: Work,
    end: End,
    resizable: bool,
    /// The block was allocated on the stream, and on one of the primary context otherwise.
    own: bool,
    /// The stream asks after the free and before its end, which records a completion event.
    asks: bool,
    /// The free comes after the end.
    late: bool,
    /// The free comes from a thread whose context is the primary one.
    outside: bool,
}

impl Case {
    fn all() -> Vec<Case> {
        let mut all = Vec::new();
        for version in [11_080, 12_040, 12_090] {
            for kind in [Kind::Primary, Kind::Own, Kind::Green, Kind::OtherDevice] {
                for work in [Work::There, Work::WaitedFor, Work::OnNext] {
                    for end in [
                        End::None,
                        End::Destroyed,
                        End::Back,
                        End::BackElsewhere,
                        End::ContextDestroyed,
                        End::ContextBack,
                    ] {
                        all.extend((0..32).map(|bits| Case {
                            version,
                            kind,
                            work,
                            end,
                            resizable: bits & 1 != 0,
                            own: bits & 2 != 0,
                            asks: bits & 4 != 0,
                            late: bits & 8 != 0,
                            outside: bits & 16 != 0,
                        }));
                    }
                }
            }
        }
        all.retain(Case::is_allowed);
        all
    }

    /// Whether CUDA has it, and an application may do it.
    fn is_allowed(&self) -> bool {
        let exists = (self.kind != Kind::Green || self.version >= 12_090)
            && (self.kind != Kind::Primary || !self.end.is_of_context() && !self.outside);
        // The work of a stream goes with its context.
        let goes_on = match self.work {
            Work::There => !self.end.is_of_context(),
            Work::WaitedFor => true,
            Work::OnNext => self.late && self.end.is_back(),
        };
        // A free on a stream without an id names it to the driver, and so does that of a block of another device.
        let unnamed = self.version >= 12_000 && self.kind != Kind::OtherDevice;
        let late = match self.work {
            _ if !self.late => true,
            _ if self.asks || self.end == End::None => false,
            // The driver is not asked for the context of a block's own stream, which may be gone. The current one counts.
            Work::OnNext => !(self.own && unnamed && self.end == End::BackElsewhere && self.outside),
            Work::There => self.own && unnamed,
            // Nothing orders another stream at the handle behind that work.
            Work::WaitedFor => self.own && unnamed && !self.end.is_back(),
        };
        exists && goes_on && late
    }
}

/// What a case works with.
struct Scene {
    bench: Bench,
    case: Case,
    primary: usize,
    /// A context that the pool does not know.
    elsewhere: usize,
    /// The context that the stream, or the one that has its handle by now, belongs to.
    context: usize,
    stream: usize,
    /// A stream of the primary context.
    other: usize,
    block: u64,
}

impl Scene {
    fn new(case: Case) -> Scene {
        let config = SimConfig {
            version: case.version,
            devices: 2,
            ..SimConfig::default()
        };
        let bench = Bench::on(config, "limit=64MiB,wait_ms=1,peers=0:1");
        let primary = bench.app(|machine| machine.context_current()).unwrap();
        let elsewhere = bench.app(|machine| {
            let context = machine.context_create(0).unwrap();
            machine.context_pop().unwrap();
            context
        });
        let other = bench.stream();
        let mut scene = Scene {
            bench,
            case,
            primary,
            elsewhere,
            context: primary,
            stream: 0,
            other,
            block: 0,
        };
        scene.context = scene.make_context();
        scene.stream = scene.within(scene.context, Bench::stream);
        // A later context takes their handles for streams of its own, so that the stream's handle comes back as one of the
        // application's.
        (0..4).for_each(|_| {
            scene.within(scene.context, Bench::stream);
        });
        let (at, stream) = if case.own {
            (scene.context, scene.stream)
        } else {
            (primary, other)
        };
        let flags = if case.resizable { RESIZABLE } else { 0 };
        scene.block = scene
            .within(at, |bench| bench.of_first_device(flags, Some(stream)))
            .unwrap();
        scene
    }

    fn make_context(&self) -> usize {
        self.bench.app(|machine| {
            let context = match self.case.kind {
                Kind::Primary => return self.primary,
                Kind::Own => machine.context_create(0),
                Kind::OtherDevice => machine.context_create(1),
                Kind::Green => return machine.green_context_create(0).unwrap(),
            };
            machine.context_pop().unwrap();
            context.unwrap()
        })
    }

    /// Runs `work` with the context current.
    fn within<T>(&self, context: usize, work: impl FnOnce(&Bench) -> T) -> T {
        self.bench.app(|machine| machine.context_push(context)).unwrap();
        let outcome = work(&self.bench);
        self.bench.app(|machine| machine.context_pop()).unwrap();
        outcome
    }

    /// Lets the stream `to` wait for what is queued on `from`, which is of the context.
    fn order(&self, context: usize, from: usize, to: usize) {
        let event = self.within(context, |bench| {
            bench.app(|machine| {
                let event = machine.event_create().unwrap();
                machine.event_record(event, from).unwrap();
                event
            })
        });
        self.bench.app(|machine| machine.stream_wait_event(to, event)).unwrap();
    }

    /// Launches a kernel that uses the block until it is released, where the case says.
    fn launch(&self) -> Kernel {
        let (at, owner) = match self.case.own {
            true => (self.context, self.stream),
            false => (self.primary, self.other),
        };
        let worker = if self.case.work == Work::WaitedFor {
            self.other
        } else {
            self.stream
        };
        if worker != owner && self.case.work != Work::OnNext {
            self.order(at, owner, worker);
        }
        let launch = |machine: &Machine| machine.launch_persistent(worker, &[(self.block, SIZE)]);
        let kernel = self.bench.app(launch).unwrap();
        if worker == self.other {
            self.order(self.primary, self.other, self.stream);
        }
        Kernel(self.bench.machine.clone(), kernel)
    }

    fn free(&self) {
        // A thread cannot be in a context that is gone.
        let gone = self.case.late && self.case.end == End::ContextDestroyed;
        let at = if self.case.outside || gone {
            self.primary
        } else {
            self.context
        };
        self.within(at, |bench| {
            bench.put(self.block, Some(self.stream));
            if self.case.asks {
                bench.request(2 * SIZE, 0, Some(self.stream)).unwrap_err();
            }
        });
    }

    fn end(&mut self) {
        if self.case.end.is_of_context() {
            self.bench.app(|machine| machine.context_destroy(self.context)).unwrap();
        } else if self.case.end != End::None {
            self.bench.app(|machine| machine.stream_destroy(self.stream)).unwrap();
        }
        match self.case.end {
            End::ContextBack => {
                // A synchronization of the pool's may still have the context current.
                let context = self.context;
                let back = (0..12).any(|tries| {
                    std::thread::sleep(Duration::from_micros(100 << tries));
                    self.make_context() == context
                });
                assert!(back, "the handle comes back");
            }
            End::BackElsewhere => self.context = self.elsewhere,
            _ => {}
        }
        if self.case.end.is_back() {
            let back = (0..8).any(|_| self.within(self.context, Bench::stream) == self.stream);
            assert!(back, "the handle comes back");
        }
    }

    /// What asks while the work goes on, each in its context: without a stream, on a stream of the primary context, and on what
    /// has the stream's handle.
    fn asks(&self) {
        let latest =
            (self.case.end.is_back() || self.case.end == End::None).then_some((self.context, Some(self.stream)));
        let fresh = self.bench.stream();
        for _ in 0..2 {
            for (context, stream) in [(self.primary, None), (self.primary, Some(fresh))]
                .into_iter()
                .chain(latest)
            {
                self.within(context, |bench| {
                    // The order checker knows which work a stream is behind.
                    if let Ok(block) = bench.of_first_device(0, stream) {
                        assert!(stream.is_some(), "the work on the block is not over");
                        bench.put(block, stream);
                    }
                });
                assert_eq!(self.bench.wrong(), Vec::<String>::new(), "asked on {stream:x?}");
            }
        }
    }
}

impl Bench {
    fn of_first_device(&self, flags: u32, stream: Option<usize>) -> Result<u64> {
        let block = self.allocator.allocate(Request {
            size: SIZE,
            alignment: 0,
            flags,
            stream: stream.map(Stream),
            device: Some(0),
        })?;
        self.machine.checker().hand_out(block, SIZE, stream);
        Ok(block)
    }
}

/// Releases a kernel where the test has failed, so that nothing waits for it.
struct Kernel(Arc<Machine>, u64);

impl Drop for Kernel {
    fn drop(&mut self) {
        self.0.release_persistent(self.1);
    }
}

fn run(case: Case) {
    let mut scene = Scene::new(case);
    let kernel = if case.work == Work::OnNext {
        scene.end();
        let kernel = scene.launch();
        scene.free();
        kernel
    } else {
        let kernel = scene.launch();
        if case.late {
            scene.end();
            scene.free();
        } else {
            scene.free();
            scene.end();
        }
        kernel
    };
    scene.asks();
    drop(kernel);
    scene.bench.finish_of(&format!("{case:?}"));
}

#[test]
fn block_is_reused_after_its_work_however_its_stream_ends() {
    let all = Case::all();
    let wrong = |case: &&Case| std::panic::catch_unwind(|| run(**case)).is_err();
    let wrong: Vec<&Case> = all.iter().filter(wrong).collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), all.len());
}
