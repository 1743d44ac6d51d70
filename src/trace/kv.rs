//! Traces of the keys and values of a language model's requests. Each request has one contiguous block, managed in
//! one of three ways.
//!
//! A request has a prompt and generates its answer token by token, and the answer's length is not known in advance.
//! Lengths are skewed as in public traces: they have the medians published for the conversations of Azure's trace of
//! 2023, and the means published for the conversations of Mooncake's. The rest of the distribution is invented. All
//! numbers are whole.

use super::random::Random;
use super::{Trace, TraceBlock};

/// Prompt and answer lengths in tokens, by decile.
#[derive(Debug, Clone, Copy)]
pub struct Lengths {
    /// The name of the distribution.
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

/// How a request's block grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It has the size of the tokens so far, and is resized for each token.
    Resized,
    /// It has the size of the longest possible request.
    Worst,
    /// It doubles when it is full: a new block is allocated, the contents are copied, and the old block is freed.
    Doubled,
}

/// The trace of the requests' blocks on one stream, and the number of bytes that the application copies.
pub fn trace(lengths: &Lengths, way: Way, bytes_of_token: u64, seed: u64) -> (Trace, u64) {
    const REQUESTS: usize = 300;
    const AT_ONCE: usize = 16;
    struct Request {
        block: TraceBlock,
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
    use crate::trace::OpKind;

    #[test]
    fn each_way_serves_the_same_requests() {
        for lengths in [AZURE, MOONCAKE] {
            let made = [Way::Resized, Way::Worst, Way::Doubled].map(|way| trace(&lengths, way, 1024, 1));
            assert_eq!(made[0], trace(&lengths, Way::Resized, 1024, 1));
            let count = |at: usize, is: fn(&OpKind) -> bool| made[at].0.ops().iter().filter(|op| is(&op.kind)).count();
            let allocations = |at| count(at, |kind| matches!(kind, OpKind::Alloc { .. }));
            let resizes = |at| count(at, |kind| matches!(kind, OpKind::Realloc));
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
