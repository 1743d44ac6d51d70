//! The application that an allocator serves: it has a context, creates streams and queues work on them.
//!
//! The allocator itself never creates a stream: [`Driver::tools`] has these calls.

use std::sync::Arc;

use crate::driver::{Context, Driver, DriverError, Failure, Result, Stream, Tools};

/// An application on one device. Its context is current to the thread that created it, until it is dropped.
pub struct Application {
    driver: Arc<dyn Driver>,
    device: i32,
    context: Context,
}

impl Application {
    /// Makes the primary context of `device` current to this thread. The result must be dropped on the same thread.
    ///
    /// # Errors
    ///
    /// The driver's error, or [`Failure::Unsupported`] where it has no [`Tools`].
    pub fn new(driver: Arc<dyn Driver>, device: i32) -> Result<Application> {
        tools(&*driver)?;
        let context = driver.primary_retain(device)?;
        if let Err(error) = driver.context_push(context) {
            // The first error is returned; another one changes nothing.
            let _ = driver.primary_release(device);
            return Err(error);
        }
        Ok(Application {
            driver,
            device,
            context,
        })
    }

    /// The context that is current.
    pub fn context(&self) -> Context {
        self.context
    }

    /// A new stream of the application's context.
    pub fn create_stream(&self) -> Result<Stream> {
        tools(&*self.driver)?.create_stream()
    }

    /// Destroys a stream; work queued on it still runs.
    pub fn destroy_stream(&self, stream: Stream) -> Result<()> {
        tools(&*self.driver)?.destroy_stream(stream)
    }

    /// Queues work on `stream` that writes `[address, address + bytes)`.
    pub fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()> {
        tools(&*self.driver)?.launch(stream, address, bytes)
    }

    /// Queues work on `stream` that sets `[address, address + bytes)` to `byte`.
    pub fn fill(&self, stream: Stream, address: u64, byte: u8, bytes: u64) -> Result<()> {
        self.driver.fill_async(address, byte, bytes, stream)
    }

    /// Makes work queued on `after` from now on wait for the work queued on `before` so far.
    pub fn order(&self, before: Stream, after: Stream) -> Result<()> {
        let event = self.driver.event_create()?;
        let result = self.driver.event_record(event, before);
        let result = result.and_then(|()| self.driver.stream_wait_event(after, event));
        self.driver.event_destroy(event).and(result)
    }

    /// Waits for everything that was queued in the context.
    pub fn synchronize(&self) -> Result<()> {
        self.driver.context_synchronize()
    }
}

fn tools(driver: &dyn Driver) -> Result<&dyn Tools> {
    driver.tools().ok_or(DriverError {
        call: "an application's calls",
        code: 0,
        failure: Failure::Unsupported,
    })
}

impl Drop for Application {
    fn drop(&mut self) {
        // A destructor cannot report errors.
        let _ = self.driver.context_pop();
        let _ = self.driver.primary_release(self.device);
    }
}
