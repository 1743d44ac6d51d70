//! Makes equivalent states equal: numbers are assigned in the order in which they occur, and data without further
//! effect is removed.

use crate::state::*;

impl State {
    /// Makes the state canonical. Owners keep their numbers where the application's notes contain them.
    pub fn canonicalise(&mut self, owners: bool) {
        self.forget();
        self.rename_ids();
        if owners {
            self.rename_owners();
        }
        (0..OWNERS as u8).for_each(|owner| self.rank_numbers(owner));
        self.rename_events();
        for place in &mut self.pieces {
            if let Place::Behind(recorded) = place {
                recorded.sort_unstable();
            }
        }
        self.work.sort_unstable();
        self.work.dedup();
    }

    /// Removes data without further effect.
    fn forget(&mut self) {
        for handle in 0..HANDLES as u8 {
            let at = handle as usize;
            if self.streams[at].life == Life::Gone {
                (self.streams[at].id, self.streams[at].context) = (0, 0);
                let home = |place: &Place| matches!(place, Place::Live(block) if block.home == Some(handle));
                if !self.pieces.iter().any(home) {
                    self.forget_points(stream_point(handle));
                }
            }
            self.caches[at].captured &= self.graph.stage != Stage::None;
        }
        let free: Vec<bool> = self.pieces.iter().map(|place| !is_owned(place)).collect();
        for work in self.work.iter_mut().filter(|work| free[work.piece as usize]) {
            (work.former, work.declared) = (true, false);
        }
        (0..OWNERS as u8).for_each(|owner| self.forget_completion_events(owner));
        self.forget_batches();
        self.forget_spares();
    }

    /// Removes completion events that no piece waits for, and makes their handles reusable.
    fn forget_completion_events(&mut self, owner: u8) {
        let at = owner as usize;
        let mut waiting = Vec::new();
        for place in &self.pieces {
            match place {
                Place::Own(of, number) if *of == owner => waiting.push(*number),
                Place::Behind(recorded) => waiting.extend(recorded.iter().filter(|of| of.0 == owner).map(|of| of.1)),
                _ => {}
            }
        }
        let least = waiting.iter().min();
        for batch in &mut self.batches {
            if least.is_none_or(|least| batch.covers[at] < *least) {
                batch.covers[at] = 0;
            }
        }
        let Some(mut ledger) = self.ledgers[at].take() else {
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
        if named || least.is_some() {
            self.ledgers[at] = Some(ledger);
        }
    }

    /// Removes batches that cover nothing.
    fn forget_batches(&mut self) {
        let mut at = 0;
        while at < self.batches.len() {
            let covers = self.batches[at].covers != [0; OWNERS];
            if covers || self.pieces.contains(&Place::Batch(at as u8)) {
                at += 1;
                continue;
            }
            for (context, awaited) in self.batches.remove(at).events.into_iter().enumerate() {
                if let Awaited::Event(event) = awaited {
                    self.spare[context] |= 1 << event;
                }
            }
            for place in &mut self.pieces {
                match place {
                    Place::Batch(number) if *number > at as u8 => *number -= 1,
                    _ => {}
                }
            }
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
        let recorded = self.ledgers.iter().flatten().flat_map(|ledger| &ledger.recorded);
        let mut used = recorded.fold(0, |all, (_, event)| all | 1 << event);
        for awaited in self.batches.iter().flat_map(|batch| batch.events) {
            if let Awaited::Event(event) = awaited {
                used |= 1 << event;
            }
        }
        for place in &self.pieces {
            if let Place::PerFree(_, Some(event)) = place {
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
        for place in &mut self.pieces {
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
        for place in &mut self.pieces {
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
        let used = (0..OWNERS as u8).filter(|owner| self.ledgers[*owner as usize].is_some());
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
        for place in &mut self.pieces {
            match place {
                Place::Own(owner, _) => *owner = new(*owner),
                Place::Behind(recorded) => recorded.iter_mut().for_each(|(owner, _)| *owner = new(*owner)),
                _ => {}
            }
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.owner = new(waiting.owner);
        }
        let ledgers = std::mem::take(&mut self.ledgers);
        for (owner, ledger) in ledgers.into_iter().enumerate() {
            self.ledgers[new(owner as u8) as usize] = ledger;
        }
        for batch in &mut self.batches {
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
        if let Some(ledger) = &mut self.ledgers[at] {
            numbers.push(&mut ledger.complete);
            numbers.extend(ledger.recorded.iter_mut().map(|(number, _)| number));
        }
        for cache in &mut self.caches {
            if cache.serves.is_some_and(|served| served.owner == owner) {
                numbers.push(&mut cache.next);
            }
        }
        for place in &mut self.pieces {
            match place {
                Place::Own(of, number) if *of == owner => numbers.push(number),
                Place::Behind(recorded) => {
                    let of = recorded.iter_mut().filter(|(of, _)| *of == owner);
                    numbers.extend(of.map(|(_, number)| number));
                }
                _ => {}
            }
        }
        numbers.extend(self.batches.iter_mut().map(|batch| &mut batch.covers[at]));
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
        for ledger in self.ledgers.iter().flatten() {
            seen.extend(ledger.recorded.iter().map(|(_, event)| *event));
        }
        for batch in &self.batches {
            let event = |awaited: &Awaited| match awaited {
                Awaited::Event(event) => Some(*event),
                _ => None,
            };
            seen.extend(batch.events.iter().filter_map(event));
        }
        for place in &self.pieces {
            if let Place::PerFree(_, Some(event)) = place {
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
        for ledger in self.ledgers.iter_mut().flatten() {
            ledger.recorded.iter_mut().for_each(|(_, event)| *event = new(*event));
        }
        for awaited in self.batches.iter_mut().flat_map(|batch| &mut batch.events) {
            if let Awaited::Event(event) = awaited {
                *event = new(*event);
            }
        }
        for place in &mut self.pieces {
            if let Place::PerFree(_, Some(event)) = place {
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
    matches!(place, Place::Live(_) | Place::InGraph | Place::OfGraph)
}

/// The index of a number in the list. A new number is appended.
fn renamed(seen: &mut Vec<u8>, number: u8) -> u8 {
    let at = seen.iter().position(|of| *of == number);
    at.unwrap_or_else(|| {
        seen.push(number);
        seen.len() - 1
    }) as u8
}
