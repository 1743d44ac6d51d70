//! Which device, which pool: what every face of the library calls, and the path of a hit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::race::OnceBox;
use parking_lot::Mutex;

use crate::config::{Config, DriverChoice, Kind, Limit, Peers, Rule, Share};
use crate::driver::cuda::CudaDriver;
use crate::driver::sim::{SimConfig, SimDriver};
use crate::driver::{Capture, Driver, HandleKind, Stream};
use crate::error::{Error, Result};
use crate::pool::block::{Block, CACHED, LIVE, PENDING};
use crate::pool::heap::NodeId;
use crate::pool::rule::SegmentRule;
use crate::pool::stream_cache::{Key, StreamCache, StreamCaches};
use crate::pool::{MOST_ALIGNED, Memory, Options, Pool, Turn, Want};
use crate::process;
use crate::stats::Stats;

/// `TRTALLOC_RESIZABLE`, and the bit TensorRT sets: `1 << AllocatorFlag::kRESIZABLE`.
pub const RESIZABLE: u32 = 1;

/// The most devices there can be.
const DEVICES: usize = 64;

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
    rule: SegmentRule,
    memory: Memory,
    caches: Arc<StreamCaches>,
    pools: Box<[OnceBox<Pool>]>,
    making: Mutex<()>,
    closed: AtomicBool,
    /// Streams can be told apart, so what they freed may be theirs again at once.
    streams: bool,
    /// Requests are as they seem: nothing is passed through, guarded or filled.
    plain: bool,
}

impl Allocator {
    /// Reads `options` and opens the driver they name.
    pub fn create(options: &str) -> Result<Arc<Allocator>> {
        Self::from_config(Config::parse(options)?)
    }

    /// Opens the driver that `config` names.
    pub fn from_config(config: Config) -> Result<Arc<Allocator>> {
        Self::with_driver(Self::open(&config)?, config)
    }

    /// A pool over `[base, base + bytes)`, which the caller owns; it is never touched and never freed.
    pub fn over(base: u64, bytes: u64, config: Config) -> Result<Arc<Allocator>> {
        Self::over_with_driver(Self::open(&config)?, base, bytes, config)
    }

    /// [`Allocator::over`] with a driver that is already open.
    pub fn over_with_driver(driver: Arc<dyn Driver>, base: u64, bytes: u64, config: Config) -> Result<Arc<Allocator>> {
        if base == 0 || bytes == 0 || base.checked_add(bytes).is_none() {
            return Err(Error::InvalidArgument(format!("no memory at {base:#x}+{bytes:#x}")));
        }
        Self::build(driver, config, Memory::Caller(base, bytes))
    }

    /// An allocator over a driver that is already open.
    pub fn with_driver(driver: Arc<dyn Driver>, config: Config) -> Result<Arc<Allocator>> {
        let memory = Memory::Driver(config.backing);
        Self::build(driver, config, memory)
    }

    fn open(config: &Config) -> Result<Arc<dyn Driver>> {
        process::watch();
        process::usable()?;
        match config.driver {
            DriverChoice::Auto | DriverChoice::Cuda => {
                let driver = CudaDriver::open()?;
                if driver.device_count()? == 0 {
                    return Err(Error::Unsupported("the CUDA driver knows no device".into()));
                }
                Ok(driver)
            }
            DriverChoice::Sim => Ok(SimDriver::new(SimConfig {
                devices: config.sim_devices,
                memory: config.sim_memory,
                ..SimConfig::default()
            })),
            DriverChoice::Ascend => Err(Error::Unsupported("driver=ascend comes with a later version".into())),
        }
    }

    fn build(driver: Arc<dyn Driver>, config: Config, memory: Memory) -> Result<Arc<Allocator>> {
        process::watch();
        if config.kind == Kind::Pinned {
            return Err(Error::Unsupported("kind=pinned comes with a later version".into()));
        }
        let rule = match config.rule {
            Rule::Cuda => SegmentRule::CUDA,
            Rule::Ascend | Rule::AscendHost => SegmentRule::ascend(config.pad, 64),
            Rule::AscendMedia => SegmentRule::ascend(config.pad, 128),
        };
        Ok(Arc::new(Allocator {
            streams: driver.features().stream_ids || config.streams_trusted,
            plain: !config.passthrough && !config.guard && config.fill.is_none(),
            driver,
            config,
            rule,
            memory,
            caches: Arc::new(StreamCaches::default()),
            pools: (0..DEVICES).map(|_| OnceBox::new()).collect(),
            making: Mutex::new(()),
            closed: AtomicBool::new(false),
        }))
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
    #[inline]
    pub fn allocate(&self, request: Request) -> Result<u64> {
        process::usable()?;
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::InvalidArgument("the allocator was destroyed".into()));
        }
        let want = self.want(request.size, request.alignment)?;
        if request.flags & !RESIZABLE != 0 {
            return Err(unknown_flags(request.flags));
        }
        match request.stream {
            Some(stream) if self.streams => self.allocate_on(want, request, stream),
            _ => self.allocate_anywhere(want, request),
        }
    }

    /// The hit: one lock, at most two queries, a pop.
    #[inline]
    fn allocate_on(&self, want: Want, request: Request, stream: Stream) -> Result<u64> {
        let Some(key) = self.key(stream)? else {
            return self.allocate_at_home(want, request);
        };
        let cache = self.caches.get(key);
        let (id, capture) = match self.ask(stream) {
            Ok(answer) => answer,
            Err(error) => return Err(self.unanswered(cache, error)),
        };
        if self.plain && request.flags & RESIZABLE == 0 && capture == Capture::None {
            let mut inner = cache.inner.lock();
            inner.queries += if self.config.streams_trusted { 0 } else { 2 };
            if let Some(generation) = inner.generation.as_ref().filter(|generation| generation.id == id)
                && request.device.is_none_or(|device| device == generation.device)
            {
                let Some(pool) = self.made(generation.device) else {
                    return self.no_device(generation.device);
                };
                pool.alive()?;
                inner.capture = 0;
                // A stream that holds what others want is stamped first, on the way of a miss.
                let content = inner.hunger == pool.hunger.load(Ordering::Relaxed) || inner.unstamped == 0;
                let ready = if content {
                    inner.ready.pop(&pool.blocks, want.size, want.align)
                } else {
                    None
                };
                if let Some(node) = ready {
                    let block = pool.blocks.get(node);
                    block.requested.store(want.requested, Ordering::Relaxed);
                    block.state.store(LIVE, Ordering::Release);
                    inner.allocations += 1;
                    inner.requested += want.requested as i64;
                    inner.frees_in_a_row = 0;
                    inner.allocates = true;
                    drop(inner);
                    pool.counters.handed_out(want.size);
                    return Ok(block.address.load(Ordering::Relaxed));
                }
            }
        }
        self.miss(
            want,
            request,
            Turn {
                cache,
                stream,
                id,
                capture,
            },
        )
    }

    /// A stream could not be asked: where its context carries an error that will not go away, the pool is dead.
    #[cold]
    fn unanswered(&self, cache: &StreamCache, error: Error) -> Error {
        let known = cache.inner.lock().generation.as_ref().map(|of| (of.device, of.context));
        if let (Error::Driver(cause), Some((device, context))) = (&error, known)
            && let Some(pool) = self.made(device)
        {
            pool.stream_failed(context, *cause);
        }
        error
    }

    #[cold]
    fn miss(&self, want: Want, request: Request, turn: Turn<'_>) -> Result<u64> {
        let known = turn
            .cache
            .inner
            .lock()
            .generation
            .as_ref()
            .map(|generation| (generation.id, generation.device));
        let device = match known {
            Some((id, device)) if id == turn.id => device,
            _ => {
                let device = self.stream_device(turn.stream)?;
                if let Some(pool) = known
                    .filter(|(_, old)| *old != device)
                    .and_then(|(_, old)| self.made(old))
                {
                    pool.release_stream(turn.cache, None);
                }
                device
            }
        };
        let wanted = request.device.unwrap_or(device);
        let pool = self.pool(wanted)?;
        turn.cache.inner.lock().allocates = true;
        if let Some(special) = pool.special(request.flags & RESIZABLE != 0) {
            let address = pool.allocate_special(want, special, Some(&turn).filter(|_| wanted == device))?;
            return Ok(self.filled(
                pool,
                address,
                want.size,
                Some(turn.stream).filter(|_| turn.capture == Capture::None),
            ));
        }
        // A stream of another device is no stream of this pool: what it gets must be safe for anybody.
        let address = pool.allocate(want, Some(&turn).filter(|_| wanted == device))?;
        Ok(self.filled(
            pool,
            address,
            want.size,
            Some(turn.stream).filter(|_| turn.capture == Capture::None),
        ))
    }

    /// A request without a stream, or one whose stream cannot be told apart from another.
    fn allocate_anywhere(&self, want: Want, request: Request) -> Result<u64> {
        let pool = self.pool(self.device(request.device)?)?;
        let address = match pool.special(request.flags & RESIZABLE != 0) {
            Some(special) => pool.allocate_special(want, special, None)?,
            None => pool.allocate(want, None)?,
        };
        Ok(self.filled(pool, address, want.size, None))
    }

    /// A request on a default stream with no context: it means the one of the device's primary context.
    #[cold]
    fn allocate_at_home(&self, want: Want, request: Request) -> Result<u64> {
        let pool = self.pool(self.device(request.device)?)?;
        pool.at_home(|| match request.stream {
            Some(stream) if self.key(stream)?.is_some() => self.allocate_on(want, request, stream),
            _ => self.allocate_anywhere(want, request),
        })?
    }

    /// Resizes a block that was allocated [`RESIZABLE`]; its bytes are kept, and on an error it stands untouched.
    pub fn reallocate(&self, address: u64, alignment: u64, new_size: u64) -> Result<u64> {
        process::usable()?;
        let want = self.want(new_size, alignment)?;
        for pool in self.all_pools() {
            if let Some((_, block)) = pool.find(address) {
                if block.state.load(Ordering::Relaxed) != LIVE {
                    return Err(Error::InvalidArgument(format!("{address:#x} was freed")));
                }
                return Err(match self.config.backing {
                    crate::config::Backing::Malloc => {
                        Error::Unsupported("resizing without virtual memory comes with a later version".into())
                    }
                    _ => Error::InvalidArgument("the block was not allocated resizable".into()),
                });
            }
            if let Some(outcome) = pool.resize(address, want) {
                return outcome;
            }
        }
        Err(foreign(address))
    }

    /// Takes a block back. With a stream, work queued on it so far may still use the block; without, any work queued so
    /// far anywhere. 0 is accepted.
    #[inline]
    pub fn deallocate(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        if process::forked() {
            return process::usable();
        }
        if process::exiting() {
            return Ok(());
        }
        for pool in self.all_pools() {
            if let Some((id, block)) = pool.find(address) {
                self.take_back(pool, id, block, address, stream)?;
                if self.closed.load(Ordering::Relaxed) {
                    self.finish();
                }
                return Ok(());
            }
        }
        self.take_back_beside(address, stream)
    }

    #[inline]
    fn take_back(&self, pool: &Pool, id: NodeId, block: &Block, address: u64, stream: Option<Stream>) -> Result<()> {
        let cache = self.cache(stream, pool);
        if let Some(byte) = self.config.fill {
            // Claimed while it is filled: a second free of it must not write into what the first made somebody else's.
            if !block.claim(address, PENDING) {
                return Err(freed_twice(address));
            }
            pool.fill(address, byte, block.size(), stream);
            block.state.store(LIVE, Ordering::Release);
        }
        let Some(cache) = cache else {
            if !block.claim(address, PENDING) {
                return Err(freed_twice(address));
            }
            pool.free(id, block, None, stream.is_none());
            return Ok(());
        };
        let plain = block.capture.load(Ordering::Relaxed) == 0 && block.shared.load(Ordering::Relaxed) == 0;
        let mut inner = cache.inner.lock();
        let mine = plain
            && inner
                .generation
                .as_ref()
                .is_some_and(|generation| generation.device == pool.device);
        if !block.claim(address, if mine { CACHED } else { PENDING }) {
            return Err(freed_twice(address));
        }
        let due = inner.count_free(block.size(), pool.hunger.load(Ordering::Relaxed));
        if mine {
            let size = block.size();
            block.stamp.store(inner.next_stamp, Ordering::Relaxed);
            inner.frees += 1;
            inner.requested -= block.requested.load(Ordering::Relaxed) as i64;
            inner.ready.push(&pool.blocks, size, id);
            drop(inner);
            pool.counters.taken_back(size);
        } else {
            drop(inner);
            pool.free(id, block, Some(cache), false);
        }
        if due && let Some(stream) = stream {
            self.stamp(pool, cache, stream, mine);
        }
        Ok(())
    }

    /// A stream has freed much and allocated nothing: what it freed is stamped, if the stream is of the pool's device.
    #[cold]
    fn stamp(&self, pool: &Pool, cache: &StreamCache, stream: Stream, known: bool) {
        if known || self.stream_device(stream).is_ok_and(|device| device == pool.device) {
            pool.stamp_freeing(cache, stream, self.config.streams_trusted);
        }
    }

    #[cold]
    fn take_back_beside(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        let taken = |pool: &Pool| pool.free_standalone(address, self.cache(stream, pool), stream.is_none());
        if !self.all_pools().any(taken) {
            return Err(foreign(address));
        }
        if self.closed.load(Ordering::Relaxed) {
            self.finish();
        }
        Ok(())
    }

    /// Declares that the block is also used on `stream`: it is reused only when that stream's work is done too.
    pub fn record_stream(&self, address: u64, stream: Stream) -> Result<()> {
        process::usable()?;
        // A default stream where no context is current is the one of the pool's own.
        let context = match self.key(stream)? {
            Some(_) => Some(self.driver.stream_context(stream)?),
            None => None,
        };
        for pool in self.all_pools() {
            if pool.share(address, context) {
                return Ok(());
            }
        }
        Err(foreign(address))
    }

    /// Says that `stream` is about to be destroyed: what it freed is stamped while it can be.
    pub fn stream_release(&self, stream: Stream) -> Result<()> {
        process::usable()?;
        let Some(key) = self.key(stream)? else {
            return Ok(());
        };
        let cache = self.caches.get(key);
        let known = cache
            .inner
            .lock()
            .generation
            .as_ref()
            .map(|generation| (generation.id, generation.device));
        let Some((id, pool)) = known.and_then(|(id, device)| Some((id, self.made(device)?))) else {
            return Ok(());
        };
        // A stamp on another stream at the same handle would say nothing of this one's work.
        let (now, capture) = self.ask(stream)?;
        pool.release_stream(cache, Some(stream).filter(|_| now == id && capture == Capture::None));
        Ok(())
    }

    /// One device's figures; none: the current device's.
    pub fn stats(&self, device: Option<i32>) -> Result<Stats> {
        process::usable()?;
        let device = self.device(device)?;
        Ok(self.made(device).map(Pool::stats).unwrap_or_default())
    }

    /// Starts the peaks anew.
    pub fn reset_peaks(&self, device: Option<i32>) -> Result<()> {
        process::usable()?;
        if let Some(pool) = self.made(self.device(device)?) {
            pool.reset_peaks();
        }
        Ok(())
    }

    /// Gives memory back to the driver until at most `keep` bytes stay reserved, as far as it is free; returns the bytes
    /// released.
    pub fn trim(&self, device: Option<i32>, keep: u64) -> Result<u64> {
        process::usable()?;
        self.made(self.device(device)?).map_or(Ok(0), |pool| pool.trim(keep))
    }

    /// Caps reserved memory; 0: no cap. What is reserved beyond it is released as it falls free.
    pub fn set_limit(&self, device: Option<i32>, bytes: u64) -> Result<()> {
        process::usable()?;
        self.pool(self.device(device)?)?.set_limit(bytes)
    }

    /// New requests fail from now on; blocks still out stay valid, and memory goes with the last of them. Twice is harmless.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if process::usable().is_ok() {
            self.finish();
        }
    }

    /// Whether every invariant of every pool holds; else which does not. Walks everything: for tests.
    pub fn validate(&self) -> std::result::Result<(), String> {
        self.all_pools().try_for_each(Pool::validate)
    }

    /// The pool of a device that has been used.
    #[cfg(test)]
    pub(crate) fn pool_of(&self, device: i32) -> &Pool {
        self.made(device).expect("the device has a pool")
    }

    #[cold]
    fn finish(&self) {
        for pool in self.all_pools().filter(|pool| pool.is_idle()) {
            if !pool.shut_down() {
                tracing::debug!(device = pool.device, "memory is still in use and stays for now");
            }
        }
    }

    /// Size and alignment as they will be carved.
    #[inline]
    fn want(&self, size: u64, alignment: u64) -> Result<Want> {
        let align = alignment.max(self.rule.start);
        if size == 0 || !align.is_power_of_two() || align > MOST_ALIGNED || (alignment & alignment.wrapping_sub(1)) != 0
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

    /// A stream's id and what it says of capture; trusted streams are not asked.
    #[inline]
    fn ask(&self, stream: Stream) -> Result<(u64, Capture)> {
        if self.config.streams_trusted {
            return Ok((1, Capture::None));
        }
        Ok((self.driver.stream_id(stream)?, self.driver.stream_capture(stream)?))
    }

    /// What a stream handle means here; none for a default stream where no context is current.
    #[inline]
    fn key(&self, stream: Stream) -> Result<Option<Key>> {
        if !stream.is_special() {
            return Ok(Some(Key {
                stream,
                context: 0,
                thread: 0,
            }));
        }
        Ok(self
            .driver
            .current_context()?
            .map(|context| Key::special(stream, context)))
    }

    /// The cache a free in `pool` goes to; none for a stream-less one, or where streams mean nothing. A default stream where
    /// no context is current is the one of the pool's own.
    #[inline]
    fn cache(&self, stream: Option<Stream>, pool: &Pool) -> Option<&StreamCache> {
        let stream = stream.filter(|_| self.streams)?;
        let key = self
            .key(stream)
            .ok()?
            .unwrap_or_else(|| Key::special(stream, pool.home()));
        Some(self.caches.get(key))
    }

    fn stream_device(&self, stream: Stream) -> Result<i32> {
        let context = self.driver.stream_context(stream)?;
        if self.driver.current_context()? == Some(context) {
            return self.driver.current_device()?.map_or_else(|| self.device(None), Ok);
        }
        self.driver.context_push(context)?;
        let device = self.driver.current_device();
        self.driver.context_pop()?;
        device?.map_or_else(|| self.device(None), Ok)
    }

    /// The device meant: the one named, else the current context's, else the option's, else 0.
    fn device(&self, named: Option<i32>) -> Result<i32> {
        let device = match named {
            Some(device) => device,
            None => self.driver.current_device()?.or(self.config.device).unwrap_or(0),
        };
        let count = self.driver.device_count()?;
        if device < 0 || device as usize >= DEVICES || device as u32 >= count {
            return Err(Error::InvalidArgument(format!("device {device} of {count}")));
        }
        Ok(device)
    }

    #[inline]
    fn made(&self, device: i32) -> Option<&Pool> {
        self.pools.get(device as usize)?.get()
    }

    fn all_pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().filter_map(OnceBox::get)
    }

    fn no_device<T>(&self, device: i32) -> Result<T> {
        Err(Error::InvalidArgument(format!("device {device} has no pool")))
    }

    /// The pool of a device, made at its first use.
    fn pool(&self, device: i32) -> Result<&Pool> {
        if let Some(pool) = self.made(device) {
            return Ok(pool);
        }
        let _making = self.making.lock();
        let slot = self
            .pools
            .get(device as usize)
            .ok_or_else(|| Error::InvalidArgument(format!("device {device}")))?;
        slot.get_or_try_init(|| {
            let options = self.options(device)?;
            Ok(Box::new(Pool::new(
                self.driver.clone(),
                device,
                self.memory,
                options,
                self.caches.clone(),
            )?))
        })
    }

    fn options(&self, device: i32) -> Result<Options> {
        let config = &self.config;
        let limit = match config.limit {
            Limit::None => 0,
            Limit::Bytes(bytes) => bytes,
            Limit::Percent(percent) => (self.driver.device_info(device)?.total as f64 * percent / 100.0) as u64,
        };
        let peers = match &config.peers {
            Peers::None => Vec::new(),
            Peers::Auto => (0..self.driver.device_count()? as i32).collect(),
            Peers::List(list) => list.clone(),
        };
        Ok(Options {
            rule: self.rule,
            limit,
            release_threshold: config.release_threshold,
            wait: std::time::Duration::from_millis(config.wait_ms),
            passthrough: config.passthrough,
            guard: config.guard,
            fill: config.fill,
            kind: HandleKind {
                share_fd: config.share == Share::Fd,
                share_fabric: config.share == Share::Fabric,
                rdma: config.rdma,
            },
            peers,
            peers_must: matches!(config.peers, Peers::List(_)),
        })
    }

    #[inline]
    fn filled(&self, pool: &Pool, address: u64, size: u64, stream: Option<Stream>) -> u64 {
        if let Some(byte) = self.config.fill {
            pool.fill(address, byte, size, stream);
        }
        address
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        self.close();
    }
}

#[cold]
fn bad_request(size: u64, alignment: u64) -> Error {
    Error::InvalidArgument(match size {
        0 => "size 0".into(),
        _ => format!("alignment {alignment} is not 0 or a power of two up to {MOST_ALIGNED}"),
    })
}

#[cold]
fn unknown_flags(flags: u32) -> Error {
    Error::InvalidArgument(format!("flags {flags:#x} has bits other than TRTALLOC_RESIZABLE"))
}

#[cold]
fn freed_twice(address: u64) -> Error {
    Error::InvalidArgument(format!("{address:#x} was freed before"))
}

#[cold]
fn foreign(address: u64) -> Error {
    Error::InvalidArgument(format!("{address:#x} is no block of this allocator"))
}
