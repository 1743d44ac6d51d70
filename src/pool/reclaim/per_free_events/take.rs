//! Memory that was freed on streams without ids, for a stream that is made to wait for the frees.

use super::Space;
use crate::pool::free_space::NodeId;
use crate::pool::reclaim::Reclaimer;
use crate::pool::stream_cache::Key;
use crate::pool::stream_cache::block::Blocks;
use crate::pool::{Memory, Pool, StreamView, Want};
use crate::support::sort;
use crate::sync::broken;

/// The frees that a stream may take from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum Scope {
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
        scope: Scope,
    ) -> Option<NodeId> {
        let near = |key: &Key| scope == Scope::Any || *key == view.key;
        let free_space = &mut memory.free_space;
        let keys: Vec<Key> = self.pending.sets.handles().copied().filter(near).collect();
        if keys.is_empty() {
            return None;
        }
        let here = pool.calls.query(|driver| driver.stream_context(view.stream)).ok()?;
        let spaces = keys.iter().flat_map(|key| self.spaces(key, here));
        let fits = |(bytes, _): &(u64, Space)| *bytes == want.size || *bytes > want.size && scope != Scope::Exact;
        let found = spaces
            .map(|space| (free_space.free_bytes(space.owner), space))
            .filter(fits);
        let mut found: Vec<(u64, Space)> = found.collect();
        sort::by_key(&mut found, |(bytes, space)| (*bytes, space.set.number()));
        for (_, Space { set, owner, event }) in found {
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
                self.pending.sets.remove(set);
                self.pending.keep_event(here, event);
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
        let keys: Vec<Key> = self.pending.sets.handles().copied().collect();
        let spaces: Vec<Space> = keys.iter().flat_map(|key| self.spaces(key, here)).collect();
        let bytes: u64 = spaces
            .iter()
            .map(|space| memory.free_space.free_bytes(space.owner))
            .sum();
        if spaces.len() < 2 || bytes < want.size {
            return None;
        }
        for space in &spaces {
            let waits = pool
                .calls
                .submit(|driver| driver.stream_wait_event(view.stream, space.event));
            waits
                .inspect_err(|error| tracing::debug!(%error, "a stream could not be made to wait for what was freed"))
                .ok()?;
        }
        let at = self.record_event_behind(pool, memory, view.stream)?;
        let free_space = &mut memory.free_space;
        let all = free_space.add_owner();
        // The event may have been recorded only after some of them were found complete.
        for Space { set, owner, event } in spaces {
            if self.pending.sets.remove(set).is_some() {
                free_space.transfer(owner, all, u64::MAX, 0);
                free_space.remove_owner(owner);
                self.pending.keep_event(here, event);
            }
        }
        self.wait_for_event(view.key, at, all);
        let id = free_space.take(all, want.size, want.align)?;
        if id > Blocks::MAX {
            free_space.put_back(id, all);
            return None;
        }
        Some(id)
    }
}
