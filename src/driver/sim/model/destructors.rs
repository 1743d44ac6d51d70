//! The life of user objects: who keeps them, and the thread that runs their destructors.

use std::ffi::c_void;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::code::*;
use super::functions::Call;
use super::objects::{Destructor, Due, ObjectRef, UserObject};
use super::state::MachineState;
use super::vector_clock::Position;
use super::{Machine, threads};

impl MachineState {
    pub(super) fn keep_objects(&mut self, objects: &[ObjectRef]) {
        for object in objects {
            if let Some(object) = self.objects.all.get_mut(object) {
                object.owners += 1;
            }
        }
    }

    pub(super) fn objects_used(&mut self, objects: &[ObjectRef], position: Position) {
        for object in objects {
            if let Some(object) = self.objects.all.get_mut(object) {
                object.uses.retain(|other| other.0 != position.0);
                object.uses.push(position);
            }
        }
    }

    pub(super) fn drop_objects(&mut self, objects: &[ObjectRef]) {
        for number in objects {
            let Some(object) = self.objects.all.get_mut(number) else {
                continue;
            };
            object.owners -= 1;
            if object.owners == 0
                && let Some(object) = self.objects.all.remove(number)
            {
                self.objects.due.push(Due { object, at: None });
            }
        }
    }
}

#[derive(Debug, Default)]
struct DestructorQueue {
    ready: Vec<(Destructor, usize)>,
    running: bool,
    stop: bool,
}

#[derive(Debug, Default)]
struct SharedDestructors {
    queue: Mutex<DestructorQueue>,
    changed: Condvar,
}

/// The thread that runs destructors.
#[derive(Debug, Default)]
pub(super) struct Callbacks {
    shared: Arc<SharedDestructors>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Callbacks {
    fn start(&self) -> std::io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = self.shared.clone();
            *thread = Some(
                std::thread::Builder::new()
                    .name("sim-callbacks".into())
                    .spawn(move || shared.run())?,
            );
        }
        Ok(())
    }

    fn push(&self, ready: Vec<(Destructor, usize)>) {
        self.shared.queue.lock().ready.extend(ready);
        self.shared.changed.notify_all();
    }
}

impl SharedDestructors {
    fn run(&self) {
        threads::set_in_callback(true);
        let mut queue = self.queue.lock();
        while !queue.stop {
            if queue.ready.is_empty() {
                self.changed.wait(&mut queue);
                continue;
            }
            let (destructor, data) = queue.ready.remove(0);
            queue.running = true;
            MutexGuard::unlocked(&mut queue, || {
                // SAFETY: the code that made the user object declared that this pair may be called once, from any
                // thread.
                unsafe { destructor(data as *mut c_void) }
            });
            queue.running = false;
            self.changed.notify_all();
        }
    }
}

impl Drop for Callbacks {
    /// Destructors that have not run by now never run, as when a process ends.
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.get_mut().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A destructor that panicked has aborted the process, so there is no panic to handle.
            let _ = thread.join();
        }
    }
}

impl Machine {
    /// Passes due user objects to the callback thread.
    pub(super) fn run_due_destructors(&self, state: &mut MachineState) {
        if state.objects.due.is_empty() {
            return;
        }
        let MachineState {
            objects,
            queues,
            tables,
            ..
        } = state;
        let (ready, over) = objects.take_ready(queues, tables.now());
        // When a destructor runs, the host has observed that its graph's launches have completed.
        for position in over {
            state.observe_position(position);
        }
        if !ready.is_empty() {
            self.callbacks.push(ready);
        }
    }

    /// `cuUserObjectCreate` and `cuGraphRetainUserObject` with `CU_GRAPH_USER_OBJECT_MOVE`: `destructor(data)` runs
    /// once, after the graph and its executables are destroyed and their launches have completed. The graph may still
    /// be captured into.
    ///
    /// # Safety
    ///
    /// `destructor` may be called with `data` from any thread at any later time.
    pub unsafe fn graph_retain_user_object(
        &self,
        graph: usize,
        destructor: Destructor,
        data: *mut c_void,
    ) -> Result<()> {
        let (_, mut state) = self.enter(Call::RetainUserObject)?;
        if !self.config.user_objects() {
            return Err(NOT_SUPPORTED);
        }
        if !state.graphs.contains_key(&graph) {
            return Err(INVALID_VALUE);
        }
        self.callbacks.start().map_err(|_| OUT_OF_MEMORY)?;
        let number = state.new_id();
        let object = UserObject {
            destructor,
            data: data as usize,
            owners: 1,
            uses: Vec::new(),
        };
        state.objects.all.insert(number, object);
        if let Some(graph) = state.graphs.get_mut(&graph) {
            graph.objects.push(number);
        }
        Ok(())
    }

    /// Lets the delay pass for every user object whose graph, executables and launches have ended, and waits until
    /// their destructors have run. User objects with pending work stay.
    pub fn drain_user_objects(&self) {
        let mut state = self.state.lock();
        self.run_due_destructors(&mut state);
        self.tables.advance(state.objects.delay);
        self.run_due_destructors(&mut state);
        drop(state);
        let mut queue = self.callbacks.shared.queue.lock();
        while queue.running || !queue.ready.is_empty() {
            self.callbacks.shared.changed.wait(&mut queue);
        }
    }
}
