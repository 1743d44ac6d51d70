//! No driver: for a pool over external memory, on a machine without a driver.
//!
//! There is one device, without properties, and one context, which is always current. Queries succeed. Calls that would
//! obtain, map, copy or fill memory are [`Failure::Unsupported`], and so is recording an event. The driver cannot know
//! whether work has completed, so [`Driver::knows_work`] is false. A stream is only its handle, so the allocator takes
//! streams here only if the application has declared that they outlive it (`streams=trusted`).

use std::sync::Arc;

use super::{
    Capture, CaptureInfo, CaptureMode, Context, Descriptor, DeviceInfo, Driver, DriverError, Event, Failure, Features,
    Graph, Handle, HandleKind, Result, Stream, UserObjectDestructor,
};

/// The driver without a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoDriver;

/// `driver=none`.
pub static DRIVER: Descriptor = Descriptor {
    external_only: true,
    ..Descriptor::new("none", |_| Ok(Arc::new(NoDriver)))
};

const CONTEXT: Context = Context(1);

fn unsupported<T>(call: &'static str) -> Result<T> {
    Err(DriverError {
        call,
        code: 0,
        failure: Failure::Unsupported,
    })
}

impl Driver for NoDriver {
    fn name(&self) -> &'static str {
        "none"
    }
    /// Context events count as supported although recording one fails: without the feature the pool would wait for the
    /// context.
    fn features(&self) -> Features {
        Features {
            stream_ids: false,
            context_events: true,
            user_objects: false,
        }
    }
    fn knows_work(&self) -> bool {
        false
    }

    fn device_count(&self) -> Result<u32> {
        Ok(1)
    }
    fn device_info(&self, _: i32) -> Result<DeviceInfo> {
        Ok(DeviceInfo {
            name: "none".into(),
            total: 0,
            granularity: (0, 0),
            virtual_memory: false,
        })
    }
    fn memory_info(&self, _: i32) -> Result<(u64, u64)> {
        unsupported("memory_info")
    }

    fn current_context(&self) -> Result<Option<Context>> {
        Ok(Some(CONTEXT))
    }
    fn current_device(&self) -> Result<Option<i32>> {
        Ok(Some(0))
    }
    fn primary_retain(&self, _: i32) -> Result<Context> {
        Ok(CONTEXT)
    }
    fn primary_release(&self, _: i32) -> Result<()> {
        Ok(())
    }
    fn primary_active(&self, _: i32) -> Result<bool> {
        Ok(true)
    }
    fn context_id(&self, _: Context) -> Result<u64> {
        Ok(1)
    }
    fn context_push(&self, _: Context) -> Result<()> {
        Ok(())
    }
    fn context_pop(&self) -> Result<()> {
        Ok(())
    }
    fn context_record_event(&self, _: Context, _: Event) -> Result<()> {
        unsupported("context_record_event")
    }
    fn context_synchronize(&self) -> Result<()> {
        unsupported("context_synchronize")
    }

    fn stream_id(&self, _: Stream) -> Result<u64> {
        unsupported("stream_id")
    }
    fn stream_context(&self, _: Stream) -> Result<Context> {
        Ok(CONTEXT)
    }
    fn stream_capture(&self, _: Stream) -> Result<Capture> {
        Ok(Capture::None)
    }
    fn stream_capture_info(&self, _: Stream) -> Result<Option<CaptureInfo>> {
        Ok(None)
    }
    fn stream_wait_event(&self, _: Stream, _: Event) -> Result<()> {
        unsupported("stream_wait_event")
    }
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        Ok(mode)
    }

    fn event_create(&self) -> Result<Event> {
        unsupported("event_create")
    }
    fn event_destroy(&self, _: Event) -> Result<()> {
        unsupported("event_destroy")
    }
    fn event_record(&self, _: Event, _: Stream) -> Result<()> {
        unsupported("event_record")
    }
    fn event_query(&self, _: Event) -> Result<bool> {
        unsupported("event_query")
    }

    fn reserve(&self, _: u64, _: u64) -> Result<u64> {
        unsupported("reserve")
    }
    fn unreserve(&self, _: u64, _: u64) -> Result<()> {
        unsupported("unreserve")
    }
    fn create(&self, _: i32, _: u64, _: HandleKind) -> Result<Handle> {
        unsupported("create")
    }
    fn release(&self, _: Handle) -> Result<()> {
        unsupported("release")
    }
    fn map(&self, _: u64, _: u64, _: Handle) -> Result<()> {
        unsupported("map")
    }
    fn unmap(&self, _: u64, _: u64) -> Result<()> {
        unsupported("unmap")
    }
    fn set_access(&self, _: u64, _: u64, _: &[i32]) -> Result<()> {
        unsupported("set_access")
    }

    fn malloc(&self, _: u64) -> Result<u64> {
        unsupported("malloc")
    }
    fn free(&self, _: u64) -> Result<()> {
        unsupported("free")
    }
    fn host_malloc(&self, _: u64) -> Result<u64> {
        unsupported("host_malloc")
    }
    fn host_free(&self, _: u64) -> Result<()> {
        unsupported("host_free")
    }
    fn copy_async(&self, _: u64, _: u64, _: u64, _: Stream) -> Result<()> {
        unsupported("copy_async")
    }
    fn fill_async(&self, _: u64, _: u8, _: u64, _: Stream) -> Result<()> {
        unsupported("fill_async")
    }

    unsafe fn retain_user_object(&self, _: Graph, _: UserObjectDestructor, _: *mut std::ffi::c_void) -> Result<()> {
        unsupported("retain_user_object")
    }
}
