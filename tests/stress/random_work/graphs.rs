//! A client's captures and graphs.

use std::sync::atomic::Ordering::Relaxed;

use trtalloc::allocator::RESIZABLE;
use trtalloc::driver::Stream;

use super::client::{Block, Client};
use super::machine::capture::{MODE_GLOBAL, MODE_RELAXED, MODE_THREAD_LOCAL};
use super::world::done;

/// A running capture of this thread.
pub struct Capture {
    pub stream: usize,
    /// Streams that joined it.
    pub forks: Vec<usize>,
    /// Live blocks that were allocated in it.
    inside: Vec<Block>,
    /// Earlier blocks that its graph uses.
    pinned: Vec<u64>,
    /// Blocks whose last use came before the capture, and that are freed on its stream while it runs.
    earlier: Vec<u64>,
    steps: u64,
}

impl Capture {
    pub fn has(&self, stream: usize) -> bool {
        self.stream == stream || self.forks.contains(&stream)
    }
}

/// A graph and its executables. All its launches are on one stream at a time, which may change.
pub struct Graph {
    /// None once it was destroyed. Its executables live on.
    graph: Option<usize>,
    executables: Vec<usize>,
    pub home: usize,
    pinned: Vec<u64>,
}

impl Client<'_> {
    pub fn begin_capture(&mut self) {
        if self.world.trusted || self.capture.is_some() || self.graphs.len() > 3 {
            return;
        }
        let Some(stream) = self.random.pick(&self.streams) else {
            return;
        };
        let mode = match self.random.below(4) {
            0..2 => MODE_RELAXED,
            2 => MODE_THREAD_LOCAL,
            _ => MODE_GLOBAL,
        };
        let earlier = self.take_earlier(stream);
        if done(self.world.app(|machine| machine.stream_begin_capture(stream, mode))) {
            self.world.counts.captures.fetch_add(1, Relaxed);
            self.world.capturing.fetch_add(1, Relaxed);
            let other = self.random.pick(&self.streams);
            let fork = other.filter(|other| *other != stream && self.order(stream, *other));
            self.capture = Some(Capture {
                stream,
                forks: fork.into_iter().collect(),
                inside: Vec::new(),
                pinned: Vec::new(),
                earlier,
                steps: 2 + self.random.below(30),
            });
        } else {
            earlier
                .into_iter()
                .for_each(|address| self.free_earlier(address, stream));
        }
    }

    /// Takes a few blocks whose uses so far are on `stream` and have ended for the checker.
    fn take_earlier(&mut self, stream: usize) -> Vec<u64> {
        let mut earlier = Vec::new();
        while self.rarely(2) {
            let free = |block: &Block| block.home == stream && block.pins == 0;
            let Some(at) = self.blocks.iter().position(free) else {
                break;
            };
            let block = self.blocks.swap_remove(at);
            self.world.machine.checker().give_back(block.address, Some(stream));
            earlier.push(block.address);
        }
        earlier
    }

    fn free_earlier(&mut self, address: u64, stream: usize) {
        let on = (!self.random.one_in(4)).then_some(stream);
        self.world.put_known(&self.world.allocator, address, on);
    }

    /// A step that only a broad round has. Returns whether there was one.
    fn broad_capture_step(&mut self, capture: &mut Capture) -> bool {
        match self.random.below(5) {
            // Another stream joins, maybe one that left, or the streams wait for each other.
            0 => {
                let from = self.random.pick(&capture.forks).unwrap_or(capture.stream);
                let Some(to) = self.random.pick(&self.streams) else {
                    return false;
                };
                let room = capture.forks.len() < 3 || capture.has(to);
                if from == to || !room || !self.order(from, to) {
                    return false;
                }
                if !capture.has(to) {
                    capture.forks.push(to);
                }
            }
            // A block of before is freed on the stream that captures. The graph does not use it.
            1 => match capture.earlier.pop() {
                Some(address) => self.free_earlier(address, capture.stream),
                None => return false,
            },
            // A graph is launched inside the capture. It becomes a child of the new graph, which so uses all that it uses.
            2 if self.world.child_graphs => {
                let of = |graph: &&Graph| graph.home == capture.stream && !graph.executables.is_empty();
                let found = self.graphs.iter().find(of);
                let Some((executable, pinned)) = found.map(|of| (of.executables[0], of.pinned.clone())) else {
                    return false;
                };
                done(
                    self.world
                        .app(|machine| machine.graph_launch(executable, capture.stream)),
                );
                for address in pinned {
                    let block = self.blocks.iter_mut().find(|block| block.address == address);
                    block.expect("a graph uses it").pins += 1;
                    capture.pinned.push(address);
                }
            }
            // A use is declared on a stream that captures.
            3 => {
                let Some(address) = capture.pinned.last().copied() else {
                    return false;
                };
                let stream = Stream(capture.stream);
                let _ = self.world.ask(|allocator| allocator.record_stream(address, stream));
            }
            _ => return false,
        }
        true
    }

    pub fn capture_step(&mut self) {
        let Some(mut capture) = self.capture.take() else { return };
        if self.rarely(3) && self.broad_capture_step(&mut capture) {
            self.capture = Some(capture);
            return;
        }
        let fork = match capture.forks.len() {
            0..2 => capture.forks.first().copied(),
            _ => self.random.pick(&capture.forks),
        };
        let stream = fork.filter(|_| self.random.one_in(2)).unwrap_or(capture.stream);
        match self.random.below(8) {
            0..4 => {
                let size = self.random.size(self.world.largest / 4);
                let flags = if self.random.one_in(10) { RESIZABLE } else { 0 };
                let address = self.world.get(size, flags, Some(stream));
                if address != 0 {
                    self.launch(stream, &[(address, size)]);
                    capture.inside.push(Block {
                        address,
                        size,
                        resizable: flags == RESIZABLE,
                        home: stream,
                        pins: 0,
                        born: Some(stream),
                    });
                }
            }
            4..7 => {
                if !capture.inside.is_empty() {
                    let at = self.random.below(capture.inside.len() as u64) as usize;
                    let block = capture.inside.swap_remove(at);
                    // Freed in the capture, or without a stream.
                    let ordered = !self.random.one_in(8);
                    // On its home stream, or on the other stream after an order.
                    let on = match block.home == stream || self.order(block.home, stream) {
                        true => stream,
                        false => block.home,
                    };
                    self.world.put(block.address, ordered.then_some(on));
                }
            }
            _ => {
                // An earlier block: its owner keeps it while the graph exists, and the graph is launched on the block's
                // home stream.
                let stream = capture.stream;
                let own = self.blocks.iter_mut().find(|block| block.home == stream);
                if let Some(block) = own {
                    block.pins += 1;
                    capture.pinned.push(block.address);
                    let range = (block.address, block.size);
                    self.launch(stream, &[range]);
                }
            }
        }
        capture.steps -= 1;
        let over = capture.steps == 0;
        self.capture = Some(capture);
        if over {
            self.end_capture();
        }
    }

    pub fn end_capture(&mut self) {
        let Some(mut capture) = self.capture.take() else {
            return;
        };
        for fork in &capture.forks {
            self.order(*fork, capture.stream);
        }
        if !capture.forks.is_empty() {
            capture.inside.iter_mut().for_each(|block| block.home = capture.stream);
        }
        let ended = self.world.app(|machine| machine.stream_end_capture(capture.stream));
        self.world.capturing.fetch_sub(1, Relaxed);
        // Live blocks become the client's, to be used and freed like others.
        self.blocks.extend(capture.inside);
        match ended {
            Ok(graph) => {
                let world = self.world;
                let instantiate = || world.app(|machine| machine.graph_instantiate(graph).unwrap());
                let mut executables = vec![instantiate()];
                world.counts.graphs.fetch_add(1, Relaxed);
                if self.rarely(3) {
                    executables.push(instantiate());
                }
                let mut made = Graph {
                    graph: Some(graph),
                    executables,
                    home: capture.stream,
                    pinned: capture.pinned,
                };
                if self.rarely(3) {
                    self.drop_part(&mut made);
                }
                self.graphs.push(made);
            }
            // Another thread's call over the whole device invalidated the capture.
            Err(900..=908) => {
                self.world.counts.captures_lost.fetch_add(1, Relaxed);
                self.unpin(capture.pinned);
            }
            Err(code) => panic!("ending a capture failed with {code}"),
        }
        for address in capture.earlier {
            self.free_earlier(address, capture.stream);
        }
    }

    /// Destroys the graph and keeps its executables, or destroys an executable of several.
    fn drop_part(&mut self, of: &mut Graph) {
        if self.random.one_in(2)
            && let Some(graph) = of.graph.take()
        {
            self.world.app(|machine| machine.graph_destroy(graph).unwrap());
        } else if of.executables.len() > 1
            && let Some(executable) = of.executables.pop()
        {
            self.world
                .app(|machine| machine.graph_exec_destroy(executable).unwrap());
        }
    }

    pub fn launch_graph(&mut self) {
        let at = self.random.below(self.graphs.len().max(1) as u64) as usize;
        let Some(graph) = self.graphs.get(at) else { return };
        if self.capture.as_ref().is_some_and(|capture| capture.has(graph.home)) {
            return;
        }
        let (executables, home) = (graph.executables.clone(), graph.home);
        let executable = match executables.len() {
            1 => executables[0],
            _ => self.random.pick(&executables).expect("a graph has an executable"),
        };
        done(self.world.app(|machine| machine.graph_launch(executable, home)));
    }

    pub fn drop_graph(&mut self) {
        if self.graphs.is_empty() {
            return;
        }
        let at = self.random.below(self.graphs.len() as u64) as usize;
        let Graph {
            graph,
            executables,
            pinned,
            ..
        } = self.graphs.swap_remove(at);
        self.world.app(|machine| {
            if let Some(graph) = graph {
                machine.graph_destroy(graph).unwrap();
            }
            for executable in executables {
                machine.graph_exec_destroy(executable).unwrap();
            }
        });
        self.unpin(pinned);
        if self.random.one_in(4) {
            self.world.machine.advance(50_000);
        }
    }

    fn unpin(&mut self, pinned: Vec<u64>) {
        for address in pinned {
            if let Some(block) = self.blocks.iter_mut().find(|block| block.address == address) {
                block.pins -= 1;
            }
        }
    }
}
