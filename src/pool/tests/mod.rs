//! The pool under the order checker of the simulated device: that a broken rule is noticed, that no call of the driver
//! can fail so that something is lost, and what becomes of memory whose stream or context is gone.

use std::sync::Arc;

use crate::allocator::{Allocator, RESIZABLE, Request};
use crate::config::Config;
use crate::driver::Stream;
use crate::driver::sim::model::Machine;
use crate::driver::sim::{SimConfig, SimDriver};
use crate::error::Result;

mod broken_rules;
mod deaths;
mod faults;
mod nameless;
mod resizing;
mod steady;

const MIB: u64 = 1 << 20;

/// An allocator on a machine of its own, with its application; the checker hears of everything.
struct Bench {
    machine: Arc<Machine>,
    allocator: Arc<Allocator>,
}

impl Bench {
    /// The same requests always make the same calls.
    const REPEATS: bool = true;
    /// Options that calls are made to fail under, besides those of every driver.
    const MORE: &[&str] = &[];

    fn new(options: &str) -> Bench {
        Bench::on(SimConfig::default(), options)
    }

    /// A device of 1 GiB.
    fn on(config: SimConfig, options: &str) -> Bench {
        let memory = 1 << 30;
        Bench::over(SimConfig { memory, ..config }, options)
    }

    /// This thread enters device 0's primary context.
    fn over(config: SimConfig, options: &str) -> Bench {
        let driver = SimDriver::new(config);
        let machine = driver.machine().clone();
        let context = machine.primary_retain(0).unwrap();
        machine.context_push(context).unwrap();
        Bench {
            allocator: Allocator::with_driver(driver, Config::parse(options).unwrap()).unwrap(),
            machine,
        }
    }

    /// What the application does itself: its calls are not made to fail.
    fn app<T>(&self, work: impl FnOnce(&Machine) -> T) -> T {
        let _exempt = self.machine.exempt();
        work(&self.machine)
    }

    fn stream(&self) -> usize {
        self.app(|machine| machine.stream_create(true).unwrap())
    }

    fn request(&self, size: u64, flags: u32, stream: Option<usize>) -> Result<u64> {
        let address = self.allocator.allocate(Request {
            size,
            alignment: 0,
            flags,
            stream: stream.map(Stream),
            device: None,
        })?;
        // The host may write to pinned memory at once, whatever the stream.
        let on_stream = self.allocator.config().kind == crate::config::Kind::Device;
        self.machine
            .checker()
            .hand_out(address, size, stream.filter(|_| on_stream));
        Ok(address)
    }

    fn get(&self, size: u64, stream: Option<usize>) -> u64 {
        self.request(size, 0, stream).unwrap()
    }

    /// Resizes a block of `had` bytes.
    fn resize(&self, address: u64, had: u64, size: u64) -> Result<u64> {
        let checker = self.machine.checker();
        // Grown where it is mapped, a block keeps its memory; else some of it may be anybody's before the call returns.
        if size >= had && self.machine.memory_at(address).is_some_and(|at| at.handle != 0) {
            let new = self.allocator.reallocate(address, 0, size)?;
            checker.resize(address, new, size);
            return Ok(new);
        }
        let begun = checker.begin_resize(address);
        let outcome = self.allocator.reallocate(address, 0, size);
        let (new, size) = outcome.as_ref().map_or((address, had), |new| (*new, size));
        checker.end_resize(begun, new, size);
        outcome
    }

    fn put(&self, address: u64, stream: Option<usize>) {
        self.machine.checker().give_back(address, stream);
        self.allocator.deallocate(address, stream.map(Stream)).unwrap();
    }

    /// A kernel of a millisecond that uses a block.
    fn launch(&self, stream: usize, address: u64, size: u64) {
        self.app(|machine| machine.launch(stream, 1_000_000, &[(address, size)]).unwrap());
    }

    /// Takes `count` blocks for a stream, uses each, and frees them all.
    fn use_and_free(&self, stream: usize, count: u64, size: u64) -> Vec<u64> {
        let blocks: Vec<u64> = (0..count).map(|_| self.get(size, Some(stream))).collect();
        for block in &blocks {
            self.launch(stream, *block, size);
        }
        blocks.iter().for_each(|block| self.put(*block, Some(stream)));
        blocks
    }

    fn wrong(&self) -> Vec<String> {
        let mut wrong = self.machine.checker().violations();
        wrong.extend(self.machine.faults());
        wrong
    }

    /// Nothing was wrong, and with everything given back nothing is left.
    fn finish(self) {
        self.app(|machine| machine.context_synchronize()).unwrap();
        assert_eq!(self.wrong(), Vec::<String>::new());
        self.allocator.validate().unwrap();
        let stats = self.allocator.stats(Some(0)).unwrap();
        assert_eq!((stats.allocated, stats.requested), (0, 0), "{stats:?}");
        self.allocator.trim(Some(0), 0).unwrap();
        let stats = self.allocator.stats(Some(0)).unwrap();
        assert_eq!((stats.reserved, stats.pending), (0, 0), "{stats:?}");
        self.allocator.close();
        let (free, total) = self.app(|machine| machine.memory_info(0)).unwrap();
        assert_eq!(free, total, "memory is left");
        assert_eq!(self.wrong(), Vec::<String>::new());
    }
}
