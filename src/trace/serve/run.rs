//! Runs a workload on a simulated device.
//!
//! One thread of the host makes the calls of all clients, in simulated time: the next call is of the client that has
//! been ready for longest. A stream's client is ready for a request once the request `ahead` places before it has
//! completed, also where another stream uses its blocks. So every run is the same, and a call's time delays every
//! client, as behind a driver's lock.

use std::collections::VecDeque;

use super::figures::{Figures, Progress};
use super::workload::{Client, Step};
use super::{Computer, Graph, Memory};
use crate::allocator::{RESIZABLE, Request, WINDOWS};
use crate::driver::Stream;
use crate::support::error::{Error, Result};

/// A block and its size.
type Place = (u64, u64);

/// A client as it runs.
struct Running<'a> {
    client: &'a Client,
    stream: Stream,
    next: usize,
    /// When the next request may begin.
    ready: u64,
    /// When the requests complete that the host has not waited for.
    queued: VecDeque<u64>,
    blocks: Vec<Option<Place>>,
    graph: Option<Graph>,
    capturing: bool,
    /// When another stream has used what this one passed to it.
    passed: u64,
    progress: Progress,
}

impl Running<'_> {
    fn is_over(&self) -> bool {
        self.next == self.client.requests.len()
    }
}

/// A run of one workload.
pub struct Run<'a, C> {
    computer: &'a C,
    /// `None` runs the work alone, without memory.
    allocator: Option<&'a dyn Memory>,
    ahead: usize,
    warm: usize,
    clients: Vec<Running<'a>>,
    figures: Figures,
    measured: bool,
    /// The length of a window of `decay_ms` in simulated nanoseconds, and when this one ends.
    window: Option<(u64, u64)>,
}

impl<'a, C: Computer> Run<'a, C> {
    /// A run of `clients`, of whose requests the first `warm` are not measured. The host queues `ahead` requests of a
    /// stream before it waits for the first of them.
    ///
    /// # Errors
    ///
    /// The driver's, where a stream cannot be created.
    pub fn new(
        computer: &'a C,
        allocator: Option<&'a dyn Memory>,
        clients: &'a [Client],
        ahead: usize,
        warm: usize,
    ) -> Result<Run<'a, C>> {
        let running = |client| {
            Ok(Running {
                client,
                stream: computer.create_stream()?,
                next: 0,
                ready: 0,
                queued: VecDeque::new(),
                blocks: vec![None; client.blocks],
                graph: None,
                capturing: false,
                passed: 0,
                progress: Progress::default(),
            })
        };
        Ok(Run {
            computer,
            allocator,
            ahead,
            warm,
            clients: clients.iter().map(running).collect::<Result<_>>()?,
            figures: Figures::default(),
            measured: false,
            window: None,
        })
    }

    /// The same, where memory that is idle for so many simulated milliseconds goes back; 0: none.
    pub fn with_decay(mut self, milliseconds: u64) -> Run<'a, C> {
        let window = milliseconds * 1_000_000 / WINDOWS;
        self.window = (window > 0).then(|| (window, self.computer.now() + window));
        self
    }

    /// Ends a window where its time has come, as the helper thread does.
    fn decay(&mut self) {
        if let (Some((window, end)), Some(allocator)) = (&mut self.window, self.allocator)
            && *end <= self.computer.now()
        {
            *end = self.computer.now() + *window;
            allocator.end_window();
        }
    }

    /// Runs all requests of the streams, then frees what is left.
    ///
    /// # Errors
    ///
    /// What a call of the application or the allocator returned; a refusal for lack of memory is counted instead.
    pub fn run(mut self) -> Result<Figures> {
        let mut last = 0;
        loop {
            let over = |running: &Running| running.client.pause.is_some() || running.is_over();
            if self.clients.iter().all(over) {
                break;
            }
            let count = self.clients.len();
            // Of several that are ready since the same time, the one after the last goes first.
            let order = (0..count).map(|turn| (last + 1 + turn) % count);
            let waiting = order.filter(|&at| !self.clients[at].is_over());
            let Some(next) = waiting.min_by_key(|&at| self.clients[at].ready) else {
                break;
            };
            last = next;
            self.request(next)?;
        }
        self.end()
    }

    fn request(&mut self, at: usize) -> Result<()> {
        let now = self.computer.now();
        self.computer.advance(self.clients[at].ready.saturating_sub(now));
        let streams_are_warm = |running: &Running| running.client.pause.is_some() || running.next >= self.warm;
        let running = &mut self.clients[at];
        if running.queued.len() >= self.ahead {
            running.queued.pop_front();
        }
        self.measured = match running.client.pause {
            Some(_) => self.clients.iter().all(streams_are_warm),
            None => running.next >= self.warm,
        };
        let before = self.computer.calls();
        self.decay();
        let client = self.clients[at].client;
        for step in &client.requests[self.clients[at].next] {
            self.step(at, step)?;
        }
        if self.measured {
            self.figures.add(before, self.computer.calls());
        }
        self.finish_request(at)
    }

    /// Notes when the request completes, and when the next one may begin.
    fn finish_request(&mut self, at: usize) -> Result<()> {
        let (warm, ahead) = (self.warm, self.ahead);
        let running = &mut self.clients[at];
        running.next += 1;
        if let Some(pause) = running.client.pause {
            running.ready = self.computer.now() + pause;
            return Ok(());
        }
        let ends = self.computer.work_ends(running.stream)?;
        // A stream does not run away from the one that uses its blocks.
        running.queued.push_back(ends.max(running.passed));
        running.ready = match running.queued.front() {
            Some(first) if running.queued.len() >= ahead => *first,
            _ => 0,
        };
        if running.next <= warm {
            running.progress = Progress {
                begun: ends,
                ..Progress::default()
            };
        } else {
            self.figures.requests += 1;
        }
        running.progress.ended = ends;
        Ok(())
    }

    fn step(&mut self, at: usize, step: &Step) -> Result<()> {
        let stream = self.clients[at].stream;
        match *step {
            Step::Allocate {
                block,
                bytes,
                resizable,
            } => self.allocate(at, block, bytes, resizable),
            Step::Resize { block, bytes } => self.resize(at, block, bytes),
            Step::Work {
                nanoseconds,
                ref blocks,
            } => {
                let places: Option<Vec<Place>> = blocks.iter().map(|&block| self.clients[at].blocks[block]).collect();
                // A request that was refused memory does no work.
                match places {
                    Some(places) => self.work(at, nanoseconds, &places),
                    None => Ok(()),
                }
            }
            Step::Free { block } => {
                let on = self.clients[at].client.pause.is_none().then_some(stream);
                self.free(at, block, on)
            }
            Step::Pass { block, nanoseconds } => self.pass(at, block, nanoseconds),
            Step::BeginCapture => {
                self.clients[at].capturing = true;
                self.computer.begin_capture(stream)
            }
            Step::EndCapture => {
                self.clients[at].capturing = false;
                self.clients[at].graph = Some(self.computer.end_capture(stream)?);
                Ok(())
            }
            Step::LaunchGraph { nanoseconds } => {
                let running = &mut self.clients[at];
                let Some(graph) = &running.graph else { return Ok(()) };
                running.progress.work += nanoseconds;
                self.computer.launch_graph(graph, stream)
            }
        }
    }

    /// Makes one call of the allocator, and notes how long it took and how much memory there is then.
    fn call<T>(&mut self, call: impl FnOnce(&dyn Memory) -> Result<T>) -> Option<Result<T>> {
        let begun = self.computer.now();
        let result = call(self.allocator?);
        if self.measured {
            let figures = &mut self.figures;
            figures.longest = figures.longest.max(self.computer.now() - begun);
            let memory = self.computer.memory();
            figures.memory = figures.memory.max(memory);
        }
        Some(result)
    }

    /// Counts a refusal; another error ends the run.
    fn refused(&mut self, error: Error) -> Result<()> {
        if !matches!(error, Error::OutOfMemory(_)) {
            return Err(error);
        }
        self.figures.refused += 1;
        self.figures.reason.get_or_insert(error.to_string());
        Ok(())
    }

    fn allocate(&mut self, at: usize, block: usize, size: u64, resizable: bool) -> Result<()> {
        let on = self.clients[at]
            .client
            .pause
            .is_none()
            .then_some(self.clients[at].stream);
        let request = Request {
            size,
            alignment: 0,
            flags: if resizable { RESIZABLE } else { 0 },
            stream: on,
            device: None,
        };
        match self.call(|allocator| allocator.allocate(request)) {
            Some(Ok(address)) => {
                self.computer.handed_out(address, size, on);
                self.clients[at].blocks[block] = Some((address, size));
            }
            Some(Err(error)) => self.refused(error)?,
            None => self.clients[at].blocks[block] = Some((0, size)),
        }
        Ok(())
    }

    fn resize(&mut self, at: usize, block: usize, size: u64) -> Result<()> {
        let Some((old, _)) = self.clients[at].blocks[block] else {
            return Ok(());
        };
        match self.call(|allocator| allocator.reallocate(old, size)) {
            Some(Ok(new)) => {
                self.computer.resized(old, new, size);
                self.clients[at].blocks[block] = Some((new, size));
            }
            Some(Err(error)) => self.refused(error)?,
            None => {}
        }
        Ok(())
    }

    fn work(&mut self, at: usize, nanoseconds: u64, places: &[Place]) -> Result<()> {
        let ranges = if self.allocator.is_some() { places } else { &[] };
        if !self.clients[at].capturing {
            self.clients[at].progress.work += nanoseconds;
        }
        self.computer.work(self.clients[at].stream, nanoseconds, ranges)
    }

    fn free(&mut self, at: usize, block: usize, on: Option<Stream>) -> Result<()> {
        let Some((address, size)) = self.clients[at].blocks[block].take() else {
            return Ok(());
        };
        if self.allocator.is_some() {
            self.computer.giving_back(address, on);
        }
        self.call(|allocator| allocator.deallocate(address, size, on))
            .unwrap_or(Ok(()))
    }

    /// The next stream waits for this one, uses a block of it and frees it.
    fn pass(&mut self, at: usize, block: usize, nanoseconds: u64) -> Result<()> {
        let to = (at + 1) % self.clients.len();
        let (from, stream) = (self.clients[at].stream, self.clients[to].stream);
        self.computer.order(from, stream)?;
        if let Some(place) = self.clients[at].blocks[block] {
            self.work(to, nanoseconds, &[place])?;
            self.clients[at].passed = self.computer.work_ends(stream)?;
        }
        self.free(at, block, Some(stream))
    }

    /// Frees what is left, closes the allocator, and destroys graphs and streams.
    fn end(mut self) -> Result<Figures> {
        self.measured = false;
        self.computer.synchronize()?;
        for at in 0..self.clients.len() {
            if let Some(graph) = self.clients[at].graph.take() {
                self.computer.destroy_graph(graph)?;
            }
            for block in 0..self.clients[at].blocks.len() {
                self.free(at, block, Some(self.clients[at].stream))?;
            }
        }
        // Trusted streams outlive the allocator.
        if let Some(allocator) = self.allocator {
            allocator.close();
        }
        for running in &self.clients {
            self.computer.destroy_stream(running.stream)?;
        }
        let streams = self.clients.iter().filter(|running| running.client.pause.is_none());
        let times = streams.map(|running| running.progress.device_time());
        self.figures.device_time = times.fold(0.0, f64::max);
        self.figures.checked = self.computer.checked();
        self.figures.violations = self.computer.violations();
        Ok(self.figures)
    }
}
