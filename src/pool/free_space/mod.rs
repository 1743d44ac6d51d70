//! The bookkeeping of free space, in offsets. It knows no driver, no pointer and no thread.
//!
//! Nodes in address order cover the whole address range of offsets. A node is *used*, *free* for one owner, or a *hole*
//! that no memory backs. Adjacent free nodes of one owner always coalesce, and so do adjacent holes. Free nodes of
//! different owners never coalesce, because what is safe for one owner need not be safe for the other.
//!
//! Each owner has an *arena*: memory that its requests take, and that goes back to it (`needs`, `place`). A range that was
//! handed out in the name of one owner and given to another is a *guest* there until it goes home.
//!
//! [`COMMON`] is the owner of what every caller may have. Each free node carries an *event number*: the number of the
//! completion event that covers it. Within an owner, event numbers never decrease from older to younger nodes, so what
//! an event has completed is at the head of the owner's age list.
//!
//! Uses: nothing.

#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::collections::{BTreeMap, VecDeque};

mod bins;
mod cut;
mod fit;
mod guests;
mod idle;
mod links;
#[cfg(test)]
mod looks;
mod needs;
mod owners;
mod place;
mod silence;
#[cfg(test)]
mod tests;
mod validate;
mod walk;

pub use cut::Cut;
pub use fit::{APART, End};
pub use idle::{FreeRange, IdleBytes, WINDOWS};
pub use owners::{OwnerMap, OwnerSet};
pub use place::Place;
pub use walk::Tile;

use bins::Bins;
use silence::{LastRequests, Presence};

/// A node's number; 0 means none. A used node's number is its block's.
pub type NodeId = u32;

/// The owner of free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(u32);

/// The owner of free space that is safe for every caller.
pub const COMMON: Owner = Owner(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeState {
    Unused,
    Used,
    Free(Owner),
    Hole,
}

#[derive(Debug, Clone)]
struct Node {
    offset: u64,
    size: u64,
    state: NodeState,
    /// Neighbours in address order.
    before: NodeId,
    after: NodeId,
    /// Neighbours in the bin.
    bin_before: NodeId,
    bin_after: NodeId,
    /// Neighbours in the owner's age list.
    older: NodeId,
    younger: NodeId,
    event_number: u64,
    /// The owner in whose name a used node was handed out, and whether it still counts as in use.
    held_by: Option<Owner>,
    in_use: bool,
    /// The owner that a free node goes back to once its work has completed. Another owner than its own makes it a guest.
    home: Owner,
}

struct OwnerSpace {
    bins: Bins,
    bytes: u64,
    oldest: NodeId,
    youngest: NodeId,
    alive: bool,
    /// Bytes handed out in the owner's name, and their peak: see `needs`.
    used: u64,
    used_peak: u64,
    /// How many of its free nodes are guests.
    guests: usize,
    /// How many nodes name it as the arena that they go back to. Its number serves no other owner before there is none.
    named: usize,
    /// What was free for a while: see `idle`. Whether a block was handed out in the owner's name in this window, and in the
    /// one before.
    idle: IdleBytes,
    requested: bool,
    requested_before: bool,
    /// Whether its stream still makes requests: see `silence`. How many bytes had been asked for when it was heard last.
    presence: Presence,
    heard: u64,
    /// Where the owner's arena ends: a hole starts there, in which the arena grows. None where there is no arena yet.
    front: Option<u64>,
}

impl OwnerSpace {
    fn new() -> OwnerSpace {
        OwnerSpace {
            bins: Bins::new(),
            bytes: 0,
            oldest: 0,
            youngest: 0,
            alive: true,
            used: 0,
            used_peak: 0,
            guests: 0,
            named: 0,
            idle: IdleBytes::default(),
            requested: false,
            requested_before: false,
            presence: Presence::Silent { bequeathed: false },
            heard: 0,
            front: None,
        }
    }
}

/// The free space of one address range.
pub struct FreeSpace {
    granule: u64,
    granule_bits: u32,
    page_bits: u32,
    nodes: Vec<Node>,
    unused_nodes: Vec<NodeId>,
    spaces: Vec<OwnerSpace>,
    unused_owners: VecDeque<Owner>,
    /// The owners that have free space, but for [`COMMON`].
    occupied: OwnerSet,
    /// The owners that have guests.
    hosts: OwnerSet,
    holes: BTreeMap<u64, NodeId>,
    /// The owners whose arenas end at a hole, by that offset.
    fronts: BTreeMap<u64, Owner>,
    /// The sum of every owner's `used_peak`.
    needs: u64,
    last_requests: LastRequests,
    /// An arena begins in the middle of a hole if each half has at least this size.
    arena_room: u64,
    /// Memory of several pages that is mapped and unmapped as one: its size, by offset.
    extents: BTreeMap<u64, u64>,
    /// How many nodes were looked at.
    #[cfg(test)]
    pub looks: looks::Looks,
}

impl FreeSpace {
    /// An address range of `size` bytes without any memory: one hole. Sizes and offsets are multiples of `granule`.
    /// Memory is mapped and unmapped in pages of `page` bytes. Both are powers of two.
    pub fn new(size: u64, granule: u64, page: u64) -> FreeSpace {
        let blank = Node {
            offset: 0,
            size: 0,
            state: NodeState::Unused,
            before: 0,
            after: 0,
            bin_before: 0,
            bin_after: 0,
            older: 0,
            younger: 0,
            event_number: 0,
            held_by: None,
            in_use: false,
            home: COMMON,
        };
        let hole = Node {
            size,
            state: NodeState::Hole,
            ..blank.clone()
        };
        FreeSpace {
            granule,
            granule_bits: granule.trailing_zeros(),
            page_bits: page.trailing_zeros(),
            nodes: vec![blank, hole],
            unused_nodes: Vec::new(),
            spaces: vec![OwnerSpace::new()],
            unused_owners: VecDeque::new(),
            occupied: OwnerSet::default(),
            hosts: OwnerSet::default(),
            holes: BTreeMap::from([(0, 1)]),
            fronts: BTreeMap::new(),
            needs: 0,
            last_requests: LastRequests::default(),
            arena_room: size / 16,
            extents: BTreeMap::new(),
            #[cfg(test)]
            looks: looks::Looks::default(),
        }
    }

    /// Adds an owner with no space.
    pub fn add_owner(&mut self) -> Owner {
        if let Some(owner) = self.unused_owners.pop_front() {
            let space = &mut self.spaces[owner.0 as usize];
            (space.alive, space.idle) = (true, IdleBytes::default());
            self.fall_silent(owner);
            return owner;
        }
        self.spaces.push(OwnerSpace::new());
        let owner = Owner(self.spaces.len() as u32 - 1);
        self.fall_silent(owner);
        owner
    }

    /// Forgets an owner that has no space; false, and no change, where it has space.
    pub fn remove_owner(&mut self, owner: Owner) -> bool {
        let space = &mut self.spaces[owner.0 as usize];
        if owner == COMMON || space.bytes != 0 || !space.alive {
            return false;
        }
        space.alive = false;
        if let Some(front) = space.front.take() {
            self.fronts.remove(&front);
        }
        self.forget_presence(owner);
        self.lower_peak(owner);
        self.reuse_number(owner);
        true
    }

    /// How many owners there are, with those whose number serves none now.
    #[cfg(test)]
    pub fn count_owners(&self) -> usize {
        self.spaces.len()
    }

    /// A node's offset and size.
    pub fn span(&self, id: NodeId) -> (u64, u64) {
        let node = &self.nodes[id as usize];
        (node.offset, node.size)
    }

    /// Bytes free for `owner`.
    pub fn free_bytes(&self, owner: Owner) -> u64 {
        self.spaces[owner.0 as usize].bytes
    }

    /// Notes whether `owner` has free space and guests, after either has changed.
    #[inline]
    fn note_occupied(&mut self, owner: Owner) {
        let OwnerSpace { bytes, guests, .. } = self.spaces[owner.0 as usize];
        self.occupied.set(owner, bytes > 0 && owner != COMMON);
        self.hosts.set(owner, guests > 0);
    }

    /// Gives a used node to `owner`'s free space behind `event_number`; it coalesces with `owner`'s adjacent ranges. A
    /// node that was handed out in another owner's name becomes a guest, which the owner itself does not take.
    pub fn give(&mut self, id: NodeId, owner: Owner, event_number: u64) {
        debug_assert_eq!(self.nodes[id as usize].state, NodeState::Used);
        let home = self.end_hold(id).filter(|_| owner != COMMON);
        self.release_to(id, owner, event_number, home.unwrap_or(owner));
    }

    /// Gives a used node that was taken, and not handed out, to `owner`, behind the event that it was behind.
    pub fn put_back(&mut self, id: NodeId, owner: Owner) {
        self.give(id, owner, self.nodes[id as usize].event_number);
    }

    /// Gives an idle used node to common free space. Returns the range that holds it then.
    pub fn give_common(&mut self, id: NodeId) -> NodeId {
        debug_assert_eq!(self.nodes[id as usize].state, NodeState::Used);
        self.end_hold(id);
        self.release(id, COMMON, 0)
    }

    /// Gives an idle used node back to the arena that it was handed out from; to common free space where there is none.
    pub fn give_home(&mut self, id: NodeId) {
        debug_assert_eq!(self.nodes[id as usize].state, NodeState::Used);
        let home = self.end_hold(id);
        self.release(id, home.unwrap_or(COMMON), 0);
    }

    /// Moves every range of `from` whose `event_number` is at most `through` to the owner `to`, behind `event_number`;
    /// returns the bytes.
    pub fn transfer(&mut self, from: Owner, to: Owner, through: u64, event_number: u64) -> u64 {
        let mut moved = 0;
        loop {
            let id = self.spaces[from.0 as usize].oldest;
            if id == 0 || self.nodes[id as usize].event_number > through || from == to {
                return moved;
            }
            moved += self.nodes[id as usize].size;
            self.unlink(id);
            self.nodes[id as usize].state = NodeState::Used;
            self.release(id, to, event_number);
        }
    }

    /// Takes everything that `owner` has, as used nodes.
    pub fn take_all(&mut self, owner: Owner) -> Vec<NodeId> {
        let mut taken = Vec::new();
        while let id @ 1.. = self.spaces[owner.0 as usize].oldest {
            self.unlink(id);
            self.nodes[id as usize].state = NodeState::Used;
            taken.push(id);
        }
        taken
    }

    /// Puts a used node into `owner`'s free space, and coalesces; returns the node that holds it then.
    fn release(&mut self, id: NodeId, owner: Owner, event_number: u64) -> NodeId {
        self.release_to(id, owner, event_number, owner)
    }

    fn release_to(&mut self, mut id: NodeId, owner: Owner, mut event_number: u64, home: Owner) -> NodeId {
        let (before, after) = (self.nodes[id as usize].before, self.nodes[id as usize].after);
        // The `event_number` never decreases along the age list: a node that comes later with an older one gets the
        // youngest's.
        let youngest = self.spaces[owner.0 as usize].youngest;
        if youngest != 0 {
            event_number = event_number.max(self.nodes[youngest as usize].event_number);
        }
        // No request is cut from guests. So that they go home as early as possible, those behind different events do not
        // coalesce.
        let joins = |node: &Node| {
            let same = home == owner || node.event_number == event_number;
            node.state == NodeState::Free(owner) && node.home == home && same
        };
        if before != 0 && joins(&self.nodes[before as usize]) {
            self.unlink(before);
            self.nodes[before as usize].size += self.nodes[id as usize].size;
            self.drop_node(id);
            id = before;
        }
        if after != 0 && joins(&self.nodes[after as usize]) {
            self.unlink(after);
            self.nodes[id as usize].size += self.nodes[after as usize].size;
            self.drop_node(after);
        }
        let youngest = self.spaces[owner.0 as usize].youngest;
        let node = &mut self.nodes[id as usize];
        node.state = NodeState::Free(owner);
        node.home = home;
        node.event_number = event_number;
        if home != owner {
            self.spaces[owner.0 as usize].guests += 1;
            self.spaces[home.0 as usize].named += 1;
        }
        self.spaces[owner.0 as usize].bytes += self.nodes[id as usize].size;
        self.note_occupied(owner);
        self.link_younger(owner, youngest, id);
        self.add_to_bin(id, owner);
        id
    }
}

/// The first multiple of `align`, a power of two, at or after `offset`. A division would take longer than a search.
fn align_up(offset: u64, align: u64) -> u64 {
    let below = align.max(1) - 1;
    (offset + below) & !below
}

/// Whether `size` bytes at a multiple of `align` lie in `[offset, offset + room)`.
fn fits(offset: u64, room: u64, size: u64, align: u64) -> bool {
    let front = align_up(offset, align) - offset;
    front.checked_add(size).is_some_and(|need| need <= room)
}
