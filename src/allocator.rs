//! Which device, which pool: what every face of the library calls.

use std::sync::Arc;

use crate::config::Config;
use crate::driver::{Driver, Stream};
use crate::error::{Error, Result};
use crate::stats::Stats;

/// `TRTALLOC_RESIZABLE`, and the bit TensorRT sets: `1 << AllocatorFlag::kRESIZABLE`.
pub const RESIZABLE: u32 = 1;

/// One request for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes; 0 is refused.
    pub size: u64,
    /// 0 (any) or a power of two up to 2 MiB.
    pub alignment: u64,
    /// [`RESIZABLE`] or 0.
    pub flags: u32,
    /// Where the memory will first be used; none: anywhere, at once.
    pub stream: Option<Stream>,
    /// None: the stream's or the current context's.
    pub device: Option<i32>,
}

/// A pool for each device, behind one driver. Safe from any thread. Blocks are addresses; 0 is none.
pub struct Allocator {
    driver: Arc<dyn Driver>,
    config: Config,
}

impl Allocator {
    /// Reads `options` and opens the driver they name.
    pub fn create(options: &str) -> Result<Arc<Allocator>> {
        Self::from_config(Config::parse(options)?)
    }

    /// Opens the driver that `config` names.
    pub fn from_config(config: Config) -> Result<Arc<Allocator>> {
        let _ = config;
        Err(Error::Unsupported("not yet".into()))
    }

    /// An allocator over a driver that is already open.
    pub fn with_driver(driver: Arc<dyn Driver>, config: Config) -> Result<Arc<Allocator>> {
        Ok(Arc::new(Allocator { driver, config }))
    }

    /// A pool over `[base, base + bytes)`, which the caller owns; it is never touched and never freed.
    pub fn over(base: u64, bytes: u64, config: Config) -> Result<Arc<Allocator>> {
        let _ = (base, bytes, config);
        Err(Error::Unsupported("not yet".into()))
    }

    /// The driver underneath.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The options in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A block of at least `request.size` bytes, or why not.
    pub fn allocate(&self, request: Request) -> Result<u64> {
        let _ = request;
        Err(Error::Unsupported("not yet".into()))
    }

    /// Resizes a block that was allocated [`RESIZABLE`]; its bytes are kept, and on an error it stands untouched.
    pub fn reallocate(&self, address: u64, alignment: u64, new_size: u64) -> Result<u64> {
        let _ = (address, alignment, new_size);
        Err(Error::Unsupported("not yet".into()))
    }

    /// Takes a block back. With a stream, work queued on it so far may still use the block; without, any work queued so
    /// far anywhere. 0 is accepted.
    pub fn deallocate(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        let _ = (address, stream);
        Err(Error::Unsupported("not yet".into()))
    }

    /// Declares that the block is also used on `stream`.
    pub fn record_stream(&self, address: u64, stream: Stream) -> Result<()> {
        let _ = (address, stream);
        Err(Error::Unsupported("not yet".into()))
    }

    /// Says that `stream` is about to be destroyed.
    pub fn stream_release(&self, stream: Stream) -> Result<()> {
        let _ = stream;
        Err(Error::Unsupported("not yet".into()))
    }

    /// One device's figures; none: the current device's.
    pub fn stats(&self, device: Option<i32>) -> Result<Stats> {
        let _ = device;
        Err(Error::Unsupported("not yet".into()))
    }

    /// Starts the peaks anew.
    pub fn reset_peaks(&self, device: Option<i32>) -> Result<()> {
        let _ = device;
        Err(Error::Unsupported("not yet".into()))
    }

    /// Gives memory back to the driver until at most `keep` bytes stay reserved, as far as it is free; returns the bytes
    /// released.
    pub fn trim(&self, device: Option<i32>, keep: u64) -> Result<u64> {
        let _ = (device, keep);
        Err(Error::Unsupported("not yet".into()))
    }

    /// Caps reserved memory; 0: no cap. What is reserved beyond it is released as it falls free.
    pub fn set_limit(&self, device: Option<i32>, bytes: u64) -> Result<()> {
        let _ = (device, bytes);
        Err(Error::Unsupported("not yet".into()))
    }

    /// New requests fail from now on; blocks still out stay valid, and memory goes with the last of them. Twice is harmless.
    pub fn close(&self) {}
}
