//! The driver calls that the pool needs, behind one trait: [`Driver`].
//!
//! `cuda` implements them with libcuda.so.1, `ascend` with libascendcl.so, and `sim` with a simulated device in this
//! process. `none` is for external memory on a machine without a driver. `open` lists the drivers and opens one by its
//! name. Methods correspond one to one to functions of the CUDA driver, which their comments name, and follow CUDA's
//! rules. No method is called while the process exits or in a forked child.
//!
//! Uses: sync.

use std::cell::Cell;
use std::ffi::c_void;
// What is known of captures is the process's. No model covers it, and loom's atomics cannot be in a static.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub mod ascend;
mod captures;
pub mod cuda;
mod library;
pub mod none;
mod open;
pub mod sim;
mod tools;

pub use captures::{RunningCapture, RunningCaptures};
pub use open::{DRIVERS, Descriptor, DriverChoice, Settings, open, open_for_external};
pub use tools::Tools;

/// How long [`Driver::event_wait`] polls without a pause. Most events that it waits for are about to complete.
const SPIN: Duration = Duration::from_micros(20);
/// The longest pause between two polls of [`Driver::event_wait`].
const MAX_PAUSE: Duration = Duration::from_micros(50);

/// A `CUcontext`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Context(pub usize);

/// A `CUstream`: 0 and 1 name the legacy default stream, 2 the per-thread default stream, of the current context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream(pub usize);

impl Stream {
    /// The legacy default stream as `nullptr`.
    pub const DEFAULT: Stream = Stream(0);
    /// `CU_STREAM_LEGACY`.
    pub const LEGACY: Stream = Stream(1);
    /// `CU_STREAM_PER_THREAD`.
    pub const PER_THREAD: Stream = Stream(2);

    /// Whether the handle has a meaning only together with the current context (and thread).
    pub fn is_default(self) -> bool {
        self.0 <= 2
    }

    /// The handle as a history records it: 0 for both handles of the legacy default stream.
    #[doc(hidden)]
    pub fn recorded(stream: Option<Stream>) -> Option<u64> {
        stream.map(|stream| match stream {
            Stream::LEGACY => 0,
            stream => stream.0 as u64,
        })
    }
}

/// A `CUevent`, made with timing disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event(pub usize);

/// A `CUgraph`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Graph(pub usize);

/// A `CUmemGenericAllocationHandle`: physical memory without an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// What a failed driver call means to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Physical memory or address space is exhausted. A later call may succeed.
    OutOfMemory,
    /// The device or driver cannot do this at all.
    Unsupported,
    /// The library or the function is not there.
    Missing,
    /// The context has a sticky error, or the driver is shutting down: nothing that belongs to the context may be used
    /// again.
    ContextDead,
    /// The context was destroyed or reset; other contexts are as they were.
    ContextDestroyed,
    /// The call was refused because of a stream capture.
    Capture,
    /// There is no context current to the calling thread.
    NoContext,
    /// Anything else.
    Other,
}

impl Failure {
    /// Whether the context that the call was made in, or was given, can no longer be used.
    pub fn is_dead(self) -> bool {
        matches!(self, Failure::ContextDead | Failure::ContextDestroyed)
    }
}

/// A failed driver call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverError {
    /// The driver's function, e.g. `cuMemCreate`.
    pub call: &'static str,
    /// The driver's own number (a `CUresult`); 0 where no call was made.
    pub code: u32,
    /// What it means to the pool.
    pub failure: Failure,
}

impl DriverError {
    /// A refusal without a call.
    pub const fn refused(call: &'static str, failure: Failure) -> DriverError {
        DriverError { call, code: 0, failure }
    }
}

impl std::fmt::Display for DriverError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.failure {
            Failure::Missing => write!(f, "{} is missing", self.call),
            failure => write!(f, "{} failed with {} ({failure:?})", self.call, self.code),
        }
    }
}

impl std::error::Error for DriverError {}

/// A driver call's result.
pub type Result<T> = std::result::Result<T, DriverError>;

/// What a driver of this version can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// `cuStreamGetId` and `cuCtxGetId` (CUDA 12.0).
    pub stream_ids: bool,
    /// `cuCtxRecordEvent` (CUDA 12.5).
    pub context_events: bool,
    /// `cuGraphRetainUserObject` (CUDA 11.3).
    pub user_objects: bool,
}

/// Properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device's name.
    pub name: String,
    /// Physical memory in bytes.
    pub total: u64,
    /// Minimum and recommended granularity of handles in bytes (`cuMemGetAllocationGranularity`); 0 without virtual
    /// memory.
    pub granularity: (u64, u64),
    /// Whether the device reports virtual memory management. Only a trial shows that it works.
    pub virtual_memory: bool,
}

/// A stream's capture status (`cuStreamIsCapturing`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture {
    /// Not capturing.
    None,
    /// Capturing.
    Active,
    /// The capture was invalidated and has not ended yet.
    Invalidated,
    /// The legacy stream, while a blocking stream captures (`CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`).
    Implicit,
}

/// A running capture (`cuStreamGetCaptureInfo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureInfo {
    /// Unique for the life of the process.
    pub id: u64,
    /// The graph under construction.
    pub graph: Graph,
}

/// `cuThreadExchangeStreamCaptureMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMode {
    /// `CU_STREAM_CAPTURE_MODE_GLOBAL`, every thread's mode at first.
    Global,
    /// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
    ThreadLocal,
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`.
    Relaxed,
}

/// Properties of a physical handle beyond device and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandleKind {
    /// Exportable as a POSIX file descriptor.
    pub share_fd: bool,
    /// Exportable as a fabric handle.
    pub share_fabric: bool,
    /// `gpuDirectRDMACapable`.
    pub rdma: bool,
}

/// A user object's destructor. It may make no driver call. The driver runs it on a thread that it uses for other work,
/// too.
pub type UserObjectDestructor = unsafe extern "C" fn(*mut c_void);

/// The error of a call that a driver does not have.
fn unsupported<T>(call: &'static str) -> Result<T> {
    Err(DriverError {
        call,
        code: 0,
        failure: Failure::Unsupported,
    })
}

/// Makes a query that CUDA may count among the calls that are unsafe during a capture. Outside of relaxed mode, such a
/// call ends global captures of other threads and the thread's own captures. The mode is exchanged only where a capture
/// is known, because most processes never capture. Each hit makes such a query, so the driver's type is known here.
#[inline]
fn beside_captures<T>(driver: &impl Driver, query: impl Fn() -> Result<T>) -> Result<T> {
    if driver.capture_known().load(Ordering::Relaxed) {
        return in_relaxed_mode(driver, &query);
    }
    match query() {
        Err(error) if error.failure == Failure::Capture => {
            driver.note_capture();
            in_relaxed_mode(driver, &query)
        }
        answer => answer,
    }
}

/// The query is not a generic argument, so that it is inlined where it is made without a capture.
#[cold]
fn in_relaxed_mode<T>(driver: &dyn Driver, query: &dyn Fn() -> Result<T>) -> Result<T> {
    let _relaxed = RelaxedMode::begin(driver)?;
    query()
}

/// The id of a default stream of the context with the id `context`. CUDA says of cuStreamGetId that the id is that of the
/// handle. A default stream's handle means another stream in each context, and the per-thread one in each thread, and both
/// may come back with another context or thread.
#[inline]
fn default_stream_id(stream: Stream, context: u64) -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    std::thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    if stream != Stream::PER_THREAD {
        return context;
    }
    if NUMBER.get() == 0 {
        NUMBER.set(NUMBERS.fetch_add(1, Ordering::Relaxed));
    }
    // Contexts are few, so the two do not meet.
    context.rotate_right(24) ^ NUMBER.get()
}

/// [`Driver::covering_context`] of a driver that has green contexts.
fn covering_context(driver: &impl Driver, current: Context) -> Result<Context> {
    match driver.look_for_capture(Stream::LEGACY)? {
        Capture::None => driver.stream_context(Stream::LEGACY),
        // A blocking stream captures, and the query would end that. Green contexts have no blocking streams.
        Capture::Implicit => Ok(current),
        // Of default streams, only a green context's can be captured.
        Capture::Active | Capture::Invalidated => {
            let Some(device) = driver.current_device()? else {
                return Ok(current);
            };
            let _relaxed = RelaxedMode::begin(driver)?;
            let primary = driver.primary_retain(device)?;
            driver.primary_release(device).map(|()| primary)
        }
    }
}

/// Makes `context` current to this thread, where `before` is current. CUDA's calls may return the error of earlier work
/// although they did what they are for, so an error leaves the thread with the context that it had.
pub fn push_context(driver: &dyn Driver, before: Option<Context>, context: Context) -> Result<()> {
    driver.context_push(context).inspect_err(|_| {
        // Where it was current before, it cannot be seen whether it is there twice.
        if before != Some(context) && driver.current_context() == Ok(Some(context)) {
            let _ = driver.context_pop();
        }
    })
}

/// Takes back [`push_context`]. One refusal is retried, because what follows must not run in the wrong context; a call
/// that returned an error and popped all the same is not repeated.
pub fn pop_context(driver: &dyn Driver, before: Option<Context>, context: Context) {
    let is_there = || before == Some(context) || driver.current_context() == Ok(Some(context));
    if driver.context_pop().is_err() && is_there() {
        let _ = driver.context_pop();
    }
}

/// This thread's capture mode is relaxed while this lives.
pub struct RelaxedMode<'d> {
    driver: &'d dyn Driver,
    before: CaptureMode,
}

impl RelaxedMode<'_> {
    /// Makes it relaxed.
    pub fn begin(driver: &dyn Driver) -> Result<RelaxedMode<'_>> {
        let before = driver.exchange_capture_mode(CaptureMode::Relaxed)?;
        Ok(RelaxedMode { driver, before })
    }
}

impl Drop for RelaxedMode<'_> {
    fn drop(&mut self) {
        if self.before != CaptureMode::Relaxed {
            let restore = || self.driver.exchange_capture_mode(self.before);
            let _ = restore().or_else(|_| restore());
        }
    }
}

/// The driver calls that the pool makes. They are safe from any thread. Sizes and addresses are in bytes.
///
/// A method with a body is what some drivers lack: ids and events of contexts ([`Features`]), captures, virtual memory
/// (no `granularity` in [`DeviceInfo`]), pinned host memory. Without virtual memory, memory comes from `malloc`.
pub trait Driver: Send + Sync + 'static {
    /// Its value of the option `driver`.
    fn name(&self) -> &'static str;
    /// What this driver's version offers.
    fn features(&self) -> Features;
    /// Whether the driver can report that work has completed. If it cannot, a caller that frees without a stream
    /// declares that every use has ended, and the pool knows of no other completion.
    fn knows_work(&self) -> bool {
        true
    }
    /// Whether blocks may not lie as close together as CUDA's. The option `rule` is then `ascend` unless it is one of
    /// Ascend's others.
    fn spaces_blocks(&self) -> bool {
        false
    }

    /// What commands, tests and benches need beside memory; `None` where it has none of it.
    fn tools(&self) -> Option<&dyn Tools> {
        None
    }

    /// `cuDeviceGetCount`.
    fn device_count(&self) -> Result<u32>;
    /// `cuDeviceGetName`, `cuDeviceTotalMem`, `cuMemGetAllocationGranularity`, attributes.
    fn device_info(&self, device: i32) -> Result<DeviceInfo>;
    /// Minimum and recommended granularity of handles of `kind` (`cuMemGetAllocationGranularity`). CUDA computes it from
    /// the properties of an allocation, so it may differ from [`DeviceInfo::granularity`], which is that of plain handles.
    fn granularity(&self, device: i32, _kind: HandleKind) -> Result<(u64, u64)> {
        Ok(self.device_info(device)?.granularity)
    }
    /// `cuDeviceGetUuid_v2`: the same in every process, and of a MIG instance its own.
    fn device_uuid(&self, _device: i32) -> Result<[u8; 16]> {
        unsupported("device_uuid")
    }
    /// Free and total bytes (`cuMemGetInfo`). Pushes and pops the primary context where that is necessary.
    fn memory_info(&self, device: i32) -> Result<(u64, u64)>;

    /// `cuCtxGetCurrent`: `None` where this thread has no current context. A query.
    fn current_context(&self) -> Result<Option<Context>>;
    /// `cuCtxGetDevice`: the current context's device, `None` where there is no context. A query.
    fn current_device(&self) -> Result<Option<i32>>;
    /// `cuDevicePrimaryCtxRetain`. Does not make it current.
    fn primary_retain(&self, device: i32) -> Result<Context>;
    /// `cuDevicePrimaryCtxRelease`.
    fn primary_release(&self, device: i32) -> Result<()>;
    /// `cuDevicePrimaryCtxGetState`'s `active`.
    fn primary_active(&self, device: i32) -> Result<bool>;
    /// `cuCtxGetId`: unique for the process's life, so a new context with an old handle is recognized. A query.
    // Of CUDA, this and the next two go through `beside_captures`.
    fn context_id(&self, _context: Context) -> Result<u64> {
        unsupported("context_id")
    }
    /// `cuCtxPushCurrent`.
    fn context_push(&self, context: Context) -> Result<()>;
    /// `cuCtxPopCurrent`.
    fn context_pop(&self) -> Result<()>;
    /// `cuCtxRecordEvent`: the event completes once everything queued in the context now has. Ends captures in it.
    fn context_record_event(&self, _context: Context, _event: Event) -> Result<()> {
        unsupported("context_record_event")
    }
    /// `cuCtxSynchronize` on the current context. Unbounded; ends captures.
    fn context_synchronize(&self) -> Result<()>;

    /// `cuStreamGetId`, for a special handle `cuCtxGetId` of the current context, and the thread: unique among the streams
    /// that a handle ever meant, in a context's handle and a thread. A dead handle is undefined behaviour, and CUDA ends the
    /// capture of a stream that captures. A query.
    fn stream_id(&self, _stream: Stream) -> Result<u64> {
        unsupported("stream_id")
    }
    /// `cuStreamGetCtx_v2`, before CUDA 12.5 `cuStreamGetCtx`: the context whose events cover the stream, that is, for a
    /// stream of a green context the primary context. For a special handle the current context's. CUDA ends the capture of
    /// a stream that captures. A query.
    fn stream_context(&self, stream: Stream) -> Result<Context>;
    /// As [`Driver::stream_context`]: whether the stream is of a green context.
    fn is_of_green_context(&self, _stream: Stream) -> Result<bool> {
        Ok(false)
    }
    /// The context whose events cover the work of `current`, which is current to this thread: for a green context the
    /// primary context. CUDA allows a green context in one thread at a time and synchronizes no calls of several threads
    /// for it, so no green context is used beyond the call that it is current in.
    fn covering_context(&self, current: Context) -> Result<Context> {
        Ok(current)
    }
    /// As [`Driver::stream_context`], for a stream that may capture. Its context is most likely the current one then,
    /// and the driver cannot be asked.
    fn context_of(&self, stream: Stream) -> Result<Context> {
        if !stream.is_default() && self.look_for_capture(stream)? == Capture::None {
            return self.stream_context(stream);
        }
        self.current_context()?.ok_or(DriverError {
            call: "cuCtxGetCurrent",
            code: 0,
            failure: Failure::NoContext,
        })
    }
    /// `cuStreamIsCapturing`. A query.
    fn stream_capture(&self, _stream: Stream) -> Result<Capture> {
        Ok(Capture::None)
    }
    /// As [`Driver::stream_capture`]. Notes that this process captures if it does.
    #[inline]
    fn look_for_capture(&self, stream: Stream) -> Result<Capture> {
        let capture = self.stream_capture(stream)?;
        if capture != Capture::None {
            self.note_capture();
        }
        Ok(capture)
    }
    /// Notes that this process captures.
    fn note_capture(&self) {
        self.capture_known().store(true, Ordering::Relaxed);
    }
    /// Whether this process is known to capture. A call for one allocator may end a capture that only another one knows
    /// of, so all drivers have one flag together. A device that is simulated in this process has a flag of its own.
    fn capture_known(&self) -> &AtomicBool {
        static KNOWN: AtomicBool = AtomicBool::new(false);
        &KNOWN
    }
    /// The captures in which an allocator of this process has memory. As [`Driver::capture_known`], all drivers have them
    /// together.
    fn running_captures(&self) -> &RunningCaptures {
        static RUNNING: RunningCaptures = RunningCaptures::new();
        &RUNNING
    }
    /// `cuStreamGetCaptureInfo`: `None` where the stream does not capture. A query.
    fn stream_capture_info(&self, _stream: Stream) -> Result<Option<CaptureInfo>> {
        Ok(None)
    }
    /// `cuStreamWaitEvent`.
    fn stream_wait_event(&self, stream: Stream, event: Event) -> Result<()>;
    /// `cuThreadExchangeStreamCaptureMode`: sets this thread's mode, returns the one before.
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        Ok(mode)
    }

    /// `cuEventCreate` in the current context, timing disabled.
    fn event_create(&self) -> Result<Event>;
    /// `cuEventDestroy`.
    fn event_destroy(&self, event: Event) -> Result<()>;
    /// `cuEventRecord`; event and stream are of one context.
    fn event_record(&self, event: Event, stream: Stream) -> Result<()>;
    /// `cuEventQuery`: whether everything before its last record has completed. True for one never recorded.
    fn event_query(&self, event: Event) -> Result<bool>;
    /// Waits until [`Driver::event_query`] is true or `limit` has passed. Returns whether the event has completed.
    // It polls, because a call that waits could not be left: an event behind a persistent kernel never completes.
    fn event_wait(&self, event: Event, limit: Duration) -> Result<bool> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(1);
        loop {
            if self.event_query(event)? {
                return Ok(true);
            }
            let waited = start.elapsed();
            if waited >= limit {
                return Ok(false);
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else if pause < MAX_PAUSE / 8 {
                std::thread::yield_now();
                pause *= 2;
            } else {
                std::thread::sleep(pause.min(limit - waited));
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }

    /// `cuMemAddressReserve`. `size` and `alignment` are multiples of the granularity (alignment a power of two or 0).
    fn reserve(&self, _size: u64, _alignment: u64) -> Result<u64> {
        unsupported("reserve")
    }
    /// `cuMemAddressFree`: whole reservations only, nothing mapped.
    fn unreserve(&self, _address: u64, _size: u64) -> Result<()> {
        unsupported("unreserve")
    }
    /// `cuMemCreate`.
    fn create(&self, _device: i32, _size: u64, _kind: HandleKind) -> Result<Handle> {
        unsupported("create")
    }
    /// `cuMemRelease`: the driver frees the memory once it is not mapped any more.
    fn release(&self, _handle: Handle) -> Result<()> {
        unsupported("release")
    }
    /// `cuMemMap` of the whole handle (offset 0).
    fn map(&self, _address: u64, _size: u64, _handle: Handle) -> Result<()> {
        unsupported("map")
    }
    /// `cuMemUnmap`: one or several adjacent whole mappings. Does not wait for work.
    fn unmap(&self, _address: u64, _size: u64) -> Result<()> {
        unsupported("unmap")
    }
    /// `cuMemSetAccess` (read and write) for `devices` over whole mappings.
    fn set_access(&self, _address: u64, _size: u64, _devices: &[i32]) -> Result<()> {
        unsupported("set_access")
    }

    /// `cuMemAlloc` on `device`, whose context is current. May synchronise.
    fn malloc(&self, size: u64) -> Result<u64>;
    /// `cuMemFree`. Waits for the device.
    fn free(&self, address: u64) -> Result<()>;
    /// `cuMemHostAlloc` (portable).
    fn host_malloc(&self, _size: u64) -> Result<u64> {
        unsupported("host_malloc")
    }
    /// `cuMemFreeHost`.
    fn host_free(&self, _address: u64) -> Result<()> {
        unsupported("host_free")
    }
    /// `cuMemcpyDtoDAsync`.
    fn copy_async(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<()>;
    /// `cuMemsetD8Async`.
    fn fill_async(&self, address: u64, byte: u8, bytes: u64, stream: Stream) -> Result<()>;

    /// `cuUserObjectCreate` and `cuGraphRetainUserObject` with `CU_GRAPH_USER_OBJECT_MOVE`: `destructor(data)` runs
    /// once, after the graph and every executable graph made of it are destroyed.
    ///
    /// # Safety
    ///
    /// `destructor` may be called with `data` from any thread at any later time.
    unsafe fn retain_user_object(
        &self,
        _graph: Graph,
        _destructor: UserObjectDestructor,
        _data: *mut c_void,
    ) -> Result<()> {
        unsupported("retain_user_object")
    }
}
