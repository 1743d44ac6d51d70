//! What a server does for one request: it makes a stream for it, or lets another stream use the same blocks.

use std::sync::atomic::Ordering::Relaxed;

use trtalloc::driver::Stream;

use super::super::world::done;
use super::{Block, Client};

impl Client<'_> {
    /// Serves a few requests. Each has a stream of its own, which is destroyed after it, maybe with work pending.
    pub(super) fn serve_on_new_streams(&mut self) {
        let world = self.world;
        // Drivers without ids of streams notice too late that a handle is reused.
        if world.trusted || !world.short_lived {
            return;
        }
        for _ in 0..1 + self.random.below(4) {
            let non_blocking = !self.random.one_in(4);
            let stream = world.app(|machine| machine.stream_create(non_blocking).unwrap());
            world.counts.streams.fetch_add(1, Relaxed);
            self.serve(stream);
        }
    }

    /// One request, whose stream it destroys.
    fn serve(&mut self, stream: usize) {
        let world = self.world;
        let mut blocks = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let size = self.random.size(world.largest);
            let address = world.get(size, 0, Some(stream));
            if address != 0 {
                self.launch(stream, &[(address, size)]);
                blocks.push((address, size));
            }
        }
        // Its result may be used on.
        let home = self.stream();
        if self.random.one_in(4)
            && self.order(stream, home)
            && let Some((address, size)) = blocks.pop()
        {
            self.blocks.push(Block {
                address,
                size,
                resizable: false,
                home,
                pins: 0,
                born: None,
            });
        }
        let (early, waits) = (self.random.one_in(2), self.random.one_in(2));
        if waits && early {
            done(world.app(|machine| machine.stream_synchronize(stream)));
        }
        let mut late = Vec::new();
        for (address, _) in blocks {
            match self.random.below(8) {
                0 => late.push(address),
                1 => world.put(address, None),
                _ => world.put(address, Some(stream)),
            }
        }
        if waits && !early {
            done(world.app(|machine| machine.stream_synchronize(stream)));
        }
        if self.random.one_in(8) {
            let _ = world.ask(|allocator| allocator.stream_release(Stream(stream)));
        }
        world.app(|machine| machine.stream_destroy(stream).unwrap());
        late.into_iter().for_each(|address| world.put(address, None));
    }

    /// Blocks of one stream, whose use by another one is declared, are freed. Then both allocate that size again.
    pub(super) fn share_declared(&mut self) {
        let (first, second) = (self.stream(), self.stream());
        let (size, count) = (self.random.size(self.world.largest), 1 + self.random.below(6));
        let mut blocks: Vec<u64> = (0..count).map(|_| self.world.get(size, 0, Some(first))).collect();
        blocks.retain(|address| *address != 0);
        for &address in &blocks {
            self.launch(first, &[(address, size)]);
        }
        if self.order(first, second) {
            for &address in &blocks {
                self.declared_range((address, size), second);
            }
        }
        for address in blocks {
            let ordered = !self.random.one_in(4);
            self.world.put(address, ordered.then_some(first));
        }
        match self.random.below(3) {
            0 => [first, second].into_iter().for_each(|stream| {
                done(self.world.app(|machine| machine.stream_synchronize(stream)));
            }),
            1 => self.world.machine.advance(50_000),
            _ => {}
        }
        for stream in [second, first, second, first] {
            let address = self.world.get(size, 0, Some(stream));
            if address != 0 {
                self.launch(stream, &[(address, size)]);
                self.world.put(address, Some(stream));
            }
        }
    }
}
