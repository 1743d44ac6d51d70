//! A model of a CUDA device, in the host's memory and on a simulated clock.
//!
//! [`Machine`] is a computer with some such devices. Its methods are the driver functions that an allocator and its
//! applications need. Errors are the driver's numbers ([`code`]). The simulated driver of this crate uses it, and so do
//! a `libcuda.so.1` and a stand-in for AscendCL for tests. The model depends only on std, libc and parking_lot, and
//! uses no module outside this folder, so the tests can include it by path.
//!
//! # Rules that are modelled
//!
//! * **Memory** (`memory`, `allocation`, `addresses`, `access`): addresses are real and have no more properties than
//!   CUDA guarantees. Each device has a capacity and a granularity, and other processes may hold a part of its memory, or
//!   share it by a file (`shared`). On an integrated GPU the host's programs use it, too.
//!   A handle that is mapped twice is one memory. The host faults where it has no access. Refused are: an offset other
//!   than 0, a map over a map or outside a reservation, a size that is not the handle's, an unmap or an access change
//!   that cuts a mapping, and freeing a reservation in part or with mappings.
//! * **Streams** (`streams`, `queue`): FIFO queues on the clock. Blocking streams are ordered with the legacy stream of
//!   their context. A handle is reused as soon as its stream is destroyed, while the old stream's work continues. Using
//!   a handle without a live stream aborts the process; only the checker accepts one. Ids are never reused. A queue
//!   holds 1024 operations; then a launch waits.
//! * **Contexts** (`contexts`, `context_work`): the primary context keeps its handle over a reset and gets a new id. A
//!   reset or a destruction ends all streams, events and `malloc` memory of the context, and a primary reset also all
//!   physical handles of the device. A green context belongs to its device's primary context, whose context events
//!   cover its work; it may be current in one thread at a time, and a call for it from another one is refused and a fault.
//!   The handle of another context is reused once the context is on no thread's stack.
//!   A kernel with an invalid access gives its context a sticky error: `cuStreamGetId`, the context queries and memory
//!   management without a context still work, and other calls return the error until a reset.
//! * **Events** (`events`): the last record counts. The handle of a destroyed event, with its context or alone, is
//!   reused. A context event covers the work of destroyed streams.
//! * **Capture** (`capture`): modes global, thread-local and relaxed; forks and joins by events. These calls are
//!   refused and invalidate the capture: unsafe calls where the modes forbid them (malloc, free, virtual memory, event
//!   and stream queries and waits, ids of streams and contexts, an allocator's calls for devices and primary contexts);
//!   the id and the context of a stream that captures, in any mode; legacy-stream work while a blocking stream captures;
//!   waits for outside events; queries of captured events; merges of captures; joins of an invalid capture; context
//!   events and synchronization while a stream of the device captures.
//! * **Graphs and user objects** (`graphs`, `objects`, `destructors`): a launch is a use by every node. A captured launch makes a
//!   child node, which retains the user objects of its graph. Destructors run late, on one shared thread. A driver call
//!   in a destructor aborts.
//! * **Time**: each call advances the clock by its latency. A wait advances it to the end of the awaited work. Contents
//!   change when a copy or a fill is submitted, regardless of the clock.
//! * **The order checker** (`checker`, `checker_state`, `blocks`, `ranges`): see `checker_state`.
//!
//! # Not modelled
//!
//! Kernel contents, priorities, managed memory, peer links (all peers reach each other), exporting
//! handles, memory pools of the driver, graph editing, external event nodes, and limits on the number of mappings other
//! than the host's own (vm.max_map_count). Where CUDA's documentation is silent, the model takes the stricter reading:
//! virtual memory calls count as unsafe during capture, and unmapping does not wait. NVIDIA's CCCL says of queries of a
//! stream's id and context that they end its capture (cudax/include/cuda/experimental/__places/stream_pool.cuh).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

mod access;
mod addresses;
pub mod allocation;
mod arena;
mod blocks;
pub mod capture;
pub mod checker;
mod checker_state;
pub mod code;
pub mod context_work;
pub mod contexts;
mod destructors;
mod entries;
pub mod events;
pub mod failures;
pub mod functions;
pub mod graphs;
mod host_memory;
mod memory;
mod number_map;
pub mod objects;
mod queue;
mod ranges;
pub mod shared;
mod state;
pub mod streams;
mod tables;
mod threads;
mod vector_clock;
mod work;

pub use addresses::Addresses;

use code::Result;
use failures::Failures;
use functions::{Call, Latencies};
use state::MachineState;
use tables::Tables;
use threads::{ThreadState, Threads};

/// Panics where the calling thread holds a lock under which no call may wait.
fn refuse_under_lock(call: Call) {
    let held = HOLDS_LOCK.get().is_some_and(|holds_lock| holds_lock());
    assert!(!held, "{} is called under a lock that others wait for", call.name());
}

/// Whether the calling thread holds a lock under which no call may wait. The caller of the machine sets it.
pub static HOLDS_LOCK: OnceLock<fn() -> bool> = OnceLock::new();

/// What kind of computer to simulate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineConfig {
    /// Number of devices, at most 64.
    pub devices: u32,
    /// Bytes of memory of each device.
    pub memory: u64,
    /// Granularity of handles in bytes, a power of two.
    pub granularity: u64,
    /// The recommended granularity; 0: the same.
    pub recommended_granularity: u64,
    /// The granularity of handles that can be exported, or that network cards may access; 0: the same.
    pub exportable_granularity: u64,
    /// Whether there is virtual memory management.
    pub virtual_memory: bool,
    /// The driver's version as `cuDriverGetVersion` returns it, 1000 × major + 10 × minor. Later functions are missing.
    pub version: u32,
    /// Whether virtual memory calls count as unsafe during capture.
    pub vmm_unsafe_in_capture: bool,
    /// Whether `cuStreamGetId`, `cuStreamGetCtx` and `cuCtxGetId` count as unsafe during capture, and the first two end
    /// the capture of the stream that they are given. An allocator's calls for devices and primary contexts are unsafe
    /// then, too.
    pub ids_unsafe_in_capture: bool,
    /// Whether the id of a green context that is current in another thread is refused. CUDA does not say.
    pub green_ids_refused: bool,
    /// Whether the order checker and the check for unmapping under pending work are on at the start.
    pub checker: bool,
    /// Bytes that a copy or a fill moves in one simulated nanosecond.
    pub bytes_per_ns: u64,
    /// Whether copies and fills change memory. Without contents, a model with much memory costs the host nothing.
    pub contents: bool,
    /// Bytes of address space for reservations.
    pub address_space: u64,
    /// Whether the GPU is integrated, as on Jetson: it has no memory of its own. `memory` is the machine's then. The host's
    /// programs use so many bytes of it at the start, pinned memory comes out of it, and reservations are bounded by the
    /// rest.
    pub integrated: Option<u64>,
    /// Where memory lies.
    pub addresses: Addresses,
    /// Simulated nanoseconds from the end of a user object's last use to the call of its destructor.
    pub user_object_delay: u64,
    /// How long calls take until [`Machine::set_latency`] changes it.
    pub latencies: Latencies,
    /// The file in which several processes count what they hold of the devices together: see [`shared`].
    pub shared: Option<std::path::PathBuf>,
}

impl Default for MachineConfig {
    fn default() -> Self {
        MachineConfig {
            devices: 1,
            memory: 24 << 30,
            granularity: 2 << 20,
            recommended_granularity: 0,
            exportable_granularity: 0,
            virtual_memory: true,
            version: 12_090,
            vmm_unsafe_in_capture: true,
            ids_unsafe_in_capture: true,
            green_ids_refused: false,
            checker: true,
            bytes_per_ns: 1024,
            contents: true,
            address_space: 128 << 40,
            integrated: None,
            addresses: Addresses::Drawn(0),
            user_object_delay: 10_000,
            latencies: Latencies::Short,
            shared: None,
        }
    }
}

impl MachineConfig {
    /// Minimum and recommended granularity of handles; 0 without virtual memory.
    pub fn granularity_of(&self, exportable: bool) -> (u64, u64) {
        if !self.virtual_memory {
            return (0, 0);
        }
        let minimum = match exportable {
            true => self.granularity.max(self.exportable_granularity),
            false => self.granularity,
        };
        (minimum, minimum.max(self.recommended_granularity))
    }

    /// `cuStreamGetId` and `cuCtxGetId`.
    pub fn stream_ids(&self) -> bool {
        self.version >= 12_000
    }

    /// `cuCtxRecordEvent`.
    pub fn context_events(&self) -> bool {
        self.version >= 12_050
    }

    /// `cuUserObjectCreate`, `cuGraphRetainUserObject`, and the graph in `cuStreamGetCaptureInfo`.
    pub fn user_objects(&self) -> bool {
        self.version >= 11_030
    }
}

/// A computer with simulated devices. Safe from any thread. Several may exist; each refuses the handles of others.
pub struct Machine {
    threads: Threads,
    tables: Arc<Tables>,
    config: MachineConfig,
    failures: Failures,
    latencies: [AtomicU64; Call::COUNT],
    state: Mutex<MachineState>,
    /// Signalled when a persistent kernel is released.
    released: Condvar,
    callbacks: destructors::Callbacks,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Ends the process, as a real driver may when it is given a handle of a destroyed object.
#[cold]
fn abort(why: &str) -> ! {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "simulated device: {why}");
    std::process::abort()
}

impl Machine {
    /// A computer as `config` says. Where the host has no sparse files in memory, its devices have no memory.
    pub fn new(config: MachineConfig) -> Arc<Machine> {
        let config = MachineConfig {
            devices: config.devices.min(64),
            ..config
        };
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = match cfg!(loom) {
            // Handles are the same in every run of a model.
            true => NUMBERS.load(Relaxed),
            false => NUMBERS.fetch_add(1, Relaxed),
        };
        let tables = Arc::new(Tables::new(number));
        let state = MachineState::new(&config, tables.clone());
        Arc::new(Machine {
            threads: Threads::new(number),
            tables,
            failures: Failures::default(),
            latencies: std::array::from_fn(|at| AtomicU64::new(config.latencies.of(Call::ALL[at]))),
            state: Mutex::new(state),
            released: Condvar::new(),
            callbacks: destructors::Callbacks::default(),
            config,
        })
    }

    /// The configuration passed to [`Machine::new`].
    pub fn config(&self) -> &MachineConfig {
        &self.config
    }

    /// The simulated time in nanoseconds.
    pub fn now(&self) -> u64 {
        self.tables.now()
    }

    /// Lets simulated time pass.
    pub fn advance(&self, nanoseconds: u64) {
        let mut state = self.state.lock();
        state.tables.advance(nanoseconds);
        self.run_due_destructors(&mut state);
    }

    /// All invalid uses of memory so far: unmapping under pending work, kernels out of bounds.
    pub fn faults(&self) -> Vec<String> {
        self.state.lock().faults.clone()
    }

    /// Forgets the faults so far.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// Begins a call: counts it, applies injected failures, takes the lock and advances the clock by its latency.
    fn enter(&self, call: Call) -> Result<(&ThreadState, MutexGuard<'_, MachineState>)> {
        if cfg!(debug_assertions) && call.may_wait() {
            refuse_under_lock(call);
        }
        let thread = self.threads.here();
        if thread.exempt.load(Relaxed) == 0 {
            thread.count(call);
            if self.tables.flags.load(Relaxed) & tables::FLAG_ARMED != 0 {
                self.apply_rules(call)?;
            }
        }
        let latency = self.pass_on_host(call);
        let mut state = self.state.lock();
        state.in_exempt_call = thread.exempt.load(Relaxed) != 0;
        self.tables.advance(latency);
        self.run_due_destructors(&mut state);
        Ok((thread, state))
    }

    /// Begins a query, without a lock.
    #[inline]
    fn query(&self, call: Call) -> Result<&ThreadState> {
        let thread = self.threads.here();
        let flags = self.tables.flags.load(Relaxed);
        if thread.exempt.load(Relaxed) == 0 {
            thread.count(call);
            if flags != 0 {
                self.query_slowly(call, flags)?;
            }
        }
        Ok(thread)
    }

    #[cold]
    fn query_slowly(&self, call: Call, flags: u32) -> Result<()> {
        if flags & tables::FLAG_ARMED != 0 {
            self.apply_rules(call)?;
        }
        self.tables.advance(self.pass_on_host(call));
        Ok(())
    }

    /// The call's latency, which passes on the host first if [`Machine::spend_host_time`] says so.
    fn pass_on_host(&self, call: Call) -> u64 {
        let latency = self.latencies[call as usize].load(Relaxed);
        if latency > 0 && self.tables.flags.load(Relaxed) & tables::FLAG_HOST != 0 {
            let (begun, time) = (Instant::now(), Duration::from_nanos(latency));
            while begun.elapsed() < time {
                std::hint::spin_loop();
            }
        }
        latency
    }
}
