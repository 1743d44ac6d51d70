//! What becomes of a request that cannot be met.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use trtalloc::history::report::model::EventKind;

use crate::program::{Program, path, request};
use crate::viewer;

#[test]
fn a_handler_makes_room_and_the_first_refusal_is_a_snapshot() {
    let file = path("oom.pickle");
    let _ = std::fs::remove_file(&file);
    let program = Program::new(&format!(
        "history=all,limit=64MiB,wait_ms=0,snapshot_on_oom={}",
        file.display()
    ));
    let held = Arc::new(Mutex::new(vec![program.get(48 << 20, None)]));
    let (allocator, spare) = (Arc::downgrade(&program.allocator), held.clone());
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    program.allocator.on_oom(Some(Arc::new(move |device, size| {
        count.fetch_add(1, Relaxed);
        assert_eq!((device, size), (0, 32 << 20));
        let allocator = allocator.upgrade().unwrap();
        // It holds no lock, so what there is can be looked at.
        allocator.write_snapshot(&path("oom-handler.json")).unwrap();
        // A request of its own that cannot be met does not ask it again.
        assert!(allocator.allocate(request(60 << 20, None)).is_err());
        let address = spare.lock().unwrap().pop();
        address
            .map(|address| allocator.deallocate(address, None).unwrap())
            .is_some()
    })));
    let met = program.get(32 << 20, None);
    assert_eq!(calls.load(Relaxed), 1);
    held.lock().unwrap().push(met);
    program.allocator.on_oom(None);
    assert!(program.allocator.allocate(request(40 << 20, None)).is_err());
    let seen = viewer::open(&file);
    assert!(seen.number("oom") >= 1, "{seen}");
    assert_eq!(seen.number("left_out"), 0, "{seen}");
    std::fs::remove_file(&file).unwrap();
    assert!(program.allocator.allocate(request(41 << 20, None)).is_err());
    assert!(!file.exists(), "only the first refusal writes one");
}

/// An option of the environment holds for every allocator of a process.
#[test]
fn each_allocator_has_a_snapshot_of_its_first_refusal() {
    let file = path("oom-several.json");
    let others = ["oom-several.1.json", "oom-several.2.json"].map(path);
    let options = format!("limit=64MiB,wait_ms=0,snapshot_on_oom={}", file.display());
    let programs = [16, 24, 32].map(|held| {
        let program = Program::new(&options);
        let _held = program.get(held << 20, None);
        assert!(program.allocator.allocate(request(60 << 20, None)).is_err());
        (program, held << 20)
    });
    for ((_program, held), file) in programs.iter().zip([&file, &others[0], &others[1]]) {
        let report = trtalloc::history::report::Report::read(file).unwrap();
        let stats = report.devices[0].figures.unwrap().stats;
        assert_eq!(stats.allocated, *held, "{}", file.display());
        std::fs::remove_file(file).unwrap();
    }
}

/// A size that was never set is the usual reason for such a request.
#[test]
fn snapshot_of_a_refused_request_of_any_size_can_be_read() {
    let file = path("oom-absurd.pickle");
    let program = Program::new("history=all,limit=64MiB,wait_ms=0");
    let _held = program.get(1 << 20, None);
    for size in [(1 << 48) + 1, 1 << 63, u64::MAX] {
        assert!(program.allocator.allocate(request(size, None)).is_err());
    }
    program.allocator.write_snapshot(&file).unwrap();
    let report = trtalloc::history::report::Report::read(&file).unwrap();
    let events = report.devices[0].events.iter();
    let refused = events
        .filter(|event| event.what == EventKind::Oom)
        .map(|event| event.size);
    assert_eq!(refused.collect::<Vec<u64>>(), [1 << 48; 3]);
    assert_eq!(viewer::open(&file).number("oom"), 3);
}

/// A handler that always requests another attempt is called so many times for one request, and each attempt is one.
#[test]
fn a_handler_is_called_at_most_a_hundred_times_for_a_request() {
    let program = Program::new("limit=64MiB,wait_ms=0");
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    program.allocator.on_oom(Some(Arc::new(move |_, _| {
        count.fetch_add(1, Relaxed);
        true
    })));
    assert!(program.allocator.allocate(request(65 << 20, None)).is_err());
    assert_eq!(calls.swap(0, Relaxed), 100);
    let block = program.get_resizable(8 << 20, None).unwrap();
    assert!(program.allocator.reallocate(block, 0, 65 << 20).is_err());
    assert_eq!(calls.load(Relaxed), 100);
}

/// A handler that frees what it finds in the list, one at each call.
fn spares(program: &Program, held: Vec<u64>) -> Arc<Mutex<Vec<u64>>> {
    let held = Arc::new(Mutex::new(held));
    let (allocator, spare) = (Arc::downgrade(&program.allocator), held.clone());
    program.allocator.on_oom(Some(Arc::new(move |_, _| {
        let address = spare.lock().unwrap().pop();
        address
            .map(|address| allocator.upgrade().unwrap().deallocate(address, None).unwrap())
            .is_some()
    })));
    held
}

#[test]
fn a_resize_and_a_tags_limit_ask_the_handler_too() {
    for history in ["off", "all"] {
        let program = Program::new(&format!("history={history},limit=64MiB,wait_ms=0"));
        let growing = program.get_resizable(8 << 20, None).unwrap();
        let held = spares(&program, vec![program.get(16 << 20, None), program.get(32 << 20, None)]);
        let grown = program.allocator.reallocate(growing, 0, 40 << 20).unwrap();
        assert_eq!(held.lock().unwrap().len(), 1, "one was enough");
        assert!(
            program.allocator.reallocate(grown, 0, 80 << 20).is_err(),
            "beyond the limit"
        );
        assert_eq!(held.lock().unwrap().len(), 0, "and nothing was left to try");
        program.give(grown, None);

        trtalloc::tags::set(Some("weights")).unwrap();
        program.allocator.set_tag_limit(None, "weights", 8 << 20).unwrap();
        held.lock().unwrap().push(program.get(6 << 20, None));
        let met = program.get(7 << 20, None);
        assert!(held.lock().unwrap().is_empty());
        assert!(program.allocator.allocate(request(2 << 20, None)).is_err());
        trtalloc::tags::set(None).unwrap();
        program.give(met, None);
    }
}

/// Runs the test of that name in a process of its own; the lines the library wrote.
fn lines_of(test: &str) -> Vec<String> {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("TRTALLOC_TEST_ROLE", "child")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines()
        .filter(|line| line.starts_with("trtalloc: "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn refusals_are_logged_with_holders_and_throttled() {
    if std::env::var_os("TRTALLOC_TEST_ROLE").is_none() {
        let lines = lines_of("memory_short::refusals_are_logged_with_holders_and_throttled");
        assert_eq!(
            lines.len(),
            1,
            "one line for a hundred refusals, none for probes: {lines:#?}"
        );
        let line = &lines[0];
        for part in [
            "warn: out of memory on device 0: 16.0 MiB requested, ",
            " MiB too few; in use 54.0 MiB, pending 0 B, free ",
            ", limit 64.0 MiB, ",
            " GiB free on the device; ",
            "held by size 2 of 20.0 MiB, 3 of 4.0 MiB, 2 of 1.0 MiB",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let digits = line.split(|c: char| !c.is_ascii_digit());
        assert!(
            digits.clone().all(|number| number.len() < 5),
            "units that people read: {line}"
        );
        assert_eq!(line.matches("16.0 MiB").count(), 1, "every figure once: {line}");
        return;
    }
    trtalloc::log::init(trtalloc::config::LogLevel::Warn);
    let program = Program::new("limit=64MiB,wait_ms=0");
    for size in [20, 4, 1, 20, 4, 1, 4] {
        program.get(size << 20, None);
    }
    // As a builder probes: more than there can be is no alarm.
    for size in [65, 100, 1 << 20] {
        assert!(program.allocator.allocate(request(size << 20, None)).is_err());
    }
    for size in 0..100 {
        assert!(
            program
                .allocator
                .allocate(request((16 << 20) + size * 4096, None))
                .is_err()
        );
    }
}

/// The end of each line: what is held, the largest three of each kind first.
const HOLDERS: [&str; 5] = [
    "held by tag `a` 8.0 MiB, `b` 3.0 MiB, `c` 1.0 MiB; by size 2 of 4.0 MiB, 2 of 1.0 MiB, 1 of 2.0 MiB",
    "held by tag `a` 8.0 MiB; by size 1 of 8.0 MiB",
    "held by no block",
    "held by size 1 of 20.0 GiB",
    "held by stack 3.0 MiB in 2 from ",
];

#[test]
fn the_line_of_a_refusal_names_the_largest_holders() {
    if std::env::var_os("TRTALLOC_TEST_ROLE").is_none() {
        let lines = lines_of("memory_short::the_line_of_a_refusal_names_the_largest_holders");
        assert_eq!(lines.len(), HOLDERS.len(), "{lines:#?}");
        for (line, holders) in lines.iter().zip(HOLDERS) {
            let (_, held) = line.split_once(" free on the device; ").unwrap();
            match holders.strip_suffix(" from ") {
                Some(_) => assert!(held.starts_with(holders), "{line}"),
                None => assert_eq!(held, holders, "{line}"),
            }
        }
        for (line, part) in [
            (2, "64.0 MiB requested, "),
            (2, "in use 0 B, pending 1.0 MiB, free "),
            (3, ", no limit, "),
        ] {
            assert!(lines[line].contains(part), "{part}: {}", lines[line]);
        }
        return;
    }
    trtalloc::log::init(trtalloc::config::LogLevel::Warn);
    let tagged = |program: &Program, tag: &str, sizes: &[u64]| {
        trtalloc::tags::set(Some(tag)).unwrap();
        let blocks: Vec<u64> = sizes.iter().map(|size| program.get(*size, None)).collect();
        trtalloc::tags::set(None).unwrap();
        blocks
    };
    let refused = |program: &Program, size: u64| assert!(program.allocator.allocate(request(size, None)).is_err());
    // Sizes that the line prints alike are one kind. Of kinds that hold as much, the smaller size comes first.
    let program = Program::new("limit=64MiB,wait_ms=0");
    tagged(&program, "a", &[4 << 20, (4 << 20) + 512]);
    tagged(&program, "b", &[2 << 20, 1 << 20]);
    tagged(&program, "c", &[1 << 20]);
    tagged(&program, "d", &[1 << 19]);
    refused(&program, 60 << 20);
    // A tag that holds nothing is not named.
    let program = Program::new("limit=64MiB,wait_ms=0");
    for block in tagged(&program, "e", &[1 << 20]) {
        program.give(block, None);
    }
    tagged(&program, "a", &[8 << 20]);
    refused(&program, 60 << 20);
    // What is pending is not held. A request for all that the limit allows is no attempt to find out what there is.
    let program = Program::new("limit=64MiB,wait_ms=0");
    let stream = program.stream();
    let block = program.get(1 << 20, Some(stream));
    let kernel = program.driver.machine().launch_persistent(stream.0, &[]).unwrap();
    program.give(block, None);
    refused(&program, 64 << 20);
    assert!(program.driver.machine().release_persistent(kernel));
    // A limit beyond the device's memory is none that a request could reach.
    let program = Program::new("wait_ms=0");
    let (_, total) = program.driver.machine().memory_info(0).unwrap();
    program.get(20 << 30, None);
    refused(&program, total);
    let program = Program::new(&format!("limit={},wait_ms=0", 2 * total));
    program.get(20 << 30, None);
    refused(&program, total + (1 << 20));
    // One place of a program, whatever the sizes.
    let program = Program::new("limit=64MiB,wait_ms=0,history=all,stacks=native");
    for size in [1, 2] {
        program.get(size << 20, None);
    }
    refused(&program, 62 << 20);
}
