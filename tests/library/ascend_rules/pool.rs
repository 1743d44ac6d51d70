//! A pool over a piece of this process's memory, through the C functions.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, CString, c_void};

use trtalloc::ffi::c::*;

/// HostMemory whose address is known to be a multiple of `PAGE`.
pub struct HostMemory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: an address. Threads that use it write to different parts.
unsafe impl Sync for HostMemory {}

pub const PAGE: usize = 4096;

impl HostMemory {
    pub fn new(bytes: usize) -> HostMemory {
        let layout = Layout::from_size_align(bytes, PAGE).unwrap();
        // SAFETY: the size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null());
        HostMemory { start, layout }
    }

    pub fn address(&self) -> usize {
        self.start as usize
    }

    /// Writes `byte` to `bytes` bytes at `address`, which lie inside.
    pub fn fill(&self, address: usize, bytes: u64, byte: u8) {
        // SAFETY: checked to lie inside; tests write to what they own.
        unsafe { self.at(address, bytes).write_bytes(byte, bytes as usize) }
    }

    /// Whether all `bytes` bytes at `address` are `byte`.
    pub fn is(&self, address: usize, bytes: u64, byte: u8) -> bool {
        // SAFETY: checked to lie inside; other threads do not write to the caller's bytes.
        let found = unsafe { std::slice::from_raw_parts(self.at(address, bytes), bytes as usize) };
        found.iter().all(|found| *found == byte)
    }

    fn at(&self, address: usize, bytes: u64) -> *mut u8 {
        let offset = address.checked_sub(self.address()).expect("the address lies inside");
        assert!(
            offset + bytes as usize <= self.layout.size(),
            "{address:#x} lies inside"
        );
        // SAFETY: inside the allocation.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: from `alloc_zeroed` with this layout.
        unsafe { dealloc(self.start, self.layout) }
    }
}

/// An allocator over a part of some memory.
pub struct Pool(*mut trtalloc_allocator);

// SAFETY: handles are safe from any thread.
unsafe impl Sync for Pool {}

impl Pool {
    /// Creates a pool over `bytes` bytes at `base`, or returns the status and the reason.
    pub fn over(base: usize, bytes: u64, options: &str) -> Result<Pool, (trtalloc_status, String)> {
        // These tests cause many refusals; TRTALLOC_LOG shows them.
        if std::env::var_os("TRTALLOC_LOG").is_none() {
            trtalloc::log::init(trtalloc::config::LogLevel::Off);
        }
        let options = CString::new(options).unwrap();
        let mut out = std::ptr::null_mut();
        // SAFETY: a C string and a place to write to. The memory outlives the pool, and the pool does not touch it.
        match unsafe { trtalloc_create_from(base as *mut c_void, bytes, options.as_ptr(), &mut out) } {
            trtalloc_status::Ok => Ok(Pool(out)),
            status => {
                assert!(out.is_null());
                Err((status, last_error()))
            }
        }
    }

    /// Allocates a block; 0 where it is refused.
    pub fn get(&self, size: u64, alignment: u64) -> usize {
        // SAFETY: a handle.
        unsafe { trtalloc_allocate(self.0, size, alignment, 0) as usize }
    }

    pub fn put(&self, block: usize) -> bool {
        // SAFETY: a handle.
        unsafe { trtalloc_deallocate(self.0, block as *mut c_void) }
    }

    pub fn get_on(&self, stream: usize, size: u64) -> usize {
        // SAFETY: a handle.
        unsafe { trtalloc_allocate_async(self.0, size, 0, 0, stream as *mut c_void) as usize }
    }

    pub fn put_on(&self, stream: usize, block: usize) -> bool {
        // SAFETY: a handle.
        unsafe { trtalloc_deallocate_async(self.0, block as *mut c_void, stream as *mut c_void) }
    }

    pub fn record(&self, stream: usize, block: usize) -> trtalloc_status {
        // SAFETY: a handle.
        unsafe { trtalloc_record_stream(self.0, block as *mut c_void, stream as *mut c_void) }
    }

    pub fn release(&self, stream: usize) -> trtalloc_status {
        // SAFETY: a handle.
        unsafe { trtalloc_stream_release(self.0, stream as *mut c_void) }
    }

    pub fn trim(&self) -> u64 {
        let mut released = 1;
        // SAFETY: a handle and a place to write to.
        let status = unsafe { trtalloc_trim(self.0, -1, 0, &mut released) };
        assert_eq!(status, trtalloc_status::Ok, "{}", last_error());
        released
    }

    pub fn stats(&self) -> trtalloc_stats {
        let mut stats = trtalloc_stats::default();
        // SAFETY: a handle and a place to write to.
        let status = unsafe { trtalloc_stats_get(self.0, -1, &mut stats, size_of::<trtalloc_stats>()) };
        assert_eq!(status, trtalloc_status::Ok, "{}", last_error());
        stats
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: a handle.
        unsafe { trtalloc_destroy(self.0) }
    }
}

pub fn last_error() -> String {
    // SAFETY: a C string, valid until this thread's next failure.
    unsafe { CStr::from_ptr(trtalloc_last_error()) }
        .to_string_lossy()
        .into_owned()
}
