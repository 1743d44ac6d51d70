//! What the model remembers. Every number is small, and equal states are equal values (`canonical.rs`).
//!
//! Three parties share a state. The *device* has streams, contexts, events and unfinished work. The *pool* has pieces of
//! memory, a cache for each stream handle, a ledger of completion events for each owner of free memory, batches of context
//! events, and a list of contexts. The *application* leaves a few notes, which say what it may do next.

/// Pieces of memory, all of one size.
pub const PIECES: usize = 2;
/// Stream handles. A handle that a stream has left may come back as another stream, with another id.
pub const HANDLES: usize = 3;
/// Context handles. The first is the pool's own context and stays; the others come and go.
pub const CONTEXTS: usize = 2;
/// Event handles. One goes with its context and may come back.
pub const EVENTS: usize = 4;
/// Owners of free memory, by number; a number may come back.
pub const OWNERS: usize = 4;
/// Batches of context events that are not over.
pub const BATCHES: usize = 2;
/// Completion events of one owner that are not over.
pub const STAMPS: usize = 2;
/// The number that covers all that an orphan owns.
pub const ALL: u8 = 255;

/// What new work may be ordered behind: a bit for each stream, context and event.
pub type Points = u16;

/// The next work of a stream.
pub const fn stream_point(handle: u8) -> Points {
    1 << handle
}

/// Everything that is queued in a context.
pub const fn context_point(context: u8) -> Points {
    1 << (HANDLES as u8 + context)
}

/// A recorded event.
pub const fn event_point(event: u8) -> Points {
    1 << ((HANDLES + CONTEXTS) as u8 + event)
}

/// Unfinished work that uses a piece of memory. Two pieces of work that everything is ordered behind alike are one: what
/// holds for the one that ends last holds for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work {
    /// What it uses.
    pub piece: u8,
    /// The context it runs in, and ends with.
    pub context: u8,
    /// The piece was freed and handed out again since it was launched.
    pub former: bool,
    /// It runs on a stream that `record_stream` named for this life of the piece.
    pub declared: bool,
    /// A graph launched it.
    pub graph: bool,
    /// What is ordered behind it.
    pub before: Points,
}

/// A stream handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream {
    /// Whether the handle was ever used, and is now.
    pub life: Life,
    /// The driver's id of the stream.
    pub id: u8,
    /// Its context.
    pub context: u8,
}

/// What became of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Life {
    /// It was never given out.
    #[default]
    Unused,
    /// It names something.
    Live,
    /// It names nothing any more, and may come back.
    Gone,
}

/// An event handle of the pool's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Event {
    /// Nothing remembers it.
    #[default]
    None,
    /// It belongs to the present context at that handle.
    Of(u8),
    /// It went with its context, and the handle may be an event of the application's by now.
    Dead,
}

/// A capture and the graph that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Graph {
    /// Where it stands.
    pub stage: Stage,
    /// The stream that captured it.
    pub handle: u8,
    /// That stream's id.
    pub id: u8,
    /// The pieces it uses.
    pub pieces: u8,
}

/// Where a capture stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Stage {
    /// There was none, or the pool has forgotten it.
    #[default]
    None,
    /// The stream captures.
    Capturing,
    /// It is a graph, and may be launched.
    Made,
    /// It is gone, and the pool was notified.
    Gone,
}

/// Where a piece is in the pool's books.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Free for every caller.
    Common,
    /// Handed out.
    Live(Block),
    /// Freed on a stream: free space of its owner, safe for others behind the completion event of that number.
    Own(u8, u8),
    /// Freed without a stream, and covered by no batch yet.
    Open,
    /// Freed while declared for several streams: behind a completion event of each owner.
    Behind(Vec<(u8, u8)>),
    /// Covered by the batch at that place.
    Batch(u8),
    /// Freed inside a capture, for that capture.
    InGraph,
    /// Freed elsewhere while it belongs to a graph.
    OfGraph,
    /// Freed on a stream without an id, of that context: behind an event of its own. None: the context is gone.
    PerFree(u8, Option<u8>),
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
    /// Declared for these.
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
    /// The number of its owner, which is how an earlier pool did; 0 where the rule holds.
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
    /// A stream was allocated on at the handle.
    pub joined: bool,
    /// Another stream came to the handle since.
    pub stray: bool,
}

/// A stream that a cache serves: a generation of its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Served {
    /// The driver's id of it.
    pub id: u8,
    /// Whose free space its frees become.
    pub owner: u8,
    /// The handle of its context.
    pub context: u8,
}

/// The completion events of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Ledger {
    /// The handle of the context they are recorded in.
    pub context: u8,
    /// Recorded and not known to be over, oldest first.
    pub stamps: Vec<(u8, u8)>,
    /// The highest number that is over.
    pub complete: u8,
    /// Its stream gets no more of them.
    pub orphan: bool,
}

/// Events of all contexts, and what they cover.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Batch {
    /// For each context what is not over.
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
    /// A synchronisation that has to be made, on drivers without context events.
    Owed,
}

/// What the pool knows of a context handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Known {
    /// Nothing.
    #[default]
    No,
    /// The context that is there now.
    Present,
    /// One that is gone.
    Former,
    /// A context without a known id: whichever is there.
    Any,
}

/// A request that waits without the pool's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// Its stream.
    pub handle: u8,
    /// The id it was asked with.
    pub id: u8,
    /// The owner it found.
    pub owner: u8,
}

/// What must not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A piece was handed out for use on that stream, and work of its former owner is not ordered before.
    TooEarlyOn(u8, u8),
    /// A piece was handed out to a caller without a stream, and work of its former owner is not over.
    TooEarly(u8),
    /// A graph that may still be launched uses a piece that was handed out.
    UsedByGraph(u8),
    /// The pool recorded an event that may be the application's.
    ForeignEvent(u8),
}

/// All of it.
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
    /// The application's note: contexts that have used the pool, by a call in them or for a stream of theirs.
    pub used: [bool; CONTEXTS],
    /// The application's note: contexts of which a stream was made to wait for another context's.
    pub crossed: [bool; CONTEXTS],
    /// The pool's memory.
    pub pieces: Vec<Place>,
    /// The caches, by handle.
    pub caches: [Cache; HANDLES],
    /// The ledgers, by owner.
    pub ledgers: [Option<Ledger>; OWNERS],
    /// Oldest first.
    pub batches: Vec<Batch>,
    /// The contexts that the pool knows.
    pub known: [Known; CONTEXTS],
    /// Events that serve again, for each context.
    pub spare: [u8; CONTEXTS],
    /// A request that waits.
    pub waiting: Option<Waiting>,
    /// What went wrong.
    pub fault: Option<Fault>,
}
