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

#[cfg(not(loom))]
mod closing;
#[cfg(not(loom))]
mod commands;
mod control;
mod create;
#[cfg(not(loom))]
mod decay;
mod external;
mod free;
mod instrumented;
mod out_of_memory;
mod output_at_exit;
mod per_free_events;
mod recorded;
mod resize;
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
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The options in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Allocates a block of at least `request.size` bytes.
    #[inline]
    pub fn allocate(&self, request: Request) -> Result<u64> {
        self.serve(&request)
    }

    /// As [`Allocator::allocate`]. Copying a request takes as long as a lock.
    #[inline]
    pub(crate) fn serve(&self, request: &Request) -> Result<u64> {
        if process::is_instrumented() {
            return self.allocate_instrumented(request, tags::current());
        }
        self.allocate_directly(request)
    }

    /// [`Allocator::allocate`] of a block that counts for `tag`, whatever the thread's tag is.
    #[inline]
    pub fn allocate_for(&self, request: &Request, tag: Tag) -> Result<u64> {
        if tag == 0 {
            return self.serve(request);
        }
        if process::is_observed() {
            return self.allocate_instrumented(request, tag);
        }
        self.allocate_tagged(request, tag)
    }

    #[inline]
    fn allocate_directly(&self, request: &Request) -> Result<u64> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(destroyed());
        }
        let want = match self.want(request.size, request.alignment) {
            Ok(want) => want,
            Err(error) => return self.refuse(request, error),
        };
        note_unknown_flags(request);
        match request.stream {
            Some(stream) if self.streams => self.allocate_on_stream(want, request, (stream, self.key(stream)?)),
            _ => self.allocate_without_cache(want, request),
        }
    }

    /// Serves a request without a stream, or where streams have no caches.
    #[inline(never)]
    fn allocate_without_cache(&self, want: Want, request: &Request) -> Result<u64> {
        self.with_handler(request, || match request.stream {
            Some(stream) => self.allocate_with_per_free_events(want, request, stream),
            None => self.allocate_for_any_stream(want, request),
        })
    }

    /// Runs `attempt`, and calls the out-of-memory handler if memory ran out.
    #[inline]
    fn with_handler(&self, request: &Request, attempt: impl FnOnce() -> Result<u64>) -> Result<u64> {
        match attempt() {
            // Moving the whole result takes as long as a lock.
            Ok(address) => Ok(address),
            Err(error) => self.after_error(request, error),
        }
    }

    #[cold]
    fn after_error(&self, request: &Request, error: Error) -> Result<u64> {
        let mut outcome = Err(error);
        if matches!(outcome, Err(Error::OutOfMemory(_))) {
            self.retry_after_handler(&mut outcome, request, || self.allocate_directly(request));
        }
        outcome
    }

    /// The path of a hit: one lock, at most two queries, a pop.
    #[inline]
    fn allocate_on_stream(&self, want: Want, request: &Request, of: (Stream, Option<Key>)) -> Result<u64> {
        self.on_stream(
            request,
            of,
            |pool, cache, inner| pool.take_ready::<false>(cache, inner, want, 0),
            |view| match view {
                Some(view) => self.miss(want, request, &view),
                None => self.allocate_in_primary(want, request),
            },
        )
    }

    /// Queries the stream, and calls `hit` if its cache may serve the request; otherwise, or if that found nothing,
    /// `miss`. A default stream without a current context has no view.
    #[inline(always)]
    fn on_stream(
        &self,
        request: &Request,
        (stream, key): (Stream, Option<Key>),
        hit: impl FnOnce(&Pool, &StreamCache, Guard<'_, Inner>) -> Option<u64>,
        miss: impl FnOnce(Option<StreamView>) -> Result<u64>,
    ) -> Result<u64> {
        let Some(key) = key else {
            return miss(None);
        };
        let (id, capture) = match self.query_stream(stream) {
            Ok(answer) => answer,
            Err(error) => return Err(self.query_failed(key, error)),
        };
        let mut device = None;
        if self.plain && request.flags & RESIZABLE == 0 && capture == Capture::None {
            let (cache, mut inner) = self.caches.lock_for_hit(key);
            inner.queries += if self.config.streams_trusted { 0 } else { 2 };
            let same = |known| holds("a hit compares the stream's id", known == id);
            if let Some(served) = inner.served().filter(|served| same(served.id))
                && request.device.is_none_or(|device| device == served.device)
            {
                let Some(pool) = self.existing_pool(served.device) else {
                    return self.no_device(served.device);
                };
                pool.alive()?;
                device = Some(served.device);
                if let Some(address) = hit(pool, cache, inner) {
                    return Ok(address);
                }
            }
        }
        miss(Some(StreamView {
            key,
            stream,
            id,
            capture,
            device,
        }))
    }

    #[cold]
    #[inline(never)]
    fn miss(&self, want: Want, request: &Request, view: &StreamView) -> Result<u64> {
        // Not where the stream is queried, which each hit does.
        if view.capture != Capture::None {
            self.driver.note_capture();
        }
        self.with_handler(request, || self.allocate_missed(want, request, view))
    }

    /// Handles a failed query of a stream. If its context carries a sticky error, the pool becomes unusable.
    #[cold]
    fn query_failed(&self, key: Key, error: Error) -> Error {
        let known = self.served_by(key, |of| (of.device, of.context));
        if let (Error::Driver(cause), Some((device, context))) = (&error, known)
            && let Some(pool) = self.existing_pool(device)
        {
            pool.stream_failed(context, *cause);
        }
        error
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

    /// The device of a request's stream. A cache that serves another device leaves it.
    fn served_device(&self, view: &StreamView) -> Result<i32> {
        match self.served_by(view.key, |served| (served.id, served.device)) {
            Some((id, device)) if id == view.id => Ok(device),
            _ => {
                let device = self.stream_device(view.stream)?;
                self.leave_other_device(view.key, device);
                Ok(device)
            }
        }
    }

    fn allocate_missed(&self, want: Want, request: &Request, view: &StreamView) -> Result<u64> {
        let device = match view.device {
            Some(device) => device,
            None => self.served_device(view)?,
        };
        let wanted = self.device_for(request.device, device);
        if view.capture == Capture::Implicit {
            // The legacy stream is unusable while a blocking stream captures.
            let device = Some(wanted);
            return self.allocate_for_any_stream(want, &Request { device, ..*request });
        }
        let pool = self.pool(wanted)?;
        if wanted != device {
            // Work of the stream's context may use the block, whichever context is current when it is freed.
            pool.note_stream_context(view.stream)?;
        }
        if let Some(kind) = pool.dedicated_kind(request.flags & RESIZABLE != 0) {
            let address = pool.allocate_dedicated(want, kind, Some(view).filter(|_| wanted == device))?;
            return self.filled(
                pool,
                address,
                want,
                request,
                Some(view.stream).filter(|_| wanted == device),
            );
        }
        // A stream of another device has no cache in this pool: the block must be safe for every stream.
        let address = pool.allocate(want, Some(view).filter(|_| wanted == device))?;
        self.note_resizable(pool, address, want, request);
        self.filled(
            pool,
            address,
            want,
            request,
            Some(view.stream).filter(|_| wanted == device),
        )
    }

    /// Serves a request without a stream, or one whose stream has no id.
    fn allocate_for_any_stream(&self, want: Want, request: &Request) -> Result<u64> {
        // `pool` checks the number of a device that has none yet.
        let pool = self.pool(self.unchecked_device(request.device)?)?;
        let address = match pool.dedicated_kind(request.flags & RESIZABLE != 0) {
            Some(kind) => pool.allocate_dedicated(want, kind, None)?,
            None => pool.allocate(want, None)?,
        };
        self.note_resizable(pool, address, want, request);
        self.filled(pool, address, want, request, None)
    }

    /// Serves a request on a default stream without a context, which means that of the device's primary context. If
    /// that context does not exist yet, memory that is safe for every stream is safe there too.
    #[cold]
    fn allocate_in_primary(&self, want: Want, request: &Request) -> Result<u64> {
        // `pool` checks the number of a device that has none yet.
        let device = self.unchecked_device(request.device)?;
        let attempt = || match request.stream.map(|stream| (stream, self.key(stream))) {
            Some((_, Err(error))) => Err(error),
            Some((stream, Ok(key))) if key.is_some() && self.streams => {
                self.allocate_on_stream(want, request, (stream, key))
            }
            Some((stream, Ok(Some(_)))) => self.allocate_with_per_free_events(want, request, stream),
            Some((_, Ok(None))) | None => self.allocate_for_any_stream(want, request),
        };
        match self.pool(device)?.in_primary(false, attempt)? {
            Some(outcome) => outcome,
            None => self.allocate_for_any_stream(want, request),
        }
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
