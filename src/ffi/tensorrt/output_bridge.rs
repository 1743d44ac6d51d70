//! The cxx bridge of TensorRT's output allocators: the adapters in `cpp/` forward here. Panics are caught here.

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
        fn output_reallocate(self: &Output, tensor: &[u8], size: u64, alignment: u64) -> usize;
        fn output_reallocate_async(self: &Output, tensor: &[u8], size: u64, alignment: u64, stream: usize) -> usize;
        fn output_shape(self: &Output, tensor: &[u8], extents: &[i64]);
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
    fn output_reallocate(&self, tensor: &[u8], size: u64, alignment: u64) -> usize {
        call::guarded("reallocateOutput", 0, || self.reallocate(tensor, size, alignment, None))
    }

    fn output_reallocate_async(&self, tensor: &[u8], size: u64, alignment: u64, stream: usize) -> usize {
        let stream = Some(Stream(stream));
        call::guarded("reallocateOutputAsync", 0, || {
            self.reallocate(tensor, size, alignment, stream)
        })
    }

    fn output_shape(&self, tensor: &[u8], extents: &[i64]) {
        call::guarded("notifyShape", (), || {
            self.set_shape(tensor, extents);
            Ok(())
        });
    }
}
