//! The time of the driver's own allocators, for comparison. It is meaningful only on a GPU.

use std::ffi::{CStr, c_void};

use trtalloc::driver::Stream;
use trtalloc::error::Result;

use super::time::{SIZE, nanoseconds};
use super::{Bench, Row};

/// `cuMemAlloc` and `cuMemFree`, and the driver's stream-ordered allocator.
pub fn pairs(bench: &Bench) -> Result<Vec<Row>> {
    let rows = ["cuMemAlloc and cuMemFree", "cuMemAllocAsync and cuMemFreeAsync"];
    if bench.device.is_simulated() {
        return Ok(rows.map(|what| Row::printed(what, "not here: a GPU's".into())).into());
    }
    // They cost microseconds to milliseconds.
    let count = (bench.arguments.pairs / 2000).max(5);
    let driver = bench.device.driver();
    driver.free(driver.malloc(SIZE)?)?;
    let plain = nanoseconds(count, || {
        driver.malloc(SIZE).and_then(|block| driver.free(block)).is_ok()
    })?;
    let stream = bench.device.application().create_stream()?;
    let ordered = match StreamOrdered::find() {
        Some(functions) => match functions.pair(stream) {
            Ok(()) => nanoseconds(count, || functions.pair(stream).is_ok()).map(|time| format!("{time:.0} ns")),
            Err(code) => Ok(format!("refused: CUDA error {code}")),
        },
        None => Ok("not in this driver".into()),
    };
    bench.device.application().destroy_stream(stream)?;
    let [first, second] = rows;
    Ok(vec![
        Row::printed(first, format!("{plain:.0} ns")),
        Row::printed(second, ordered?),
    ])
}

/// The driver's stream-ordered allocator (CUDA 11.2).
struct StreamOrdered {
    allocate: unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> u32,
    free: unsafe extern "C" fn(u64, *mut c_void) -> u32,
}

impl StreamOrdered {
    /// Looks its functions up; `None` where the driver lacks them.
    fn find() -> Option<StreamOrdered> {
        // SAFETY: a terminated name; the library is the one that the bench's driver has open already.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let find = |name: &CStr| {
            // SAFETY: an open library, which is never closed, and a terminated name.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let (allocate, free) = (find(c"cuMemAllocAsync")?, find(c"cuMemFreeAsync")?);
        // SAFETY: the documented types of these two functions; CUresult is passed as an unsigned int.
        unsafe {
            Some(StreamOrdered {
                allocate: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> u32>(
                    allocate,
                ),
                free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, *mut c_void) -> u32>(free),
            })
        }
    }

    /// Allocates and frees one block; the error is a `CUresult`.
    fn pair(&self, stream: Stream) -> std::result::Result<(), u32> {
        let mut block = 0;
        // SAFETY: `block` outlives the call, which writes one address to it; the stream is alive.
        match unsafe { (self.allocate)(&mut block, SIZE as usize, stream.0 as *mut c_void) } {
            0 => (),
            code => return Err(code),
        }
        // SAFETY: the block was just allocated, and no work uses it.
        match unsafe { (self.free)(block, stream.0 as *mut c_void) } {
            0 => Ok(()),
            code => Err(code),
        }
    }
}
