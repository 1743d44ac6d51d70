//! What waits for completion events of streams: blocks that several streams used, ranges of their own, and remainders.

use super::Freed;
use crate::pool::free_space::Owner;
use crate::sync::HashMap;

/// Memory that is reusable once the completion events of these owners have completed, up to these numbers.
pub struct Behind {
    pub events: Vec<(Owner, u64)>,
    pub freed: Freed,
}

impl Behind {
    /// Whether `owner`'s stream alone may use it.
    pub fn is_only(&self, owner: Owner) -> bool {
        self.events.iter().all(|(of, _)| *of == owner)
    }

    /// The highest number among the events.
    pub fn last(&self) -> u64 {
        self.events.iter().map(|(_, number)| *number).max().unwrap_or(0)
    }
}

/// All of it, in no order.
#[derive(Default)]
pub struct AllBehind {
    all: Vec<Behind>,
    /// How much waits for each owner. A cover asks for every owner whether anything does, and mostly nothing does.
    waiting: HashMap<Owner, usize>,
}

impl AllBehind {
    /// Adds what was freed.
    pub fn push(&mut self, events: Vec<(Owner, u64)>, freed: Freed) {
        for (owner, _) in &events {
            *self.waiting.entry(*owner).or_default() += 1;
        }
        self.all.push(Behind { events, freed });
    }

    /// Takes out what is at that place in [`AllBehind::iter`].
    pub fn remove(&mut self, at: usize) -> Behind {
        let behind = self.all.swap_remove(at);
        self.forget(&behind);
        behind
    }

    /// Takes out all whose events are complete, as `is_complete` says of each.
    pub fn take_complete(&mut self, is_complete: impl Fn(&(Owner, u64)) -> bool) -> Vec<Freed> {
        let complete = self.all.extract_if(.., |behind| behind.events.iter().all(&is_complete));
        let complete: Vec<Behind> = complete.collect();
        complete.iter().for_each(|behind| self.forget(behind));
        complete.into_iter().map(|behind| behind.freed).collect()
    }

    fn forget(&mut self, behind: &Behind) {
        for (owner, _) in &behind.events {
            if let Some(waiting) = self.waiting.get_mut(owner) {
                *waiting -= 1;
                if *waiting == 0 {
                    self.waiting.remove(owner);
                }
            }
        }
    }

    /// Whether something waits for an event of `owner` beyond number `last`.
    pub fn waits_for(&self, owner: Owner, last: u64) -> bool {
        let mut events = self.all.iter().flat_map(|behind| &behind.events);
        self.waiting.contains_key(&owner) && events.any(|(of, number)| *of == owner && *number > last)
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Behind> {
        self.all.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
