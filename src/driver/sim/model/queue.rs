//! Queues: the work of one stream's life, in order, with the time at which each operation completes.
//!
//! A queue outlives its stream until the host has observed the end of its work. A capture gives each of its streams a
//! ("virtual") queue, whose operations are never executed but are ordered like others.

use std::collections::VecDeque;

use super::tables::Tables;
use super::vector_clock::{Position, VectorClock};

/// No completion time is known yet.
pub(super) const NEVER: u64 = u64::MAX;

/// How many operations a queue holds. A further launch makes the calling thread wait, as with a GPU.
const DEPTH: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueKind {
    /// Ordered with the legacy stream of its context.
    Blocking,
    NonBlocking,
    Legacy,
    /// A stream's part in the capture of that number.
    Virtual(u64),
}

#[derive(Debug)]
struct Operation {
    done: u64,
    duration: u64,
    /// The number of this persistent kernel; 0: the operation is none.
    persistent: u64,
    /// What it waits for, while its completion time is not known.
    waits: Vec<Position>,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) kind: QueueKind,
    pub(super) context: usize,
    pub(super) stream_id: u64,
    /// Its stream was destroyed, or its capture ended.
    pub(super) dead: bool,
    /// Operations submitted.
    pub(super) issued: u64,
    /// The last operation of a virtual queue that is a node of the graph.
    pub(super) last_node: u64,
    /// Operations whose end the host has observed.
    pub(super) observed: u64,
    /// What precedes the end of this queue, without the queue itself.
    pub(super) clock: VectorClock,
    completed: u64,
    pending: VecDeque<Operation>,
    /// How many operations at the end of `pending` have no known completion time.
    unresolved: usize,
    /// When the last operation with a known time completes.
    free_at: u64,
}

impl Queue {
    fn done(&self, count: u64) -> u64 {
        if count <= self.completed {
            return 0;
        }
        self.pending
            .get((count - self.completed - 1) as usize)
            .map_or(0, |operation| operation.done)
    }

    fn trim(&mut self, now: u64) {
        while self.pending.front().is_some_and(|operation| operation.done <= now) {
            self.pending.pop_front();
            self.completed += 1;
        }
    }
}

/// All queues, by number. Numbers are never reused. A missing queue is one whose end was observed.
#[derive(Debug, Default)]
pub(super) struct Queues {
    all: Vec<Option<Box<Queue>>>,
    persistents: u64,
    blocked: usize,
}

impl Queues {
    pub(super) fn open(&mut self, kind: QueueKind, context: usize, stream_id: u64) -> u32 {
        self.all.push(Some(Box::new(Queue {
            kind,
            context,
            stream_id,
            dead: false,
            issued: 0,
            last_node: 0,
            observed: 0,
            clock: VectorClock::default(),
            completed: 0,
            pending: VecDeque::new(),
            unresolved: 0,
            free_at: 0,
        })));
        (self.all.len() - 1) as u32
    }

    pub(super) fn get(&self, queue: u32) -> Option<&Queue> {
        self.all.get(queue as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, queue: u32) -> Option<&mut Queue> {
        self.all.get_mut(queue as usize)?.as_deref_mut()
    }

    pub(super) fn remove(&mut self, queue: u32) {
        if let Some(gone) = self.all.get_mut(queue as usize).and_then(Option::take) {
            self.blocked -= usize::from(gone.unresolved > 0);
        }
    }

    /// Whether the host has observed the end of everything up to `position`.
    pub(super) fn observed(&self, (queue, count): Position) -> bool {
        self.get(queue).is_none_or(|q| q.observed >= count)
    }

    /// Whether all of `positions` are complete at `now`.
    pub(super) fn complete(&self, positions: &[Position], now: u64) -> bool {
        self.done_at(positions) <= now
    }

    /// When all of `positions` are complete, or [`NEVER`].
    pub(super) fn done_at(&self, positions: &[Position]) -> u64 {
        positions
            .iter()
            .map(|&(queue, count)| self.get(queue).map_or(0, |q| q.done(count)))
            .max()
            .unwrap_or(0)
    }

    /// The present end of a queue.
    pub(super) fn tail(&self, queue: u32) -> Position {
        (queue, self.get(queue).map_or(0, |q| q.issued))
    }

    /// What the host knows to be complete once it has observed the end of `queue`.
    pub(super) fn tail_clock(&self, queue: u32) -> VectorClock {
        let mut clock = VectorClock::default();
        if let Some(q) = self.get(queue) {
            clock = q.clock.clone();
            clock.raise(queue, q.issued);
        }
        clock
    }

    /// Appends an operation behind `waits` and the tails of `behind`. Returns its position.
    pub(super) fn submit(&mut self, tables: &Tables, queue: u32, work: Work, behind: &[u32]) -> Position {
        let now = tables.now();
        let Some(mut q) = self.all.get_mut(queue as usize).and_then(Option::take) else {
            return (queue, 0);
        };
        q.trim(now);
        if q.pending.len() >= DEPTH && q.pending[0].done != NEVER {
            tables.advance_to(q.pending[0].done);
            q.trim(tables.now());
        }
        let now = tables.now();
        let mut start = now.max(q.free_at);
        let mut waits: Vec<Position> = Vec::new();
        let tails = behind.iter().map(|&other| self.tail(other));
        for position in work.waits.iter().copied().chain(tails) {
            let done = self.get(position.0).map_or(0, |other| other.done(position.1));
            if done == NEVER {
                waits.push(position);
            } else {
                start = start.max(done);
            }
        }
        if let Some(order) = work.order {
            q.clock.merge(order);
        }
        for &other in behind {
            if let Some(o) = self.get(other)
                && o.issued > o.observed.max(q.clock.get(other))
            {
                q.clock.merge(&o.clock);
                q.clock.raise(other, o.issued);
            }
        }
        if q.clock.len() > 8 {
            q.clock.retain(|&position| !self.observed(position));
        }
        q.issued += 1;
        let waiting = q.unresolved > 0 || !waits.is_empty() || work.persistent != 0;
        let done = if waiting { NEVER } else { start + work.duration };
        if waiting {
            self.blocked += usize::from(q.unresolved == 0);
            q.unresolved += 1;
        } else {
            q.free_at = done;
        }
        q.pending.push_back(Operation {
            done,
            duration: work.duration,
            persistent: work.persistent,
            waits,
        });
        let position = (queue, q.issued);
        self.all[queue as usize] = Some(q);
        position
    }

    /// The number of a new kernel that runs until it is released.
    pub(super) fn new_persistent(&mut self) -> u64 {
        self.persistents += 1;
        self.persistents
    }

    /// Ends a persistent kernel and computes the times of operations that waited for it. Returns whether there was one.
    pub(super) fn release(&mut self, persistent: u64, now: u64) -> bool {
        let mut found = false;
        for q in self.all.iter_mut().flatten() {
            for operation in &mut q.pending {
                if operation.persistent == persistent {
                    operation.persistent = 0;
                    found = true;
                }
            }
        }
        if found {
            self.resume(now);
        }
        found
    }

    /// Ends all work of a queue at once, as an error of its context does.
    pub(super) fn cut_short(&mut self, queue: u32) {
        if let Some(q) = self.all.get_mut(queue as usize).and_then(Option::as_mut) {
            self.blocked -= usize::from(q.unresolved > 0);
            q.unresolved = 0;
            q.completed = q.issued;
            q.pending.clear();
        }
    }

    /// Computes times for operations that waited for queues which have a time now, or are removed.
    pub(super) fn resume(&mut self, now: u64) {
        while self.blocked > 0 && self.resolve(now) {}
    }

    /// Computes times for operations whose waits have times now. Returns whether there were any.
    fn resolve(&mut self, now: u64) -> bool {
        let mut progress = false;
        for at in 0..self.all.len() {
            let Some(mut q) = self.all[at].take_if(|q| q.unresolved > 0) else {
                continue;
            };
            while q.unresolved > 0 {
                let next = q.pending.len() - q.unresolved;
                let operation = &q.pending[next];
                let behind = self.done_within(&q, at as u32, &operation.waits);
                if operation.persistent != 0 || behind == NEVER {
                    break;
                }
                let done = now.max(q.free_at).max(behind) + operation.duration;
                let operation = &mut q.pending[next];
                operation.done = done;
                operation.waits = Vec::new();
                q.free_at = done;
                q.unresolved -= 1;
                progress = true;
            }
            self.blocked -= usize::from(q.unresolved == 0);
            self.all[at] = Some(q);
        }
        progress
    }

    /// As `done_at`, while `queue` itself, with that `number`, is out of the list.
    fn done_within(&self, queue: &Queue, number: u32, positions: &[Position]) -> u64 {
        let done = |&(other, count): &Position| match other == number {
            true => queue.done(count),
            false => self.get(other).map_or(0, |q| q.done(count)),
        };
        positions.iter().map(done).max().unwrap_or(0)
    }

    /// Appends to a virtual queue.
    pub(super) fn submit_virtual(&mut self, queue: u32, order: Option<&VectorClock>, node: bool) -> Position {
        let Some(q) = self.get_mut(queue) else {
            return (queue, 0);
        };
        if let Some(order) = order {
            q.clock.merge(order);
        }
        q.issued += 1;
        if node {
            q.last_node = q.issued;
        }
        (queue, q.issued)
    }
}

/// An operation to submit.
#[derive(Default)]
pub(super) struct Work<'a> {
    pub(super) duration: u64,
    pub(super) persistent: u64,
    pub(super) waits: &'a [Position],
    pub(super) order: Option<&'a VectorClock>,
}
