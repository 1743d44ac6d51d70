//! The trait's methods, implemented with AscendCL's functions.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Once;

use super::super::library::missing;
use super::super::{
    Capture, CaptureInfo, CaptureMode, Context, DeviceInfo, Driver, DriverError, Event, Failure, Features, Graph,
    Handle, HandleKind, Result, Stream, Tools, UserObjectDestructor,
};
use super::AscendDriver;
use super::arguments::{handle, pointer, size};
use super::failure::{STREAM_CONTEXT, check};
use super::functions::Acl;
use super::mapping::{properties, synchronize};
use super::threads::{self, Place, Worker};

/// `ACL_EVENT_SYNC`: an event for waits and queries, without timing.
const EVENT_FLAGS: u32 = 1;
/// `ACL_EVENT_RECORDED_STATUS_NOT_READY`.
const NOT_READY: u32 = 0;
/// `ACL_MEM_MALLOC_HUGE_FIRST`: pages of 2 MiB for large sizes, and small pages when no large ones are left.
const HUGE_FIRST: u32 = 0;
/// `ACL_HBM_MEM`, and `ACL_DDR_MEM` for devices without HBM.
const KINDS_OF_MEMORY: [u32; 2] = [1, 0];
/// `ACL_MEMCPY_DEVICE_TO_DEVICE`.
const DEVICE_TO_DEVICE: u32 = 3;
/// `ACL_MODEL_RI_CAPTURE_STATUS_NONE`.
const CAPTURE_STATUS_NONE: u32 = 0;
/// `ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE`.
const CAPTURE_STATUS_ACTIVE: u32 = 1;

/// Free and total bytes of the current device, for the first kind of memory that it has.
fn memory_info(acl: &Acl) -> Result<(u64, u64)> {
    let mut refusal = None;
    for kind in KINDS_OF_MEMORY {
        let (mut free, mut total) = (0usize, 0usize);
        match call!(acl, aclrtGetMemInfo(kind, &mut free, &mut total)) {
            Ok(()) if total > 0 => return Ok((free as u64, total as u64)),
            Ok(()) => {}
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    Err(refusal.unwrap_or(DriverError::refused("aclrtGetMemInfo", Failure::Unsupported)))
}

/// Logs once which rule was broken, because AscendCL's number does not say it.
fn checked_stream(call: &'static str, code: i32) -> Result<()> {
    static LOGGED: Once = Once::new();
    if code == STREAM_CONTEXT {
        LOGGED.call_once(|| {
            tracing::warn!(
                call,
                "a stream was passed that is not of the calling thread's context, which AscendCL requires"
            );
        });
    }
    check(call, code)
}

impl AscendDriver {
    /// Capture status and model of a stream. The default stream cannot be captured.
    fn capture(&self, stream: Stream) -> Result<(u32, usize)> {
        const NAME: &str = "aclmdlRICaptureGetInfo";
        if stream.is_default() || !self.acl.functions.has(NAME) {
            return Ok((CAPTURE_STATUS_NONE, 0));
        }
        self.in_current_context(move |acl| {
            let (mut status, mut model) = (CAPTURE_STATUS_NONE, 0usize);
            let code = code!(acl, aclmdlRICaptureGetInfo(stream.0, &mut status, &mut model));
            match check(NAME, code) {
                Ok(()) => Ok((status, model)),
                // This device does not support capture.
                Err(error) if error.failure == Failure::Unsupported => Ok((CAPTURE_STATUS_NONE, 0)),
                Err(error) => Err(error),
            }
        })
    }
}

impl Driver for AscendDriver {
    fn name(&self) -> &'static str {
        "ascend"
    }

    fn features(&self) -> Features {
        Features {
            stream_ids: false,
            context_events: false,
            user_objects: false,
        }
    }

    fn tools(&self) -> Option<&dyn Tools> {
        Some(self)
    }

    /// AscendCL's operators may access bytes behind a block.
    fn spaces_blocks(&self) -> bool {
        true
    }

    /// The count is queried once, because it does not change.
    fn device_count(&self) -> Result<u32> {
        if let Some(count) = self.count.get() {
            return Ok(*count);
        }
        let mut count = 0;
        call!(self.acl, aclrtGetDeviceCount(&mut count))?;
        Ok(*self.count.get_or_init(|| count))
    }

    fn device_info(&self, device: i32) -> Result<DeviceInfo> {
        let (_, total) = self.memory_info(device)?;
        let mut granularity = (0, 0);
        if self.media.is_none() && self.acl.has_virtual_memory() {
            let ask = |which| {
                self.in_any_context(move |acl| {
                    let mut bytes = 0usize;
                    let properties = properties(device);
                    call!(acl, aclrtMemGetAllocationGranularity(&properties, which, &mut bytes))?;
                    Ok(bytes as u64)
                })
            };
            if let (Ok(minimum), Ok(recommended)) = (ask(0), ask(1)) {
                granularity = (minimum, recommended.max(minimum));
            }
        }
        Ok(DeviceInfo {
            name: self.soc_name().unwrap_or_else(|| "Ascend".into()),
            total,
            granularity,
            virtual_memory: granularity.0 != 0,
        })
    }

    fn memory_info(&self, device: i32) -> Result<(u64, u64)> {
        if self.current_device() == Ok(Some(device)) {
            return self.in_current_context(memory_info);
        }
        let context = self.primary_retain(device)?;
        let info = self.worker.run(&self.acl, Some(context), memory_info);
        let released = self.primary_release(device);
        info.and_then(|info| released.map(|()| info))
    }

    fn current_context(&self) -> Result<Option<Context>> {
        match threads::pushed() {
            Some(context) => Ok(Some(context)),
            None => threads::own(&self.acl),
        }
    }

    fn current_device(&self) -> Result<Option<i32>> {
        match threads::place(&self.acl)? {
            Place::NoContext => Ok(None),
            Place::Driver(context)
                if let Some((device, _)) = self.retained.lock().iter().find(|(_, known)| *known == context) =>
            {
                Ok(Some(*device))
            }
            _ => self.in_current_context(|acl| {
                let mut device = 0;
                call!(acl, aclrtGetDevice(&mut device))?;
                Ok(Some(device))
            }),
        }
    }

    /// `aclrtSetDevice` on the driver's thread: retains the device's own context. AscendCL counts the calls.
    fn primary_retain(&self, device: i32) -> Result<Context> {
        let context = self.worker.run(&self.acl, None, move |acl| {
            call!(acl, aclrtSetDevice(device))?;
            let mut context = 0usize;
            let known = call!(acl, aclrtGetCurrentContext(&mut context));
            known.map(|()| Context(context)).inspect_err(|_| {
                let _ = call!(acl, aclrtResetDevice(device));
            })
        })?;
        self.retained.lock().push((device, context));
        Ok(context)
    }

    /// `aclrtResetDevice` on the driver's thread.
    fn primary_release(&self, device: i32) -> Result<()> {
        self.worker
            .run(&self.acl, None, move |acl| call!(acl, aclrtResetDevice(device)))?;
        let mut retained = self.retained.lock();
        if let Some(at) = retained.iter().rposition(|(known, _)| *known == device) {
            retained.remove(at);
        }
        Ok(())
    }

    /// True where AscendCL has no such query.
    fn primary_active(&self, device: i32) -> Result<bool> {
        if !self.acl.functions.has("aclrtGetPrimaryCtxState") {
            return Ok(true);
        }
        let mut active = 0;
        call!(self.acl, aclrtGetPrimaryCtxState(device, null_mut(), &mut active))?;
        Ok(active != 0)
    }

    fn context_id(&self, _: Context) -> Result<u64> {
        Err(missing("an id of contexts"))
    }

    /// The context is only noted (see `threads`). A destroyed context is refused.
    fn context_push(&self, context: Context) -> Result<()> {
        if threads::own(&self.acl)? != Some(context) {
            self.worker.run(&self.acl, Some(context), |_| Ok(()))?;
        }
        threads::push(context);
        Ok(())
    }

    fn context_pop(&self) -> Result<()> {
        match threads::pop() {
            true => Ok(()),
            false => Err(DriverError::refused("aclrtSetCurrentContext", Failure::NoContext)),
        }
    }

    fn context_record_event(&self, _: Context, _: Event) -> Result<()> {
        Err(missing("an event for a whole context"))
    }

    fn context_synchronize(&self) -> Result<()> {
        let usable = self.usable;
        let wait = move |acl: &Acl| synchronize(acl, usable);
        match threads::place(&self.acl)? {
            Place::Driver(context) => Worker::run_long(&self.acl, context, wait),
            _ => self.in_current_context(wait),
        }
    }

    fn stream_id(&self, _: Stream) -> Result<u64> {
        Err(missing("an id of streams that does not come back"))
    }

    /// The current context: AscendCL allows a stream in its own context only, and does not report which that is.
    fn stream_context(&self, of: Stream) -> Result<Context> {
        handle("aclrtGetCurrentContext", of)?;
        self.current_context()?
            .ok_or(DriverError::refused("aclrtGetCurrentContext", Failure::NoContext))
    }

    fn stream_capture(&self, of: Stream) -> Result<Capture> {
        Ok(match self.capture(of)?.0 {
            CAPTURE_STATUS_NONE => Capture::None,
            CAPTURE_STATUS_ACTIVE => Capture::Active,
            // The pool cannot allocate for any other status, also of a newer CANN.
            _ => Capture::Invalidated,
        })
    }

    /// The model serves as both id and graph, because it is captured into only once.
    fn stream_capture_info(&self, of: Stream) -> Result<Option<CaptureInfo>> {
        let (status, model) = self.capture(of)?;
        Ok((status == CAPTURE_STATUS_ACTIVE && model != 0).then_some(CaptureInfo {
            id: model as u64,
            graph: Graph(model),
        }))
    }

    fn stream_wait_event(&self, waiting: Stream, awaited: Event) -> Result<()> {
        const NAME: &str = "aclrtStreamWaitEvent";
        let waiting = handle(NAME, waiting)?;
        self.in_current_context(move |acl| checked_stream(NAME, code!(acl, aclrtStreamWaitEvent(waiting, awaited.0))))
    }

    /// The mode of this thread, if this thread makes the calls in the current context. The driver's own thread is
    /// always relaxed.
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        const NAME: &str = "aclmdlRICaptureThreadExchangeMode";
        if !self.acl.functions.has(NAME) || threads::place(&self.acl)? != Place::Caller {
            return Ok(CaptureMode::Global);
        }
        let mut value = match mode {
            CaptureMode::Global => 0,
            CaptureMode::ThreadLocal => 1,
            CaptureMode::Relaxed => threads::RELAXED,
        };
        call!(self.acl, aclmdlRICaptureThreadExchangeMode(&mut value))?;
        Ok(match value {
            1 => CaptureMode::ThreadLocal,
            threads::RELAXED => CaptureMode::Relaxed,
            _ => CaptureMode::Global,
        })
    }

    fn event_create(&self) -> Result<Event> {
        self.in_current_context(|acl| {
            let mut created = 0usize;
            call!(acl, aclrtCreateEventExWithFlag(&mut created, EVENT_FLAGS))?;
            Ok(Event(created))
        })
    }

    fn event_destroy(&self, destroyed: Event) -> Result<()> {
        call!(self.acl, aclrtDestroyEvent(destroyed.0))
    }

    fn event_record(&self, recorded: Event, on: Stream) -> Result<()> {
        const NAME: &str = "aclrtRecordEvent";
        let on = handle(NAME, on)?;
        self.in_current_context(move |acl| checked_stream(NAME, code!(acl, aclrtRecordEvent(recorded.0, on))))
    }

    fn event_query(&self, asked: Event) -> Result<bool> {
        let mut status = NOT_READY;
        call!(self.acl, aclrtQueryEventStatus(asked.0, &mut status))?;
        Ok(status != NOT_READY)
    }

    /// AscendCL takes no alignment. A reservation that is not aligned by chance is refused.
    fn reserve(&self, bytes: u64, alignment: u64) -> Result<u64> {
        const NAME: &str = "aclrtReserveMemAddress";
        let bytes = size(NAME, bytes)?;
        self.in_any_context(move |acl| {
            let mut address = null_mut();
            call!(acl, aclrtReserveMemAddress(&mut address, bytes, 0, null_mut(), 0))?;
            if !(address as u64).is_multiple_of(alignment.max(1)) {
                call!(acl, aclrtReleaseMemAddress(address))?;
                return Err(DriverError::refused(NAME, Failure::Unsupported));
            }
            Ok(address as u64)
        })
    }

    fn unreserve(&self, address: u64, _: u64) -> Result<()> {
        pointer("aclrtReleaseMemAddress", address)?;
        self.in_any_context(move |acl| call!(acl, aclrtReleaseMemAddress(address as *mut c_void)))
    }

    fn create(&self, device: i32, bytes: u64, kind: HandleKind) -> Result<Handle> {
        const NAME: &str = "aclrtMallocPhysical";
        if kind != HandleKind::default() {
            return Err(DriverError::refused(NAME, Failure::Unsupported));
        }
        let bytes = size(NAME, bytes)?;
        self.in_any_context(move |acl| {
            let (properties, mut handle) = (properties(device), 0usize);
            call!(acl, aclrtMallocPhysical(&mut handle, bytes, &properties, 0))?;
            Ok(Handle(handle as u64))
        })
    }

    fn release(&self, handle: Handle) -> Result<()> {
        self.in_any_context(move |acl| call!(acl, aclrtFreePhysical(handle.0 as usize)))
    }

    fn map(&self, address: u64, bytes: u64, handle: Handle) -> Result<()> {
        self.map_whole(address, bytes, handle.0)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        self.unmap_range(address, bytes)
    }

    /// Mapping already gives access to the handle's own device. Access for other devices is not supported. A range that
    /// is not mapped throughout is refused, as in CUDA.
    fn set_access(&self, address: u64, bytes: u64, devices: &[i32]) -> Result<()> {
        const NAME: &str = "aclrtMemSetAccess";
        match devices {
            [_] if self.mapped.covers(address, bytes) => Ok(()),
            [_] => Err(DriverError::refused(NAME, Failure::Other)),
            _ => Err(DriverError::refused(NAME, Failure::Unsupported)),
        }
    }

    fn malloc(&self, bytes: u64) -> Result<u64> {
        let bytes = size("aclrtMallocAlign32", bytes)?;
        if bytes == 0 {
            return Err(DriverError::refused("aclrtMallocAlign32", Failure::Other));
        }
        let media = self.media;
        self.in_current_context(move |acl| {
            let mut address = null_mut();
            match media {
                Some(media) => return media.malloc(acl, bytes),
                None if acl.functions.has("aclrtMallocAlign32") => {
                    call!(acl, aclrtMallocAlign32(&mut address, bytes, HUGE_FIRST))?
                }
                None => call!(acl, aclrtMalloc(&mut address, bytes, HUGE_FIRST))?,
            }
            Ok(address as u64)
        })
    }

    /// Does not wait. The caller knows that all work on the memory has completed.
    fn free(&self, address: u64) -> Result<()> {
        pointer("aclrtFree", address)?;
        let media = self.media;
        self.in_any_context(move |acl| match media {
            Some(media) => media.free(address as *mut c_void),
            None => call!(acl, aclrtFree(address as *mut c_void)),
        })
    }

    fn host_malloc(&self, bytes: u64) -> Result<u64> {
        let bytes = size("aclrtMallocHost", bytes)?;
        if bytes == 0 {
            return Err(DriverError::refused("aclrtMallocHost", Failure::Other));
        }
        self.in_current_context(move |acl| {
            let mut address = null_mut();
            call!(acl, aclrtMallocHost(&mut address, bytes))?;
            Ok(address as u64)
        })
    }

    fn host_free(&self, address: u64) -> Result<()> {
        pointer("aclrtFreeHost", address)?;
        self.in_any_context(move |acl| call!(acl, aclrtFreeHost(address as *mut c_void)))
    }

    fn copy_async(&self, to: u64, from: u64, bytes: u64, on: Stream) -> Result<()> {
        const NAME: &str = "aclrtMemcpyAsync";
        let (on, bytes) = (handle(NAME, on)?, size(NAME, bytes)?);
        self.in_current_context(move |acl| {
            let (to, from) = (to as *mut c_void, from as *const c_void);
            checked_stream(
                NAME,
                code!(acl, aclrtMemcpyAsync(to, bytes, from, bytes, DEVICE_TO_DEVICE, on)),
            )
        })
    }

    fn fill_async(&self, address: u64, byte: u8, bytes: u64, on: Stream) -> Result<()> {
        const NAME: &str = "aclrtMemsetAsync";
        let (on, bytes) = (handle(NAME, on)?, size(NAME, bytes)?);
        self.in_current_context(move |acl| {
            let to = address as *mut c_void;
            checked_stream(
                NAME,
                code!(acl, aclrtMemsetAsync(to, bytes, i32::from(byte), bytes, on)),
            )
        })
    }

    unsafe fn retain_user_object(&self, _: Graph, _: UserObjectDestructor, _: *mut c_void) -> Result<()> {
        Err(missing("a notification when a model is destroyed"))
    }
}
