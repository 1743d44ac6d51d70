//! A client's captures and graphs.

use std::sync::atomic::Ordering::Relaxed;

use trtalloc::allocator::RESIZABLE;

use crate::client::{Block, Client};
use crate::machine::capture::{MODE_GLOBAL, MODE_RELAXED, MODE_THREAD_LOCAL};
use crate::world::done;

/// A running capture of this thread.
pub struct Capture {
    pub stream: usize,
    /// A stream that joined it.
    pub fork: Option<usize>,
    /// Live blocks that were allocated in it.
    inside: Vec<Block>,
    /// Earlier blocks that its graph uses.
    pinned: Vec<u64>,
    steps: u64,
}

impl Capture {
    pub fn has(&self, stream: usize) -> bool {
        self.stream == stream || self.fork == Some(stream)
    }
}

/// A graph and its executable. All its launches are on one stream at a time, which may change.
pub struct Graph {
    graph: usize,
    executable: usize,
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
        if done(self.world.app(|machine| machine.stream_begin_capture(stream, mode))) {
            self.world.counts.captures.fetch_add(1, Relaxed);
            let other = self.random.pick(&self.streams);
            let fork = other.filter(|other| *other != stream && self.order(stream, *other));
            self.capture = Some(Capture {
                stream,
                fork,
                inside: Vec::new(),
                pinned: Vec::new(),
                steps: 2 + self.random.below(30),
            });
        }
    }

    pub fn capture_step(&mut self) {
        let Some(mut capture) = self.capture.take() else { return };
        let stream = capture.fork.filter(|_| self.random.one_in(2)).unwrap_or(capture.stream);
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
        if let Some(fork) = capture.fork {
            self.order(fork, capture.stream);
            capture.inside.iter_mut().for_each(|block| block.home = capture.stream);
        }
        let ended = self.world.app(|machine| machine.stream_end_capture(capture.stream));
        // Live blocks become the client's, to be used and freed like others.
        self.blocks.extend(capture.inside);
        match ended {
            Ok(graph) => {
                let executable = self.world.app(|machine| machine.graph_instantiate(graph).unwrap());
                self.world.counts.graphs.fetch_add(1, Relaxed);
                self.graphs.push(Graph {
                    graph,
                    executable,
                    home: capture.stream,
                    pinned: capture.pinned,
                });
            }
            // Another thread's call over the whole device invalidated the capture.
            Err(900..=908) => {
                self.world.counts.captures_lost.fetch_add(1, Relaxed);
                self.unpin(capture.pinned);
            }
            Err(code) => panic!("ending a capture failed with {code}"),
        }
    }

    pub fn launch_graph(&mut self) {
        let at = self.random.below(self.graphs.len().max(1) as u64) as usize;
        let Some(graph) = self.graphs.get(at) else { return };
        if self.capture.as_ref().is_some_and(|capture| capture.has(graph.home)) {
            return;
        }
        let (executable, home) = (graph.executable, graph.home);
        done(self.world.app(|machine| machine.graph_launch(executable, home)));
    }

    pub fn drop_graph(&mut self) {
        if self.graphs.is_empty() {
            return;
        }
        let at = self.random.below(self.graphs.len() as u64) as usize;
        let Graph {
            graph,
            executable,
            pinned,
            ..
        } = self.graphs.swap_remove(at);
        self.world.app(|machine| {
            machine.graph_destroy(graph).unwrap();
            machine.graph_exec_destroy(executable).unwrap();
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
