//! What becomes of a request that cannot be met.

use std::sync::{Arc, Mutex};

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
    program.allocator.on_oom(Some(Arc::new(move |device, size| {
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
    held.lock().unwrap().push(met);
    program.allocator.on_oom(None);
    assert!(program.allocator.allocate(request(40 << 20, None)).is_err());
    let seen = viewer::open(&file);
    assert!(seen.number("oom") >= 1, "{seen}");
    assert_eq!(seen.number("left_out"), 0, "{seen}");
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
