//! The cxx bridge of TensorRT's output allocators: `cpp/output.cpp` forwards here.

use super::Generation;
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::handle::call;
use crate::output::Output;

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
        /// The output is kept: it must never be freed.
        unsafe fn make_output8(output: &Output) -> usize;

        /// # Safety
        /// As `make_output8`.
        unsafe fn make_output10(output: &Output) -> usize;

        /// # Safety
        /// As `make_output8`.
        unsafe fn make_output_rtx(output: &Output) -> usize;
    }
}

/// Interfaces that differ in their virtual functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// TensorRT 8.5 to 9.
    Eight,
    /// TensorRT 10 and 11.
    Ten,
    /// TensorRT-RTX: what 10 deprecated is gone.
    Rtx,
}

impl Shape {
    /// The shape that a version has: as [`Generation::of`].
    pub fn of(version: i32) -> Result<Shape> {
        match (Generation::of(version)?, version) {
            (_, 8000..8500) => Err(Error::InvalidArgument(format!(
                "TensorRT {version} has no output allocators: they came with 8.5"
            ))),
            (Generation::Eight, _) => Ok(Shape::Eight),
            (Generation::Ten, 10_000..20_000) => Ok(Shape::Rtx),
            (Generation::Ten, _) => Ok(Shape::Ten),
        }
    }
}

/// An adapter of that shape over `output`, as its C++ base pointer; 0 where host memory is out.
pub(crate) fn make_output(output: &'static Output, shape: Shape) -> usize {
    match shape {
        // SAFETY: a static reference is never freed.
        Shape::Eight => unsafe { ffi::make_output8(output) },
        // SAFETY: as above.
        Shape::Ten => unsafe { ffi::make_output10(output) },
        // SAFETY: as above.
        Shape::Rtx => unsafe { ffi::make_output_rtx(output) },
    }
}

/// What the adapters' methods come down to. Failures are this thread's last error and 0, which ends the enqueue.
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
            self.tell_shape(tensor, extents);
            Ok(())
        });
    }
}
