//! No driver: for a pool over external memory, on a machine without a driver.
//!
//! There is one device, without properties, and one context, which is always current. Queries succeed. Calls that would
//! obtain, map, copy or fill memory are [`Unsupported`](super::Failure::Unsupported), and so is recording an event. The
//! driver cannot know whether work has completed, so [`Driver::knows_work`] is false. A stream is only its handle, so
//! the allocator takes streams here only if the application has declared that they outlive it (`streams=trusted`).

use std::sync::Arc;

use super::{Context, Descriptor, DeviceInfo, Driver, Event, Features, Result, Stream, unsupported};

/// The driver without a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoDriver;

/// `driver=none`.
pub static DRIVER: Descriptor = Descriptor {
    external_only: true,
    ..Descriptor::new("none", |_| Ok(Arc::new(NoDriver)))
};

const CONTEXT: Context = Context(1);

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
    fn context_synchronize(&self) -> Result<()> {
        unsupported("context_synchronize")
    }

    fn stream_context(&self, _: Stream) -> Result<Context> {
        Ok(CONTEXT)
    }
    fn stream_wait_event(&self, _: Stream, _: Event) -> Result<()> {
        unsupported("stream_wait_event")
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

    fn malloc(&self, _: u64) -> Result<u64> {
        unsupported("malloc")
    }
    fn free(&self, _: u64) -> Result<()> {
        unsupported("free")
    }
    fn copy_async(&self, _: u64, _: u64, _: u64, _: Stream) -> Result<()> {
        unsupported("copy_async")
    }
    fn fill_async(&self, _: u64, _: u8, _: u64, _: Stream) -> Result<()> {
        unsupported("fill_async")
    }
}
