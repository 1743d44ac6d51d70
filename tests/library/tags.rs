//! Figures and limits by tag, on the simulated device.

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::error::Error;
use trtalloc::ffi::c::{trtalloc_allocator, trtalloc_create, trtalloc_destroy, trtalloc_last_error, trtalloc_status};
use trtalloc::ffi::c::{trtalloc_metrics, trtalloc_set_tag, trtalloc_set_tag_limit, trtalloc_stats_json};
use trtalloc::ffi::c::{trtalloc_tag_stats, trtalloc_tag_stats_get};
use trtalloc::stats::TagStats;
use trtalloc::tags;

struct World {
    allocator: Arc<Allocator>,
    streams: Vec<Stream>,
    context: usize,
    machine: Arc<SimDriver>,
}

fn world(options: &str) -> World {
    let driver = SimDriver::new(SimConfig::default());
    let machine = driver.machine();
    let context = machine.primary_retain(0).unwrap();
    machine.context_push(context).unwrap();
    let streams = (0..4).map(|_| Stream(machine.stream_create(true).unwrap())).collect();
    let allocator = Allocator::with_driver(driver.clone(), Config::parse(options).unwrap()).unwrap();
    World {
        allocator,
        streams,
        context,
        machine: driver,
    }
}

impl World {
    fn get(&self, size: u64, stream: Option<usize>, flags: u32) -> Result<u64, Error> {
        self.allocator.allocate(Request {
            size,
            alignment: 0,
            flags,
            stream: stream.map(|at| self.streams[at]),
            device: None,
        })
    }

    fn put(&self, address: u64, stream: Option<usize>) -> Result<(), Error> {
        self.allocator.deallocate(address, stream.map(|at| self.streams[at]))
    }

    fn of(&self, tag: &str) -> TagStats {
        let all = self.allocator.tag_stats(Some(0)).unwrap();
        all.into_iter().find(|figures| figures.tag == tag).unwrap_or(TagStats {
            tag: "",
            allocated: 0,
            allocated_peak: 0,
            limit: 0,
            allocations: 0,
            frees: 0,
            out_of_memory: 0,
        })
    }
}

#[test]
fn each_way_in_and_out_is_counted_for_the_tag_it_was_allocated_under() {
    let world = world("");
    tags::set(Some("ways: engine")).unwrap();
    let mut held = Vec::new();
    for stream in [None, Some(0), Some(1)] {
        for flags in [0, RESIZABLE] {
            held.push((world.get(1000, stream, flags).unwrap(), stream));
        }
    }
    // Of this stream's own cache: a hit.
    let hit = world.get(5000, Some(0), 0).unwrap();
    world.put(hit, Some(0)).unwrap();
    assert_eq!(world.get(5000, Some(0), 0).unwrap(), hit);
    held.push((hit, Some(0)));
    tags::set(None).unwrap();
    let untagged = world.get(1 << 20, Some(0), 0).unwrap();
    let engine = world.of("ways: engine");
    assert_eq!(
        (engine.allocated, engine.allocations, engine.frees),
        (6 * 1024 + 5120, 8, 1)
    );
    assert_eq!(
        world.allocator.stats(Some(0)).unwrap().allocated,
        engine.allocated + (1 << 20)
    );

    // Freed by a thread with another tag, on another stream, or twice: it is the first tag's, once.
    tags::set(Some("ways: other")).unwrap();
    for (at, (address, stream)) in held.iter().enumerate() {
        world.put(*address, if at % 2 == 0 { *stream } else { None }).unwrap();
        assert!(world.put(*address, *stream).is_err());
    }
    world.put(untagged, Some(0)).unwrap();
    tags::set(None).unwrap();
    let engine = world.of("ways: engine");
    assert_eq!((engine.allocated, engine.allocations, engine.frees), (0, 8, 8));
    assert_eq!(engine.allocated_peak, 6 * 1024 + 5120);
    assert_eq!(world.of("ways: other").frees, 0);
    world.allocator.reset_peaks(Some(0)).unwrap();
    assert_eq!(world.of("ways: engine").allocated_peak, 0);
    world.allocator.validate().unwrap();
}

#[test]
fn a_limit_refuses_only_what_exceeds_it() {
    let world = world("");
    world.allocator.set_tag_limit(Some(0), "limit: model", 1 << 20).unwrap();
    tags::set(Some("limit: model")).unwrap();
    let first = world.get(1 << 19, Some(0), 0).unwrap();
    let second = world.get(1 << 19, None, 0).unwrap();
    let error = world.get(1, Some(0), 0).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    assert!(error.to_string().contains("`limit: model`"), "{error}");
    // Refused before the pool grew for it.
    let reserved = world.allocator.stats(Some(0)).unwrap().reserved;
    assert!(world.get(1 << 30, Some(0), 0).is_err() && world.get(1 << 30, None, RESIZABLE).is_err());
    assert_eq!(world.allocator.stats(Some(0)).unwrap().reserved, reserved);
    assert_eq!(world.of("limit: model").out_of_memory, 3);
    // Others are not concerned.
    tags::set(None).unwrap();
    let untagged = world.get(1 << 21, Some(0), 0).unwrap();
    world.put(untagged, Some(0)).unwrap();
    tags::set(Some("limit: model")).unwrap();
    world.put(first, Some(0)).unwrap();
    let again = world.get(1 << 19, Some(0), 0).unwrap();
    // A lower limit takes nothing away, and none lets everything through.
    world.allocator.set_tag_limit(Some(0), "limit: model", 512).unwrap();
    assert_eq!(world.of("limit: model").allocated, 1 << 20);
    assert!(world.get(1, None, 0).is_err());
    world.allocator.set_tag_limit(Some(0), "limit: model", 0).unwrap();
    let more = world.get(1 << 24, None, 0).unwrap();
    for (address, stream) in [(second, None), (again, Some(0)), (more, None)] {
        world.put(address, stream).unwrap();
    }
    tags::set(None).unwrap();
    assert_eq!(world.of("limit: model").allocated, 0);
}

#[test]
fn growing_counts_and_is_limited() {
    let world = world("");
    let tag = "grow: cache";
    world.allocator.set_tag_limit(Some(0), tag, 64 << 20).unwrap();
    tags::set(Some(tag)).unwrap();
    let block = world.get(1 << 20, Some(0), RESIZABLE).unwrap();
    tags::set(None).unwrap();
    let block = world.allocator.reallocate(block, 0, 40 << 20).unwrap();
    assert_eq!(world.of(tag).allocated, 40 << 20);
    assert!(world.allocator.reallocate(block, 0, 65 << 20).is_err());
    assert_eq!(world.of(tag).allocated, 40 << 20);
    // A growth that the pool refuses is no growth of the tag's either.
    world.allocator.set_tag_limit(Some(0), tag, 0).unwrap();
    world.allocator.set_limit(Some(0), 48 << 20).unwrap();
    assert!(world.allocator.reallocate(block, 0, 60 << 20).is_err());
    assert_eq!(world.of(tag).allocated, 40 << 20);
    let block = world.allocator.reallocate(block, 0, 512).unwrap();
    assert_eq!(world.of(tag).allocated, 512);
    world.put(block, Some(0)).unwrap();
    assert_eq!((world.of(tag).allocated, world.of(tag).frees), (0, 1));
}

#[test]
fn a_block_that_is_copied_to_grow_keeps_its_tag() {
    let world = world("backing=malloc");
    let tag = "copied: cache";
    tags::set(Some(tag)).unwrap();
    let block = world.get(1 << 20, Some(0), RESIZABLE).unwrap();
    tags::set(None).unwrap();
    let untagged = world.get(1 << 20, Some(0), 0).unwrap();
    let grown = world.allocator.reallocate(block, 0, 9 << 20).unwrap();
    assert_ne!(grown, block);
    assert_eq!(world.of(tag).allocated, 9 << 20);
    // What has the old place now is no tag's.
    let again = world.get(1 << 20, None, 0).unwrap();
    world.put(again, None).unwrap();
    assert_eq!((world.of(tag).allocated, world.of(tag).frees), (9 << 20, 0));
    world.put(grown, Some(0)).unwrap();
    world.put(untagged, Some(0)).unwrap();
    assert_eq!((world.of(tag).allocated, world.of(tag).frees), (0, 1));
}

#[test]
fn a_request_that_the_pool_refuses_leaves_the_tags_books_as_they_were() {
    let world = world("limit=8MiB,wait_ms=1");
    tags::set(Some("full: model")).unwrap();
    assert!(world.get(16 << 20, Some(0), 0).is_err());
    let held = world.get(1 << 20, Some(0), 0).unwrap();
    assert!(world.get(16 << 20, Some(0), 0).is_err());
    world.put(held, Some(0)).unwrap();
    tags::set(None).unwrap();
    let figures = world.of("full: model");
    assert_eq!((figures.allocated, figures.allocations, figures.frees), (0, 1, 1));
    assert!(figures.out_of_memory >= 1);
}

#[test]
fn a_request_beyond_any_device_counts_for_its_tag() {
    let world = world("");
    tags::set(Some("beyond: engine")).unwrap();
    for (at, size) in [1 << 50, 1 << 63, u64::MAX].into_iter().enumerate() {
        assert!(matches!(world.get(size, None, 0), Err(Error::OutOfMemory(_))));
        assert!(matches!(
            world.get(size, Some(0), RESIZABLE),
            Err(Error::OutOfMemory(_))
        ));
        assert_eq!(world.of("beyond: engine").out_of_memory, 2 * (at as u64 + 1));
    }
    let block = world.get(4096, None, RESIZABLE).unwrap();
    let resized = world.allocator.reallocate(block, 0, 1 << 63);
    assert!(matches!(resized, Err(Error::OutOfMemory(_))));
    let figures = world.of("beyond: engine");
    assert_eq!((figures.out_of_memory, figures.allocated), (7, 4096));
    assert_eq!(world.allocator.stats(Some(0)).unwrap().out_of_memory, 7);
    world.put(block, None).unwrap();
    assert_eq!(world.of("beyond: engine").allocated, 0);
    tags::set(None).unwrap();
}

#[test]
fn threads_with_tags_of_their_own_never_pass_a_limit_and_come_out_even() {
    const LIMIT: u64 = 1 << 20;
    let world = world("");
    let names = ["threads: a", "threads: b"];
    for name in names {
        world.allocator.set_tag_limit(Some(0), name, LIMIT).unwrap();
    }
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (world, refused) = (&world, &refused);
            scope.spawn(move || {
                let machine = world.machine.machine();
                machine.context_push(world.context).unwrap();
                tags::set(Some(names[thread % 2])).unwrap();
                let mut random = thread as u64 + 1;
                let mut held = Vec::new();
                for _ in 0..4_000 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let draw = random >> 33;
                    let stream = Some(thread).filter(|_| !draw.is_multiple_of(8));
                    if draw.is_multiple_of(2) || held.is_empty() {
                        match world.get(512 << (draw % 9), stream, 0) {
                            Ok(address) => held.push(address),
                            Err(_) => _ = refused.fetch_add(1, Ordering::Relaxed),
                        }
                        let figures = world.of(names[thread % 2]);
                        assert!(figures.allocated_peak <= LIMIT, "{figures:?}");
                    } else {
                        let address = held.swap_remove(draw as usize % held.len());
                        world.put(address, stream).unwrap();
                    }
                }
                for address in held {
                    world.put(address, Some(thread)).unwrap();
                }
                machine.context_pop().unwrap();
            });
        }
    });
    for name in names {
        let figures = world.of(name);
        assert_eq!(
            (figures.allocated, figures.allocations),
            (0, figures.frees),
            "{figures:?}"
        );
    }
    assert!(refused.load(Ordering::Relaxed) > 0, "the limit was never reached");
    assert_eq!(world.allocator.stats(Some(0)).unwrap().allocated, 0);
    world.allocator.validate().unwrap();
}

fn last() -> String {
    // SAFETY: a C string, valid until this thread's next call.
    unsafe { CStr::from_ptr(trtalloc_last_error()) }
        .to_string_lossy()
        .into_owned()
}

/// The text that one of the C functions writes, after its length was asked for; a shorter buffer gets its beginning.
fn text(write: impl Fn(*mut c_char, usize) -> usize) -> String {
    let length = write(null_mut(), 0);
    assert!(length > 0, "{}", last());
    let mut buffer = vec![0x55u8; length + 2];
    assert_eq!(write(buffer.as_mut_ptr().cast(), length + 1), length);
    assert_eq!(buffer[length..], [0, 0x55]);
    let mut short = [0x55u8; 8];
    assert_eq!(write(short.as_mut_ptr().cast(), 5), length);
    assert_eq!((&short[..4], &short[4..]), (&buffer[..4], &[0, 0x55, 0x55, 0x55][..]));
    buffer.truncate(length);
    String::from_utf8(buffer).unwrap()
}

#[test]
fn from_c() {
    let mut allocator: *mut trtalloc_allocator = null_mut();
    let name = CString::new("c: \"quoted\"").unwrap();
    // SAFETY: pointers to locals, null, or an allocator of the library; throughout.
    unsafe {
        assert_eq!(
            trtalloc_create(c"driver=sim".as_ptr(), &mut allocator),
            trtalloc_status::Ok
        );
        trtalloc_set_tag(name.as_ptr());
        let memory = trtalloc::ffi::c::trtalloc_allocate(allocator, 700, 0, 0);
        assert!(!memory.is_null());
        trtalloc_set_tag(null());
        let json = text(|buffer, size| trtalloc_stats_json(allocator, -1, buffer, size));
        assert!(
            json.contains(r#""tags":[{"tag":"c: \"quoted\"","allocated":1024,"#),
            "{json}"
        );
        let metrics = text(|buffer, size| trtalloc_metrics(allocator, buffer, size));
        assert!(
            metrics.contains("\ntrtalloc_tag_allocated_bytes{device=\"0\",tag=\"c: \\\"quoted\\\"\"} 1024\n"),
            "{metrics}"
        );
        assert!(
            metrics.contains("\ntrtalloc_requested_bytes{device=\"0\"} 700\n"),
            "{metrics}"
        );

        let limit = |device, tag: *const c_char| trtalloc_set_tag_limit(allocator, device, tag, 1);
        assert_eq!(limit(0, name.as_ptr()), trtalloc_status::Ok);
        assert_eq!(limit(0, null()), trtalloc_status::InvalidArgument);
        assert_eq!(limit(0, c"".as_ptr()), trtalloc_status::InvalidArgument);
        assert_eq!(limit(9, name.as_ptr()), trtalloc_status::InvalidArgument);
        assert_eq!(limit(0, c"\xff".as_ptr()), trtalloc_status::InvalidArgument);
        let mut figures = trtalloc_tag_stats::default();
        let read = |device, tag: *const c_char, out: &mut trtalloc_tag_stats| {
            trtalloc_tag_stats_get(allocator, device, tag, out, size_of_val(out))
        };
        assert_eq!(read(-1, name.as_ptr(), &mut figures), trtalloc_status::Ok);
        assert_eq!((figures.allocated, figures.limit, figures.allocations), (1024, 1, 1));
        // A name is read as an adapter's is: cut, and of any bytes.
        for unused in [c"", c"unused", c"\xff"] {
            assert_eq!(read(0, unused.as_ptr(), &mut figures), trtalloc_status::Ok);
            assert_eq!(figures, trtalloc_tag_stats::default(), "{unused:?}");
        }
        assert_eq!(read(9, name.as_ptr(), &mut figures), trtalloc_status::InvalidArgument);
        assert_eq!(read(0, null(), &mut figures), trtalloc_status::InvalidArgument);
        assert_eq!(
            trtalloc_tag_stats_get(allocator, 0, name.as_ptr(), null_mut(), 0),
            trtalloc_status::InvalidArgument
        );
        let mut short = [7u64; 8];
        let bytes = size_of_val(&short);
        let status = trtalloc_tag_stats_get(allocator, 0, name.as_ptr(), short.as_mut_ptr().cast(), 8);
        assert_eq!((status, short[..2].to_vec()), (trtalloc_status::Ok, vec![1024, 7]));
        let status = trtalloc_tag_stats_get(allocator, 0, name.as_ptr(), short.as_mut_ptr().cast(), bytes);
        assert_eq!(
            (status, short[2], short[6..].to_vec()),
            (trtalloc_status::Ok, 1, vec![0, 0])
        );
        trtalloc_set_tag(c"\xff".as_ptr());
        assert!(last().contains("UTF-8"), "{}", last());
        assert_eq!(trtalloc_stats_json(null_mut(), 0, null_mut(), 0), 0);
        assert_eq!(trtalloc_stats_json(allocator, 9, null_mut(), 0), 0);
        assert_eq!(trtalloc_metrics(allocator, null_mut(), 10), 0);
        assert!(last().contains("buffer"), "{}", last());
        assert!(trtalloc::ffi::c::trtalloc_deallocate(allocator, memory));
        trtalloc_destroy(allocator);
    }
}
