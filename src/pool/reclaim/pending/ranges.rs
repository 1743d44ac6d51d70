//! Dedicated allocations that a stream has freed, and what it may not use yet of those that it took back.

use super::PendingFrees;
use crate::driver::{Context, Event};
use crate::pool::free_space::Owner;
use crate::pool::physical::dedicated_memory::DedicatedMemory;
use crate::pool::reclaim::sets::{Asker, Freed, Held, Set, SetId, Wait};

impl PendingFrees {
    /// How many dedicated allocations `owner`'s stream has that are not freed yet.
    pub fn dedicated_blocks(&self, owner: Owner) -> u64 {
        self.completion_events.get(owner).map_or(0, |events| events.dedicated)
    }

    /// Another dedicated allocation was handed out on `owner`'s stream, or one was freed.
    pub fn count_dedicated(&mut self, owner: Owner, more: i64) {
        if let Some(events) = self.completion_events.get_mut(owner) {
            events.dedicated = events.dedicated.saturating_add_signed(more);
        }
    }

    /// The dedicated allocations that `owner`'s stream has freed and that wait for its completion events: each with the set
    /// that it is, and the number of the event.
    fn ranges_of(&self, owner: Owner) -> impl Iterator<Item = (SetId, u64, &DedicatedMemory)> {
        let own = self.sets.of_stream(owner);
        let own = own.filter(move |(_, set)| set.asker == Asker::Stream(owner));
        own.filter_map(|(id, set)| Some((id, set.streams().first()?.1, set.range()?)))
    }

    /// Whether `owner`'s stream has freed resizable blocks that wait for a completion event.
    pub fn has_ranges_behind(&self, owner: Owner) -> bool {
        self.ranges_of(owner).any(|(_, _, block)| block.resizable)
    }

    /// Takes back the smallest resizable block that `owner`'s stream has freed and that `fits`, for that stream. What it
    /// waited for goes on: the number of that set is returned, too. `fits` is also passed whether an event covers the block.
    pub fn take_range_behind(
        &mut self,
        owner: Owner,
        fits: impl Fn(&DedicatedMemory, bool) -> bool,
    ) -> Option<(Box<DedicatedMemory>, SetId)> {
        // A growth is no reason for a synchronization.
        let recorded = self.sets.batches().filter(|(_, batch)| batch.is_recorded());
        let covers = recorded.flat_map(|(_, batch)| &batch.covers);
        let by_batches = covers.filter(|(of, _)| *of == owner).map(|(_, number)| *number);
        let covered = by_batches.fold(self.last_event_number(owner), u64::max);
        let fitting = self
            .ranges_of(owner)
            .filter(|(_, number, block)| fits(block, *number <= covered));
        let (id, number, _) = fitting.min_by_key(|(_, _, block)| block.committed())?;
        let Held::Pieces(mut pieces) = self.sets.remove(id)?.held else {
            return None;
        };
        let Freed::Dedicated(block) = pieces.pop()? else {
            return None;
        };
        let rest = self.sets.insert_empty(Wait::Streams(vec![(owner, number)]));
        Some((block, rest))
    }

    /// Forgets what a live block may not use yet: a later set of its stream is no less.
    pub fn drop_remainder(&mut self, owner: Owner, number: u64) {
        let alone = |set: &Set| set.streams().iter().all(|(of, _)| *of == owner);
        if self.sets.get(SetId::of(number)).is_some_and(alone) {
            self.sets.remove(SetId::of(number));
        }
    }

    /// Whether a live block may not use yet what that set is.
    pub fn has_remainder(&self, number: u64) -> bool {
        self.sets.get(SetId::of(number)).is_some()
    }

    /// The completion event to wait for until that set is complete; none where another event covers it.
    pub fn event_of_remainder(&self, number: u64) -> Option<(Context, Event)> {
        let (owner, after) = *self.sets.get(SetId::of(number))?.streams().first()?;
        let events = self.completion_events.get(owner)?;
        let (_, event) = events.events.iter().find(|(number, _)| *number >= after)?;
        Some((events.context, *event))
    }

    /// Whether a dedicated allocation that was freed on a stream waits for a completion event that is not recorded yet.
    pub fn has_uncovered_ranges(&self) -> bool {
        let uncovered = |(owner, number): &(Owner, u64)| *number > self.last_event_number(*owner);
        self.sets.ranges().any(|set| set.streams().iter().any(uncovered))
    }
}
