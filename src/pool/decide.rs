//! Whether an event is recorded now, and what it covers.
//!
//! A *completion event* covers what one stream has freed. Only a call that was given the stream records it, and none is
//! recorded on a stream that captures. *Context events* cover what was freed before them with or without a stream, but
//! they end every capture in their contexts, also those that the pool cannot see. So most of them are recorded only
//! while no capture is known.
//!
//! [`of_stream`] and [`of_contexts`] decide from facts alone. Calls that wait, or that give everything back, cover all there
//! is and ask nothing (`wait`, `later`, closing).

/// Where memory is short, what no event covers is worth one from this part of reserved memory on.
const SHORT_PART: u64 = 256;

/// Before a pool grows, it is worth context events once it is this much and this part of reserved memory.
const WORTHWHILE: u64 = 32 << 20;
const WORTHWHILE_PART: u64 = 16;

/// As many filed blocks count as a shortage: a pool has a number of blocks that is limited, and each takes host memory.
const MAX_FILED_BLOCKS: usize = 1 << 22;

/// After a request had to wait, this many frees of each stream may record a completion event. A free does so only if
/// the stream allocated fewer blocks than this after the freed one.
pub const EAGER_FREES: u32 = 256;

/// A completion event is due after this many foreign frees on a stream.
const MAX_FOREIGN_FREES: u64 = 16;

/// Who asks for a completion event of a stream.
pub enum StreamTrigger<'a> {
    /// Its request missed its cache, of a pool with so many bytes.
    Miss {
        pinned: bool,
        reserved: u64,
        page: u64,
        is_short: &'a dyn Fn() -> bool,
    },
    /// It frees a block of its own. An application that shuts down may have destroyed the stream before, unless the stream is
    /// trusted to outlive the allocator. `eager` is how many blocks it has allocated since, if a request had to wait lately.
    Free { trusted: bool, eager: Option<u64> },
    /// It has freed so many blocks of other streams since its last event. It may never allocate, and the other streams need
    /// what it frees: `due` bytes are worth an event.
    ForeignFree { frees: u64, due: u64 },
}

/// What a stream has freed since its last completion event.
pub struct Uncovered<W> {
    pub bytes: u64,
    /// Whether another request lacked memory since.
    pub is_wanted: W,
}

/// Whether the stream records a completion event now.
#[inline]
pub fn of_stream(trigger: StreamTrigger<'_>, freed: Uncovered<impl Fn() -> bool>) -> bool {
    match trigger {
        StreamTrigger::Miss {
            pinned,
            reserved,
            page,
            is_short,
        } => {
            let is_worth = freed.bytes >= (reserved / SHORT_PART).max(page);
            // Pinned memory becomes reusable only behind a completion event.
            freed.bytes > 0 && (pinned || (freed.is_wanted)() || is_worth && is_short())
        }
        StreamTrigger::Free { trusted, eager: None } => trusted && (freed.is_wanted)(),
        StreamTrigger::Free {
            trusted,
            eager: Some(since),
        } => trusted || since < u64::from(EAGER_FREES),
        StreamTrigger::ForeignFree { frees, due } => {
            frees >= MAX_FOREIGN_FREES || freed.bytes >= due || (freed.is_wanted)()
        }
    }
}

/// Who asks for context events.
#[derive(Debug, Clone, Copy)]
pub enum Trigger {
    /// Any request that missed its cache, although it may not need what was filed. An event that comes early has mostly
    /// completed once its memory is needed. Otherwise the pool would grow whenever its common free space is used up.
    Miss,
    /// A request that found nothing free, before the pool grows. So many bytes were left behind, beside what was filed.
    Growth { left: u64 },
    /// A request without a stream, before it takes what streams have freed: so many bytes.
    Share { of_streams: u64 },
    /// A request for a range of its own. Freed ranges wait for streams, or what was filed has ranges.
    Range { of_streams: bool, filed: bool },
    /// What was freed goes back to the driver: what is filed, or all where memory is idle.
    GiveBack { all: bool },
}

/// What is known of a pool.
pub struct Facts<'a> {
    /// The driver has context events. Without them, a thread waits for a context instead.
    pub context_events: bool,
    pub capture_known: bool,
    pub pinned: bool,
    pub reserved: u64,
    pub page: u64,
    /// Bytes and blocks that were freed without a stream and that no event covers.
    pub filed: u64,
    pub filed_blocks: usize,
    /// The pool can hardly get more memory.
    pub is_short: &'a dyn Fn() -> bool,
}

/// What context events that are recorded now cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Covers {
    /// None is recorded.
    Nothing,
    /// What was filed.
    Filed,
    /// Everything that was freed.
    All,
}

/// Whether context events are recorded now.
pub fn of_contexts(trigger: Trigger, facts: &Facts<'_>) -> Covers {
    let harmless = facts.context_events && !facts.capture_known;
    let worthwhile = (facts.reserved / WORTHWHILE_PART).max(WORTHWHILE);
    let filed = |due| if due { Covers::Filed } else { Covers::Nothing };
    let all = |due| if due { Covers::All } else { Covers::Nothing };
    match trigger {
        Trigger::Miss => {
            let part = (facts.reserved / SHORT_PART).max(facts.page);
            let is_worth = facts.filed > 0 && facts.filed >= part;
            filed(is_worth && (facts.filed >= worthwhile && harmless || facts.context_events && (facts.is_short)()))
        }
        Trigger::Growth { left } => {
            let is_worthwhile = harmless && facts.filed + left >= worthwhile;
            // Pinned memory counts as short: it is not worth more of it.
            let short = || facts.pinned || (facts.is_short)() || facts.filed_blocks >= MAX_FILED_BLOCKS;
            match left > 0 && is_worthwhile {
                true => Covers::All,
                false => filed(facts.filed > 0 && facts.context_events && (is_worthwhile || short())),
            }
        }
        Trigger::Share { of_streams } => {
            all(!facts.capture_known && facts.filed + of_streams >= worthwhile || (facts.is_short)())
        }
        // The block grows to the limit before a capture ends.
        Trigger::Range { .. } if facts.capture_known && !(facts.is_short)() => Covers::Nothing,
        Trigger::Range { of_streams: true, .. } => Covers::All,
        Trigger::Range { filed: open, .. } => filed(open),
        Trigger::GiveBack { all: true } => all(harmless),
        Trigger::GiveBack { all: false } => filed(harmless),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// What a completion event is recorded for, in a pool of 1 GiB with pages of 2 MiB.
    #[test]
    fn completion_events() {
        use StreamTrigger::{ForeignFree, Free};
        let miss = |pinned, is_short: &'static dyn Fn() -> bool| StreamTrigger::Miss {
            pinned,
            reserved: GIB,
            page: 2 * MIB,
            is_short,
        };
        let (short, ample): (&dyn Fn() -> bool, &dyn Fn() -> bool) = (&|| true, &|| false);
        let free = |trusted, eager| Free { trusted, eager };
        let table = [
            // trigger, bytes, whether others want them, recorded
            (miss(false, short), 0, true, false),
            (miss(false, ample), 8 * MIB, false, false),
            (miss(false, ample), 512, true, true),
            (miss(true, ample), 512, false, true),
            (miss(false, short), 4 * MIB - 512, false, false),
            (miss(false, short), 4 * MIB, false, true),
            (free(false, None), 8 * MIB, true, false),
            (free(true, None), 512, false, false),
            (free(true, None), 512, true, true),
            (free(false, Some(255)), 512, false, true),
            (free(false, Some(256)), 512, true, false),
            (free(true, Some(256)), 512, false, true),
            (ForeignFree { frees: 15, due: MIB }, MIB - 512, false, false),
            (ForeignFree { frees: 16, due: MIB }, 512, false, true),
            (ForeignFree { frees: 1, due: MIB }, MIB, false, true),
            (ForeignFree { frees: 1, due: MIB }, 512, true, true),
        ];
        for (at, (trigger, bytes, wanted, recorded)) in table.into_iter().enumerate() {
            let is_wanted = || wanted;
            let freed = Uncovered { bytes, is_wanted };
            assert_eq!(of_stream(trigger, freed), recorded, "row {at}");
        }
    }

    /// What context events are recorded for, in a pool of 1 GiB: 64 MiB are much.
    #[test]
    fn context_events() {
        use Covers::{All, Filed, Nothing};
        use Trigger::{GiveBack, Growth, Miss, Range, Share};
        #[derive(Clone, Copy, PartialEq)]
        enum Is {
            Ample,
            Short,
            Captured,
            CapturedAndShort,
            Old,
            Pinned,
        }
        use Is::{Ample, Captured, CapturedAndShort, Old, Pinned, Short};
        let range = |of_streams, filed| Range { of_streams, filed };
        let table = [
            (Miss, 64 * MIB, Ample, Filed),
            (Miss, 64 * MIB - 512, Ample, Nothing),
            (Miss, 64 * MIB, Captured, Nothing),
            (Miss, 4 * MIB, Short, Filed),
            (Miss, 4 * MIB - 512, Short, Nothing),
            (Miss, 4 * MIB, CapturedAndShort, Filed),
            (Miss, 64 * MIB, Old, Nothing),
            (Growth { left: 0 }, 0, Short, Nothing),
            (Growth { left: 0 }, 512, Short, Filed),
            (Growth { left: 0 }, 512, Pinned, Filed),
            (Growth { left: 0 }, 512, CapturedAndShort, Filed),
            (Growth { left: 0 }, 64 * MIB - 512, Ample, Nothing),
            (Growth { left: 0 }, 64 * MIB, Ample, Filed),
            (Growth { left: 512 }, 64 * MIB - 512, Ample, All),
            (Growth { left: 64 * MIB }, 0, Ample, All),
            (Growth { left: 64 * MIB }, 0, Captured, Nothing),
            (Growth { left: 64 * MIB }, 0, CapturedAndShort, Nothing),
            (Growth { left: 64 * MIB }, 64 * MIB, Old, Nothing),
            (Share { of_streams: 63 * MIB }, 0, Ample, Nothing),
            (Share { of_streams: 63 * MIB }, MIB, Ample, All),
            (Share { of_streams: 64 * MIB }, 0, Captured, Nothing),
            (Share { of_streams: 0 }, 0, CapturedAndShort, All),
            (Share { of_streams: 64 * MIB }, 0, Old, All),
            (range(true, true), 0, Ample, All),
            (range(false, true), 0, Ample, Filed),
            (range(false, false), 64 * MIB, Ample, Nothing),
            (range(true, true), 0, Captured, Nothing),
            (range(true, true), 0, CapturedAndShort, All),
            (GiveBack { all: false }, 512, Ample, Filed),
            (GiveBack { all: true }, 0, Ample, All),
            (GiveBack { all: true }, 0, CapturedAndShort, Nothing),
            (GiveBack { all: false }, 64 * MIB, Old, Nothing),
        ];
        for (trigger, filed, is, covers) in table {
            let facts = Facts {
                context_events: is != Old,
                capture_known: matches!(is, Captured | CapturedAndShort),
                pinned: is == Pinned,
                reserved: GIB,
                page: 2 * MIB,
                filed,
                filed_blocks: usize::from(filed > 0),
                is_short: &|| matches!(is, Short | CapturedAndShort),
            };
            assert_eq!(
                of_contexts(trigger, &facts),
                covers,
                "{trigger:?} with {filed} bytes filed"
            );
        }
    }
}
