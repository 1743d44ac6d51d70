//! The calls that an application makes to the allocator of a [`Bench`]; each is also reported to the order checker. The
//! tests over AscendCL include this file, too.

use std::time::{Duration, Instant};

use super::Bench;
use crate::allocator::Request;
use crate::driver::Stream;
use crate::driver::sim::model::Machine;
use crate::support::config::Kind;
use crate::support::error::Result;

impl Bench {
    /// Runs the application's own calls, which are not made to fail.
    pub(super) fn app<T>(&self, work: impl FnOnce(&Machine) -> T) -> T {
        let _exempt = self.machine.exempt();
        work(&self.machine)
    }

    pub(super) fn stream(&self) -> usize {
        self.app(|machine| machine.stream_create(true).unwrap())
    }

    pub(super) fn request(&self, size: u64, flags: u32, stream: Option<usize>) -> Result<u64> {
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

    pub(super) fn get(&self, size: u64, stream: Option<usize>) -> u64 {
        self.request(size, 0, stream).unwrap()
    }

    /// Resizes a block of `had` bytes.
    pub(super) fn resize(&self, address: u64, had: u64, size: u64) -> Result<u64> {
        let checker = self.machine.checker();
        // A block with pages of its own keeps its memory when it grows. Otherwise other callers may get some of it before
        // the call returns.
        if size >= had && !self.allocator.resize_copies(address) {
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

    pub(super) fn put(&self, address: u64, stream: Option<usize>) {
        self.machine.checker().give_back(address, stream);
        self.allocator.deallocate(address, stream.map(Stream)).unwrap();
    }

    /// Launches a kernel of one millisecond that uses a block.
    pub(super) fn launch(&self, stream: usize, address: u64, size: u64) {
        self.app(|machine| machine.launch(stream, 1_000_000, &[(address, size)]).unwrap());
    }

    pub(super) fn wrong(&self) -> Vec<String> {
        let mut wrong = self.machine.checker().violations();
        wrong.extend(self.machine.faults());
        wrong
    }

    /// All blocks were freed: checks that nothing went wrong, and that nothing is left.
    pub(super) fn finish_of(self, what: &str) {
        self.app(|machine| machine.context_synchronize()).unwrap();
        // A thread of its own reports that a graph is gone.
        self.machine.drain_user_objects();
        assert_eq!(self.wrong(), Vec::<String>::new(), "{what}");
        self.allocator.validate().unwrap_or_else(|why| panic!("{what}: {why}"));
        let stats = || self.allocator.stats(Some(0)).unwrap();
        assert_eq!((stats().allocated, stats().requested), (0, 0), "{what}: {:?}", stats());
        // Each trim waits no longer than a request may, and without context events also until a thread is scheduled.
        let at_once = Bench::REPEATS && self.allocator.driver().features().context_events;
        let tries = if at_once { 1 } else { 1000 };
        if !at_once {
            // This driver does not say that the application's captures have ended.
            self.allocator.driver().running_captures().forget();
        }
        let trim = |_: &i32| {
            let trimmed = self.allocator.trim(Some(0), 0);
            trimmed.unwrap_or_else(|why| panic!("{what}: {why}"));
            stats().reserved == 0
        };
        (0..tries).find(trim);
        assert_eq!((stats().reserved, stats().pending), (0, 0), "{what}: {:?}", stats());
        self.allocator.close();
        let (free, total) = self.app(|machine| machine.memory_info(0)).unwrap();
        assert_eq!(free, total, "{what}: memory is left");
        assert_eq!(self.wrong(), Vec::<String>::new(), "{what}");
    }
}

/// Waits at most a minute. No call of an allocator is made.
pub(super) fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits at most a minute until the simulated driver has nothing of the allocators left.
pub(super) fn wait_until_gone(machine: &Machine, what: &str) {
    wait_until(&format!("{what}: memory is left"), || {
        machine.memory_held() == [0, 0, 0]
    });
}
