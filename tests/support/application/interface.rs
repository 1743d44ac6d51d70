//! The interfaces: Rust, the C functions, and the C++ virtual functions as TensorRT calls them.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::{Driver, Stream};
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::c::{self, trtalloc_allocator, trtalloc_status};
use trtalloc::ffi::tensorrt::client::Client;
use trtalloc::stats::Stats;

/// The interface that a case uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Rust,
    C,
    /// `nvinfer1::IGpuAllocator`. Calls that this interface lacks go through C.
    Vtable,
}

/// An allocator as its users see it. Addresses and streams are numbers. 0 is no address, and the default stream.
pub trait Interface: Send + Sync {
    fn allocate(&self, size: u64, alignment: u64, flags: u32) -> usize;
    fn allocate_async(&self, size: u64, alignment: u64, flags: u32, stream: usize) -> usize;
    fn allocate_on(&self, device: i32, size: u64, stream: usize) -> usize;
    fn reallocate(&self, address: usize, alignment: u64, new_size: u64) -> usize;
    fn deallocate(&self, address: usize) -> bool;
    fn deallocate_async(&self, address: usize, stream: usize) -> bool;
    /// Status 0 means success, here and below.
    fn record_stream(&self, address: usize, stream: usize) -> i32;
    fn stream_release(&self, stream: usize) -> i32;
    fn stats(&self, device: i32) -> Stats;
    fn reset_peaks(&self, device: i32) -> i32;
    fn trim(&self, device: i32, keep: u64) -> (i32, u64);
    fn set_limit(&self, device: i32, bytes: u64) -> i32;
    fn close(&self);
    fn last_error(&self) -> String;
    /// The allocator behind the interface, for its self-check.
    fn inside(&self) -> &Allocator;
}

/// The driver that an allocator is made over.
pub enum Over {
    /// A driver that is already open.
    Driver(Arc<dyn Driver>),
    /// The driver that `driver=cuda` finds.
    Cuda,
}

/// Makes an allocator with `options`, over the external memory `external` if there is any.
pub fn open(way: Way, over: &Over, options: &str, external: Option<(u64, u64)>) -> Box<dyn Interface> {
    match (way, over) {
        (Way::Rust, over) => Box::new(Rust(in_rust(over, options, external))),
        // The test makes the simulated device, so the allocator over it is made in Rust and used through C.
        (_, Over::Driver(_)) => functions(
            way,
            std::ptr::from_ref(ExportedAllocator::new(in_rust(over, options, external))),
        ),
        (_, Over::Cuda) => {
            let text = CString::new(format!("driver=cuda,{options}")).expect("options have no null byte");
            let mut out = std::ptr::null_mut();
            let status = match external {
                // SAFETY: a C string, and a local variable to write to.
                None => unsafe { c::trtalloc_create(text.as_ptr(), &mut out) },
                // SAFETY: as above; the memory is the test's and outlives the allocator.
                Some((base, bytes)) => unsafe {
                    c::trtalloc_create_from(base as *mut c_void, bytes, text.as_ptr(), &mut out)
                },
            };
            assert_eq!(status, trtalloc_status::Ok, "{options}: {}", last_error());
            functions(way, out.cast::<ExportedAllocator>())
        }
    }
}

fn in_rust(over: &Over, options: &str, external: Option<(u64, u64)>) -> Arc<Allocator> {
    let prefix = if matches!(over, Over::Cuda) { "driver=cuda," } else { "" };
    let config = Config::parse(&format!("{prefix}{options}")).expect("the options can be read");
    let made = match (over, external) {
        (Over::Driver(driver), None) => Allocator::with_driver(driver.clone(), config),
        (Over::Driver(driver), Some((base, bytes))) => Allocator::over_with_driver(driver.clone(), base, bytes, config),
        (Over::Cuda, None) => Allocator::from_config(config),
        (Over::Cuda, Some((base, bytes))) => Allocator::over(base, bytes, config),
    };
    made.unwrap_or_else(|error| panic!("{options}: {error}"))
}

fn functions(way: Way, exported: *const ExportedAllocator) -> Box<dyn Interface> {
    // SAFETY: handles are never freed.
    let exported = unsafe { &*exported };
    let c = C { exported };
    match way {
        Way::Vtable => Box::new(Vtable {
            client: Client::new(exported).expect("there is an adapter"),
            c,
        }),
        _ => Box::new(c),
    }
}

fn last_error() -> String {
    // SAFETY: a C string, valid until this thread's next failure.
    unsafe { CStr::from_ptr(c::trtalloc_last_error()) }
        .to_string_lossy()
        .into_owned()
}

struct Rust(Arc<Allocator>);

/// Returns a value, or stores the reason as the C functions do and returns the default.
fn logged<T: Default>(result: trtalloc::error::Result<T>) -> T {
    result.unwrap_or_else(|error| {
        trtalloc::error::remember(&error);
        T::default()
    })
}

fn status(result: trtalloc::error::Result<()>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            trtalloc::error::remember(&error);
            error.status()
        }
    }
}

fn ordinal(device: i32) -> Option<i32> {
    (device != -1).then_some(device)
}

impl Rust {
    fn get(&self, size: u64, alignment: u64, flags: u32, stream: Option<usize>, device: Option<i32>) -> usize {
        let request = Request {
            size,
            alignment,
            flags,
            stream: stream.map(Stream),
            device,
        };
        logged(self.0.allocate(request)) as usize
    }
}

impl Interface for Rust {
    fn allocate(&self, size: u64, alignment: u64, flags: u32) -> usize {
        self.get(size, alignment, flags, None, None)
    }

    fn allocate_async(&self, size: u64, alignment: u64, flags: u32, stream: usize) -> usize {
        self.get(size, alignment, flags, Some(stream), None)
    }

    fn allocate_on(&self, device: i32, size: u64, stream: usize) -> usize {
        self.get(size, 0, 0, Some(stream), ordinal(device))
    }

    fn reallocate(&self, address: usize, alignment: u64, new_size: u64) -> usize {
        logged(self.0.reallocate(address as u64, alignment, new_size)) as usize
    }

    fn deallocate(&self, address: usize) -> bool {
        status(self.0.deallocate(address as u64, None)) == 0
    }

    fn deallocate_async(&self, address: usize, stream: usize) -> bool {
        status(self.0.deallocate(address as u64, Some(Stream(stream)))) == 0
    }

    fn record_stream(&self, address: usize, stream: usize) -> i32 {
        status(self.0.record_stream(address as u64, Stream(stream)))
    }

    fn stream_release(&self, stream: usize) -> i32 {
        status(self.0.stream_release(Stream(stream)))
    }

    fn stats(&self, device: i32) -> Stats {
        self.0.stats(ordinal(device)).expect("the device has figures")
    }

    fn reset_peaks(&self, device: i32) -> i32 {
        status(self.0.reset_peaks(ordinal(device)))
    }

    fn trim(&self, device: i32, keep: u64) -> (i32, u64) {
        match self.0.trim(ordinal(device), keep) {
            Ok(released) => (0, released),
            Err(error) => (status(Err(error)), 0),
        }
    }

    fn set_limit(&self, device: i32, bytes: u64) -> i32 {
        status(self.0.set_limit(ordinal(device), bytes))
    }

    fn close(&self) {
        self.0.close();
    }

    fn last_error(&self) -> String {
        last_error()
    }

    fn inside(&self) -> &Allocator {
        &self.0
    }
}

#[derive(Clone, Copy)]
struct C {
    exported: &'static ExportedAllocator,
}

impl C {
    fn pointer(&self) -> *mut trtalloc_allocator {
        std::ptr::from_ref(self.exported).cast_mut().cast()
    }
}

fn memory(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

impl Interface for C {
    fn allocate(&self, size: u64, alignment: u64, flags: u32) -> usize {
        // SAFETY: the handle is never freed, here and in all calls below.
        unsafe { c::trtalloc_allocate(self.pointer(), size, alignment, flags) }.addr()
    }

    fn allocate_async(&self, size: u64, alignment: u64, flags: u32, stream: usize) -> usize {
        // SAFETY: as above; the stream exists, or the test is about one that does not.
        unsafe { c::trtalloc_allocate_async(self.pointer(), size, alignment, flags, memory(stream)) }.addr()
    }

    fn allocate_on(&self, device: i32, size: u64, stream: usize) -> usize {
        // SAFETY: as above.
        unsafe { c::trtalloc_allocate_on(self.pointer(), device, size, 0, 0, memory(stream)) }.addr()
    }

    fn reallocate(&self, address: usize, alignment: u64, new_size: u64) -> usize {
        // SAFETY: as above.
        unsafe { c::trtalloc_reallocate(self.pointer(), memory(address), alignment, new_size) }.addr()
    }

    fn deallocate(&self, address: usize) -> bool {
        // SAFETY: as above.
        unsafe { c::trtalloc_deallocate(self.pointer(), memory(address)) }
    }

    fn deallocate_async(&self, address: usize, stream: usize) -> bool {
        // SAFETY: as above.
        unsafe { c::trtalloc_deallocate_async(self.pointer(), memory(address), memory(stream)) }
    }

    fn record_stream(&self, address: usize, stream: usize) -> i32 {
        // SAFETY: as above.
        unsafe { c::trtalloc_record_stream(self.pointer(), memory(address), memory(stream)) as i32 }
    }

    fn stream_release(&self, stream: usize) -> i32 {
        // SAFETY: as above.
        unsafe { c::trtalloc_stream_release(self.pointer(), memory(stream)) as i32 }
    }

    fn stats(&self, device: i32) -> Stats {
        let mut out = c::trtalloc_stats::default();
        let size = size_of::<c::trtalloc_stats>();
        // SAFETY: as above, and a local variable of that size to write to.
        let status = unsafe { c::trtalloc_stats_get(self.pointer(), device, &mut out, size) };
        assert_eq!(status, trtalloc_status::Ok, "{}", last_error());
        Stats {
            allocated: out.allocated,
            allocated_peak: out.allocated_peak,
            requested: out.requested,
            cached: out.cached,
            pending: out.pending,
            reserved: out.reserved,
            reserved_peak: out.reserved_peak,
            limit: out.limit,
            allocations: out.allocations,
            frees: out.frees,
            reallocations: out.reallocations,
            reallocations_in_place: out.reallocations_in_place,
            out_of_memory: out.out_of_memory,
            driver_calls: out.driver_calls,
            driver_queries: out.driver_queries,
            bytes_copied: out.bytes_copied,
            remaps: out.remaps,
            // The later fields are times and what others hold, which no two calls have in common.
            ..Stats::default()
        }
    }

    fn reset_peaks(&self, device: i32) -> i32 {
        // SAFETY: as above.
        unsafe { c::trtalloc_stats_reset_peaks(self.pointer(), device) as i32 }
    }

    fn trim(&self, device: i32, keep: u64) -> (i32, u64) {
        let mut released = 0;
        // SAFETY: as above, and a local variable to write to.
        let status = unsafe { c::trtalloc_trim(self.pointer(), device, keep, &mut released) };
        (status as i32, released)
    }

    fn set_limit(&self, device: i32, bytes: u64) -> i32 {
        // SAFETY: as above.
        unsafe { c::trtalloc_set_limit(self.pointer(), device, bytes) as i32 }
    }

    fn close(&self) {
        // SAFETY: as above.
        unsafe { c::trtalloc_destroy(self.pointer()) };
    }

    fn last_error(&self) -> String {
        last_error()
    }

    fn inside(&self) -> &Allocator {
        self.exported.existing().expect("the allocator is there")
    }
}

struct Vtable {
    client: Client,
    c: C,
}

impl Interface for Vtable {
    fn allocate(&self, size: u64, alignment: u64, flags: u32) -> usize {
        self.client.allocate(size, alignment, flags)
    }

    fn allocate_async(&self, size: u64, alignment: u64, flags: u32, stream: usize) -> usize {
        self.client.allocate_async(size, alignment, flags, stream)
    }

    fn allocate_on(&self, device: i32, size: u64, stream: usize) -> usize {
        self.c.allocate_on(device, size, stream)
    }

    fn reallocate(&self, address: usize, alignment: u64, new_size: u64) -> usize {
        self.client.reallocate(address, alignment, new_size)
    }

    fn deallocate(&self, address: usize) -> bool {
        self.client.deallocate(address)
    }

    fn deallocate_async(&self, address: usize, stream: usize) -> bool {
        self.client.deallocate_async(address, stream)
    }

    fn record_stream(&self, address: usize, stream: usize) -> i32 {
        self.c.record_stream(address, stream)
    }

    fn stream_release(&self, stream: usize) -> i32 {
        self.c.stream_release(stream)
    }

    fn stats(&self, device: i32) -> Stats {
        self.c.stats(device)
    }

    fn reset_peaks(&self, device: i32) -> i32 {
        self.c.reset_peaks(device)
    }

    fn trim(&self, device: i32, keep: u64) -> (i32, u64) {
        self.c.trim(device, keep)
    }

    fn set_limit(&self, device: i32, bytes: u64) -> i32 {
        self.c.set_limit(device, bytes)
    }

    fn close(&self) {
        self.c.close();
    }

    fn last_error(&self) -> String {
        last_error()
    }

    fn inside(&self) -> &Allocator {
        self.c.inside()
    }
}
