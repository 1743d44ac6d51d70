//! A recorded load: the rows of a trace as the callers of a server made them.
//!
//! A *caller* is a stream, or all calls without one. A *request* of a caller is a run of allocations and resizes, and the
//! frees that follow it, up to the caller's next allocation. It queues its work before its first free. The work is as
//! long as the time from the request's first row to that free, since a history does not have the work itself.

use super::workload::MS;
use crate::trace::{Op, OpKind, Trace, rounded};

/// The length of a request's work where the trace has no times, in nanoseconds.
pub const WORK: u64 = 2 * MS;
/// The shortest work, and that of a block which another stream frees.
pub(super) const LEAST_WORK: u64 = 1_000;
/// The longest work of a request. A block that is held for longer is not in use all the time.
const MOST_WORK: u64 = 1_000 * MS;
/// The same for calls without a stream: they load weights, which the streams use then.
const MOST_WORK_WITHOUT_STREAM: u64 = MS;

/// The longest pass, in nanoseconds: two years.
const LONGEST_PASS: f64 = (1u64 << 56) as f64;

/// How the rows of a trace become calls.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// By how much the time between calls is divided.
    pub speed: f64,
    /// The nanoseconds of each request's work; `None`: as the trace has it, or [`WORK`].
    pub work: Option<u64>,
    /// How many requests of a stream the host queues before it waits for the first of them.
    pub ahead: usize,
    /// How often the trace is run.
    pub passes: usize,
}

/// A row's place in the load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The caller.
    pub caller: u32,
    /// The block, by its number among all allocations.
    pub block: u32,
    /// The row of the same block before this one, and the one after it.
    pub before: Option<u32>,
    pub after: Option<u32>,
    /// When the call is made, in nanoseconds since the pass began.
    pub time: u64,
}

/// A request: which of its caller's rows it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// The first row.
    pub begin: u32,
    /// The first free, or the end.
    pub frees: u32,
    /// Behind the last row.
    pub end: u32,
    /// How long its work takes, in nanoseconds.
    pub work: u64,
}

/// A stream, or all calls without one.
#[derive(Debug, Default)]
pub(super) struct Caller {
    /// Its rows, by their index in the trace.
    pub rows: Vec<u32>,
    pub requests: Vec<Part>,
    pub has_stream: bool,
}

/// A block over all its life.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    /// The caller that allocates it.
    pub owner: u32,
    /// Whether the trace never frees it.
    pub stays: bool,
}

/// A trace as a load.
#[derive(Debug)]
pub struct Load<'a> {
    pub(super) ops: &'a [Op],
    pub(super) places: Vec<Place>,
    pub(super) callers: Vec<Caller>,
    pub(super) lives: Vec<Life>,
    pub(super) pace: Pace,
    needs: u64,
}

impl<'a> Load<'a> {
    /// The load of a trace.
    pub fn new(trace: &'a Trace, pace: Pace) -> Load<'a> {
        let mut load = Load {
            ops: trace.ops(),
            places: Vec::with_capacity(trace.ops().len()),
            callers: Vec::new(),
            lives: Vec::new(),
            pace,
            needs: 0,
        };
        load.place(trace);
        load.split(trace.has_times());
        load.needs = load.sum_of_needs();
        load
    }

    /// The sum over the callers of the most bytes that were in use in the name of each, with blocks rounded up as in
    /// [`Trace::peak`]. Blocks that the trace never frees are there from the beginning, too.
    pub fn needs(&self) -> u64 {
        self.needs
    }

    /// How many requests a pass has.
    pub fn requests(&self) -> usize {
        self.callers.iter().map(|caller| caller.requests.len()).sum()
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.callers.iter().filter(|caller| caller.has_stream).count()
    }

    /// How many calls a run makes, over all passes.
    pub fn calls(&self) -> u64 {
        self.ops.len() as u64 * self.pace.passes as u64
    }

    /// Finds the caller and the block of each row.
    fn place(&mut self, trace: &Trace) {
        // Callers in the order of the trace's streams; the last one has no stream.
        let without = trace.streams().len();
        self.callers.resize_with(without + 1, Caller::default);
        // The block and the last row of each slot.
        let mut slots: Vec<Option<(u32, u32)>> = vec![None; trace.blocks()];
        for (row, op) in (0u32..).zip(trace.ops()) {
            let slot = &mut slots[op.block as usize];
            let named = op.stream.map_or(without as u32, u32::from);
            let (caller, block, before) = match (op.kind, *slot) {
                (OpKind::Realloc | OpKind::Free, Some((block, last))) => {
                    // A resize names no stream: it is a call of the one that the block belongs to.
                    let owner = self.lives[block as usize].owner;
                    let of_owner = op.kind == OpKind::Realloc && op.stream.is_none();
                    (if of_owner { owner } else { named }, block, Some(last))
                }
                _ => {
                    self.lives.push(Life {
                        owner: named,
                        stays: true,
                    });
                    (named, (self.lives.len() - 1) as u32, None)
                }
            };
            if let Some(before) = before {
                self.places[before as usize].after = Some(row);
            }
            if op.kind == OpKind::Free {
                self.lives[block as usize].stays = false;
                *slot = None;
            } else {
                *slot = Some((block, row));
            }
            self.places.push(Place {
                caller,
                block,
                before,
                after: None,
                time: (op.time as f64 * 1000.0 / self.pace.speed).min(LONGEST_PASS) as u64,
            });
            self.callers[caller as usize].rows.push(row);
        }
        for caller in &mut self.callers[..without] {
            caller.has_stream = true;
        }
    }

    /// Splits the rows of each caller into requests.
    fn split(&mut self, has_times: bool) {
        let Load { ops, callers, pace, .. } = self;
        for caller in callers {
            let is_free = |at: usize| ops[caller.rows[at] as usize].kind == OpKind::Free;
            let time = |at: usize| ops[caller.rows[at] as usize].time;
            let count = caller.rows.len();
            let mut begin = 0;
            while begin < count {
                let frees = (begin..count).find(|&at| is_free(at)).unwrap_or(count);
                let end = (frees..count).find(|&at| !is_free(at)).unwrap_or(count);
                let recorded = match has_times {
                    true => time(frees.min(count - 1))
                        .saturating_sub(time(begin))
                        .saturating_mul(1000),
                    false => WORK,
                };
                let most = match caller.has_stream {
                    true => MOST_WORK,
                    false => MOST_WORK_WITHOUT_STREAM,
                };
                caller.requests.push(Part {
                    begin: begin as u32,
                    frees: frees as u32,
                    end: end as u32,
                    work: pace.work.unwrap_or(recorded).min(most).max(LEAST_WORK),
                });
                begin = end;
            }
        }
    }

    fn sum_of_needs(&self) -> u64 {
        let mut sizes = vec![0u64; self.lives.len()];
        let mut callers = vec![(0u64, 0u64); self.callers.len()];
        // In the second pass, what the trace never frees is there from the beginning.
        for _ in 0..self.pace.passes.min(2) {
            for (op, place) in self.ops.iter().zip(&self.places) {
                let size = &mut sizes[place.block as usize];
                let (in_use, most) = &mut callers[self.lives[place.block as usize].owner as usize];
                let now = match op.kind {
                    OpKind::Alloc { .. } if *size > 0 => *size,
                    OpKind::Alloc { .. } | OpKind::Realloc => rounded(op.bytes),
                    OpKind::Free => 0,
                };
                *in_use = in_use.saturating_sub(*size).saturating_add(now);
                *most = (*most).max(*in_use);
                *size = now;
            }
        }
        let sum = callers.iter().fold(0u64, |sum, (_, most)| sum.saturating_add(*most));
        sum.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        Pace {
            speed: 1.0,
            work: None,
            ahead: 2,
            passes: 2,
        }
    }

    fn part(begin: u32, frees: u32, end: u32, work: u64) -> Part {
        Part {
            begin,
            frees,
            end,
            work,
        }
    }

    fn trace(text: &str) -> Trace {
        crate::trace::csv::read(format!("op,id,bytes,stream,thread,time_us\n{text}").as_bytes()).unwrap()
    }

    #[test]
    fn a_request_is_a_run_of_allocations_and_the_frees_after_it() {
        let trace = trace(
            "alloc,0,512,7,,0\nalloc,1,512,7,,40\nalloc,9,512,,,50\nfree,0,0,7,,300\nrealloc,1,2048,,,310\n\
             alloc,2,512,7,,320\nfree,1,0,7,,330\nfree,2,0,7,,340\nalloc,3,512,7,,9000000\nfree,9,0,,,9000010\n",
        );
        let load = Load::new(&trace, pace());
        assert_eq!((load.streams(), load.requests(), load.calls()), (1, 4, 20));
        let expected = [part(0, 2, 3, 300_000), part(3, 5, 7, 20_000), part(7, 8, 8, LEAST_WORK)];
        assert_eq!(load.callers[0].requests, expected);
        // Weights are held for nine seconds, but loading them is short.
        assert_eq!(load.callers[1].requests, [part(0, 1, 2, MS)]);
        // 2048 + 512 bytes of the stream's, and in the second pass 512 that it never frees, and 512 without a stream.
        assert_eq!(load.needs(), 2048 + 512 + 512 + 512);
        let faster = Load::new(&trace, Pace { speed: 10.0, ..pace() });
        assert_eq!((faster.places[1].time, load.places[1].time), (4_000, 40_000));
        assert_eq!(faster.callers[0].requests, expected);
        let given = Load::new(
            &trace,
            Pace {
                work: Some(5 * MS),
                ..pace()
            },
        );
        assert!(given.callers[0].requests.iter().all(|part| part.work == 5 * MS));
    }

    #[test]
    fn without_times_all_work_has_one_length() {
        let trace = crate::trace::csv::read(&b"op,id,bytes\nalloc,0,1\nfree,0,1\nalloc,0,1\n"[..]).unwrap();
        let load = Load::new(&trace, pace());
        assert_eq!(load.callers[0].requests, [part(0, 1, 2, WORK), part(2, 3, 3, WORK)]);
        let empty = Trace::new();
        let load = Load::new(&empty, pace());
        assert_eq!((load.requests(), load.streams(), load.needs()), (0, 0, 1));
    }
}
