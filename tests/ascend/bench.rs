//! The pool's own fault sweep, over AscendCL: every driver call of a life that has everything in it, failed in turn.

use std::sync::Arc;

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::{Config, Kind};
use trtalloc::driver::Stream;
use trtalloc::driver::sim::model::Machine;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::error::Result;

use crate::over::open;
use crate::standin::process::{Installed, exclusive};

#[path = "../../src/pool/tests/faults.rs"]
mod faults;

const MIB: u64 = 1 << 20;

/// An allocator on a machine of its own, with its application; the checker hears of everything.
struct Bench {
    machine: Arc<Machine>,
    allocator: Arc<Allocator>,
    _installed: Installed,
}

impl Bench {
    /// How often is asked depends on the time that passes.
    const REPEATS: bool = false;
    /// Memory of libacl_dvpp.so's.
    const MORE: &[&str] = &["limit=192MiB,wait_ms=100,rule=ascend-media"];

    /// A device of 1 GiB. This thread enters device 0's own context.
    fn on(config: SimConfig, options: &str) -> Bench {
        let machine = SimDriver::new(SimConfig {
            memory: 1 << 30,
            version: SimConfig::default().version,
            ..config
        })
        .machine()
        .clone();
        let installed = exclusive(machine.clone());
        let driver = open(options.contains("ascend-media")).unwrap();
        machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
        // What AscendCL gives need not begin where a block of CUDA's may.
        let rule = if options.contains("passthrough") {
            ",rule=ascend"
        } else {
            ""
        };
        // Time is the host's here, and waits are few and short.
        let options = options.replace("wait_ms=100", "wait_ms=10");
        let config = Config::parse(&format!("{options}{rule}")).unwrap();
        Bench {
            allocator: Allocator::with_driver(driver, config).unwrap(),
            machine,
            _installed: installed,
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
        let stream = stream.filter(|_| self.allocator.config().kind == Kind::Device);
        self.machine.checker().hand_out(address, size, stream);
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
    }
}
