//! What a run needs of a simulated computer, and the project's own.

use std::cell::Cell;

use super::figures::{Calls, MEMORY_CALLS};
use crate::allocator::{Allocator, Request};
use crate::driver::Stream;
use crate::driver::sim::Machine;
use crate::driver::sim::model::capture::MODE_THREAD_LOCAL;
use crate::support::error::{Error, Result};
use crate::trace::application::Application;

/// A computer with a simulated device, and an application's calls on it. Its time is simulated: waiting costs nothing.
pub trait Computer {
    /// Simulated nanoseconds.
    fn now(&self) -> u64;
    /// Lets simulated time pass.
    fn advance(&self, nanoseconds: u64);

    /// A new stream that does not wait for the legacy default stream.
    ///
    /// # Errors
    ///
    /// The driver's, here and below.
    fn create_stream(&self) -> Result<Stream>;
    /// Destroys a stream.
    fn destroy_stream(&self, stream: Stream) -> Result<()>;
    /// Waits for all work.
    fn synchronize(&self) -> Result<()>;
    /// Makes work queued on `after` from now on wait for the work queued on `before` so far.
    fn order(&self, before: Stream, after: Stream) -> Result<()>;
    /// Queues work that takes so long and uses these blocks, each with its size.
    fn work(&self, stream: Stream, nanoseconds: u64, blocks: &[(u64, u64)]) -> Result<()>;
    /// When the work queued on a stream completes.
    fn work_ends(&self, stream: Stream) -> Result<u64>;
    /// Begins to capture a stream, in thread-local mode.
    fn begin_capture(&self, stream: Stream) -> Result<()>;
    /// Ends the capture, and makes an executable of its graph.
    fn end_capture(&self, stream: Stream) -> Result<Graph>;
    /// Launches the executable.
    fn launch_graph(&self, graph: &Graph, stream: Stream) -> Result<()>;
    /// Destroys the graph and the executable.
    fn destroy_graph(&self, graph: Graph) -> Result<()>;

    /// The allocator's calls so far, without the application's.
    fn calls(&self) -> Calls;
    /// Bytes of the device that are allocated.
    fn memory(&self) -> u64;

    /// Reports to the order checker that a block was just allocated.
    fn handed_out(&self, address: u64, bytes: u64, stream: Option<Stream>);
    /// Reports that a block is about to be freed.
    fn giving_back(&self, address: u64, stream: Option<Stream>);
    /// Reports that the block at `old` is now at `new` with `bytes`.
    fn resized(&self, old: u64, new: u64, bytes: u64);
    /// How many allocations and resizes were reported.
    fn checked(&self) -> u64;
    /// What the order checker and the driver found.
    fn violations(&self) -> Vec<String>;
}

/// An allocator that serves the requests.
pub trait Memory {
    /// Allocates a block: see [`Allocator::allocate`].
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] where it is refused. Another error ends the run.
    fn allocate(&self, request: Request) -> Result<u64>;
    /// Resizes a block, which may move.
    ///
    /// # Errors
    ///
    /// As [`Memory::allocate`].
    fn reallocate(&self, address: u64, size: u64) -> Result<u64>;
    /// Frees a block of `size` bytes.
    ///
    /// # Errors
    ///
    /// Any error ends the run.
    fn deallocate(&self, address: u64, size: u64, stream: Option<Stream>) -> Result<()>;
    /// Ends a window of time: see [`Allocator::end_window`].
    fn end_window(&self) {}
    /// Returns all memory to the driver.
    fn close(&self);
}

impl Memory for Allocator {
    fn allocate(&self, request: Request) -> Result<u64> {
        Allocator::allocate(self, request)
    }

    fn reallocate(&self, address: u64, size: u64) -> Result<u64> {
        Allocator::reallocate(self, address, 0, size)
    }

    fn deallocate(&self, address: u64, _size: u64, stream: Option<Stream>) -> Result<()> {
        Allocator::deallocate(self, address, stream)
    }

    fn end_window(&self) {
        Allocator::end_window(self);
    }

    fn close(&self) {
        Allocator::close(self);
    }
}

/// A captured graph and its executable.
#[derive(Debug)]
pub struct Graph {
    /// The graph's handle.
    pub graph: usize,
    /// The executable's handle.
    pub executable: usize,
}

/// This project's simulated device.
pub struct Simulated<'a> {
    application: &'a Application,
    machine: &'a Machine,
    checked: Cell<u64>,
}

impl<'a> Simulated<'a> {
    /// The device of `application`.
    pub fn new(application: &'a Application, machine: &'a Machine) -> Simulated<'a> {
        Simulated {
            application,
            machine,
            checked: Cell::new(0),
        }
    }
}

/// The result of an application's call.
fn done<T>(result: std::result::Result<T, u32>) -> Result<T> {
    result.map_err(|code| Error::Unsupported(format!("the simulated device refused an application's call: {code}")))
}

impl Computer for Simulated<'_> {
    fn now(&self) -> u64 {
        self.machine.now()
    }

    fn advance(&self, nanoseconds: u64) {
        self.machine.advance(nanoseconds);
    }

    fn create_stream(&self) -> Result<Stream> {
        Ok(self.application.create_stream()?)
    }

    fn destroy_stream(&self, stream: Stream) -> Result<()> {
        Ok(self.application.destroy_stream(stream)?)
    }

    fn synchronize(&self) -> Result<()> {
        done(self.machine.context_synchronize())
    }

    fn order(&self, before: Stream, after: Stream) -> Result<()> {
        let _exempt = self.machine.exempt();
        Ok(self.application.order(before, after)?)
    }

    fn work(&self, stream: Stream, nanoseconds: u64, blocks: &[(u64, u64)]) -> Result<()> {
        done(self.machine.launch(stream.0, nanoseconds, blocks))
    }

    fn work_ends(&self, stream: Stream) -> Result<u64> {
        done(self.machine.work_ends(stream.0))
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
            memory: MEMORY_CALLS.iter().map(|call| self.machine.count(call)).sum(),
            waits: self.machine.count("cuStreamWaitEvent"),
        }
    }

    fn memory(&self) -> u64 {
        self.machine.memory_used(0).unwrap_or(0)
    }

    fn handed_out(&self, address: u64, bytes: u64, stream: Option<Stream>) {
        self.checked.set(self.checked.get() + 1);
        let on = stream.map(|stream| stream.0);
        self.machine.checker().hand_out(address, bytes, on);
    }

    fn giving_back(&self, address: u64, stream: Option<Stream>) {
        let on = stream.map(|stream| stream.0);
        self.machine.checker().give_back(address, on);
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
