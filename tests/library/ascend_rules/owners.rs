//! Each owner writes all bytes that the rule lets it use, and all other bytes stay unchanged: with random sizes,
//! alignments and frees, over real memory, with guard bytes around it.

use std::sync::Mutex;

use proptest::prelude::*;

use super::pool::{HostMemory, PAGE, Pool};

const ROOM: usize = 64 << 10;
/// Guard bytes before and behind the pool's memory.
const GUARD_BYTES: usize = 512;
const GUARD: u8 = 0xee;

#[derive(Debug, Clone, Copy)]
struct Rule {
    options: &'static str,
    pad: u64,
    start: u64,
}

const RULES: &[Rule] = &[
    Rule {
        options: "rule=ascend",
        pad: 32,
        start: 64,
    },
    Rule {
        options: "rule=ascend,pad=16",
        pad: 16,
        start: 64,
    },
    Rule {
        options: "rule=ascend,pad=0",
        pad: 0,
        start: 64,
    },
    Rule {
        options: "rule=ascend-media",
        pad: 32,
        start: 128,
    },
    Rule {
        options: "rule=ascend-host,kind=pinned",
        pad: 32,
        start: 64,
    },
];

impl Rule {
    /// The bytes that the owner of `length` bytes may use, by the manual's formula: ((len - 1) / k + 1) * k, and the
    /// pad.
    fn extent(&self, length: u64) -> u64 {
        ((length - 1) / 32 + 1) * 32 + self.pad
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Get {
        size: u64,
        power: u32,
        stream: Option<usize>,
    },
    Put {
        which: usize,
        stream: Option<usize>,
    },
}

fn size() -> impl Strategy<Value = u64> {
    // Mostly sizes where rounding changes the result.
    prop_oneof![
        3 => (0..64u64, 0..3u64).prop_map(|(thirties, off)| (thirties * 32 + off).max(1)),
        2 => 1..5000u64,
        1 => 5000..(ROOM as u64),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || prop::option::of(1..4usize);
    prop_oneof![
        3 => (size(), 0..13u32, stream()).prop_map(|(size, power, stream)| Step::Get { size, power, stream }),
        2 => (any::<usize>(), stream()).prop_map(|(which, stream)| Step::Put { which, stream }),
    ]
}

/// A block, and the byte that was written to all of it.
struct Block {
    address: usize,
    size: u64,
    byte: u8,
}

/// The pool, its memory with the guard bytes, and the blocks that are handed out.
struct World<'a> {
    memory: &'a HostMemory,
    pool: &'a Pool,
    rule: Rule,
    base: usize,
    bytes: usize,
    /// Whether requests name streams.
    streams: bool,
}

impl World<'_> {
    fn get(&self, size: u64, power: u32, stream: Option<usize>, byte: u8) -> Option<Block> {
        let align = 1 << power;
        let stream = stream.filter(|_| self.streams && align <= self.rule.start);
        let address = match stream {
            Some(stream) => self.pool.get_on(stream << 12, size),
            None => self.pool.get(size, align),
        };
        if address == 0 {
            return None;
        }
        let extent = self.rule.extent(size);
        assert!(address.is_multiple_of(self.rule.start.max(align) as usize));
        assert!(address >= self.base && address + extent as usize <= self.base + self.bytes);
        self.memory.fill(address, extent, byte);
        Some(Block { address, size, byte })
    }

    fn check(&self, block: &Block) {
        let extent = self.rule.extent(block.size);
        assert!(
            self.memory.is(block.address, extent, block.byte),
            "{:#x} was written to",
            block.address
        );
    }

    fn put(&self, block: Block, stream: Option<usize>) {
        self.check(&block);
        let taken = match stream.filter(|_| self.streams) {
            Some(stream) => self.pool.put_on(stream << 12, block.address),
            None => self.pool.put(block.address),
        };
        assert!(taken);
    }
}

fn surrounded(memory: &HostMemory, base: usize, bytes: usize) -> bool {
    let end = base + bytes;
    memory.is(base - GUARD_BYTES, GUARD_BYTES as u64, GUARD) && memory.is(end, GUARD_BYTES as u64, GUARD)
}

fn bring(shift: usize, less: usize) -> (HostMemory, usize, usize) {
    let memory = HostMemory::new(ROOM + 2 * PAGE);
    memory.fill(memory.address(), (ROOM + 2 * PAGE) as u64, GUARD);
    let (base, bytes) = (memory.address() + GUARD_BYTES + shift, ROOM - less);
    (memory, base, bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn owners_write_only_their_bytes(
        rule in 0..RULES.len(),
        shift in 0..300usize,
        less in 0..300usize,
        driver in 0..3usize,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let (memory, base, bytes) = bring(shift, less);
        let rule = RULES[rule];
        // The simulated device has no context here and so no stream ids: streams are as with no driver.
        let driver = ["driver=none", "driver=none,streams=trusted", "driver=sim"][driver];
        let streams = driver.contains("trusted") && !rule.options.contains("pinned");
        let pool = Pool::over(base, bytes as u64, &format!("wait_ms=0,{driver},{}", rule.options)).unwrap();
        let world = World { memory: &memory, pool: &pool, rule, base, bytes, streams };
        let mut live: Vec<Block> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Get { size, power, stream } => live.extend(world.get(size, power, stream, number as u8)),
                Step::Put { which, stream } if !live.is_empty() => {
                    let block = live.swap_remove(which % live.len());
                    world.put(block, stream);
                }
                Step::Put { .. } => {}
            }
        }
        live.iter().for_each(|block| world.check(block));
        let stats = pool.stats();
        prop_assert_eq!(stats.requested, live.iter().map(|block| block.size).sum::<u64>());
        let strides = live.iter().map(|block| rule.extent(block.size).next_multiple_of(rule.start));
        prop_assert_eq!(stats.allocated, strides.sum::<u64>());
        live.into_iter().for_each(|block| world.put(block, None));
        prop_assert!(surrounded(&memory, base, bytes));
        prop_assert_eq!(pool.stats().allocated, 0);
    }
}

#[test]
fn owners_write_only_their_bytes_on_four_threads() {
    for rule in RULES {
        on_four_threads(*rule, "driver=none");
    }
}

/// Each thread has a stream, and frees what others allocated on theirs.
#[test]
fn owners_write_only_their_bytes_on_four_streams() {
    for rule in RULES.iter().filter(|rule| !rule.options.contains("pinned")) {
        on_four_threads(*rule, "driver=none,streams=trusted");
    }
}

fn on_four_threads(rule: Rule, driver: &str) {
    let (memory, base, bytes) = bring(77, 33);
    let pool = Pool::over(base, bytes as u64, &format!("{driver},wait_ms=0,{}", rule.options)).unwrap();
    let world = World {
        memory: &memory,
        pool: &pool,
        rule,
        base,
        bytes,
        streams: driver.contains("trusted"),
    };
    // Blocks pass from thread to thread, too.
    let market = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 1..=4usize {
            let (world, market) = (&world, &market);
            scope.spawn(move || {
                let mut state = thread as u64;
                let mut random = |end: u64| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) % end
                };
                for round in 0..2000 {
                    if random(2) == 0
                        && let Some(block) = world.get(1 + random(4000), random(10) as u32, Some(thread), round as u8)
                    {
                        market.lock().unwrap().push(block);
                    } else {
                        let mut market = market.lock().unwrap();
                        let which = random(market.len().max(1) as u64) as usize;
                        let block = (which < market.len()).then(|| market.swap_remove(which));
                        drop(market);
                        block.into_iter().for_each(|block| world.put(block, Some(thread)));
                    }
                }
            });
        }
    });
    for block in market.into_inner().unwrap() {
        world.put(block, None);
    }
    assert!(surrounded(&memory, base, bytes));
    let stats = pool.stats();
    assert_eq!((stats.allocated, stats.requested, stats.pending), (0, 0, 0));
    assert_eq!(stats.allocations, stats.frees);
    assert!(stats.allocations > 400, "{stats:?}");
}
