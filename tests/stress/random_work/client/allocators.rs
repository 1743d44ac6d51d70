//! A client's own allocator: over the same driver and the same streams as the round's, with other options or the same ones. It
//! is closed with blocks in use, and its memory goes back with the last of them.

use std::sync::Arc;

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::{Config, Kind};
use trtalloc::driver::Stream;
use trtalloc::error::Error;

use super::super::machine::Machine;
use super::super::world::{World, done};
use super::Client;

/// The most blocks in it.
const MOST: usize = 12;
/// The most closed allocators whose memory may wait for work.
const CLOSED: usize = 6;
/// Bytes of an allocator over memory of the application's.
const GIVEN: u64 = 16 << 20;

/// Nanoseconds of work that outlasts every `wait_ms` here.
const PENDING: u64 = 20_000_000;

const OPTIONS: [&str; 8] = [
    "wait_ms=2",
    "wait_ms=0",
    "wait_ms=2,limit=64MiB",
    "wait_ms=2,release_threshold=0",
    "wait_ms=2,backing=malloc",
    "wait_ms=2,guard=1",
    "wait_ms=2,reserve=32MiB",
    "wait_ms=2,passthrough=1",
];

pub(super) struct OwnAllocator {
    allocator: Arc<Allocator>,
    /// Address, size and home.
    pub(super) blocks: Vec<(u64, u64, usize)>,
    closed: bool,
}

impl Client<'_> {
    pub(super) fn use_own_allocator(&mut self) {
        let Some(own) = &self.own else {
            self.own = self.open_own_allocator();
            return;
        };
        let (allocator, closed, count) = (own.allocator.clone(), own.closed, own.blocks.len());
        match self.random.below(16) {
            0..8 if !closed => self.allocate_own(&allocator),
            // No capture may end, and a close may end one.
            8 if !closed && !self.world.spares_captures => {
                assert_eq!(allocator.validate(), Ok(()));
                self.world.ask_of(&allocator, Allocator::close);
                self.own.iter_mut().for_each(|own| own.closed = true);
            }
            9..11 if closed => {
                let request = own_request(4096, 0, None);
                let outcome = self.world.ask_of(&allocator, |allocator| allocator.allocate(request));
                assert!(outcome.is_err(), "a closed allocator returned {outcome:x?}");
            }
            11 => {
                let device = Some(self.device());
                let _ = self
                    .world
                    .ask_of(&allocator, |allocator| match self.world.spares_captures {
                        true => allocator.stats(device).map(drop),
                        false => allocator.trim(device, 0).map(drop),
                    });
            }
            12 if count > 0 => {
                let at = self.random.below(count as u64) as usize;
                self.move_own(at);
            }
            _ if count > 0 => {
                let at = self.random.below(count as u64) as usize;
                self.free_own(at);
            }
            _ if closed => self.leave_own_allocator(),
            _ => {}
        }
    }

    fn open_own_allocator(&mut self) -> Option<OwnAllocator> {
        if self.world.closed.lock().len() >= CLOSED {
            self.close_again();
            return None;
        }
        let main = &self.world.allocator;
        let same = self.random.one_in(3) || self.world.spares_captures;
        let options = match self.random.pick(&OPTIONS) {
            Some(options) if !same => options,
            _ => self.world.options.as_str(),
        };
        let pinned = main.config().kind == Kind::Pinned;
        let given = !same && !pinned && self.random.one_in(4);
        let options = match (same, given) {
            (true, _) => format!("decay_ms=0,{options}"),
            (_, true) => "decay_ms=0,wait_ms=2".to_owned(),
            _ if self.world.trusted => format!("decay_ms=0,streams=trusted,{options}"),
            _ => format!("decay_ms=0,{options}"),
        };
        let config = Config::parse(&options).expect("these options are used elsewhere, too");
        let driver = main.driver().clone();
        let allocator = if given {
            let base = self.world.app(|machine| machine.memory_malloc(GIVEN)).ok()?;
            self.world.bases.lock().push((self.context, base));
            self.world
                .app(|_| Allocator::over_with_driver(driver, base, GIVEN, config))
        } else {
            self.world.app(|_| Allocator::with_driver(driver, config))
        };
        let allocator = allocator.expect("the options are possible");
        // The pool is made here. While no books exist, a call that is refused twice may lose a page.
        let _ = self.world.app(|_| {
            let block = allocator.allocate(own_request(512, 0, None));
            block.and_then(|block| allocator.deallocate(block, None))
        });
        Some(OwnAllocator {
            allocator,
            blocks: Vec::new(),
            closed: false,
        })
    }

    fn allocate_own(&mut self, allocator: &Allocator) {
        let home = self.stream();
        let size = self.random.size(self.world.largest.min(8 << 20));
        let flags = if self.random.one_in(8) { RESIZABLE } else { 0 };
        let stream = (!self.random.one_in(4)).then_some(home);
        let address = self.world.get_of(allocator, &own_request(size, flags, stream), 0);
        if address != 0 {
            self.launch(home, &[(address, size)]);
            let blocks = self.own.iter_mut().map(|own| &mut own.blocks);
            blocks.for_each(|blocks| blocks.push((address, size, home)));
        }
        let count = self.own.as_ref().map_or(0, |own| own.blocks.len());
        if count > MOST {
            self.free_own(0);
        }
    }

    /// Moves a block to another stream, or declares it for that one.
    fn move_own(&mut self, at: usize) {
        let then = self.stream();
        let Some(own) = &self.own else { return };
        let ((address, size, home), allocator) = (own.blocks[at], own.allocator.clone());
        if self.captures(home) || !self.order(home, then) {
            return;
        }
        if self.random.one_in(2) {
            self.launch(then, &[(address, size)]);
            self.own.iter_mut().for_each(|own| own.blocks[at].2 = then);
        } else {
            // The declaration comes first: if it fails, there must be no use.
            let declared = |allocator: &Allocator| allocator.record_stream(address, Stream(then));
            if self.world.ask_of(&allocator, declared).is_ok() {
                self.launch(then, &[(address, size)]);
                self.world.machine.checker().used(address, then);
            }
        }
    }

    fn free_own(&mut self, at: usize) {
        let Some(own) = &self.own else { return };
        let (address, _, home) = own.blocks[at];
        let allocator = own.allocator.clone();
        if self.captures(home) {
            return;
        }
        if let Some(own) = &mut self.own {
            own.blocks.swap_remove(at);
        }
        // Without a stream, the block waits for the contexts that have used this allocator, and not for others. All its uses
        // are behind one another on its home, or declared.
        self.world.machine.checker().give_back(address, Some(home));
        let ordered = !self.random.one_in(3);
        self.world.put_known(&allocator, address, ordered.then_some(home));
    }

    /// The allocator is closed and has no block. Its memory may wait for work.
    fn leave_own_allocator(&mut self) {
        if let Some(own) = self.own.take() {
            self.world.closed.lock().push(own.allocator);
        }
    }

    pub(super) fn finish_own_allocator(&mut self) {
        while self.own.as_ref().is_some_and(|own| !own.blocks.is_empty()) {
            self.free_own(0);
        }
        // The end of the round closes it.
        self.leave_own_allocator();
    }

    /// An allocator is closed while work on what it freed is pending, which lasts longer than it waits.
    pub(super) fn abandon_allocator(&mut self) {
        // No capture may end, and a close may end one.
        if self.world.spares_captures || self.own.is_some() {
            return;
        }
        let Some(OwnAllocator { allocator, .. }) = self.open_own_allocator() else {
            return;
        };
        let mut freed = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let stream = self.stream();
            let size = self.random.size(self.world.largest.min(8 << 20));
            let named = (!self.random.one_in(4)).then_some(stream);
            let address = self.world.get_of(&allocator, &own_request(size, 0, named), 0);
            if address != 0 {
                let work = |machine: &Machine| machine.launch(stream, PENDING, &[(address, size)]);
                done(self.world.app(work));
                freed.push((address, stream));
            }
        }
        for (address, stream) in freed {
            // See `free_own`.
            self.world.machine.checker().give_back(address, Some(stream));
            let ordered = !self.random.one_in(3);
            self.world.put_known(&allocator, address, ordered.then_some(stream));
        }
        self.world.ask_of(&allocator, Allocator::close);
        self.world.closed.lock().push(allocator);
    }

    /// Gives back what has completed of an allocator that was closed before.
    fn close_again(&mut self) {
        if self.world.spares_captures {
            return;
        }
        let oldest = self.world.closed.lock().pop();
        if let Some(allocator) = oldest
            && !is_gone(self.world, &allocator)
        {
            self.world.closed.lock().insert(0, allocator);
        }
    }
}

/// Closes an allocator again. Returns whether it has nothing left.
pub fn is_gone(world: &World, allocator: &Allocator) -> bool {
    let gone = |device| {
        world.ask_of(allocator, |allocator| {
            matches!(allocator.trim(Some(device), 0), Err(Error::Dead(_)))
        })
    };
    world.ask_of(allocator, Allocator::close);
    let pools = allocator.stats_of_all().count();
    (0..world.mail.len() as i32).filter(|device| gone(*device)).count() == pools
}

fn own_request(size: u64, flags: u32, stream: Option<usize>) -> Request {
    Request {
        size,
        alignment: 0,
        flags,
        stream: stream.map(Stream),
        device: None,
    }
}
