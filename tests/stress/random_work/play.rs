//! A round: the threads' work on one allocator, and the checks at its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::{Config, Limit};

use super::client::Client;
use super::client::allocators::is_gone;
use super::machine::Machine;
use super::neighbour::Neighbour;
use super::world::{Context, Counts, Spare, World};

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
    /// The most streams of a client. It begins with a third of them.
    pub most_streams: usize,
    /// Whether engines are loaded and unloaded without a stream.
    pub engines: bool,
    /// Whether there is a [`Neighbour`].
    pub neighbour: bool,
    /// See [`World::broad`].
    pub broad: bool,
    /// See [`World::away`].
    pub away: bool,
    /// See [`World::child_graphs`].
    pub child_graphs: bool,
    /// Whether the primary contexts are used and exist throughout. Otherwise the pools are made in other contexts.
    pub primaries: bool,
    pub ending: Ending,
}

/// What becomes of the contexts once the threads have ended and left blocks behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The threads free their blocks before.
    Orderly,
    /// One is destroyed.
    Destroyed,
    /// The first device's primary context is reset.
    #[allow(dead_code, reason = "the second driver has no reset")]
    Reset,
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
            at if at == 1 || !rules.primaries => {
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
    let spare = Arc::<Spare>::default();
    if rules.broad {
        allocator.on_oom(Some(spare.handler(&allocator, &machine)));
    }
    let malloc = ["backing=malloc", "passthrough=1"]
        .iter()
        .any(|option| rules.options.contains(option));
    let mut world = World {
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
        most_streams: rules.most_streams,
        engines: rules.engines,
        // The process says that it captures, and memory may grow.
        spares_captures: rules.options.contains("captures=1") && !rules.failures,
        crowded: AtomicBool::new(false),
        broad: rules.broad,
        away: rules.away,
        child_graphs: rules.child_graphs,
        primaries: rules.primaries,
        alone: threads == 1,
        retries: World::retries_refusals(rules.options, threads, rules.failures),
        capturing: AtomicU64::new(0),
        options: rules.options.to_owned(),
        spare,
        closed: Mutex::default(),
        bases: Mutex::default(),
    };
    if !rules.primaries && rules.ending == Ending::Orderly {
        begin_elsewhere(&world);
    }
    // A free without a stream waits for the primary contexts, and for others that have used the pool. So these use it
    // before they get memory from another.
    let others = if rules.primaries { 1..2 } else { 0..3 };
    for context in &world.contexts[others] {
        world.app(|machine| machine.context_push(context.handle).unwrap());
        let block = world.get(512, 0, None);
        if block != 0 {
            world.put(block, None);
        }
        world.app(|machine| machine.context_pop().unwrap());
    }
    show_green_contexts(&world, rules.devices);
    let left = Mutex::new(Vec::new());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let beside = (rules.neighbour && threads > 1).then(|| scope.spawn(|| Neighbour::new(&world).run(&over)));
        let work = |thread: u64| {
            let (world, left) = (&world, &left);
            scope.spawn(move || {
                let finish = |client: Client| match rules.ending {
                    Ending::Orderly => client.finish(),
                    _ => left.lock().extend(client.leave_blocks()),
                };
                let made = |client| {
                    let number = thread * rules.clients + client;
                    let context = (number % world.contexts.len() as u64) as usize;
                    Client::new(world, context, seed.wrapping_mul(1_000_003).wrapping_add(number))
                };
                let operations = operations.div_ceil(threads);
                // With one thread it takes turns with the clients, so that a run repeats.
                let mut neighbour = (rules.neighbour && threads == 1).then(|| Neighbour::new(world));
                if rules.clients == 1 {
                    let mut client = made(0);
                    for at in 0..operations {
                        client.step();
                        neighbour.iter_mut().for_each(|neighbour| neighbour.step_beside(at));
                    }
                    neighbour.into_iter().for_each(Neighbour::finish);
                    return finish(client);
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
                        neighbour.iter_mut().for_each(Neighbour::step);
                    }
                }
                neighbour.into_iter().for_each(Neighbour::finish);
                for client in clients {
                    client.enter();
                    finish(client);
                }
            })
        };
        let threads: Vec<_> = (0..threads).map(work).collect();
        let mut ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Release);
        ends.extend(beside.map(|neighbour| neighbour.join()));
        for end in ends {
            if let Err(panic) = end {
                // The checker's faults may explain why the application's own call failed.
                println!("faults: {:#?}", world.machine.faults());
                std::panic::resume_unwind(panic);
            }
        }
    });
    end_own(&world);
    let left = left.into_inner();
    match rules.ending {
        Ending::Orderly => finish(&world, rules, ended),
        Ending::Destroyed => {
            destroy_context(&mut world, left);
            finish(&world, rules, ended);
        }
        Ending::Reset => reset_device(&world, left),
    }
    // A call that fails for a while can make most requests of a short round fail. So can a limit of few pages, where each
    // block has pages of its own.
    let few = rules.failures || rules.options.contains("guard=1");
    let minimum = operations / if few { 64 } else { 8 };
    assert!(world.counts.allocated.load(Relaxed) > minimum, "{}", world.counts);
    let elsewhere = if rules.primaries {
        ""
    } else {
        ", no primary context at first"
    };
    let ending = match rules.ending {
        Ending::Orderly => "",
        Ending::Destroyed => ", a context destroyed",
        Ending::Reset => ", a device reset",
    };
    format!("{}{elsewhere}{ending}", world.counts)
}

/// The pool's first context is destroyed with a block in use. So its calls are made in the primary context from then
/// on, which need not have existed before.
fn begin_elsewhere(world: &World) {
    if !world.allocator.driver().features().stream_ids {
        return;
    }
    let context = world.app(|machine| machine.context_create(0).unwrap());
    let blocks = [world.get(4096, 0, None), world.get(4096, 0, Some(0))];
    world.app(|machine| machine.context_destroy(context).unwrap());
    for block in blocks.into_iter().filter(|block| *block != 0) {
        world.put(block, None);
    }
}

/// Each pool meets a green context before contexts are destroyed: where it has met none, it takes a green context that gets the handle
/// of a destroyed one for an ordinary one (docs/internals/cuda.md, what is not handled of green contexts).
fn show_green_contexts(world: &World, devices: i32) {
    if !world.short_lived || !world.allocator.driver().features().context_events {
        return;
    }
    let _exempt = world.machine.exempt();
    for device in 0..devices {
        let Ok(green) = world.machine.green_context_create(device) else {
            return;
        };
        world.machine.context_push(green).unwrap();
        let block = world.get(512, 0, None);
        if block != 0 {
            world.put(block, None);
        }
        world.machine.context_destroy(green).unwrap();
    }
}

/// Whether `done` becomes true within many calls and a minute. Only time shows that a capture has ended where the driver
/// does not report the end of its graph, and a call that would end it returns without a wait.
fn in_time(mut done: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    for round in 0.. {
        if done() {
            return true;
        }
        if round >= 1000 {
            if begun.elapsed() > Duration::from_secs(60) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    false
}

/// Ends what clients have left for others: spare blocks, and the allocators of their own.
fn end_own(world: &World) {
    let machine = &world.machine;
    machine.clear_failures();
    for (device, address) in world.spare.0.lock().drain(..) {
        let context = world.contexts.iter().find(|context| context.device == device);
        machine.context_push(context.unwrap().handle).unwrap();
        world.put(address, None);
        machine.context_pop().unwrap();
    }
    world.allocator.on_oom(None);
    for context in &world.contexts {
        machine.context_push(context.handle).unwrap();
        machine.context_synchronize().unwrap();
        machine.context_pop().unwrap();
    }
    machine.drain_user_objects();
    for allocator in world.closed.lock().drain(..) {
        for stats in allocator.stats_of_all() {
            assert_eq!((stats.allocated, stats.allocations), (0, stats.frees), "{stats:?}");
        }
        let gone = in_time(|| is_gone(world, &allocator));
        assert!(
            gone,
            "a closed allocator keeps memory: {:?}",
            allocator.stats_of_all().collect::<Vec<_>>()
        );
    }
    for (context, base) in world.bases.lock().drain(..) {
        machine.context_push(world.contexts[context].handle).unwrap();
        machine.memory_free(base).unwrap();
        machine.context_pop().unwrap();
    }
}

/// Takes the blocks that one thread has sent to another and that have not arrived.
fn take_mail(world: &World) -> Vec<u64> {
    let mut taken = Vec::new();
    for (device, mail) in world.mail.iter().enumerate() {
        let context = world.contexts.iter().find(|context| context.device == device as i32);
        world.machine.context_push(context.unwrap().handle).unwrap();
        for parcel in mail.lock().drain(..) {
            world.machine.event_destroy(parcel.event).unwrap();
            taken.push(parcel.address);
        }
        world.machine.context_pop().unwrap();
    }
    taken
}

/// Destroys a context while its work is pending and blocks of it are in use. They are freed in another one.
fn destroy_context(world: &mut World, mut left: Vec<u64>) {
    left.extend(take_mail(world));
    let machine = world.machine.clone();
    machine.context_destroy(world.contexts[0].handle).unwrap();
    world.contexts.remove(0);
    machine.context_push(world.contexts[0].handle).unwrap();
    // Some before the pool's next request, and some after it.
    let after = left.split_off(left.len() / 2);
    left.into_iter().for_each(|address| world.put(address, None));
    let block = world.get(4096, 0, None);
    after
        .into_iter()
        .chain((block != 0).then_some(block))
        .for_each(|address| world.put(address, None));
    machine.context_synchronize().unwrap();
    machine.others_hold(0, 0).unwrap();
    let block = world.get(4096, 0, None);
    assert!(block != 0, "the pool goes on in another context");
    world.put(block, None);
    machine.context_pop().unwrap();
}

/// Resets the first device under blocks in use: requests there are refused, frees are accepted, and the other device and new
/// allocators go on.
fn reset_device(world: &World, mut left: Vec<u64>) {
    left.extend(take_mail(world));
    let machine = &world.machine;
    let devices = world.mail.len() as i32;
    for device in 0..devices {
        machine.others_hold(device, 0).unwrap();
    }
    world.check();
    machine.primary_reset(0).unwrap();
    let other = &world.contexts[1];
    machine.context_push(other.handle).unwrap();
    for stream in [None, Some(other.streams[0]), Some(0)] {
        assert_eq!(world.get(4096, 0, stream), 0, "the device was reset");
    }
    for (at, address) in left.into_iter().enumerate() {
        let stream = (at % 3 == 1).then_some(other.streams[1]);
        world.put(address, stream);
    }
    machine.context_pop().unwrap();
    if devices > 1 {
        machine.context_push(world.contexts[2].handle).unwrap();
        // All of the budget may wait for work. Once that has completed, a request may still come before the thread has
        // returned that synchronizes the context for the pool (before CUDA 12.5).
        machine.context_synchronize().unwrap();
        machine.drain_user_objects();
        let mut block = 0;
        let goes_on = in_time(|| {
            block = world.get(4096, 0, None);
            block != 0
        });
        assert!(goes_on, "the other device goes on");
        world.put(block, None);
        machine.context_synchronize().unwrap();
        machine.context_pop().unwrap();
    }
    machine.drain_user_objects();
    for device in 0..devices {
        let stats = world.allocator.stats(Some(device)).unwrap();
        assert_eq!((stats.allocated, stats.allocations), (0, stats.frees), "{stats:?}");
    }
    for _ in 0..1000 {
        world.allocator.close();
    }
    world.check();
    let (free, total) = machine.memory_info(devices - 1).unwrap();
    assert!(devices == 1 || free == total, "memory is left on the other device");
    let again = {
        let config = Config::parse("decay_ms=0,wait_ms=2").unwrap();
        Allocator::with_driver(world.allocator.driver().clone(), config).unwrap()
    };
    let context = machine.primary_retain(0).unwrap();
    machine.context_push(context).unwrap();
    let request = Request {
        size: 4096,
        alignment: 0,
        flags: 0,
        stream: None,
        device: None,
    };
    let block = world.get_of(&again, &request, 0);
    assert!(block != 0, "the device is there again");
    world.put_to(&again, block, None);
    machine.context_synchronize().unwrap();
    machine.context_pop().unwrap();
    assert!(in_time(|| is_gone(world, &again)), "a new allocator keeps memory");
    world.check();
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
    let grows = stats.clone().all(|(device, stats)| stats.reserved_peak < full(device));
    if world.spares_captures && grows && !world.crowded.load(Relaxed) {
        assert_eq!(ended, 0, "captures were ended while memory could grow");
        // A block that has shrunk may wait in vain for what it gave up (docs/internals/resizable-blocks.md).
        let refused: u64 = stats.map(|(_, stats)| stats.out_of_memory).sum();
        let waited = world.counts.waited_in_vain.load(Relaxed);
        let starved = world.counts.starved.load(Relaxed);
        // Each attempt for which an out-of-memory handler makes room counts as refused, too.
        let unseen = if world.broad { 0 } else { refused - waited };
        assert_eq!(
            (starved, unseen),
            (0, 0),
            "requests were refused while memory could grow"
        );
    }
    world.counts.failures.store(machine.failures_struck(), Relaxed);
    machine.clear_failures();
    for device in 0..world.mail.len() as i32 {
        machine.others_hold(device, 0).unwrap();
    }
    for address in take_mail(world) {
        world.put(address, None);
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
        in_time(|| {
            world.allocator.trim(Some(device), 0).unwrap();
            let stats = world.allocator.stats(Some(device)).unwrap();
            // A trim waits for nothing where no more than the reserve is held.
            let reserve = match world.allocator.config().reserve {
                Limit::Bytes(bytes) => bytes,
                _ => 0,
            };
            stats.reserved <= reserve || reserve > 0 && stats.pending == 0
        });
        let stats = world.allocator.stats(Some(device)).unwrap();
        if !rules.options.contains("reserve=") {
            assert_eq!((stats.reserved, stats.pending, stats.cached), (0, 0, 0), "{stats:?}");
        }
    }
    world.allocator.validate().unwrap();
    in_time(|| {
        world.allocator.close();
        kept || machine.memory_held() == [0, 0, 0]
    });
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
