//! A device, an allocator on it, and the expected statistics. Every call of a case goes through here, so the order
//! checker is notified of it, and [`World::finish`] can check that nothing is lost.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use trtalloc::allocator::RESIZABLE;
use trtalloc::driver::Features;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::pool::rounding::RoundingRule;
use trtalloc::stats::Stats;

use crate::device::{Cuda, Device, Sim};
use crate::interface::{self, Interface, Over, Way};
use crate::over::open;
use crate::standin::process::{Installed, exclusive};

/// The number of simulated devices.
pub const DEVICES: u32 = 2;
/// The memory of each device in bytes.
pub const MEMORY: u64 = 8 << 30;

/// The number of attempts for a request that depends on the speed of another thread.
const RETRIES: u32 = 50;

/// The place and the interface of a case.
pub struct Setup {
    way: Way,
    over: Over,
    device: Arc<dyn Device>,
    /// While this lives, AscendCL's functions act on this machine.
    installed: Option<Installed>,
}

impl Setup {
    pub fn ascend(way: Way) -> Setup {
        let simulated = SimDriver::new(SimConfig {
            devices: DEVICES,
            memory: MEMORY,
            ..SimConfig::default()
        });
        let installed = exclusive(simulated.machine().clone());
        let driver = open(false).expect("the stand-in has every function");
        Setup {
            way,
            over: Over::Driver(driver),
            device: Arc::new(Sim(simulated)),
            installed: Some(installed),
        }
    }

    pub fn sim(way: Way, version: u32) -> Setup {
        let driver = SimDriver::new(SimConfig {
            devices: DEVICES,
            memory: MEMORY,
            version,
            ..SimConfig::default()
        });
        Setup {
            way,
            over: Over::Driver(driver.clone()),
            device: Arc::new(Sim(driver)),
            installed: None,
        }
    }

    pub fn cuda(way: Way) -> Setup {
        Setup {
            way,
            over: Over::Cuda,
            device: Arc::new(Cuda::new()),
            installed: None,
        }
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Makes device 0 current to this thread, and makes an allocator with `options`.
    pub fn world(&self, options: &str) -> World {
        self.device.enter(0);
        self.outside(options)
    }

    /// As [`Setup::world`], without a current context.
    pub fn outside(&self, options: &str) -> World {
        self.make(options, None, RoundingRule::CUDA)
    }

    /// Makes an allocator over external memory.
    pub fn over(&self, base: usize, bytes: u64, options: &str, rule: RoundingRule) -> World {
        self.make(options, Some((base as u64, bytes)), rule)
    }

    /// Makes an allocator with a rounding rule of its own over the driver's memory.
    pub fn by_rule(&self, options: &str, rule: RoundingRule) -> World {
        self.device.enter(0);
        self.make(options, None, rule)
    }

    fn make(&self, options: &str, given: Option<(u64, u64)>, rule: RoundingRule) -> World {
        // AscendCL's allocations may begin where a block by CUDA's rule may not.
        if self.installed.is_some() && options.contains("passthrough=1") {
            let (options, ascend) = (
                options.replace("passthrough=1", "passthrough=1,rule=ascend"),
                RoundingRule::ascend(32, 64),
            );
            return self.made(&options, given, ascend);
        }
        self.made(options, given, rule)
    }

    fn made(&self, options: &str, given: Option<(u64, u64)>, rule: RoundingRule) -> World {
        World {
            device: self.device.clone(),
            interface: interface::open(self.way, &self.over, options, given),
            rule,
            given: given.is_some(),
            checked: !options.contains("streams=trusted"),
            pinned: options.contains("kind=pinned"),
            patient: !options.contains("wait_ms=0"),
            captured: AtomicBool::new(false),
            copies: options.contains("backing=malloc") || options.contains("passthrough=1"),
            books: Mutex::default(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Live {
    size: u64,
    device: i32,
}

#[derive(Default)]
struct Books {
    live: HashMap<usize, Live>,
    allocations: u64,
    frees: u64,
    reallocations: u64,
    reallocations_in_place: u64,
    copied: u64,
}

/// An allocator and its application.
pub struct World {
    device: Arc<dyn Device>,
    interface: Box<dyn Interface>,
    rule: RoundingRule,
    given: bool,
    checked: bool,
    /// The host may write to an allocated block at once, whatever the stream.
    pinned: bool,
    /// Requests may wait.
    patient: bool,
    /// Whether there was a capture.
    captured: AtomicBool,
    /// Whether resizing copies, because there is no virtual memory.
    copies: bool,
    books: Mutex<Books>,
}

/// The application's side.
impl Deref for World {
    type Target = dyn Device;

    fn deref(&self) -> &(dyn Device + 'static) {
        &*self.device
    }
}

impl World {
    /// The allocator, without any checks.
    pub fn interface(&self) -> &dyn Interface {
        &*self.interface
    }

    /// The optional functions that the driver has.
    pub fn features(&self) -> Features {
        self.interface.inside().driver().features()
    }

    /// Default streams: both numbers of the context's and, where threads have a default stream, the thread's.
    pub fn default_streams(&self) -> &'static [usize] {
        match self.interface.inside().driver().name() {
            "ascend" => &[0, 1],
            _ => &[0, 1, 2],
        }
    }

    /// The bytes that a block of `size` takes.
    pub fn carved(&self, size: u64) -> u64 {
        self.rule.stride(size).unwrap()
    }

    pub fn begin_capture(&self, stream: usize) {
        self.captured.store(true, Ordering::Relaxed);
        self.device.begin_capture(stream);
    }

    /// Whether memory of captures stays for the process's life, because the driver does not report the end of a graph.
    pub fn keeps_captures(&self) -> bool {
        self.captured.load(Ordering::Relaxed) && !self.features().user_objects
    }

    /// Whether a closed allocator returns all its memory.
    fn returns_all(&self) -> bool {
        let synchronises = self.features().context_events || self.patient;
        !self.given && !self.keeps_captures() && synchronises
    }

    fn told(&self, address: usize, size: u64, device: i32, stream: Option<usize>) -> usize {
        if address == 0 {
            return 0;
        }
        // The checker does not know this memory, or a promise replaces its rules.
        if let Some(machine) = self.device.machine().filter(|_| self.checked) {
            machine.checker().hand_out(
                address as u64,
                self.rule.extent(size).unwrap(),
                stream.filter(|_| !self.pinned),
            );
        }
        let mut books = self.books.lock().unwrap();
        books.allocations += 1;
        let before = books.live.insert(address, Live { size, device });
        assert!(before.is_none(), "{address:#x} was handed out twice");
        address
    }

    /// Allocates without a stream on the current device; 0 if refused.
    pub fn try_get(&self, size: u64, alignment: u64, flags: u32) -> usize {
        self.told(self.interface.allocate(size, alignment, flags), size, 0, None)
    }

    /// Repeats `attempt` for seconds while it is refused. Without context events, a thread of the library waits for
    /// memory, and its speed depends on the load of the machine.
    fn persist(&self, attempt: impl Fn() -> usize) -> usize {
        let again = if self.features().context_events { 0 } else { RETRIES };
        (0..again)
            .map(|_| attempt())
            .find(|address| *address != 0)
            .unwrap_or_else(&attempt)
    }

    pub fn get(&self, size: u64) -> usize {
        self.get_aligned(size, 0)
    }

    pub fn get_flagged(&self, size: u64, flags: u32) -> usize {
        let address = self.persist(|| self.try_get(size, 0, flags));
        assert_ne!(address, 0, "{size} bytes: {}", self.interface.last_error());
        address
    }

    pub fn get_aligned(&self, size: u64, alignment: u64) -> usize {
        let address = self.persist(|| self.try_get(size, alignment, 0));
        assert_ne!(address, 0, "{size} bytes: {}", self.interface.last_error());
        address
    }

    /// Allocates for a stream; 0 if refused.
    pub fn try_get_on(&self, stream: usize, size: u64, alignment: u64, flags: u32) -> usize {
        let address = self.interface.allocate_async(size, alignment, flags, stream);
        self.told(address, size, 0, Some(stream))
    }

    pub fn get_on(&self, stream: usize, size: u64) -> usize {
        let address = self.persist(|| self.try_get_on(stream, size, 0, 0));
        assert_ne!(address, 0, "{size} bytes: {}", self.interface.last_error());
        address
    }

    /// Allocates without a stream on `device`, which is current.
    pub fn get_there(&self, device: i32, size: u64) -> usize {
        let address = self.persist(|| self.told(self.interface.allocate(size, 0, 0), size, device, None));
        assert_ne!(address, 0, "{size} bytes on {device}: {}", self.interface.last_error());
        address
    }

    /// Allocates for a stream on a device by its number; `theirs`: the stream is another device's.
    pub fn get_of(&self, device: i32, stream: usize, size: u64, theirs: bool) -> usize {
        let address = self.persist(|| {
            let taken = self.interface.allocate_on(device, size, stream);
            self.told(taken, size, device, Some(stream).filter(|_| !theirs))
        });
        assert_ne!(address, 0, "{size} bytes on {device}: {}", self.interface.last_error());
        address
    }

    pub fn get_resizable(&self, size: u64) -> usize {
        self.get_flagged(size, RESIZABLE)
    }

    fn gone(&self, address: usize, stream: Option<usize>) {
        let mut books = self.books.lock().unwrap();
        books.live.remove(&address).expect("the block is out");
        books.frees += 1;
        drop(books);
        if let Some(machine) = self.device.machine().filter(|_| self.checked) {
            machine.checker().give_back(address as u64, stream);
        }
    }

    pub fn put(&self, address: usize) {
        self.gone(address, None);
        assert!(self.interface.deallocate(address), "{}", self.interface.last_error());
    }

    pub fn put_on(&self, stream: usize, address: usize) {
        self.gone(address, Some(stream));
        assert!(
            self.interface.deallocate_async(address, stream),
            "{}",
            self.interface.last_error()
        );
    }

    /// Resizes a block and returns its new address; 0 if refused.
    pub fn try_resize(&self, address: usize, size: u64) -> usize {
        let machine = self.device.machine();
        // Others may get the old place of a copied block before the call returns.
        let begun = machine.filter(|_| self.copies).and_then(|machine| {
            let books = self.books.lock().unwrap();
            let had = books.live.get(&address)?.size;
            Some((machine.checker().begin_resize(address as u64), had))
        });
        let new = self.interface.reallocate(address, 0, size);
        match (machine, begun) {
            (Some(machine), Some((begun, had))) => {
                let (now, size) = if new == 0 { (address, had) } else { (new, size) };
                machine.checker().end_resize(begun, now as u64, size);
            }
            (Some(machine), None) if new != 0 => machine.checker().resize(address as u64, new as u64, size),
            _ => {}
        }
        if new == 0 {
            return 0;
        }
        let mut books = self.books.lock().unwrap();
        books.reallocations += 1;
        books.reallocations_in_place += u64::from(new == address);
        let old = books.live.remove(&address).expect("the block is out");
        books.copied += if self.copies && new != address {
            old.size.min(size)
        } else {
            0
        };
        books.live.insert(new, Live { size, ..old });
        new
    }

    pub fn resize(&self, address: usize, size: u64) -> usize {
        let new = self.persist(|| self.try_resize(address, size));
        assert_ne!(new, 0, "{size} bytes: {}", self.interface.last_error());
        new
    }

    /// Declares a use on another stream.
    pub fn record(&self, address: usize, stream: usize) {
        assert_eq!(
            self.interface.record_stream(address, stream),
            0,
            "{}",
            self.interface.last_error()
        );
        if let Some(machine) = self.device.machine() {
            machine.checker().used(address as u64, stream);
        }
    }

    /// The statistics of device 0.
    pub fn stats(&self) -> Stats {
        self.interface.stats(0)
    }

    /// Trims device 0 and returns the bytes released.
    pub fn trim(&self, keep: u64) -> u64 {
        let (status, released) = self.interface.trim(0, keep);
        assert_eq!(status, 0, "{}", self.interface.last_error());
        released
    }

    /// Runs `work` on another thread in device 0's context.
    pub fn on_thread<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let entered = || {
                self.enter(0);
                let result = work();
                self.leave();
                result
            };
            scope
                .spawn(entered)
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Whether the first and the last bytes of a block are `byte`.
    pub fn holds(&self, address: usize, bytes: u64, byte: u8) -> bool {
        let edge = bytes.min(4096);
        let same = |at: usize| self.read(at, edge).iter().all(|found| *found == byte);
        same(address) && same(address + (bytes - edge) as usize)
    }

    /// Queues work on the first and the last bytes of a block.
    pub fn write_edges(&self, stream: usize, address: usize, bytes: u64, byte: u8) {
        let edge = bytes.min(4096);
        self.write(stream, address, edge, byte);
        self.write(stream, address + (bytes - edge) as usize, edge, byte);
    }

    /// Checks that the statistics match the calls, and that the allocator's parts are consistent.
    pub fn check_books(&self) {
        let books = self.books.lock().unwrap();
        let (mut counts, mut copied) = ([0; 4], 0);
        for device in 0..self.device.count() {
            let stats = self.interface.stats(device);
            let here = || books.live.values().filter(|live| live.device == device);
            let requested: u64 = here().map(|live| live.size).sum();
            let allocated: u64 = here().map(|live| self.rule.stride(live.size).unwrap()).sum();
            assert_eq!((stats.requested, stats.allocated), (requested, allocated), "{stats:?}");
            assert!(stats.allocated + stats.pending <= stats.reserved, "{stats:?}");
            assert_eq!(
                stats.allocated + stats.pending + stats.cached,
                stats.reserved,
                "{stats:?}"
            );
            assert!(stats.allocated_peak >= stats.allocated && stats.reserved_peak >= stats.reserved);
            copied += stats.bytes_copied;
            counts[0] += stats.allocations;
            counts[1] += stats.frees;
            counts[2] += stats.reallocations;
            counts[3] += stats.reallocations_in_place;
        }
        let expected = [
            books.allocations,
            books.frees,
            books.reallocations,
            books.reallocations_in_place,
        ];
        assert_eq!(copied, books.copied, "bytes copied");
        assert_eq!(counts, expected, "allocations, frees, reallocations, in place");
        self.interface.inside().validate().unwrap();
    }

    /// Ends a case: releases everything, and checks that nothing is left and nothing was wrong.
    pub fn finish(self) {
        self.check_books();
        if !self.entered() {
            self.enter(0);
        }
        let live: Vec<usize> = self.books.lock().unwrap().live.keys().copied().collect();
        live.into_iter().for_each(|address| self.put(address));
        self.check_books();
        for device in 0..self.device.count() {
            let stats = self.trimmed(device);
            assert_eq!((stats.allocated, stats.requested), (0, 0), "{stats:?}");
            if self.keeps_captures() {
                continue;
            }
            // Without context events, what was freed without a stream waits until its memory is needed.
            if !self.features().context_events && (self.given || !self.patient) {
                continue;
            }
            assert_eq!(stats.pending, 0, "{stats:?}");
            if !self.given {
                assert_eq!((stats.reserved, stats.cached), (0, 0), "{stats:?}");
            }
        }
        self.check_books();
        self.interface.close();
        assert_eq!(self.interface.allocate(64, 0, 0), 0, "closed");
        self.right();
        if let Some(machine) = self.device.machine().filter(|_| self.returns_all()) {
            for device in 0..self.device.count() {
                let (free, total) = machine.memory_info(device).unwrap();
                assert_eq!(free, total, "memory is left on device {device}");
            }
            assert_eq!(machine.checker().live_blocks(), 0);
        }
    }

    /// The statistics after everything that can be released was. A driver reports the end of a graph later, on a thread
    /// of its own, and no call waits for that. For a driver without context events, a thread of the library waits.
    fn trimmed(&self, device: i32) -> Stats {
        let context_events = self.features().context_events;
        let at_once = context_events && self.device.machine().is_some();
        for again in (0..RETRIES).rev() {
            let (status, _) = self.interface.trim(device, 0);
            assert_eq!(status, 0, "{}", self.interface.last_error());
            let stats = self.interface.stats(device);
            if again == 0 || stats.pending == 0 || self.keeps_captures() || at_once {
                return stats;
            }
            if !context_events && (self.given || !self.patient) {
                return stats;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        unreachable!("the last round returns")
    }

    /// Checks that nothing was allocated, and no memory taken away, against the rules.
    pub fn right(&self) {
        if let Some(machine) = self.device.machine() {
            assert_eq!(machine.checker().violations(), Vec::<String>::new());
            assert_eq!(machine.faults(), Vec::<String>::new());
        }
    }
}
