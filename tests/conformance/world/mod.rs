//! A device, an allocator on it, and the expected statistics. Every call of a case goes through here, so the order
//! checker is notified of it, and [`World::finish`] can check that nothing is lost.

mod checks;
mod setup;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use trtalloc::allocator::RESIZABLE;
use trtalloc::driver::Features;
use trtalloc::pool::rounding::RoundingRule;
use trtalloc::stats::Stats;

use crate::device::{Device, Mode};
use crate::interface::Interface;

pub use setup::Setup;

/// The number of simulated devices.
pub const DEVICES: u32 = 2;
/// The memory of each device in bytes. A pool reserves eight times as many addresses, and an emulator has notes of each of
/// their pages.
pub fn memory() -> u64 {
    if crate::common::is_emulated() { 2 << 30 } else { 8 << 30 }
}

/// The number of attempts for a request that depends on the speed of another thread.
const RETRIES: u32 = 50;

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
    external: bool,
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

    pub fn is_ascend(&self) -> bool {
        self.interface.inside().driver().name() == "ascend"
    }

    /// Default streams: both numbers of the context's and, where threads have a default stream, the thread's.
    pub fn default_streams(&self) -> &'static [usize] {
        if self.is_ascend() { &[0, 1] } else { &[0, 1, 2] }
    }

    pub fn begin_capture(&self, stream: usize) {
        self.begin_capture_in(stream, Mode::Relaxed);
    }

    pub fn begin_capture_in(&self, stream: usize, mode: Mode) {
        self.captured.store(true, Ordering::Relaxed);
        self.device.begin_capture_in(stream, mode);
    }

    /// Whether memory of captures stays for the process's life, because the driver does not report the end of a graph.
    pub fn keeps_captures(&self) -> bool {
        self.captured.load(Ordering::Relaxed) && !self.features().user_objects
    }

    /// Whether a closed allocator returns all its memory.
    fn returns_all(&self) -> bool {
        let synchronises = self.features().context_events || self.patient;
        !self.external && !self.keeps_captures() && synchronises
    }

    fn handed_out(&self, address: usize, size: u64, device: i32, stream: Option<usize>) -> usize {
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
        self.handed_out(self.interface.allocate(size, alignment, flags), size, 0, None)
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
        self.handed_out(address, size, 0, Some(stream))
    }

    pub fn get_on(&self, stream: usize, size: u64) -> usize {
        let address = self.persist(|| self.try_get_on(stream, size, 0, 0));
        assert_ne!(address, 0, "{size} bytes: {}", self.interface.last_error());
        address
    }

    /// Allocates without a stream on `device`, which is current.
    pub fn get_there(&self, device: i32, size: u64) -> usize {
        let address = self.persist(|| self.handed_out(self.interface.allocate(size, 0, 0), size, device, None));
        assert_ne!(address, 0, "{size} bytes on {device}: {}", self.interface.last_error());
        address
    }

    /// Allocates for a stream on a device by its number; `theirs`: the stream is another device's.
    pub fn get_of(&self, device: i32, stream: usize, size: u64, theirs: bool) -> usize {
        let address = self.persist(|| {
            let taken = self.interface.allocate_on(device, size, stream);
            self.handed_out(taken, size, device, Some(stream).filter(|_| !theirs))
        });
        assert_ne!(address, 0, "{size} bytes on {device}: {}", self.interface.last_error());
        address
    }

    pub fn get_resizable(&self, size: u64) -> usize {
        self.get_flagged(size, RESIZABLE)
    }

    fn freed(&self, address: usize, stream: Option<usize>) {
        let mut books = self.books.lock().unwrap();
        books.live.remove(&address).expect("the block is out");
        books.frees += 1;
        drop(books);
        if let Some(machine) = self.device.machine().filter(|_| self.checked) {
            machine.checker().give_back(address as u64, stream);
        }
    }

    pub fn put(&self, address: usize) {
        self.freed(address, None);
        assert!(self.interface.deallocate(address), "{}", self.interface.last_error());
    }

    pub fn put_on(&self, stream: usize, address: usize) {
        self.freed(address, Some(stream));
        assert!(
            self.interface.deallocate_async(address, stream),
            "{}",
            self.interface.last_error()
        );
    }

    /// Resizes a block and returns its new address; 0 if refused.
    pub fn try_resize(&self, address: usize, size: u64) -> usize {
        let machine = self.device.machine();
        let copies = self.copies || self.interface.inside().resize_copies(address as u64);
        // Others may get the old place of a copied block before the call returns.
        let begun = machine.filter(|_| copies).and_then(|machine| {
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
        books.copied += if copies && new != address {
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
}
