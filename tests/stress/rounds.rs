//! The allocators that are put through it, and what must be true in the end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::driver::Driver;
use trtalloc::driver::sim::{SimConfig, SimDriver};

use crate::client::Client;
use crate::over::open;
use crate::standin::process::exclusive;
use crate::world::{Context, Counts, World};

const DEVICES: i32 = 2;
const MIB: u64 = 1 << 20;

pub struct Round {
    pub options: &'static str,
    /// Its share of all operations.
    pub weight: u64,
    pub failures: bool,
    /// The largest ordinary request.
    largest: u64,
    pub sim: SimConfig,
    /// Through AscendCL's functions instead.
    ascend: bool,
}

pub fn all() -> Vec<Round> {
    let sim = || SimConfig {
        devices: DEVICES as u32,
        memory: 2048 * MIB,
        ..SimConfig::default()
    };
    let round = |options, weight, failures, largest| Round {
        options,
        weight,
        failures,
        largest,
        sim: sim(),
        ascend: false,
    };
    let ascend = |round: Round| Round { ascend: true, ..round };
    let older = |version, round: Round| Round {
        sim: SimConfig { version, ..sim() },
        ..round
    };
    vec![
        round("wait_ms=5", 30, true, 48 * MIB),
        round("limit=256MiB,wait_ms=2", 30, true, 24 * MIB),
        round("limit=192MiB,wait_ms=2", 10, false, 24 * MIB),
        round("release_threshold=0,wait_ms=5", 6, true, 24 * MIB),
        round("limit=256MiB,wait_ms=2,backing=malloc", 8, true, 24 * MIB),
        round("wait_ms=5,streams=trusted", 4, true, 24 * MIB),
        round("wait_ms=2,guard=1", 2, true, 4 * MIB),
        round("wait_ms=2,passthrough=1", 2, true, 4 * MIB),
        round("wait_ms=2,fill=0xcd", 2, true, 4 * MIB),
        older(11_080, round("limit=256MiB,wait_ms=2", 3, true, 24 * MIB)),
        older(12_040, round("limit=256MiB,wait_ms=2", 3, true, 24 * MIB)),
        older(11_020, round("wait_ms=5", 2, true, 24 * MIB)),
        ascend(round("limit=256MiB,wait_ms=2", 2, true, 24 * MIB)),
        ascend(round("wait_ms=5", 2, true, 24 * MIB)),
        ascend(round("limit=256MiB,wait_ms=2,backing=malloc", 1, true, 24 * MIB)),
        round("limit=256MiB,wait_ms=2,peers=0:1", 3, true, 24 * MIB),
    ]
}

/// Runs a round; what it came to, in words.
pub fn run(round: &Round, operations: u64, threads: u64, seed: u64) -> String {
    let simulated = SimDriver::new(round.sim.clone());
    let machine = simulated.machine().clone();
    if round.ascend || !round.sim.stream_ids() {
        // There a handle that comes back is noticed too late; see "Older drivers" in docs/ARCHITECTURE.md.
        machine.keep_handles();
    }
    let installed = round.ascend.then(|| exclusive(machine.clone()));
    let driver: Arc<dyn Driver> = match installed {
        Some(_) => open(false).unwrap(),
        None => simulated,
    };
    let config = Config::parse(round.options).unwrap();
    let mut contexts = Vec::new();
    for device in [0, 0, 1] {
        let handle = match contexts.len() {
            // A context beside the primary one.
            1 => {
                let context = machine.context_create(device).unwrap();
                machine.context_pop().unwrap();
                context
            }
            _ => machine.primary_retain(device).unwrap(),
        };
        machine.context_push(handle).unwrap();
        let streams = vec![
            machine.stream_create(true).unwrap(),
            machine.stream_create(false).unwrap(),
        ];
        machine.context_pop().unwrap();
        contexts.push(Context {
            handle,
            device,
            streams,
        });
    }
    let world = World {
        allocator: Allocator::with_driver(driver, config).unwrap(),
        machine,
        contexts,
        mail: (0..DEVICES).map(|_| Mutex::default()).collect(),
        counts: Counts::default(),
        trusted: round.options.contains("trusted"),
        failures: round.failures,
        peers: round.options.contains("peers"),
        largest: round.largest,
    };
    // What is freed without a stream waits for every context that has used the pool: so each has, before it gets memory
    // from another.
    for context in &world.contexts {
        world.machine.context_push(context.handle).unwrap();
        let block = world.get(512, 0, None);
        world.put(block, None);
        world.machine.context_pop().unwrap();
    }
    std::thread::scope(|scope| {
        let work = |thread: u64| {
            let world = &world;
            scope.spawn(move || {
                let context = (thread % world.contexts.len() as u64) as usize;
                let mut client = Client::new(world, context, seed.wrapping_mul(1_000_003).wrapping_add(thread));
                for _ in 0..operations.div_ceil(threads) {
                    client.step();
                }
                client.finish();
            })
        };
        let threads: Vec<_> = (0..threads).map(work).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                // What the checker knows may be why the application's own call failed.
                println!("faults: {:#?}", world.machine.faults());
                std::panic::resume_unwind(panic);
            }
        }
    });
    finish(&world);
    // A call that fails for a while can fail most requests of a short round.
    let least = operations / if round.failures { 64 } else { 8 };
    assert!(world.counts.given.load(Relaxed) > least, "{}", world.counts);
    world.counts.to_string()
}

/// Nothing was wrong, the books add up, and nothing is left once everything has gone back.
fn finish(world: &World) {
    let machine = &world.machine;
    world.counts.failures.store(machine.failures_struck(), Relaxed);
    machine.clear_failures();
    for (device, mail) in world.mail.iter().enumerate() {
        let context = world.contexts.iter().find(|context| context.device == device as i32);
        machine.context_push(context.unwrap().handle).unwrap();
        for parcel in mail.lock().drain(..) {
            machine.event_destroy(parcel.event).unwrap();
            world.put(parcel.address, None);
        }
        machine.context_pop().unwrap();
    }
    for context in &world.contexts {
        machine.context_push(context.handle).unwrap();
        machine.context_synchronize().unwrap();
        machine.context_pop().unwrap();
    }
    machine.drain_user_objects();
    world.check();
    world.allocator.validate().unwrap();
    let kept = !world.allocator.driver().features().user_objects && world.counts.captures.load(Relaxed) > 0;
    for device in 0..DEVICES {
        let stats = world.allocator.stats(Some(device)).unwrap();
        assert_eq!((stats.allocated, stats.requested), (0, 0), "{stats:?}");
        assert_eq!(stats.allocations, stats.frees, "{stats:?}");
        assert!(stats.pending <= stats.reserved, "{stats:?}");
        // Before CUDA 11.3 nobody tells when a graph is gone: its memory stays.
        if kept {
            continue;
        }
        // Each waits no longer than a request may.
        for _ in 0..1000 {
            world.allocator.trim(Some(device), 0).unwrap();
            if world.allocator.stats(Some(device)).unwrap().reserved == 0 {
                break;
            }
        }
        let stats = world.allocator.stats(Some(device)).unwrap();
        assert_eq!((stats.reserved, stats.pending, stats.cached), (0, 0, 0), "{stats:?}");
    }
    world.allocator.validate().unwrap();
    for _ in 0..1000 {
        world.allocator.close();
        if kept || machine.memory_held() == [0, 0, 0] {
            break;
        }
    }
    world.check();
    assert_eq!(machine.checker().live_blocks(), 0);
    if kept {
        return;
    }
    for device in 0..DEVICES {
        let (free, total) = machine.memory_info(device).unwrap();
        assert_eq!(free, total, "memory is left on device {device}");
    }
    assert_eq!(
        machine.memory_held(),
        [0, 0, 0],
        "reservations, handles and mappings are left"
    );
}
