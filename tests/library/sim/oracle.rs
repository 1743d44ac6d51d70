//! The order checker against a simple model of the same rules: every operation is a node with its predecessors, every
//! use is kept, and order is reachability.

use std::collections::HashSet;

use trtalloc::driver::sim::Machine;

use crate::sim::{MIB, machine, mapped};

const CELL: u64 = 4096;
const CELLS: u64 = 12;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Legacy,
    Blocking,
    Free,
}

struct Line {
    handle: usize,
    kind: Kind,
    tail: Option<usize>,
}

struct Plain {
    before: Vec<Vec<usize>>,
    seen: HashSet<usize>,
    lines: Vec<Line>,
    dead: Vec<usize>,
    uses: Vec<Vec<usize>>,
}

impl Plain {
    fn implied(&self, line: usize) -> Vec<usize> {
        let of = |kind: Kind| self.lines.iter().filter(move |l| l.kind == kind).filter_map(|l| l.tail);
        match self.lines[line].kind {
            Kind::Legacy => of(Kind::Blocking).collect(),
            Kind::Blocking => of(Kind::Legacy).collect(),
            Kind::Free => Vec::new(),
        }
    }

    /// The predecessors of the next operation of a stream.
    fn roots(&self, line: usize) -> Vec<usize> {
        self.lines[line].tail.into_iter().chain(self.implied(line)).collect()
    }

    fn submit(&mut self, line: usize, also: &[usize]) -> usize {
        let mut before = self.roots(line);
        before.extend(also);
        self.before.push(before);
        let node = self.before.len() - 1;
        self.lines[line].tail = Some(node);
        node
    }

    fn ancestors(&self, roots: &[usize]) -> HashSet<usize> {
        let mut found = HashSet::new();
        let mut next = roots.to_vec();
        while let Some(node) = next.pop() {
            if found.insert(node) {
                next.extend(&self.before[node]);
            }
        }
        found
    }

    fn see(&mut self, roots: &[usize]) {
        let found = self.ancestors(roots);
        self.seen.extend(found);
    }

    fn tails(&self) -> Vec<usize> {
        self.lines
            .iter()
            .filter_map(|line| line.tail)
            .chain(self.dead.iter().copied())
            .collect()
    }

    /// Whether cells may be handed out on that stream, or without one.
    fn allowed(&self, first: u64, count: u64, line: Option<usize>) -> bool {
        let behind = line.map(|line| self.ancestors(&self.roots(line))).unwrap_or_default();
        (first..first + count).all(|cell| {
            self.uses[cell as usize]
                .iter()
                .all(|u| behind.contains(u) || self.seen.contains(u))
        })
    }
}

/// One random sequence. Ok(true) where it ended with a hand-out that both models refuse.
fn life(m: &Machine, at: u64, random: &mut Random) -> Result<bool, String> {
    let context = m.context_current().unwrap();
    let kinds = [Kind::Legacy, Kind::Blocking, Kind::Blocking, Kind::Free, Kind::Free];
    let open = |kind| match kind {
        Kind::Legacy => 0,
        kind => m.stream_create(kind == Kind::Free).unwrap(),
    };
    let lines = kinds
        .iter()
        .map(|&kind| Line {
            handle: open(kind),
            kind,
            tail: None,
        })
        .collect();
    let cells = vec![Vec::new(); CELLS as usize];
    let mut plain = Plain {
        before: Vec::new(),
        seen: HashSet::new(),
        lines,
        dead: Vec::new(),
        uses: cells,
    };
    let events: Vec<usize> = (0..3).map(|_| m.event_create().unwrap()).collect();
    let mut recorded: Vec<Vec<usize>> = vec![Vec::new(); events.len()];
    let mut out: Vec<(u64, u64)> = Vec::new();
    let mut history = String::new();
    for _ in 0..200 {
        let line = random.below(kinds.len() as u64) as usize;
        let handle = plain.lines[line].handle;
        let e = random.below(events.len() as u64) as usize;
        let action = random.below(20);
        history += &format!("{action} on {line} with {e}; ");
        match action {
            0..3 if !out.is_empty() => {
                let (first, count) = out[random.below(out.len() as u64) as usize];
                let node = plain.submit(line, &[]);
                let part = 1 + random.below(count);
                m.launch(handle, random.below(10_000), &[(at + first * CELL, part * CELL)])
                    .unwrap();
                (first..first + part).for_each(|cell| plain.uses[cell as usize].push(node));
            }
            3..5 => {
                m.event_record(events[e], handle).unwrap();
                recorded[e] = vec![plain.submit(line, &[])];
            }
            5..8 => {
                m.stream_wait_event(handle, events[e]).unwrap();
                let nodes = recorded[e].clone();
                plain.submit(line, &nodes);
            }
            8 if m.event_query(events[e]).unwrap() => plain.see(&recorded[e]),
            9 if random.below(4) == 0 => {
                m.stream_synchronize(handle).unwrap();
                let mut roots: Vec<usize> = plain.lines[line].tail.into_iter().collect();
                if plain.lines[line].kind == Kind::Legacy {
                    roots.extend(plain.implied(line));
                }
                plain.see(&roots);
            }
            10 if random.below(4) == 0 => {
                m.context_record_event(context, events[e]).unwrap();
                recorded[e] = plain.tails();
            }
            11 if line > 0 && random.below(3) == 0 => {
                m.stream_destroy(handle).unwrap();
                plain.dead.extend(plain.lines[line].tail.take());
                plain.lines[line].handle = open(plain.lines[line].kind);
            }
            12..16 => {
                let (first, count) = (random.below(CELLS), 1 + random.below(3));
                let clash = |&(f, c): &(u64, u64)| first < f + c && f < first + count;
                if first + count > CELLS || out.iter().any(clash) {
                    continue;
                }
                let line = (random.below(5) > 0).then_some(line);
                let allowed = plain.allowed(first, count, line);
                // Most invalid hand-outs are skipped, as an allocator would skip them, so that sequences are long.
                if !allowed && random.below(16) > 0 {
                    continue;
                }
                m.checker()
                    .hand_out(at + first * CELL, count * CELL, line.map(|_| handle));
                let found = m.checker().violations();
                if found.is_empty() != allowed {
                    return Err(format!("should be {allowed}: {found:?} after {history}"));
                }
                if !allowed {
                    return Ok(true);
                }
                out.push((first, count));
            }
            16..20 if !out.is_empty() => {
                let (first, count) = out.swap_remove(random.below(out.len() as u64) as usize);
                let everywhere = random.below(4) == 0;
                m.checker()
                    .give_back(at + first * CELL, (!everywhere).then_some(handle));
                let tail = plain.lines[line].tail.into_iter().collect();
                let nodes: Vec<usize> = if everywhere { plain.tails() } else { tail };
                (first..first + count).for_each(|cell| plain.uses[cell as usize].extend(&nodes));
            }
            _ => m.advance(random.below(5_000)),
        }
    }
    Ok(false)
}

#[test]
fn checker_agrees_with_the_simple_model() {
    let mut wrong = 0;
    let rounds = 2_000;
    for seed in 0..rounds {
        let m = machine();
        let (at, _) = mapped(&m, 2 * MIB);
        match life(&m, at, &mut Random(seed)) {
            Ok(violated) => wrong += u64::from(violated),
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    assert!(
        (rounds / 10..rounds * 9 / 10).contains(&wrong),
        "both outcomes must be common: {wrong} of {rounds}"
    );
}
