//! One thread's work: a correct client, which orders all uses of a block behind one another and before its free.

pub mod allocators;
mod away;
mod growth;
mod late;
mod misuse;
mod requests;
mod surroundings;

use std::collections::VecDeque;

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::driver::Stream;
use trtalloc::tags;

use allocators::OwnAllocator;
use away::Away;

use super::graphs::{Capture, Graph};
use super::random::Random;
use super::world::{Parcel, World, done};

/// The maximum of blocks that a thread holds.
const MAX_BLOCKS: usize = 48;
/// Under which clients allocate some blocks.
const TAGS: [&str; 3] = ["first model", "second model", "third model"];

/// A block that the client holds.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    pub address: u64,
    pub size: u64,
    pub resizable: bool,
    /// The stream whose work follows all uses of the block so far, except declared ones.
    pub home: usize,
    /// How many graphs use it although it was not allocated in them.
    pub pins: u32,
    /// The stream that it was allocated on, if that is the client's and still exists.
    pub born: Option<usize>,
}

pub struct Client<'w> {
    pub world: &'w World,
    pub random: Random,
    /// The index of the context that is current to this thread.
    pub context: usize,
    /// The client's own streams.
    pub streams: Vec<usize>,
    pub blocks: Vec<Block>,
    pub graphs: Vec<Graph>,
    pub capture: Option<Capture>,
    /// Engines that were loaded without a stream, oldest first.
    engines: VecDeque<Vec<u64>>,
    /// Blocks that are freed on the stream that they were allocated on, after its end.
    late: Vec<(u64, usize)>,
    /// Blocks on streams of other contexts.
    away: Vec<Away>,
    /// Blocks of another device, and the stream that uses them.
    far: Vec<(u64, u64, usize)>,
    /// Contexts of the client's, in which it has freed a block.
    visited: Vec<usize>,
    /// An allocator of the client's own.
    own: Option<OwnAllocator>,
}

impl<'w> Client<'w> {
    /// A client in a context of the world. Makes the context current to the thread.
    pub fn new(world: &'w World, context: usize, seed: u64) -> Client<'w> {
        let mut client = Client {
            world,
            random: Random::new(seed),
            context,
            streams: Vec::new(),
            blocks: Vec::new(),
            graphs: Vec::new(),
            capture: None,
            engines: VecDeque::new(),
            late: Vec::new(),
            away: Vec::new(),
            far: Vec::new(),
            visited: Vec::new(),
            own: None,
        };
        client.enter();
        (0..world.most_streams / 3).for_each(|_| client.open_stream());
        client
    }

    /// Makes its context current to the thread until `leave`. Each step and `finish` need that.
    pub fn enter(&self) {
        let context = self.world.contexts[self.context].handle;
        self.world.app(|machine| machine.context_push(context).unwrap());
    }

    pub fn leave(&self) {
        self.world.app(|machine| machine.context_pop().unwrap());
    }

    pub fn device(&self) -> i32 {
        self.world.contexts[self.context].device
    }

    /// A stream to work on that does not capture: its own, a shared or a default one.
    pub fn stream(&mut self) -> usize {
        let shared = &self.world.contexts[self.context].streams;
        let stream = match self.random.below(16) {
            // A program that uses the legacy stream beside captures of other threads ends them itself.
            0 if self.world.spares_captures => Some(2),
            0 if self.world.away && self.rarely(4) => Some(1),
            0 => Some(if self.random.one_in(2) { 0 } else { 2 }),
            1..=3 => self.random.pick(shared),
            _ => self.random.pick(&self.streams),
        };
        stream.filter(|stream| !self.captures(*stream)).unwrap_or(shared[0])
    }

    fn captures(&self, stream: usize) -> bool {
        self.capture.as_ref().is_some_and(|capture| capture.has(stream))
    }

    /// The index of a block whose home does not capture and that no graph needs.
    pub fn block(&mut self) -> Option<usize> {
        let at = self.random.below(self.blocks.len().max(1) as u64) as usize;
        let block = self.blocks.get(at)?;
        (!self.captures(block.home) && block.pins == 0).then_some(at)
    }

    /// Whether to do something that only a broad round does, which happens once in so many times.
    pub fn rarely(&mut self, times: u64) -> bool {
        self.world.broad && self.random.one_in(times)
    }

    pub fn launch(&mut self, stream: usize, ranges: &[(u64, u64)]) -> bool {
        // Longer than most requests wait.
        let longest = if self.rarely(64) { 20_000_000 } else { 200_000 };
        let duration = self.random.below(longest);
        done(self.world.app(|machine| machine.launch(stream, duration, ranges)))
    }

    /// Orders `then` behind all work of `first` so far. Returns whether that succeeded.
    pub fn order(&self, first: usize, then: usize) -> bool {
        self.world.app(|machine| {
            let event = machine.event_create().unwrap();
            let ordered = done(machine.event_record(event, first)) && done(machine.stream_wait_event(then, event));
            machine.event_destroy(event).unwrap();
            ordered
        })
    }

    /// One operation.
    pub fn step(&mut self) {
        let passed = self.random.below(20_000);
        self.world.machine.advance(passed);
        if passed.is_multiple_of(256) {
            self.world.ask(Allocator::end_window);
        }
        if self.world.engines && self.random.one_in(64) {
            return self.load_or_unload();
        }
        if self.capture.is_some() && self.random.one_in(2) {
            return self.capture_step();
        }
        if self.rarely(12) {
            return self.broad_step();
        }
        match self.random.below(1000) {
            0..300 => self.allocate(true, 0),
            300..350 => self.allocate(false, 0),
            350..590 => self.free(),
            590..710 => self.use_some(),
            710..745 => self.migrate(),
            745..760 => self.declare(),
            760..785 => self.send(),
            785..820 => self.receive(),
            820..835 => self.open_stream(),
            835..850 => self.close_stream(),
            850..880 => {
                let ordered = self.random.one_in(2);
                match self.random.one_in(4) {
                    true => self.grow_behind_another(),
                    false => self.allocate(ordered, RESIZABLE),
                }
            }
            880..915 => self.resize(),
            915..925 => self.begin_capture(),
            925..945 => self.launch_graph(),
            945..955 => self.drop_graph(),
            955..970 => self.wait(),
            970..976 => self.release(),
            976..980 => self.allocate_by_device(),
            980..990 => self.inspect(),
            990..994 if !self.world.spares_captures => self.trim_or_limit(),
            990..994 => {}
            994..998 => self.inject_failures(),
            998 if self.random.one_in(2) => match self.random.one_in(2) {
                true => self.use_short_lived_thread(),
                false => self.use_thread_without_context(),
            },
            998 => self.inject_failures(),
            _ => self.use_short_lived_context(),
        }
        while self.blocks.len() > MAX_BLOCKS {
            let before = self.blocks.len();
            self.free();
            if self.blocks.len() == before {
                break;
            }
        }
    }

    fn broad_step(&mut self) {
        match self.random.below(112) {
            0..16 => self.allocate_away(),
            16..32 => self.use_or_free_away(),
            32..40 => self.lend(),
            40..44 => self.use_in_primary(),
            44..48 => self.free_late(),
            48..52 => self.visit(),
            52..60 => self.use_far_block(),
            60..80 => self.use_own_allocator(),
            80..84 => self.keep_spare(),
            84..94 => self.administer(),
            94..100 => self.misuse(),
            100..103 => self.serve_on_new_streams(),
            103 => self.use_short_lived_threads(),
            104..109 => self.share_declared(),
            _ => self.abandon_allocator(),
        }
    }

    fn allocate(&mut self, ordered: bool, flags: u32) {
        let home = self.stream();
        let size = self.random.size(self.world.largest);
        let alignment = if self.random.one_in(8) {
            1 << self.random.below(22)
        } else {
            0
        };
        let tag = self.random.one_in(8).then(|| self.tag());
        let stream = ordered.then_some(home);
        let address = match tag {
            Some(tag) if self.rarely(2) => {
                let request = Request {
                    size,
                    alignment,
                    flags,
                    stream: stream.map(Stream),
                    device: None,
                };
                // As a named adapter does.
                let tag = tags::intern(tag).expect("there are few tags");
                self.world.get_of(&self.world.allocator, &request, tag)
            }
            tag => {
                tags::set(tag).expect("there are few tags");
                let address = self.world.get_aligned(size, alignment, flags, stream);
                tags::set(None).expect("there is always no tag");
                address
            }
        };
        if address == 0 {
            return;
        }
        self.blocks.push(Block {
            address,
            size,
            resizable: flags == RESIZABLE,
            home,
            pins: 0,
            born: stream,
        });
        if !self.random.one_in(4) {
            self.launch(home, &[(address, size)]);
        }
    }

    /// One of the tags under which the clients allocate.
    fn tag(&mut self) -> &'static str {
        self.random.pick(&TAGS).expect("there are tags")
    }

    /// Loads an engine without a stream and uses it, or unloads the oldest one.
    fn load_or_unload(&mut self) {
        if self.engines.len() > 2 || self.random.one_in(3) {
            let oldest = self.engines.pop_front().unwrap_or_default();
            return oldest.into_iter().for_each(|block| self.world.put(block, None));
        }
        let home = self.stream();
        let mut engine = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let size = match self.random.one_in(4) {
                true => self.world.largest + self.random.below(self.world.largest),
                false => self.random.size(self.world.largest),
            };
            let address = self.world.get(size, 0, None);
            if address != 0 {
                self.launch(home, &[(address, size)]);
                engine.push(address);
            }
        }
        self.engines.push_back(engine);
    }

    fn free(&mut self) {
        if let Some(at) = self.block() {
            let block = self.blocks.swap_remove(at);
            let ordered = !self.random.one_in(7);
            self.world.put(block.address, ordered.then_some(block.home));
        }
    }

    /// A kernel that uses a few blocks of one home.
    fn use_some(&mut self) {
        let Some(at) = self.block() else { return };
        let home = self.blocks[at].home;
        let ranges: Vec<(u64, u64)> = self
            .blocks
            .iter()
            .filter(|block| block.home == home)
            .take(3)
            .map(|block| (block.address, block.size))
            .collect();
        self.launch(home, &ranges);
    }

    fn migrate(&mut self) {
        let (Some(at), then) = (self.block(), self.stream()) else {
            return;
        };
        if self.order(self.blocks[at].home, then) {
            self.blocks[at].home = then;
            let Block { address, size, .. } = self.blocks[at];
            self.launch(then, &[(address, size)]);
        }
    }

    /// Uses a block on another stream than the one it will be freed on.
    fn declare(&mut self) {
        let other = match self.random.one_in(4) {
            true => self.foreign_stream(),
            false => self.stream(),
        };
        let Some(at) = self.block() else { return };
        if self.order(self.blocks[at].home, other) {
            self.declared(at, other);
        }
    }

    /// Makes the use itself, behind the block's other uses.
    pub fn declared(&mut self, at: usize, other: usize) {
        let Block { address, size, .. } = self.blocks[at];
        self.declared_range((address, size), other);
    }

    fn declared_range(&mut self, (address, size): (u64, u64), other: usize) {
        // The declaration comes first: if it fails, there must be no use.
        if self
            .world
            .ask(|allocator| allocator.record_stream(address, Stream(other)))
            .is_ok()
        {
            self.launch(other, &[(address, size)]);
            self.world.machine.checker().used(address, other);
        }
    }

    fn send(&mut self) {
        let Some(at) = self.block() else { return };
        let Block {
            address,
            size,
            resizable,
            home,
            ..
        } = self.blocks[at];
        let event = self.world.app(|machine| {
            let event = machine.event_create().unwrap();
            match done(machine.event_record(event, home)) {
                true => Some(event),
                false => {
                    machine.event_destroy(event).unwrap();
                    None
                }
            }
        });
        let Some(event) = event else { return };
        self.blocks.swap_remove(at);
        self.world.mail[self.device() as usize].lock().push(Parcel {
            address,
            size,
            resizable,
            event,
        });
    }

    fn receive(&mut self) {
        let Some(parcel) = self.world.mail[self.device() as usize].lock().pop() else {
            return;
        };
        let home = self.stream();
        let ordered = self.world.app(|machine| {
            let ordered = done(machine.stream_wait_event(home, parcel.event));
            machine.event_destroy(parcel.event).unwrap();
            ordered
        });
        if !ordered || self.random.one_in(5) {
            // This free is safe in any order.
            return self.world.put(parcel.address, None);
        }
        self.launch(home, &[(parcel.address, parcel.size)]);
        self.blocks.push(Block {
            address: parcel.address,
            size: parcel.size,
            resizable: parcel.resizable,
            home,
            pins: 0,
            born: None,
        });
    }

    /// Ends captures and graphs. What the client holds then are blocks.
    pub fn end_graphs(&mut self) {
        self.end_capture();
        while !self.graphs.is_empty() {
            self.drop_graph();
        }
    }

    /// Frees everything.
    pub fn finish(mut self) {
        self.end_graphs();
        for block in std::mem::take(&mut self.engines).into_iter().flatten() {
            self.world.put(block, None);
        }
        self.finish_broad();
        for block in std::mem::take(&mut self.blocks) {
            let ordered = self.random.one_in(2);
            self.world.put(block.address, ordered.then_some(block.home));
        }
        for stream in std::mem::take(&mut self.streams) {
            if !self.world.trusted {
                self.world.app(|machine| machine.stream_destroy(stream).unwrap());
            }
        }
        self.leave();
    }

    /// Ends everything but the blocks that it returns.
    pub fn leave_blocks(mut self) -> Vec<u64> {
        self.end_graphs();
        self.finish_broad();
        let blocks = std::mem::take(&mut self.blocks);
        let engines = std::mem::take(&mut self.engines).into_iter().flatten();
        let left = blocks.iter().map(|block| block.address).chain(engines).collect();
        self.leave();
        left
    }

    fn finish_broad(&mut self) {
        while !self.late.is_empty() {
            self.free_late();
        }
        while !self.away.is_empty() {
            self.free_away();
        }
        for (address, _, stream) in std::mem::take(&mut self.far) {
            let ordered = self.random.one_in(2);
            self.world.put(address, ordered.then_some(stream));
        }
        self.finish_own_allocator();
        self.end_visits();
    }
}
