//! When is freed memory safe, and for whom.
//!
//! Two kinds of events answer. A *stamp* is recorded on a stream, inside a call that was given that stream, and covers all
//! that was freed on it before. A *batch* is a set of context events, one for each context that has used the pool, and
//! covers everything freed before it, with or without a stream; where the driver has no context events (before CUDA 12.5)
//! it is a synchronisation that is owed. What an event covers becomes common free space once the event has completed.

use std::collections::VecDeque;

use super::calls::Calls;
use super::heap::{NodeId, Owner};
use super::nameless::Nameless;
use super::standalone::Standalone;
use super::synchronise::Synchronisation;
use crate::driver::{Context, DriverError, Event, Result, Stream};
use crate::sync::HashMap;

mod events;

/// A freed thing that no stream may reuse before its grace is over.
pub enum Freed {
    /// A block of the window; `give_back`: its pages go back to the driver.
    Block {
        /// Its node.
        id: NodeId,
        /// Whether its memory is to be given back.
        give_back: bool,
    },
    /// A block with a range of its own.
    Standalone(Box<Standalone>),
    /// What a shrink of such a block left over.
    Tail {
        /// The block's number.
        block: u32,
        /// The shrink's.
        number: u64,
    },
}

/// The stamps of one owner of free space: a stream's generation.
struct Ledger {
    context: Context,
    /// Recorded and not known to be complete, oldest first.
    stamps: VecDeque<(u64, Event)>,
    /// The highest number whose stamp is complete.
    complete: u64,
    /// The stream is gone: it gets no stamps any more.
    orphan: bool,
}

struct Batch {
    number: u64,
    /// Not yet complete. An event of none is a synchronisation that is owed.
    events: Vec<(Context, Option<Event>)>,
    freed: Vec<Freed>,
    /// What it covers of each owner's frees.
    covers: Vec<(Owner, u64)>,
}

/// What a wait would wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// An event.
    Event(Context, Event),
    /// A synchronisation of that context; the batch it is for.
    Synchronisation(Context, u64),
}

/// What has become safe for everybody.
#[derive(Default)]
pub struct Settled {
    /// Owners' frees up to a stamp.
    pub owners: Vec<(Owner, u64)>,
    /// Single things.
    pub freed: Vec<Freed>,
    /// Contexts of events that were asked, and that are gone.
    pub gone: Vec<Context>,
    /// A query that failed, and the context of its event.
    pub failed: Option<(Context, DriverError)>,
}

/// The bookkeeping of one pool's grace.
#[derive(Default)]
pub struct Grace {
    ledgers: HashMap<Owner, Ledger>,
    /// Freed, and covered by no batch yet.
    open: Vec<Freed>,
    /// Things freed on a stream that are not its cache's: behind a stamp of each of these owners.
    behind: Vec<(Vec<(Owner, u64)>, Freed)>,
    batches: VecDeque<Batch>,
    /// Frees on streams without ids.
    pub(super) nameless: Nameless,
    numbers: u64,
    spare: HashMap<Context, Vec<Event>>,
    /// One that nobody waits for any more, and that is not over.
    pub synchronisation: Option<Synchronisation>,
}

impl Grace {
    /// A new owner whose stamps are recorded in `context`.
    pub fn add(&mut self, owner: Owner, context: Context) {
        self.ledgers.insert(
            owner,
            Ledger {
                context,
                stamps: VecDeque::new(),
                complete: 0,
                orphan: false,
            },
        );
    }

    /// The stream of `owner` is gone, or may be.
    pub fn orphan(&mut self, owner: Owner) {
        if let Some(ledger) = self.ledgers.get_mut(&owner) {
            ledger.orphan = true;
        }
    }

    /// Orphans among the owners.
    pub fn orphans(&self) -> Vec<Owner> {
        self.ledgers
            .iter()
            .filter(|(_, ledger)| ledger.orphan)
            .map(|(owner, _)| *owner)
            .collect()
    }

    /// Every owner with a ledger.
    pub fn owners(&self) -> Vec<Owner> {
        self.ledgers.keys().copied().collect()
    }

    /// Forgets an orphan nothing waits for; false where something does.
    pub fn remove(&mut self, owner: Owner) -> bool {
        let idle = self
            .ledgers
            .get(&owner)
            .is_some_and(|ledger| ledger.orphan && ledger.stamps.is_empty())
            && !self.waits_for(owner, 0)
            && !self
                .batches
                .iter()
                .any(|batch| batch.covers.iter().any(|(covered, _)| *covered == owner));
        if idle {
            self.ledgers.remove(&owner);
        }
        idle
    }

    /// Something freed without a stream.
    pub fn free(&mut self, freed: Freed) {
        self.open.push(freed);
    }

    /// Something freed, to be safe behind each of these stamps.
    pub fn free_behind(&mut self, stamps: Vec<(Owner, u64)>, freed: Freed) {
        self.behind.push((stamps, freed));
    }

    /// Whether something waits for a stamp of `owner` beyond number `last`.
    fn waits_for(&self, owner: Owner, last: u64) -> bool {
        let mut stamps = self.behind.iter().flat_map(|(stamps, _)| stamps);
        stamps.any(|(behind, stamp)| *behind == owner && *stamp > last)
    }

    /// Whether `owner`'s stream has freed resizable blocks that wait for a stamp.
    pub fn has_blocks_behind(&self, owner: Owner) -> bool {
        let block = |freed: &Freed| matches!(freed, Freed::Standalone(block) if block.resizable);
        self.behind
            .iter()
            .any(|(stamps, freed)| is_only(stamps, owner) && block(freed))
    }

    /// Takes back a resizable block that `owner`'s stream has freed, for that stream.
    pub fn take_block_behind(&mut self, owner: Owner, fits: impl Fn(&Standalone) -> bool) -> Option<Box<Standalone>> {
        let fits = |freed: &Freed| matches!(freed, Freed::Standalone(block) if fits(block));
        let of = |(stamps, freed): &(Vec<(Owner, u64)>, Freed)| is_only(stamps, owner) && fits(freed);
        let at = self.behind.iter().position(of)?;
        match self.behind.swap_remove(at).1 {
            Freed::Standalone(block) => Some(block),
            _ => None,
        }
    }

    /// Everything whose grace is not over.
    pub fn freed(&self) -> impl Iterator<Item = &Freed> {
        let behind = self.behind.iter().map(|(_, freed)| freed);
        let covered = self.batches.iter().flat_map(|batch| &batch.freed);
        self.open
            .iter()
            .chain(behind)
            .chain(covered)
            .chain(self.nameless.freed())
    }

    /// Whether anything waits that no event covers yet.
    pub fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether `owner` is the place of a stream that may still be there.
    pub fn is_streams(&self, owner: Owner) -> bool {
        self.ledgers.get(&owner).is_some_and(|ledger| !ledger.orphan)
    }

    /// Whether things wait behind stamps of `owner` that are not recorded yet.
    pub fn has_unstamped(&self, owner: Owner) -> bool {
        self.waits_for(owner, self.last_stamp(owner))
    }

    /// The last stamp that was recorded (or is known complete) for `owner`.
    pub fn last_stamp(&self, owner: Owner) -> u64 {
        self.ledgers.get(&owner).map_or(0, |ledger| {
            ledger.stamps.back().map_or(ledger.complete, |(number, _)| *number)
        })
    }

    /// The event of `owner`'s last recorded stamp and its context, if it is not known to be complete.
    pub fn last_event(&self, owner: Owner) -> Option<(Context, Event)> {
        let ledger = self.ledgers.get(&owner)?;
        ledger.stamps.back().map(|(_, event)| (ledger.context, *event))
    }

    /// Records stamp `number` on `stream`, which the running call was given, and which does not capture.
    pub fn stamp(&mut self, calls: &Calls, owner: Owner, number: u64, stream: Stream) -> Result<()> {
        let Some(context) = self.ledgers.get(&owner).map(|ledger| ledger.context) else {
            return Ok(());
        };
        let event = self.event(calls, context)?;
        if let Err(error) = calls.submit(|driver| driver.event_record(event, stream)) {
            self.spare.entry(context).or_default().push(event);
            return Err(error);
        }
        if let Some(ledger) = self.ledgers.get_mut(&owner) {
            ledger.stamps.push_back((number, event));
        }
        Ok(())
    }

    /// Covers everything freed without a stream so far, and `covers` of the owners' frees, by an event in each of
    /// `contexts`. On an error what could not be covered stays open.
    pub fn cover(&mut self, calls: &Calls, contexts: &[Context], covers: Vec<(Owner, u64)>) -> Result<()> {
        if self.open.is_empty() && covers.is_empty() {
            return Ok(());
        }
        let mut events = Vec::new();
        for context in contexts {
            let event = match self.context_event(calls, *context) {
                Ok(event) => event,
                Err(error) => {
                    events
                        .into_iter()
                        .for_each(|(context, event): (Context, Option<Event>)| {
                            self.spare.entry(context).or_default().extend(event);
                        });
                    return Err(error);
                }
            };
            events.push((*context, event));
        }
        self.numbers += 1;
        let freed = std::mem::take(&mut self.open);
        self.batches.push_back(Batch {
            number: self.numbers,
            events,
            freed,
            covers,
        });
        Ok(())
    }

    /// Asks which stamps and batches have completed, and hands out what they covered. Unless `is_there` says that the context
    /// of an event is, the answer may have come from another event at its handle.
    pub fn settle(&mut self, calls: &Calls, is_there: impl Fn(Context) -> Option<bool>) -> Settled {
        if let Some(outcome) = self.synchronisation.as_ref().and_then(Synchronisation::poll)
            && let Some(over) = self.synchronisation.take()
            && outcome.is_ok()
        {
            self.synchronised(over.context, over.batch);
        }
        let mut settled = Settled::default();
        let mut complete = |context: Context, event: Event| match calls.ask(|driver| driver.event_query(event)) {
            Ok(true) => {
                let there = is_there(context);
                settled.gone.extend((there == Some(false)).then_some(context));
                there == Some(true)
            }
            Ok(false) => false,
            Err(error) => {
                settled.failed = Some((context, error));
                false
            }
        };
        for ledger in self.ledgers.values_mut() {
            while let Some((number, event)) = ledger.stamps.front().copied() {
                if !complete(ledger.context, event) {
                    break;
                }
                ledger.complete = ledger.complete.max(number);
                ledger.stamps.pop_front();
                self.spare.entry(ledger.context).or_default().push(event);
            }
        }
        // Batches complete in the order they were made, but for contexts that come and go.
        while let Some(batch) = self.batches.front_mut() {
            while let Some((context, Some(event))) = batch.events.last().copied() {
                if !complete(context, event) {
                    break;
                }
                self.spare.entry(context).or_default().push(event);
                batch.events.pop();
            }
            if !batch.events.is_empty() {
                break;
            }
            settled.freed.append(&mut batch.freed);
            for (owner, number) in batch.covers.drain(..) {
                if let Some(ledger) = self.ledgers.get_mut(&owner) {
                    ledger.complete = ledger.complete.max(number);
                }
            }
            self.batches.pop_front();
        }
        settled.owners = self
            .ledgers
            .iter()
            .map(|(owner, ledger)| (*owner, ledger.complete))
            .collect();
        let ledgers = &self.ledgers;
        let is_over = |(owner, stamp): &(Owner, u64)| ledgers.get(owner).is_none_or(|ledger| ledger.complete >= *stamp);
        let over = self.behind.extract_if(.., |(stamps, _)| stamps.iter().all(is_over));
        settled.freed.extend(over.map(|(_, freed)| freed));
        settled
    }

    /// What to wait for so that more memory becomes safe: the oldest of everything outstanding.
    pub fn awaited(&self) -> Option<Awaited> {
        if let Some(awaited) = self.nameless.awaited() {
            return Some(awaited);
        }
        let batch = self.batches.iter().find_map(|batch| {
            batch.events.last().map(|(context, event)| match event {
                Some(event) => Awaited::Event(*context, *event),
                // Made now, it does for every batch there is.
                None => Awaited::Synchronisation(*context, self.numbers),
            })
        });
        batch.or_else(|| {
            let ledger = self.ledgers.values().find(|ledger| !ledger.stamps.is_empty())?;
            ledger
                .stamps
                .front()
                .map(|(_, event)| Awaited::Event(ledger.context, *event))
        })
    }

    /// The synchronisation of `context` that batch `number` was owed, and every older one, has been made.
    pub fn synchronised(&mut self, context: Context, number: u64) {
        for batch in self.batches.iter_mut().filter(|batch| batch.number <= number) {
            batch.events.retain(|(owed, event)| *owed != context || event.is_some());
        }
    }

    /// `context` is gone, and with it its events and its own work.
    pub fn context_gone(&mut self, context: Context) {
        self.spare.remove(&context);
        self.nameless.context_gone(context);
        for batch in &mut self.batches {
            batch.events.retain(|(of, _)| *of != context);
        }
        for ledger in self.ledgers.values_mut().filter(|ledger| ledger.context == context) {
            // Its own work is gone, but not what its streams had waited for in other contexts: a batch of those covers it.
            ledger.stamps.clear();
            // Not an orphan: its stream's cache still names it, until the handle comes back.
        }
    }

    /// Whether nothing freed waits for anything.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.behind.is_empty() && self.batches.is_empty() && self.nameless.is_empty()
    }
}

/// Whether what waits behind `stamps` is `owner`'s stream's alone.
fn is_only(stamps: &[(Owner, u64)], owner: Owner) -> bool {
    stamps.iter().all(|(of, _)| *of == owner)
}
