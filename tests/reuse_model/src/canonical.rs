//! Makes equivalent states equal: numbers are assigned in the order in which they occur, and data without further
//! effect is removed.

use crate::state::*;

impl State {
    /// Makes the state canonical. Unless `owners`, owners keep their numbers, because the application's notes contain them.
    /// With `orphans`, an owner stays as long as a batch covers its frees, though nothing waits for it.
    pub fn canonicalise(&mut self, owners: bool, orphans: bool) {
        self.forget(orphans);
        self.rename_ids();
        if owners {
            self.rename_owners();
        }
        (0..OWNERS as u8).for_each(|owner| self.rank_numbers(owner));
        self.rename_events();
        for place in &mut self.sets.pieces {
            place.streams_mut().sort_unstable();
            // The handle decides only what is offered first.
            if let Place::Waits(Set {
                asker: Asker::Handle(handle),
                ..
            }) = place
            {
                *handle = 0;
            }
        }
        self.work.sort_unstable();
        self.work.dedup();
    }

    /// Removes data without further effect.
    fn forget(&mut self, orphans: bool) {
        for handle in 0..HANDLES as u8 {
            let at = handle as usize;
            if self.streams[at].life == Life::Gone {
                (self.streams[at].id, self.streams[at].context) = (0, 0);
                let home = |place: &Place| matches!(place, Place::Live(block) if block.home == Some(handle));
                if !self.sets.pieces.iter().any(home) {
                    self.forget_points(stream_point(handle));
                }
            }
            self.caches[at].captured &= self.graph.stage != Stage::None;
        }
        let free: Vec<bool> = self.sets.pieces.iter().map(|place| !is_owned(place)).collect();
        for work in self.work.iter_mut().filter(|work| free[work.piece as usize]) {
            (work.former, work.declared) = (true, false);
        }
        (0..OWNERS as u8).for_each(|owner| self.forget_completion_events(owner, orphans));
        self.forget_batches();
        self.forget_spares();
    }

    /// Removes completion events that no piece waits for, and makes their handles reusable.
    fn forget_completion_events(&mut self, owner: u8, orphans: bool) {
        let at = owner as usize;
        let mut waiting = Vec::new();
        for place in &self.sets.pieces {
            let streams = place.streams().iter();
            waiting.extend(streams.filter(|of| of.0 == owner).map(|of| of.1));
        }
        let least = waiting.iter().min();
        for batch in &mut self.sets.batches {
            if !orphans && least.is_none_or(|least| batch.covers[at] < *least) {
                batch.covers[at] = 0;
            }
        }
        let Some(mut ledger) = self.sets.ledgers[at].take() else {
            return;
        };
        if least.is_none_or(|least| ledger.complete < *least) {
            ledger.complete = 0;
        }
        while let Some((number, event)) = ledger.recorded.first().copied() {
            if least.is_some_and(|least| number >= *least) {
                break;
            }
            ledger.recorded.remove(0);
            self.spare[ledger.context as usize] |= 1 << event;
        }
        let named = self
            .caches
            .iter()
            .any(|cache| cache.serves.is_some_and(|served| served.owner == owner));
        let covered = orphans && self.sets.batches.iter().any(|batch| batch.covers[at] != 0);
        if named || covered || least.is_some() {
            self.sets.ledgers[at] = Some(ledger);
        }
    }

    /// Removes batches that cover nothing.
    fn forget_batches(&mut self) {
        let mut at = 0;
        while at < self.sets.batches.len() {
            let covers = self.sets.batches[at].covers != [0; OWNERS];
            let waits = |place: &Place| place.wait() == Some(&Wait::Batch(at as u8));
            if covers || self.sets.pieces.iter().any(waits) {
                at += 1;
                continue;
            }
            for (context, awaited) in self.sets.batches.remove(at).events.into_iter().enumerate() {
                if let Awaited::Event(event) = awaited {
                    self.spare[context] |= 1 << event;
                }
            }
            self.sets.forget_batch(at as u8);
        }
    }

    /// Reusable events of one context are equivalent: one of each kind is enough, and none for a context that is never
    /// destroyed.
    fn forget_spares(&mut self) {
        let used = self.used_events();
        for context in 0..CONTEXTS {
            let mut seen = Vec::new();
            for event in (0..EVENTS).filter(|event| used & 1 << event == 0) {
                let alike = context == 0 || seen.contains(&self.events[event]);
                if self.spare[context] & 1 << event != 0 {
                    seen.push(self.events[event]);
                    self.spare[context] &= !(u8::from(alike) << event);
                }
            }
        }
    }

    /// Events that are waited for.
    fn used_events(&self) -> u8 {
        let recorded = self.sets.ledgers.iter().flatten().flat_map(|ledger| &ledger.recorded);
        let mut used = recorded.fold(0, |all, (_, event)| all | 1 << event);
        for awaited in self.sets.batches.iter().flat_map(|batch| batch.events) {
            if let Awaited::Event(event) = awaited {
                used |= 1 << event;
            }
        }
        for place in &self.sets.pieces {
            if let Some(Wait::Event(_, Some(event))) = place.wait() {
                used |= 1 << event;
            }
        }
        used
    }

    /// All stored ids of a handle's streams.
    fn ids(&mut self, handle: u8) -> Vec<&mut u8> {
        let mut ids = Vec::new();
        let stream = &mut self.streams[handle as usize];
        if stream.life == Life::Live {
            ids.push(&mut stream.id);
        }
        if let Some(served) = &mut self.caches[handle as usize].serves {
            ids.push(&mut served.id);
        }
        if self.graph.stage != Stage::None && self.graph.handle == handle && self.graph.id != 0 {
            ids.push(&mut self.graph.id);
        }
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| waiting.handle == handle) {
            ids.push(&mut waiting.id);
        }
        for place in &mut self.sets.pieces {
            if let Place::Live(block) = place {
                let of = block.uses.iter_mut().filter(|of| of.handle == handle);
                ids.extend(of.map(|of| &mut of.id));
            }
        }
        ids
    }

    /// An id that is not stored for any stream of the handle.
    pub fn next_id(&mut self, handle: u8) -> u8 {
        self.ids(handle).iter().map(|id| **id).max().unwrap_or(0) + 1
    }

    fn rename_ids(&mut self) {
        for handle in 0..HANDLES as u8 {
            let mut seen = Vec::new();
            for id in self.ids(handle) {
                *id = renamed(&mut seen, *id) + 1;
            }
        }
        for place in &mut self.sets.pieces {
            if let Place::Live(block) = place {
                block.uses.sort_unstable();
            }
        }
    }

    fn rename_owners(&mut self) {
        let mut seen = Vec::new();
        for cache in &self.caches {
            seen.extend(cache.serves.map(|served| served.owner));
        }
        let used = (0..OWNERS as u8).filter(|owner| self.sets.ledgers[*owner as usize].is_some());
        seen.extend(used);
        seen.extend(self.waiting.map(|waiting| waiting.owner));
        seen.extend(0..OWNERS as u8);
        let mut order: Vec<u8> = Vec::new();
        seen.into_iter().for_each(|owner| _ = renamed(&mut order, owner));
        let new = |owner: u8| renamed(&mut order.clone(), owner);
        if (0..OWNERS as u8).all(|owner| new(owner) == owner) {
            return;
        }
        for served in self.caches.iter_mut().filter_map(|cache| cache.serves.as_mut()) {
            served.owner = new(served.owner);
        }
        for place in &mut self.sets.pieces {
            place
                .streams_mut()
                .iter_mut()
                .for_each(|(owner, _)| *owner = new(*owner));
            if let Place::Waits(Set {
                asker: Asker::Stream(owner),
                ..
            }) = place
            {
                *owner = new(*owner);
            }
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.owner = new(waiting.owner);
        }
        let ledgers = std::mem::take(&mut self.sets.ledgers);
        for (owner, ledger) in ledgers.into_iter().enumerate() {
            self.sets.ledgers[new(owner as u8) as usize] = ledger;
        }
        for batch in &mut self.sets.batches {
            let covers = std::mem::take(&mut batch.covers);
            for (owner, number) in covers.into_iter().enumerate() {
                batch.covers[new(owner as u8) as usize] = number;
            }
        }
    }

    /// The numbers of an owner's completion events are compared only with each other.
    fn rank_numbers(&mut self, owner: u8) {
        let at = owner as usize;
        let mut numbers = Vec::new();
        if let Some(ledger) = &mut self.sets.ledgers[at] {
            numbers.push(&mut ledger.complete);
            numbers.extend(ledger.recorded.iter_mut().map(|(number, _)| number));
        }
        for cache in &mut self.caches {
            if cache.serves.is_some_and(|served| served.owner == owner) {
                numbers.push(&mut cache.next);
            }
        }
        for place in &mut self.sets.pieces {
            let of = place.streams_mut().iter_mut().filter(|(of, _)| *of == owner);
            numbers.extend(of.map(|(_, number)| number));
        }
        numbers.extend(self.sets.batches.iter_mut().map(|batch| &mut batch.covers[at]));
        numbers.retain(|number| **number != ALL);
        let mut ranks: Vec<u8> = numbers.iter().map(|number| **number).chain([0]).collect();
        ranks.sort_unstable();
        ranks.dedup();
        for number in numbers {
            *number = ranks.partition_point(|rank| *rank < *number) as u8;
        }
    }

    fn rename_events(&mut self) {
        let mut seen = Vec::new();
        for ledger in self.sets.ledgers.iter().flatten() {
            seen.extend(ledger.recorded.iter().map(|(_, event)| *event));
        }
        for batch in &self.sets.batches {
            let event = |awaited: &Awaited| match awaited {
                Awaited::Event(event) => Some(*event),
                _ => None,
            };
            seen.extend(batch.events.iter().filter_map(event));
        }
        for place in &self.sets.pieces {
            if let Some(Wait::Event(_, Some(event))) = place.wait() {
                seen.push(*event);
            }
        }
        for spare in self.spare {
            let mut of: Vec<u8> = (0..EVENTS as u8).filter(|event| spare & 1 << event != 0).collect();
            of.sort_by_key(|event| self.events[*event as usize]);
            seen.extend(of);
        }
        let mut order = Vec::new();
        seen.into_iter().for_each(|event| _ = renamed(&mut order, event));
        let referred = order.len();
        (0..EVENTS as u8).for_each(|event| _ = renamed(&mut order, event));
        let new = |event: u8| renamed(&mut order.clone(), event);

        let events = std::mem::take(&mut self.events);
        for (event, state) in events
            .into_iter()
            .enumerate()
            .map(|(event, state)| (new(event as u8), state))
        {
            if (event as usize) < referred {
                self.events[event as usize] = state;
            }
        }
        for ledger in self.sets.ledgers.iter_mut().flatten() {
            ledger.recorded.iter_mut().for_each(|(_, event)| *event = new(*event));
        }
        for awaited in self.sets.batches.iter_mut().flat_map(|batch| &mut batch.events) {
            if let Awaited::Event(event) = awaited {
                *event = new(*event);
            }
        }
        for place in &mut self.sets.pieces {
            if let Some((_, Some(event))) = place.event_mut() {
                *event = new(*event);
            }
        }
        for spare in &mut self.spare {
            let of = (0..EVENTS as u8).filter(|event| *spare & 1 << event != 0);
            *spare = of.fold(0, |all, event| all | 1 << new(event));
        }
        for work in &mut self.work {
            let before = (0..EVENTS as u8).filter(|event| work.before & event_point(*event) != 0);
            let points = before.fold(0, |all, event| all | event_point(new(event)));
            work.before = work.before & (event_point(0) - 1) | points;
            for event in 0..EVENTS as u8 {
                if !matches!(self.events[event as usize], Event::Of(_)) {
                    work.before &= !event_point(event);
                }
            }
        }
    }
}

/// Whether the application or a graph may still use the piece.
fn is_owned(place: &Place) -> bool {
    matches!(place, Place::Live(_)) || place.wait() == Some(&Wait::Graph)
}

/// The index of a number in the list. A new number is appended.
fn renamed(seen: &mut Vec<u8>, number: u8) -> u8 {
    let at = seen.iter().position(|of| *of == number);
    at.unwrap_or_else(|| {
        seen.push(number);
        seen.len() - 1
    }) as u8
}
