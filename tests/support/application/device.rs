//! The application's side: contexts, streams and work, on the simulated device in this process or through the driver's
//! own functions.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cudarc::driver::sys;
use trtalloc::driver::sim::SimDriver;
use trtalloc::driver::sim::model::{Machine, capture};

use crate::common::cudasim::clock;
use crate::common::cudasim::functions::Cudasim;

/// The mode of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// Work that lasts until it is released.
pub struct Hold(Box<dyn FnOnce() + Send>);

impl Hold {
    pub fn let_go(self) {
        self.0();
    }
}

/// What an application does; not every test uses all of it. Streams, addresses, graphs and executables are numbers.
#[allow(dead_code)]
pub trait Device: Send + Sync {
    fn count(&self) -> i32;
    /// The device's memory in bytes.
    fn total(&self, device: i32) -> u64;
    /// Makes the device's primary context current to this thread.
    fn enter(&self, device: i32);
    /// Undoes the last `enter`.
    fn leave(&self);
    /// As `leave`, where the current context may have been reset.
    fn pop_destroyed_context(&self);
    /// Whether a context is current to this thread.
    fn entered(&self) -> bool;
    /// A stream that is not ordered with the default stream.
    fn stream(&self) -> usize;
    /// A stream that is ordered with the default stream.
    fn blocking_stream(&self) -> usize;
    fn destroy(&self, stream: usize);
    /// Queues work that writes `byte` to a range.
    fn write(&self, stream: usize, address: usize, bytes: u64, byte: u8);
    /// Queues work that lasts until it is released.
    fn hold(&self, stream: usize) -> Hold;
    /// Orders what is queued on `then` from now on after what is queued on `first` now. Returns false if a capture
    /// prevents it.
    fn order(&self, first: usize, then: usize) -> bool;
    /// Waits for the stream.
    fn wait(&self, stream: usize);
    /// Waits for everything in the current context.
    fn wait_for_all(&self);
    /// The contents of memory once all work has completed.
    fn read(&self, address: usize, bytes: u64) -> Vec<u8>;
    /// Memory of the application.
    fn malloc(&self, bytes: u64) -> usize;
    fn free(&self, address: usize);
    fn begin_capture(&self, stream: usize) {
        self.begin_capture_in(stream, Mode::Relaxed);
    }
    fn begin_capture_in(&self, stream: usize, mode: Mode);
    /// The graph; `None` if something ended the capture.
    fn end_capture(&self, stream: usize) -> Option<usize>;
    fn instantiate(&self, graph: usize) -> usize;
    fn launch(&self, executable: usize, stream: usize);
    fn destroy_graph(&self, graph: usize);
    fn destroy_executable(&self, executable: usize);
    /// Waits until the destructors of the objects that graphs held have run.
    fn wait_for_graph_destructors(&self);
    /// The simulated machine in this process, if there is one.
    fn machine(&self) -> Option<&Arc<Machine>>;
}

/// The simulated device in this process.
pub struct Sim(pub Arc<SimDriver>);

impl Sim {
    fn on(&self) -> &Arc<Machine> {
        self.0.machine()
    }
}

/// A case is over. Allocators that it used through C keep the machine, and an emulator has notes of each page of its addresses.
impl Drop for Sim {
    fn drop(&mut self) {
        self.on().return_addresses();
    }
}

impl Device for Sim {
    fn count(&self) -> i32 {
        self.on().config().devices as i32
    }

    fn total(&self, _: i32) -> u64 {
        self.on().config().memory
    }

    fn enter(&self, device: i32) {
        // Another thread may capture, which the test's own calls must not disturb.
        let _exempt = self.on().exempt();
        let context = self.on().primary_retain(device).unwrap();
        self.on().context_push(context).unwrap();
    }

    fn leave(&self) {
        let _exempt = self.on().exempt();
        let device = self.on().context_current_device().unwrap();
        self.on().context_pop().unwrap();
        self.on().primary_release(device).unwrap();
    }

    fn pop_destroyed_context(&self) {
        self.on().context_pop().unwrap();
    }

    fn entered(&self) -> bool {
        self.on().context_current() != Ok(0)
    }

    fn stream(&self) -> usize {
        self.on().stream_create(true).unwrap()
    }

    fn blocking_stream(&self) -> usize {
        self.on().stream_create(false).unwrap()
    }

    fn destroy(&self, stream: usize) {
        self.on().stream_destroy(stream).unwrap();
    }

    fn write(&self, stream: usize, address: usize, bytes: u64, byte: u8) {
        self.on().fill_async(address as u64, byte, bytes, stream).unwrap();
    }

    fn hold(&self, stream: usize) -> Hold {
        let machine = self.on().clone();
        let kernel = machine.launch_persistent(stream, &[]).unwrap();
        Hold(Box::new(move || assert!(machine.release_persistent(kernel))))
    }

    fn order(&self, first: usize, then: usize) -> bool {
        let event = self.on().event_create().unwrap();
        self.on().event_record(event, first).unwrap();
        let ordered = self.on().stream_wait_event(then, event).is_ok();
        self.on().event_destroy(event).unwrap();
        ordered
    }

    fn wait(&self, stream: usize) {
        self.on().stream_synchronize(stream).unwrap();
    }

    fn wait_for_all(&self) {
        self.on().context_synchronize().unwrap();
    }

    fn read(&self, address: usize, bytes: u64) -> Vec<u8> {
        self.wait_for_all();
        let mut found = vec![0; bytes as usize];
        self.on().read(address as u64, &mut found).unwrap();
        found
    }

    fn malloc(&self, bytes: u64) -> usize {
        self.on().memory_malloc(bytes).unwrap() as usize
    }

    fn free(&self, address: usize) {
        self.on().memory_free(address as u64).unwrap();
    }

    fn begin_capture_in(&self, stream: usize, mode: Mode) {
        let mode = match mode {
            Mode::Global => capture::MODE_GLOBAL,
            Mode::ThreadLocal => capture::MODE_THREAD_LOCAL,
            Mode::Relaxed => capture::MODE_RELAXED,
        };
        self.on().stream_begin_capture(stream, mode).unwrap();
    }

    fn end_capture(&self, stream: usize) -> Option<usize> {
        self.on().stream_end_capture(stream).ok()
    }

    fn instantiate(&self, graph: usize) -> usize {
        self.on().graph_instantiate(graph).unwrap()
    }

    fn launch(&self, executable: usize, stream: usize) {
        self.on().graph_launch(executable, stream).unwrap();
    }

    fn destroy_graph(&self, graph: usize) {
        self.on().graph_destroy(graph).unwrap();
    }

    fn destroy_executable(&self, executable: usize) {
        self.on().graph_exec_destroy(executable).unwrap();
    }

    fn wait_for_graph_destructors(&self) {
        self.on().drain_user_objects();
    }

    fn machine(&self) -> Option<&Arc<Machine>> {
        Some(self.on())
    }
}

/// The driver through its own function names, whichever library exports them.
pub struct Cuda {
    /// The second simulated driver, if this is it.
    second: Option<Cudasim>,
}

fn ok(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

fn handle(stream: usize) -> sys::CUstream {
    stream as sys::CUstream
}

fn make_stream(flags: sys::CUstream_flags) -> usize {
    let mut stream = null_mut();
    // SAFETY: the stream is a local variable.
    ok(unsafe { sys::cuStreamCreate(&mut stream, flags as u32) });
    stream as usize
}

impl Cuda {
    pub fn new() -> Cuda {
        // SAFETY: 0 is the only flag.
        ok(unsafe { sys::cuInit(0) });
        Cuda {
            second: Cudasim::open(),
        }
    }
}

/// How long held work lasts in nanoseconds unless it is released.
const HOLD: u64 = 600_000_000_000;

unsafe extern "C" fn reached(flag: *mut c_void) {
    // SAFETY: `wait_for_graph_destructors` gave up this reference.
    unsafe { Arc::from_raw(flag.cast::<AtomicBool>()) }.store(true, Ordering::Release);
}

unsafe extern "C" fn spin(until: *mut c_void) {
    // SAFETY: `hold` leaks the flag, so it lives for ever.
    let until = unsafe { &*until.cast::<AtomicBool>() };
    while !until.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_micros(50));
    }
}

impl Device for Cuda {
    fn count(&self) -> i32 {
        let mut count = 0;
        // SAFETY: the count is a local variable.
        ok(unsafe { sys::cuDeviceGetCount(&mut count) });
        count
    }

    fn total(&self, device: i32) -> u64 {
        let mut total = 0;
        // SAFETY: the total is a local variable.
        ok(unsafe { sys::cuDeviceTotalMem_v2(&mut total, device) });
        total as u64
    }

    fn enter(&self, device: i32) {
        let mut context = null_mut();
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: local variables, and a context that this has retained. Tests keep it until they end.
        unsafe {
            // Another thread may capture.
            ok(sys::cuThreadExchangeStreamCaptureMode(&mut mode));
            ok(sys::cuDevicePrimaryCtxRetain(&mut context, device));
            ok(sys::cuThreadExchangeStreamCaptureMode(&mut mode));
            ok(sys::cuCtxPushCurrent_v2(context));
        }
    }

    fn leave(&self) {
        let mut context = null_mut();
        // SAFETY: the context is a local variable.
        ok(unsafe { sys::cuCtxPopCurrent_v2(&mut context) });
    }

    fn pop_destroyed_context(&self) {
        self.leave();
    }

    fn entered(&self) -> bool {
        let mut context = null_mut();
        // SAFETY: the context is a local variable.
        ok(unsafe { sys::cuCtxGetCurrent(&mut context) });
        !context.is_null()
    }

    fn stream(&self) -> usize {
        make_stream(sys::CUstream_flags::CU_STREAM_NON_BLOCKING)
    }

    fn blocking_stream(&self) -> usize {
        make_stream(sys::CUstream_flags::CU_STREAM_DEFAULT)
    }

    fn destroy(&self, stream: usize) {
        // SAFETY: the stream exists.
        ok(unsafe { sys::cuStreamDestroy_v2(handle(stream)) });
    }

    fn write(&self, stream: usize, address: usize, bytes: u64, byte: u8) {
        // SAFETY: the stream exists, and the memory is the test's.
        ok(unsafe { sys::cuMemsetD8Async(address as u64, byte, bytes as usize, handle(stream)) });
    }

    fn hold(&self, stream: usize) -> Hold {
        if let Some(second) = &self.second {
            // CUDA: a host function "will block work added after it" (cuLaunchHostFunc). This driver lets later work
            // pass, so here it is work that lasts until the driver's clock is set forward.
            assert_eq!(second.busy(stream, HOLD), 0);
            let until = second.done(stream);
            return Hold(Box::new(move || clock::shift(until)));
        }
        let until: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let data = std::ptr::from_ref(until).cast_mut().cast();
        // SAFETY: the stream exists, and the function's data lives for ever.
        ok(unsafe { sys::cuLaunchHostFunc(handle(stream), Some(spin), data) });
        Hold(Box::new(move || until.store(true, Ordering::Release)))
    }

    fn order(&self, first: usize, then: usize) -> bool {
        let mut event = null_mut();
        // SAFETY: a local variable, and streams and events that exist.
        unsafe {
            ok(sys::cuEventCreate(
                &mut event,
                sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32,
            ));
            ok(sys::cuEventRecord(event, handle(first)));
            let ordered = sys::cuStreamWaitEvent(handle(then), event, 0) == sys::CUresult::CUDA_SUCCESS;
            ok(sys::cuEventDestroy_v2(event));
            ordered
        }
    }

    fn wait(&self, stream: usize) {
        // SAFETY: the stream exists.
        ok(unsafe { sys::cuStreamSynchronize(handle(stream)) });
    }

    fn wait_for_all(&self) {
        // SAFETY: a context is current.
        ok(unsafe { sys::cuCtxSynchronize() });
    }

    fn read(&self, address: usize, bytes: u64) -> Vec<u8> {
        self.wait_for_all();
        let mut found = vec![0; bytes as usize];
        // SAFETY: the buffer has that many bytes.
        ok(unsafe { sys::cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), address as u64, found.len()) });
        found
    }

    fn malloc(&self, bytes: u64) -> usize {
        let mut address = 0;
        // SAFETY: the address is a local variable.
        ok(unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) });
        address as usize
    }

    fn free(&self, address: usize) {
        // SAFETY: the memory is from `malloc`, and no code uses it any more.
        ok(unsafe { sys::cuMemFree_v2(address as u64) });
    }

    fn begin_capture_in(&self, stream: usize, mode: Mode) {
        let mode = match mode {
            Mode::Global => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::ThreadLocal => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::Relaxed => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        // SAFETY: the stream exists.
        ok(unsafe { sys::cuStreamBeginCapture_v2(handle(stream), mode) });
    }

    fn end_capture(&self, stream: usize) -> Option<usize> {
        let mut graph: sys::CUgraph = null_mut();
        // SAFETY: the stream exists, and the graph is a local variable.
        let code = unsafe { sys::cuStreamEndCapture(handle(stream), &mut graph) };
        (code == sys::CUresult::CUDA_SUCCESS).then_some(graph as usize)
    }

    fn instantiate(&self, graph: usize) -> usize {
        if self.second.is_some() {
            let mut executable = null_mut();
            // SAFETY: the graph exists, and the executable is a local variable.
            ok(unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph as sys::CUgraph, 0) });
            return executable as usize;
        }
        // Every driver since CUDA 11.0 exports this function; the bindings have only the one that came with 11.4.
        type Instantiate = unsafe extern "C" fn(*mut usize, usize, *mut usize, *mut c_char, usize) -> sys::CUresult;
        let mut executable = 0;
        // SAFETY: the driver's documented function of this name has that type; the graph exists, and the executable is
        // a local variable.
        unsafe {
            let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
            let found = libc::dlsym(driver, c"cuGraphInstantiate_v2".as_ptr());
            assert!(!found.is_null());
            let instantiate: Instantiate = std::mem::transmute(found);
            ok(instantiate(&mut executable, graph, null_mut(), null_mut(), 0));
        }
        executable
    }

    fn launch(&self, executable: usize, stream: usize) {
        // SAFETY: both exist.
        ok(unsafe { sys::cuGraphLaunch(executable as sys::CUgraphExec, handle(stream)) });
    }

    fn destroy_graph(&self, graph: usize) {
        // SAFETY: the graph exists, and no code uses it after this.
        ok(unsafe { sys::cuGraphDestroy(graph as sys::CUgraph) });
    }

    fn destroy_executable(&self, executable: usize) {
        // SAFETY: the executable exists, and no code uses it after this.
        ok(unsafe { sys::cuGraphExecDestroy(executable as sys::CUgraphExec) });
    }

    fn wait_for_graph_destructors(&self) {
        if self.second.is_some() {
            // The driver runs its destructors and host functions one after the other.
            self.wait_for_all();
            let hold = Arc::new(AtomicBool::new(false));
            let data = Arc::into_raw(hold.clone()).cast_mut().cast();
            // SAFETY: the default stream, and a function that owns its data.
            ok(unsafe { sys::cuLaunchHostFunc(null_mut(), Some(reached), data) });
            while !hold.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            return;
        }
        // No call reports it: destructors run "later", on a thread of the driver.
        self.wait_for_all();
        std::thread::sleep(Duration::from_millis(100));
        self.wait_for_all();
    }

    fn machine(&self) -> Option<&Arc<Machine>> {
        None
    }
}
