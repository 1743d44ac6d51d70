//! The pool's rules, by name. When one is removed, the checker has to find a violation.

/// A rule of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A cache serves only the stream whose id was seen, not another stream with the same handle.
    IdsAreCompared,
    /// A completion event is recorded on a stream only after the stream's id was compared with the cache's.
    IdsAreComparedBeforeEvents,
    /// Another stream's memory is taken after its completion event, which the taking stream waits for.
    TakingWaitsForTheEvent,
    /// What another stream freed is taken behind its event within one context only: the wait would go with the taker's.
    TakingStaysInTheContext,
    /// Only memory that another stream freed before its last event is taken.
    OnlyWhatTheEventCovers,
    /// Each completion event raises the number: later frees belong to the next event.
    NumbersAreRaisedByEvents,
    /// So does each batch of context events.
    NumbersAreRaisedByBatches,
    /// A stream's free becomes common only once its completion event has completed.
    CommonOnceComplete,
    /// Memory that is freed without a stream waits for a batch of context events.
    FreesWithoutStreamWait,
    /// A batch has an event in every known context.
    EveryKnownContext,
    /// A request registers the context of its stream.
    ContextsOfStreamsAreKnown,
    /// A request without a stream registers the caller's context.
    ContextsOfCallersAreKnown,
    /// A free on a stream registers the current context.
    ContextsOfFreesAreKnown,
    /// A free on a stream that has allocated nothing registers the stream's context.
    ContextsOfForeignFreesAreKnown,
    /// Contexts are identified by ids: a new context with a known handle is another context.
    ContextIdsAreCompared,
    /// Data on a context's events is removed with the context.
    EventsGoWithTheirContext,
    /// Work of another context that a stream waited for does not count as completed when the stream's context is
    /// destroyed.
    WaitsOutliveContexts,
    /// The result of an event query counts only if the event's context still exists.
    AnswersOfDeadContextsAreNone,
    /// A handle that the driver gives to a new event does not stand for an earlier event.
    NewEventsAreNoOldOnes,
    /// An event is reused only once it has completed.
    EventsServeOnceComplete,
    /// Declared uses count: the block waits for every stream that it was declared for.
    DeclaredUsesCount,
    /// A declared use is identified by the stream's id, not by its owner's number.
    DeclaredUsesHaveIds,
    /// If the stream of a declared use is not known any more, the block waits for the contexts.
    UnknownUsesWaitForContexts,
    /// A request that waited without the lock checks again whether its handle still has the same stream.
    WaitersLookAgain,
    /// Memory of a capture belongs to the graph until the graph is destroyed.
    GraphsOwnTheirMemory,
    /// Memory of a destroyed graph counts as freed just now.
    GraphsLeaveFreshFrees,
    /// Memory of a graph belongs to the stream that captured it, identified by its id.
    GraphsLeaveByIds,
    /// Memory of a destroyed graph goes on to events: to the next completion event of the stream that captured it, or to a
    /// batch. Work that was queued on it beside the graph may be pending.
    GraphsGoOnToEvents,
    /// A handle whose context was destroyed keeps its owner until another stream gets the handle.
    OwnersOutliveContexts,
    /// An orphan's number becomes another owner's only once no batch covers the orphan's frees: the numbers of completion
    /// events begin again with the new owner.
    OwnersOutliveBatches,
    /// The same, once no set waits for the orphan, not even after another owner.
    OwnersOutliveSets,
    /// Before CUDA 12.0 a stream waits for the event of each free that it reuses.
    PerFreeEventsAreWaitedFor,
    /// Before CUDA 12.0 each free has an event of its own.
    PerFreeEventsAreNotShared,
    /// Before CUDA 12.0 a request or free on a stream registers the stream's context.
    ContextsOfPerFreeEventsAreKnown,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 34] = [
        Rule::IdsAreCompared,
        Rule::IdsAreComparedBeforeEvents,
        Rule::TakingWaitsForTheEvent,
        Rule::TakingStaysInTheContext,
        Rule::OnlyWhatTheEventCovers,
        Rule::NumbersAreRaisedByEvents,
        Rule::NumbersAreRaisedByBatches,
        Rule::CommonOnceComplete,
        Rule::FreesWithoutStreamWait,
        Rule::EveryKnownContext,
        Rule::ContextsOfStreamsAreKnown,
        Rule::ContextsOfCallersAreKnown,
        Rule::ContextsOfFreesAreKnown,
        Rule::ContextsOfForeignFreesAreKnown,
        Rule::ContextIdsAreCompared,
        Rule::EventsGoWithTheirContext,
        Rule::WaitsOutliveContexts,
        Rule::AnswersOfDeadContextsAreNone,
        Rule::NewEventsAreNoOldOnes,
        Rule::EventsServeOnceComplete,
        Rule::DeclaredUsesCount,
        Rule::DeclaredUsesHaveIds,
        Rule::UnknownUsesWaitForContexts,
        Rule::WaitersLookAgain,
        Rule::GraphsOwnTheirMemory,
        Rule::GraphsLeaveFreshFrees,
        Rule::GraphsLeaveByIds,
        Rule::GraphsGoOnToEvents,
        Rule::OwnersOutliveContexts,
        Rule::OwnersOutliveBatches,
        Rule::OwnersOutliveSets,
        Rule::PerFreeEventsAreWaitedFor,
        Rule::PerFreeEventsAreNotShared,
        Rule::ContextsOfPerFreeEventsAreKnown,
    ];
}
