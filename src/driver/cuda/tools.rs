//! CUDA for commands, tests and benches, and what `trtalloc doctor` says of it.

use std::ptr::null_mut;

use cudarc::driver::sys;

use super::super::{Driver, DriverError, Failure, Result, Stream, Tools};
use super::CudaDriver;
use super::failure::check;

const NON_BLOCKING: u32 = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;

/// What to do about an error of this driver.
pub(super) fn advice(error: &DriverError) -> &'static str {
    match (error.failure, error.call, error.code) {
        (Failure::Missing, "libcuda.so.1", _) => {
            "Install NVIDIA's driver. In a container, start it with the GPU: docker run --gpus all. Until then driver=sim \
             takes the simulated device."
        }
        (Failure::Missing, ..) => "The driver is too old: install one of CUDA 11 or later.",
        (_, _, 34) => "This libcuda.so.1 is the toolkit's stub: take its folder out of LD_LIBRARY_PATH.",
        (_, _, 100) => {
            "The driver sees no GPU: is CUDA_VISIBLE_DEVICES set to something else, or the container started without --gpus?"
        }
        (_, _, 802) => "The system is not ready: is nvidia-fabricmanager running?",
        (_, _, 803 | 804) => "The kernel module and libcuda.so.1 are of different versions: reboot, or reinstall them.",
        _ => "Ask nvidia-smi, and the kernel's log (dmesg | grep NVRM), what is wrong.",
    }
}

impl Tools for CudaDriver {
    fn description(&self) -> String {
        format!("CUDA {}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    fn advice(&self) -> Option<&'static str> {
        (!self.features.context_events || !self.features.stream_ids).then_some(
            "A driver of CUDA 12.5 or later need not wait where memory is freed without a stream, and recognises a new \
             stream at the handle of a destroyed one.",
        )
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn create_stream(&self) -> Result<Stream> {
        let mut stream = null_mut();
        call!(self, cuStreamCreate(&mut stream, NON_BLOCKING))?;
        Ok(Stream(stream as usize))
    }

    fn destroy_stream(&self, stream: Stream) -> Result<()> {
        call!(self, cuStreamDestroy_v2(stream.0 as sys::CUstream))
    }

    fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()> {
        self.fill_async(address, 0, bytes, stream)
    }

    fn malloc_async(&self, size: u64, stream: Stream) -> Result<u64> {
        let mut address = 0;
        let stream = stream.0 as sys::CUstream;
        call!(self, cuMemAllocAsync(&mut address, size as usize, stream))?;
        Ok(address)
    }

    fn free_async(&self, address: u64, stream: Stream) -> Result<()> {
        call!(self, cuMemFreeAsync(address, stream.0 as sys::CUstream))
    }
}
