//! Calls the allocator as TensorRT does, through the virtual functions of `nvinfer1::IGpuAllocator`, and counts the
//! calls.

use std::time::{Duration, Instant};

use trtalloc::allocator::RESIZABLE;
use trtalloc::driver::Stream;
use trtalloc::error::{Error, Result};
use trtalloc::ffi::tensorrt::client::Client;

use super::super::device::Device;
use super::last_error;

/// How many calls were made, and the time they took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Calls {
    /// All calls.
    pub made: u64,
    /// Calls that returned null.
    pub refused: u64,
    /// Time inside the calls, less the cost of reading the clock.
    pub time: Duration,
}

/// A caller of the allocator. Blocks are addresses and never null.
pub struct Caller<'a> {
    device: &'a Device,
    client: Client,
    calls: Calls,
    clock: Duration,
    last_refusal: String,
    compared: u64,
    lost: u64,
}

impl Caller<'_> {
    pub fn new(device: &Device, client: Client) -> Caller<'_> {
        // The minimum of many readings is the cost of reading the clock.
        let clock = (0..1000).map(|_| Instant::now().elapsed()).min().unwrap_or_default();
        Caller {
            device,
            client,
            calls: Calls::default(),
            clock,
            last_refusal: String::new(),
            compared: 0,
            lost: 0,
        }
    }

    /// The calls since the last time this was called.
    pub fn take_calls(&mut self) -> Calls {
        std::mem::take(&mut self.calls)
    }

    /// The reason of the last refusal.
    pub fn last_refusal(&self) -> &str {
        &self.last_refusal
    }

    /// `allocate`: memory without a stream, as engines request it for weights.
    pub fn allocate(&mut self, size: u64) -> Option<usize> {
        let block = self.block(|client| client.allocate(size, 0, 0))?;
        self.device.handed_out(block as u64, size, None);
        Some(block)
    }

    /// `allocateAsync`.
    pub fn allocate_async(&mut self, size: u64, stream: Stream) -> Option<usize> {
        self.with_flags(size, 0, stream)
    }

    /// `allocateAsync` of a block that [`Caller::reallocate`] accepts.
    pub fn allocate_resizable(&mut self, size: u64, stream: Stream) -> Option<usize> {
        self.with_flags(size, RESIZABLE, stream)
    }

    fn with_flags(&mut self, size: u64, flags: u32, stream: Stream) -> Option<usize> {
        let block = self.block(|client| client.allocate_async(size, 0, flags, stream.0))?;
        self.device.handed_out(block as u64, size, Some(stream));
        Some(block)
    }

    /// `reallocate`; on `None` the old block stays valid.
    pub fn reallocate(&mut self, block: usize, size: u64) -> Option<usize> {
        let grown = self.block(|client| client.reallocate(block, 0, size))?;
        self.device.resized(block as u64, grown as u64, size);
        Some(grown)
    }

    /// Compares the byte at `address` with `byte`, where the host can read it.
    pub fn compare(&mut self, address: u64, byte: u8) {
        if let Some(found) = self.device.byte_at(address) {
            self.compared += 1;
            self.lost += u64::from(found != byte);
        }
    }

    /// How many bytes [`Caller::compare`] compared, and how many differed.
    pub fn compared(&self) -> (u64, u64) {
        (self.compared, self.lost)
    }

    /// `deallocate`.
    pub fn deallocate(&mut self, block: usize) -> Result<()> {
        self.device.giving_back(block as u64, None);
        self.taken(|client| client.deallocate(block))
    }

    /// `deallocateAsync`.
    pub fn deallocate_async(&mut self, block: usize, stream: Stream) -> Result<()> {
        self.device.giving_back(block as u64, Some(stream));
        self.taken(|client| client.deallocate_async(block, stream.0))
    }

    fn timed<T>(&mut self, call: impl FnOnce(Client) -> T) -> T {
        let begun = Instant::now();
        let result = call(self.client);
        self.calls.time += begun.elapsed().saturating_sub(self.clock);
        self.calls.made += 1;
        result
    }

    fn block(&mut self, call: impl FnOnce(Client) -> usize) -> Option<usize> {
        match self.timed(call) {
            0 => {
                self.calls.refused += 1;
                self.last_refusal = last_error();
                None
            }
            block => Some(block),
        }
    }

    fn taken(&mut self, call: impl FnOnce(Client) -> bool) -> Result<()> {
        match self.timed(call) {
            true => Ok(()),
            false => Err(Error::InvalidArgument(format!(
                "a block was not freed: {}",
                last_error()
            ))),
        }
    }
}
