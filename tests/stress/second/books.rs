//! Which block owns which physical bytes, and until when the work of former owners may still use them.

use std::collections::{BTreeMap, HashMap, HashSet};

/// A context's serial number, and the time when work in it completes.
pub type Work = (u32, u64);

/// A use inside a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Captured {
    graph: u32,
    /// The index among the capture's streams.
    member: usize,
    at: u32,
}

/// The work that may still use some bytes.
#[derive(Debug, Clone, Default)]
pub struct Pending {
    work: Vec<Work>,
    graphs: Vec<Captured>,
}

#[derive(Debug)]
struct Span {
    end: u64,
    /// The block that owns it, or owned it last.
    serial: u64,
    out: bool,
    pending: Pending,
}

#[derive(Debug)]
pub struct Block {
    pub serial: u64,
    pub size: u64,
    extents: Vec<[u64; 2]>,
    pending: Pending,
}

/// A capture and its graph.
#[derive(Debug)]
struct Graph {
    /// Whether the capture, the graph or an executable of it exists.
    alive: bool,
    launched: Vec<Work>,
    /// The address ranges that it uses.
    ranges: Vec<(u64, u64)>,
    streams: Vec<usize>,
    /// For each stream of the capture, how far it is behind each of them.
    clocks: Vec<Vec<u32>>,
}

/// The caller that memory must be safe for.
#[derive(Debug, Clone, Copy)]
pub struct Taker {
    /// Its next work starts no earlier.
    pub start: u64,
    /// The capture in which it queues work, and the index of its stream there.
    capture: Option<(u32, usize)>,
}

#[derive(Default)]
pub struct Books {
    spans: BTreeMap<u64, Span>,
    pub blocks: HashMap<u64, Block>,
    serials: u64,
    pub violations: Vec<String>,
    /// Destroyed contexts, whose work has ended.
    dead: HashSet<u32>,
    graphs: HashMap<u32, Graph>,
    numbers: u32,
    /// Streams that capture.
    capturing: HashMap<usize, (u32, usize)>,
    /// Events recorded in a capture.
    events: HashMap<usize, (u32, Vec<u32>)>,
}

/// The maximum of spans, and the number of hand-outs between two clean-ups.
const MAX_KEPT: usize = 4096;

fn raise(work: &mut Vec<Work>, (context, until): Work) {
    match work.iter_mut().find(|(of, _)| *of == context) {
        Some((_, known)) => *known = until.max(*known),
        None => work.push((context, until)),
    }
}

impl Books {
    /// The taker of a hand-out on `stream`.
    pub fn taker(&self, stream: Option<usize>, start: u64) -> Taker {
        let capture = stream.and_then(|stream| self.capturing.get(&stream).copied());
        Taker { start, capture }
    }

    pub fn captures(&self, stream: usize) -> bool {
        !self.capturing.is_empty() && self.capturing.contains_key(&stream)
    }

    /// The part of `pending` that does not precede `taker`, in words.
    fn late(&self, pending: &Pending, taker: Taker) -> Option<String> {
        let late = |work: &[Work]| {
            let mut work = work.iter().filter(|(context, _)| !self.dead.contains(context));
            work.find(|(_, until)| *until > taker.start)
                .map(|(context, until)| (*context, until - taker.start))
        };
        if let Some((context, time)) = late(&pending.work) {
            return Some(format!("work of context {context} lasts {time} ns longer"));
        }
        for captured in &pending.graphs {
            let Some(graph) = self.graphs.get(&captured.graph) else {
                continue;
            };
            match taker.capture {
                Some((own, member)) if own == captured.graph => {
                    if graph.clocks[member][captured.member] < captured.at {
                        return Some("another stream of the capture uses it".into());
                    }
                }
                _ if graph.alive => return Some(format!("graph {} uses it", captured.graph)),
                _ => {
                    if let Some((_, time)) = late(&graph.launched) {
                        return Some(format!("graph {} runs {time} ns longer", captured.graph));
                    }
                }
            }
        }
        None
    }

    /// Adds the work that is pending at `now`.
    fn merge(&self, into: &mut Pending, from: Pending, now: u64) {
        for (context, until) in from.work {
            if until > now && !self.dead.contains(&context) {
                raise(&mut into.work, (context, until));
            }
        }
        for captured in from.graphs {
            let going = |graph: &Graph| graph.alive || graph.launched.iter().any(|(_, until)| *until > now);
            if self.graphs.get(&captured.graph).is_some_and(going) && !into.graphs.contains(&captured) {
                into.graphs.push(captured);
            }
        }
    }

    /// Gives a range to block `serial`, which may have owned it before. Adds the work that may still use it to
    /// `pending`.
    fn take(
        &mut self,
        what: &str,
        [start, length]: [u64; 2],
        taker: Taker,
        serial: u64,
        pending: &mut Pending,
        now: u64,
    ) {
        let end = start + length;
        let first = self
            .spans
            .range(..=start)
            .next_back()
            .map_or(start, |(first, _)| *first);
        let found: Vec<u64> = self.spans.range(first..end).map(|(start, _)| *start).collect();
        for from in found {
            if self.spans[&from].end <= start {
                continue;
            }
            let span = self.spans.remove(&from).expect("it was found");
            let problem = match (span.out, span.serial == serial) {
                (true, _) => Some(format!("block {} has a part of it", span.serial)),
                // Bytes that the block had before it shrank, and that no other block had since, may be used by it
                // again.
                (false, true) => None,
                (false, false) => self
                    .late(&span.pending, taker)
                    .map(|late| format!("block {} had it: {late}", span.serial)),
            };
            if let Some(problem) = problem {
                self.violations
                    .push(format!("{what} at {now} for {taker:?}: {problem}"));
            }
            for (from, to) in [(from, start), (end, span.end)] {
                if from < to {
                    let rest = Span {
                        end: to,
                        pending: span.pending.clone(),
                        ..span
                    };
                    self.spans.insert(from, rest);
                }
            }
            self.merge(pending, span.pending, now);
        }
        let span = Span {
            end,
            serial,
            out: true,
            pending: Pending::default(),
        };
        self.spans.insert(start, span);
    }

    /// Returns the new block's number.
    pub fn hand_out(&mut self, address: u64, size: u64, extents: Vec<[u64; 2]>, taker: Taker, now: u64) -> u64 {
        self.serials += 1;
        let serial = self.serials;
        let mut pending = Pending::default();
        let what = "hand-out";
        for extent in &extents {
            self.take(what, *extent, taker, serial, &mut pending, now);
        }
        if let Some((graph, member)) = taker.capture {
            self.capture_use(graph, member, &mut pending);
        }
        let block = Block {
            serial,
            size,
            extents,
            pending,
        };
        if let Some(other) = self.blocks.insert(address, block) {
            self.violations
                .push(format!("hand-out of {address:#x}, where block {} is", other.serial));
        }
        if self.spans.len() > MAX_KEPT || serial.is_multiple_of(MAX_KEPT as u64) {
            self.forget(now);
        }
        serial
    }

    fn capture_use(&mut self, graph: u32, member: usize, pending: &mut Pending) {
        let Some(of) = self.graphs.get_mut(&graph) else { return };
        of.clocks[member][member] += 1;
        let at = of.clocks[member][member];
        match pending
            .graphs
            .iter_mut()
            .find(|known| known.graph == graph && known.member == member)
        {
            Some(known) => known.at = at,
            None => pending.graphs.push(Captured { graph, member, at }),
        }
    }

    /// Removes work that has completed for every taker.
    fn forget(&mut self, now: u64) {
        let over =
            |dead: &HashSet<u32>, work: &[Work]| work.iter().all(|(of, until)| *until <= now || dead.contains(of));
        let (dead, graphs) = (&self.dead, &mut self.graphs);
        graphs.retain(|_, graph| graph.alive || !over(dead, &graph.launched));
        self.spans.retain(|_, span| {
            span.out
                || !over(dead, &span.pending.work)
                || span
                    .pending
                    .graphs
                    .iter()
                    .any(|captured| graphs.contains_key(&captured.graph))
        });
    }

    /// Work on `stream` uses the block at `address`.
    pub fn used(&mut self, address: u64, stream: usize, work: Work) {
        let Some(mut block) = self.blocks.remove(&address) else {
            return self
                .violations
                .push(format!("work on {address:#x}, which is not handed out"));
        };
        match self.capturing.get(&stream).copied() {
            Some((graph, member)) => {
                self.capture_use(graph, member, &mut block.pending);
                if let Some(of) = self.graphs.get_mut(&graph) {
                    of.ranges.push((address, block.size));
                }
            }
            None => raise(&mut block.pending.work, work),
        }
        self.blocks.insert(address, block);
    }

    fn leave(&mut self, block: &Block) {
        for &[start, length] in &block.extents {
            let span = Span {
                end: start + length,
                serial: block.serial,
                out: false,
                pending: block.pending.clone(),
            };
            self.spans.insert(start, span);
        }
    }

    /// The block's owner frees it. `work` of a stream may still use it.
    pub fn give_back(&mut self, address: u64, stream: Option<usize>, work: Work) -> Option<Block> {
        let Some(mut block) = self.blocks.remove(&address) else {
            self.violations
                .push(format!("{address:#x} given back is not handed out"));
            return None;
        };
        match stream.and_then(|stream| self.capturing.get(&stream).copied()) {
            Some((graph, member)) => self.capture_use(graph, member, &mut block.pending),
            None => raise(&mut block.pending.work, work),
        }
        self.leave(&block);
        Some(block)
    }

    pub fn begin_resize(&mut self, address: u64) -> Option<Block> {
        let Some(block) = self.blocks.remove(&address) else {
            self.violations.push(format!("{address:#x} resized is not handed out"));
            return None;
        };
        self.leave(&block);
        Some(block)
    }

    /// The block keeps the bytes that it had. New bytes must be safe for every caller.
    pub fn end_resize(&mut self, block: Block, address: u64, size: u64, extents: Vec<[u64; 2]>, now: u64) {
        let Block {
            serial, mut pending, ..
        } = block;
        let taker = self.taker(None, now);
        for extent in &extents {
            self.take("resize", *extent, taker, serial, &mut pending, now);
        }
        let block = Block {
            serial,
            size,
            extents,
            pending,
        };
        self.blocks.insert(address, block);
    }

    pub fn context_died(&mut self, serial: u32) {
        self.dead.insert(serial);
    }
}

/// Captures.
impl Books {
    pub fn capture_began(&mut self, stream: usize) {
        self.numbers += 1;
        let graph = Graph {
            alive: true,
            launched: Vec::new(),
            ranges: Vec::new(),
            streams: vec![stream],
            clocks: vec![vec![0; 8]],
        };
        self.graphs.insert(self.numbers, graph);
        self.capturing.insert(stream, (self.numbers, 0));
    }

    pub fn recorded(&mut self, event: usize, stream: usize) {
        if self.capturing.is_empty() && self.events.is_empty() {
            return;
        }
        self.events.remove(&event);
        if let Some((graph, member)) = self.capturing.get(&stream)
            && let Some(of) = self.graphs.get(graph)
        {
            self.events.insert(event, (*graph, of.clocks[*member].clone()));
        }
    }

    pub fn waited(&mut self, stream: usize, event: usize) {
        let Some((graph, clock)) = self.events.get(&event) else {
            return;
        };
        let Some(of) = self.graphs.get_mut(graph) else { return };
        let member = of.streams.iter().position(|known| *known == stream).unwrap_or_else(|| {
            of.streams.push(stream);
            of.clocks.push(vec![0; 8]);
            of.streams.len() - 1
        });
        self.capturing.insert(stream, (*graph, member));
        for (known, new) in of.clocks[member].iter_mut().zip(clock) {
            *known = (*known).max(*new);
        }
    }

    pub fn event_gone(&mut self, event: usize) {
        if !self.events.is_empty() {
            self.events.remove(&event);
        }
    }

    /// Returns the graph's number. A failed capture makes no graph.
    pub fn capture_ended(&mut self, stream: usize, failed: bool) -> u32 {
        let Some((graph, _)) = self.capturing.get(&stream).copied() else {
            return 0;
        };
        self.capturing.retain(|_, (of, _)| *of != graph);
        if failed {
            self.graphs.remove(&graph);
        }
        graph
    }

    /// Returns the ranges that the graph uses until `work` completes.
    pub fn launched(&mut self, graph: u32, work: Work) -> Vec<(u64, u64)> {
        let Some(of) = self.graphs.get_mut(&graph) else {
            return Vec::new();
        };
        raise(&mut of.launched, work);
        of.ranges.clone()
    }

    pub fn graph_gone(&mut self, graph: u32) {
        if let Some(of) = self.graphs.get_mut(&graph) {
            of.alive = false;
        }
    }
}
