//! Guests: ranges that were handed out in the name of one owner and given to another.

use super::*;

/// The most guests of one owner that go home in one call.
const GUESTS: usize = 1024;

impl FreeSpace {
    /// Sends the oldest guests of `owner` home whose `event_number` is at most `through`. So many go in one call that nothing
    /// waits long for it; a later call sends the others.
    pub fn send_guests_home(&mut self, owner: Owner, through: u64) {
        self.move_guests(owner, through, GUESTS, |free_space, home| {
            Some(match free_space.spaces[home.0 as usize].alive {
                true => home,
                false => COMMON,
            })
        });
    }

    /// Makes the guests of `owner` its own.
    pub fn adopt_guests(&mut self, owner: Owner) {
        self.move_guests(owner, u64::MAX, usize::MAX, |_, _| Some(owner));
    }

    /// Takes back what was set apart of `owner`'s own. Returns whether that was anything.
    pub fn take_back_apart(&mut self, owner: Owner) -> bool {
        let before = self.spaces[owner.0 as usize].guests;
        self.move_guests(owner, u64::MAX, usize::MAX, |_, home| (home == COMMON).then_some(owner));
        self.spaces[owner.0 as usize].guests < before
    }

    /// Gives the oldest guests of `owner` behind events up to `through`, at most `at_most` of them, to the owner that `to`
    /// returns for their home. Without one, they stay.
    fn move_guests(
        &mut self,
        owner: Owner,
        through: u64,
        at_most: usize,
        to: impl Fn(&FreeSpace, Owner) -> Option<Owner>,
    ) {
        let at_most = at_most.min(self.spaces[owner.0 as usize].guests);
        if at_most == 0 {
            return;
        }
        let covered = self.ranges_through(owner, through).map(|(id, ..)| id);
        let guests = covered.filter(|id| self.nodes[*id as usize].home != owner);
        let guests: Vec<NodeId> = guests.take(at_most).collect();
        for id in guests {
            let Node {
                event_number,
                home,
                size,
                ..
            } = self.nodes[id as usize];
            let Some(to) = to(self, home) else { continue };
            self.unlink(id);
            self.nodes[id as usize].state = NodeState::Used;
            // What goes home is idle, and keeps no number of another owner's events.
            let event_number = if to == owner { event_number } else { 0 };
            self.release(id, to, event_number);
            if home == COMMON && to == COMMON {
                self.spaces[0].idle.add(size);
            }
        }
    }
}
