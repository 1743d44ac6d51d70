//! The cxx bridge of TensorRT's output allocators: the adapters in `cpp/` forward here. Panics are caught here.

use std::ffi::{CStr, c_char};

use crate::driver::Stream;
use crate::ffi::ExportedAllocator;
use crate::ffi::call;
use crate::ffi::tensorrt::abi::OutputAbi;
use crate::ffi::tensorrt::output::Output;
use crate::support::error::{Error, Result};

#[cxx::bridge(namespace = "trtalloc")]
mod ffi {
    extern "Rust" {
        type Output;
        // Pointers, and no slices of cxx: those need an object of its, and with it much of the C++ runtime.
        /// # Safety
        /// `tensor` is a C string or null.
        unsafe fn output_reallocate(self: &Output, tensor: *const c_char, size: u64, alignment: u64) -> usize;
        /// # Safety
        /// As `output_reallocate`.
        unsafe fn output_reallocate_async(
            self: &Output,
            tensor: *const c_char,
            size: u64,
            alignment: u64,
            stream: usize,
        ) -> usize;
        /// # Safety
        /// As `output_reallocate`; there are `count` extents.
        unsafe fn output_shape(self: &Output, tensor: *const c_char, extents: *const i64, count: usize);
    }

    unsafe extern "C++" {
        include!("trtalloc/cpp/output.h");
        include!("trtalloc/cpp/hidden.h");

        /// # Safety
        /// The adapter keeps a reference to `output`, which must never be freed.
        unsafe fn make_output8(output: &Output) -> usize;

        /// # Safety
        /// As `make_output8`.
        unsafe fn make_output10(output: &Output) -> usize;

        /// # Safety
        /// As `make_output8`.
        unsafe fn make_output_rtx(output: &Output) -> usize;
    }
}

/// Creates the adapter for `abi`, and returns its C++ base pointer; 0 where host memory has run out.
fn make_adapter(output: &'static Output, abi: OutputAbi) -> usize {
    match abi {
        // SAFETY: a static reference is never freed.
        OutputAbi::V8 => unsafe { ffi::make_output8(output) },
        // SAFETY: as above.
        OutputAbi::V10 => unsafe { ffi::make_output10(output) },
        // SAFETY: as above.
        OutputAbi::Rtx => unsafe { ffi::make_output_rtx(output) },
    }
}

impl Output {
    /// Creates an output allocator and returns its adapter, an `nvinfer1::IOutputAllocator*`. TensorRT has that
    /// interface from 8.5 on.
    pub fn make(exported: &'static ExportedAllocator, version: i32) -> Result<usize> {
        let abi = OutputAbi::of(version)?;
        let output = Output::new(exported);
        let adapter = make_adapter(output, abi);
        if adapter == 0 {
            return Err(Error::OutOfMemory("host memory for the adapter".into()));
        }
        output.register(adapter);
        Ok(adapter)
    }
}

/// The adapters' methods. On failure they set this thread's last error and return 0, which ends the enqueue.
impl Output {
    unsafe fn output_reallocate(&self, tensor: *const c_char, size: u64, alignment: u64) -> usize {
        // SAFETY: as this function demands.
        let tensor = unsafe { name(&tensor) };
        call::guarded("reallocateOutput", 0, || self.reallocate(tensor, size, alignment, None))
    }

    unsafe fn output_reallocate_async(&self, tensor: *const c_char, size: u64, alignment: u64, stream: usize) -> usize {
        // SAFETY: as this function demands.
        let tensor = unsafe { name(&tensor) };
        let stream = Some(Stream(stream));
        call::guarded("reallocateOutputAsync", 0, || {
            self.reallocate(tensor, size, alignment, stream)
        })
    }

    unsafe fn output_shape(&self, tensor: *const c_char, extents: *const i64, count: usize) {
        // SAFETY: as this function demands.
        let (tensor, extents) = unsafe { (name(&tensor), std::slice::from_raw_parts(extents, count)) };
        call::guarded("notifyShape", (), || {
            self.set_shape(tensor, extents);
            Ok(())
        });
    }
}

/// A tensor's name; null is the empty one.
///
/// # Safety
/// A C string, which outlives the pointer, or null.
unsafe fn name(tensor: &*const c_char) -> &[u8] {
    match tensor.is_null() {
        true => &[],
        // SAFETY: as this function demands.
        false => unsafe { CStr::from_ptr(*tensor) }.to_bytes(),
    }
}
