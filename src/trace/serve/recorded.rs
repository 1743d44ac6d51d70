//! Runs a recorded load on a simulated device.
//!
//! One thread of the host makes all calls, in simulated time. The calls of a stream come in their order, each at the time
//! that the trace has, and a request not before the one `ahead` places before it has completed. The calls for one block
//! come in their order, whichever streams they name. A call without a stream comes after all calls before it in the trace.
//! So the calls that may come next always include the first one in the trace that was not made, and no run gets stuck.
//!
//! The trace is run several times. Blocks that it never frees are allocated in the first pass and stay.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::figures::{Calls, Figures, Progress};
use super::load::{LEAST_WORK, Load};
use super::{Computer, Memory};
use crate::allocator::{RESIZABLE, Request, WINDOWS};
use crate::driver::Stream;
use crate::support::error::{Error, Result};
use crate::trace::{Op, OpKind, rounded};

/// How many rows lie between two reports of progress.
const ROWS_PER_REPORT: u64 = 4096;

/// What was seen in some passes.
#[derive(Debug, Clone, Default)]
pub struct Passes {
    /// The figures of these passes. What was checked and refused counts in all of the run.
    pub figures: Figures,
    /// Simulated nanoseconds in the allocator's calls.
    pub spent: u64,
    /// Simulated nanoseconds from the first call to the last.
    pub length: u64,
    /// The most bytes in use, with blocks rounded up to 512.
    pub peak: u64,
    /// Bytes of the device that were allocated, times nanoseconds.
    held: u128,
}

impl Passes {
    /// The bytes of the device that were allocated, on average over time.
    pub fn mean_memory(&self) -> u64 {
        (self.held / u128::from(self.length.max(1))) as u64
    }
}

/// A block of the load as it is now.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    /// Its address and size, where it is allocated.
    place: Option<(u64, u64)>,
    /// Whether work of its caller used it.
    used: bool,
}

/// A caller as it runs.
struct Running {
    stream: Stream,
    /// The next of its rows, and the request that has this row.
    next: usize,
    request: usize,
    /// Whether the next row waits for another one.
    blocked: bool,
    /// When the requests complete that the host has not waited for.
    queued: VecDeque<u64>,
    progress: Progress,
}

/// A run of a recorded load.
pub struct RecordedRun<'a, C> {
    computer: &'a C,
    /// `None` runs the work alone, without memory.
    allocator: Option<&'a dyn Memory>,
    load: &'a Load<'a>,
    callers: Vec<Running>,
    blocks: Vec<Block>,
    /// Which rows of this pass were made, and the first one that was not.
    made: Vec<bool>,
    first_not_made: usize,
    /// The rows that may come next, by time.
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    /// When this pass began.
    begun: u64,
    in_use: u128,
    /// Bytes of the device that are allocated, since when.
    memory: (u64, u64),
    /// The length of a window of `decay_ms`, and when this one ends.
    window: Option<(u64, u64)>,
    passes: [Passes; 2],
    /// The index of the present one in `passes`.
    measured: usize,
}

impl<'a, C: Computer> RecordedRun<'a, C> {
    /// A run of `load`, where memory that is idle for so many simulated milliseconds goes back; 0: none.
    ///
    /// # Errors
    ///
    /// The driver's, where a stream cannot be created.
    pub fn new(
        computer: &'a C,
        allocator: Option<&'a dyn Memory>,
        load: &'a Load<'a>,
        decay_ms: u64,
    ) -> Result<RecordedRun<'a, C>> {
        let running = |_| {
            Ok(Running {
                stream: computer.create_stream()?,
                next: 0,
                request: 0,
                blocked: false,
                queued: VecDeque::new(),
                progress: Progress::default(),
            })
        };
        let window = decay_ms.saturating_mul(1_000_000) / WINDOWS;
        let now = computer.now();
        Ok(RecordedRun {
            computer,
            allocator,
            load,
            callers: load.callers.iter().map(running).collect::<Result<_>>()?,
            blocks: vec![Block::default(); load.lives.len()],
            made: Vec::new(),
            first_not_made: 0,
            ready: BinaryHeap::new(),
            begun: now,
            in_use: 0,
            memory: (computer.memory(), now),
            window: (window > 0).then(|| (window, now.saturating_add(window))),
            passes: Default::default(),
            measured: 0,
        })
    }

    /// Runs all passes, then frees what is left. Returns what was seen in the first pass and in the others. `progress`
    /// gets the number of calls made so far.
    ///
    /// # Errors
    ///
    /// What a call of the application or the allocator returned; a refusal for lack of memory is counted instead.
    pub fn run(mut self, progress: &mut dyn FnMut(u64)) -> Result<[Passes; 2]> {
        let rows = self.load.ops.len() as u64;
        for pass in 0..self.load.pace.passes {
            self.measured = pass.min(1);
            self.pass(&mut |made| progress(pass as u64 * rows + made))?;
        }
        self.end()
    }

    fn pass(&mut self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let rows = self.load.ops.len();
        let before = self.computer.calls();
        (self.begun, self.first_not_made) = (self.computer.now(), 0);
        self.memory.1 = self.begun;
        self.made.clear();
        self.made.resize(rows, false);
        self.note_in_use();
        for caller in 0..self.callers.len() {
            (self.callers[caller].next, self.callers[caller].request) = (0, 0);
            self.make_ready(caller);
        }
        let mut count = 0;
        while let Some(Reverse((time, row))) = self.ready.pop() {
            self.advance(time);
            self.row(row)?;
            count += 1;
            if count % ROWS_PER_REPORT == 0 {
                progress(count);
            }
        }
        if self.first_not_made < rows {
            return Err(Error::Unsupported(format!(
                "the load stopped at row {} of {rows}",
                self.first_not_made
            )));
        }
        self.advance(self.computer.now());
        let Calls { memory, waits } = self.computer.calls();
        let passes = &mut self.passes[self.measured];
        passes.figures.memory_calls += memory - before.memory;
        passes.figures.waits += waits - before.waits;
        passes.length += self.computer.now() - self.begun;
        Ok(())
    }

    /// Lets time pass until `time`. Ends the windows of `decay_ms` that end until then, as the helper thread does.
    fn advance(&mut self, time: u64) {
        // Once all that is idle went back, further windows change nothing.
        let mut left = 2 * WINDOWS;
        while let (Some((window, end)), Some(allocator)) = (self.window, self.allocator)
            && end <= time.max(self.computer.now())
        {
            if left == 0 {
                self.window = Some((window, time.saturating_add(window)));
                break;
            }
            left -= 1;
            self.pass_time(end);
            // After a call that lasted for several windows, the helper thread ends one.
            self.window = Some((window, self.computer.now().saturating_add(window)));
            self.note_memory();
            allocator.end_window();
            self.note_memory();
        }
        self.pass_time(time);
        self.note_memory();
    }

    fn pass_time(&self, time: u64) {
        let now = self.computer.now();
        self.computer.advance(time.saturating_sub(now));
    }

    /// Counts the memory that was held since the last time, and looks how much it is now.
    fn note_memory(&mut self) {
        let (memory, since) = self.memory;
        let now = self.computer.now();
        let passes = &mut self.passes[self.measured];
        passes.held += u128::from(memory) * u128::from(now.saturating_sub(since));
        self.memory = (self.computer.memory(), now);
        passes.figures.memory = passes.figures.memory.max(self.memory.0);
    }

    /// Puts the next row of a caller in line, unless it waits for another one.
    fn make_ready(&mut self, at: usize) {
        let caller = &self.load.callers[at];
        let running = &mut self.callers[at];
        let Some(&row) = caller.rows.get(running.next) else {
            return;
        };
        let place = &self.load.places[row as usize];
        let waits_for_block = place.before.is_some_and(|before| !self.made[before as usize]);
        let waits_for_all = !caller.has_stream && self.first_not_made < row as usize;
        running.blocked = waits_for_block || waits_for_all;
        if running.blocked {
            return;
        }
        let mut time = self.begun.saturating_add(place.time);
        if caller.requests[running.request].begin as usize == running.next {
            while running.queued.len() >= self.load.pace.ahead.max(1)
                && let Some(completed) = running.queued.pop_front()
            {
                time = time.max(completed);
            }
        }
        self.ready.push(Reverse((time, row)));
    }

    /// Makes the call of a row.
    fn row(&mut self, row: u32) -> Result<()> {
        let (op, place) = (self.load.ops[row as usize], self.load.places[row as usize]);
        let at = place.caller as usize;
        let part = self.load.callers[at].requests[self.callers[at].request];
        let next = self.callers[at].next as u32;
        if next == part.frees {
            self.work(at)?;
        }
        match op.kind {
            OpKind::Alloc { resizable } => self.allocate(at, place.block, op, resizable)?,
            OpKind::Realloc => self.resize(place.block, op)?,
            OpKind::Free => self.free(at, place.block)?,
        }
        if next + 1 == part.end {
            if part.frees == part.end {
                self.work(at)?;
            }
            self.finish_request(at)?;
        }
        self.callers[at].next += 1;
        self.made[row as usize] = true;
        while self.made.get(self.first_not_made) == Some(&true) {
            self.first_not_made += 1;
        }
        self.make_ready(at);
        let without_stream = self.callers.len() - 1;
        let after = place
            .after
            .map(|after| self.load.places[after as usize].caller as usize);
        for waiting in after.into_iter().chain([without_stream]) {
            if self.callers[waiting].blocked {
                self.make_ready(waiting);
            }
        }
        Ok(())
    }

    /// Queues the work of a caller's request. It uses the blocks that the request allocated or resized, and those of the
    /// same caller that it frees.
    fn work(&mut self, at: usize) -> Result<()> {
        let load = self.load;
        let (caller, number) = (&load.callers[at], at as u32);
        let part = caller.requests[self.callers[at].request];
        let mut ranges = Vec::new();
        for &row in &caller.rows[part.begin as usize..part.end as usize] {
            let block = load.places[row as usize].block;
            if load.lives[block as usize].owner != number {
                continue;
            }
            if let Block {
                place: Some(place),
                used,
            } = &mut self.blocks[block as usize]
            {
                *used = true;
                ranges.push(*place);
            }
        }
        // A block may occur twice: it was allocated and resized, or freed.
        ranges.sort_unstable();
        ranges.dedup();
        self.callers[at].progress.work += part.work;
        self.queue(at, part.work, &ranges)
    }

    fn queue(&self, at: usize, nanoseconds: u64, ranges: &[(u64, u64)]) -> Result<()> {
        let ranges = if self.allocator.is_some() { ranges } else { &[] };
        self.computer.work(self.callers[at].stream, nanoseconds, ranges)
    }

    /// Notes when the request completes.
    fn finish_request(&mut self, at: usize) -> Result<()> {
        let running = &mut self.callers[at];
        running.request += 1;
        let ends = self.computer.work_ends(running.stream)?;
        running.queued.push_back(ends);
        if self.measured == 0 {
            running.progress = Progress {
                begun: ends,
                ..Progress::default()
            };
        }
        running.progress.ended = ends;
        self.passes[self.measured].figures.requests += 1;
        Ok(())
    }

    /// Makes one call of the allocator, and notes how long it took and how much memory there is then.
    fn call<T>(&mut self, call: impl FnOnce(&dyn Memory) -> Result<T>) -> Option<Result<T>> {
        let begun = self.computer.now();
        let result = call(self.allocator?);
        let took = self.computer.now() - begun;
        let passes = &mut self.passes[self.measured];
        passes.spent += took;
        passes.figures.longest = passes.figures.longest.max(took);
        self.note_memory();
        Some(result)
    }

    /// Counts a refusal; another error ends the run.
    fn refused(&mut self, error: Error) -> Result<()> {
        if !matches!(error, Error::OutOfMemory(_)) {
            return Err(error);
        }
        let figures = &mut self.passes[self.measured].figures;
        figures.refused += 1;
        figures.reason.get_or_insert(error.to_string());
        Ok(())
    }

    fn stream_of(&self, at: usize) -> Option<Stream> {
        self.load.callers[at].has_stream.then_some(self.callers[at].stream)
    }

    /// Sets the block's place, and counts what is in use.
    fn set(&mut self, block: u32, place: Option<(u64, u64)>) {
        let known = &mut self.blocks[block as usize].place;
        let size = |place: Option<(u64, u64)>| place.map_or(0, |(_, size)| u128::from(rounded(size)));
        self.in_use = self.in_use - size(*known) + size(place);
        *known = place;
        self.note_in_use();
    }

    fn note_in_use(&mut self) {
        let most = &mut self.passes[self.measured].peak;
        *most = (*most).max(u64::try_from(self.in_use).unwrap_or(u64::MAX));
    }

    fn allocate(&mut self, at: usize, block: u32, op: Op, resizable: bool) -> Result<()> {
        // It stayed since the pass before.
        if self.blocks[block as usize].place.is_some() {
            return Ok(());
        }
        let on = self.stream_of(at);
        let request = Request {
            size: op.bytes,
            alignment: 0,
            flags: if resizable { RESIZABLE } else { 0 },
            stream: on,
            device: None,
        };
        match self.call(|allocator| allocator.allocate(request)) {
            Some(Ok(address)) => {
                self.computer.handed_out(address, op.bytes, on);
                self.set(block, Some((address, op.bytes)));
            }
            Some(Err(error)) => self.refused(error)?,
            None => self.set(block, Some((0, op.bytes))),
        }
        Ok(())
    }

    fn resize(&mut self, block: u32, op: Op) -> Result<()> {
        let Some((old, _)) = self.blocks[block as usize].place else {
            return Ok(());
        };
        match self.call(|allocator| allocator.reallocate(old, op.bytes)) {
            Some(Ok(new)) => {
                self.computer.resized(old, new, op.bytes);
                self.set(block, Some((new, op.bytes)));
            }
            Some(Err(error)) => self.refused(error)?,
            None => self.set(block, Some((0, op.bytes))),
        }
        Ok(())
    }

    /// Frees a block. A stream that did not allocate it waits for the one that did, and uses it.
    fn free(&mut self, at: usize, block: u32) -> Result<()> {
        let Block {
            place: Some((address, size)),
            used,
        } = self.blocks[block as usize]
        else {
            return Ok(());
        };
        let on = self.stream_of(at);
        let owner = self.load.lives[block as usize].owner as usize;
        let is_foreign = owner != at && (used || self.load.callers[owner].has_stream);
        if let Some(stream) = on.filter(|_| is_foreign) {
            self.computer.order(self.callers[owner].stream, stream)?;
            self.queue(at, LEAST_WORK, &[(address, size)])?;
            self.callers[at].progress.work += LEAST_WORK;
        }
        self.blocks[block as usize].used = false;
        self.set(block, None);
        if self.allocator.is_some() {
            self.computer.giving_back(address, on);
        }
        self.call(|allocator| allocator.deallocate(address, size, on))
            .unwrap_or(Ok(()))
    }

    /// Frees what is left, closes the allocator, and destroys the streams.
    fn end(mut self) -> Result<[Passes; 2]> {
        let mut passes = self.passes.clone();
        self.computer.synchronize()?;
        for block in 0..self.blocks.len() {
            self.free(self.load.lives[block].owner as usize, block as u32)?;
        }
        // Trusted streams outlive the allocator.
        if let Some(allocator) = self.allocator {
            allocator.close();
        }
        for running in &self.callers {
            self.computer.destroy_stream(running.stream)?;
        }
        let no_streams = self.load.streams() == 0;
        let callers = self.callers.iter().zip(&self.load.callers);
        let streams =
            callers.filter(|(running, caller)| running.progress.work > 0 && (caller.has_stream || no_streams));
        let times = streams.map(|(running, _)| running.progress.device_time());
        let [first, later] = &mut passes;
        later.figures.device_time = times.fold(0.0, f64::max);
        for figures in [&mut first.figures, &mut later.figures] {
            figures.checked = self.computer.checked();
            figures.violations = self.computer.violations();
        }
        Ok(passes)
    }
}
