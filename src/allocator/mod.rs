//! Selects the device and its pool. All interfaces of the library call it, and it finds the cache of a request's stream.
//!
//! Uses: driver, history, pool, support, sync.

use std::sync::Arc;

use crate::driver::{self, Capture, Driver, HandleKind, Stream};
use crate::history::Recorder;
use crate::pool::free_space::NodeId;
use crate::pool::rounding::RoundingRule;
use crate::pool::stream_cache::block::{Block, BlockState};
use crate::pool::stream_cache::lock::Guard;
use crate::pool::stream_cache::{Inner, Key, ServedStream, StreamCache, StreamCaches};
use crate::pool::{MAX_ALIGNMENT, MemorySource, Options, Pool, StreamView, Unbuilt, Want};
use crate::support::config::{Backing, Config, Kind, Limit, MemoryFrom, Peers, Rule, Share};
use crate::support::error::{Error, Result};
use crate::support::process;
use crate::support::stats::Stats;
use crate::support::tags::{self, Tag};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, OnceBox, holds};

// The reference lists the methods of `Allocator` in the order of these modules, and then those of this file. rustfmt would sort the
// modules, were there no line between two. tests/library/layout/reference.rs knows the order.
mod create;

mod allocate;

mod free;

mod resize;

mod control;

mod instrumented;

mod recorded;

mod out_of_memory;

mod external;

// The methods of these are not in the reference.
#[cfg(not(loom))]
mod closing;
#[cfg(not(loom))]
mod commands;
#[cfg(not(loom))]
mod decay;
mod output_at_exit;
mod per_free_events;
#[cfg(not(loom))]
mod sharing;

pub use crate::pool::WINDOWS;
pub use out_of_memory::OomHandler;

/// `TRTALLOC_RESIZABLE`, and the bit that TensorRT sets: `1 << AllocatorFlag::kRESIZABLE`.
pub const RESIZABLE: u32 = 1;

/// The maximum number of devices.
pub const MAX_DEVICES: i32 = if cfg!(loom) { 1 } else { 64 };
const DEVICES: usize = MAX_DEVICES as usize;

/// One request for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes; 0 is refused.
    pub size: u64,
    /// 0 (any) or a power of two up to 2 MiB.
    pub alignment: u64,
    /// [`RESIZABLE`] or 0; unknown bits are ignored.
    pub flags: u32,
    /// The stream that will use the memory first. `None`: any stream, at once.
    pub stream: Option<Stream>,
    /// `None`: the device of the stream or of the current context.
    pub device: Option<i32>,
}

/// A pool for each device, over one driver. Any thread may call it. Blocks are addresses; 0 is none.
pub struct Allocator {
    this: std::sync::Weak<Allocator>,
    driver: Arc<dyn Driver>,
    config: Config,
    rule: RoundingRule,
    memory: MemorySource,
    /// The device of external memory.
    external_device: Option<i32>,
    caches: Arc<StreamCaches>,
    recorder: Arc<Recorder>,
    out_of_memory: out_of_memory::OutOfMemory,
    #[cfg(not(loom))]
    looks: Arc<sharing::Looks>,
    #[cfg(not(loom))]
    closing: Arc<closing::Closing>,
    /// Whether the output at exit is still to be written.
    write_at_exit: std::sync::atomic::AtomicBool,
    pools: Box<[OnceBox<Pool>]>,
    /// Held while a pool is built.
    making: Mutex<Unbuilt>,
    closed: AtomicBool,
    /// Whether streams have ids or are trusted, so that a stream may reuse what it freed at once.
    streams: bool,
    /// Whether requests need no passthrough, guard or fill, and the memory is a device's.
    plain: bool,
}

impl Allocator {
    /// The driver that the allocator uses.
    #[doc(hidden)]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The options in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The device of a block; `None` where the address is not one of this allocator's.
    pub fn device_of_block(&self, address: u64) -> Option<i32> {
        self.all_pools()
            .find(|pool| pool.knows(address))
            .map(|pool| pool.device)
    }

    /// Makes new requests fail. Live blocks stay valid, and the memory is released with the last of them. What work uses
    /// longer than a request may wait goes back later, on the helper thread.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if process::usable().is_ok() {
            self.release_closed();
        }
    }

    /// If the handle served a stream of another device before, releases what that stream freed to its pool.
    fn leave_other_device(&self, key: Key, device: i32) {
        let served = self.served_by(key, |of| of.device);
        if let Some(pool) = served
            .filter(|served| *served != device)
            .and_then(|served| self.existing_pool(served))
        {
            pool.release_stream(key, None);
        }
    }

    /// What `read` finds in the stream that the cache of `key` serves, if there is one.
    fn served_by<T>(&self, key: Key, read: impl FnOnce(&ServedStream) -> T) -> Option<T> {
        let (_, inner) = self.caches.lock_known(key)?;
        inner.served().map(read)
    }

    /// The pool of a device that has been used.
    #[cfg(test)]
    pub(crate) fn pool_of(&self, device: i32) -> &Pool {
        self.existing_pool(device).expect("the device has a pool")
    }

    /// Rounds size and alignment.
    #[inline]
    fn want(&self, size: u64, alignment: u64) -> Result<Want> {
        let align = alignment.max(self.rule.start);
        if size == 0
            || !align.is_power_of_two()
            || align > MAX_ALIGNMENT
            || (alignment & alignment.wrapping_sub(1)) != 0
        {
            return Err(bad_request(size, alignment));
        }
        match self.rule.stride(size) {
            Some(carved) if carved < 1 << 47 => Ok(Want {
                size: carved,
                requested: size,
                align,
            }),
            _ => Err(Error::OutOfMemory(format!("{size} bytes are more than any device has"))),
        }
    }

    /// The id and the capture state of a stream; trusted streams are not queried. One that captures is not asked for its
    /// id, because that would end the capture: the id is 0 then.
    #[inline]
    fn query_stream(&self, stream: Stream) -> Result<(u64, Capture)> {
        if self.config.streams_trusted {
            return Ok((1, Capture::None));
        }
        match self.driver.stream_capture(stream)? {
            Capture::None => Ok((self.driver.stream_id(stream)?, Capture::None)),
            capture => Ok((0, capture)),
        }
    }

    /// The cache key of a stream handle. `None` for a default stream without a current context.
    #[inline]
    fn key(&self, stream: Stream) -> Result<Option<Key>> {
        if !stream.is_default() {
            return Ok(Some(Key {
                stream,
                context: 0,
                thread: 0,
            }));
        }
        Ok(self
            .driver
            .current_context()?
            .map(|context| Key::default_stream(stream, context)))
    }

    fn stream_device(&self, stream: Stream) -> Result<i32> {
        let context = self.driver.context_of(stream)?;
        let before = self.driver.current_context()?;
        if before == Some(context) {
            return self.driver.current_device()?.map_or_else(|| self.device(None), Ok);
        }
        driver::push_context(&*self.driver, before, context)?;
        let device = self.driver.current_device();
        driver::pop_context(&*self.driver, before, context);
        device?.map_or_else(|| self.device(None), Ok)
    }

    /// The device of a request: the one it names, else the current context's, else the option's, else 0. With external
    /// memory, that memory's device.
    fn device(&self, named: Option<i32>) -> Result<i32> {
        let device = self.unchecked_device(named)?;
        self.check_device(device)?;
        Ok(device)
    }

    /// As [`Allocator::device`], and maybe a number that no device has.
    #[inline]
    fn unchecked_device(&self, named: Option<i32>) -> Result<i32> {
        match named.or(self.external_device) {
            Some(device) => Ok(device),
            None => Ok(self.driver.current_device()?.or(self.config.device).unwrap_or(0)),
        }
    }

    /// Refuses a number that no device has.
    fn check_device(&self, device: i32) -> Result<()> {
        let count = self.driver.device_count()?;
        if device < 0 || device as usize >= DEVICES || device as u32 >= count {
            return Err(Error::InvalidArgument(format!("device {device} of {count}")));
        }
        Ok(())
    }

    #[inline]
    fn existing_pool(&self, device: i32) -> Option<&Pool> {
        self.pools.get(device as usize)?.get()
    }

    fn all_pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().filter_map(OnceBox::get)
    }

    fn no_device<T>(&self, device: i32) -> Result<T> {
        Err(Error::InvalidArgument(format!("device {device} has no pool")))
    }

    #[inline]
    fn filled(&self, pool: &Pool, address: u64, want: Want, request: &Request, stream: Option<Stream>) -> Result<u64> {
        let Some(byte) = self.config.fill else {
            return Ok(address);
        };
        // What a block grows by may be used on any stream. Had it been filled in the order of one, the fill might come later.
        if stream.is_some() && request.flags & RESIZABLE != 0 {
            return Ok(address);
        }
        match pool.fill(address, byte, want.size, stream) {
            Ok(()) => Ok(address),
            Err(error) => {
                // The fill may still run, and would overwrite what the next owner wrote.
                self.deallocate(address, None)?;
                Err(error)
            }
        }
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        self.write_at_exit();
        self.close();
    }
}

#[inline]
fn note_unknown_flags(request: &Request) {
    if request.flags & !RESIZABLE != 0 {
        crate::support::log::unknown_flags(request.flags & !RESIZABLE);
    }
}

#[cold]
fn bad_request(size: u64, alignment: u64) -> Error {
    Error::InvalidArgument(match size {
        0 => "size 0".into(),
        _ => format!("alignment {alignment} is not 0 or a power of two up to {MAX_ALIGNMENT}"),
    })
}

#[cold]
fn destroyed() -> Error {
    Error::InvalidArgument("the allocator was destroyed".into())
}

#[cold]
fn freed_twice(address: u64) -> Error {
    Error::InvalidArgument(format!("{address:#x} was freed before"))
}

#[cold]
fn foreign(address: u64) -> Error {
    Error::InvalidArgument(format!("{address:#x} is no block of this allocator"))
}
