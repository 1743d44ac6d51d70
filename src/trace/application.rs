//! The application that an allocator serves: it has a context, creates streams and queues work on them.
//!
//! The allocator itself never creates a stream, so none of this is in [`Driver`].

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use crate::driver::ascend::AscendDriver;
use crate::driver::cuda::CudaDriver;
use crate::driver::sim::SimDriver;
use crate::driver::{Context, Driver, DriverError, Failure, Result, Stream};

/// What an application calls the driver for, apart from memory.
pub trait Streams {
    /// A new stream of the current context, which does not wait for the legacy default stream (`cuStreamCreate`).
    fn create(&self) -> Result<Stream>;
    /// Destroys a stream; work queued on it still runs (`cuStreamDestroy`).
    fn destroy(&self, stream: Stream) -> Result<()>;
    /// Queues work on `stream` that writes `[address, address + bytes)`.
    fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()>;
}

/// An application on one device. Its context is current to the thread that created it, until it is dropped.
pub struct Application {
    driver: Arc<dyn Driver>,
    streams: Box<dyn Streams>,
    device: i32,
    context: Context,
}

impl Application {
    /// Makes the primary context of `device` current to this thread. The result must be dropped on the same thread.
    pub fn new(driver: Arc<dyn Driver>, streams: Box<dyn Streams>, device: i32) -> Result<Application> {
        let context = driver.primary_retain(device)?;
        if let Err(error) = driver.context_push(context) {
            // The first error is returned; another one changes nothing.
            let _ = driver.primary_release(device);
            return Err(error);
        }
        Ok(Application {
            driver,
            streams,
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
        self.streams.create()
    }

    /// Destroys a stream; work queued on it still runs.
    pub fn destroy_stream(&self, stream: Stream) -> Result<()> {
        self.streams.destroy(stream)
    }

    /// Queues work on `stream` that writes `[address, address + bytes)`.
    pub fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()> {
        self.streams.launch(stream, address, bytes)
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

impl Drop for Application {
    fn drop(&mut self) {
        // A destructor cannot report errors.
        let _ = self.driver.context_pop();
        let _ = self.driver.primary_release(self.device);
    }
}

/// Streams of CUDA, created by functions of libcuda.so.1.
pub struct CudaStreams {
    driver: Arc<CudaDriver>,
    create: unsafe extern "C" fn(*mut *mut c_void, u32) -> u32,
    destroy: unsafe extern "C" fn(*mut c_void) -> u32,
}

impl CudaStreams {
    /// Looks up the functions that `driver` does not provide.
    pub fn new(driver: Arc<CudaDriver>) -> Result<CudaStreams> {
        let missing = |call| DriverError {
            call,
            code: 0,
            failure: Failure::Missing,
        };
        // SAFETY: a terminated name; the library is the one that a driver in this process has open already.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(missing("libcuda.so.1"));
        }
        let find = |name: &CStr, call| {
            // SAFETY: an open library, which is never closed, and a terminated name.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() { Err(missing(call)) } else { Ok(found) }
        };
        let create = find(c"cuStreamCreate", "cuStreamCreate")?;
        let destroy = find(c"cuStreamDestroy_v2", "cuStreamDestroy_v2")?;
        // SAFETY: the documented types of these two functions; CUresult is passed as an unsigned int.
        unsafe {
            Ok(CudaStreams {
                driver,
                create: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut c_void, u32) -> u32>(create),
                destroy: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> u32>(destroy),
            })
        }
    }
}

fn failed(call: &'static str, code: u32) -> DriverError {
    DriverError {
        call,
        code,
        failure: Failure::Other,
    }
}

fn check(call: &'static str, code: u32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(failed(call, code)) }
}

impl Streams for CudaStreams {
    fn create(&self) -> Result<Stream> {
        const NON_BLOCKING: u32 = 1;
        let mut stream = std::ptr::null_mut();
        // SAFETY: `stream` outlives the call, which writes one pointer to it.
        check("cuStreamCreate", unsafe { (self.create)(&mut stream, NON_BLOCKING) })?;
        Ok(Stream(stream as usize))
    }

    fn destroy(&self, stream: Stream) -> Result<()> {
        // SAFETY: the handle comes from `create`; the caller has not destroyed it yet.
        check("cuStreamDestroy_v2", unsafe { (self.destroy)(stream.0 as *mut c_void) })
    }

    fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()> {
        self.driver.fill_async(address, 0, bytes, stream)
    }
}

/// Streams of an Ascend device.
impl Streams for Arc<AscendDriver> {
    fn create(&self) -> Result<Stream> {
        self.create_stream()
    }

    /// AscendCL requires that the stream's work has completed.
    fn destroy(&self, stream: Stream) -> Result<()> {
        self.context_synchronize()?;
        self.destroy_stream(stream)
    }

    fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()> {
        self.fill_async(address, 0, bytes, stream)
    }
}

/// Streams of the simulated device.
pub struct SimStreams {
    driver: Arc<SimDriver>,
}

impl SimStreams {
    /// Streams of the simulated device that `driver` uses.
    pub fn new(driver: Arc<SimDriver>) -> SimStreams {
        SimStreams { driver }
    }
}

impl Streams for SimStreams {
    fn create(&self) -> Result<Stream> {
        let stream = self.driver.machine().stream_create(true);
        stream.map(Stream).map_err(|code| failed("cuStreamCreate", code))
    }

    fn destroy(&self, stream: Stream) -> Result<()> {
        self.driver
            .machine()
            .stream_destroy(stream.0)
            .map_err(|code| failed("cuStreamDestroy", code))
    }

    /// A kernel that takes two simulated microseconds to start and moves a TiB each second.
    fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()> {
        let nanoseconds = 2_000 + bytes / 1_100;
        let launched = self.driver.machine().launch(stream.0, nanoseconds, &[(address, bytes)]);
        launched.map_err(|code| failed("cuLaunchKernel", code))
    }
}
