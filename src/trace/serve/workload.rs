//! What a server does: requests of each stream, drawn from a seed before anything runs.
//!
//! A request takes four blocks of one shape, 4 : 2 : 1 : 0.3 of a unit, queues work of 1 to 3 ms that uses them, and
//! frees them on its stream. [`Kind`] says what else happens.

use std::collections::VecDeque;

use crate::trace::random::Random;

pub(super) const MIB: u64 = 1 << 20;
pub(super) const MS: u64 = 1_000_000;
/// The blocks of a request in tenths of its unit.
const TENTHS: [u64; 4] = [40, 20, 10, 3];
/// The tenths of a unit that a request takes.
const ALL_TENTHS: u64 = 73;
/// How many requests lie between two of the largest shape in [`Kind::RareLargest`].
const RARE: usize = 250;
/// How many weights a stream holds in [`Kind::Weights`], and after how many requests it replaces the oldest.
const WEIGHTS: (usize, usize) = (6, 8);
/// The weights of the engines that are loaded in [`Kind::Engines`].
const ENGINES: [[u64; 4]; 3] = [
    [256 * MIB, 128 * MIB, 96 * MIB, 24 * MIB],
    [384 * MIB, 256 * MIB, 64 * MIB, 10 * MIB],
    [640 * MIB, 192 * MIB, 48 * MIB, 3 * MIB],
];
/// The same for [`Kind::SmallEngines`]. None of their blocks goes back to the driver when it is freed.
const SMALL_ENGINES: [[u64; 4]; 3] = [
    [28 * MIB, 20 * MIB, 12 * MIB, 8 * MIB],
    [30 * MIB, 16 * MIB, 10 * MIB, 6 * MIB],
    [24 * MIB, 18 * MIB, 9 * MIB, 3 * MIB],
];

/// A block, by its number among those of its client.
pub type Block = usize;

/// One step of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Allocates a block.
    Allocate {
        /// Which.
        block: Block,
        /// Its size.
        bytes: u64,
        /// Whether it is resized later.
        resizable: bool,
    },
    /// Resizes a block.
    Resize {
        /// Which.
        block: Block,
        /// Its new size.
        bytes: u64,
    },
    /// Queues work that uses these blocks.
    Work {
        /// How long it takes.
        nanoseconds: u64,
        /// The blocks.
        blocks: Vec<Block>,
    },
    /// Frees a block.
    Free {
        /// Which.
        block: Block,
    },
    /// The next stream uses the block behind the work queued so far, and frees it.
    Pass {
        /// Which.
        block: Block,
        /// How long that use takes.
        nanoseconds: u64,
    },
    /// Begins to capture the stream.
    BeginCapture,
    /// Makes an executable of the captured graph.
    EndCapture,
    /// Launches that executable, whose work takes so long.
    LaunchGraph {
        /// How long.
        nanoseconds: u64,
    },
}

/// What a workload is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One request at a time.
    Plain,
    /// A request's blocks are freed after the next request of the stream has queued its work.
    TwoContexts,
    /// The third block of a request lives for 0 to 8 more requests.
    Outputs,
    /// Each stream holds some weights of twice a unit, and replaces the oldest every few requests.
    Weights,
    /// The third block of a request is used by the next stream and freed there, except on the last stream.
    ForeignFrees,
    /// Each stream has a resizable block beside its requests that grows for 8 to 32 requests.
    Growth,
    /// Every 250th request is of a shape of 1.5 times the largest.
    RareLargest,
    /// Engines are loaded and unloaded meanwhile without a stream.
    Engines,
    /// The same with many engines of small blocks.
    SmallEngines,
    /// One context is captured into a graph, which every second request launches.
    Graph,
}

impl Kind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Plain => "one request at a time",
            Kind::TwoContexts => "two contexts",
            Kind::Outputs => "outputs live on",
            Kind::Weights => "weights cycle",
            Kind::ForeignFrees => "another stream frees",
            Kind::Growth => "a block grows",
            Kind::RareLargest => "rare largest shape",
            Kind::Engines => "engines come and go",
            Kind::SmallEngines => "small engines come and go",
            Kind::Graph => "a captured context",
        }
    }
}

/// The units of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// Eight shapes: an eighth of this unit and its multiples.
    Shapes(u64),
    /// Any unit between these two, which no request had before.
    Any(u64, u64),
}

impl Sizes {
    fn largest(self) -> u64 {
        match self {
            Sizes::Shapes(largest) | Sizes::Any(_, largest) => largest,
        }
    }

    fn draw(self, random: &mut Random) -> u64 {
        match self {
            Sizes::Shapes(largest) => largest / 8 * random.between(1, 8),
            Sizes::Any(low, high) => random.between(low, high),
        }
    }

    /// The bytes of the smallest and the largest request, and how many shapes there are.
    pub fn name(self) -> String {
        let (low, high, what) = match self {
            Sizes::Shapes(largest) => (largest / 8, largest, "8 shapes"),
            Sizes::Any(low, high) => (low, high, "any size"),
        };
        let mib = |unit: u64| unit as f64 * ALL_TENTHS as f64 / 10.0 / MIB as f64;
        match mib(high) {
            high if high < 512.0 => format!("{:.0} – {high:.0} MiB, {what}", mib(low)),
            high => format!("{:.1} – {:.1} GiB, {what}", mib(low) / 1024.0, high / 1024.0),
        }
    }
}

/// One caller of the allocator: a stream, or a thread that allocates without one.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// The steps of each request.
    pub requests: Vec<Vec<Step>>,
    /// How many blocks its steps name.
    pub blocks: usize,
    /// The time from one request to the next, for a client that allocates without a stream.
    pub pause: Option<u64>,
}

impl Client {
    /// The most bytes that it has allocated at a time. What a graph's capture has freed stays the graph's.
    pub fn needs(&self) -> u64 {
        let mut sizes = vec![0; self.blocks];
        let (mut live, mut most, mut captured) = (0u64, 0, false);
        for step in self.requests.iter().flatten() {
            match *step {
                Step::Allocate { block, bytes, .. } | Step::Resize { block, bytes } => {
                    live = live - sizes[block] + bytes;
                    sizes[block] = bytes;
                }
                Step::Free { block } | Step::Pass { block, .. } if !captured => {
                    live -= std::mem::take(&mut sizes[block]);
                }
                Step::BeginCapture => captured = true,
                Step::EndCapture => captured = false,
                _ => {}
            }
            most = most.max(live);
        }
        most
    }
}

/// The clients of a workload: the streams, then perhaps one without a stream.
pub fn clients(kind: Kind, sizes: Sizes, streams: usize, requests: usize, seed: u64) -> Vec<Client> {
    let mut random = Random::new(seed);
    let mut clients: Vec<Client> = (0..streams)
        .map(|stream| {
            let mut server = Server {
                kind,
                sizes,
                random: Random::new(random.bits()),
                blocks: 0,
                held: VecDeque::new(),
                growing: None,
                captured: 0,
                passes: kind == Kind::ForeignFrees && stream + 1 < streams,
            };
            let requests = (0..requests).map(|number| server.request(number)).collect();
            Client {
                requests,
                blocks: server.blocks,
                pause: None,
            }
        })
        .collect();
    match kind {
        // So many are loaded at a time, with this pause between a load or an unload and the next.
        Kind::Engines => clients.push(engines(requests, &mut random, (ENGINES, 2, 15 * MS))),
        Kind::SmallEngines => clients.push(engines(requests, &mut random, (SMALL_ENGINES, 40, MS))),
        _ => {}
    }
    clients
}

/// Draws the requests of one stream.
struct Server {
    kind: Kind,
    sizes: Sizes,
    random: Random,
    blocks: usize,
    /// Blocks that outlive their request, with the number of the request that frees them.
    held: VecDeque<(Block, usize)>,
    /// The block that grows, its bytes, by how much it grows, and how often.
    growing: Option<(Block, u64, u64, u64)>,
    /// How long the captured work takes.
    captured: u64,
    /// Whether its blocks are passed to the next stream.
    passes: bool,
}

impl Server {
    fn new_block(&mut self) -> Block {
        self.blocks += 1;
        self.blocks - 1
    }

    fn take(&mut self, bytes: u64, steps: &mut Vec<Step>) -> Block {
        let block = self.new_block();
        steps.push(Step::Allocate {
            block,
            bytes,
            resizable: false,
        });
        block
    }

    fn request(&mut self, number: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.kind == Kind::Graph && number.is_multiple_of(2) {
            return self.captured_request(number);
        }
        let unit = match self.kind {
            Kind::RareLargest if number % RARE == RARE - 1 => self.sizes.largest() / 2 * 3,
            _ => self.sizes.draw(&mut self.random),
        };
        let mut used = Vec::new();
        match self.kind {
            Kind::Weights => used.extend(self.weights(number, &mut steps)),
            Kind::Growth => used.push(self.grow(&mut steps)),
            _ => {}
        }
        let four = TENTHS.map(|tenths| self.take(unit * tenths / 10, &mut steps));
        used.extend(four);
        let nanoseconds = self.random.between(MS, 3 * MS);
        steps.push(Step::Work {
            nanoseconds,
            blocks: used,
        });
        for (at, block) in four.into_iter().enumerate() {
            match self.kind {
                Kind::TwoContexts => self.held.push_back((block, number + 1)),
                Kind::Outputs if at == 2 => {
                    let last = number + self.random.between(0, 8) as usize;
                    self.held.push_back((block, last));
                }
                _ if self.passes && at == 2 => steps.push(Step::Pass {
                    block,
                    nanoseconds: MS / 5,
                }),
                _ => steps.push(Step::Free { block }),
            }
        }
        if self.kind != Kind::Weights {
            self.held.retain(|&(block, last)| {
                let over = last <= number;
                if over {
                    steps.push(Step::Free { block });
                }
                !over
            });
        }
        steps
    }

    /// Replaces the oldest weight where it is time. Returns the weight that this request uses.
    fn weights(&mut self, number: usize, steps: &mut Vec<Step>) -> Option<Block> {
        let (count, every) = WEIGHTS;
        if number.is_multiple_of(every)
            && self.held.len() >= count
            && let Some((block, _)) = self.held.pop_front()
        {
            steps.push(Step::Free { block });
        }
        while self.held.len() < count {
            let bytes = 2 * self.sizes.draw(&mut self.random);
            let block = self.take(bytes, steps);
            self.held.push_back((block, 0));
        }
        self.held.get(number % count).map(|&(block, _)| block)
    }

    /// Grows the stream's resizable block, or begins another one.
    fn grow(&mut self, steps: &mut Vec<Step>) -> Block {
        match self.growing.take() {
            Some((block, bytes, by, left)) if left > 0 => {
                let bytes = bytes + by;
                steps.push(Step::Resize { block, bytes });
                self.growing = Some((block, bytes, by, left - 1));
                block
            }
            before => {
                if let Some((block, ..)) = before {
                    steps.push(Step::Free { block });
                }
                let (block, unit) = (self.new_block(), self.sizes.draw(&mut self.random));
                let bytes = unit / 4;
                steps.push(Step::Allocate {
                    block,
                    bytes,
                    resizable: true,
                });
                self.growing = Some((block, bytes, unit / 8, self.random.between(8, 32)));
                block
            }
        }
    }

    /// A request of the context that is captured: the first one captures it.
    fn captured_request(&mut self, number: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        if number == 0 {
            self.captured = self.random.between(MS, 3 * MS);
            let unit = self.sizes.largest() / 2;
            steps.push(Step::BeginCapture);
            let four = TENTHS.map(|tenths| self.take(unit * tenths / 10, &mut steps));
            steps.push(Step::Work {
                nanoseconds: self.captured,
                blocks: four.into(),
            });
            steps.extend(four.map(|block| Step::Free { block }));
            steps.push(Step::EndCapture);
        }
        steps.push(Step::LaunchGraph {
            nanoseconds: self.captured,
        });
        steps
    }
}

/// A client that loads engines without a stream, and unloads the oldest.
fn engines(requests: usize, random: &mut Random, (sizes, most, pause): ([[u64; 4]; 3], usize, u64)) -> Client {
    let (mut client, mut loaded) = (Client::default(), VecDeque::new());
    client.pause = Some(pause);
    for _ in 0..requests {
        let mut steps = Vec::new();
        if loaded.len() < most {
            let first = client.blocks;
            for bytes in sizes[random.below(sizes.len() as u64) as usize] {
                steps.push(Step::Allocate {
                    block: client.blocks,
                    bytes,
                    resizable: false,
                });
                client.blocks += 1;
            }
            steps.push(Step::Work {
                nanoseconds: MS,
                blocks: (first..client.blocks).collect(),
            });
            loaded.push_back(first..client.blocks);
        } else if let Some(engine) = loaded.pop_front() {
            steps.extend(engine.map(|block| Step::Free { block }));
        }
        client.requests.push(steps);
    }
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Kind; 10] = [
        Kind::Plain,
        Kind::TwoContexts,
        Kind::Outputs,
        Kind::Weights,
        Kind::ForeignFrees,
        Kind::Growth,
        Kind::RareLargest,
        Kind::Engines,
        Kind::SmallEngines,
        Kind::Graph,
    ];

    #[test]
    fn a_seed_draws_the_same_requests_again() {
        let draw = |seed| clients(Kind::Outputs, Sizes::Any(MIB, 9 * MIB), 3, 50, seed);
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn each_block_is_allocated_once_and_freed_at_most_once() {
        for kind in ALL {
            for client in clients(kind, Sizes::Shapes(8 * MIB), 2, 300, 1) {
                let mut live = vec![None; client.blocks];
                for step in client.requests.iter().flatten() {
                    match *step {
                        Step::Allocate { block, bytes, .. } => {
                            assert!(live[block].is_none() && bytes > 0, "{kind:?}");
                            live[block] = Some(true);
                        }
                        Step::Free { block } | Step::Pass { block, .. } => {
                            assert_eq!(live[block].replace(false), Some(true), "{kind:?}");
                        }
                        Step::Resize { block, .. } => assert_eq!(live[block], Some(true), "{kind:?}"),
                        Step::Work { ref blocks, .. } => {
                            assert!(blocks.iter().all(|&block| live[block] == Some(true)), "{kind:?}");
                        }
                        _ => {}
                    }
                }
                let left = live.iter().filter(|state| **state == Some(true)).count();
                let most = if kind == Kind::SmallEngines { 160 } else { 20 };
                assert!(left <= most, "{kind:?}: {left} blocks are never freed");
            }
        }
    }

    #[test]
    fn needs_are_the_largest_sum_of_live_blocks() {
        let most = |kind| clients(kind, Sizes::Shapes(80 * MIB), 1, 400, 1)[0].needs();
        // All of 8 shapes occur in 400 requests.
        assert_eq!(most(Kind::Plain), 584 * MIB);
        assert_eq!(most(Kind::TwoContexts), 2 * 584 * MIB);
        assert_eq!(most(Kind::RareLargest), 876 * MIB);
        // The graph's half beside the largest request.
        assert_eq!(most(Kind::Graph), (584 + 292) * MIB);
        assert!((584 * MIB..(584 + 8 * 80) * MIB).contains(&most(Kind::Outputs)));
    }
}
