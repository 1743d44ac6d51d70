//! User objects: destructors that run late, after the graph, its executables and their launches. `destructors` runs them.

use std::ffi::c_void;

use super::number_map::NumberMap;
use super::queue::Queues;
use super::vector_clock::Position;

/// The number of a user object.
pub(super) type ObjectRef = u64;

/// A destructor: it may make no driver call.
pub type Destructor = unsafe extern "C" fn(*mut c_void);

/// An object that graphs own.
#[derive(Debug)]
pub(super) struct UserObject {
    pub(super) destructor: Destructor,
    pub(super) data: usize,
    pub(super) owners: u32,
    /// Launches that may be pending.
    pub(super) uses: Vec<Position>,
}

/// An object that no graph owns any more.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) object: UserObject,
    /// When its destructor runs. `None` while a launch is pending.
    pub(super) at: Option<u64>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Objects {
    pub(super) all: NumberMap<u64, UserObject>,
    pub(super) due: Vec<Due>,
    pub(super) delay: u64,
}

impl Objects {
    pub(super) fn new(delay: u64) -> Objects {
        Objects {
            all: NumberMap::default(),
            due: Vec::new(),
            delay,
        }
    }

    /// Removes the objects whose destructors are due, and returns them with the launches that this proves complete.
    pub(super) fn take_ready(&mut self, queues: &Queues, now: u64) -> (Vec<(Destructor, usize)>, Vec<Position>) {
        let (mut ready, mut over) = (Vec::new(), Vec::new());
        let delay = self.delay;
        self.due.retain_mut(|due| {
            if due.at.is_none() && queues.complete(&due.object.uses, now) {
                due.at = Some(now + delay);
            }
            let wait = due.at.is_none_or(|at| at > now);
            if !wait {
                ready.push((due.object.destructor, due.object.data));
                over.append(&mut due.object.uses);
            }
            wait
        });
        (ready, over)
    }
}
