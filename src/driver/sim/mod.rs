//! The simulated device as a [`Driver`]: an adapter over [`model`], which has the simulation and lists its rules. The
//! model depends neither on this file nor on the driver trait.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::{
    Capture, CaptureInfo, CaptureMode, Context, Descriptor, DeviceInfo, Driver, DriverError, Event, Failure, Features,
    Graph, Handle, HandleKind, Result, RunningCaptures, Stream, Tools, UserObjectDestructor, beside_captures,
    covering_context, default_stream_id,
};

pub mod model;
mod tools;

pub use model::functions::Latencies;
pub use model::{Addresses, Machine, MachineConfig as SimConfig};

use model::code;
use model::functions::Call;

/// `driver=sim`.
pub static DRIVER: Descriptor = Descriptor {
    // A computer is simulated for each allocator, so none is in use before; each device has this memory.
    memory_in_use: |settings, named, otherwise| {
        let exists = (0..settings.sim.devices as i32).contains(&named.unwrap_or(otherwise));
        exists.then_some(settings.sim.memory)
    },
    ..Descriptor::new("sim", |settings| Ok(SimDriver::new(settings.sim.clone())))
};

/// A driver whose devices are simulated. Safe from any thread.
#[derive(Debug)]
pub struct SimDriver {
    machine: Arc<Machine>,
    capture_known: AtomicBool,
    running_captures: RunningCaptures,
}

impl SimDriver {
    /// A new simulated computer with devices as `config` says. The order checker is on unless `config` turns it off.
    pub fn new(config: SimConfig) -> Arc<SimDriver> {
        Self::over(Machine::new(config))
    }

    /// A driver for an existing simulated computer.
    pub fn over(machine: Arc<Machine>) -> Arc<SimDriver> {
        model::HOLDS_LOCK.get_or_init(|| crate::sync::is_watched_lock_held);
        Arc::new(SimDriver {
            machine,
            capture_known: AtomicBool::new(false),
            running_captures: RunningCaptures::new(),
        })
    }

    /// The simulated computer: the application's calls, the clock, the checker, failures and counters.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }
}

impl SimDriver {
    /// As `cuStreamGetCtx_v2`, before CUDA 12.5 as `cuStreamGetCtx`.
    fn stream_contexts(&self, stream: Stream) -> Result<(usize, usize)> {
        beside_captures(self, || {
            let contexts = match self.machine.config().context_events() {
                true => self.machine.stream_contexts(stream.0),
                false => self.machine.stream_context(stream.0).map(|own| (own, 0)),
            };
            checked(Call::StreamGetCtx, contexts)
        })
    }
}

/// What a driver's error number means.
fn failure(code: u32) -> Failure {
    match code {
        code::OUT_OF_MEMORY => Failure::OutOfMemory,
        code::NOT_SUPPORTED => Failure::Unsupported,
        code::INVALID_CONTEXT => Failure::NoContext,
        code::CONTEXT_IS_DESTROYED => Failure::ContextDestroyed,
        // 4 is DEINITIALIZED. The others are errors that stay with their context until it is destroyed.
        4 | 214 | 700 | 702 | 710 | 714..=719 => Failure::ContextDead,
        900..=908 => Failure::Capture,
        _ => Failure::Other,
    }
}

fn checked<T>(call: Call, result: code::Result<T>) -> Result<T> {
    result.map_err(|code| DriverError {
        call: call.name(),
        code,
        failure: failure(code),
    })
}

/// As `checked`, for functions that older drivers do not have.
fn checked_if<T>(available: bool, call: Call, result: impl FnOnce() -> code::Result<T>) -> Result<T> {
    match available {
        true => checked(call, result()),
        false => Err(DriverError {
            call: call.name(),
            code: 0,
            failure: Failure::Missing,
        }),
    }
}

impl Driver for SimDriver {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn features(&self) -> Features {
        let config = self.machine.config();
        Features {
            stream_ids: config.stream_ids(),
            context_events: config.context_events(),
            user_objects: config.user_objects(),
        }
    }

    fn tools(&self) -> Option<&dyn Tools> {
        Some(self)
    }

    fn device_count(&self) -> Result<u32> {
        beside_captures(self, || checked(Call::DeviceGetCount, self.machine.device_count()))
    }

    fn device_info(&self, device: i32) -> Result<DeviceInfo> {
        let total = beside_captures(self, || checked(Call::DeviceInfo, self.machine.device_total(device)))?;
        let config = self.machine.config();
        Ok(DeviceInfo {
            name: format!("simulated device {device}"),
            total,
            granularity: config.granularity_of(false),
            virtual_memory: config.virtual_memory,
        })
    }

    fn granularity(&self, device: i32, kind: HandleKind) -> Result<(u64, u64)> {
        checked(Call::DeviceInfo, self.machine.device_total(device))?;
        Ok(self.machine.config().granularity_of(kind != HandleKind::default()))
    }

    fn device_uuid(&self, device: i32) -> Result<[u8; 16]> {
        checked(Call::DeviceInfo, self.machine.device_total(device))?;
        let mut uuid = *b"simulated device";
        uuid[15] = device as u8;
        Ok(uuid)
    }

    fn memory_info(&self, device: i32) -> Result<(u64, u64)> {
        checked(Call::MemGetInfo, self.machine.memory_info(device))
    }

    #[inline]
    fn current_context(&self) -> Result<Option<Context>> {
        let context = checked(Call::CtxGetCurrent, self.machine.context_current())?;
        Ok((context != 0).then_some(Context(context)))
    }

    #[inline]
    fn current_device(&self) -> Result<Option<i32>> {
        match self.machine.context_current_device() {
            Err(code::INVALID_CONTEXT) => Ok(None),
            result => checked(Call::CtxGetDevice, result).map(Some),
        }
    }

    fn primary_retain(&self, device: i32) -> Result<Context> {
        checked(Call::PrimaryRetain, self.machine.primary_retain(device)).map(Context)
    }

    fn primary_release(&self, device: i32) -> Result<()> {
        checked(Call::PrimaryRelease, self.machine.primary_release(device))
    }

    fn primary_active(&self, device: i32) -> Result<bool> {
        checked(Call::PrimaryGetState, self.machine.primary_active(device))
    }

    fn context_id(&self, context: Context) -> Result<u64> {
        beside_captures(self, || {
            checked_if(self.machine.config().stream_ids(), Call::CtxGetId, || {
                self.machine.context_id(context.0)
            })
        })
    }

    fn context_push(&self, context: Context) -> Result<()> {
        checked(Call::CtxPush, self.machine.context_push(context.0))
    }

    fn context_pop(&self) -> Result<()> {
        checked(Call::CtxPop, self.machine.context_pop()).map(drop)
    }

    fn context_record_event(&self, context: Context, event: Event) -> Result<()> {
        let there = self.machine.config().context_events();
        checked_if(there, Call::CtxRecordEvent, || {
            self.machine.context_record_event(context.0, event.0)
        })
    }

    fn context_synchronize(&self) -> Result<()> {
        checked(Call::CtxSynchronize, self.machine.context_synchronize())
    }

    #[inline]
    fn stream_id(&self, stream: Stream) -> Result<u64> {
        beside_captures(self, || {
            checked_if(self.machine.config().stream_ids(), Call::StreamGetId, || {
                match stream.is_default() {
                    true => Ok(default_stream_id(stream, self.machine.context_id(0)?)),
                    false => self.machine.stream_id(stream.0),
                }
            })
        })
    }

    #[inline]
    fn stream_context(&self, stream: Stream) -> Result<Context> {
        self.stream_contexts(stream).map(|(context, _)| Context(context))
    }

    fn is_of_green_context(&self, stream: Stream) -> Result<bool> {
        self.stream_contexts(stream).map(|(_, green)| green != 0)
    }

    fn covering_context(&self, current: Context) -> Result<Context> {
        match self.machine.config().context_events() {
            true => covering_context(self, current),
            false => Ok(current),
        }
    }

    #[inline]
    fn stream_capture(&self, stream: Stream) -> Result<Capture> {
        match self.machine.stream_is_capturing(stream.0) {
            Ok(0) => Ok(Capture::None),
            Ok(1) => Ok(Capture::Active),
            Ok(_) => Ok(Capture::Invalidated),
            Err(code::CAPTURE_IMPLICIT) => Ok(Capture::Implicit),
            Err(error) => checked(Call::StreamIsCapturing, Err(error)),
        }
    }

    fn capture_known(&self) -> &AtomicBool {
        &self.capture_known
    }

    fn running_captures(&self) -> &RunningCaptures {
        &self.running_captures
    }

    fn stream_capture_info(&self, stream: Stream) -> Result<Option<CaptureInfo>> {
        let info = checked(Call::StreamGetCaptureInfo, self.machine.stream_capture_info(stream.0))?;
        Ok(info.map(|(id, graph)| CaptureInfo {
            id,
            graph: Graph(graph),
        }))
    }

    fn stream_wait_event(&self, stream: Stream, event: Event) -> Result<()> {
        checked(Call::StreamWaitEvent, self.machine.stream_wait_event(stream.0, event.0))
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mode = match mode {
            CaptureMode::Global => model::capture::MODE_GLOBAL,
            CaptureMode::ThreadLocal => model::capture::MODE_THREAD_LOCAL,
            CaptureMode::Relaxed => model::capture::MODE_RELAXED,
        };
        Ok(
            match checked(Call::ThreadExchange, self.machine.exchange_capture_mode(mode))? {
                model::capture::MODE_GLOBAL => CaptureMode::Global,
                model::capture::MODE_THREAD_LOCAL => CaptureMode::ThreadLocal,
                _ => CaptureMode::Relaxed,
            },
        )
    }

    fn event_create(&self) -> Result<Event> {
        checked(Call::EventCreate, self.machine.event_create()).map(Event)
    }

    fn event_destroy(&self, event: Event) -> Result<()> {
        checked(Call::EventDestroy, self.machine.event_destroy(event.0))
    }

    fn event_record(&self, event: Event, stream: Stream) -> Result<()> {
        checked(Call::EventRecord, self.machine.event_record(event.0, stream.0))
    }

    fn event_query(&self, event: Event) -> Result<bool> {
        checked(Call::EventQuery, self.machine.event_query(event.0))
    }

    /// The limit is in simulated time, so this returns at once.
    fn event_wait(&self, event: Event, limit: Duration) -> Result<bool> {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        checked(Call::EventQuery, self.machine.event_wait(event.0, limit))
    }

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64> {
        checked(Call::MemAddressReserve, self.machine.memory_reserve(size, alignment))
    }

    fn unreserve(&self, address: u64, size: u64) -> Result<()> {
        checked(Call::MemAddressFree, self.machine.memory_unreserve(address, size))
    }

    fn create(&self, device: i32, size: u64, kind: HandleKind) -> Result<Handle> {
        let (granularity, _) = self.machine.config().granularity_of(kind != HandleKind::default());
        if granularity != 0 && !size.is_multiple_of(granularity) {
            return checked(Call::MemCreate, Err(code::INVALID_VALUE));
        }
        checked(Call::MemCreate, self.machine.memory_create(device, size)).map(Handle)
    }

    fn release(&self, handle: Handle) -> Result<()> {
        checked(Call::MemRelease, self.machine.memory_release(handle.0))
    }

    fn map(&self, address: u64, size: u64, handle: Handle) -> Result<()> {
        checked(Call::MemMap, self.machine.memory_map(address, size, 0, handle.0))
    }

    fn unmap(&self, address: u64, size: u64) -> Result<()> {
        checked(Call::MemUnmap, self.machine.memory_unmap(address, size))
    }

    fn set_access(&self, address: u64, size: u64, devices: &[i32]) -> Result<()> {
        checked(
            Call::MemSetAccess,
            self.machine.memory_set_access(address, size, devices, true),
        )
    }

    fn malloc(&self, size: u64) -> Result<u64> {
        checked(Call::MemAlloc, self.machine.memory_malloc(size))
    }

    fn free(&self, address: u64) -> Result<()> {
        checked(Call::MemFree, self.machine.memory_free(address))
    }

    fn host_malloc(&self, size: u64) -> Result<u64> {
        checked(Call::MemHostAlloc, self.machine.memory_host_malloc(size))
    }

    fn host_free(&self, address: u64) -> Result<()> {
        checked(Call::MemFreeHost, self.machine.memory_host_free(address))
    }

    fn copy_async(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<()> {
        checked(Call::MemcpyAsync, self.machine.copy_async(to, from, bytes, stream.0))
    }

    fn fill_async(&self, address: u64, byte: u8, bytes: u64, stream: Stream) -> Result<()> {
        checked(
            Call::MemsetAsync,
            self.machine.fill_async(address, byte, bytes, stream.0),
        )
    }

    unsafe fn retain_user_object(
        &self,
        graph: Graph,
        destructor: UserObjectDestructor,
        data: *mut c_void,
    ) -> Result<()> {
        let there = self.machine.config().user_objects();
        checked_if(there, Call::RetainUserObject, || {
            // SAFETY: the caller meets the same requirement.
            unsafe { self.machine.graph_retain_user_object(graph.0, destructor, data) }
        })
    }
}
