//! Dedicated allocations that a stream has freed, and the remainders of those that it took back.

use super::behind::Behind;
use super::{Batch, Freed, PendingFrees};
use crate::driver::{Context, Event};
use crate::pool::free_space::Owner;
use crate::pool::physical::dedicated_memory::DedicatedMemory;

impl PendingFrees {
    /// How many dedicated allocations `owner`'s stream has that are not freed yet.
    pub fn dedicated_blocks(&self, owner: Owner) -> u64 {
        self.completion_events.get(&owner).map_or(0, |events| events.dedicated)
    }

    /// Another dedicated allocation was handed out on `owner`'s stream, or one was freed.
    pub fn count_dedicated(&mut self, owner: Owner, more: i64) {
        if let Some(events) = self.completion_events.get_mut(&owner) {
            events.dedicated = events.dedicated.saturating_add_signed(more);
        }
    }

    /// Whether `owner`'s stream has freed resizable blocks that wait for a completion event.
    pub fn has_ranges_behind(&self, owner: Owner) -> bool {
        let resizable = |freed: &Freed| matches!(freed, Freed::Dedicated(block) if block.resizable);
        let mut behind = self.behind.iter();
        behind.any(|behind| behind.is_only(owner) && resizable(&behind.freed))
    }

    /// Takes back the smallest resizable block that `owner`'s stream has freed and that `fits`, for that stream. Returns
    /// the number of the completion event that it waits for, too. `fits` is also passed whether an event covers it.
    pub fn take_range_behind(
        &mut self,
        owner: Owner,
        fits: impl Fn(&DedicatedMemory, bool) -> bool,
    ) -> Option<(Box<DedicatedMemory>, u64)> {
        // A growth is no reason for a synchronization.
        let recorded = |batch: &&Batch| batch.events.iter().all(|(_, event)| event.is_some());
        let covers = self.batches.iter().filter(recorded).flat_map(|batch| &batch.covers);
        let by_batches = covers.filter(|(of, _)| *of == owner).map(|(_, number)| *number);
        let covered = by_batches.fold(self.last_event_number(owner), u64::max);
        let behind = self.behind.iter().enumerate();
        let fitting = behind.filter_map(|(at, behind)| match &behind.freed {
            Freed::Dedicated(block) if behind.is_only(owner) && fits(block, behind.last() <= covered) => {
                Some((at, block.committed()))
            }
            _ => None,
        });
        let (at, _) = fitting.min_by_key(|(_, committed)| *committed)?;
        let behind = self.behind.remove(at);
        let last = behind.last();
        match behind.freed {
            Freed::Dedicated(block) => Some((block, last)),
            _ => None,
        }
    }

    /// Forgets the remainder of that number, if it waits for `owner`'s stream alone: a later one does, too.
    pub fn drop_remainder(&mut self, owner: Owner, number: u64) {
        let is_it = |freed: &Freed| matches!(freed, Freed::Remainder(of) if *of == number);
        let mut behind = self.behind.iter();
        if let Some(at) = behind.position(|behind| behind.is_only(owner) && is_it(&behind.freed)) {
            self.behind.remove(at);
        }
    }

    /// Whether the remainder of that number is pending.
    pub fn has_remainder(&self, number: u64) -> bool {
        self.freed()
            .any(|freed| matches!(freed, Freed::Remainder(of) if *of == number))
    }

    /// The completion event to wait for until the remainder of that number is no longer pending; none where another event
    /// covers it.
    pub fn event_of_remainder(&self, number: u64) -> Option<(Context, Event)> {
        let of = |behind: &&Behind| matches!(behind.freed, Freed::Remainder(of) if of == number);
        let (owner, after) = self.behind.iter().find(of)?.events.first().copied()?;
        let events = self.completion_events.get(&owner)?;
        let (_, event) = events.events.iter().find(|(number, _)| *number >= after)?;
        Some((events.context, *event))
    }

    /// Whether a dedicated allocation that was freed on a stream waits for a completion event that is not recorded yet.
    pub fn has_uncovered_ranges(&self) -> bool {
        let uncovered = |(owner, number): &(Owner, u64)| *number > self.last_event_number(*owner);
        let mut behind = self.behind.iter();
        behind.any(|behind| matches!(behind.freed, Freed::Dedicated(_)) && behind.events.iter().any(uncovered))
    }
}
