//! `trtalloc report`: PyTorch's snapshots and ours, from the file to what is printed.

use std::path::Path;
use std::process::{Command, Output};

use trtalloc::history::report::model::EventKind;
use trtalloc::history::report::{Cursor, Report, Timeline};

use crate::common;
use crate::program::{Program, path, request};
use crate::server::server;

fn report(arguments: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    command.arg("report").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn pytorchs_snapshots_of_every_age_are_read() {
    if Command::new("python3").arg("--version").output().is_err() {
        common::skip("python3", "not installed");
    }
    let dir = common::scratch("torch");
    common::run(
        Command::new("python3")
            .arg(common::root().join("tests/record/torch.py"))
            .arg(&dir),
    );
    let page = |report: &Report, name: &str| {
        report.write_page(&dir.join(name), "a page").unwrap();
        std::fs::read(dir.join(name)).unwrap()
    };
    let first = Report::read(&dir.join("today-4.pickle")).unwrap();
    let expected = page(&first, "expected.html");
    for name in ["today-2", "today-3", "today-5", "fast"] {
        let read = Report::read(&dir.join(name).with_extension("pickle")).unwrap();
        assert!(page(&read, "read.html") == expected, "{name}");
    }
    let [caching, expandable] = &first.devices[..] else {
        panic!("{first:?}")
    };
    assert_eq!((caching.number, expandable.number), (0, 1), "the third has nothing");
    assert_eq!(expandable.segments[0].memory.address, (1 << 63) + 4096);
    assert_eq!(expandable.segments[0].stream as i64, i64::MIN + 5);

    let timeline = Timeline::of(caching);
    assert_eq!(timeline.misfits, 0);
    let mut cursor = Cursor::new(&timeline);
    // At the refused request, and at the end.
    for (moment, allocated, pending, free) in [(6, 13, 6, 1), (10, 4, 6, 10)] {
        cursor.to(moment);
        let seen = [cursor.allocated, cursor.pending, cursor.reserved, cursor.free().bytes].map(|bytes| bytes >> 20);
        assert_eq!(seen, [allocated, pending, 20, free], "at {moment}");
    }
    let layer = timeline
        .lives
        .iter()
        .find(|life| first.names.text(life.tag) == "layer 1")
        .unwrap();
    assert_eq!((layer.requested, layer.size), ((4 << 20) - 100, 4 << 20));
    let stack: Vec<_> = first.names.stack(layer.stack).collect();
    assert_eq!(stack, [("forward", "/srv/model.py", 10), ("main", "/srv/model.py", 99)]);
    let notes = caching.events.iter().filter(|event| event.what == EventKind::Note);
    let notes: Vec<&str> = notes.map(|event| first.names.text(event.tag)).collect();
    assert_eq!(notes, ["epoch 1", "snapshot"]);
    let timeline = Timeline::of(expandable);
    assert_eq!(timeline.misfits, 0);
    let mut cursor = Cursor::new(&timeline);
    let reserved = [0, 4, 4, 10, 8].map(|mib| mib << 20);
    let seen: Vec<u64> = (0..5)
        .map(|moment| {
            cursor.to(moment);
            cursor.reserved
        })
        .collect();
    assert_eq!(seen, reserved);
    cursor.to(4);
    assert_eq!(cursor.free().ranges, 1, "what is mapped in two steps is one");

    for (name, events) in [("yesterday", 5), ("segments", 0)] {
        let old = Report::read(&dir.join(name).with_extension("pickle")).unwrap();
        let device = &old.devices[0];
        assert_eq!(device.events.len(), events);
        let timeline = Timeline::of(device);
        assert_eq!(timeline.misfits, 0, "{name}");
        let mut cursor = Cursor::new(&timeline);
        cursor.to(events as u32);
        assert_eq!((cursor.allocated, cursor.free().bytes), (1 << 20, 1 << 20), "{name}");
        let life = timeline.lives.iter().find(|life| life.end == u32::MAX).unwrap();
        assert_eq!(life.requested, 1_000_000);
        assert_eq!(old.names.stack(life.stack).count(), 1);
    }

    let printed = report(&[&dir.join("today-4.pickle"), Path::new("-o"), &dir.join("today.html")]);
    let said = text(&printed.stdout);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    for part in [
        "device 0: 10 events in 0.000 s",
        "at event 5 of 10",
        "backward model.py:20",
        "layer 1",
        "refused 40.0 MiB at event 7 of 10",
        "device 1: 4 events",
    ] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
    assert!(
        std::fs::read_to_string(dir.join("today.html"))
            .unwrap()
            .ends_with("</html>\n")
    );
}

#[test]
fn the_summary_is_what_the_allocator_counted() {
    let program = server("stacks=native", 60);
    let (file, page) = (path("summary.pickle"), path("summary.html"));
    let snapshot = program.allocator.snapshot().unwrap();
    snapshot.write(&file).unwrap();
    // The library's own page and the command's are the same, but for their titles.
    snapshot.write(&page).unwrap();
    let copy = path("summary-copy.html");
    Report::read(&file).unwrap().write_page(&copy, "summary.html").unwrap();
    assert!(std::fs::read(&page).unwrap() == std::fs::read(&copy).unwrap());
    // JSON has all of it, too, in three times as much at most.
    let json = path("summary.json");
    snapshot.write(&json).unwrap();
    Report::read(&json).unwrap().write_page(&copy, "summary.html").unwrap();
    assert!(std::fs::read(&page).unwrap() == std::fs::read(&copy).unwrap());
    let length = |file: &Path| std::fs::metadata(file).unwrap().len();
    let (small, large) = (length(&file), length(&json));
    assert!(large <= 3 * small, "{large} bytes of JSON, {small} of the pickle");

    let stats = program.allocator.stats(Some(0)).unwrap();
    let read = Report::read(&file).unwrap();
    let device = &read.devices[0];
    let timeline = Timeline::of(device);
    assert_eq!(timeline.misfits, 0);
    let mut cursor = Cursor::new(&timeline);
    let mut peak = (0, 0);
    for moment in 0..=device.events.len() as u32 {
        cursor.to(moment);
        peak = (peak.0.max(cursor.allocated), peak.1.max(cursor.reserved));
    }
    assert_eq!(
        (cursor.allocated, cursor.pending, cursor.reserved),
        (stats.allocated, stats.pending, stats.reserved)
    );
    assert_eq!(peak, (stats.allocated_peak, stats.reserved_peak));
    assert_eq!(cursor.free().bytes, stats.cached);

    let printed = report(&[&file]);
    assert!(printed.status.success());
    let said = text(&printed.stdout);
    println!("{said}");
    for part in [
        "detector",
        "classifier",
        "requests",
        "load_engine",
        "refused 300.0 MiB",
        "More than the limit of 384.0 MiB",
    ] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
    assert!(
        said.lines().count() < 70 && said.lines().all(|line| line.chars().count() < 200),
        "{said}"
    );
}

#[test]
fn impossible_work_fails_with_a_reason() {
    let dir = common::scratch("report-bad");
    let bad = dir.join("bad.pickle");
    std::fs::write(&bad, b"\x80\x04X\x09\x00\x00\x00cut").unwrap();
    let good = dir.join("good.json");
    std::fs::write(&good, "{\"segments\":[]}").unwrap();
    let here = Path::new("-o");
    for (arguments, status, reason) in [
        (vec![dir.join("none.pickle")], 1, "No such file"),
        (vec![dir.clone()], 1, "directory"),
        (vec![bad], 1, "bad.pickle: the file ends in the middle"),
        (vec![good.clone(), here.into(), dir.join("x.pdf")], 2, "ends in .html"),
        (
            vec![good.clone(), here.into(), dir.join("none/x.html")],
            1,
            "No such file",
        ),
    ] {
        let arguments: Vec<&Path> = arguments.iter().map(|path| path.as_path()).collect();
        let output = report(&arguments);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
    let output = report(&[&good, here, &dir.join("good.html")]);
    assert!(output.status.success() && text(&output.stdout).contains("no device"));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 3, "nothing is left behind");
}

/// Of every kind of memory: what is in use, pending and free is what is held, at every moment, and in the end what the
/// allocator counts.
#[test]
fn every_kind_of_memory_adds_up_at_every_moment() {
    for options in [
        "",
        "backing=malloc",
        "passthrough=1",
        "guard=1",
        "rule=ascend,pad=32",
        "limit=96MiB,wait_ms=0",
        "max_entries=150",
    ] {
        let program = Program::new(&format!("history=all,{options}"));
        let streams = [program.stream(), program.stream()];
        let mut held = Vec::new();
        let mut random = 7u64;
        for round in 0..400u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = random >> 33;
            let stream = [Some(streams[0]), Some(streams[1]), None][(draw % 3) as usize];
            if held.len() < 30 && !draw.is_multiple_of(5) {
                let size = 1 + (draw >> 3) % (6 << 20);
                let asked = match round % 7 {
                    0 => program.get_resizable(size, stream),
                    _ => program.allocator.allocate(request(size, stream)),
                };
                held.extend(asked.ok().map(|address| (address, stream, round % 7 == 0)));
            } else if let Some((address, stream, resizable)) = held.pop() {
                let grown = 1 + (draw >> 3) % (40 << 20);
                match program.allocator.reallocate(address, 0, grown) {
                    Ok(moved) if resizable && draw.is_multiple_of(2) => held.insert(0, (moved, stream, true)),
                    Ok(moved) => program.give(moved, stream),
                    Err(_) => program.give(address, stream),
                }
            }
        }
        let file = path("adds-up.pickle");
        program.allocator.write_snapshot(&file).unwrap();
        let report = Report::read(&file).unwrap();
        let device = &report.devices[0];
        let timeline = Timeline::of(device);
        assert_eq!(timeline.misfits, 0, "{options}");
        let mut cursor = Cursor::new(&timeline);
        for moment in 0..=device.events.len() as u32 {
            cursor.to(moment);
            let sum = cursor.allocated + cursor.pending + cursor.free().bytes;
            assert_eq!(
                sum,
                cursor.reserved,
                "{options}: at {moment} of {}",
                device.events.len()
            );
        }
        let stats = program.allocator.stats(Some(0)).unwrap();
        let sums = device.segments.iter().map(|segment| segment.memory.sums());
        let (allocated, active) = sums.fold((0, 0), |all, of| (all.0 + of.0, all.1 + of.1));
        assert_eq!(
            (cursor.allocated, cursor.allocated + cursor.pending),
            (allocated, active),
            "{options}"
        );
        assert_eq!(cursor.allocated, stats.allocated, "{options}");
        for (address, stream, _) in held {
            program.give(address, stream);
        }
    }
}
