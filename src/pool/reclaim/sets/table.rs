//! The table of all sets, with what finds those whose wait may be over.

use std::collections::VecDeque;

use super::{Account, Asker, Batch, Freed, Held, Set, SetId, Wait};
use crate::driver::{Context, Event};
use crate::pool::free_space::{FreeSpace, Owner, OwnerMap};
use crate::pool::stream_cache::Key;
use crate::sync::HashMap;

/// All sets of a pool. What ends a wait finds its sets at once: each is registered for what it waits for first.
#[derive(Default)]
pub struct Sets {
    /// All but `filed`.
    sets: HashMap<SetId, Set>,
    /// The number of the last one.
    last: u64,
    account: Account,
    /// The set that waits for events that are not recorded yet. It may have no piece.
    filed: Set,
    /// How many pieces of it are no blocks of the pool's range.
    filed_ranges: usize,
    /// Those that wait for contexts, oldest first.
    batches: VecDeque<SetId>,
    /// Those that wait for streams, each at the first of its owners whose event is not complete, with that number.
    streams: OwnerMap<Vec<(u64, SetId)>>,
    /// Blocks among them. Several streams used them, so these sets wait for other owners, too.
    shared: Vec<SetId>,
    /// Those that wait for an event of their own, by the handle on which they were freed, oldest first.
    handles: HashMap<Key, VecDeque<SetId>>,
    /// How many those are.
    events: usize,
}

impl Sets {
    /// Adds a set of `freed`.
    pub fn insert(&mut self, asker: Asker, wait: Wait, freed: Freed, free_space: &FreeSpace) -> SetId {
        let bytes = freed.bytes(free_space);
        self.add(asker, wait, Held::Pieces(vec![freed]), bytes)
    }

    /// Adds a set of no piece.
    pub fn insert_empty(&mut self, wait: Wait) -> SetId {
        self.add(Asker::NoOne, wait, Held::Pieces(Vec::new()), 0)
    }

    /// Adds a set of the free space of `owner`, from which the asker's requests are cut.
    pub fn insert_space(&mut self, asker: Asker, wait: Wait, owner: Owner) -> SetId {
        self.add(asker, wait, Held::Space(owner), 0)
    }

    fn add(&mut self, asker: Asker, wait: Wait, held: Held, bytes: u64) -> SetId {
        self.last += 1;
        let id = SetId(self.last);
        *self.account.of(&wait) += bytes;
        match &wait {
            Wait::Filed => debug_assert!(false, "there is one such set"),
            Wait::Contexts(_) => self.batches.push_back(id),
            Wait::Streams(streams) => {
                // A new set waits for events that are not recorded yet, or not complete.
                register(&mut self.streams, streams[0], id);
                let blocks = matches!(&held, Held::Pieces(pieces) if matches!(pieces[..], [Freed::Block { .. }]));
                if blocks {
                    self.shared.push(id);
                }
            }
            Wait::Event(..) => {
                if let Asker::Handle(key) = asker {
                    self.handles.entry(key).or_default().push_back(id);
                    self.events += 1;
                }
            }
            Wait::Graph(_) => {}
        }
        let set = Set {
            asker,
            wait,
            held,
            bytes,
        };
        self.sets.insert(id, set);
        id
    }

    /// Adds `freed` to a set.
    pub fn push(&mut self, id: SetId, freed: Freed, free_space: &FreeSpace) {
        let Some(set) = self.sets.get_mut(&id) else { return };
        *self.account.of(&set.wait) += set.push(freed, free_space);
    }

    /// Adds what no event covers yet.
    pub fn file(&mut self, freed: Freed, free_space: &FreeSpace) {
        self.filed_ranges += usize::from(!matches!(freed, Freed::Block { .. }));
        self.account.filed += self.filed.push(freed, free_space);
    }

    /// Adds a block that is reusable once the events of all these owners are complete. Blocks that wait for the same are one
    /// set.
    pub fn wait_for_streams(&mut self, streams: Vec<(Owner, u64)>, freed: Freed, free_space: &FreeSpace) {
        let same = |(_, set): &(SetId, &Set)| set.asker == Asker::NoOne && set.streams() == streams;
        let same = self.of_stream(streams[0].0).filter(same);
        let same = same
            .map(|(id, set)| (id, set.pieces().len()))
            .find(|(_, pieces)| *pieces > 0);
        match same {
            Some((id, _)) => self.push(id, freed, free_space),
            None => {
                self.insert(Asker::NoOne, Wait::Streams(streams), freed, free_space);
            }
        }
    }

    /// Events were recorded: what none covered waits for them from now on.
    pub fn cover(&mut self, batch: Batch) {
        let Set { asker, held, bytes, .. } = std::mem::take(&mut self.filed);
        self.filed_ranges = 0;
        self.account.filed -= bytes;
        self.add(asker, Wait::Contexts(batch), held, bytes);
    }

    /// The events of `owner` up to `through` are complete. Sets that wait for other owners, too, wait for the first one that
    /// is not complete from now on. Returns the others.
    pub fn complete_stream(
        &mut self,
        owner: Owner,
        through: u64,
        is_complete: impl Fn(&(Owner, u64)) -> bool,
    ) -> Vec<(SetId, Set)> {
        let mut complete = Vec::new();
        let all = self.streams.remove(owner).unwrap_or_default();
        for (number, id) in all {
            let streams = self.sets.get(&id).map_or(&[][..], Set::streams);
            let next = match number > through {
                true => Some((owner, number)),
                false => streams.iter().find(|stream| !is_complete(stream)).copied(),
            };
            match next {
                Some(next) => register(&mut self.streams, next, id),
                None => complete.extend(self.remove(id).map(|set| (id, set))),
            }
        }
        complete
    }

    /// Takes a set out.
    pub fn remove(&mut self, id: SetId) -> Option<Set> {
        let set = self.sets.remove(&id)?;
        *self.account.of(&set.wait) -= set.bytes;
        match &set.wait {
            Wait::Filed => {}
            Wait::Contexts(_) => self.batches.retain(|of| *of != id),
            Wait::Streams(streams) => {
                self.shared.retain(|of| *of != id);
                for (owner, _) in streams {
                    if let Some(registered) = self.streams.get_mut(*owner) {
                        registered.retain(|(_, of)| *of != id);
                        if registered.is_empty() {
                            self.streams.remove(*owner);
                        }
                    }
                }
            }
            Wait::Event(..) => {
                if let Asker::Handle(key) = &set.asker
                    && let Some(ids) = self.handles.get_mut(key)
                {
                    self.events -= 1;
                    ids.retain(|of| *of != id);
                    if ids.is_empty() {
                        self.handles.remove(key);
                    }
                }
            }
            Wait::Graph(_) => {}
        }
        Some(set)
    }

    /// The set of that number, if it still waits.
    pub fn get(&self, id: SetId) -> Option<&Set> {
        self.sets.get(&id)
    }

    /// All sets, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Set> {
        let filed = Some(&self.filed).filter(|set| !set.pieces().is_empty());
        filed.into_iter().chain(self.sets.values())
    }

    /// Bytes by what they wait for.
    pub fn account(&self) -> Account {
        self.account
    }

    /// How many pieces were filed.
    pub fn filed_pieces(&self) -> usize {
        self.filed.pieces().len()
    }

    /// Whether ranges of their own, or parts of them, are among these.
    pub fn has_filed_ranges(&self) -> bool {
        self.filed_ranges > 0
    }

    /// Those that wait for contexts, oldest first.
    pub fn batches(&self) -> impl DoubleEndedIterator<Item = (SetId, &Batch)> {
        self.batches.iter().filter_map(|id| match &self.sets.get(id)?.wait {
            Wait::Contexts(batch) => Some((*id, batch)),
            _ => None,
        })
    }

    /// Changes the events of each set that waits for contexts.
    pub fn change_batches(&mut self, mut change: impl FnMut(SetId, &mut Batch)) {
        for id in &self.batches {
            if let Some(Wait::Contexts(batch)) = self.sets.get_mut(id).map(|set| &mut set.wait) {
                change(*id, batch);
            }
        }
    }

    /// The events of the oldest set that waits for contexts.
    pub fn oldest_batch(&mut self) -> Option<(SetId, &mut Batch)> {
        let id = *self.batches.front()?;
        match &mut self.sets.get_mut(&id)?.wait {
            Wait::Contexts(batch) => Some((id, batch)),
            _ => None,
        }
    }

    /// Those that wait for `owner` first.
    pub fn of_stream(&self, owner: Owner) -> impl Iterator<Item = (SetId, &Set)> {
        let registered = self.streams.get(owner).into_iter().flatten();
        registered.map(|(_, id)| (*id, &self.sets[id]))
    }

    /// Those that wait for several streams, since these used their blocks.
    pub fn shared(&self) -> impl Iterator<Item = &Set> {
        self.shared.iter().map(|id| &self.sets[id])
    }

    /// Those that are ranges of their own, each of which its stream may take back.
    pub fn ranges(&self) -> impl Iterator<Item = &Set> {
        let sets = self.sets.values().filter(|set| !set.streams().is_empty());
        sets.filter(|set| set.range().is_some())
    }

    /// Whether a set waits for an event of `owner` beyond number `last`.
    pub fn waits_for(&self, owner: Owner, last: u64) -> bool {
        let beyond = |(of, number): &(Owner, u64)| *of == owner && *number > last;
        let registered = self.streams.get(owner).into_iter().flatten();
        registered.clone().any(|(number, _)| *number > last)
            || self.shared().any(|set| set.streams().iter().any(beyond))
    }

    /// The handles on which sets were freed that wait for an event of their own.
    pub fn handles(&self) -> impl Iterator<Item = &Key> {
        self.handles.keys()
    }

    /// Those that were freed on the handle of `key`, oldest first.
    pub fn of_handle(&self, key: &Key) -> impl Iterator<Item = (SetId, &Set)> {
        let ids = self.handles.get(key).into_iter().flatten();
        ids.map(|id| (*id, &self.sets[id]))
    }

    /// How many sets wait for an event of their own.
    pub fn events(&self) -> usize {
        self.events
    }

    /// The oldest set that waits for an event of its own.
    pub fn oldest_event(&self) -> Option<&Set> {
        let oldest = self.handles.values().filter_map(VecDeque::front).min()?;
        self.sets.get(oldest)
    }

    /// Forgets events that went with their context: `is_lost` says which.
    pub fn lose_events(&mut self, is_lost: impl Fn(Context, Event) -> bool) {
        for id in self.handles.values().flatten() {
            if let Some(Wait::Event(context, event)) = self.sets.get_mut(id).map(|set| &mut set.wait) {
                *event = event.filter(|event| !is_lost(*context, *event));
            }
        }
    }

    /// Whether nothing waits, but for graphs.
    pub fn is_empty(&self) -> bool {
        self.filed.pieces().is_empty() && self.batches.is_empty() && self.streams.count() == 0 && self.events == 0
    }

    /// Checks that the account is the sum over the sets, and that each set is registered for what it waits for.
    pub fn validate(&self, free_space: &FreeSpace) -> Result<(), String> {
        let (mut account, mut events) = (Account::default(), 0);
        for set in self.iter() {
            let bytes: u64 = set.pieces().iter().map(|piece| piece.bytes(free_space)).sum();
            *account.of(&set.wait) += bytes;
        }
        for (id, set) in &self.sets {
            let registered = match &set.wait {
                Wait::Filed => false,
                Wait::Contexts(_) => self.batches.contains(id),
                Wait::Streams(streams) => {
                    let at = |(owner, number): &(Owner, u64)| {
                        let registered = self.streams.get(*owner);
                        registered.is_some_and(|registered| registered.contains(&(*number, *id)))
                    };
                    streams.iter().any(at)
                }
                Wait::Event(..) => {
                    events += 1;
                    let at = |key| self.handles.get(key).is_some_and(|ids| ids.contains(id));
                    matches!(&set.asker, Asker::Handle(key) if at(key))
                }
                Wait::Graph(_) => true,
            };
            if !registered {
                return Err(format!("{id:?} is not registered for what it waits for: {set:?}"));
            }
        }
        match (account, events) == (self.account, self.events) {
            true => Ok(()),
            false => Err(format!(
                "{account:?} and {events} events wait, {self:?}",
                self = self.account
            )),
        }
    }
}

/// Registers a set that waits for that event of `owner` first.
fn register(streams: &mut OwnerMap<Vec<(u64, SetId)>>, (owner, number): (Owner, u64), id: SetId) {
    match streams.get_mut(owner) {
        Some(registered) => registered.push((number, id)),
        None => streams.insert(owner, vec![(number, id)]),
    }
}
