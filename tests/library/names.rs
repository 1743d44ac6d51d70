//! Names of TensorRT's adapters: what is counted for a name, whichever thread asks and whatever its tag is, and that
//! the counts are exact although a hit writes no counter that streams share.

use std::ffi::{CStr, CString};
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::c;
use trtalloc::ffi::tensorrt::client::Client;
use trtalloc::stats::TagStats;
use trtalloc::tags;

struct World {
    allocator: Arc<Allocator>,
    exported: &'static ExportedAllocator,
    streams: Vec<usize>,
    context: usize,
    machine: Arc<SimDriver>,
}

const MIB: u64 = 1 << 20;

fn world(options: &str) -> World {
    let driver = SimDriver::new(SimConfig::default());
    let machine = driver.machine();
    let context = machine.primary_retain(0).unwrap();
    machine.context_push(context).unwrap();
    let streams = (0..4).map(|_| machine.stream_create(true).unwrap()).collect();
    let allocator = Allocator::with_driver(driver.clone(), Config::parse(options).unwrap()).unwrap();
    World {
        exported: ExportedAllocator::new(allocator.clone()),
        allocator,
        streams,
        context,
        machine: driver,
    }
}

fn none(tag: &'static str) -> TagStats {
    TagStats {
        tag,
        allocated: 0,
        allocated_peak: 0,
        limit: 0,
        allocations: 0,
        frees: 0,
        out_of_memory: 0,
    }
}

impl World {
    fn named(&self, name: &str) -> Client {
        Client::named(self.exported, name.as_bytes()).unwrap()
    }

    fn of(&self, tag: &'static str) -> TagStats {
        let all = self.allocator.tag_stats(Some(0)).unwrap();
        all.into_iter().find(|figures| figures.tag == tag).unwrap_or(none(tag))
    }

    fn driver_calls(&self) -> (u64, u64) {
        let stats = self.allocator.stats(Some(0)).unwrap();
        (stats.driver_calls, stats.driver_queries)
    }
}

#[test]
fn blocks_count_for_the_adapters_name_whatever_the_threads_tag_is() {
    let world = world("");
    let (one, other) = (world.named("name: one"), world.named("name: other"));
    let plain = Client::new(world.exported).unwrap();
    let stream = world.streams[0];
    tags::set(Some("name: thread")).unwrap();
    let first = one.allocate_async(5000, 0, 0, stream);
    let second = other.allocate(7000, 0, 0);
    let third = plain.allocate_async(9000, 0, 0, stream);
    tags::set(None).unwrap();
    let fourth = plain.allocate_async(9000, 0, 0, stream);
    assert_eq!(world.of("name: one").allocated, 5120);
    assert_eq!(world.of("name: other").allocated, 7168);
    assert_eq!(world.of("name: thread").allocated, 9216);
    assert_eq!(
        world.allocator.stats(Some(0)).unwrap().allocated,
        5120 + 7168 + 2 * 9216
    );
    // It does not matter who frees it.
    assert!(plain.deallocate_async(first, stream) && one.deallocate(second) && other.deallocate(third));
    assert!(one.deallocate_async(fourth, stream));
    for name in ["name: one", "name: other", "name: thread"] {
        let figures = world.of(name);
        assert_eq!(
            (figures.allocated, figures.allocations, figures.frees),
            (0, 1, 1),
            "{figures:?}"
        );
    }
    world.allocator.validate().unwrap();
}

/// Such a block goes to no cache, though its own stream frees it.
#[test]
fn a_block_that_is_used_on_another_stream_is_counted() {
    let world = world("");
    let client = world.named("used elsewhere");
    for _ in 0..3 {
        let block = client.allocate_async(MIB, 0, 0, world.streams[0]);
        world
            .allocator
            .record_stream(block as u64, Stream(world.streams[1]))
            .unwrap();
        assert!(client.deallocate_async(block, world.streams[0]));
    }
    let expected = TagStats {
        allocated_peak: MIB,
        allocations: 3,
        frees: 3,
        ..none("used elsewhere")
    };
    assert_eq!(world.of("used elsewhere"), expected);
}

#[test]
fn pairs_with_a_name_stay_on_the_path_of_a_hit_and_are_counted() {
    let world = world("");
    let (one, other) = (world.named("hits: one"), world.named("hits: other"));
    let stream = world.streams[0];
    let pair = |client: Client| {
        let block = client.allocate_async(MIB, 0, 0, stream);
        assert!(block != 0 && client.deallocate_async(block, stream));
    };
    pair(one);
    pair(other);
    let before = world.driver_calls();
    for _ in 0..1000 {
        pair(one);
        pair(other);
    }
    let after = world.driver_calls();
    assert_eq!(after.0, before.0);
    // Two for each request, and those of the statistics.
    assert!(after.1 - before.1 <= 4002, "{before:?} {after:?}");
    for name in ["hits: one", "hits: other"] {
        let expected = TagStats {
            allocated_peak: MIB,
            allocations: 1001,
            frees: 1001,
            ..none(name)
        };
        assert_eq!(world.of(name), expected);
    }
    world.allocator.reset_peaks(Some(0)).unwrap();
    assert_eq!(world.of("hits: one").allocated_peak, 0);
}

#[test]
fn more_names_than_a_cache_has_places_for_are_counted_too() {
    let world = world("");
    let names: Vec<&'static str> = (0..100).map(|n| &*format!("places: {n}").leak()).collect();
    let clients: Vec<Client> = names.iter().map(|name| world.named(name)).collect();
    for turn in 0..30 {
        let blocks: Vec<usize> = clients
            .iter()
            .enumerate()
            .map(|(n, client)| client.allocate_async(512 * (1 + n as u64 % 3), 0, 0, world.streams[(n + turn) % 2]))
            .collect();
        for (n, name) in names.iter().enumerate() {
            assert_eq!(world.of(name).allocated, 512 * (1 + n as u64 % 3));
        }
        for (n, block) in blocks.into_iter().enumerate() {
            assert!(clients[n].deallocate_async(block, world.streams[(n + turn) % 2]));
        }
    }
    for (n, name) in names.iter().enumerate() {
        let size = 512 * (1 + n as u64 % 3);
        let expected = TagStats {
            allocated_peak: size,
            allocations: 30,
            frees: 30,
            ..none(name)
        };
        assert_eq!(world.of(name), expected);
    }
}

#[test]
fn a_limit_holds_for_a_name_also_where_its_requests_hit() {
    let world = world("");
    let name = "limited: engine";
    let client = world.named(name);
    let stream = world.streams[0];
    let get = |bytes| client.allocate_async(bytes, 0, 0, stream);
    let put = |block| assert!(client.deallocate_async(block, stream));
    let (a, b) = (get(MIB), get(MIB));
    put(a);
    put(b);
    // Both would hit now.
    world.allocator.set_tag_limit(Some(0), name, MIB).unwrap();
    let a = get(MIB);
    assert!(a != 0 && get(MIB) == 0);
    put(a);
    let a = get(MIB);
    assert!(a != 0 && get(512) == 0);
    assert_eq!(world.of(name).out_of_memory, 2);
    // A limit below what is held takes nothing away, and lets nothing in, not even what was just freed.
    world.allocator.set_tag_limit(Some(0), name, 0).unwrap();
    let b = get(MIB);
    world.allocator.set_tag_limit(Some(0), name, MIB / 2).unwrap();
    assert_eq!(world.of(name).allocated, 2 * MIB);
    put(a);
    assert_eq!(get(MIB), 0);
    put(b);
    assert_eq!(get(MIB), 0);
    let c = get(MIB / 2);
    assert_ne!(c, 0);
    // Another name is not concerned, and neither is the memory without a name.
    let other = world.named("limited: other").allocate_async(4 * MIB, 0, 0, stream);
    assert!(other != 0 && client.deallocate_async(other, stream));
    put(c);
    // What was freed makes room for a block that grows.
    world.allocator.set_tag_limit(Some(0), name, 8 * MIB).unwrap();
    put(get(8 * MIB));
    assert_eq!(world.of(name).allocated_peak, 8 * MIB);
    put(get(4 * MIB));
    let grown = client.reallocate(client.allocate(2 * MIB, 0, RESIZABLE), 0, 6 * MIB);
    assert!(grown != 0 && client.reallocate(grown, 0, 9 * MIB) == 0);
    assert!(client.deallocate(grown));
    world.allocator.set_tag_limit(Some(0), name, 0).unwrap();
    let d = get(8 * MIB);
    assert_ne!(d, 0);
    put(d);
    assert_eq!(world.of(name).allocated, 0);
}

#[test]
fn a_resized_block_keeps_its_name() {
    for options in ["", "backing=malloc", "passthrough=1"] {
        let world = world(options);
        let name = "resized: engine";
        let client = world.named(name);
        let block = client.allocate(MIB, 0, RESIZABLE);
        let block = client.reallocate(block, 0, 9 * MIB);
        assert_ne!(block, 0, "{options}");
        assert_eq!(world.of(name).allocated, 9 * MIB, "{options}");
        // Through the adapter without a name, with a tag of the thread's.
        tags::set(Some("resized: thread")).unwrap();
        let block = Client::new(world.exported).unwrap().reallocate(block, 0, 5 * MIB);
        tags::set(None).unwrap();
        assert_eq!(world.of(name).allocated, 5 * MIB, "{options}");
        assert_eq!(client.reallocate(block, 0, 1 << 45), 0);
        assert_eq!(world.of(name).allocated, 5 * MIB, "{options}");
        assert_eq!(world.of(name).out_of_memory, 1, "{options}");
        world.allocator.set_tag_limit(Some(0), name, 6 * MIB).unwrap();
        assert_eq!(client.reallocate(block, 0, 7 * MIB), 0, "{options}");
        assert_eq!(
            (world.of(name).allocated, world.of(name).out_of_memory),
            (5 * MIB, 2),
            "{options}"
        );
        assert!(client.deallocate(block));
        let expected = TagStats {
            allocated_peak: 9 * MIB,
            allocations: 1,
            frees: 1,
            limit: 6 * MIB,
            out_of_memory: 2,
            ..none(name)
        };
        assert_eq!(world.of(name), expected, "{options}");
        assert_eq!(world.of("resized: thread").allocations, 0);
    }
}

#[test]
fn a_stream_that_becomes_another_one_leaves_its_names_counts() {
    let world = world("");
    let name = "gone: engine";
    let client = world.named(name);
    let machine = world.machine.machine();
    for _ in 0..20 {
        let stream = machine.stream_create(true).unwrap();
        let held = client.allocate_async(MIB, 0, 0, stream);
        let block = client.allocate_async(2 * MIB, 0, 0, stream);
        assert!(client.deallocate_async(block, stream));
        world.allocator.stream_release(Stream(stream)).unwrap();
        machine.stream_destroy(stream).unwrap();
        assert!(client.deallocate(held));
    }
    let expected = TagStats {
        allocated_peak: 3 * MIB,
        allocations: 40,
        frees: 40,
        ..none(name)
    };
    assert_eq!(world.of(name), expected);
}

/// Threads with two names, each on its own stream, free each other's blocks too.
#[test]
fn counts_of_many_threads_come_out_even_and_no_limit_is_passed() {
    const LIMIT: u64 = 4 * MIB;
    let world = world("");
    let names = ["threads of names: a", "threads of names: b"];
    world.allocator.set_tag_limit(Some(0), names[1], LIMIT).unwrap();
    let passed = parking_lot::Mutex::new(Vec::new());
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (world, passed, refused) = (&world, &passed, &refused);
            scope.spawn(move || {
                let machine = world.machine.machine();
                machine.context_push(world.context).unwrap();
                let client = world.named(names[thread % 2]);
                let mut random = thread as u64 + 1;
                let mut held = Vec::new();
                for turn in 0..6_000 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let draw = random >> 33;
                    if draw.is_multiple_of(2) || held.is_empty() {
                        let size = 4096 << (draw % 7);
                        let block = match draw % 16 {
                            0 => client.allocate(size, 0, RESIZABLE),
                            2 => client.allocate(size, 0, 0),
                            _ => client.allocate_async(size, 0, 0, world.streams[thread]),
                        };
                        match block {
                            0 => _ = refused.fetch_add(1, Ordering::Relaxed),
                            block => held.push(block),
                        }
                    } else {
                        let block = held.swap_remove(draw as usize % held.len());
                        match draw % 8 {
                            1 => passed.lock().push(block),
                            3 => assert!(client.deallocate(block)),
                            _ => assert!(client.deallocate_async(block, world.streams[thread])),
                        }
                        if draw % 8 == 5
                            && let Some(block) = passed.lock().pop()
                        {
                            assert!(client.deallocate_async(block, world.streams[thread]));
                        }
                    }
                    if turn % 64 == 0 {
                        let figures = world.of(names[1]);
                        assert!(figures.allocated.max(figures.allocated_peak) <= LIMIT, "{figures:?}");
                    }
                }
                for block in held {
                    assert!(client.deallocate_async(block, world.streams[thread]));
                }
                machine.context_pop().unwrap();
            });
        }
    });
    let plain = Client::new(world.exported).unwrap();
    for block in passed.into_inner() {
        assert!(plain.deallocate(block));
    }
    for name in names {
        let figures = world.of(name);
        assert_eq!(
            (figures.allocated, figures.allocations),
            (0, figures.frees),
            "{figures:?}"
        );
        assert!(figures.allocated_peak > 0);
    }
    assert!(refused.load(Ordering::Relaxed) > 0, "the limit was never reached");
    assert_eq!(world.allocator.stats(Some(0)).unwrap().allocated, 0);
    world.allocator.validate().unwrap();
}

/// On one thread, figures and peaks are those of a plain count, whatever the streams, names and ways are.
#[test]
fn figures_are_those_of_a_plain_count() {
    for options in ["", "streams=trusted", "history=all", "guard=1", "fill=7"] {
        let world = world(options);
        let names = ["count: a", "count: b", "count: c"];
        let clients = names.map(|name| world.named(name));
        let mut expected = names.map(none);
        let mut held: Vec<(usize, usize, u64)> = Vec::new();
        let mut random = 7u64;
        for turn in 0..4_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let draw = (random >> 33) as usize;
            let stream = world.streams[draw / 16 % 4];
            let name = draw / 64 % 3;
            if draw.is_multiple_of(2) && held.len() < 64 || held.is_empty() {
                let size = 512u64 << (draw / 256 % 6);
                let (block, size) = match draw % 5 {
                    0 => (clients[name].allocate(size * 1024, 0, RESIZABLE), size * 1024),
                    1 => (clients[name].allocate(size, 0, 0), size),
                    _ => (clients[name].allocate_async(size, 0, 0, stream), size),
                };
                assert_ne!(block, 0);
                held.push((block, name, size));
                let figures = &mut expected[name];
                figures.allocated += size;
                figures.allocated_peak = figures.allocated_peak.max(figures.allocated);
                figures.allocations += 1;
            } else {
                let (block, name, size) = held.swap_remove(draw / 256 % held.len());
                // The adapter through which it is freed does not matter.
                let by = clients[draw % 3];
                let freed = match draw % 7 {
                    0 => by.deallocate(block),
                    _ => by.deallocate_async(block, stream),
                };
                assert!(freed);
                expected[name].allocated -= size;
                expected[name].frees += 1;
            }
            if turn % 50 == 0 {
                let found = names.map(|name| world.of(name));
                assert_eq!(found, expected, "{options}, turn {turn}");
            }
            if turn % 900 == 899 {
                world.allocator.reset_peaks(Some(0)).unwrap();
                for figures in &mut expected {
                    figures.allocated_peak = figures.allocated;
                }
            }
        }
        assert_eq!(names.map(|name| world.of(name)), expected, "{options}");
    }
}

fn adapter(allocator: *mut c::trtalloc_allocator, version: i32, name: &[u8]) -> usize {
    let name = CString::new(name).unwrap();
    // SAFETY: an allocator of the library, and a C string.
    unsafe { c::trtalloc_tensorrt_allocator_named(allocator, version, name.as_ptr()) as usize }
}

fn last_error() -> String {
    // SAFETY: a C string, valid until this thread's next call.
    let text = unsafe { CStr::from_ptr(c::trtalloc_last_error()) };
    text.to_string_lossy().into_owned()
}

#[test]
fn a_name_has_one_adapter_for_a_generation() {
    let mut made = [null_mut(); 2];
    for allocator in &mut made {
        // SAFETY: a C string and a pointer to a local.
        let status = unsafe { c::trtalloc_create(c"driver=sim".as_ptr(), allocator) };
        assert_eq!(status, c::trtalloc_status::Ok);
    }
    let [one, other] = made;
    // SAFETY: an allocator of the library.
    let plain = |version| unsafe { c::trtalloc_tensorrt_allocator(one, version) as usize };
    let mut all = vec![plain(110_400), plain(8601)];
    for (allocator, name) in [(one, "adapter: a"), (one, "adapter: b"), (other, "adapter: a")] {
        for (version, same) in [(110_400, [100_000, 101_601, 10_300]), (8601, [8001, 8200, 9300])] {
            let first = adapter(allocator, version, name.as_bytes());
            assert!(first != 0 && !all.contains(&first));
            all.push(first);
            for version in same {
                assert_eq!(adapter(allocator, version, name.as_bytes()), first, "{version}");
            }
        }
    }
    assert_eq!(adapter(one, 110_400, b""), plain(110_400));
    // SAFETY: an allocator of the library; a null name is none.
    let unnamed = unsafe { c::trtalloc_tensorrt_allocator_named(one, 8601, null()) };
    assert_eq!(unnamed as usize, plain(8601));
    assert_eq!(adapter(one, 120_000, b"adapter: a"), 0);
    assert!(last_error().contains("120000"), "{}", last_error());
    assert_eq!(adapter(null_mut(), 110_400, b"adapter: a"), 0);
    // Threads that name it at once get one adapter.
    let new = std::sync::Barrier::new(4);
    let address = one as usize;
    let ask = || {
        new.wait();
        adapter(address as *mut _, 110_400, b"adapter: at once")
    };
    let found: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(
        found
            .iter()
            .all(|adapter| *adapter == found[0] && !all.contains(adapter))
    );
    for allocator in made {
        // SAFETY: an allocator of the library.
        unsafe { c::trtalloc_destroy(allocator) };
    }
    assert_eq!(
        adapter(one, 110_400, b"adapter: a"),
        all[2],
        "a tombstone keeps its adapters"
    );
}

#[test]
fn any_bytes_are_a_name_and_come_out_escaped() {
    let world = world("history=all");
    let long = "é".repeat(200);
    let names: [(&[u8], &str); 5] = [
        (b"say \"hi\" \\ there", "say \"hi\" \\ there"),
        (b"two\nlines\tand a tab", "two\nlines\tand a tab"),
        (
            b"</script><script>alert(1)</script>",
            "</script><script>alert(1)</script>",
        ),
        (b"not \xff\xfe UTF-8", "not \u{fffd}\u{fffd} UTF-8"),
        (long.as_bytes(), &long[..254]),
    ];
    let mut held = Vec::new();
    for (bytes, shown) in names {
        let client = Client::named(world.exported, bytes).unwrap();
        let block = client.allocate_async(3000, 0, 0, world.streams[0]);
        held.push(block);
        let figures = world.allocator.tag_stats(Some(0)).unwrap();
        let mine = figures.iter().find(|figures| figures.tag == shown);
        assert_eq!(mine.map(|figures| figures.allocated), Some(3072), "{shown}");
    }
    let metrics = world.allocator.metrics().unwrap();
    for line in [
        "trtalloc_tag_allocated_bytes{device=\"0\",tag=\"say \\\"hi\\\" \\\\ there\"} 3072\n",
        "trtalloc_tag_allocated_bytes{device=\"0\",tag=\"two\\nlines\tand a tab\"} 3072\n",
        "trtalloc_tag_allocated_bytes{device=\"0\",tag=\"</script><script>alert(1)</script>\"} 3072\n",
        "trtalloc_tag_allocated_bytes{device=\"0\",tag=\"not \u{fffd}\u{fffd} UTF-8\"} 3072\n",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let json: serde_json::Value = serde_json::from_str(&world.allocator.stats_json(Some(0)).unwrap()).unwrap();
    let tags = json["tags"].as_array().unwrap();
    for (_, shown) in names {
        assert!(tags.iter().any(|tag| tag["tag"] == shown), "{shown}: {json}");
    }
    // The page of a report: a name never ends its script.
    let folder = std::env::temp_dir().join(format!("trtalloc-names-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for suffix in ["html", "json", "pickle"] {
        let path = folder.join(format!("names.{suffix}"));
        world.allocator.write_snapshot(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        match suffix {
            "html" => assert!(!text.contains("<script>alert(1)"), "{}", path.display()),
            "json" => {
                let json: serde_json::Value = serde_json::from_str(&text).unwrap();
                let text = json.to_string();
                assert!(text.contains("say \\\"hi\\\" \\\\ there"), "{text}");
            }
            _ => assert!(text.contains("say \"hi\" \\ there")),
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    for block in held {
        assert!(Client::new(world.exported).unwrap().deallocate(block));
    }
}

/// A child process of this test runs `body`, since names are the process's.
fn in_child(test: &str, body: impl FnOnce()) {
    const VARIABLE: &str = "TRTALLOC_TEST_ROLE";
    if std::env::var_os(VARIABLE).is_some_and(|name| name == test) {
        return body();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([&format!("names::{test}"), "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stderr);
    assert!(
        child.status.success(),
        "{}\n{text}",
        String::from_utf8_lossy(&child.stdout)
    );
}

#[test]
fn names_beyond_the_last_tag_get_the_adapter_without_a_name() {
    in_child("names_beyond_the_last_tag_get_the_adapter_without_a_name", || {
        let world = world("");
        let version = 110_400;
        let plain = world.exported.tensorrt(version).unwrap();
        let mut adapters: Vec<usize> = (0..1023)
            .map(|n| {
                world
                    .exported
                    .tensorrt_named(version, format!("full: {n}").as_bytes())
                    .unwrap()
            })
            .collect();
        for name in ["full: 1023", "full: another"] {
            assert_eq!(world.exported.tensorrt_named(version, name.as_bytes()).unwrap(), plain);
        }
        assert_eq!(
            world.exported.tensorrt_named(version, b"full: 7").unwrap(),
            adapters[7],
            "a name that has its tag keeps it"
        );
        assert!(!adapters.contains(&plain));
        adapters.sort_unstable();
        adapters.dedup();
        assert_eq!(adapters.len(), 1023);
    });
}

/// The host's page size: /proc counts in pages.
fn page_size() -> u64 {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// A server that loads and unloads models for a year: an adapter and a few blocks for each runtime.
#[test]
fn a_million_runtimes_with_names_take_no_more_memory() {
    in_child("a_million_runtimes_with_names_take_no_more_memory", || {
        let world = world("");
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/statm").unwrap();
            status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * page_size()
        };
        let life = |n: u64| {
            let name = format!("model {}", n % 20);
            let client = Client::named(world.exported, name.as_bytes()).unwrap();
            let stream = world.streams[n as usize % 4];
            let block = client.allocate_async(MIB * (1 + n % 3), 0, 0, stream);
            assert!(block != 0 && client.deallocate_async(block, stream));
        };
        (0..20_000).for_each(life);
        let before = resident();
        (20_000..1_000_000).for_each(life);
        let grown = resident().saturating_sub(before);
        assert!(grown < MIB, "{grown} bytes more after a million runtimes");
        let figures = world.allocator.tag_stats(Some(0)).unwrap();
        assert_eq!(figures.len(), 20);
        assert!(
            figures
                .iter()
                .all(|of| (of.allocated, of.allocations, of.frees) == (0, 50_000, 50_000))
        );
    });
}

#[test]
fn without_a_stream_and_without_ids_names_are_counted_too() {
    let driver = SimDriver::new(SimConfig {
        version: 11_020,
        ..SimConfig::default()
    });
    let machine = driver.machine();
    machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
    let stream = Stream(machine.stream_create(true).unwrap());
    let allocator = Allocator::with_driver(driver.clone(), Config::default()).unwrap();
    let tag = tags::intern("old driver").unwrap();
    let request = |flags| Request {
        size: 3000,
        alignment: 0,
        flags,
        stream: Some(stream),
        device: None,
    };
    for _ in 0..50 {
        let blocks = [0, RESIZABLE].map(|flags| allocator.allocate_for(&request(flags), tag).unwrap());
        let held: u64 = allocator.tag_stats(Some(0)).unwrap()[..]
            .iter()
            .find(|of| of.tag == "old driver")
            .map_or(0, |of| of.allocated);
        assert_eq!(held, 2 * 3072);
        for block in blocks {
            allocator.deallocate(block, Some(stream)).unwrap();
        }
    }
    let figures = allocator.tag_stats(Some(0)).unwrap();
    let mine = figures.iter().find(|of| of.tag == "old driver").unwrap();
    assert_eq!((mine.allocated, mine.allocations, mine.frees), (0, 100, 100));
}
