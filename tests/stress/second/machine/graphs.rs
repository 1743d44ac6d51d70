//! Captures and graphs, and the destructors of their user objects.

use std::ptr::null_mut;

use cudarc::driver::sys;
use parking_lot::MutexGuard;
use trtalloc::driver::sim::model::capture;

use super::{Machine, Objects, Result, code, stream};
use crate::cudasim::clock;

/// Every driver function here is called with living handles, and pointers to locals.
impl Machine {
    pub fn stream_begin_capture(&self, on: usize, mode: u32) -> Result<()> {
        let mode = match mode {
            capture::MODE_RELAXED => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
            _ => sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        };
        // SAFETY: see above.
        code(unsafe { sys::cuStreamBeginCapture_v2(stream(on), mode) })?;
        self.books.lock().capture_began(on);
        Ok(())
    }

    pub fn stream_end_capture(&self, on: usize) -> Result<usize> {
        let mut graph: sys::CUgraph = null_mut();
        // SAFETY: see above.
        let ended = code(unsafe { sys::cuStreamEndCapture(stream(on), &mut graph) });
        let number = self.books.lock().capture_ended(on, ended.is_err());
        let mut objects = self.objects.lock();
        objects.going = objects.going.max(ended.is_err().then_some(0));
        ended?;
        objects.graphs.insert(graph as usize, number);
        objects.copies.insert(number, 1);
        Ok(graph as usize)
    }

    pub fn graph_instantiate(&self, graph: usize) -> Result<usize> {
        let mut executable = null_mut();
        // SAFETY: see above.
        code(unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph as sys::CUgraph, 0) })?;
        let mut objects = self.objects.lock();
        let number = objects.graphs[&graph];
        objects.executables.insert(executable as usize, number);
        *objects.copies.entry(number).or_default() += 1;
        Ok(executable as usize)
    }

    pub fn graph_launch(&self, executable: usize, on: usize) -> Result<()> {
        // SAFETY: see above.
        code(unsafe { sys::cuGraphLaunch(executable as sys::CUgraphExec, stream(on)) })?;
        let mut objects = self.objects.lock();
        let work = (self.serial(&objects), self.sim.done(on));
        let number = objects.executables[&executable];
        objects.launched.insert(number, work.1);
        let ranges = self.books.lock().launched(number, work);
        for (address, bytes) in ranges {
            self.hold(&mut objects, address, bytes, work);
        }
        Ok(())
    }

    fn forget_copy(&self, mut objects: MutexGuard<Objects>, number: u32) {
        let copies = objects.copies.get_mut(&number).expect("it is counted");
        *copies -= 1;
        if *copies == 0 {
            objects.copies.remove(&number);
            let until = objects.launched.remove(&number).unwrap_or(0);
            objects.going = objects.going.max(Some(until));
            self.books.lock().graph_gone(number);
        }
    }

    pub fn graph_destroy(&self, graph: usize) -> Result<()> {
        let mut objects = self.objects.lock();
        let number = objects.graphs.remove(&graph).expect("it is a graph");
        // Before the call, because the graph's memory may be handed out at once.
        self.forget_copy(objects, number);
        // SAFETY: see above.
        code(unsafe { sys::cuGraphDestroy(graph as sys::CUgraph) })
    }

    pub fn graph_exec_destroy(&self, executable: usize) -> Result<()> {
        let mut objects = self.objects.lock();
        let number = objects.executables.remove(&executable).expect("it is an executable");
        self.forget_copy(objects, number);
        // SAFETY: see above.
        code(unsafe { sys::cuGraphExecDestroy(executable as sys::CUgraphExec) })
    }

    /// Returns once destructors of user objects have run.
    pub fn drain_user_objects(&self) {
        let until = self.objects.lock().going.take().unwrap_or(0);
        clock::advance(until.saturating_sub(self.sim.now()));
        let _exempt = self.exempt();
        self.gate.run_queued();
    }
}
