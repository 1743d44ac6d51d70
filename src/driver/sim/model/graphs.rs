//! Graphs and their executables.

use super::Machine;
use super::code::*;
use super::entries::{ExecState, GraphLife, GraphState, NodeWork};
use super::functions::Call;
use super::queue::Work;
use super::state::MachineState;
use super::tables::{ObjectKind, Tables};

impl MachineState {
    pub(super) fn open_graph(&mut self, tables: &Tables) -> usize {
        let life = self.new_id();
        let graph = tables.handle(ObjectKind::Graph, life as usize);
        self.lives.insert(
            life,
            GraphLife {
                owners: 1,
                queues: Vec::new(),
            },
        );
        self.graphs.insert(
            graph,
            GraphState {
                nodes: Vec::new(),
                objects: Vec::new(),
                life,
            },
        );
        graph
    }

    /// Ends a virtual queue together with the graph whose capture it belongs to.
    pub(super) fn tie_to_graph(&mut self, graph: usize, queue: u32) {
        let life = self.graphs.get(&graph).map(|graph| graph.life);
        if let Some(life) = life.and_then(|life| self.lives.get_mut(&life)) {
            life.queues.push(queue);
        }
    }

    pub(super) fn add_node(&mut self, graph: usize, work: NodeWork) {
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.nodes.push(work);
        }
    }

    fn disown(&mut self, life: u64) {
        let Some(found) = self.lives.get_mut(&life) else {
            return;
        };
        found.owners -= 1;
        if found.owners == 0 {
            let queues = std::mem::take(&mut found.queues);
            self.lives.remove(&life);
            for queue in queues {
                self.queues.remove(queue);
            }
        }
    }

    pub(super) fn drop_graph(&mut self, graph: usize) -> bool {
        let Some(gone) = self.graphs.remove(&graph) else {
            return false;
        };
        self.disown(gone.life);
        self.drop_objects(&gone.objects);
        true
    }
}

impl Machine {
    /// `cuGraphInstantiate`: an executable, which the caller destroys.
    pub fn graph_instantiate(&self, graph: usize) -> Result<usize> {
        let (_, mut state) = self.enter(Call::GraphInstantiate)?;
        if state.captures.iter().any(|capture| capture.graph == graph) {
            return Err(ILLEGAL_STATE);
        }
        let found = state.graphs.get(&graph).ok_or(INVALID_VALUE)?;
        let exec = ExecState {
            nodes: found.nodes.clone(),
            objects: found.objects.clone(),
            life: found.life,
        };
        if let Some(life) = state.lives.get_mut(&exec.life) {
            life.owners += 1;
        }
        state.keep_objects(&exec.objects);
        let id = state.new_id();
        let handle = self.tables.handle(ObjectKind::Exec, id as usize);
        state.execs.insert(handle, exec);
        Ok(handle)
    }

    /// `cuGraphLaunch`: uses all memory of the graph on `stream`. On a capturing stream it becomes a child of that
    /// capture's graph.
    pub fn graph_launch(&self, exec: usize, stream: usize) -> Result<()> {
        let (thread, mut state) = self.enter(Call::GraphLaunch)?;
        let slot = self.stream_slot(&mut state, thread, stream)?;
        let Some(found) = state.execs.get(&exec) else {
            return Err(INVALID_VALUE);
        };
        let (nodes, objects) = (found.nodes.clone(), found.objects.clone());
        state.refuse_implicit(slot)?;
        if let Some((capture, queue)) = state.streams[slot as usize].capture {
            let at = state.capturing(capture)?;
            for node in nodes {
                state.capture_node(capture, queue, node)?;
            }
            // The child retains the user objects of the graph that it was made of.
            state.keep_objects(&objects);
            let graph = state.captures[at].graph;
            if let Some(graph) = state.graphs.get_mut(&graph) {
                graph.objects.extend(objects);
            }
            return Ok(());
        }
        let duration = nodes.iter().map(|node| node.duration).sum();
        let position = state.submit(
            slot,
            Work {
                duration,
                ..Work::default()
            },
        );
        for node in nodes {
            let what = match node.what {
                "fill" => "fill in a graph",
                "copy" => "copy in a graph",
                _ => "kernel in a graph",
            };
            state.apply(slot, &NodeWork { what, ..node }, position);
        }
        state.objects_used(&objects, position);
        Ok(())
    }

    /// `cuGraphDestroy`.
    pub fn graph_destroy(&self, graph: usize) -> Result<()> {
        let (_, mut state) = self.enter(Call::GraphDestroy)?;
        if state.captures.iter().any(|capture| capture.graph == graph) {
            return Err(ILLEGAL_STATE);
        }
        let gone = state.drop_graph(graph);
        self.run_due_destructors(&mut state);
        if gone { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// `cuGraphExecDestroy`. A pending launch continues.
    pub fn graph_exec_destroy(&self, exec: usize) -> Result<()> {
        let (_, mut state) = self.enter(Call::GraphExecDestroy)?;
        let gone = state.execs.remove(&exec).ok_or(INVALID_VALUE)?;
        state.disown(gone.life);
        state.drop_objects(&gone.objects);
        self.run_due_destructors(&mut state);
        Ok(())
    }
}
