//! Runs one case with every pool, in alternating rounds.

use crate::cases::{Case, Round, fits, keeps_blocks_apart};
use crate::common::Rig;
use crate::plain::{BestFit, Exact};
use crate::pools::{Ours, Pool};
use crate::rmm::{self, Rmm};

/// The size of pools that cannot grow: more than any case has in use.
const BYTES: u64 = 23 << 30;

/// A figure is the median of this many rounds, each of about this length.
const ROUNDS: usize = 15;
const ROUND_NANOSECONDS: f64 = 3e6;

/// RMM's two pools; the second is its arena.
const KINDS: [(&str, bool); 2] = [("pool", false), ("arena", true)];

/// A pool that runs a case.
struct Contestant<'a> {
    name: String,
    round: Round<'a>,
    count: u64,
    times: Vec<f64>,
}

impl<'a> Contestant<'a> {
    fn new<P: Pool>(name: impl Into<String>, case: Case, pool: &'a P) -> Contestant<'a> {
        Contestant {
            name: name.into(),
            round: case.prepare(pool),
            count: 100,
            times: Vec::new(),
        }
    }

    fn run(&mut self) -> f64 {
        let time = (self.round)(self.count).unwrap_or_else(|| panic!("{}: refused", self.name));
        self.times.push(time);
        time
    }

    /// Reaches the steady state, and finds how many operations fill a round.
    fn warm_up(&mut self) {
        for _ in 0..3 {
            let time = self.run().max(1.0);
            self.count = (ROUND_NANOSECONDS / time) as u64 + 1;
        }
        self.times.clear();
    }
}

/// Every pool's name and its cell in the row. If nothing is to be `measured`, each pool runs once.
pub fn contest(case: Case, rmm: Option<&Rmm>, measured: bool) -> (Vec<String>, Vec<String>) {
    let rigs = ["checked", "trusted"].map(|streams| (streams, Rig::new(&format!("streams={streams}"))));
    let ours = rigs.each_ref().map(|(streams, rig)| (*streams, Ours::of(rig)));
    let (exact, best_fit) = (Exact::default(), BestFit::new(BYTES));
    let theirs: Vec<_> = rmm
        .iter()
        .flat_map(|rmm| KINDS.map(|(name, arena)| (name, rmm.pool(arena, BYTES).expect("RMM has room"))))
        .collect();
    let mut all = Vec::new();
    for (streams, pool) in &ours {
        all.push(Contestant::new(format!("trtalloc, {streams}"), case, pool));
    }
    all.push(Contestant::new("one mutex, exact sizes", case, &exact));
    all.push(Contestant::new("one mutex, best fit", case, &best_fit));
    for (name, pool) in &theirs {
        all.push(Contestant::new(format!("{} {name}", rmm::NAME), case, pool));
    }
    if measured {
        all.iter_mut().for_each(Contestant::warm_up);
    }
    for round in 0..if measured { ROUNDS } else { 1 } {
        // The order changes from round to round.
        for number in 0..all.len() {
            let turn = (round + number) % all.len();
            all[turn].run();
        }
    }
    let first = all[0].times.clone();
    let cell = |contestant: &Contestant| {
        let times = &contestant.times;
        let ratios = times.iter().zip(&first).map(|(time, first)| time / first);
        let ratio = median(ratios.collect());
        // Two significant digits.
        let digits = (1.0 - ratio.log10().floor()).clamp(2.0, 6.0) as usize;
        format!("{:.1} ({ratio:.digits$})", median(times.clone()))
    };
    let cells = all.iter().map(cell).collect();
    (all.into_iter().map(|contestant| contestant.name).collect(), cells)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Checks that no pool hands out overlapping blocks.
pub fn check(rmm: Option<&Rmm>) {
    let rig = Rig::new("");
    let apart = |name: &str, apart: bool| assert!(apart, "{name}: a block lies over another");
    apart("trtalloc", keeps_blocks_apart(&Ours::of(&rig)));
    apart("exact sizes", keeps_blocks_apart(&Exact::default()));
    apart("best fit", keeps_blocks_apart(&BestFit::new(BYTES)));
    for (rmm, (name, arena)) in rmm.iter().flat_map(|rmm| KINDS.map(|kind| (rmm, kind))) {
        apart(name, keeps_blocks_apart(&rmm.pool(arena, BYTES).expect("RMM has room")));
    }
}

/// The memory that a random case needs, divided by its peak in use: what this project reserves with default settings,
/// and the minimum with which each pool that cannot grow refuses nothing, to a hundredth.
pub fn memory(case: Case, peak: u64, rmm: Option<&Rmm>) -> (Vec<String>, Vec<String>) {
    let rig = Rig::new("");
    assert!(fits(case, &Ours::of(&rig)), "trtalloc: refused");
    let stats = rig.allocator.stats(None).unwrap();
    let ours = stats.reserved_peak as f64 / peak as f64;
    let mut names = vec!["trtalloc, reserved".to_owned()];
    let mut cells = vec![format!("{ours:.2} ({} remaps)", stats.remaps)];
    let mut minimum = |name: String, fits: &dyn Fn(u64) -> bool| {
        // A binary search in hundredths of the peak. It assumes that more memory is never worse.
        let (mut low, mut high) = (99, 400);
        while high - low > 1 {
            let middle = (low + high) / 2;
            // RMM has a granularity of 256 bytes, its arena a larger one.
            let bytes = (peak * middle / 100).next_multiple_of(2 << 20);
            *(if fits(bytes) { &mut high } else { &mut low }) = middle;
        }
        names.push(name);
        cells.push(match high {
            400 => "4 or more".into(),
            _ => format!("{:.2}", high as f64 / 100.0),
        });
    };
    minimum("one mutex, best fit".into(), &|bytes| fits(case, &BestFit::new(bytes)));
    for (rmm, (name, arena)) in rmm.iter().flat_map(|rmm| KINDS.map(|kind| (rmm, kind))) {
        let fits = |bytes| rmm.pool(arena, bytes).is_some_and(|pool| fits(case, &pool));
        minimum(format!("{} {name}", rmm::NAME), &fits);
    }
    (names, cells)
}
