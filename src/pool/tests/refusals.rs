//! No request is refused that a trim makes possible: all free memory counts, on whichever stream it was freed, and
//! wherever it lies.

use super::faults::in_full;
use super::{Bench, MIB, RESIZABLE};
use crate::allocator::{Allocator, Request};
use crate::driver::Stream;
use crate::driver::sim::{SimConfig, SimDriver};
use crate::support::config::Config;
use crate::support::error::Result;
use crate::trace::random::Random;

#[test]
fn own_idle_segments_make_room_for_a_larger_one() {
    for (options, live, freed, wanted) in [
        ("limit=100MiB", 27, 35, 38),
        // The reserve is one segment, and the stream's own once it was used.
        ("limit=64MiB,reserve=31MiB", 0, 28, 33),
    ] {
        for backing in ["malloc", "vmm"] {
            let bench = Bench::new(&format!("{options},backing={backing},wait_ms=0"));
            let stream = Some(bench.stream());
            let kept = (live > 0).then(|| bench.get(live * MIB, stream));
            let block = bench.get(freed * MIB, stream);
            bench.put(block, stream);
            let block = bench.request(wanted * MIB, 0, stream);
            bench.put(
                block.unwrap_or_else(|why| panic!("{options}, {backing}: {why}")),
                stream,
            );
            kept.into_iter().for_each(|block| bench.put(block, stream));
            bench.machine.advance(1 << 40);
            end(bench);
        }
    }
}

/// All blocks were freed. The reserve goes back with the allocator.
fn end(bench: Bench) {
    bench.allocator.close();
    assert_eq!(bench.wrong(), Vec::<String>::new());
    let (free, total) = bench.app(|machine| machine.memory_info(0)).unwrap();
    assert_eq!(free, total, "memory is left");
}

/// Two whole handles are free, and the limit allows none behind them. Behind the free half of a handle in use, they suffice.
#[test]
fn free_part_of_a_used_handle_counts() {
    let bench = Bench::new("limit=6MiB,wait_ms=0");
    let (first, second) = (Some(bench.stream()), Some(bench.stream()));
    let half = bench.get(MIB, first);
    let block = bench.get(4 * MIB, second);
    bench.put(block, second);
    let block = bench.get(5 * MIB, first);
    [half, block].into_iter().for_each(|block| bench.put(block, first));
    bench.finish();
}

/// The device has a part of what a block lacks, and the pool has the rest in handles that do not fit.
#[test]
fn growth_on_a_full_device_gets_what_the_pool_has_free() {
    let bench = Bench::new("wait_ms=0");
    bench.machine.others_hold(0, (1 << 30) - 64 * MIB).unwrap();
    let stream = Some(bench.stream());
    let block = bench.request(2 * MIB, RESIZABLE, stream).unwrap();
    let freed = bench.get(30 * MIB, stream);
    bench.put(freed, stream);
    let block = bench.resize(block, 2 * MIB, 50 * MIB).unwrap();
    bench.put(block, stream);
    bench.machine.others_hold(0, 0).unwrap();
    bench.finish();
}

/// The streams need more than the device has, one after the other. So the pool asks the driver for what a request lacks.
#[test]
fn cached_ranges_make_room_where_all_memory_is_the_reserve() {
    let bench = Bench::new("reserve=64MiB,wait_ms=0");
    bench.machine.others_hold(0, (1 << 30) - 64 * MIB).unwrap();
    let streams = [(); 3].map(|()| Some(bench.stream()));
    for stream in streams {
        let block = bench.get(45 * MIB, stream);
        bench.put(block, stream);
    }
    let kept = bench.get(10 * MIB, None);
    let blocks = [(); 2].map(|()| bench.request(20 * MIB, RESIZABLE, streams[0]).unwrap());
    blocks.into_iter().for_each(|block| bench.put(block, streams[0]));
    let block = bench.get(45 * MIB, None);
    [kept, block].into_iter().for_each(|block| bench.put(block, None));
    bench.machine.others_hold(0, 0).unwrap();
    bench.machine.advance(1 << 40);
    end(bench);
}

/// A refused request returns no segment to the driver that it could not have replaced.
#[test]
fn request_that_cannot_be_met_costs_no_segment() {
    let bench = Bench::new("limit=100MiB,backing=malloc,wait_ms=0");
    let stream = Some(bench.stream());
    let blocks = [stream, None].map(|stream| (bench.get(30 * MIB, stream), stream));
    blocks.into_iter().for_each(|(block, stream)| bench.put(block, stream));
    let before = bench.allocator.stats(Some(0)).unwrap().reserved;
    for stream in [stream, None] {
        assert!(bench.request(101 * MIB, 0, stream).is_err());
        assert_eq!(bench.allocator.stats(Some(0)).unwrap().reserved, before);
    }
    bench.finish();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backing {
    Vmm,
    Malloc,
    External,
}

/// What is drawn for one run.
#[derive(Debug)]
struct Case {
    seed: u64,
    backing: Backing,
    version: u32,
    reserve: u64,
    /// The limit, or the device's memory.
    most: u64,
    of_device: bool,
    streams: u64,
    resizable: bool,
    /// How many of 100 blocks are used by work that is queued.
    work: u64,
    /// Work ends within a wait; otherwise no call waits.
    waits: bool,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut random = Random::new(seed);
        let mut of = |choices: [u64; 3]| choices[random.below(3) as usize];
        let version = of([12_090, 12_040, 11_080]) as u32;
        Case {
            seed,
            backing: [Backing::Vmm, Backing::Malloc, Backing::External][of([0, 1, 2]) as usize],
            version,
            reserve: of([0, 31, 64]) * MIB,
            most: of([64, 100, 150]) * MIB,
            of_device: of([0, 0, 1]) == 1,
            streams: of([1, 2, 4]),
            resizable: of([0, 1, 1]) == 1,
            work: of([0, 50, 100]),
            // Without context events, a thread waits for the work, in time that is not simulated.
            waits: version < 12_050 || of([0, 1, 1]) == 1,
        }
    }

    fn bench(&self) -> Bench {
        let driver = SimDriver::new(SimConfig {
            memory: match self.of_device && self.backing != Backing::External {
                true => self.most,
                false => 1 << 30,
            },
            version: self.version,
            contents: false,
            ..SimConfig::default()
        });
        let machine = driver.machine().clone();
        let context = machine.primary_retain(0).unwrap();
        machine.context_push(context).unwrap();
        let wait = if self.waits { 60_000 } else { 0 };
        let config = |more: &str| Config::parse(&format!("decay_ms=0,wait_ms={wait}{more}")).unwrap();
        let limit = if self.of_device { 0 } else { self.most };
        let allocator = match self.backing {
            Backing::External => {
                let base = machine.memory_malloc(self.most).unwrap();
                Allocator::over_with_driver(driver, base, self.most, config(""))
            }
            Backing::Vmm | Backing::Malloc => {
                let backing = format!("{:?}", self.backing).to_lowercase();
                let more = format!(",backing={backing},reserve={},limit={limit}", self.reserve);
                Allocator::with_driver(driver, config(&more))
            }
        };
        Bench {
            machine,
            allocator: allocator.unwrap(),
        }
    }
}

/// A live block, and the stream that it was requested on.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    size: u64,
    flags: u32,
    home: Option<usize>,
}

struct Run<'a> {
    case: &'a Case,
    bench: &'a Bench,
    random: Random,
    streams: Vec<usize>,
    live: Vec<Block>,
    refused: u64,
}

impl Run<'_> {
    fn step(&mut self) {
        match self.random.below(64) {
            0..32 => self.get(),
            32..58 => self.put(),
            58..61 => self.resize(),
            61 => self.replace_stream(),
            _ => self.bench.app(|machine| machine.advance(2_000_000_000)),
        }
    }

    /// After a refusal, a trim and a second attempt, which is refused, too. A driver's cuMemFree waits for work: where
    /// requests do not, that may have made the second one possible.
    fn attempt(&mut self, what: String, request: impl Fn(&Bench) -> Result<u64>) -> Option<u64> {
        let begin = self.bench.machine.now();
        let why = match request(self.bench) {
            Ok(address) => return Some(address),
            Err(why) => why,
        };
        self.refused += 1;
        self.bench.allocator.trim(Some(0), 0).unwrap();
        let again = request(self.bench).ok()?;
        let waited = !self.case.waits && self.bench.machine.now() - begin > 100_000_000;
        assert!(waited, "{:?}: {what} was refused until a trim: {why}", self.case);
        Some(again)
    }

    fn size(&mut self) -> u64 {
        let most = match self.random.below(16) {
            0 => self.case.most,
            1..=3 => self.case.most / 2,
            4..=8 => self.case.most / 8,
            9..=12 => 3 * MIB,
            _ => 64 << 10,
        };
        1 + self.random.below(most)
    }

    fn stream(&mut self) -> usize {
        self.streams[self.random.below(self.case.streams) as usize]
    }

    fn get(&mut self) {
        let (size, stream) = (self.size(), self.stream());
        let flags = if self.case.resizable && self.random.percent(40) {
            RESIZABLE
        } else {
            0
        };
        let home = self.random.percent(75).then_some(stream);
        let alignment = if self.random.percent(10) { MIB } else { 0 };
        let what = format!("{size} bytes, flags {flags}, alignment {alignment}, on {home:?}");
        let address = self.attempt(what, |bench| {
            let request = Request {
                size,
                alignment,
                flags,
                stream: home.map(Stream),
                device: None,
            };
            let address = bench.allocator.allocate(request)?;
            bench.machine.checker().hand_out(address, size, home);
            Ok(address)
        });
        let Some(address) = address else { return };
        if self.random.percent(self.case.work) {
            let length = if self.case.waits { 1_000_000 } else { 500_000_000 };
            let used = [(address, size)];
            self.bench.app(|machine| machine.launch(stream, length, &used)).unwrap();
        }
        self.live.push(Block {
            address,
            size,
            flags,
            home,
        });
    }

    fn resize(&mut self) {
        let resizable = (0..self.live.len()).filter(|at| self.live[*at].flags == RESIZABLE);
        let resizable: Vec<usize> = resizable.collect();
        if resizable.is_empty() {
            return;
        }
        let at = resizable[self.random.below(resizable.len() as u64) as usize];
        let (Block { address, size: had, .. }, size) = (self.live[at], self.size());
        let what = format!("a resize from {had} to {size} bytes");
        if let Some(address) = self.attempt(what, |bench| bench.resize(address, had, size)) {
            (self.live[at].address, self.live[at].size) = (address, size);
        }
    }

    /// Frees a block on its stream, on another one behind it, or without one.
    fn put(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let block = self.live.swap_remove(at);
        let other = self.stream();
        match (block.home, self.random.below(8)) {
            (None, _) | (_, 0) => self.bench.put(block.address, None),
            (Some(home), 1) => {
                self.bench.app(|machine| {
                    let event = machine.event_create().unwrap();
                    machine.event_record(event, home).unwrap();
                    machine.stream_wait_event(other, event).unwrap();
                    machine.event_destroy(event).unwrap();
                });
                self.bench.put(block.address, Some(other));
            }
            (home, _) => self.bench.put(block.address, home),
        }
    }

    /// Destroys a stream with work pending on what it freed. Its live blocks are freed without a stream.
    fn replace_stream(&mut self) {
        let at = self.random.below(self.case.streams) as usize;
        let dying = std::mem::replace(&mut self.streams[at], self.bench.stream());
        for block in &mut self.live {
            block.home = block.home.filter(|home| *home != dying);
        }
        self.bench.app(|machine| machine.stream_destroy(dying)).unwrap();
    }
}

#[test]
fn no_refusal_is_cured_by_a_trim() {
    let (runs, operations) = if in_full() { (600, 400) } else { (48, 250) };
    let mut refused = 0;
    for seed in 0..runs {
        let case = Case::new(seed);
        let bench = case.bench();
        let mut run = Run {
            case: &case,
            bench: &bench,
            random: Random::new(case.seed),
            streams: (0..case.streams).map(|_| bench.stream()).collect(),
            live: Vec::new(),
            refused: 0,
        };
        (0..operations).for_each(|_| run.step());
        refused += run.refused;
        std::mem::take(&mut run.live)
            .into_iter()
            .for_each(|block| bench.put(block.address, None));
        bench.app(|machine| machine.context_synchronize()).unwrap();
        assert_eq!(bench.wrong(), Vec::<String>::new(), "{case:?}");
        bench
            .allocator
            .validate()
            .unwrap_or_else(|why| panic!("{case:?}: {why}"));
        bench.allocator.close();
    }
    assert!(refused > runs, "only {refused} requests were refused");
}
