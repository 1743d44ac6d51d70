//! The application's calls on the second simulated driver, by CUDA's functions. The methods have the names of this
//! project's simulated device, because `random_work` calls them.

use std::collections::{HashMap, VecDeque};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use cudarc::driver::sys;
use parking_lot::Mutex;
pub use trtalloc::driver::sim::model::{capture, functions};

use super::books::{Books, Work};
use super::failures::{Exempt, Failures};
use super::gate::Gate;
use crate::cudasim::clock;
use crate::cudasim::functions::Cudasim;

mod checker;
mod graphs;

pub use checker::Checker;

pub type Result<T> = std::result::Result<T, u32>;

/// A graph or an executable, and its number in the books.
type Numbers = HashMap<usize, u32>;

#[derive(Default)]
struct Objects {
    /// Created contexts, without the primary ones.
    contexts: HashMap<usize, u32>,
    made: u32,
    graphs: Numbers,
    executables: Numbers,
    /// How many of each graph and its executables exist.
    copies: HashMap<u32, u32>,
    /// The memory that other processes hold, by device.
    others: HashMap<i32, sys::CUmemGenericAllocationHandle>,
    /// When a graph's last launch completes.
    launched: HashMap<u32, u64>,
    /// When the last launch of a graph that is being destroyed completes.
    going: Option<u64>,
    /// When the use of an address completes, as the driver knows it; and the context of the use.
    held: HashMap<u64, Work>,
    order: VecDeque<(u64, u64)>,
}

pub struct Machine {
    pub sim: Cudasim,
    devices: i32,
    books: Mutex<Books>,
    objects: Mutex<Objects>,
    failures: Failures,
    gate: Gate,
    steps: AtomicU64,
}

/// Destructors of user objects run after so many steps of the work, if there are any.
const DESTRUCTOR_INTERVAL: u64 = 32;

pub fn code(result: sys::CUresult) -> Result<()> {
    match result as u32 {
        0 => Ok(()),
        code => Err(code),
    }
}

fn stream(handle: usize) -> sys::CUstream {
    handle as sys::CUstream
}

fn event(handle: usize) -> sys::CUevent {
    handle as sys::CUevent
}

/// Every driver function here is called with living handles, and pointers to locals.
impl Machine {
    /// Over the driver in libcuda.so.1. `None` where that is not cudasim.
    pub fn open() -> Option<Arc<Machine>> {
        let sim = Cudasim::open()?;
        let mut devices = 0;
        // SAFETY: see above.
        unsafe {
            code(sys::cuInit(0)).unwrap();
            code(sys::cuDeviceGetCount(&mut devices)).unwrap();
        }
        let gate = Gate::new();
        let machine = Machine {
            sim,
            devices,
            gate,
            steps: AtomicU64::new(0),
            books: Mutex::default(),
            objects: Mutex::default(),
            failures: Failures::default(),
        };
        Some(Arc::new(machine))
    }

    pub fn devices(&self) -> i32 {
        self.devices
    }

    pub fn advance(&self, nanoseconds: u64) {
        clock::advance(nanoseconds);
        if self.steps.fetch_add(1, SeqCst).is_multiple_of(DESTRUCTOR_INTERVAL) {
            let going = &mut self.objects.lock().going;
            if going.is_some_and(|until| until < self.sim.now()) {
                *going = None;
                let _exempt = self.exempt();
                self.gate.run_queued();
            }
        }
    }

    pub fn primary_retain(&self, device: i32) -> Result<usize> {
        let mut context = null_mut();
        // SAFETY: see above.
        code(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        Ok(context as usize)
    }

    /// This driver does not end a context that is released. It counts as inactive then, but its work goes on. So the
    /// application keeps it.
    pub fn primary_release(&self, _device: i32) -> Result<()> {
        Ok(())
    }

    /// This driver's reset does nothing, so no round has one.
    pub fn primary_reset(&self, device: i32) -> Result<()> {
        // SAFETY: see above.
        code(unsafe { sys::cuDevicePrimaryCtxReset_v2(device) })
    }

    pub fn memory_malloc(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: see above.
        code(unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) })?;
        Ok(address)
    }

    pub fn memory_free(&self, address: u64) -> Result<()> {
        // SAFETY: see above.
        code(unsafe { sys::cuMemFree_v2(address) })
    }

    pub fn context_create(&self, device: i32) -> Result<usize> {
        let mut context = null_mut();
        // SAFETY: see above.
        code(unsafe { sys::cuCtxCreate_v2(&mut context, 0, device) })?;
        let mut objects = self.objects.lock();
        objects.made += 1;
        let serial = objects.made;
        objects.contexts.insert(context as usize, serial);
        Ok(context as usize)
    }

    /// This driver has none: CUDA_ERROR_NOT_SUPPORTED.
    pub fn green_context_create(&self, _device: i32) -> Result<usize> {
        Err(801)
    }

    /// The context's work ends with it.
    pub fn context_destroy(&self, context: usize) -> Result<()> {
        let mut objects = self.objects.lock();
        let serial = objects.contexts.remove(&context).expect("it was created");
        objects.held.retain(|address, (of, _)| {
            if *of == serial {
                self.sim.hold(*address, 0, 0);
            }
            *of != serial
        });
        self.books.lock().context_died(serial);
        // SAFETY: see above.
        code(unsafe { sys::cuCtxDestroy_v2(context as sys::CUcontext) })
    }

    pub fn context_push(&self, context: usize) -> Result<()> {
        // SAFETY: see above.
        code(unsafe { sys::cuCtxPushCurrent_v2(context as sys::CUcontext) })
    }

    pub fn context_pop(&self) -> Result<usize> {
        let mut context = null_mut();
        // SAFETY: see above.
        code(unsafe { sys::cuCtxPopCurrent_v2(&mut context) })?;
        Ok(context as usize)
    }

    pub fn context_current(&self) -> Result<usize> {
        let mut context = null_mut();
        // SAFETY: see above.
        code(unsafe { sys::cuCtxGetCurrent(&mut context) })?;
        Ok(context as usize)
    }

    pub fn context_synchronize(&self) -> Result<()> {
        // SAFETY: see above.
        code(unsafe { sys::cuCtxSynchronize() })
    }

    pub fn stream_create(&self, non_blocking: bool) -> Result<usize> {
        let mut stream = null_mut();
        // SAFETY: see above.
        code(unsafe { sys::cuStreamCreate(&mut stream, u32::from(non_blocking)) })?;
        Ok(stream as usize)
    }

    pub fn stream_destroy(&self, handle: usize) -> Result<()> {
        // SAFETY: see above.
        code(unsafe { sys::cuStreamDestroy_v2(stream(handle)) })
    }

    pub fn stream_synchronize(&self, handle: usize) -> Result<()> {
        // SAFETY: see above.
        code(unsafe { sys::cuStreamSynchronize(stream(handle)) })
    }

    pub fn event_create(&self) -> Result<usize> {
        let mut event = null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: see above.
        code(unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(event as usize)
    }

    pub fn event_destroy(&self, handle: usize) -> Result<()> {
        self.books.lock().event_gone(handle);
        // SAFETY: see above.
        code(unsafe { sys::cuEventDestroy_v2(event(handle)) })
    }

    pub fn event_record(&self, handle: usize, on: usize) -> Result<()> {
        // SAFETY: see above.
        code(unsafe { sys::cuEventRecord(event(handle), stream(on)) })?;
        self.books.lock().recorded(handle, on);
        Ok(())
    }

    pub fn stream_wait_event(&self, on: usize, handle: usize) -> Result<()> {
        // SAFETY: see above.
        code(unsafe { sys::cuStreamWaitEvent(stream(on), event(handle), 0) })?;
        self.books.lock().waited(on, handle);
        Ok(())
    }

    pub fn event_query(&self, handle: usize) -> Result<bool> {
        // SAFETY: see above.
        match code(unsafe { sys::cuEventQuery(event(handle)) }) {
            Err(600) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// The current context's serial number, 0 for a primary one.
    fn serial(&self, objects: &Objects) -> u32 {
        let current = self.context_current().unwrap_or(0);
        objects.contexts.get(&current).copied().unwrap_or(0)
    }

    /// As [`Machine::serial`], of a stream's context. A stream that captures is not asked.
    fn serial_of(&self, on: Option<usize>) -> u32 {
        let _exempt = self.exempt();
        let (objects, mut context) = (self.objects.lock(), null_mut());
        let other = on.filter(|on| *on > 2 && !self.books.lock().captures(*on));
        // SAFETY: see above.
        match other.map(|on| code(unsafe { sys::cuStreamGetCtx(stream(on), &mut context) })) {
            Some(Ok(())) => objects.contexts.get(&(context as usize)).copied().unwrap_or(0),
            _ => self.serial(&objects),
        }
    }

    /// Queues work of `duration` on a stream, which uses blocks.
    pub fn launch(&self, on: usize, duration: u64, ranges: &[(u64, u64)]) -> Result<()> {
        match self.sim.busy(on, duration.max(1)) {
            0 => {}
            code => return Err(code as u32),
        }
        let mut objects = self.objects.lock();
        let mut books = self.books.lock();
        let work = (self.serial(&objects), self.sim.done(on));
        let captured = books.captures(on);
        for &(address, bytes) in ranges {
            books.used(address, on, work);
            if !captured {
                self.hold(&mut objects, address, bytes, work);
            }
        }
        Ok(())
    }

    /// The driver reports a range that is unmapped while work on it is pending.
    fn hold(&self, objects: &mut Objects, address: u64, bytes: u64, (context, until): Work) {
        let known = objects.held.get(&address).map_or(0, |(_, until)| *until);
        if until <= known {
            return;
        }
        self.sim.hold(address, bytes, until);
        objects.held.insert(address, (context, until));
        objects.order.push_back((address, until));
        while objects.order.len() > 4096 {
            let (address, until) = objects.order.pop_front().expect("there are many");
            if objects.held.get(&address).is_some_and(|(_, last)| *last == until) && until < self.sim.now() {
                objects.held.remove(&address);
                self.sim.hold(address, 0, 0);
            }
        }
    }

    /// Sets how many bytes of a device other processes hold, at most what is free. Here the application holds them.
    pub fn others_hold(&self, device: i32, bytes: u64) -> Result<()> {
        let mut objects = self.objects.lock();
        if let Some(handle) = objects.others.remove(&device) {
            // SAFETY: see above.
            code(unsafe { sys::cuMemRelease(handle) })?;
        }
        let (free, _) = self.memory_info(device)?;
        let bytes = bytes.min(free) >> 21 << 21;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: numbers only, of which 0 is each one's default.
        let mut kind: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        kind.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        kind.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        kind.location.id = device;
        let mut handle = 0;
        // SAFETY: see above.
        code(unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &kind, 0) })?;
        objects.others.insert(device, handle);
        Ok(())
    }

    /// Free and total bytes.
    pub fn memory_info(&self, device: i32) -> Result<(u64, u64)> {
        let mut total = 0;
        // SAFETY: see above.
        code(unsafe { sys::cuDeviceTotalMem_v2(&mut total, device) })?;
        Ok((total as u64 - self.sim.used(device), total as u64))
    }

    /// Reservations, handles and mappings.
    pub fn memory_held(&self) -> [usize; 3] {
        [c"reservations", c"handles", c"mappings"].map(|what| self.sim.count(what))
    }

    /// While it exists, calls do not fail.
    pub fn exempt(&self) -> Exempt<'_> {
        self.failures.exempt(&self.sim)
    }

    pub fn fail_nth(&self, call: Option<&str>, n: u64, code: u32) -> bool {
        self.failures.arm(&self.sim, call, n, false, code)
    }

    /// Makes the n-th call from now and each later one fail.
    pub fn fail_every(&self, call: Option<&str>, n: u64, code: u32) -> bool {
        self.failures.arm(&self.sim, call, n, true, code)
    }

    pub fn clear_failures(&self) {
        self.failures.clear(&self.sim);
    }

    /// How often the call of the last rule was made.
    pub fn calls_seen(&self) -> u64 {
        self.failures.seen()
    }

    pub fn captures_ended(&self) -> u64 {
        self.failures.captures_ended(&self.sim)
    }

    pub fn failures_struck(&self) -> u64 {
        self.failures.failed(&self.sim)
    }

    /// The violations that the driver itself found.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (count, what) in [
            (self.sim.unmapped_in_use(), "ranges unmapped while work uses them"),
            (
                self.sim.wrong_context(),
                "events recorded in another context than their own",
            ),
        ] {
            if count > 0 {
                faults.push(format!("{count} {what}"));
            }
        }
        faults
    }

    pub fn checker(&self) -> Checker<'_> {
        Checker(self)
    }
}
