//! The pool's rules, by name. Each can be taken out, and the checker then has to find a violation.

/// A rule of the pool's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A cache serves the stream whose id was seen, and not another one that came to its handle.
    IdsAreCompared,
    /// A completion event is recorded on a stream only after its id was compared with the cache's.
    IdsAreComparedBeforeEvents,
    /// What another stream freed is taken behind its event, which the taking stream is made to wait for.
    TakingWaitsForTheEvent,
    /// What another stream freed is taken behind its event within one context only: the wait would go with the taker's.
    TakingStaysInTheContext,
    /// Of another stream's memory only what was freed before its last event is taken.
    OnlyWhatTheEventCovers,
    /// With each completion event the number is raised: what is freed from then on belongs to the next one.
    NumbersAreRaisedByEvents,
    /// So it is with a batch of context events.
    NumbersAreRaisedByBatches,
    /// What a stream freed is common only once its completion event is over.
    CommonOnceComplete,
    /// What was freed without a stream waits for a batch of context events.
    FreesWithoutStreamWait,
    /// A batch has an event in every context that is known.
    EveryKnownContext,
    /// The context of a stream that allocates is known from then on.
    ContextsOfStreamsAreKnown,
    /// The context of a caller without a stream is known from then on.
    ContextsOfCallersAreKnown,
    /// The context that is current to a free on a stream is known from then on.
    ContextsOfFreesAreKnown,
    /// The context of a stream that was never allocated on, and that a block is freed on, is known from then on.
    ContextsOfForeignFreesAreKnown,
    /// Contexts are known by their ids: another one at a known handle is not the one before.
    ContextIdsAreCompared,
    /// What is remembered of a context's events goes with it.
    EventsGoWithTheirContext,
    /// What a stream waited for in another context is not over because its own context is gone.
    WaitsOutliveContexts,
    /// An event says that it is over only while its context is there.
    AnswersOfDeadContextsAreNone,
    /// A handle that the driver gives to a new event stands for no event of before.
    NewEventsAreNoOldOnes,
    /// An event serves again only once it is over.
    EventsServeOnceComplete,
    /// Declared uses count: such a block waits for every stream that it was declared for.
    DeclaredUsesCount,
    /// A declared use is known by the stream's id, and not by the number of its owner.
    DeclaredUsesHaveIds,
    /// Where a stream of a declared use is not known any more, the block waits for the contexts.
    UnknownUsesWaitForContexts,
    /// A request that waited without the lock looks again whether its place is still its own.
    WaitersLookAgain,
    /// Memory of a capture is the graph's until that is gone.
    GraphsOwnTheirMemory,
    /// What a graph that is gone leaves counts as freed just now.
    GraphsLeaveFreshFrees,
    /// What a graph leaves is the stream's that captured, known by its id.
    GraphsLeaveByIds,
    /// A handle whose context is gone keeps its owner until another stream comes to it.
    OwnersOutliveContexts,
    /// Before CUDA 12.0 a stream waits for the event of each free that it takes.
    PerFreeEventsAreWaitedFor,
    /// Before CUDA 12.0 each free has an event of its own.
    PerFreeEventsAreNotShared,
    /// Before CUDA 12.0 the context of a stream that allocates or frees is known from then on.
    ContextsOfPerFreeEventsAreKnown,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 31] = [
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
        Rule::OwnersOutliveContexts,
        Rule::PerFreeEventsAreWaitedFor,
        Rule::PerFreeEventsAreNotShared,
        Rule::ContextsOfPerFreeEventsAreKnown,
    ];
}
