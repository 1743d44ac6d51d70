//! Streams of other contexts, which a client uses while its own context is current, the primary context, and other devices.

use super::super::short_lived::DEFAULT;
use super::super::world::{carved, done};
use super::Client;

/// A block on a stream of another context.
#[derive(Debug, Clone, Copy)]
pub(super) struct Away {
    address: u64,
    size: u64,
    /// The index of the stream's context.
    context: usize,
    stream: usize,
}

/// The most contexts of a client's that have only freed blocks.
const VISITED: usize = 3;

/// The most blocks that a client has on other contexts' streams, and of other devices.
const MOST: usize = 8;

impl Client<'_> {
    /// A stream of another context, and that context's index.
    fn stream_away(&mut self, same_device: bool) -> Option<(usize, usize)> {
        if !self.world.away {
            return None;
        }
        let (own, device) = (self.world.contexts[self.context].handle, self.device());
        let contexts = self.world.contexts.iter().enumerate();
        let others = contexts.filter(|(_, of)| of.handle != own && (!same_device || of.device == device));
        let streams: Vec<_> = others
            .flat_map(|(at, of)| of.streams.iter().map(move |stream| (at, *stream)))
            .collect();
        self.random.pick(&streams)
    }

    /// Does something in another context of the round's, or in the client's own.
    fn inside<T>(&mut self, context: Option<usize>, work: impl FnOnce(&mut Self) -> T) -> T {
        let other = context.map(|at| self.world.contexts[at].handle);
        if let Some(other) = other {
            self.world.app(|machine| machine.context_push(other).unwrap());
        }
        let outcome = work(self);
        if other.is_some() {
            self.leave();
        }
        outcome
    }

    /// Allocates on a stream of another context. The driver can be asked about it in any context.
    pub(super) fn allocate_away(&mut self) {
        if self.away.len() == MOST {
            return self.free_away();
        }
        let Some((context, stream)) = self.stream_away(false) else {
            return;
        };
        let size = self.random.size(self.world.largest);
        let there = self.random.one_in(3).then_some(context);
        let address = self.inside(there, |client| client.world.get(size, 0, Some(stream)));
        if address != 0 {
            self.away.push(Away {
                address,
                size,
                context,
                stream,
            });
            // A kernel is launched in its stream's context.
            self.inside(Some(context), |client| client.launch(stream, &[(address, size)]));
        }
    }

    pub(super) fn use_or_free_away(&mut self) {
        if self.random.one_in(2) {
            return self.free_away();
        }
        let Some(Away {
            address,
            size,
            context,
            stream,
        }) = self.random.pick(&self.away)
        else {
            return;
        };
        self.inside(Some(context), |client| client.launch(stream, &[(address, size)]));
    }

    /// Frees it on its stream or without one, while its context or the client's own is current.
    pub(super) fn free_away(&mut self) {
        if self.away.is_empty() {
            return;
        }
        let at = self.random.below(self.away.len() as u64) as usize;
        let block = self.away.swap_remove(at);
        let there = self.random.one_in(2).then_some(block.context);
        let stream = (!self.random.one_in(3)).then_some(block.stream);
        self.inside(there, |client| client.world.put(block.address, stream));
    }

    /// Uses a block of the client's on a stream of another context, behind its other uses, and frees it there.
    pub(super) fn lend(&mut self) {
        let Some((context, stream)) = self.stream_away(true) else {
            return;
        };
        let Some(at) = self.block() else { return };
        if !self.order(self.blocks[at].home, stream) {
            return;
        }
        let block = self.blocks.swap_remove(at);
        let range = (block.address, block.size);
        self.inside(Some(context), |client| client.launch(stream, &[range]));
        let there = self.random.one_in(2).then_some(context);
        let named = (!self.random.one_in(3)).then_some(stream);
        self.inside(there, |client| client.world.put(block.address, named));
    }

    /// Uses a block in a new context and frees it there, on a stream or without one. That is the context's first call of the
    /// allocator. The context is destroyed later, maybe while that work is pending.
    pub(super) fn visit(&mut self) {
        let world = self.world;
        // Before the free, the pool does not know the context, and other threads' frees do not wait for it.
        if !world.alone || !world.short_lived || world.trusted || self.capture.is_some() {
            return;
        }
        if self.visited.len() == VISITED {
            let context = self.visited.swap_remove(0);
            return world.app(|machine| machine.context_destroy(context).unwrap());
        }
        let Some(at) = self.block() else { return };
        let block = self.blocks[at];
        if DEFAULT.contains(&block.home) {
            return;
        }
        let (device, handle) = (self.device(), world.contexts[self.context].handle);
        let (context, stream, ordered) = world.app(|machine| {
            let context = machine.context_create(device).unwrap();
            let stream = machine.stream_create(true).unwrap();
            machine.context_push(handle).unwrap();
            let event = machine.event_create().unwrap();
            let ordered =
                done(machine.event_record(event, block.home)) && done(machine.stream_wait_event(stream, event));
            machine.event_destroy(event).unwrap();
            machine.context_pop().unwrap();
            (context, stream, ordered)
        });
        self.visited.push(context);
        if ordered {
            self.blocks.swap_remove(at);
            self.launch(stream, &[(block.address, block.size)]);
            // Its context is current, because the handle may be that of a stream which was allocated on.
            let named = (!self.random.one_in(3)).then_some(stream);
            world.put(block.address, named);
        }
        world.app(|machine| assert_eq!(machine.context_pop(), Ok(context)));
    }

    pub(super) fn end_visits(&mut self) {
        for context in std::mem::take(&mut self.visited) {
            self.world.app(|machine| machine.context_destroy(context).unwrap());
        }
    }

    /// Uses a block in the device's primary context, which may have been made for that, and frees it without a stream. That
    /// context need not call the pool for its work to count.
    pub(super) fn use_in_primary(&mut self) {
        let device = self.device();
        let Some(at) = self.block() else { return };
        let block = self.blocks[at];
        // Default streams are different there.
        if DEFAULT.contains(&block.home) {
            return;
        }
        let world = self.world;
        let made = world.app(|machine| {
            let event = machine.event_create().unwrap();
            let recorded = done(machine.event_record(event, block.home));
            let stream = recorded.then(|| {
                let primary = machine.primary_retain(device).unwrap();
                machine.context_push(primary).unwrap();
                let stream = machine.stream_create(true).unwrap();
                let ordered = done(machine.stream_wait_event(stream, event));
                (stream, ordered)
            });
            machine.event_destroy(event).unwrap();
            stream
        });
        let Some((stream, ordered)) = made else { return };
        if ordered {
            self.launch(stream, &[(block.address, block.size)]);
        }
        world.app(|machine| {
            machine.stream_destroy(stream).unwrap();
            machine.context_pop().unwrap();
        });
        // The last release ends the context and its work. Without ids, the context that is made next could not be
        // distinguished from it.
        let early = self.random.one_in(2);
        let release = || {
            if world.allocator.driver().features().stream_ids {
                world.app(|machine| machine.primary_release(device).unwrap());
            }
        };
        if early {
            release();
        }
        if ordered {
            self.blocks.swap_remove(at);
            world.put(block.address, None);
        }
        if !early {
            release();
        }
    }

    /// Allocates a block of another device, which the client's own device can use, uses one, declares a use of one, or frees
    /// one.
    pub(super) fn use_far_block(&mut self) {
        if !self.world.peers || self.world.mail.len() < 2 {
            return;
        }
        let stream = self.stream();
        let at = self.random.below(self.far.len().max(1) as u64) as usize;
        let found = self.far.get(at).copied().filter(|(_, _, home)| !self.captures(*home));
        match (self.random.below(6), found) {
            (0..3, _) if self.far.len() < MOST => {
                let device = (self.device() + 1) % self.world.mail.len() as i32;
                let request = trtalloc::allocator::Request {
                    size: self.random.size(self.world.largest),
                    alignment: 0,
                    flags: 0,
                    stream: Some(trtalloc::driver::Stream(stream)),
                    device: Some(device),
                };
                let Ok(address) = self.world.ask(|allocator| allocator.allocate(request)) else {
                    return;
                };
                // It is safe for every stream.
                let checker = self.world.machine.checker();
                checker.hand_out(address, carved(request.size), None);
                self.launch(stream, &[(address, request.size)]);
                self.far.push((address, request.size, stream));
            }
            (which @ 3..5, Some((address, size, home))) => {
                let ordered = self.order(home, stream);
                if ordered && which == 3 {
                    self.far[at].2 = stream;
                    self.launch(stream, &[(address, size)]);
                } else if ordered {
                    self.declared_range((address, size), stream);
                }
            }
            (_, Some((address, _, home))) => {
                self.far.swap_remove(at);
                let ordered = self.random.one_in(2);
                self.world.put(address, ordered.then_some(home));
            }
            _ => {}
        }
    }
}
