//! The workloads of `trtalloc bench serve` over the second simulated driver: its clock, its latencies, and its own books of
//! who may use which physical byte.

use std::cell::Cell;
use std::ffi::CString;
use std::sync::Arc;

use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::cuda::CudaDriver;
use trtalloc::error::{Error, Result};
use trtalloc::trace::serve::{self, Calls, Client, Computer, Graph, MEMORY_CALLS, Measured, Memory, Row, Run};

use super::machine::Machine;
use super::machine::capture::MODE_THREAD_LOCAL;
use crate::cudasim::clock;

struct Served {
    machine: Arc<Machine>,
    /// Waits that the application queued.
    own_waits: Cell<u64>,
    checked: Cell<u64>,
}

fn done<T>(result: std::result::Result<T, u32>) -> Result<T> {
    result.map_err(|code| Error::Unsupported(format!("the driver refused an application's call: {code}")))
}

impl Served {
    fn new(machine: &Arc<Machine>) -> Served {
        Served {
            machine: machine.clone(),
            own_waits: Cell::new(0),
            checked: Cell::new(0),
        }
    }

    /// How often a function was called, in each of its versions.
    fn count(&self, call: &str) -> u64 {
        let count = |name: String| {
            let name = CString::new(name).expect("a name has no zero");
            self.machine.sim.calls(name.as_ptr())
        };
        count(call.into()) + count(format!("{call}_v2"))
    }
}

impl Computer for Served {
    fn now(&self) -> u64 {
        self.machine.sim.now()
    }

    fn advance(&self, nanoseconds: u64) {
        clock::advance(nanoseconds);
    }

    fn create_stream(&self) -> Result<Stream> {
        done(self.machine.stream_create(true)).map(Stream)
    }

    fn destroy_stream(&self, stream: Stream) -> Result<()> {
        done(self.machine.stream_destroy(stream.0))
    }

    fn synchronize(&self) -> Result<()> {
        done(self.machine.context_synchronize())
    }

    fn order(&self, before: Stream, after: Stream) -> Result<()> {
        self.own_waits.set(self.own_waits.get() + 1);
        let event = done(self.machine.event_create())?;
        done(self.machine.event_record(event, before.0))?;
        done(self.machine.stream_wait_event(after.0, event))?;
        done(self.machine.event_destroy(event))
    }

    fn work(&self, stream: Stream, nanoseconds: u64, blocks: &[(u64, u64)]) -> Result<()> {
        done(self.machine.launch(stream.0, nanoseconds, blocks))
    }

    fn work_ends(&self, stream: Stream) -> Result<u64> {
        Ok(self.machine.sim.done(stream.0))
    }

    fn begin_capture(&self, stream: Stream) -> Result<()> {
        done(self.machine.stream_begin_capture(stream.0, MODE_THREAD_LOCAL))
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph> {
        let graph = done(self.machine.stream_end_capture(stream.0))?;
        let executable = done(self.machine.graph_instantiate(graph))?;
        Ok(Graph { graph, executable })
    }

    fn launch_graph(&self, graph: &Graph, stream: Stream) -> Result<()> {
        done(self.machine.graph_launch(graph.executable, stream.0))
    }

    fn destroy_graph(&self, graph: Graph) -> Result<()> {
        done(self.machine.graph_destroy(graph.graph))?;
        done(self.machine.graph_exec_destroy(graph.executable))
    }

    fn calls(&self) -> Calls {
        Calls {
            memory: MEMORY_CALLS.iter().map(|call| self.count(call)).sum(),
            waits: self.count("cuStreamWaitEvent") - self.own_waits.get(),
        }
    }

    fn memory(&self) -> u64 {
        self.machine.sim.used(0)
    }

    fn handed_out(&self, address: u64, bytes: u64, stream: Option<Stream>) {
        self.checked.set(self.checked.get() + 1);
        self.machine
            .checker()
            .hand_out(address, bytes, stream.map(|stream| stream.0));
    }

    fn giving_back(&self, address: u64, stream: Option<Stream>) {
        self.machine.checker().give_back(address, stream.map(|stream| stream.0));
    }

    fn resized(&self, old: u64, new: u64, bytes: u64) {
        self.checked.set(self.checked.get() + 1);
        self.machine.checker().resize(old, new, bytes);
    }

    fn checked(&self) -> u64 {
        self.checked.get()
    }

    fn violations(&self) -> Vec<String> {
        let mut found = self.machine.checker().violations();
        found.extend(self.machine.faults());
        found
    }
}

/// Runs a row without an allocator, and with one.
pub fn measure(row: Row, (warm, requests): (usize, usize), seed: u64) -> Measured {
    let machine = Machine::open().expect("libcuda.so.1 is cudasim's");
    let context = machine.primary_retain(0).expect("a device");
    machine.context_push(context).expect("a context");
    let clients = serve::clients(row.kind, row.sizes, row.streams, warm + requests, seed);
    let run = |allocator: Option<&dyn Memory>, decay: u64| {
        let computer = Served::new(&machine);
        let run = Run::new(&computer, allocator, &clients, row.ahead, warm).expect("streams");
        run.with_decay(decay)
            .run()
            .unwrap_or_else(|error| panic!("{}: {error}", row.name()))
    };
    let ideal = run(None, 0).device_time;
    let mut config = Config::default();
    let decay = std::mem::take(&mut config.decay_ms);
    let driver = CudaDriver::open().expect("a driver");
    let allocator = Allocator::with_driver(driver, config).expect("an allocator");
    Measured {
        row,
        figures: run(Some(allocator.as_ref()), decay),
        ideal,
        needs: clients.iter().map(Client::needs).sum(),
    }
}
