//! Output allocators: tensors whose size is known only after they are computed.

use std::ffi::{CStr, c_char, c_void};

use super::arguments::{exported, number, pointer, status};
use super::{trtalloc_allocator, trtalloc_status};
use crate::ffi::call;
use crate::ffi::tensorrt::output::{Output, Tensor};
use crate::support::error::{Error, Result};

/// An output tensor, as TensorRT last requested it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct trtalloc_output {
    /// Its address; NULL before the first enqueue that requested it.
    pub memory: *mut c_void,
    /// Bytes of the tensor.
    pub bytes: u64,
    /// Bytes of its memory.
    pub capacity: u64,
    /// How many of `extents` are valid.
    pub rank: i32,
    /// The tensor's shape.
    pub extents: [i64; 8],
}

/// Returns a new nvinfer1::IOutputAllocator* for the ABI of `tensorrt_version` (8.5 and later), for
/// IExecutionContext::setOutputAllocator. One execution context needs one for all its outputs; two contexts must not
/// share one. An output's block grows in place. It belongs to the tensor until the context's next enqueue requests
/// more, or the block is released or taken; until then this library does not change it. The output allocator belongs to
/// the allocator: the caller never deletes it, and it stays valid for ever, so create one for each context and not for
/// each enqueue. Returns NULL if this library does not know that version's interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_tensorrt_output_allocator(
    allocator: *mut trtalloc_allocator,
    tensorrt_version: i32,
) -> *mut c_void {
    let adapter = call::guarded("trtalloc_tensorrt_output_allocator", 0, || {
        // SAFETY: the caller's allocator is null or an exported allocator.
        Output::make(unsafe { exported(allocator) }?, tensorrt_version)
    });
    pointer(adapter)
}

/// Writes one tensor's address, size and shape to `*out`. Fails if TensorRT has not requested the tensor yet, and while it
/// requests more memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_output_get(
    output_allocator: *mut c_void,
    tensor: *const c_char,
    out: *mut trtalloc_output,
) -> trtalloc_status {
    status("trtalloc_output_get", || {
        // SAFETY: the caller's string is null or a C string, and `out` null or writable.
        unsafe { fill(out, Output::of(number(output_allocator))?.get(name(tensor)?)?) }
    })
}

/// As trtalloc_output_get, and the memory becomes the caller's, who frees it with trtalloc_deallocate or
/// trtalloc_deallocate_async. The context's next enqueue gets other memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_output_take(
    output_allocator: *mut c_void,
    tensor: *const c_char,
    out: *mut trtalloc_output,
) -> trtalloc_status {
    status("trtalloc_output_take", || {
        if out.is_null() {
            return Err(Error::InvalidArgument("out is NULL".into()));
        }
        // SAFETY: as in trtalloc_output_get.
        unsafe { fill(out, Output::of(number(output_allocator))?.take(name(tensor)?)?) }
    })
}

/// Frees one tensor's memory, or with NULL that of all tensors, as cudaFree would. An allocator can release all its
/// memory only after this call. The output allocator stays usable. What an enqueue requests at this moment, on another
/// thread or around an out-of-memory handler, is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_output_release(
    output_allocator: *mut c_void,
    tensor: *const c_char,
) -> trtalloc_status {
    status("trtalloc_output_release", || {
        let output = Output::of(number(output_allocator))?;
        if tensor.is_null() {
            return output.release(None);
        }
        // SAFETY: the caller's string is a C string.
        output.release(Some(unsafe { name(tensor) }?))
    })
}

/// # Safety
/// `tensor` is null or a C string.
unsafe fn name<'a>(tensor: *const c_char) -> Result<&'a [u8]> {
    if tensor.is_null() {
        return Err(Error::InvalidArgument("tensor is NULL".into()));
    }
    // SAFETY: as this function demands.
    Ok(unsafe { CStr::from_ptr(tensor) }.to_bytes())
}

/// # Safety
/// `out` is null or writable.
unsafe fn fill(out: *mut trtalloc_output, tensor: Tensor) -> Result<()> {
    // SAFETY: as this function demands.
    let Some(out) = (unsafe { out.as_mut() }) else {
        return Err(Error::InvalidArgument("out is NULL".into()));
    };
    let mut extents = [0; 8];
    extents[..tensor.extents.len()].copy_from_slice(&tensor.extents);
    *out = trtalloc_output {
        memory: pointer(tensor.memory as usize),
        bytes: tensor.bytes,
        capacity: tensor.capacity,
        rank: tensor.extents.len() as i32,
        extents,
    };
    Ok(())
}
