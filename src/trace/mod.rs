//! Traces of allocations: read from CSV or generated, and replayed on an allocator. The command, the benches and the
//! tests use them.
//!
//! [`csv`] reads and writes traces, [`generate`] and [`kv`] make them from a seed, and
//! [`from_history`](mod@from_history) from a snapshot. [`replay`](mod@replay) runs and
//! measures them. [`application`] is the program that owns streams and queues work. [`steady`] has short sequences of
//! calls that are measured again and again, and [`serve`] a server whose work is pending.
//!
//! Uses: allocator, driver, ffi, history, support.

pub mod application;
pub mod csv;
pub mod from_history;
pub mod generate;
pub mod kv;
pub mod random;
pub mod replay;
pub mod serve;
pub mod steady;

use std::collections::HashMap;

/// Sizes of blocks are rounded up to this where use is summed: the granularity of CUDA's rounding rule.
pub const GRANULE: u64 = 512;

/// So many bytes as they count where use is summed: rounded up to [`GRANULE`].
pub fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE).saturating_mul(GRANULE)
}

/// The kind of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Allocates a block of `bytes`.
    Alloc {
        /// Whether a [`OpKind::Realloc`] of this block follows.
        resizable: bool,
    },
    /// Frees the block; `bytes` is its size.
    Free,
    /// Resizes the block to `bytes`.
    Realloc,
}

/// One row of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// What the row does.
    pub kind: OpKind,
    /// The size in bytes.
    pub bytes: u64,
    /// The block, as a slot below [`Trace::blocks`]. A slot is reused once its block is freed.
    pub block: u32,
    /// Index into [`Trace::streams`]; `None`: a call without a stream.
    pub stream: Option<u16>,
    /// Index into [`Trace::threads`] of the thread that made the call; `None`: unknown.
    pub thread: Option<u16>,
    /// When the call was made, in microseconds since the first one; 0 where the trace has no times.
    pub time: u64,
}

/// A sequence of allocations. It is consistent by construction: only live blocks are freed or resized.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    ops: Vec<Op>,
    streams: Labels,
    threads: Labels,
    /// For each slot, the row that allocated its live block, and that block's size; `None` while the slot is free.
    live: Vec<Option<Live>>,
    free_slots: Vec<u32>,
    next_thread: Option<u16>,
    next_time: u64,
    has_times: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Live {
    allocated_at: usize,
    bytes: u64,
}

/// A live block of a [`Trace`] under construction.
#[derive(Debug, PartialEq, Eq)]
pub struct TraceBlock(u32);

impl Trace {
    /// A trace without rows.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// The rows, in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// How many slots [`Op::block`] ranges over, which is the maximum number of live blocks.
    pub fn blocks(&self) -> usize {
        self.live.len()
    }

    /// The streams' numbers in the file, in order of appearance.
    pub fn streams(&self) -> &[u64] {
        &self.streams.list
    }

    /// The threads' numbers in the file, in order of appearance; empty where the trace has none.
    pub fn threads(&self) -> &[u64] {
        &self.threads.list
    }

    /// Whether the rows have times.
    pub fn has_times(&self) -> bool {
        self.has_times
    }

    /// The time of the last row, in microseconds since the first one.
    pub fn length(&self) -> u64 {
        self.ops.last().map_or(0, |op| op.time)
    }

    /// The peak of bytes in use, with each block rounded up to [`GRANULE`].
    pub fn peak(&self) -> u64 {
        self.peak_without(&[])
    }

    /// [`Trace::peak`] if the rows with indices in `failed` (ascending) were refused. A refused allocation holds
    /// nothing, and a refused resize leaves the block unchanged.
    pub fn peak_without(&self, failed: &[u32]) -> u64 {
        let mut held = vec![0u64; self.live.len()];
        let (mut in_use, mut peak) = (0u64, 0u64);
        let mut failed = failed.iter().copied().peekable();
        for (index, op) in self.ops.iter().enumerate() {
            let refused = failed.next_if(|&at| at as usize == index).is_some();
            let slot = &mut held[op.block as usize];
            let now = match op.kind {
                OpKind::Free => 0,
                OpKind::Alloc { .. } if refused => 0,
                OpKind::Realloc if refused || *slot == 0 => *slot,
                OpKind::Alloc { .. } | OpKind::Realloc => rounded(op.bytes),
            };
            in_use = in_use.saturating_sub(*slot).saturating_add(now);
            *slot = now;
            peak = peak.max(in_use);
        }
        peak
    }

    /// The blocks that the trace never frees: their slots, and the streams of their allocation.
    pub fn leftovers(&self) -> impl Iterator<Item = (u32, Option<u16>)> + '_ {
        let with_slot = self.live.iter().enumerate();
        with_slot.filter_map(|(slot, live)| live.map(|live| (slot as u32, self.ops[live.allocated_at].stream)))
    }

    /// The index of the stream numbered `label`, which is added where it is new; `None` where there are 65,535
    /// already.
    pub fn stream(&mut self, label: u64) -> Option<u16> {
        self.streams.index_of(label)
    }

    /// Makes the thread numbered `label` the caller of the rows that follow, or an unknown thread; returns false where
    /// there are 65,535 threads already.
    pub fn set_thread(&mut self, label: Option<u64>) -> bool {
        self.next_thread = label.and_then(|label| self.threads.index_of(label));
        label.is_none() || self.next_thread.is_some()
    }

    /// Makes this the time of the rows that follow, in microseconds since the first row; returns false where it is before
    /// that of the last one, and changes nothing then. The trace has times from then on.
    pub fn set_time(&mut self, time: u64) -> bool {
        if time < self.next_time {
            return false;
        }
        self.has_times = true;
        self.next_time = time;
        true
    }

    /// Adds an allocation.
    pub fn alloc(&mut self, bytes: u64, stream: Option<u16>) -> TraceBlock {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.live.push(None);
            (self.live.len() - 1) as u32
        });
        self.live[slot as usize] = Some(Live {
            allocated_at: self.ops.len(),
            bytes,
        });
        self.push(OpKind::Alloc { resizable: false }, bytes, slot, stream);
        TraceBlock(slot)
    }

    /// Adds a resize of a live block, and marks its allocation as resizable.
    pub fn realloc(&mut self, block: &TraceBlock, bytes: u64, stream: Option<u16>) {
        if let Some(live) = &mut self.live[block.0 as usize] {
            live.bytes = bytes;
            self.ops[live.allocated_at].kind = OpKind::Alloc { resizable: true };
        }
        self.push(OpKind::Realloc, bytes, block.0, stream);
    }

    /// Adds a free of a live block.
    pub fn free(&mut self, block: TraceBlock, stream: Option<u16>) {
        let bytes = self.live[block.0 as usize].take().map_or(0, |live| live.bytes);
        self.free_slots.push(block.0);
        self.push(OpKind::Free, bytes, block.0, stream);
    }

    fn push(&mut self, kind: OpKind, bytes: u64, block: u32, stream: Option<u16>) {
        self.ops.push(Op {
            kind,
            bytes,
            block,
            stream,
            thread: self.next_thread,
            time: self.next_time,
        });
    }
}

/// The numbers of streams or threads in a file, in order of appearance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Labels {
    list: Vec<u64>,
    known: HashMap<u64, u16>,
}

impl Labels {
    /// The index of `label`, which is added where it is new and the index is below 65,535.
    fn index_of(&mut self, label: u64) -> Option<u16> {
        if let Some(&index) = self.known.get(&label) {
            return Some(index);
        }
        let index = u16::try_from(self.list.len()).ok().filter(|&index| index < u16::MAX)?;
        self.list.push(label);
        self.known.insert(label, index);
        Some(index)
    }
}
