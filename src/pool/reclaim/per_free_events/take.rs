//! Memory that was freed on streams without ids, for a stream that is made to wait for the frees.

use super::PendingMemory;
use crate::driver::Event;
use crate::pool::free_space::{NodeId, Owner};
use crate::pool::reclaim::Reclaimer;
use crate::pool::stream_cache::Key;
use crate::pool::stream_cache::block::Blocks;
use crate::pool::{Memory, Pool, StreamView, Want};
use crate::support::sort;
use crate::sync::broken;

/// The frees that a stream may take from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum Reach {
    /// Those of its own handle, of exactly the requested size.
    Exact,
    /// Those of its own handle.
    Own,
    /// All.
    Any,
}

impl Reclaimer {
    /// The best fit of what was freed on streams without ids and is not known to be complete, behind its event.
    pub(in crate::pool) fn take_behind_free(
        &mut self,
        pool: &Pool,
        memory: &mut Memory,
        want: &Want,
        view: &StreamView,
        reach: Reach,
    ) -> Option<NodeId> {
        let near = |key: &Key| reach == Reach::Any || *key == view.key;
        let free_space = &mut memory.free_space;
        let mut found = Vec::new();
        if !self.pending.per_free_events.by.keys().any(near) {
            return None;
        }
        let here = pool.calls.query(|driver| driver.stream_context(view.stream)).ok()?;
        for (key, entries) in self.pending.per_free_events.by.iter().filter(|(key, _)| near(key)) {
            for entry in entries.iter().filter(|entry| entry.context == here) {
                if let (PendingMemory::Space(owner), Some(event)) = (&entry.memory, entry.event) {
                    let bytes = free_space.free_bytes(*owner);
                    if bytes == want.size || bytes > want.size && reach != Reach::Exact {
                        found.push((bytes, entry.number, *key, entry.context, *owner, event));
                    }
                }
            }
        }
        sort::by_key(&mut found, |(bytes, number, ..)| (*bytes, *number));
        for (_, number, key, context, owner, event) in found {
            let Some(id) = free_space.take(owner, want.size, want.align) else {
                continue;
            };
            if broken("a stream waits for what another one freed") {
                return Some(id);
            }
            // No block can have that number.
            if id > Blocks::MAX {
                free_space.put_back(id, owner);
                return None;
            }
            if let Err(error) = pool.calls.submit(|driver| driver.stream_wait_event(view.stream, event)) {
                tracing::debug!(%error, "a stream could not be made to wait for what was freed");
                free_space.give(id, owner, 0);
                return None;
            }
            if free_space.free_bytes(owner) == 0 {
                free_space.remove_owner(owner);
                self.pending.per_free_events.remove(key, number);
                self.pending.keep_event(context, event);
            }
            return Some(id);
        }
        None
    }

    /// As [`Reclaimer::take_behind_free`], from adjacent free ranges that are large enough only together. The stream
    /// waits for all events of the context, and one event of its own covers what it leaves.
    pub(in crate::pool) fn take_joined_behind_frees(
        &mut self,
        pool: &Pool,
        memory: &mut Memory,
        want: &Want,
        view: &StreamView,
    ) -> Option<NodeId> {
        let here = pool.calls.query(|driver| driver.stream_context(view.stream)).ok()?;
        let entries = self.pending.per_free_events.within(here);
        let spaces: Vec<(Owner, Event)> = entries
            .filter_map(|entry| match (&entry.memory, entry.event) {
                (PendingMemory::Space(owner), Some(event)) => Some((*owner, event)),
                _ => None,
            })
            .collect();
        let bytes: u64 = spaces
            .iter()
            .map(|(owner, _)| memory.free_space.free_bytes(*owner))
            .sum();
        if spaces.len() < 2 || bytes < want.size {
            return None;
        }
        for (_, event) in &spaces {
            let waits = pool
                .calls
                .submit(|driver| driver.stream_wait_event(view.stream, *event));
            waits
                .inspect_err(|error| tracing::debug!(%error, "a stream could not be made to wait for what was freed"))
                .ok()?;
        }
        let (context, event) = self.record_event_behind(pool, memory, view.stream)?;
        let free_space = &mut memory.free_space;
        let all = free_space.add_owner();
        for entry in self.pending.per_free_events.take_spaces(here) {
            if let PendingMemory::Space(owner) = entry.memory {
                free_space.transfer(owner, all, u64::MAX, 0);
                free_space.remove_owner(owner);
            }
            if let Some(event) = entry.event {
                self.pending.keep_event(entry.context, event);
            }
        }
        let events = &mut self.pending.per_free_events;
        events.push(view.key, context, event, PendingMemory::Space(all));
        let id = free_space.take(all, want.size, want.align)?;
        if id > Blocks::MAX {
            free_space.put_back(id, all);
            return None;
        }
        Some(id)
    }
}
