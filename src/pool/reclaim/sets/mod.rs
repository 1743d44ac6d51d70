//! Sets: freed memory that waits for the same thing.
//!
//! A [`Set`] says who need not wait for it ([`Asker`]), what every other caller waits for ([`Wait`]), and what memory it
//! is ([`Held`]). [`Sets`] has all of them. What a set comes to once its wait is over is decided where the wait ends:
//!
//! | wait | ends with | the set then |
//! |---|---|---|
//! | `Filed` | [`Sets::cover`] | waits for `Contexts` |
//! | `Contexts` | [`Sets::remove`], by a poll | is complete |
//! | `Streams` | [`Sets::complete_stream`], for each of them | waits for the next stream, or is complete |
//! | `Event` | [`Sets::remove`], by a poll | is complete; where the event is lost, `Filed` |
//! | `Graph` | [`Sets::remove`], when the graph is gone | goes to its stream's arena, or is `Filed` |
//!
//! Pieces that are complete go home, or to the driver. A space that is complete becomes common free space.
//!
//! A new kind of waiting is a variant of [`Wait`], a place that ends it, and a line of this table.

use crate::driver::{Context, Event};
use crate::pool::free_space::{FreeSpace, NodeId, Owner};
use crate::pool::physical::dedicated_memory::DedicatedMemory;
use crate::pool::stream_cache::Key;

mod account;
mod table;
#[cfg(test)]
mod tests;

pub use account::Account;
pub use table::Sets;

/// A set's number. A set that was made later has a higher one, and no number serves twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(u64);

impl SetId {
    /// The number as memory has it that must not know sets.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The set of that number.
    pub fn of(number: u64) -> SetId {
        SetId(number)
    }
}

/// Freed memory that waits.
#[derive(Debug)]
pub struct Set {
    /// Who need not wait.
    pub asker: Asker,
    /// What every other caller waits for.
    pub wait: Wait,
    /// The memory.
    pub held: Held,
    /// Bytes of its pieces.
    bytes: u64,
}

/// Who may have a set's memory before its wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// No caller.
    NoOne,
    /// The stream of this owner, which freed a range of its own.
    Stream(Owner),
    /// A stream that is made to wait for the event: those with this handle first, since mostly one of them freed it.
    Handle(Key),
    /// The stream of this key and id, inside its capture.
    Capture(Key, u64),
}

/// What callers wait for.
#[derive(Debug)]
pub enum Wait {
    /// An event in each context, which is not recorded yet. There is at most one such set.
    Filed,
    /// The work that each context had queued when these events were recorded.
    Contexts(Batch),
    /// The completion events of these owners, up to those numbers.
    Streams(Vec<(Owner, u64)>),
    /// One event of that context, on a stream without an id. None where the event went with its context.
    Event(Context, Option<Event>),
    /// The end of the graph of that capture, and of every executable made of it.
    Graph(u32),
}

/// Events that were recorded together, one in each context that has used the pool.
#[derive(Debug)]
pub struct Batch {
    /// The contexts whose part is not yet complete. None instead of an event is a synchronization that is owed.
    pub events: Vec<(Context, Option<Event>)>,
    /// The frees of each owner that it covers, up to this number.
    pub covers: Vec<(Owner, u64)>,
}

impl Batch {
    /// Whether events cover all of it, and no synchronization is owed.
    pub fn is_recorded(&self) -> bool {
        self.events.iter().all(|(_, event)| event.is_some())
    }
}

/// The memory of a set.
#[derive(Debug)]
pub enum Held {
    /// Blocks and ranges that go on as they are. None are bytes that a live block may not use yet
    /// (`dedicated_memory::Remainder`).
    Pieces(Vec<Freed>),
    /// The free space of this owner, from which the asker's requests are cut.
    Space(Owner),
}

/// A freed block, or a part of one.
#[derive(Debug)]
pub enum Freed {
    /// A block of the pool's address range.
    Block {
        /// The block's node.
        id: NodeId,
        /// Whether its memory is to be returned to the driver.
        give_back: bool,
    },
    /// A dedicated allocation.
    Dedicated(Box<DedicatedMemory>),
    /// What a shrink of a dedicated allocation left over.
    Tail {
        /// The block's number.
        block: u32,
        /// The shrink's number.
        number: u64,
    },
}

impl Freed {
    /// Whether its memory is to be returned to the driver.
    pub fn gives_back(&self) -> bool {
        match self {
            Freed::Block { give_back, .. } => *give_back,
            Freed::Dedicated(block) => block.give_back,
            Freed::Tail { .. } => false,
        }
    }

    /// Bytes that were freed. What a shrink left over counts for none: it is no reason to record an event.
    pub fn bytes(&self, free_space: &FreeSpace) -> u64 {
        match self {
            Freed::Block { id, .. } => free_space.span(*id).1,
            Freed::Dedicated(block) => block.size,
            Freed::Tail { .. } => 0,
        }
    }
}

impl Default for Set {
    /// Nothing that was filed.
    fn default() -> Set {
        Set {
            asker: Asker::NoOne,
            wait: Wait::Filed,
            held: Held::Pieces(Vec::new()),
            bytes: 0,
        }
    }
}

impl Set {
    /// Adds a piece, and returns its bytes.
    fn push(&mut self, freed: Freed, free_space: &FreeSpace) -> u64 {
        let Held::Pieces(pieces) = &mut self.held else {
            return 0;
        };
        let bytes = freed.bytes(free_space);
        self.bytes += bytes;
        pieces.push(freed);
        bytes
    }

    /// Bytes of its pieces.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its pieces.
    pub fn pieces(&self) -> &[Freed] {
        match &self.held {
            Held::Pieces(pieces) => pieces,
            Held::Space(_) => &[],
        }
    }

    /// The owner of its space.
    pub fn space(&self) -> Option<Owner> {
        match self.held {
            Held::Space(owner) => Some(owner),
            Held::Pieces(_) => None,
        }
    }

    /// The dedicated allocation that it is, where it is a single one.
    pub fn range(&self) -> Option<&DedicatedMemory> {
        match self.pieces() {
            [Freed::Dedicated(block)] => Some(block),
            _ => None,
        }
    }

    /// The owners that it waits for.
    pub fn streams(&self) -> &[(Owner, u64)] {
        match &self.wait {
            Wait::Streams(streams) => streams,
            _ => &[],
        }
    }
}
