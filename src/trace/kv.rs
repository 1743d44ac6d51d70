//! The keys and values of a language model's requests, in one contiguous block for each request, held in three ways.
//!
//! A request brings a prompt and is answered token by token, and how long the answer gets is not known before. The lengths
//! are skewed as in public traces: the medians published for the conversations of Azure's trace of 2023, and the means
//! published for the conversations of Mooncake's. The distribution between is made up; whole numbers only.

use super::random::Random;
use super::{Block, Trace};

/// Prompt and answer lengths in tokens, by decile.
#[derive(Debug, Clone, Copy)]
pub struct Lengths {
    /// What it is called.
    pub name: &'static str,
    prompt: [u64; 11],
    answer: [u64; 11],
}

/// Short prompts: medians of 1,020 and 129 tokens.
pub const AZURE: Lengths = Lengths {
    name: "Azure",
    prompt: super::generate::PROMPT,
    answer: super::generate::ANSWER,
};

/// Long contexts: means of about 12,000 and 345 tokens.
pub const MOONCAKE: Lengths = Lengths {
    name: "Mooncake",
    prompt: [
        900, 1800, 3000, 4500, 6200, 8000, 10_000, 12_500, 17_000, 25_000, 60_000,
    ],
    answer: [10, 60, 120, 180, 240, 300, 360, 430, 520, 700, 1100],
};

/// How a request's block is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As large as the tokens so far, resized at each.
    Resized,
    /// As large as the longest request there can be.
    Worst,
    /// Of twice the size each time it is full: a new block, a copy, and the old one freed.
    Doubled,
}

/// The requests' blocks as a trace on one stream, and the bytes that the application copies.
pub fn trace(lengths: &Lengths, way: Way, bytes_of_token: u64, seed: u64) -> (Trace, u64) {
    const REQUESTS: usize = 300;
    const AT_ONCE: usize = 16;
    struct Request {
        block: Block,
        capacity: u64,
        tokens: u64,
        to_come: u64,
    }
    let mut random = Random::new(seed);
    let (mut trace, mut copied) = (Trace::new(), 0);
    let stream = trace.stream(0);
    let mut active: Vec<Request> = Vec::new();
    let mut admitted = 0;
    while admitted < REQUESTS || !active.is_empty() {
        if admitted < REQUESTS && active.len() < AT_ONCE && random.percent(10) {
            admitted += 1;
            let tokens = random.from_deciles(&lengths.prompt);
            let to_come = random.from_deciles(&lengths.answer);
            let capacity = match way {
                Way::Worst => lengths.prompt[10] + lengths.answer[10],
                Way::Resized | Way::Doubled => tokens,
            };
            active.push(Request {
                block: trace.alloc(capacity * bytes_of_token, stream),
                capacity,
                tokens,
                to_come,
            });
        }
        for request in &mut active {
            request.tokens += 1;
            request.to_come -= 1;
            if request.tokens <= request.capacity {
                continue;
            }
            match way {
                Way::Resized => {
                    request.capacity = request.tokens;
                    trace.realloc(&request.block, request.capacity * bytes_of_token, stream);
                }
                Way::Worst | Way::Doubled => {
                    copied += request.capacity * bytes_of_token;
                    request.capacity *= 2;
                    let larger = trace.alloc(request.capacity * bytes_of_token, stream);
                    trace.free(std::mem::replace(&mut request.block, larger), stream);
                }
            }
        }
        for done in active.extract_if(.., |request| request.to_come == 0) {
            trace.free(done.block, stream);
        }
    }
    (trace, copied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Kind;

    #[test]
    fn the_same_requests_in_each_way() {
        for lengths in [AZURE, MOONCAKE] {
            let made = [Way::Resized, Way::Worst, Way::Doubled].map(|way| trace(&lengths, way, 1024, 1));
            assert_eq!(made[0], trace(&lengths, Way::Resized, 1024, 1));
            let count = |at: usize, is: fn(&Kind) -> bool| made[at].0.ops().iter().filter(|op| is(&op.kind)).count();
            let allocations = |at| count(at, |kind| matches!(kind, Kind::Alloc { .. }));
            let resizes = |at| count(at, |kind| matches!(kind, Kind::Realloc));
            assert_eq!((allocations(0), allocations(1)), (300, 300));
            assert!(allocations(2) > 300 && resizes(0) > 20_000);
            assert_eq!((made[0].1, made[1].1, resizes(1) + resizes(2)), (0, 0, 0));
            assert!(made[2].1 > 0);
            let peaks = [0, 1, 2].map(|at| made[at].0.peak());
            assert!(peaks[0] < peaks[2] && peaks[2] < peaks[1], "{peaks:?}");
            assert!(made.iter().all(|(trace, _)| trace.leftovers().count() == 0));
        }
    }
}
