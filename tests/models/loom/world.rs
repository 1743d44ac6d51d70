//! The environment of a model: threads with stacks large enough for the allocator, a simulated device, and the end of
//! each interleaving.

use std::panic::UnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::thread::JoinHandle;

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::sim::model::Machine;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::error::Result;
use trtalloc::stats::Stats;
use trtalloc::sync::breaking;

/// The stack size in words; loom's own stacks are too small for the allocator.
const STACK: usize = 1 << 16;

/// The minimum size of a block.
pub const UNIT: u64 = 512;

pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    loom::thread::Builder::new().stack_size(STACK).spawn(work).unwrap()
}

/// Runs `model` in every interleaving with at most `preemptions` switches away from a thread that could continue.
pub fn explore(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let count = Arc::new(AtomicU64::new(0));
    let (started, counted) = (std::time::Instant::now(), count.clone());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 1_000_000;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let model = model.clone();
        spawn(move || model()).join().unwrap();
    });
    let taken = started.elapsed().as_secs_f64();
    println!("{name}: {} interleavings, {taken:.1} s", count.load(Ordering::Relaxed));
}

/// Runs a model with a rule broken. Panics unless the model panics, with a message that contains any of `words`.
pub fn caught(rule: &'static str, words: &[&str], model: impl FnOnce() + UnwindSafe) {
    let Err(panic) = std::panic::catch_unwind(|| breaking(rule, model)) else {
        panic!("{rule} was broken and no model noticed")
    };
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or(panic.downcast_ref::<&str>().copied());
    let message = message.unwrap_or_default();
    assert!(
        words.iter().any(|word| message.contains(word)),
        "{rule} was noticed for another reason: {message}"
    );
}

impl Drop for World {
    /// After a failure the allocator is not closed, since loom must not be called then.
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(self.allocator.clone());
        }
    }
}

/// An allocator over one simulated device, with its application.
#[derive(Clone)]
pub struct World {
    pub machine: Arc<Machine>,
    pub allocator: Arc<Allocator>,
    context: usize,
}

impl World {
    /// Makes the world; the calling thread enters the device's context.
    pub fn new(options: &str) -> World {
        let driver = SimDriver::new(SimConfig {
            memory: 32 << 20,
            ..SimConfig::default()
        });
        let machine = driver.machine().clone();
        let context = machine.primary_retain(0).unwrap();
        machine.context_push(context).unwrap();
        let allocator = Allocator::with_driver(driver, Config::parse(options).unwrap()).unwrap();
        World {
            machine,
            allocator,
            context,
        }
    }

    /// A thread of the application.
    pub fn thread<T: Send + 'static>(&self, work: impl FnOnce(&World) -> T + Send + 'static) -> JoinHandle<T> {
        let world = self.clone();
        spawn(move || {
            world.machine.context_push(world.context).unwrap();
            work(&world)
        })
    }

    pub fn stream(&self) -> usize {
        self.machine.stream_create(true).unwrap()
    }

    pub fn allocate(&self, size: u64, stream: Option<usize>) -> Result<u64> {
        let stream_of = stream.map(Stream);
        let address = self.allocator.allocate(Request {
            size,
            alignment: 0,
            flags: 0,
            stream: stream_of,
            device: None,
        })?;
        self.machine.checker().hand_out(address, size, stream);
        Ok(address)
    }

    pub fn get(&self, size: u64, stream: usize) -> u64 {
        self.allocate(size, Some(stream)).unwrap()
    }

    /// A free by the block's owner.
    pub fn put(&self, address: u64, stream: Option<usize>) {
        self.machine.checker().give_back(address, stream);
        self.allocator.deallocate(address, stream.map(Stream)).unwrap();
    }

    /// A free by any thread; returns whether it was accepted.
    pub fn free(&self, address: u64, stream: Option<usize>) -> bool {
        self.allocator.deallocate(address, stream.map(Stream)).is_ok()
    }

    /// A kernel that uses a block.
    pub fn launch(&self, stream: usize, address: u64, size: u64) {
        self.machine.launch(stream, 1_000_000, &[(address, size)]).unwrap();
    }

    /// Streams that are new to the allocator, each with so many free blocks of a unit: its next request is a hit.
    pub fn warm<const N: usize>(&self, blocks: usize) -> [usize; N] {
        let streams = [(); N].map(|()| self.stream());
        // A stream's first miss causes memory pressure, and the next request of each other stream records a completion
        // event.
        for _ in 0..3 {
            for stream in streams {
                let held: Vec<u64> = (0..blocks).map(|_| self.get(UNIT, stream)).collect();
                held.into_iter().for_each(|block| self.put(block, Some(stream)));
            }
        }
        let before = self.stats().driver_calls;
        for stream in streams {
            let block = self.get(UNIT, stream);
            self.put(block, Some(stream));
        }
        assert_eq!(self.stats().driver_calls, before, "a hit calls no driver");
        self.allocator.reset_peaks(Some(0)).unwrap();
        streams
    }

    pub fn stats(&self) -> Stats {
        self.allocator.stats(Some(0)).unwrap()
    }

    /// Checks that nothing went wrong, and that so many bytes are allocated.
    pub fn check(&self, out: u64) {
        let mut wrong = self.machine.checker().violations();
        wrong.extend(self.machine.faults());
        assert_eq!(wrong, Vec::<String>::new());
        self.allocator.validate().unwrap();
        let stats = self.stats();
        assert_eq!((stats.allocated, stats.requested), (out, out), "bytes out: {stats:?}");
    }
}
