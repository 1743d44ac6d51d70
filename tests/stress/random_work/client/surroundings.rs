//! What a client does besides using its blocks: its streams, waits, limits, other processes and failing calls.

use std::sync::atomic::Ordering::Relaxed;

use trtalloc::allocator::Allocator;
use trtalloc::driver::Stream;

use super::super::machine::functions::{Call, CallKind};
use super::super::world::{carved, done};

use super::Client;
use super::late::Lateness;

impl Client<'_> {
    pub(super) fn open_stream(&mut self) {
        if self.streams.len() < self.world.most_streams {
            let non_blocking = !self.random.one_in(4);
            let stream = self.world.app(|machine| machine.stream_create(non_blocking).unwrap());
            self.streams.push(stream);
            self.world.counts.streams.fetch_add(1, Relaxed);
        }
    }

    /// Destroys a stream with work pending. Its blocks are freed before, moved to another stream before, or freed after
    /// without a stream.
    pub(super) fn close_stream(&mut self) {
        if self.world.trusted || self.streams.len() < 3 {
            return;
        }
        let at = self.random.below(self.streams.len() as u64) as usize;
        let dying = self.streams[at];
        let heir = self.streams[(at + 1) % self.streams.len()];
        if self.captures(dying) || self.captures(heir) || !self.order(dying, heir) {
            return;
        }
        self.streams.swap_remove(at);
        let lateness = self.lateness(dying);
        let mut after = Vec::new();
        let mut remaining = Vec::new();
        for mut block in std::mem::take(&mut self.blocks) {
            let born_there = block.born == Some(dying);
            if born_there {
                // The handle may come back as another stream.
                block.born = None;
            }
            if block.home != dying {
                remaining.push(block);
                continue;
            }
            if lateness != Lateness::None && born_there && block.pins == 0 && self.random.one_in(2) {
                self.give_back_late(block.address, dying);
                continue;
            }
            match self.random.below(3) {
                0 if block.pins == 0 => self.world.put(block.address, Some(dying)),
                1 if block.pins == 0 => after.push(block.address),
                _ => {
                    block.home = heir;
                    remaining.push(block);
                }
            }
        }
        self.blocks = remaining;
        self.inherit(dying, heir);
        for graph in self.graphs.iter_mut().filter(|graph| graph.home == dying) {
            graph.home = heir;
        }
        if self.random.one_in(4) {
            let _ = self.world.ask(|allocator| allocator.stream_release(Stream(dying)));
        }
        // Blocks freed on it since `order` are not used any more.
        self.world.app(|machine| machine.stream_destroy(dying).unwrap());
        for address in after {
            self.world.put(address, None);
        }
        if lateness == Lateness::AtOnce {
            // Before any other stream can have the handle.
            while self.late.last().is_some_and(|(_, stream)| *stream == dying) {
                self.free_late();
            }
        }
    }

    pub(super) fn wait(&mut self) {
        let stream = self.stream();
        match self.random.below(4) {
            0 => {
                done(self.world.app(|machine| machine.stream_synchronize(stream)));
            }
            1 => self.world.machine.advance(2_000_000),
            2 => {
                let event = self.world.app(|machine| machine.event_create().unwrap());
                let recorded = done(self.world.app(|machine| machine.event_record(event, stream)));
                if recorded {
                    done(self.world.app(|machine| machine.event_query(event)));
                }
                self.world.app(|machine| machine.event_destroy(event).unwrap());
            }
            _ => self.world.machine.advance(100_000),
        }
    }

    pub(super) fn release(&mut self) {
        if !self.world.trusted {
            let stream = self.stream();
            let _ = self.world.ask(|allocator| allocator.stream_release(Stream(stream)));
        }
    }

    /// A stream of any context of this device, or of the thread's own context where threads use only their own streams.
    pub(super) fn foreign_stream(&mut self) -> usize {
        let device = self.device();
        let own = &self.world.contexts[self.context];
        let near = self.world.contexts.iter().filter(|context| match self.world.crossing {
            true => context.device == device,
            false => context.handle == own.handle,
        });
        let streams: Vec<usize> = near.flat_map(|context| context.streams.clone()).collect();
        self.random
            .pick(&streams)
            .expect("the client's own context has streams")
    }

    /// Allocates memory of a device by its number. Another device's memory is used where the options allow it.
    pub(super) fn allocate_by_device(&mut self) {
        let stream = self.stream();
        let device = self.random.below(self.world.mail.len() as u64) as i32;
        let request = trtalloc::allocator::Request {
            size: self.random.size(self.world.largest),
            alignment: 0,
            flags: 0,
            stream: Some(Stream(stream)),
            device: Some(device),
        };
        let Ok(address) = self.world.ask(|allocator| allocator.allocate(request)) else {
            return;
        };
        let own = (device == self.device()).then_some(stream);
        self.world
            .machine
            .checker()
            .hand_out(address, carved(request.size), own);
        if own.is_some() || self.world.peers {
            self.launch(stream, &[(address, request.size)]);
        }
        let ordered = self.random.one_in(2);
        self.world.put(address, ordered.then_some(stream));
    }

    pub(super) fn inspect(&mut self) {
        self.world.check();
        let device = self.random.below(self.world.mail.len() as u64) as i32;
        let (free, total) = self.world.app(|machine| machine.memory_info(device)).unwrap();
        if free < total / 4 {
            self.world.crowded.store(true, Relaxed);
        }
        if let Ok(stats) = self.world.ask(|allocator| allocator.stats(Some(device))) {
            assert!(stats.allocations >= stats.frees, "{stats:?}");
        }
        if self.random.one_in(50) {
            self.world.allocator.validate().unwrap();
        }
        if self.random.one_in(50) {
            // With nothing recorded it has the state alone.
            self.world.ask(Allocator::snapshot).unwrap();
        }
    }

    pub(super) fn trim_or_limit(&mut self) {
        let device = Some(self.device());
        let bytes = (self.random.below(9) + 1) * (64 << 20);
        let which = self.random.below(7);
        if which > 4 {
            return self.change_other_processes();
        }
        let tag = self.tag();
        let _ = self.world.ask(|allocator| match which {
            0 => allocator.trim(device, bytes).map(drop),
            1 => allocator.trim(device, 0).map(drop),
            2 => allocator.set_limit(device, 0),
            3 => allocator.set_tag_limit(device, tag, bytes % 5 * (16 << 20)),
            _ => allocator.set_limit(device, bytes),
        });
    }

    /// Lets other processes take a part of the device, take all that is free, or return it.
    pub(super) fn change_other_processes(&mut self) {
        let device = self.device();
        let bytes = match self.random.below(4) {
            0 if self.world.failures => u64::MAX,
            1 => self.random.below(1536 << 20),
            _ => 0,
        };
        self.world.app(|machine| machine.others_hold(device, bytes).unwrap());
    }

    /// Makes driver calls fail: the n-th of a name, or each of a name for a while.
    pub(super) fn inject_failures(&mut self) {
        if !self.world.failures {
            return;
        }
        let machine = &self.world.machine;
        match self.random.below(8) {
            0..3 => machine.clear_failures(),
            kind => {
                let calls: Vec<Call> = Call::ALL.to_vec();
                let call = self.random.pick(&calls).expect("there are calls");
                let code = self.random.pick(&[2, 2, 1, 999]).expect("there are codes");
                let n = 1 + self.random.below(12);
                if call.kind() == CallKind::Application {
                    machine.fail_nth(None, n, code);
                } else if kind == 3 && call != Call::CtxPop {
                    machine.fail_every(Some(call.name()), 1 + n % 3, code);
                } else {
                    machine.fail_nth(Some(call.name()), n, code);
                }
            }
        }
    }
}
