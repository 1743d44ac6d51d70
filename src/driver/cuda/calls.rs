//! The trait's methods. Each calls the driver function that it is named after.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use cudarc::driver::sys;

use super::super::{
    Capture, CaptureInfo, CaptureMode, Context, DeviceInfo, Driver, DriverError, Event, Failure, Features, Graph,
    Handle, HandleKind, Result, Stream, Tools, UserObjectDestructor, beside_captures, covering_context,
    default_stream_id, pop_context, push_context,
};
use super::CudaDriver;
use super::failure::{check, check_context, check_event, check_memory};
use super::handles::{Hook, allocation_properties};

const NOT_READY: u32 = sys::CUresult::CUDA_ERROR_NOT_READY as u32;
const INVALID_CONTEXT: u32 = sys::CUresult::CUDA_ERROR_INVALID_CONTEXT as u32;
const CAPTURE_IMPLICIT: u32 = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as u32;

const CAPTURE_STATUS_NONE: u32 = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32;
const CAPTURE_STATUS_ACTIVE: u32 = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as u32;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: the only flag that cuUserObjectCreate takes, and it is required.
const NO_DESTRUCTOR_SYNC: u32 = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes over our reference.
const MOVE: u32 = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
/// `CU_EVENT_DISABLE_TIMING`: such events are the cheapest to record and query.
const EVENT_FLAGS: u32 = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;

fn stream(stream: Stream) -> sys::CUstream {
    stream.0 as sys::CUstream
}

fn event(event: Event) -> sys::CUevent {
    event.0 as sys::CUevent
}

fn context(context: Context) -> sys::CUcontext {
    context.0 as sys::CUcontext
}

fn size(call: &'static str, bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| DriverError {
        call,
        code: 0,
        failure: Failure::OutOfMemory,
    })
}

impl CudaDriver {
    fn attribute(&self, device: i32, attribute: sys::CUdevice_attribute) -> Result<i32> {
        let mut value: c_int = 0;
        call!(self, cuDeviceGetAttribute(&mut value, attribute, device))?;
        Ok(value)
    }

    // A CUdevice is the device's ordinal: cuDeviceGet returns its argument, and CUmemLocation takes either.
    fn ask_for_info(&self, device: i32) -> Result<DeviceInfo> {
        let mut name: [c_char; 256] = [0; 256];
        call!(
            self,
            cuDeviceGetName(name.as_mut_ptr(), (name.len() - 1) as c_int, device)
        )?;
        // SAFETY: the buffer was zeroed, and the driver was not given its last byte to write.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut total = 0usize;
        call!(self, cuDeviceTotalMem_v2(&mut total, device))?;

        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as VIRTUAL_MEMORY;
        let mut granularity = (0, 0);
        if self.functions.has_virtual_memory() && self.attribute(device, VIRTUAL_MEMORY).is_ok_and(|value| value != 0) {
            granularity = self.granularity(device, HandleKind::default()).unwrap_or_default();
        }
        Ok(DeviceInfo {
            name,
            total: total as u64,
            granularity,
            virtual_memory: granularity.0 != 0,
        })
    }

    fn ask_for_memory(&self, device: i32) -> Result<(u64, u64)> {
        if self.current_device() == Ok(Some(device)) {
            return self.current_memory_info();
        }
        let before = self.current_context()?;
        let primary = self.primary_retain(device)?;
        let info = push_context(self, before, primary).and_then(|()| {
            let info = self.current_memory_info();
            pop_context(self, before, primary);
            info
        });
        let released = self.primary_release(device);
        info.and_then(|info| released.map(|()| info))
    }

    /// The context whose events cover the stream, and the stream's green context or null.
    #[inline]
    fn stream_contexts(&self, of: Stream) -> Result<(Context, *mut c_void)> {
        beside_captures(self, || {
            let mut owner: sys::CUcontext = null_mut();
            let mut green = null_mut();
            match self.names_green_contexts {
                true => call!(self, cuStreamGetCtx_v2(stream(of), &mut owner, &mut green))?,
                false => call!(self, cuStreamGetCtx(stream(of), &mut owner))?,
            }
            Ok((Context(owner as usize), green))
        })
    }

    fn current_memory_info(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0usize, 0usize);
        call!(self, cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free as u64, total as u64))
    }
}

impl Driver for CudaDriver {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn features(&self) -> Features {
        self.features
    }

    fn tools(&self) -> Option<&dyn Tools> {
        Some(self)
    }

    fn device_count(&self) -> Result<u32> {
        beside_captures(self, || {
            let mut count: c_int = 0;
            call!(self, cuDeviceGetCount(&mut count))?;
            Ok(u32::try_from(count).unwrap_or(0))
        })
    }

    fn device_info(&self, device: i32) -> Result<DeviceInfo> {
        beside_captures(self, || self.ask_for_info(device))
    }

    fn granularity(&self, device: i32, kind: HandleKind) -> Result<(u64, u64)> {
        use sys::CUmemAllocationGranularity_flags as Which;
        let properties = allocation_properties(device, kind);
        let ask = |which| {
            let mut bytes = 0usize;
            call!(self, cuMemGetAllocationGranularity(&mut bytes, &properties, which))?;
            Ok::<u64, DriverError>(bytes as u64)
        };
        let minimum = ask(Which::CU_MEM_ALLOC_GRANULARITY_MINIMUM)?;
        let recommended = ask(Which::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?;
        Ok((minimum, recommended.max(minimum)))
    }

    fn device_uuid(&self, device: i32) -> Result<[u8; 16]> {
        let mut uuid = [0; 16];
        call!(self, cuDeviceGetUuid_v2(&mut uuid, device))?;
        Ok(uuid)
    }

    fn memory_info(&self, device: i32) -> Result<(u64, u64)> {
        beside_captures(self, || self.ask_for_memory(device))
    }

    #[inline]
    fn current_context(&self) -> Result<Option<Context>> {
        let mut current: sys::CUcontext = null_mut();
        call!(self, cuCtxGetCurrent(&mut current))?;
        Ok((!current.is_null()).then_some(Context(current as usize)))
    }

    #[inline]
    fn current_device(&self) -> Result<Option<i32>> {
        let mut device: sys::CUdevice = 0;
        match code!(self, cuCtxGetDevice(&mut device)) {
            0 => Ok(Some(device)),
            INVALID_CONTEXT => Ok(None),
            code => check("cuCtxGetDevice", code).map(|()| None),
        }
    }

    fn primary_retain(&self, device: i32) -> Result<Context> {
        let mut primary: sys::CUcontext = null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&mut primary, device))?;
        Ok(Context(primary as usize))
    }

    fn primary_release(&self, device: i32) -> Result<()> {
        check_context(
            "cuDevicePrimaryCtxRelease_v2",
            code!(self, cuDevicePrimaryCtxRelease_v2(device)),
        )
    }

    fn primary_active(&self, device: i32) -> Result<bool> {
        let (mut flags, mut active) = (0u32, 0 as c_int);
        call!(self, cuDevicePrimaryCtxGetState(device, &mut flags, &mut active))?;
        Ok(active != 0)
    }

    #[inline]
    fn context_id(&self, of: Context) -> Result<u64> {
        beside_captures(self, || {
            let mut id = 0u64;
            check_context("cuCtxGetId", code!(self, cuCtxGetId(context(of), &mut id)))?;
            Ok(id)
        })
    }

    fn context_push(&self, pushed: Context) -> Result<()> {
        check_context("cuCtxPushCurrent_v2", code!(self, cuCtxPushCurrent_v2(context(pushed))))
    }

    fn context_pop(&self) -> Result<()> {
        let mut popped: sys::CUcontext = null_mut();
        call!(self, cuCtxPopCurrent_v2(&mut popped))
    }

    fn context_record_event(&self, of: Context, recorded: Event) -> Result<()> {
        check_context(
            "cuCtxRecordEvent",
            code!(self, cuCtxRecordEvent(context(of), event(recorded))),
        )
    }

    fn context_synchronize(&self) -> Result<()> {
        call!(self, cuCtxSynchronize())
    }

    #[inline]
    fn stream_id(&self, of: Stream) -> Result<u64> {
        beside_captures(self, || {
            let mut id = 0u64;
            if of.is_default() {
                call!(self, cuCtxGetId(null_mut(), &mut id))?;
                return Ok(default_stream_id(of, id));
            }
            call!(self, cuStreamGetId(stream(of), &mut id))?;
            Ok(id)
        })
    }

    #[inline]
    fn stream_context(&self, of: Stream) -> Result<Context> {
        self.stream_contexts(of).map(|(context, _)| context)
    }

    fn is_of_green_context(&self, of: Stream) -> Result<bool> {
        self.stream_contexts(of).map(|(_, green)| !green.is_null())
    }

    fn covering_context(&self, current: Context) -> Result<Context> {
        match self.names_green_contexts {
            true => covering_context(self, current),
            false => Ok(current),
        }
    }

    #[inline]
    fn stream_capture(&self, of: Stream) -> Result<Capture> {
        let mut status = CAPTURE_STATUS_NONE;
        match code!(self, cuStreamIsCapturing(stream(of), &mut status)) {
            0 => Ok(match status {
                CAPTURE_STATUS_NONE => Capture::None,
                CAPTURE_STATUS_ACTIVE => Capture::Active,
                // The pool cannot allocate for any other status, also of a newer driver.
                _ => Capture::Invalidated,
            }),
            CAPTURE_IMPLICIT => Ok(Capture::Implicit),
            code => check("cuStreamIsCapturing", code).map(|()| Capture::None),
        }
    }

    /// `None` for an invalidated capture, too. The graph is 0 where the driver is older than CUDA 11.3, which does not
    /// report it.
    fn stream_capture_info(&self, of: Stream) -> Result<Option<CaptureInfo>> {
        let (mut status, mut id) = (CAPTURE_STATUS_NONE, 0u64);
        let mut graph: sys::CUgraph = null_mut();
        if self.functions.has("cuStreamGetCaptureInfo_v3") && self.version >= 12030 {
            // All outputs are requested: without the edge data the driver may refuse with CUDA_ERROR_LOSSY_QUERY.
            let (mut nodes, mut edges, mut count) = (null(), null(), 0usize);
            call!(
                self,
                cuStreamGetCaptureInfo_v3(
                    stream(of),
                    &mut status,
                    &mut id,
                    &mut graph,
                    &mut nodes,
                    &mut edges,
                    &mut count
                )
            )?;
        } else if self.functions.has("cuStreamGetCaptureInfo_v2") && self.version >= 11030 {
            call!(
                self,
                cuStreamGetCaptureInfo_v2(stream(of), &mut status, &mut id, &mut graph, null_mut(), null_mut())
            )?;
        } else {
            call!(self, cuStreamGetCaptureInfo(stream(of), &mut status, &mut id))?;
        }
        Ok((status == CAPTURE_STATUS_ACTIVE).then_some(CaptureInfo {
            id,
            graph: Graph(graph as usize),
        }))
    }

    fn stream_wait_event(&self, waiting: Stream, awaited: Event) -> Result<()> {
        call!(self, cuStreamWaitEvent(stream(waiting), event(awaited), 0))
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        const GLOBAL: u32 = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as u32;
        const THREAD_LOCAL: u32 = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32;
        const RELAXED: u32 = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
        let mut value = match mode {
            CaptureMode::Global => GLOBAL,
            CaptureMode::ThreadLocal => THREAD_LOCAL,
            CaptureMode::Relaxed => RELAXED,
        };
        call!(self, cuThreadExchangeStreamCaptureMode(&mut value))?;
        Ok(match value {
            THREAD_LOCAL => CaptureMode::ThreadLocal,
            RELAXED => CaptureMode::Relaxed,
            // The strictest mode stands for a mode that this crate does not know.
            _ => CaptureMode::Global,
        })
    }

    fn event_create(&self) -> Result<Event> {
        let mut created: sys::CUevent = null_mut();
        call!(self, cuEventCreate(&mut created, EVENT_FLAGS))?;
        Ok(Event(created as usize))
    }

    fn event_destroy(&self, destroyed: Event) -> Result<()> {
        check_event("cuEventDestroy_v2", code!(self, cuEventDestroy_v2(event(destroyed))))
    }

    fn event_record(&self, recorded: Event, on: Stream) -> Result<()> {
        call!(self, cuEventRecord(event(recorded), stream(on)))
    }

    fn event_query(&self, asked: Event) -> Result<bool> {
        match code!(self, cuEventQuery(event(asked))) {
            0 => Ok(true),
            NOT_READY => Ok(false),
            code => check_event("cuEventQuery", code).map(|()| true),
        }
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> Result<u64> {
        let mut address: sys::CUdeviceptr = 0;
        let (bytes, alignment) = (
            size("cuMemAddressReserve", bytes)?,
            size("cuMemAddressReserve", alignment)?,
        );
        call!(self, cuMemAddressReserve(&mut address, bytes, alignment, 0, 0))?;
        Ok(address)
    }

    fn unreserve(&self, address: u64, bytes: u64) -> Result<()> {
        call!(self, cuMemAddressFree(address, size("cuMemAddressFree", bytes)?))
    }

    fn create(&self, device: i32, bytes: u64, kind: HandleKind) -> Result<Handle> {
        let properties = allocation_properties(device, kind);
        let mut handle: sys::CUmemGenericAllocationHandle = 0;
        let bytes = size("cuMemCreate", bytes)?;
        check_memory(
            "cuMemCreate",
            code!(self, cuMemCreate(&mut handle, bytes, &properties, 0)),
        )?;
        Ok(Handle(handle))
    }

    fn release(&self, handle: Handle) -> Result<()> {
        call!(self, cuMemRelease(handle.0))
    }

    fn map(&self, address: u64, bytes: u64, handle: Handle) -> Result<()> {
        let bytes = size("cuMemMap", bytes)?;
        check_memory("cuMemMap", code!(self, cuMemMap(address, bytes, 0, handle.0, 0)))
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        call!(self, cuMemUnmap(address, size("cuMemUnmap", bytes)?))
    }

    fn set_access(&self, address: u64, bytes: u64, devices: &[i32]) -> Result<()> {
        let access: Vec<sys::CUmemAccessDesc> = devices
            .iter()
            .map(|&device| sys::CUmemAccessDesc {
                location: sys::CUmemLocation {
                    type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                    id: device,
                },
                flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            })
            .collect();
        let bytes = size("cuMemSetAccess", bytes)?;
        check_memory(
            "cuMemSetAccess",
            code!(self, cuMemSetAccess(address, bytes, access.as_ptr(), access.len())),
        )
    }

    fn malloc(&self, bytes: u64) -> Result<u64> {
        let mut address: sys::CUdeviceptr = 0;
        call!(self, cuMemAlloc_v2(&mut address, size("cuMemAlloc_v2", bytes)?))?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        call!(self, cuMemFree_v2(address))
    }

    fn host_malloc(&self, bytes: u64) -> Result<u64> {
        let mut address: *mut c_void = null_mut();
        call!(
            self,
            cuMemHostAlloc(
                &mut address,
                size("cuMemHostAlloc", bytes)?,
                sys::CU_MEMHOSTALLOC_PORTABLE
            )
        )?;
        Ok(address as u64)
    }

    fn host_free(&self, address: u64) -> Result<()> {
        call!(self, cuMemFreeHost(address as *mut c_void))
    }

    fn copy_async(&self, to: u64, from: u64, bytes: u64, on: Stream) -> Result<()> {
        call!(
            self,
            cuMemcpyDtoDAsync_v2(to, from, size("cuMemcpyDtoDAsync_v2", bytes)?, stream(on))
        )
    }

    fn fill_async(&self, address: u64, byte: u8, bytes: u64, on: Stream) -> Result<()> {
        call!(
            self,
            cuMemsetD8Async(address, byte, size("cuMemsetD8Async", bytes)?, stream(on))
        )
    }

    /// On an error the destructor is never called, and `data` belongs to the caller again.
    unsafe fn retain_user_object(
        &self,
        graph: Graph,
        destructor: UserObjectDestructor,
        data: *mut c_void,
    ) -> Result<()> {
        if !self.features.user_objects {
            return Err(DriverError {
                call: "cuUserObjectCreate",
                code: 0,
                failure: Failure::Missing,
            });
        }
        let hook = Hook::new(destructor, data);
        let mut object: sys::CUuserObject = null_mut();
        let created = call!(
            self,
            cuUserObjectCreate(&mut object, hook.cast(), Hook::run, 1, NO_DESTRUCTOR_SYNC)
        );
        if let Err(error) = created {
            // SAFETY: made above, and the driver did not take it.
            unsafe { Hook::drop_unused(hook) };
            return Err(error);
        }
        let retained = call!(self, cuGraphRetainUserObject(graph.0 as sys::CUgraph, object, 1, MOVE));
        if let Err(error) = retained {
            // SAFETY: the reference is still ours, so the driver has not run the hook.
            unsafe { Hook::disarm(hook) };
            // The driver now runs the hook, which frees itself. If this call fails too, a few bytes leak.
            let _ = call!(self, cuUserObjectRelease(object, 1));
            return Err(error);
        }
        Ok(())
    }
}
