//! What the machine keeps of each stream, context, event, capture and graph.

use super::access::Effect;
use super::objects::ObjectRef;
use super::queue::QueueKind;
use super::vector_clock::{Position, VectorClock};

/// One entry in the table of streams: the stream that lives there, or lived there last.
#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) alive: bool,
    pub(super) context: usize,
    pub(super) kind: QueueKind,
    pub(super) queue: u32,
    /// The thread whose per-thread default stream this is; 0: none.
    pub(super) thread: u64,
    /// The running capture that it takes part in, and its queue there.
    pub(super) capture: Option<(u64, u32)>,
}

/// A context: the one that has the handle, or had it last.
#[derive(Debug)]
pub(super) struct ContextState {
    /// 0: not alive.
    pub(super) id: u64,
    pub(super) device: u32,
    pub(super) primary: bool,
    /// Of a green context: its device's primary context, which it retains.
    pub(super) green_of: Option<usize>,
    pub(super) retained: u32,
    /// A sticky error; 0: none.
    pub(super) poison: u32,
    /// Slot of the legacy stream.
    pub(super) legacy: u32,
    /// Queues of its streams, also of destroyed ones whose end the host has not observed.
    pub(super) queues: Vec<u32>,
    /// Queues of its living blocking streams.
    pub(super) blocking: Vec<u32>,
}

impl ContextState {
    pub(super) fn new(device: u32, primary: bool) -> ContextState {
        ContextState {
            id: 0,
            device,
            primary,
            green_of: None,
            retained: 0,
            poison: 0,
            legacy: 0,
            queues: Vec::new(),
            blocking: Vec::new(),
        }
    }
}

/// An event.
#[derive(Debug)]
pub(super) struct EventState {
    pub(super) context: usize,
    pub(super) context_id: u64,
    /// What must complete. Empty where nothing was recorded, or the record had nothing to wait for.
    pub(super) tails: Vec<Position>,
    /// What precedes the record.
    pub(super) clock: VectorClock,
    /// Set if the last record was in a capture.
    pub(super) captured: Option<CapturedAt>,
}

/// Where in a capture an event was recorded.
#[derive(Debug, Clone, Copy)]
pub(super) struct CapturedAt {
    pub(super) capture: u64,
    pub(super) position: Position,
}

/// A running capture.
#[derive(Debug)]
pub(super) struct CaptureState {
    pub(super) id: u64,
    pub(super) graph: usize,
    pub(super) mode: u32,
    pub(super) thread: u64,
    pub(super) origin: u32,
    pub(super) invalid: bool,
    pub(super) members: Vec<u32>,
}

/// A graph.
#[derive(Debug)]
pub(super) struct GraphState {
    pub(super) nodes: Vec<NodeWork>,
    pub(super) objects: Vec<ObjectRef>,
    pub(super) life: u64,
}

/// An executable of a graph.
#[derive(Debug)]
pub(super) struct ExecState {
    pub(super) nodes: Vec<NodeWork>,
    pub(super) objects: Vec<ObjectRef>,
    pub(super) life: u64,
}

/// What a graph and its executables share. The memory of the graph's capture belongs to them while one of them exists.
#[derive(Debug)]
pub(super) struct GraphLife {
    pub(super) owners: u32,
    pub(super) queues: Vec<u32>,
}

/// One piece of work.
#[derive(Debug, Clone)]
pub(super) struct NodeWork {
    pub(super) what: &'static str,
    pub(super) duration: u64,
    pub(super) ranges: Vec<(u64, u64)>,
    pub(super) effect: Effect,
}
