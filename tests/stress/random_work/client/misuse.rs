//! Requests that no allocator can satisfy, calls that are wrong, and calls that change an allocator while others use it.

use trtalloc::allocator::{Allocator, Request};
use trtalloc::driver::Stream;

use super::super::world::Spare;
use super::Client;

impl Client<'_> {
    /// A request or a call that must be refused, and does no harm.
    pub(super) fn misuse(&mut self) {
        let stream = self.stream();
        let on = self.random.one_in(2).then_some(Stream(stream));
        let request = |size, alignment, device| Request {
            size,
            alignment,
            flags: 0,
            stream: on,
            device,
        };
        let device = self.device();
        let (_, total) = self.world.app(|machine| machine.memory_info(device)).unwrap();
        let large = [
            u64::MAX,
            u64::MAX - 511,
            1 << 63,
            (1 << 47) + 1,
            1 << 47,
            total + 1,
            2 * total,
        ];
        let refused = match self.random.below(8) {
            0 => request(0, 0, None),
            1 => request(512, 3, None),
            2 => request(512, 4 << 20, None),
            3 => request(512, 0, Some(self.world.mail.len() as i32)),
            4 => request(512, 0, Some(-7)),
            // A request that finds no memory may end a capture. The host may have more than a device.
            5 | 6 if !self.world.spares_captures && !self.world.is_pinned() => {
                let size = self.random.pick(&large).expect("there are sizes");
                request(size, 0, None)
            }
            _ => return self.misuse_block(),
        };
        let outcome = self.world.ask(|allocator| allocator.allocate(refused));
        assert!(outcome.is_err(), "{refused:?} came to {outcome:x?}");
    }

    /// A call with an address inside a block, or with one that is no block's.
    fn misuse_block(&mut self) {
        let inside = self.random.pick(&self.blocks).map(|block| block.address + 1);
        let address = inside.filter(|_| !self.random.one_in(4)).unwrap_or(0x1234_5000);
        let stream = Stream(self.stream());
        let which = self.random.below(5);
        let refused = self.world.ask(|allocator| match which {
            0 => allocator.deallocate(address, None).is_err(),
            1 => allocator.deallocate(address, Some(stream)).is_err(),
            2 => allocator.record_stream(address, stream).is_err(),
            3 => allocator.reallocate(address, 0, 4096).is_err(),
            _ => allocator.allocate_for(&zero(stream), 0).is_err(),
        });
        assert!(refused, "call {which} with {address:#x} was accepted");
    }

    /// Keeps a block that the out-of-memory handler may free.
    pub(super) fn keep_spare(&mut self) {
        let device = self.device();
        if self.world.spare.0.lock().len() < Spare::MOST
            && let Some(at) = self.block()
        {
            let block = self.blocks.swap_remove(at);
            self.world.spare.0.lock().push((device, block.address));
        }
    }

    /// What a program, or `trtalloc ctl` beside it, may do at any time.
    pub(super) fn administer(&mut self) {
        let device = self.device();
        let which = self.random.below(12);
        let bytes = (self.random.below(9) + 1) * (64 << 20);
        let tag = self.tag();
        let records = self.world.options.contains("history");
        // A limit, and a confirmation, may end a capture.
        let ends = !self.world.spares_captures;
        self.world.ask(|allocator: &Allocator| {
            // Without a pool, or with a failing call, these are refused.
            match which {
                0 => drop(allocator.trim_completed(device, 0, false)),
                1 => drop(allocator.trim_completed(device, bytes / 8, ends)),
                2 if ends => drop(allocator.set_limit_without_wait(device, bytes)),
                3 if ends => drop(allocator.set_limit_without_wait(device, 0)),
                4 if ends => drop(allocator.trim_all(bytes)),
                5 if ends => drop(allocator.set_limit_fraction(Some(device), 0.25)),
                6 => drop(allocator.reset_peaks(Some(device))),
                7 => drop(allocator.metrics()),
                8 => drop(allocator.stats_json(Some(device))),
                9 => drop(allocator.stats_of_tag(Some(device), tag.as_bytes())),
                10 if !records => drop(allocator.history("all,stacks=none,max_entries=500")),
                11 if !records => drop(allocator.history("off")),
                _ => drop(allocator.stats_with_device(Some(device))),
            }
        });
    }
}

fn zero(stream: Stream) -> Request {
    Request {
        size: 0,
        alignment: 0,
        flags: 0,
        stream: Some(stream),
        device: None,
    }
}
