//! Files as they are and as nobody should have written them, and lives against known histories.

use super::model::{Event, What};
use super::*;
use crate::record::event;
use crate::record::snapshot::Snapshot;
use crate::record::state::{Device, Piece, PieceState, Segment};
use crate::record::{Action, History};

const BASE: u64 = 0x7f00_0000_0000;

fn piece(offset: u64, size: u64, requested: u64, state: PieceState) -> Piece {
    Piece {
        address: BASE + offset,
        size,
        requested,
        state,
        stack: 0,
        tag: 0,
    }
}

/// 4096 bytes: a block, a pending one, and what is free; and how it came to be so, with a block in between that is gone.
fn snapshot() -> Snapshot {
    let event = |action, offset, size, time| event::Event {
        time,
        ..event::Event::new(action, 0, BASE + offset, size)
    };
    let on = |event: event::Event| event.on(0x50);
    let events = vec![
        event(Action::SegmentMap, 0, 4096, 100),
        on(event(Action::Alloc, 0, 700, 200)),
        on(event(Action::Alloc, 1024, 512, 300)),
        on(event(Action::Alloc, 1536, 1000, 400)),
        on(event(Action::Freed, 1024, 512, 500)),
        on(event(Action::FreeRequested, 1536, 1000, 600)),
        event::Event {
            address: 77,
            ..event(Action::Oom, 0, 3000, 700)
        },
    ];
    let pieces = vec![
        piece(0, 1024, 700, PieceState::Allocated),
        piece(1024, 512, 0, PieceState::Inactive),
        piece(1536, 1024, 1000, PieceState::Pending),
        piece(2560, 1536, 0, PieceState::Inactive),
    ];
    Snapshot {
        devices: vec![Device {
            segments: vec![Segment {
                address: BASE,
                size: 4096,
                expandable: true,
                pieces,
            }],
            ..Device::default()
        }],
        history: History {
            events,
            ..History::default()
        },
        expandable: true,
    }
}

fn written(suffix: &str) -> Vec<u8> {
    let name = format!(
        "trtalloc-report-{}-{:?}.{suffix}",
        std::process::id(),
        std::thread::current().id()
    );
    let path = std::env::temp_dir().join(name);
    snapshot().write(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

fn page(report: &Report) -> Vec<u8> {
    let mut page = Vec::new();
    report.write("a page", &mut page).unwrap();
    page
}

#[test]
fn a_file_says_what_the_snapshot_does() {
    let direct = page(&Report::of(&snapshot()));
    for suffix in ["pickle", "json"] {
        let read = Report::of_bytes(&written(suffix)).unwrap();
        assert!(page(&read) == direct, "{suffix}");
        assert_eq!(read.devices[0].events.len(), 8, "a free is two");
        assert_eq!(read.recording.unwrap().mode, "off");
    }
}

#[test]
fn a_known_history_is_followed() {
    let report = Report::of(&snapshot());
    let course = Course::of(&report.devices[0]);
    assert_eq!(course.misfits, 0);
    let seen: Vec<_> = course
        .lives
        .iter()
        .map(|l| (l.address - BASE, l.size, l.start, l.freed, l.end))
        .collect();
    let never = course::NEVER;
    assert_eq!(
        seen,
        [
            (0, 1024, 2, never, never),
            (1024, 512, 3, 5, 6),
            (1536, 1024, 4, 7, never)
        ]
    );
    let mut walk = Walk::new(&course);
    let expected = [
        // allocated, pending, reserved; free, ranges, largest
        (0, 0, 0, 0, 0, 0),
        (0, 0, 4096, 4096, 1, 4096),
        (1024, 0, 4096, 3072, 1, 3072),
        (1536, 0, 4096, 2560, 1, 2560),
        (2560, 0, 4096, 1536, 1, 1536),
        (2048, 512, 4096, 1536, 1, 1536),
        (2048, 0, 4096, 2048, 2, 1536),
        (1024, 1024, 4096, 2048, 2, 1536),
        (1024, 1024, 4096, 2048, 2, 1536),
    ];
    for (moment, expected) in (0..).zip(expected) {
        walk.to(moment);
        let free = walk.free();
        let seen = (
            walk.allocated,
            walk.pending,
            walk.reserved,
            free.bytes,
            free.ranges,
            free.largest,
        );
        assert_eq!(seen, expected, "at {moment}");
    }
    assert_eq!(walk.free().by_stream[&0x50], 512, "what nobody used is nobody's");
    let refusals = Refusal::all(&report.devices[0], &course);
    let [refusal] = &refusals[..] else {
        panic!("{refusals:?}")
    };
    assert_eq!((refusal.size, refusal.device_free, refusal.largest), (3000, 77, 1536));
    assert_eq!((refusal.pending, refusal.elsewhere, refusal.room()), (1024, 512, 77));
    assert_eq!(
        refusal.reason(),
        "2.0 KiB free in 2 ranges, the largest 1.5 KiB, 77 B more to be had from the device. 875 B short; 1.0 KiB were freed \
         and waited for the device to be done with them."
    );
}

#[test]
fn what_would_have_been_needed_is_said() {
    let base = Refusal {
        event: 0,
        size: 1 << 20,
        stream: 0,
        device_free: 1 << 30,
        limit: 8 << 20,
        allocated: 7 << 20,
        pending: 0,
        reserved: 8 << 20,
        free: 1 << 20,
        ranges: 4,
        largest: 1 << 18,
        elsewhere: 0,
    };
    let says = |refusal: Refusal, part: &str| assert!(refusal.reason().contains(part), "{}", refusal.reason());
    says(base.clone(), "Fragmentation");
    says(base.clone(), "0 B more to be had from the limit");
    says(
        Refusal {
            largest: 1 << 20,
            ..base.clone()
        },
        "not for this stream",
    );
    says(
        Refusal {
            size: 3 << 20,
            ..base.clone()
        },
        "2.0 MiB short",
    );
    says(
        Refusal {
            size: 9 << 20,
            ..base.clone()
        },
        "More than the limit of 8.0 MiB",
    );
    let unlimited = Refusal {
        limit: 0,
        device_free: 5,
        ..base
    };
    says(
        Refusal {
            size: 9 << 40,
            ..unlimited
        },
        "short: that much more",
    );
}

/// Everything that is done with a file that could be read.
fn all_of(report: &Report) {
    page(report);
    report.callers();
    for device in &report.devices {
        let course = Course::of(device);
        let mut walk = Walk::new(&course);
        for moment in 0..=device.events.len() as u32 {
            walk.to(moment);
            walk.free();
        }
    }
}

#[test]
fn a_file_that_was_cut_off_is_refused() {
    for suffix in ["pickle", "json"] {
        let whole = written(suffix);
        // JSON's last byte is a line's end.
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
fn a_file_with_wrong_bytes_does_no_harm() {
    for suffix in ["pickle", "json"] {
        let whole = written(suffix);
        let mut read = 0;
        for at in 0..whole.len() {
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
        ("was not given", b"\x80\x04j\xff\xff\xff\xff.".to_vec()),
        ("a mark is missing", b"\x80\x04e.".to_vec()),
        ("no list", b"\x80\x04}Na.".to_vec()),
        ("no text", b"\x80\x04}NNs.".to_vec()),
        ("a value is missing", b"\x80\x04](0.".to_vec()),
        ("not known", b"\x80\x04\xfe.".to_vec()),
        ("a value is missing", many(b"(", 1_000_000)),
        ("number", many(b"]q\x00h\x00a", 100_000)),
        ("no end", b"{\"segments".to_vec()),
        ("none of JSON's", b"{\"segments\":+1}".to_vec()),
        ("a colon", b"{\"segments\"}".to_vec()),
        ("follows the end", b"[] []".to_vec()),
        ("in the middle", vec![b'['; 1_000_000]),
        ("UTF-8", b"{\"\xff\":1}".to_vec()),
        ("no list", b"{\"segments\":3}".to_vec()),
        ("without an address", b"[{}]".to_vec()),
        (
            "bytes cannot be",
            b"[{\"address\":1,\"total_size\":-5,\"blocks\":[]}]".to_vec(),
        ),
        (
            "bytes cannot be",
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

/// A list that is referred to from many places is small in a file, and would be large everywhere else.
#[test]
fn what_refers_to_one_list_over_and_over_is_refused() {
    let mut bytes = b"\x80\x04}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces](".to_vec();
    // The first trace: an event in number 0, then 1000 times the same; the trace itself in number 1.
    bytes.extend(b"]q\x01(}q\x00X\x06\x00\x00\x00actionX\x08\x00\x00\x00snapshots");
    bytes.extend(b"h\x00".repeat(1000));
    bytes.extend(b"e");
    bytes.extend(b"h\x01".repeat(10_000));
    bytes.extend(b"eu.");
    let fault = Report::of_bytes(&bytes).unwrap_err();
    assert!(fault.contains("over and over"), "{fault}");
    // A list that contains itself is a value like any other.
    let fault = Report::of_bytes(b"\x80\x04]q\x00h\x00a.").unwrap_err();
    assert!(fault.contains("address"), "{fault}");
}

#[test]
fn json_of_every_kind_is_read() {
    let text = r#" {"segments" : [ ], "device_traces": [[], [{"action":"annotate", "user_metadata":"\u00e9\ud83d\ude00\n\"",
        "time_us":1.5e3}]], "x":[true,false,null,-0.5e-3,{"y":{}}, [[[]]]]} "#;
    let fault = Report::of_bytes(text.as_bytes()).unwrap_err();
    assert_eq!(fault, "time_us: no number");
    let report = Report::of_bytes(text.replace("1.5e3", "1500").as_bytes()).unwrap();
    let [device] = &report.devices[..] else {
        panic!("{report:?}")
    };
    let [note] = device.events[..] else {
        panic!("{report:?}")
    };
    assert_eq!((device.number, note.what, note.time), (1, What::Note, 1500));
    assert_eq!(report.names.text(note.tag), "é😀\n\"");
    let page = String::from_utf8(page(&report)).unwrap();
    assert!(page.contains(r#""é😀\u000a\"""#));
}

#[test]
fn nothing_in_a_name_ends_the_pages_script() {
    let text = r#"{"segments":[],"device_traces":[[{"action":"note","user_metadata":"</script><!--\u2028"}]]}"#;
    let page = String::from_utf8(page(&Report::of_bytes(text.as_bytes()).unwrap())).unwrap();
    assert_eq!(
        page.matches("</script>").count(),
        2,
        "the two scripts of the page itself"
    );
    assert!(page.contains(r"\u003c/script>\u003c!--\u2028"));
}

/// Whatever is told, in whatever order, nothing panics and no sum runs over.
#[test]
fn impossible_histories_are_followed_as_far_as_they_go() {
    const ACTIONS: [What; 9] = [
        What::Alloc,
        What::FreeRequested,
        What::FreeCompleted,
        What::SegmentAlloc,
        What::SegmentFree,
        What::SegmentMap,
        What::SegmentUnmap,
        What::Oom,
        What::Note,
    ];
    let mut random = 1u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    for _ in 0..300 {
        let mut report = Report::of(&snapshot());
        report.devices[0].events = (0..draw(60))
            .map(|_| Event {
                what: ACTIONS[draw(9) as usize],
                address: BASE + draw(10) * 512,
                size: [0, 1, 512, 700, 1024, 4096, 1 << 48][draw(7) as usize],
                stream: draw(3),
                time: 0,
                stack: 0,
                tag: 0,
            })
            .collect();
        all_of(&report);
        let course = Course::of(&report.devices[0]);
        let mut walk = Walk::new(&course);
        walk.to(u32::MAX - 1);
        assert_eq!(
            (walk.allocated, walk.pending, walk.reserved),
            (1024, 1024, 4096),
            "the end is what it is"
        );
    }
}
