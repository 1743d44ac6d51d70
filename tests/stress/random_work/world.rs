//! The state that the threads of one round share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use trtalloc::allocator::{Allocator, OomHandler, RESIZABLE, Request};
use trtalloc::config::Kind;
use trtalloc::driver::Stream;
use trtalloc::error::Error;
use trtalloc::tags::Tag;

use super::machine::Machine;

/// A context that lives as long as the round.
pub struct Context {
    pub handle: usize,
    pub device: i32,
    /// Streams that every thread in the context uses, and that are never destroyed.
    pub streams: Vec<usize>,
}

/// A block that one thread passes to another.
pub struct Parcel {
    pub address: u64,
    pub size: u64,
    pub resizable: bool,
    /// Recorded after the sender's last use.
    pub event: usize,
}

#[derive(Default)]
pub struct Counts {
    pub allocated: AtomicU64,
    pub refused: AtomicU64,
    /// Refusals that a trim might have cured.
    pub retried: AtomicU64,
    pub resized: AtomicU64,
    /// Resizes that were refused because the work of the block before did not end in time.
    pub waited_in_vain: AtomicU64,
    /// Other requests and resizes that were refused for lack of memory.
    pub starved: AtomicU64,
    /// Resizes of blocks that have no pages of their own.
    pub resized_by_copying: AtomicU64,
    pub captures: AtomicU64,
    pub graphs: AtomicU64,
    pub captures_lost: AtomicU64,
    /// Captures that calls of the allocator ended.
    pub captures_ended: AtomicU64,
    pub contexts: AtomicU64,
    pub threads: AtomicU64,
    pub streams: AtomicU64,
    pub failures: AtomicU64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} allocated, {} refused ({} also after a trim), {} resized ({} without pages of their own), {} graphs, {} captures lost ({} to the allocator), {} streams, {} contexts, {} threads, {} calls failed",
            self.allocated.load(Relaxed),
            self.refused.load(Relaxed),
            self.retried.load(Relaxed),
            self.resized.load(Relaxed),
            self.resized_by_copying.load(Relaxed),
            self.graphs.load(Relaxed),
            self.captures_lost.load(Relaxed),
            self.captures_ended.load(Relaxed),
            self.streams.load(Relaxed),
            self.contexts.load(Relaxed),
            self.threads.load(Relaxed),
            self.failures.load(Relaxed)
        )
    }
}

pub struct World {
    pub machine: Arc<Machine>,
    pub allocator: Arc<Allocator>,
    pub contexts: Vec<Context>,
    /// By device.
    pub mail: Vec<Mutex<Vec<Parcel>>>,
    pub counts: Counts,
    /// Whether streams outlive the allocator and never capture.
    pub trusted: bool,
    pub failures: bool,
    /// Whether one device's memory may be used by the other.
    pub peers: bool,
    pub largest: u64,
    /// Whether short-lived contexts are used.
    pub short_lived: bool,
    /// Whether a thread uses streams of another thread's context.
    pub crossing: bool,
    /// The maximum of threads with a default stream of their own.
    pub max_thread_streams: u64,
    /// The most streams of a client.
    pub most_streams: usize,
    /// Whether engines are loaded and unloaded without a stream.
    pub engines: bool,
    /// Whether the allocator may end no capture. Trims and limits, which may end one, are left out then.
    pub spares_captures: bool,
    /// A device was nearly full once, by all allocators together.
    pub crowded: AtomicBool,
    /// Whether clients do what is in the modules of `client`, too, and capture in more ways. Without it, a seed repeats the
    /// work of earlier versions of this test.
    pub broad: bool,
    /// Whether a stream may be used while another context than its own is current.
    pub away: bool,
    /// Whether a graph may have other graphs as children.
    pub child_graphs: bool,
    /// Whether primary contexts exist throughout.
    pub primaries: bool,
    /// Whether one thread does all the work.
    pub alone: bool,
    /// See [`World::retries_refusals`].
    pub retries: bool,
    /// How many captures run.
    pub capturing: AtomicU64,
    /// The options of the allocator.
    pub options: String,
    /// Blocks that the out-of-memory handler may free.
    pub spare: Arc<Spare>,
    /// Clients' own allocators, which were closed, and whose memory may still wait for work.
    pub closed: Mutex<Vec<Arc<Allocator>>>,
    /// Memory of the driver's malloc under an allocator of `closed`, with its context.
    pub bases: Mutex<Vec<(usize, u64)>>,
}

/// Blocks that are kept for an emergency, by device.
#[derive(Default)]
pub struct Spare(pub Mutex<Vec<(i32, u64)>>);

impl Spare {
    /// The most blocks.
    pub const MOST: usize = 6;

    /// An out-of-memory handler that frees one of the device's spare blocks, and has the request attempted again.
    pub fn handler(self: &Arc<Self>, allocator: &Arc<Allocator>, machine: &Arc<Machine>) -> OomHandler {
        let (spare, allocator, machine) = (self.clone(), Arc::downgrade(allocator), machine.clone());
        Arc::new(move |device, _| {
            let Some(allocator) = allocator.upgrade() else {
                return false;
            };
            let mut blocks = spare.0.lock();
            let Some(at) = blocks.iter().position(|(of, _)| *of == device) else {
                return false;
            };
            let (_, address) = blocks.swap_remove(at);
            drop(blocks);
            machine.checker().give_back(address, None);
            allocator.deallocate(address, None).expect("the block is in use");
            true
        })
    }
}

impl World {
    /// A call of the application itself, which does not fail.
    pub fn app<T>(&self, work: impl FnOnce(&Machine) -> T) -> T {
        let _exempt = self.machine.exempt();
        work(&self.machine)
    }

    /// A call of the allocator. If an injected failure kept it from restoring the application's context, this makes the
    /// context current again.
    pub fn ask<T>(&self, call: impl FnOnce(&Allocator) -> T) -> T {
        self.ask_of(&self.allocator, call)
    }

    /// As [`World::ask`], of any allocator.
    pub fn ask_of<T>(&self, allocator: &Allocator, call: impl FnOnce(&Allocator) -> T) -> T {
        let own = self.app(|machine| machine.context_current());
        let answer = call(allocator);
        self.app(|machine| {
            while machine.context_current() != own {
                machine.context_pop().unwrap();
            }
        });
        answer
    }

    /// Allocates a block for the checker to see. Returns 0 where it is refused.
    pub fn get(&self, size: u64, flags: u32, stream: Option<usize>) -> u64 {
        self.get_aligned(size, 0, flags, stream)
    }

    /// As [`World::get`], with an alignment.
    pub fn get_aligned(&self, size: u64, alignment: u64, flags: u32, stream: Option<usize>) -> u64 {
        let request = Request {
            size,
            alignment,
            flags,
            stream: stream.map(Stream),
            device: None,
        };
        self.get_of(&self.allocator, &request, 0)
    }

    /// As [`World::get`], of any allocator and for a tag of the thread's or of an adapter's own; 0: the thread's.
    pub fn get_of(&self, allocator: &Allocator, request: &Request, tag: Tag) -> u64 {
        match self.ask_of(allocator, |allocator| allocator.allocate_for(request, tag)) {
            Ok(address) => {
                let Request { size, alignment, .. } = *request;
                assert!(address.is_multiple_of(alignment.max(1)), "{address:#x} for {alignment}");
                // The host may write to pinned memory at once, whatever the stream.
                let stream = request.stream.filter(|_| allocator.config().kind == Kind::Device);
                let stream = stream.map(|stream| stream.0);
                // What a block may grow by is judged when it does.
                let resizable = request.flags & RESIZABLE != 0;
                let bytes = if resizable { size } else { carved(size) };
                self.machine.checker().hand_out(address, bytes, stream);
                self.counts.allocated.fetch_add(1, Relaxed);
                address
            }
            Err(error) => {
                self.counts.refused.fetch_add(1, Relaxed);
                if matches!(error, Error::OutOfMemory(_)) {
                    self.counts.starved.fetch_add(1, Relaxed);
                }
                if std::ptr::eq(allocator, &*self.allocator) {
                    self.retry(request, tag, &error);
                }
                0
            }
        }
    }

    pub fn put(&self, address: u64, stream: Option<usize>) {
        self.put_to(&self.allocator, address, stream);
    }

    /// As [`World::put`], to any allocator.
    pub fn put_to(&self, allocator: &Allocator, address: u64, stream: Option<usize>) {
        self.machine.checker().give_back(address, stream);
        self.put_known(allocator, address, stream);
    }

    /// As [`World::put_to`], of a block that was given back for the checker before.
    pub fn put_known(&self, allocator: &Allocator, address: u64, stream: Option<usize>) {
        let stream = stream.map(Stream);
        if let Err(error) = self.ask_of(allocator, |allocator| allocator.deallocate(address, stream)) {
            panic!("{address:#x} on {stream:?} was not freed: {error}");
        }
    }

    /// Resizes a block. Returns its new address, or 0.
    pub fn resize(&self, address: u64, had: u64, size: u64) -> u64 {
        let checker = self.machine.checker();
        // A block with pages of its own keeps its memory when it grows. Otherwise its old memory may be handed out before
        // the call returns.
        let copies = self.allocator.resize_copies(address);
        let keeps = size >= had && !copies;
        let begun = if keeps { None } else { checker.begin_resize(address) };
        let outcome = self.ask(|allocator| allocator.reallocate(address, 0, size));
        match (&outcome, begun) {
            (Ok(new), None) => checker.resize(address, *new, size),
            (Ok(new), begun) => checker.end_resize(begun, *new, size),
            (Err(_), begun) => checker.end_resize(begun, address, had),
        }
        if let Err(Error::OutOfMemory(why)) = &outcome {
            let count = match why.contains("the work that used the memory behind the block") {
                true => &self.counts.waited_in_vain,
                false => &self.counts.starved,
            };
            count.fetch_add(1, Relaxed);
        }
        outcome.map_or(0, |new| {
            self.counts.resized.fetch_add(1, Relaxed);
            self.counts.resized_by_copying.fetch_add(u64::from(copies), Relaxed);
            new
        })
    }

    /// Whether the memory is the host's.
    pub fn is_pinned(&self) -> bool {
        self.allocator.config().kind == Kind::Pinned
    }

    /// Checks that there is no violation so far.
    pub fn check(&self) {
        let (violations, faults) = (self.machine.checker().violations(), self.machine.faults());
        if !violations.is_empty() || !faults.is_empty() {
            let first: Vec<&String> = violations.iter().chain(&faults).take(5).collect();
            panic!("{} violations, {} faults: {first:#?}", violations.len(), faults.len());
        }
    }
}

/// The bytes that a request takes, which are filled with a byte where the options say so.
pub fn carved(size: u64) -> u64 {
    size.next_multiple_of(512)
}

/// Whether a call of the application succeeded. False where a capture, its own or another thread's, forbade it.
pub fn done<T>(result: Result<T, u32>) -> bool {
    match result {
        Ok(_) => true,
        Err(900..=908) => false,
        Err(code) => panic!("a call of the application failed with {code}"),
    }
}
