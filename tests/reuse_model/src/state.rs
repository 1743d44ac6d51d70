//! The model's state. Every number is small, and equal states are equal values (`canonical.rs`).
//!
//! A state has three parts. The *device* has streams, contexts, events and pending work. The *pool* has a cache for each
//! stream handle, a list of contexts, and a table of sets: pieces of memory, a ledger of completion events for each owner
//! of free memory, and batches of context events. The *application* has a few notes on its next legal calls.

/// Pieces of memory, all of one size.
pub const PIECES: usize = 2;
/// Stream handles. The handle of a destroyed stream may be reused by another stream, with another id.
pub const HANDLES: usize = 3;
/// Context handles. The first is the pool's own context and stays; the others are created and destroyed.
pub const CONTEXTS: usize = 2;
/// Event handles. An event is destroyed with its context, and its handle may be reused.
pub const EVENTS: usize = 4;
/// Owners of free memory, by number. A number may be reused.
pub const OWNERS: usize = 4;
/// The maximum of pending batches of context events.
pub const BATCHES: usize = 2;
/// The maximum of pending completion events of one owner.
pub const COMPLETION_EVENTS: usize = 2;
/// The number that covers all frees of an orphan.
pub const ALL: u8 = 255;

/// The points that work may precede: a bit for each stream, context and event.
pub type Points = u16;

/// The next work of a stream.
pub const fn stream_point(handle: u8) -> Points {
    1 << handle
}

/// All work queued in a context.
pub const fn context_point(context: u8) -> Points {
    1 << (HANDLES as u8 + context)
}

/// A recorded event.
pub const fn event_point(event: u8) -> Points {
    1 << ((HANDLES + CONTEXTS) as u8 + event)
}

/// Pending work that uses a piece of memory. Two pieces of work that precede the same points count as one: what holds
/// for the later one holds for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work {
    /// The piece that it uses.
    pub piece: u8,
    /// The context it runs in, and ends with.
    pub context: u8,
    /// The piece was freed and handed out again since it was launched.
    pub former: bool,
    /// It runs on a stream that `record_stream` named for the present block in this piece.
    pub declared: bool,
    /// A graph launched it.
    pub graph: bool,
    /// The points that it precedes.
    pub before: Points,
}

/// A stream handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream {
    /// Whether the handle was ever used, and is in use now.
    pub life: Life,
    /// The driver's id of the stream.
    pub id: u8,
    /// Its context.
    pub context: u8,
}

/// The use of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Life {
    /// It was never used.
    #[default]
    Unused,
    /// An object has it.
    Live,
    /// Its object was destroyed. It may be reused.
    Gone,
}

/// One of the pool's event handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Event {
    /// The pool does not use it.
    #[default]
    None,
    /// It belongs to the present context with that handle.
    Of(u8),
    /// Its context was destroyed. An application's event may have the handle by now.
    Dead,
}

/// A capture and the graph that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Graph {
    /// Its stage.
    pub stage: Stage,
    /// The stream that captured it.
    pub handle: u8,
    /// That stream's id.
    pub id: u8,
    /// The pieces it uses.
    pub pieces: u8,
}

/// The stage of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Stage {
    /// There was none, or the pool has forgotten it.
    #[default]
    None,
    /// The stream captures.
    Capturing,
    /// It is a graph, and may be launched.
    Made,
    /// It was destroyed, and the pool was notified.
    Gone,
}

/// Where the pool has a piece.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Free for every caller.
    Common,
    /// Handed out.
    Live(Block),
    /// Freed. It waits with that set.
    Waits(Set),
}

/// Freed memory that waits: who may have it before, and what every other caller waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set {
    /// Who need not wait.
    pub asker: Asker,
    /// What every other caller waits for.
    pub wait: Wait,
}

/// Who may have memory that waits before the wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Asker {
    /// Every caller waits.
    NoOne,
    /// The stream whose frees have that owner.
    Stream(u8),
    /// The capture that the memory belongs to.
    Capture,
    /// The streams that have the handle. A handle may come back as another stream unnoticed, so they are only the first that
    /// the memory is offered to, and the device makes them wait like all others.
    Handle(u8),
}

/// What a set waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// For the contexts; no event covers it yet.
    Filed,
    /// For the contexts: for the batch with that index.
    Batch(u8),
    /// For completion events: of each owner, the one of that number or a later one.
    Streams(Vec<(u8, u8)>),
    /// For one event in that context, on a stream without an id. `None`: the event was destroyed with the context.
    Event(u8, Option<u8>),
    /// For the end of the graph.
    Graph,
}

/// A context that is gone, of which a stream had waited for another context's work.
pub const CROSSED: u8 = u8::MAX;

/// A piece that is handed out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Block {
    /// The handle of the stream whose cache handed it out.
    pub home: Option<u8>,
    /// Declared for streams of which not all are known.
    pub unknown: bool,
    /// The streams that it was declared for.
    pub uses: Vec<Use>,
    /// It belongs to the graph.
    pub graph: bool,
    /// The application's own note: it has declared the block for the present streams of these handles.
    pub declared: u8,
    /// The application's own note: the context of the stream that it was handed out for, or [`CROSSED`]. None: that one is gone
    /// and none of its streams had waited for another context's work, or the block was handed out without a stream.
    pub context: Option<u8>,
}

/// A stream that a block was declared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Use {
    /// The stream's handle.
    pub handle: u8,
    /// Its id, which is how the pool knows it.
    pub id: u8,
    /// Its owner's number, by which an earlier pool identified it; 0 where the rule is followed.
    pub owner: u8,
}

/// The cache of a stream handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cache {
    /// The stream it serves.
    pub serves: Option<Served>,
    /// The number of the completion event that covers what is freed now.
    pub next: u8,
    /// The stream was last seen in the capture.
    pub captured: bool,
    /// A stream with this handle has allocated.
    pub joined: bool,
    /// Another stream has got the handle since.
    pub stray: bool,
}

/// A stream that a cache serves. Each stream with the handle counts separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Served {
    /// The driver's id of it.
    pub id: u8,
    /// The owner of its frees.
    pub owner: u8,
    /// The handle of its context.
    pub context: u8,
}

/// The table of memory that waits, and the events that are known of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sets {
    /// Each piece of memory.
    pub pieces: Vec<Place>,
    /// The ledgers, by owner.
    pub ledgers: [Option<Ledger>; OWNERS],
    /// The batches of context events, oldest first.
    pub batches: Vec<Batch>,
}

/// The completion events of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Ledger {
    /// The handle of the context they are recorded in.
    pub context: u8,
    /// Recorded and not known to have completed, oldest first.
    pub recorded: Vec<(u8, u8)>,
    /// The highest number that has completed.
    pub complete: u8,
    /// Its stream records no more events.
    pub orphan: bool,
}

/// Events of all contexts, and what they cover.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Batch {
    /// For each context, what has not completed.
    pub events: [Awaited; CONTEXTS],
    /// The number up to which it covers the frees of each owner; 0: not at all.
    pub covers: [u8; OWNERS],
}

/// What a batch waits for in one context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Awaited {
    /// Nothing.
    #[default]
    Nothing,
    /// A context event.
    Event(u8),
    /// A synchronization that has to be made, on drivers without context events.
    Owed,
}

/// What the pool knows about a context handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Known {
    /// Nothing.
    #[default]
    No,
    /// The context that has the handle now.
    Present,
    /// A destroyed context.
    Former,
    /// A context without a known id: any that has the handle.
    Any,
}

/// A request that waits without the pool's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// Its stream.
    pub handle: u8,
    /// The stream's id at the request.
    pub id: u8,
    /// The owner it found.
    pub owner: u8,
}

/// Violations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A piece was handed out for use on that stream, and work of its former owner does not precede that use.
    TooEarlyOn(u8, u8),
    /// A piece was handed out to a caller without a stream, and work of its former owner is pending.
    TooEarly(u8),
    /// A piece was handed out while a graph that may still be launched uses it.
    UsedByGraph(u8),
    /// The pool recorded an event that may belong to the application.
    ForeignEvent(u8),
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The device's streams.
    pub streams: [Stream; HANDLES],
    /// Its contexts.
    pub contexts: [Life; CONTEXTS],
    /// The pool's events.
    pub events: [Event; EVENTS],
    /// Unfinished work, sorted.
    pub work: Vec<Work>,
    /// The capture.
    pub graph: Graph,
    /// The application's note: contexts that have used the pool, by a call in them or on one of their streams.
    pub used: [bool; CONTEXTS],
    /// The application's note: contexts of which a stream was made to wait for another context's.
    pub crossed: [bool; CONTEXTS],
    /// The pool's memory, and what it waits for.
    pub sets: Sets,
    /// The caches, by handle.
    pub caches: [Cache; HANDLES],
    /// The contexts that the pool knows.
    pub known: [Known; CONTEXTS],
    /// Reusable events, for each context.
    pub spare: [u8; CONTEXTS],
    /// A request that waits.
    pub waiting: Option<Waiting>,
    /// The violation.
    pub fault: Option<Fault>,
}
