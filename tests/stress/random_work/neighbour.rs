//! A thread beside the clients that loads and unloads an engine without a stream, again and again.

use std::sync::atomic::{AtomicBool, Ordering::Acquire};

use super::world::{World, done};

/// The engine's bytes.
const ENGINE: u64 = 64 << 20;

/// How many operations of a client come before each step of the neighbour, where they take turns.
const OPERATIONS: u64 = 6;

/// The neighbour, in the first context.
pub struct Neighbour<'w> {
    world: &'w World,
    stream: usize,
    /// The engine, while it is loaded.
    engine: Option<u64>,
    steps: u64,
}

impl<'w> Neighbour<'w> {
    pub fn new(world: &'w World) -> Neighbour<'w> {
        let context = world.contexts[0].handle;
        let stream = world.app(|machine| {
            machine.context_push(context).unwrap();
            let stream = machine.stream_create(true).unwrap();
            machine.context_pop().unwrap();
            stream
        });
        Neighbour {
            world,
            stream,
            engine: None,
            steps: 0,
        }
    }

    /// Loads the engine and uses it, or unloads it, maybe while it is in use.
    pub fn step(&mut self) {
        let (world, stream, context) = (self.world, self.stream, self.world.contexts[0].handle);
        world.app(|machine| machine.context_push(context).unwrap());
        self.steps += 1;
        match self.engine.take() {
            Some(engine) => {
                if self.steps.is_multiple_of(4) {
                    done(world.app(|machine| machine.stream_synchronize(stream)));
                }
                world.put(engine, None);
            }
            None => {
                let engine = world.get(ENGINE, 0, None);
                if engine != 0 {
                    done(world.app(|machine| machine.launch(stream, 100_000, &[(engine, ENGINE)])));
                    self.engine = Some(engine);
                }
            }
        }
        world.app(|machine| machine.context_pop().unwrap());
    }

    /// Steps now and then beside the operations of a client.
    pub fn step_beside(&mut self, operation: u64) {
        if operation.is_multiple_of(OPERATIONS) {
            self.step();
        }
    }

    /// Steps until the clients are `over`.
    pub fn run(mut self, over: &AtomicBool) {
        while !over.load(Acquire) {
            self.step();
        }
        self.finish();
    }

    pub fn finish(mut self) {
        if self.engine.is_some() {
            self.step();
        }
        // The second driver destroys a stream in its own context only.
        let context = self.world.contexts[0].handle;
        self.world.app(|machine| {
            machine.context_push(context).unwrap();
            machine.stream_destroy(self.stream).unwrap();
            machine.context_pop().unwrap();
        });
    }
}
