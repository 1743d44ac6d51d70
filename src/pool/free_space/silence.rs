//! Which owners have stopped requesting.
//!
//! A stream may be gone, and its application need not say so. What its owner once needed would stay in the sum of the
//! needs, and what it has freed would stay its own. So an owner is *silent* once others have asked for as many bytes since
//! its last request as a caller says, and what is free for it serves others. Bytes that a request finds in its owner's own
//! space are not asked for: a stream that reuses what it has freed makes no other one silent.
//!
//! A stream that requests again after another one got its arena is one of those that take turns. It has to request its memory
//! anew, once: it never counts as silent again.

use std::collections::BTreeSet;

use super::{COMMON, FreeSpace, Owner, OwnerSet};

/// Whether the stream of an owner still makes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pool::free_space) enum Presence {
    /// It has made none for long. Another stream may have got its arena since.
    Silent { bequeathed: bool },
    /// It made the last one when so many bytes had been asked for.
    Heard(u64),
    /// It was silent, another stream got its arena, and it made a request then.
    Returned,
}

/// When each owner requested last, in bytes that were asked for until then.
#[derive(Default)]
pub(in crate::pool::free_space) struct LastRequests {
    /// Bytes asked for until now.
    asked: u64,
    /// The owners that were heard, the one that has requested nothing for longest first.
    owners: BTreeSet<(u64, Owner)>,
    /// The owners that are silent.
    silent: OwnerSet,
}

impl FreeSpace {
    /// A request asks for `size` bytes that its owner's own space does not have.
    pub(in crate::pool::free_space) fn ask(&mut self, size: u64) {
        self.last_requests.asked += size;
    }

    /// A request of `owner` asks for `size` bytes that it does not find. Owners become silent since whose last request
    /// `patience` bytes were asked for.
    pub fn ask_for_more(&mut self, owner: Owner, size: u64, patience: u64) {
        self.ask(size);
        self.is_heard(owner);
        while let Some((last, owner)) = self.last_requests.owners.first().copied()
            && self.last_requests.asked - last >= patience
        {
            self.fall_silent(owner);
        }
    }

    /// The stream of `owner` has made a request now, or did so since its cache was flushed last.
    pub fn is_heard(&mut self, owner: Owner) {
        let LastRequests { asked, owners, silent } = &mut self.last_requests;
        let space = &mut self.spaces[owner.0 as usize];
        space.heard = *asked;
        let presence = &mut space.presence;
        match *presence {
            _ if owner == COMMON => return,
            Presence::Returned => return,
            Presence::Heard(last) if last == *asked => return,
            Presence::Silent { bequeathed: true } => *presence = Presence::Returned,
            Presence::Silent { bequeathed: false } | Presence::Heard(_) => {
                if let Presence::Heard(last) = *presence {
                    owners.remove(&(last, owner));
                }
                owners.insert((*asked, owner));
                *presence = Presence::Heard(*asked);
            }
        }
        silent.set(owner, false);
    }

    /// The owners that are silent. Common free space never is.
    pub fn silent(&self) -> impl Iterator<Item = Owner> {
        self.looked_at(self.last_requests.silent.iter())
    }

    /// Whether `owner` is silent.
    pub fn is_silent(&self, owner: Owner) -> bool {
        self.last_requests.silent.has(owner)
    }

    /// How many bytes had been asked for when `owner` was heard last.
    pub fn heard(&self, owner: Owner) -> u64 {
        self.spaces[owner.0 as usize].heard
    }

    /// Whether all that a silent owner has is complete: its `event_number` is at most `through`. A stream with work that is
    /// pending is most likely not gone.
    pub fn is_left(&self, owner: Owner, through: u64) -> bool {
        self.is_silent(owner) && self.last_event(owner) <= through
    }

    /// Whether `owner` has no arena yet.
    pub fn is_new(&self, owner: Owner) -> bool {
        let space = &self.spaces[owner.0 as usize];
        owner != COMMON && space.front.is_none() && space.bytes == 0
    }

    /// Whether the stream of `owner` has freed some of what is free for it. What other streams and callers without a stream
    /// have freed goes home without a number.
    pub fn has_own_frees(&self, owner: Owner) -> bool {
        self.last_event(owner) > 0
    }

    fn last_event(&self, owner: Owner) -> u64 {
        let youngest = self.spaces[owner.0 as usize].youngest;
        self.nodes[youngest as usize].event_number
    }

    /// Gives the arena of a silent owner, all of which is complete, to `heir`, and its need expires.
    pub fn bequeath(&mut self, owner: Owner, heir: Owner) {
        self.spaces[owner.0 as usize].presence = Presence::Silent { bequeathed: true };
        self.last_requests.silent.set(owner, true);
        self.lower_peak(owner);
        self.transfer(owner, heir, u64::MAX, 0);
        if let Some(front) = self.spaces[owner.0 as usize].front.take() {
            self.spaces[heir.0 as usize].front = Some(front);
            self.fronts.insert(front, heir);
        }
    }

    /// `owner` is silent from now on.
    pub(in crate::pool::free_space) fn fall_silent(&mut self, owner: Owner) {
        let silent = Presence::Silent { bequeathed: false };
        if let Presence::Heard(last) = std::mem::replace(&mut self.spaces[owner.0 as usize].presence, silent) {
            self.last_requests.owners.remove(&(last, owner));
        }
        self.last_requests.silent.set(owner, true);
    }

    /// `owner` serves no stream any more.
    pub(in crate::pool::free_space) fn forget_presence(&mut self, owner: Owner) {
        self.fall_silent(owner);
        self.last_requests.silent.set(owner, false);
    }
}
