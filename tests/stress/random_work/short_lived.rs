//! Short-lived contexts and threads: a client's work in a context that is destroyed, and on a thread that ends.

use std::sync::atomic::Ordering::Relaxed;
use std::thread::ScopedJoinHandle;

use trtalloc::allocator::Request;
use trtalloc::driver::Stream;

use super::client::{Block, Client};
use super::random::Random;
use super::world::{World, carved, done};

/// The default streams: of a context, by two handles, and of a thread in it.
pub const DEFAULT: [usize; 3] = [0, 1, 2];

impl Client<'_> {
    /// Works in a new context, which is destroyed with work pending. The client keeps one block.
    pub fn use_short_lived_context(&mut self) {
        if self.world.trusted || !self.world.short_lived || self.capture.is_some() {
            return;
        }
        let device = self.device();
        let green = self.world.allocator.driver().features().context_events && self.random.one_in(3);
        let context = self.world.app(|machine| {
            // The second driver has no green contexts.
            let green = green.then(|| machine.green_context_create(device).ok()).flatten();
            if let Some(context) = green {
                machine.context_push(context).unwrap();
            }
            green.unwrap_or_else(|| machine.context_create(device).unwrap())
        });
        self.world.counts.contexts.fetch_add(1, Relaxed);
        let mut stream = self.world.app(|machine| machine.stream_create(true).unwrap());
        // An event of the application that is never recorded.
        let event = self.world.app(|machine| machine.event_create().unwrap());
        if self.random.one_in(3) {
            // A green context has no default streams of threads.
            stream = [0, 2][self.random.below(if green { 1 } else { 2 }) as usize];
        }
        let (mut there, mut used): (Vec<(u64, u64)>, bool) = (Vec::new(), false);
        for _ in 0..self.random.below(12) {
            let size = self.random.size(self.world.largest);
            let ordered = !self.random.one_in(4);
            let address = self.world.get(size, 0, ordered.then_some(stream));
            if address != 0 {
                self.launch(stream, &[(address, size)]);
                there.push((address, size));
            }
            used |= address != 0;
            // The context's queued work counts once the context has used the pool.
            if used && self.random.one_in(6) {
                self.declare_in_other_context(stream);
            }
            if self.random.one_in(3)
                && let Some((address, _)) = there.pop()
            {
                let ordered = !self.random.one_in(4);
                self.world.put(address, ordered.then_some(stream));
            }
        }
        // Another thread's capture may forbid the query.
        let asked = self.world.app(|machine| machine.event_query(event));
        assert_ne!(asked, Ok(false), "the application's event was recorded");
        let home = self.streams[0];
        if let Some((address, size)) = there.pop() {
            // Destroying a context ends its work. That of a green one goes on.
            let ordered = !green
                || self.world.app(|machine| {
                    let ordered =
                        done(machine.event_record(event, stream)) && done(machine.stream_wait_event(home, event));
                    machine.event_destroy(event).unwrap();
                    ordered
                });
            match ordered {
                true => self.blocks.push(Block {
                    address,
                    size,
                    resizable: false,
                    home,
                    pins: 0,
                    born: None,
                }),
                false => self.world.put(address, Some(stream)),
            }
        }
        for (address, _) in there {
            self.world.put(address, Some(stream));
        }
        self.world.app(|machine| {
            machine.context_destroy(context).unwrap();
        });
    }

    /// Uses a block of the client's own context on a stream of the short-lived one, and declares it.
    fn declare_in_other_context(&mut self, stream: usize) {
        let Some(at) = self.block() else { return };
        let home = self.blocks[at].home;
        // Default streams are different here.
        if DEFAULT.contains(&home) {
            return;
        }
        let own = self.world.contexts[self.context].handle;
        let ordered = self.world.app(|machine| {
            machine.context_push(own).unwrap();
            let event = machine.event_create().unwrap();
            let recorded = done(machine.event_record(event, home));
            machine.context_pop().unwrap();
            let ordered = recorded && done(machine.stream_wait_event(stream, event));
            machine.event_destroy(event).unwrap();
            ordered
        });
        if ordered {
            self.declared(at, stream);
        }
    }

    /// A thread works on its own default stream and ends. The client keeps the blocks that it has not freed, and the
    /// stream's handle is reused.
    pub fn use_short_lived_thread(&mut self) {
        let world = self.world;
        if world.trusted
            || self.capture.is_some()
            || world.counts.threads.fetch_add(1, Relaxed) >= world.max_thread_streams
        {
            return;
        }
        let context = world.contexts[self.context].handle;
        let random = &mut self.random;
        let work = || use_thread_stream(world, context, random);
        let left = std::thread::scope(|scope| scope.spawn(work).join().expect("the thread's work"));
        self.take_over(left);
    }

    /// Several such threads, one for each request. They run at once, unless one thread does all the work.
    pub fn use_short_lived_threads(&mut self) {
        let world = self.world;
        if world.trusted || self.capture.is_some() {
            return;
        }
        let context = world.contexts[self.context].handle;
        let mut randoms: Vec<Random> = (0..2 + self.random.below(3))
            .filter(|_| world.counts.threads.fetch_add(1, Relaxed) < world.max_thread_streams)
            .map(|_| Random::new(self.random.next()))
            .collect();
        let left: Vec<Left> = std::thread::scope(|scope| {
            let spawn = |random| scope.spawn(move || use_thread_stream(world, context, random));
            let join = |thread: ScopedJoinHandle<'_, Left>| thread.join().expect("the thread's work");
            if world.alone {
                return randoms.iter_mut().map(|random| join(spawn(random))).collect();
            }
            let threads: Vec<_> = randoms.iter_mut().map(spawn).collect();
            threads.into_iter().map(join).collect()
        });
        left.into_iter().for_each(|left| self.take_over(left));
    }

    /// The client goes on with what a thread has left.
    fn take_over(&mut self, (left, event): Left) {
        let world = self.world;
        let home = self.stream();
        let ordered = world.app(|machine| {
            let ordered = event.is_some_and(|event| done(machine.stream_wait_event(home, event)));
            if let Some(event) = event {
                machine.event_destroy(event).unwrap();
            }
            ordered
        });
        for (address, size) in left {
            match ordered {
                true => self.blocks.push(Block {
                    address,
                    size,
                    resizable: false,
                    home,
                    pins: 0,
                    born: None,
                }),
                false => world.put(address, None),
            }
        }
    }

    /// A thread without a context frees blocks of the client, and allocates and frees one.
    pub fn use_thread_without_context(&mut self) {
        let world = self.world;
        if world.trusted
            || self.capture.is_some()
            || world.counts.threads.fetch_add(1, Relaxed) >= world.max_thread_streams
        {
            return;
        }
        let device = self.device();
        let mut taken = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            if let Some(at) = self.block() {
                let block = self.blocks.swap_remove(at);
                // A default stream has no meaning without a current context.
                let named = !DEFAULT.contains(&block.home) && self.random.one_in(2);
                taken.push((block.address, named.then_some(block.home)));
            }
        }
        let (size, which) = (self.random.size(world.largest), self.random.below(3));
        let default = (world.primaries && world.away && self.rarely(2)).then(|| self.random.pick(&DEFAULT));
        let work = || {
            for (address, stream) in taken {
                world.put(address, stream);
            }
            let request = Request {
                size,
                alignment: 0,
                flags: 0,
                stream: None,
                device: Some(device),
            };
            if let Ok(address) = world.ask(|allocator| allocator.allocate(request)) {
                world.machine.checker().hand_out(address, carved(size), None);
                world.put(address, None);
            }
            if let Some(stream) = default.flatten() {
                use_default_stream(world, device, (stream, size));
            }
            let _ = world.ask(|allocator| match which {
                0 if !world.spares_captures => allocator.trim(Some(device), 64 << 20).map(drop),
                _ => allocator.stats(Some(device)).map(drop),
            });
            assert_eq!(
                world.app(|machine| machine.context_current()),
                Ok(0),
                "the thread still has no context"
            );
        };
        std::thread::scope(|scope| scope.spawn(work).join().expect("the thread's work"));
    }
}

/// The blocks that a thread has left, and an event that it recorded last.
type Left = (Vec<(u64, u64)>, Option<usize>);

/// A thread's work on its default stream.
fn use_thread_stream(world: &World, context: usize, random: &mut Random) -> Left {
    world.app(|machine| machine.context_push(context).unwrap());
    let mut left = Vec::new();
    for _ in 0..1 + random.below(8) {
        let size = random.size(world.largest);
        let address = world.get(size, 0, Some(2));
        if address == 0 {
            continue;
        }
        let duration = random.below(200_000);
        done(world.app(|machine| machine.launch(2, duration, &[(address, size)])));
        match random.below(4) {
            0 => left.push((address, size)),
            1 => world.put(address, None),
            _ => world.put(address, Some(2)),
        }
    }
    let event = world.app(|machine| {
        let event = machine.event_create().unwrap();
        let recorded = done(machine.event_record(event, 2));
        machine.context_pop().unwrap();
        recorded.then_some(event)
    });
    (left, event)
}

/// Requests memory on a default stream while the thread has no context. That means the stream of the primary context.
fn use_default_stream(world: &World, device: i32, (stream, size): (usize, u64)) {
    let request = Request {
        size,
        alignment: 0,
        flags: 0,
        stream: Some(Stream(stream)),
        device: Some(device),
    };
    let Ok(address) = world.ask(|allocator| allocator.allocate(request)) else {
        return;
    };
    let checker = world.machine.checker();
    let primary = world.app(|machine| {
        let primary = machine.primary_retain(device).unwrap();
        machine.context_push(primary).unwrap();
        primary
    });
    checker.hand_out(address, carved(size), Some(stream).filter(|_| !world.is_pinned()));
    done(world.app(|machine| machine.launch(stream, 100_000, &[(address, size)])));
    checker.give_back(address, Some(stream));
    world.app(|machine| {
        assert_eq!(machine.context_pop(), Ok(primary));
        machine.primary_release(device).unwrap();
    });
    world.put_known(&world.allocator, address, Some(stream));
}
