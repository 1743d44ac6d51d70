//! Malformed files and impossible histories.

use super::super::compare::Comparison;
use super::super::model::{EventKind, ReportEvent};
use super::super::*;
use super::{BASE, page, snapshot, written};

/// Runs everything that a report is used for.
fn all_of(report: &Report) {
    page(report);
    let callers = report.callers();
    let whole = Report::of_bytes(&written("pickle")).unwrap();
    for (old, new) in [(report, &whole), (&whole, report), (report, report)] {
        for device in Comparison::of(old, new.clone()).devices {
            device.by(|kind| kind);
        }
    }
    for (stack, caller) in (0..).zip(callers) {
        report.outward(stack, caller).count();
    }
    for device in &report.devices {
        let timeline = Timeline::of(device);
        let mut cursor = Cursor::new(&timeline);
        for moment in 0..=device.events.len() as u32 {
            cursor.to(moment);
            cursor.free();
        }
    }
}

#[test]
fn a_truncated_file_is_refused() {
    for suffix in ["pickle", "json"] {
        let whole = written(suffix);
        // The last byte of the JSON file is a newline.
        for length in 0..whole.len() - 1 {
            assert!(
                Report::of_bytes(&whole[..length]).is_err(),
                "{suffix}: {length} of {} bytes",
                whole.len()
            );
        }
    }
}

#[test]
fn corrupted_bytes_cause_an_error_or_a_report_but_no_panic() {
    for suffix in ["pickle", "json"] {
        let whole = written(suffix);
        let mut read = 0;
        // Every byte in .ci/run, which sets the variable.
        let step = match std::env::var_os("TRTALLOC_TEST_REQUIRE") {
            Some(_) => 1,
            None => 7,
        };
        for at in (0..whole.len()).step_by(step) {
            for change in [0x01, 0x80, b'.' ^ whole[at]] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                if let Ok(report) = Report::of_bytes(&bytes) {
                    all_of(&report);
                    read += 1;
                }
            }
        }
        assert!(read > 0, "some bytes are part of a name");
    }
}

#[test]
fn hostile_files_are_refused_with_a_reason() {
    let many = |item: &[u8], count| [b"\x80\x04".as_slice(), &item.repeat(count), b"."].concat();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("neither", b"hello".to_vec()),
        ("neither", vec![0x1f, 0x8b, 8]),
        ("a page", b"<!DOCTYPE html>".to_vec()),
        ("protocol 9", b"\x80\x09N.".to_vec()),
        ("a value is missing", b"\x80\x04.".to_vec()),
        ("no segments", b"\x80\x04N.".to_vec()),
        ("no segments", b"{}".to_vec()),
        (
            "Python's classes",
            b"\x80\x04cos\nsystem\n(X\x02\x00\x00\x00lstR.".to_vec(),
        ),
        ("in the middle", b"\x80\x04X\xff\xff\xff\xffabc".to_vec()),
        (
            "in the middle",
            b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc".to_vec(),
        ),
        ("before it is set", b"\x80\x04j\xff\xff\xff\xff.".to_vec()),
        ("a mark is missing", b"\x80\x04e.".to_vec()),
        ("no list", b"\x80\x04}Na.".to_vec()),
        ("no text", b"\x80\x04}NNs.".to_vec()),
        ("a value is missing", b"\x80\x04](0.".to_vec()),
        ("unknown opcode", b"\x80\x04\xfe.".to_vec()),
        ("a value is missing", many(b"(", 1_000_000)),
        ("number", many(b"]q\x00h\x00a", 100_000)),
        ("no end", b"{\"segments".to_vec()),
        ("not a JSON value", b"{\"segments\":+1}".to_vec()),
        ("a colon", b"{\"segments\"}".to_vec()),
        ("follows the end", b"[] []".to_vec()),
        ("in the middle", vec![b'['; 10_000]),
        ("bytes of memory", vec![b'['; 1_000_000]),
        ("UTF-8", b"{\"\xff\":1}".to_vec()),
        ("no list", b"{\"segments\":3}".to_vec()),
        ("without an address", b"[{}]".to_vec()),
        (
            "out of range",
            b"[{\"address\":1,\"total_size\":-5,\"blocks\":[]}]".to_vec(),
        ),
        (
            "out of range",
            b"[{\"address\":1,\"total_size\":9000000000000000000,\"blocks\":[]}]".to_vec(),
        ),
        (
            "ends before it begins",
            b"[{\"address\":-1,\"total_size\":512,\"blocks\":[]}]".to_vec(),
        ),
        (
            "no number",
            b"[{\"address\":\"x\",\"total_size\":512,\"blocks\":[]}]".to_vec(),
        ),
        (
            "device's number",
            b"[{\"device\":-3,\"address\":1,\"total_size\":512,\"blocks\":[]}]".to_vec(),
        ),
        (
            "longer than its segment",
            b"[{\"address\":1,\"total_size\":512,\"blocks\":[{\"state\":\"inactive\",\"size\":513}]}]".to_vec(),
        ),
        (
            "two segments",
            b"[{\"address\":1,\"total_size\":512,\"blocks\":[]},{\"address\":2,\"total_size\":512,\"blocks\":[]}]"
                .to_vec(),
        ),
        (
            "without an action",
            b"{\"segments\":[],\"device_traces\":[[{\"addr\":1,\"size\":1}]]}".to_vec(),
        ),
        (
            "without a size",
            b"{\"segments\":[],\"device_traces\":[[{\"action\":\"alloc\",\"addr\":1}]]}".to_vec(),
        ),
    ];
    for (reason, bytes) in cases {
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        match Report::of_bytes(&bytes) {
            Err(fault) if reason == "number" || fault.contains(reason) => {}
            Err(fault) => panic!("{start:?}: {fault:?}, not {reason:?}"),
            Ok(report) => panic!("{start:?} was read as {report:?}"),
        }
    }
}

/// A list that the file refers to from many places is small in the file, and would be large in the report.
#[test]
fn a_file_that_repeats_references_to_one_list_is_refused() {
    let mut bytes = b"\x80\x04}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces](".to_vec();
    // The first trace: an event in number 0, then 1000 times the same; the trace itself in number 1.
    bytes.extend(b"]q\x01(}q\x00X\x06\x00\x00\x00actionX\x08\x00\x00\x00snapshots");
    bytes.extend(b"h\x00".repeat(1000));
    bytes.extend(b"e");
    bytes.extend(b"h\x01".repeat(10_000));
    bytes.extend(b"eu.");
    let fault = Report::of_bytes(&bytes).unwrap_err();
    assert!(fault.contains("over and over"), "{fault}");
    // A list that contains itself is parsed as any other.
    let fault = Report::of_bytes(b"\x80\x04]q\x00h\x00a.").unwrap_err();
    assert!(fault.contains("address"), "{fault}");
}

/// A value of one or two bytes may take a hundred in memory.
#[test]
fn a_file_that_would_take_many_times_its_size_is_refused() {
    let pickled = |item: &[u8]| [b"\x80\x04".as_slice(), &item.repeat(400_000), b"."].concat();
    let listed = |item: &str| format!("[{}0]", format!("{item},").repeat(400_000)).into_bytes();
    for bytes in [pickled(b"]Na"), pickled(b"]\x94"), listed("[0]"), listed("{\"\":0}")] {
        let fault = Report::of_bytes(&bytes).unwrap_err();
        let start = String::from_utf8_lossy(&bytes[..20]);
        assert!(fault.contains("bytes of memory"), "{start}: {fault}");
    }
}

/// Each event looks for a dozen keys among 256.
#[test]
fn a_file_whose_events_are_one_large_dictionary_is_refused() {
    let mut bytes = b"\x80\x04}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces](](".to_vec();
    bytes.extend(b"}q\x00(X\x06\x00\x00\x00actionX\x08\x00\x00\x00snapshot");
    for number in 0..250 {
        bytes.extend(format!("X\x04\x00\x00\x00k{number:03}N").into_bytes());
    }
    bytes.extend(b"u");
    bytes.extend(b"h\x00".repeat(100_000));
    bytes.extend(b"eeu.");
    let begun = std::time::Instant::now();
    let fault = Report::of_bytes(&bytes).unwrap_err();
    assert!(fault.contains("steps"), "{fault} after {:?}", begun.elapsed());
}

/// A file may have one long name in each of its frames.
#[test]
fn names_of_any_length_are_cut() {
    let (name, file) = ("a::".repeat(100_000), "f".repeat(100_000));
    let frames = format!("[{{\"name\":\"{name}\",\"filename\":\"/{file}\",\"line\":7}}]");
    let event = format!("{{\"action\":\"alloc\",\"addr\":512,\"size\":1,\"frames\":{frames}}}");
    let text = format!("{{\"segments\":[],\"device_traces\":[[{event}]]}}");
    let report = Report::of_bytes(text.as_bytes()).unwrap();
    let longest = report.names.texts.all().iter().map(|text| text.chars().count()).max();
    assert_eq!(longest, Some((1 << 13) + 1));
    assert!(report.stack_names().iter().all(|name| name.chars().count() < 200));
}

/// Each refusal is explained by a pass over all memory.
#[test]
fn refusals_of_much_memory_are_explained_as_far_as_steps_last() {
    let mut report = Report::of(&snapshot());
    let event = |what, address| ReportEvent {
        what,
        address,
        size: 1,
        stream: 0,
        default_stream: false,
        resized: false,
        thread: 0,
        time: 0,
        stack: 0,
        tag: 0,
    };
    let device = &mut report.devices[0];
    device.events = (0..100)
        .flat_map(|at| {
            let address = BASE + 1 + at;
            [
                event(EventKind::Alloc, address),
                event(EventKind::FreeRequested, address),
                event(EventKind::FreeCompleted, address),
                event(EventKind::Oom, 0),
            ]
        })
        .collect();
    let timeline = Timeline::of(device);
    let explained = |steps| Refusal::first(device, &timeline, steps).len();
    assert_eq!((explained(usize::MAX), explained(1)), (100, 1));
    let some = explained(100);
    assert!((2..50).contains(&some), "{some}");
}

/// A range without bytes would stand for the one that begins where it is.
#[test]
fn a_mapping_of_nothing_changes_nothing() {
    let mut report = Report::of(&snapshot());
    let before = Timeline::of(&report.devices[0]);
    let device = &mut report.devices[0];
    let nothing = ReportEvent {
        what: EventKind::SegmentMap,
        address: BASE + 512,
        size: 0,
        stream: 0,
        default_stream: false,
        resized: false,
        thread: 0,
        time: 0,
        stack: 0,
        tag: 0,
    };
    device.events.push(nothing);
    let timeline = Timeline::of(device);
    assert_eq!(timeline.ranges, before.ranges);
    assert_eq!(timeline.misfits, before.misfits + 1);
}

/// The limits leave room for the files of PyTorch and of this library.
#[test]
fn the_least_events_take_half_of_what_they_may() {
    let mut bytes = b"\x80\x04}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces](](".to_vec();
    const KEYS: [&str; 10] = [
        "action",
        "addr",
        "size",
        "stream",
        "time_us",
        "compile_context",
        "user_metadata",
        "pool_id",
        "frames",
        "x",
    ];
    for (number, key) in (0u8..).zip(KEYS.iter().chain(&["alloc"])) {
        bytes.extend(b"X");
        bytes.extend((key.len() as u32).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend([b'q', number, b'0']);
    }
    // The frames that all share.
    bytes.extend(b"]q\x0b0K\x00K\x00\x86q\x0c0");
    for number in 0..100_000u32 {
        bytes.extend(b"}\x94(h\x00h\x0ah\x01\x8a\x06");
        bytes.extend((0x7f00_0000_0000u64 + u64::from(number) * 512).to_le_bytes()[..6].iter());
        bytes.extend(b"h\x02M\x00\x02h\x03K\x00h\x04\x8a\x07\x01\x02\x03\x04\x05\x06\x00");
        bytes.extend(b"h\x05h\x09h\x06h\x09h\x07h\x0ch\x08h\x0bu");
    }
    bytes.extend(b"eeu.");
    let (values, top) = super::super::pickle::read(&bytes).unwrap();
    let used = values.used();
    assert!(used.0 * 2 < used.1, "{used:?} bytes");
    let report = super::super::read::report(&values, top, bytes.len()).unwrap();
    assert_eq!(report.devices[0].events.len(), 100_000);
    let steps = values.used_steps();
    assert!(steps.0 * 2 < steps.1, "{steps:?} steps");
}

/// Events in any order cause no panic and no overflow.
#[test]
fn an_impossible_history_still_ends_in_the_final_state() {
    const ACTIONS: [EventKind; 9] = [
        EventKind::Alloc,
        EventKind::FreeRequested,
        EventKind::FreeCompleted,
        EventKind::SegmentAlloc,
        EventKind::SegmentFree,
        EventKind::SegmentMap,
        EventKind::SegmentUnmap,
        EventKind::Oom,
        EventKind::Note,
    ];
    let mut random = 1u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    for _ in 0..300 {
        let mut report = Report::of(&snapshot());
        report.devices[0].events = (0..draw(60))
            .map(|_| ReportEvent {
                what: ACTIONS[draw(9) as usize],
                address: BASE + draw(10) * 512,
                size: [0, 1, 512, 700, 1024, 4096, 1 << 48][draw(7) as usize],
                stream: draw(3),
                default_stream: draw(2) == 0,
                resized: draw(4) == 0,
                thread: draw(3) as u32,
                time: 0,
                stack: 0,
                tag: 0,
            })
            .collect();
        all_of(&report);
        let timeline = Timeline::of(&report.devices[0]);
        let mut cursor = Cursor::new(&timeline);
        cursor.to(u32::MAX - 1);
        assert_eq!(
            (cursor.allocated, cursor.pending, cursor.reserved),
            (1024, 1024, 4096),
            "the final state"
        );
    }
}
