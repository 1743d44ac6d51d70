//! A driver over the host's malloc, written after docs/add-a-driver.md. In the crate this folder
//! would be `src/driver/toy`.
//!
//! There is one device, with one context, which is always current. Work completes when it is queued, except while the
//! device is held. A stream's handle is never used again, so it serves as the stream's id.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use trtalloc::driver::{
    Context, Descriptor, DeviceInfo, Driver, DriverError, Event, Failure, Features, Result, Stream, Tools,
};

/// What the registry's line names.
pub static DRIVER: Descriptor = Descriptor {
    advice: |_| "The toy driver has no errors but a full device.",
    ..Descriptor::new("toy", |_| Ok(Arc::new(ToyDriver::default())))
};

/// The device's memory in bytes.
pub const TOTAL: u64 = 64 << 20;
/// The alignment of memory from `malloc`.
const ALIGNMENT: usize = 512;
/// The first handle of a stream: the ones below name default streams.
const FIRST_STREAM: usize = 16;
const CONTEXT: Context = Context(1);

/// The toy. Clones of the `Arc` are one device.
#[derive(Default)]
pub struct ToyDriver {
    /// Bytes by address.
    memory: Mutex<HashMap<u64, u64>>,
    streams: AtomicUsize,
    /// Pieces of work that were queued, and how many of them have completed.
    queued: AtomicU64,
    completed: AtomicU64,
    held: AtomicBool,
    /// For each event, how many pieces of work it waits for. An event's handle is its index and 1; `None` was destroyed.
    events: Mutex<Vec<Option<u64>>>,
}

fn failed<T>(call: &'static str, failure: Failure) -> Result<T> {
    Err(DriverError { call, code: 1, failure })
}

fn layout(bytes: u64) -> Layout {
    Layout::from_size_align(bytes as usize, ALIGNMENT).expect("a size that malloc has checked")
}

impl ToyDriver {
    /// Bytes that are allocated.
    pub fn allocated(&self) -> u64 {
        self.memory.lock().unwrap().values().sum()
    }

    /// Events that exist.
    pub fn events(&self) -> usize {
        self.events.lock().unwrap().iter().flatten().count()
    }

    /// From now on work does not complete.
    pub fn hold(&self) {
        self.held.store(true, SeqCst);
    }

    /// Completes all work that was queued, and ends [`ToyDriver::hold`].
    pub fn complete(&self) {
        self.held.store(false, SeqCst);
        self.completed.store(self.queued.load(SeqCst), SeqCst);
    }

    /// Counts a piece of work, whose effect is there already.
    fn work(&self) -> Result<()> {
        self.queued.fetch_add(1, SeqCst);
        if !self.held.load(SeqCst) {
            self.complete();
        }
        Ok(())
    }

    /// Sets what an event that exists waits for, or destroys it.
    fn set(&self, event: Event, to: Option<u64>) -> Result<()> {
        match self.events.lock().unwrap().get_mut(event.0.wrapping_sub(1)) {
            Some(slot @ Some(_)) => *slot = to,
            _ => return failed("event", Failure::Other),
        }
        Ok(())
    }
}

impl Driver for ToyDriver {
    fn name(&self) -> &'static str {
        DRIVER.name
    }
    fn features(&self) -> Features {
        Features {
            stream_ids: true,
            context_events: true,
            user_objects: false,
        }
    }
    fn tools(&self) -> Option<&dyn Tools> {
        Some(self)
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }
    fn device_info(&self, _: i32) -> Result<DeviceInfo> {
        Ok(DeviceInfo {
            name: "toy".into(),
            total: TOTAL,
            granularity: (0, 0),
            virtual_memory: false,
        })
    }
    fn memory_info(&self, _: i32) -> Result<(u64, u64)> {
        Ok((TOTAL - self.allocated(), TOTAL))
    }

    fn current_context(&self) -> Result<Option<Context>> {
        Ok(Some(CONTEXT))
    }
    fn current_device(&self) -> Result<Option<i32>> {
        Ok(Some(0))
    }
    fn primary_retain(&self, _: i32) -> Result<Context> {
        Ok(CONTEXT)
    }
    fn primary_release(&self, _: i32) -> Result<()> {
        Ok(())
    }
    fn primary_active(&self, _: i32) -> Result<bool> {
        Ok(true)
    }
    fn context_id(&self, _: Context) -> Result<u64> {
        Ok(1)
    }
    fn context_push(&self, _: Context) -> Result<()> {
        Ok(())
    }
    fn context_pop(&self) -> Result<()> {
        Ok(())
    }
    fn context_record_event(&self, _: Context, event: Event) -> Result<()> {
        self.set(event, Some(self.queued.load(SeqCst)))
    }
    fn context_synchronize(&self) -> Result<()> {
        self.complete();
        Ok(())
    }

    fn stream_id(&self, stream: Stream) -> Result<u64> {
        Ok(stream.0 as u64)
    }
    fn stream_context(&self, _: Stream) -> Result<Context> {
        Ok(CONTEXT)
    }
    /// The streams run in the order in which work is queued on any of them, so there is nothing to wait for.
    fn stream_wait_event(&self, _: Stream, _: Event) -> Result<()> {
        Ok(())
    }

    fn event_create(&self) -> Result<Event> {
        let mut events = self.events.lock().unwrap();
        events.push(Some(0));
        Ok(Event(events.len()))
    }
    fn event_destroy(&self, event: Event) -> Result<()> {
        self.set(event, None)
    }
    fn event_record(&self, event: Event, _: Stream) -> Result<()> {
        self.set(event, Some(self.queued.load(SeqCst)))
    }
    fn event_query(&self, event: Event) -> Result<bool> {
        match self.events.lock().unwrap().get(event.0.wrapping_sub(1)) {
            Some(Some(recorded)) => Ok(*recorded <= self.completed.load(SeqCst)),
            _ => failed("event_query", Failure::Other),
        }
    }

    fn malloc(&self, size: u64) -> Result<u64> {
        let mut memory = self.memory.lock().unwrap();
        if size == 0 || memory.values().sum::<u64>().saturating_add(size) > TOTAL {
            return failed("malloc", Failure::OutOfMemory);
        }
        // SAFETY: the size is not 0.
        let address = unsafe { alloc(layout(size)) };
        if address.is_null() {
            return failed("malloc", Failure::OutOfMemory);
        }
        let address = address.expose_provenance() as u64;
        memory.insert(address, size);
        Ok(address)
    }
    /// As `cuMemFree`, waits for the device.
    fn free(&self, address: u64) -> Result<()> {
        self.complete();
        let Some(size) = self.memory.lock().unwrap().remove(&address) else {
            return failed("free", Failure::Other);
        };
        // SAFETY: `malloc` returned this address for this size, and it was not freed before.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(address as usize), layout(size)) };
        Ok(())
    }
    fn copy_async(&self, to: u64, from: u64, bytes: u64, _: Stream) -> Result<()> {
        let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
        let to = std::ptr::with_exposed_provenance_mut(to as usize);
        // SAFETY: the caller owns both ranges, which lie in memory of `malloc`.
        unsafe { std::ptr::copy(from, to, bytes as usize) };
        self.work()
    }
    fn fill_async(&self, address: u64, byte: u8, bytes: u64, _: Stream) -> Result<()> {
        let address = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the caller owns the range, which lies in memory of `malloc`.
        unsafe { address.write_bytes(byte, bytes as usize) };
        self.work()
    }
}

impl Tools for ToyDriver {
    fn description(&self) -> String {
        "a toy over malloc".into()
    }
    fn create_stream(&self) -> Result<Stream> {
        Ok(Stream(FIRST_STREAM + self.streams.fetch_add(1, SeqCst)))
    }
    fn destroy_stream(&self, _: Stream) -> Result<()> {
        Ok(())
    }
    fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()> {
        self.fill_async(address, 0, bytes, stream)
    }
}
