//! Generates traces from a seed: the same rows on every machine.
//!
//! They resemble inference in general, not one program: long-lived weights without a stream, short-lived activations
//! in stack order, even shorter-lived workspaces, and key-value blocks that live as long as a request. No trace
//! repeats the same sizes, which makes them hard for a pool.

use super::random::Random;
use super::{OpKind, Trace, TraceBlock};

/// The traces that [`generate`] knows, with a description of each.
pub const NAMES: [(&str, &str); 5] = [
    (
        "serving",
        "a language model serving requests of skewed lengths, key-value blocks of 64 tokens",
    ),
    (
        "growing",
        "the same, each request's keys and values in one block that is resized",
    ),
    (
        "varying",
        "vision and text networks on one stream, every iteration of another shape",
    ),
    ("streams", "four streams with an engine each, working at once"),
    ("large", "blocks of 0.9 to 3 GiB on one stream, small ones among them"),
];

/// Generates the trace with that name; `None` for an unknown name.
pub fn generate(name: &str, seed: u64) -> Option<Trace> {
    match name {
        "serving" => Some(serving(seed, false)),
        "growing" => Some(serving(seed, true)),
        "varying" => Some(varying(seed)),
        "streams" => Some(streams(seed)),
        "large" => Some(large(seed)),
        _ => None,
    }
}

const MIB: u64 = 1 << 20;

/// The sizes of a transformer, with two bytes for each number.
struct Model {
    hidden: u64,
    layers: u64,
    vocabulary: u64,
}

impl Model {
    /// Attention and feed-forward weights of all layers.
    fn weights(&self) -> u64 {
        self.layers * 12 * self.hidden * self.hidden * 2
    }

    /// Keys and values of one token in all layers, four query heads to a key head.
    fn kv_of_token(&self) -> u64 {
        self.layers * self.hidden
    }

    /// One pass over `tokens` tokens: activations in stack order, a workspace in some layers.
    fn pass(&self, trace: &mut Trace, random: &mut Random, tokens: u64, stream: Option<u16>) {
        let width = |factor: u64| tokens * self.hidden * factor * 2;
        let mut hidden = trace.alloc(width(1), stream);
        for _ in 0..self.layers {
            let qkv = trace.alloc(width(2), stream);
            let workspace = random
                .percent(40)
                .then(|| trace.alloc(random.between(4 << 10, 2 * MIB), stream));
            let attended = trace.alloc(width(1), stream);
            trace.free(qkv, stream);
            if let Some(workspace) = workspace {
                trace.free(workspace, stream);
            }
            let inner = trace.alloc(width(4), stream);
            let next = trace.alloc(width(1), stream);
            trace.free(inner, stream);
            trace.free(attended, stream);
            trace.free(hidden, stream);
            hidden = next;
        }
        trace.free(hidden, stream);
    }
}

/// A request that is being processed.
struct Request {
    kv: Vec<TraceBlock>,
    room: u64,
    tokens: u64,
    to_come: u64,
}

/// Prompt and answer lengths in tokens, by decile, skewed as in public request traces. The medians, 1,020 and 129,
/// are those published for the conversations in Azure's language-model trace of 2023.
pub(super) const PROMPT: [u64; 11] = [16, 130, 330, 560, 800, 1020, 1200, 1400, 1900, 2900, 4000];
pub(super) const ANSWER: [u64; 11] = [8, 24, 50, 80, 105, 129, 170, 230, 330, 430, 1000];

fn serving(seed: u64, growing: bool) -> Trace {
    const REQUESTS: usize = 200;
    const AT_ONCE: usize = 16;
    const TOKENS_OF_BLOCK: u64 = 64;
    let model = Model {
        hidden: 1024,
        layers: 12,
        vocabulary: 32_000,
    };
    let mut random = Random::new(seed);
    let mut trace = Trace::new();
    let weights = [model.weights(), model.vocabulary * model.hidden * 2].map(|bytes| trace.alloc(bytes, None));
    let stream = trace.stream(0);
    let mut active: Vec<Request> = Vec::new();
    let mut admitted = 0;
    while admitted < REQUESTS || !active.is_empty() {
        if admitted < REQUESTS && active.len() < AT_ONCE && random.percent(10) {
            admitted += 1;
            let tokens = random.from_deciles(&PROMPT);
            let room = tokens.next_multiple_of(16);
            let kv = vec![trace.alloc(room * model.kv_of_token(), stream)];
            model.pass(&mut trace, &mut random, tokens, stream);
            active.push(Request {
                kv,
                room,
                tokens,
                to_come: random.from_deciles(&ANSWER),
            });
        }
        if active.is_empty() {
            continue;
        }
        decode(&model, &mut trace, active.len() as u64, stream);
        for request in &mut active {
            request.tokens += 1;
            request.to_come -= 1;
            if request.tokens > request.room {
                request.room += TOKENS_OF_BLOCK;
                match request.kv.first() {
                    Some(kv) if growing => trace.realloc(kv, request.room * model.kv_of_token(), stream),
                    _ => request
                        .kv
                        .push(trace.alloc(TOKENS_OF_BLOCK * model.kv_of_token(), stream)),
                }
            }
        }
        for done in active.extract_if(.., |request| request.to_come == 0) {
            for block in done.kv {
                trace.free(block, stream);
            }
        }
    }
    for block in weights {
        trace.free(block, None);
    }
    trace
}

/// Decodes one token for each of `batch` requests.
fn decode(model: &Model, trace: &mut Trace, batch: u64, stream: Option<u16>) {
    let hidden = trace.alloc(batch * model.hidden * 2, stream);
    let inner = trace.alloc(batch * model.hidden * 8, stream);
    let logits = trace.alloc(batch * model.vocabulary * 4, stream);
    trace.free(inner, stream);
    trace.free(hidden, stream);
    let sorted = trace.alloc(batch * model.vocabulary * 8, stream);
    trace.free(logits, stream);
    trace.free(sorted, stream);
}

/// Runs an image network on `batch` images of `side` pixels. Feature maps shrink, and some stay for the heads at the
/// end.
fn vision(trace: &mut Trace, random: &mut Random, batch: u64, side: u64, stream: Option<u16>) {
    let map = |side: u64, channels: u64| batch * side * side * channels * 2;
    let mut kept = Vec::new();
    let mut input = trace.alloc(map(side, 3), stream);
    let (mut side, mut channels) = (side / 2, 64);
    while side >= 7 {
        for _ in 0..random.between(2, 5) {
            let output = trace.alloc(map(side, channels), stream);
            if random.percent(35) {
                let workspace = trace.alloc(random.between(MIB / 2, 48 * MIB), stream);
                trace.free(workspace, stream);
            }
            trace.free(input, stream);
            input = output;
        }
        let output = trace.alloc(map(side / 2, channels * 2), stream);
        kept.push(std::mem::replace(&mut input, output));
        (side, channels) = (side / 2, channels * 2);
    }
    trace.free(input, stream);
    for map in kept.into_iter().rev() {
        let head = trace.alloc(random.between(64 << 10, 4 * MIB), stream);
        trace.free(map, stream);
        trace.free(head, stream);
    }
}

fn varying(seed: u64) -> Trace {
    const ITERATIONS: u64 = 600;
    let model = Model {
        hidden: 1024,
        layers: 12,
        vocabulary: 32_000,
    };
    let mut random = Random::new(seed);
    let mut trace = Trace::new();
    let stream = trace.stream(0);
    for _ in 0..ITERATIONS {
        if random.percent(50) {
            let (batch, side) = (random.between(1, 32), random.between(96, 384));
            vision(&mut trace, &mut random, batch, side, stream);
        } else {
            let tokens = random.between(1, 16) * random.between(16, 1024);
            model.pass(&mut trace, &mut random, tokens, stream);
        }
    }
    trace
}

fn streams(seed: u64) -> Trace {
    const STREAMS: u64 = 4;
    const ITERATIONS: u64 = 150;
    let mut random = Random::new(seed);
    let mut engines = Vec::new();
    for number in 0..STREAMS {
        let mut engine = Trace::new();
        let stream = engine.stream(number);
        let model = Model {
            hidden: 512 + 256 * number,
            layers: 6 + 3 * number,
            vocabulary: 32_000,
        };
        let weights = engine.alloc(model.weights(), None);
        for _ in 0..ITERATIONS {
            // The context's scratch memory for this shape, allocated around the requests of the shape itself.
            let scratch = engine.alloc(random.between(MIB, 24 * MIB), stream);
            if number % 2 == 0 {
                let tokens = random.from_deciles(&PROMPT);
                model.pass(&mut engine, &mut random, tokens, stream);
            } else {
                let (batch, side) = (random.between(1, 8), random.between(128, 320));
                vision(&mut engine, &mut random, batch, side, stream);
            }
            engine.free(scratch, stream);
        }
        engine.free(weights, None);
        engines.push(engine);
    }
    interleave(&engines, &mut random)
}

fn large(seed: u64) -> Trace {
    const BLOCKS: usize = 12_000;
    const MAX_IN_USE: u64 = 8 << 30;
    let mut random = Random::new(seed);
    let mut trace = Trace::new();
    let stream = trace.stream(0);
    let mut live: Vec<(TraceBlock, u64)> = Vec::new();
    let mut in_use = 0;
    for _ in 0..BLOCKS {
        let bytes = if random.percent(40) {
            random.between(900, 3072) * MIB
        } else {
            random.between(1, 64) << random.below(19)
        };
        while in_use + bytes > MAX_IN_USE || live.len() > 64 {
            let (block, bytes) = live.swap_remove(random.below(live.len() as u64) as usize);
            in_use -= bytes;
            trace.free(block, stream);
        }
        live.push((trace.alloc(bytes, stream), bytes));
        in_use += bytes;
    }
    for (block, _) in live {
        trace.free(block, stream);
    }
    trace
}

/// Interleaves the rows of several traces in runs of random length. Each trace keeps its order.
fn interleave(sources: &[Trace], random: &mut Random) -> Trace {
    let mut trace = Trace::new();
    let mut rest: Vec<_> = sources.iter().map(|source| source.ops().iter()).collect();
    let mut blocks: Vec<Vec<Option<TraceBlock>>> = sources
        .iter()
        .map(|source| (0..source.blocks()).map(|_| None).collect())
        .collect();
    while rest.iter().any(|rows| rows.len() > 0) {
        let from = random.below(sources.len() as u64) as usize;
        for op in rest[from].by_ref().take(random.between(1, 40) as usize) {
            let stream = op
                .stream
                .and_then(|stream| trace.stream(sources[from].streams()[stream as usize]));
            let block = &mut blocks[from][op.block as usize];
            match (op.kind, block.take()) {
                (OpKind::Alloc { .. }, _) => *block = Some(trace.alloc(op.bytes, stream)),
                (OpKind::Free, Some(live)) => trace.free(live, stream),
                (OpKind::Realloc, Some(live)) => {
                    trace.realloc(&live, op.bytes, stream);
                    *block = Some(live);
                }
                (OpKind::Free | OpKind::Realloc, None) => {}
            }
        }
    }
    trace
}
