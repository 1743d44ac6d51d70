//! A round: the threads' work on one allocator, and the checks at its end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use trtalloc::allocator::Allocator;

use crate::client::Client;
use crate::machine::Machine;
use crate::world::{Context, Counts, World};

/// The settings of a round.
pub struct Rules<'r> {
    pub options: &'r str,
    pub devices: i32,
    pub failures: bool,
    /// The largest ordinary request.
    pub largest: u64,
    /// Whether short-lived contexts are used.
    pub short_lived: bool,
    /// Whether a thread uses streams of another thread's context.
    pub crossing: bool,
    /// The maximum of threads with a default stream of their own.
    pub max_thread_streams: u64,
    /// How many clients take turns on each thread.
    pub clients: u64,
    /// Whether engines are loaded and unloaded without a stream.
    pub engines: bool,
}

/// Runs a round of that many operations. Returns a summary.
pub fn play(
    machine: Arc<Machine>,
    allocator: Arc<Allocator>,
    rules: &Rules,
    operations: u64,
    threads: u64,
    seed: u64,
) -> String {
    let ended = machine.captures_ended();
    let exempt = machine.exempt();
    let mut contexts = Vec::new();
    for device in [0, 0, rules.devices - 1] {
        let handle = match contexts.len() {
            // A context in addition to the primary one.
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
    drop(exempt);
    let malloc = ["backing=malloc", "passthrough=1"]
        .iter()
        .any(|option| rules.options.contains(option));
    let world = World {
        allocator,
        machine,
        contexts,
        mail: (0..rules.devices).map(|_| Mutex::default()).collect(),
        counts: Counts::default(),
        trusted: rules.options.contains("trusted"),
        failures: rules.failures,
        // The driver's malloc gives peers no access.
        peers: rules.options.contains("peers") && !malloc,
        largest: rules.largest,
        short_lived: rules.short_lived,
        crossing: rules.crossing,
        max_thread_streams: rules.max_thread_streams,
        engines: rules.engines,
        // The process says that it captures, and memory may grow.
        spares_captures: rules.options.contains("captures=1") && !rules.failures,
    };
    // A free without a stream waits for the primary contexts, and for others that have used the pool. So this one uses it
    // before it gets memory from another.
    for context in &world.contexts[1..2] {
        world.app(|machine| machine.context_push(context.handle).unwrap());
        let block = world.get(512, 0, None);
        if block != 0 {
            world.put(block, None);
        }
        world.app(|machine| machine.context_pop().unwrap());
    }
    std::thread::scope(|scope| {
        let work = |thread: u64| {
            let world = &world;
            scope.spawn(move || {
                let made = |client| {
                    let number = thread * rules.clients + client;
                    let context = (number % world.contexts.len() as u64) as usize;
                    Client::new(world, context, seed.wrapping_mul(1_000_003).wrapping_add(number))
                };
                let operations = operations.div_ceil(threads);
                if rules.clients == 1 {
                    let mut client = made(0);
                    (0..operations).for_each(|_| client.step());
                    return client.finish();
                }
                let mut clients: Vec<Client> = (0..rules.clients).map(made).inspect(Client::leave).collect();
                let mut left = operations;
                while left > 0 {
                    // They take turns of 1 to 11 operations each.
                    for (at, client) in (left..).zip(&mut clients) {
                        let turn = left.min(1 + at * 7 % 11);
                        client.enter();
                        (0..turn).for_each(|_| client.step());
                        client.leave();
                        left -= turn;
                    }
                }
                for client in clients {
                    client.enter();
                    client.finish();
                }
            })
        };
        let threads: Vec<_> = (0..threads).map(work).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                // The checker's faults may explain why the application's own call failed.
                println!("faults: {:#?}", world.machine.faults());
                std::panic::resume_unwind(panic);
            }
        }
    });
    finish(&world, rules, ended);
    // A call that fails for a while can make most requests of a short round fail. So can a limit of few pages, where each
    // block has pages of its own.
    let few = rules.failures || rules.options.contains("guard=1");
    let minimum = operations / if few { 64 } else { 8 };
    assert!(world.counts.allocated.load(Relaxed) > minimum, "{}", world.counts);
    world.counts.to_string()
}

/// Checks that there was no violation, that no capture was ended, that the statistics are consistent, and that nothing is
/// left once everything was freed. `ended` is how many captures had been ended when the round began.
fn finish(world: &World, rules: &Rules, ended: u64) {
    let machine = &world.machine;
    let ended = machine.captures_ended() - ended;
    world.counts.captures_ended.store(ended, Relaxed);
    let devices = 0..world.mail.len() as i32;
    let stats = devices.map(|device| (device, world.allocator.stats(Some(device)).unwrap()));
    let full = |device| machine.memory_info(device).unwrap().1 / 16 * 15;
    if world.spares_captures && stats.clone().all(|(device, stats)| stats.reserved_peak < full(device)) {
        assert_eq!(ended, 0, "captures were ended while memory could grow");
        let refused: u64 = stats.map(|(_, stats)| stats.out_of_memory).sum();
        assert_eq!(refused, 0, "requests were refused while memory could grow");
    }
    world.counts.failures.store(machine.failures_struck(), Relaxed);
    machine.clear_failures();
    for device in 0..world.mail.len() as i32 {
        machine.others_hold(device, 0).unwrap();
    }
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
    for device in 0..world.mail.len() as i32 {
        let stats = world.allocator.stats(Some(device)).unwrap();
        assert_eq!((stats.allocated, stats.requested), (0, 0), "{stats:?}");
        assert_eq!(stats.allocations, stats.frees, "{stats:?}");
        assert!(stats.pending <= stats.reserved, "{stats:?}");
        for tag in world.allocator.tag_stats(Some(device)).unwrap() {
            assert_eq!((tag.allocated, tag.allocations), (0, tag.frees), "{tag:?}");
        }
        // Before CUDA 11.3 the driver does not report that a graph was destroyed: its memory stays allocated.
        if kept {
            continue;
        }
        // Each try waits at most as long as a request may.
        for _ in 0..1000 {
            world.allocator.trim(Some(device), 0).unwrap();
            if world.allocator.stats(Some(device)).unwrap().reserved == 0 {
                break;
            }
        }
        let stats = world.allocator.stats(Some(device)).unwrap();
        if !rules.options.contains("reserve=") {
            assert_eq!((stats.reserved, stats.pending, stats.cached), (0, 0, 0), "{stats:?}");
        }
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
    for device in 0..world.mail.len() as i32 {
        let (free, total) = machine.memory_info(device).unwrap();
        assert_eq!(free, total, "memory is left on device {device}");
    }
    assert_eq!(
        machine.memory_held(),
        [0, 0, 0],
        "reservations, handles and mappings are left"
    );
}
