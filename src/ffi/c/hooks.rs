//! Hooks by which other frameworks use the process's own allocator. Each function has the type that its framework
//! requires. docs/frameworks.md explains the limits of each framework's interface and how they are handled.

use std::ffi::{CStr, CString, c_int, c_void};

use super::arguments::{number, of, ordinal, pointer};
use super::{cpp_exceptions, trtalloc_status};
use crate::allocator::Request;
use crate::driver::Stream;
use crate::ffi::ExportedAllocator;
use crate::ffi::call;
use crate::support::error::{self, Error};

fn request(size: usize, device: Option<i32>, stream: Option<Stream>) -> Request {
    Request {
        size: size as u64,
        alignment: 0,
        flags: 0,
        stream,
        device,
    }
}

/// For torch.cuda.memory.CUDAPluggableAllocator and torch.cuda.MemPool: trtalloc_allocate_on with trtalloc_default().
/// Returns NULL if the request cannot be satisfied; PyTorch checks for NULL only in a MemPool.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_torch_malloc(size: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let request = request(size, ordinal(device), of(stream));
    pointer(call::allocate(
        "trtalloc_torch_malloc",
        ExportedAllocator::process(),
        &request,
    ))
}

/// As trtalloc_torch_malloc, for all of PyTorch's memory. There PyTorch does not check for NULL, so this function
/// throws if a request of more than 0 bytes cannot be satisfied. It throws through the C++ runtime that PyTorch has
/// loaded: where memory has run out, PyTorch's own c10::OutOfMemoryError ("CUDA out of memory. ..."), which is
/// torch.OutOfMemoryError in Python; for any other reason, and in a process without PyTorch, std::runtime_error. It is
/// the only function here that throws. Returns NULL if the process has no such runtime.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn trtalloc_torch_malloc_or_throw(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let memory = trtalloc_torch_malloc(size, device, stream);
    if memory.is_null() && size > 0 {
        throw_last_failure(size, device);
    }
    memory
}

/// Throws this thread's last failure in the C++ runtime of the process; returns where there is none.
#[cold]
fn throw_last_failure(size: usize, device: c_int) {
    // SAFETY: a C string of this thread, and no call of this library comes between.
    let reason = unsafe { CStr::from_ptr(error::last()) }.to_string_lossy().into_owned();
    let is_out_of_memory = error::last_status() == trtalloc_status::OutOfMemory as i32;
    let kind = match is_out_of_memory {
        true => pytorchs_words(size, device),
        false => String::new(),
    };
    let Ok(text) = CString::new(format!("{kind}trtalloc: {reason}")) else {
        return;
    };
    if is_out_of_memory {
        cpp_exceptions::torch_out_of_memory(&text);
    }
    cpp_exceptions::runtime_error(&text);
}

/// What Python programs search an error for, to recognise that memory has run out.
fn pytorchs_words(size: usize, device: c_int) -> String {
    let allocator = ExportedAllocator::process().existing();
    let stats = allocator.and_then(|allocator| allocator.stats_with_device(ordinal(device)).ok());
    let stats = stats.unwrap_or_default();
    format!(
        "CUDA out of memory. Tried to allocate {}. GPU {device} has a total capacity of {} of which {} is free. ",
        pytorchs_size(size as u64),
        pytorchs_size(stats.device_total),
        pytorchs_size(stats.device_free)
    )
}

/// Bytes as PyTorch writes them.
fn pytorchs_size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes > 1 << shift) {
        Some((shift, unit)) => format!("{:.2} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} bytes"),
    }
}

/// For torch.cuda.memory.CUDAPluggableAllocator: trtalloc_deallocate_async with trtalloc_default(). PyTorch passes the
/// stream on which the memory was allocated. Where that is a thread's default stream, which only its own thread can name, this is
/// trtalloc_deallocate. Size and device are ignored.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_torch_free(memory: *mut c_void, size: usize, device: c_int, stream: *mut c_void) {
    let _ = (size, device);
    // PyTorch frees on any thread, as where it collects garbage.
    let stream = of(stream).filter(|stream| *stream != Stream::PER_THREAD);
    call::deallocate(
        "trtalloc_torch_free",
        ExportedAllocator::process(),
        number(memory),
        stream,
    );
}

/// For PyTorch's set_record_stream_fn: trtalloc_record_stream with trtalloc_default(). NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_torch_record_stream(memory: *mut c_void, stream: *mut c_void) {
    if memory.is_null() {
        return;
    }
    call::guarded("trtalloc_torch_record_stream", (), || {
        let allocator = ExportedAllocator::process().existing().ok_or_else(call::foreign)?;
        allocator.record_stream(number(memory) as u64, Stream(number(stream)))
    });
}

/// For PyTorch's set_init_fn: opens the driver, so that a failure is logged when PyTorch starts.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_torch_init(device_count: c_int) {
    if device_count > 0 {
        call::guarded("trtalloc_torch_init", (), || {
            ExportedAllocator::process().allocator().map(|_| ())
        });
    }
}

/// For PyTorch's set_reset_fn, which torch.cuda.empty_cache() calls: trtalloc_trim to 0 with trtalloc_default(), on
/// each device.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_torch_reset() {
    call::guarded("trtalloc_torch_reset", (), || {
        match ExportedAllocator::process().existing() {
            Some(allocator) => allocator.trim_all(0).map(|_| ()),
            None => Ok(()),
        }
    });
}

/// For PyTorch's set_memory_fraction_fn: trtalloc_set_limit with trtalloc_default(), to that fraction of the device's
/// memory, from 0 to 1. The limit is the pool's, so it holds for all users of the pool together.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_torch_memory_fraction(fraction: f64, device: c_int) {
    call::guarded("trtalloc_torch_memory_fraction", (), || {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::InvalidArgument(format!("a fraction of {fraction}")));
        }
        ExportedAllocator::process()
            .allocator()?
            .set_limit_fraction(ordinal(device), fraction)
    });
}

/// For ONNX Runtime's gpu_external_alloc: trtalloc_allocate with trtalloc_default(), on the current device.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_ort_alloc(size: usize) -> *mut c_void {
    let request = request(size, None, None);
    pointer(call::allocate(
        "trtalloc_ort_alloc",
        ExportedAllocator::process(),
        &request,
    ))
}

/// For ONNX Runtime's gpu_external_free: trtalloc_deallocate with trtalloc_default().
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_ort_free(memory: *mut c_void) {
    call::deallocate("trtalloc_ort_free", ExportedAllocator::process(), number(memory), None);
}

/// For ONNX Runtime's gpu_external_empty_cache: trtalloc_trim to 0 with trtalloc_default(), on the current device.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_ort_empty_cache() {
    call::guarded("trtalloc_ort_empty_cache", (), || {
        match ExportedAllocator::process().existing() {
            Some(allocator) => allocator.trim(None, 0).map(|_| ()),
            None => Ok(()),
        }
    });
}

/// For cupy.cuda.memory.CFunctionAllocator: trtalloc_allocate with trtalloc_default(), on `device`. `param` is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_cupy_malloc(param: *mut c_void, size: usize, device: c_int) -> *mut c_void {
    let _ = param;
    let request = request(size, ordinal(device), None);
    pointer(call::allocate(
        "trtalloc_cupy_malloc",
        ExportedAllocator::process(),
        &request,
    ))
}

/// For cupy.cuda.memory.CFunctionAllocator: trtalloc_deallocate with trtalloc_default(). `param` and `device` are ignored.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_cupy_free(param: *mut c_void, memory: *mut c_void, device: c_int) {
    let _ = (param, device);
    call::deallocate("trtalloc_cupy_free", ExportedAllocator::process(), number(memory), None);
}
