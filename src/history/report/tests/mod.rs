//! EventKind a file contains, and lifetimes from a known history.

use super::model::EventKind;
use super::*;
use crate::history::event;
use crate::history::snapshot::Snapshot;
use crate::history::state::{DeviceState, Piece, PieceState, Segment};
use crate::history::{Action, History};

mod compare;
mod hostile;
mod names;

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

/// A device with 4096 bytes: an allocated block, a pending block, and free memory. Its history has one more block,
/// which was freed.
fn snapshot() -> Snapshot {
    let event = |action, offset, size, time| event::Event {
        time,
        ..event::Event::new(action, 0, BASE + offset, size)
    };
    let on = |event: event::Event| event.on(Some(0x50));
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
        devices: vec![DeviceState {
            segments: vec![Segment {
                address: BASE,
                size: 4096,
                expandable: true,
                pieces,
            }],
            ..DeviceState::default()
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
fn a_report_from_a_file_equals_one_from_the_snapshot() {
    let direct = page(&Report::of(&snapshot()));
    for suffix in ["pickle", "json"] {
        let read = Report::of_bytes(&written(suffix)).unwrap();
        assert!(page(&read) == direct, "{suffix}");
        assert_eq!(read.devices[0].events.len(), 8, "a free has two events");
        assert_eq!(read.recording.unwrap().mode, "off");
    }
}

#[test]
fn a_known_history_gives_the_expected_lifetimes_and_sums() {
    let report = Report::of(&snapshot());
    let timeline = Timeline::of(&report.devices[0]);
    assert_eq!(timeline.misfits, 0);
    let seen: Vec<_> = timeline
        .lives
        .iter()
        .map(|l| (l.address - BASE, l.size, l.start, l.freed, l.end))
        .collect();
    let never = timeline::NEVER;
    assert_eq!(
        seen,
        [
            (0, 1024, 2, never, never),
            (1024, 512, 3, 5, 6),
            (1536, 1024, 4, 7, never)
        ]
    );
    let mut cursor = Cursor::new(&timeline);
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
        cursor.to(moment);
        let free = cursor.free();
        let seen = (
            cursor.allocated,
            cursor.pending,
            cursor.reserved,
            free.bytes,
            free.ranges,
            free.largest,
        );
        assert_eq!(seen, expected, "at {moment}");
    }
    assert_eq!(
        cursor.free().by_stream[&0x50],
        512,
        "memory that was never used belongs to no stream"
    );
    let refusals = Refusal::all(&report.devices[0], &timeline);
    let [refusal] = &refusals[..] else {
        panic!("{refusals:?}")
    };
    assert_eq!((refusal.size, refusal.device_free, refusal.largest), (3000, 77, 1536));
    assert_eq!((refusal.pending, refusal.elsewhere, refusal.room()), (1024, 512, 77));
    assert_eq!(
        refusal.reason(),
        "2.0 KiB free in 2 ranges, the largest 1.5 KiB, 77 B more available from the device. 875 B short; 1.0 KiB were freed \
         but still in use by the device."
    );
}

#[test]
fn a_refusal_explains_what_the_request_lacked() {
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
    says(
        base.clone(),
        "1.0 MiB free in 4 ranges, the largest 256.0 KiB, 0 B more available from the limit",
    );
    says(
        Refusal {
            ranges: 1,
            ..base.clone()
        },
        "1.0 MiB free in 1 range, 0 B more",
    );
    says(
        Refusal {
            limit: 64 << 20,
            device_free: 3 << 20,
            ..base.clone()
        },
        "3.0 MiB more available from the device",
    );
    says(
        Refusal {
            size: 3 << 20,
            limit: 10 << 20,
            ..base.clone()
        },
        "Fragmentation: enough is free, but 1.0 MiB of it would have to be contiguous",
    );
    says(
        Refusal {
            largest: 1 << 20,
            ..base.clone()
        },
        "not yet reusable by this stream",
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

/// JSON has its stacks in tables, and did not always have them.
#[test]
fn a_stack_is_a_number_in_a_table_or_a_list() {
    let read = |tables: &str, stack: &str| {
        let text = format!(
            r#"{{{tables}"segments":[],"device_traces":[[{{"action":"alloc","addr":512,"size":512,{stack}}}]]}}"#
        );
        let report = Report::of_bytes(text.as_bytes())?;
        let stack = report.devices[0].events[0].stack;
        let frames = report
            .names
            .stack(stack)
            .map(|(name, _, line)| format!("{name}:{line}"));
        Ok::<_, String>(frames.collect::<Vec<String>>().join(" "))
    };
    let tables = r#""frames":[{"name":"f","line":1},{"name":"g","line":2}],"stacks":[[],[1,0],[7]],"#;
    assert_eq!(read(tables, r#""stack":1"#).unwrap(), "g:2 f:1");
    assert_eq!(read(tables, r#""x":1"#).unwrap(), "");
    assert_eq!(read("", r#""frames":[{"name":"h","line":3}]"#).unwrap(), "h:3");
    for (stack, fault) in [
        (r#""stack":3"#, "a stack that the file does not have"),
        (r#""stack":-1"#, "a stack that the file does not have"),
        (r#""stack":2"#, "a frame that the file does not have"),
    ] {
        assert_eq!(read(tables, stack).unwrap_err(), fault);
    }
}

/// Of what is in it, as PyTorch has one or the other.
#[test]
fn a_segment_has_the_stream_of_its_blocks() {
    let mut one = snapshot();
    let stream = |snapshot: &Snapshot| Report::of(snapshot).devices[0].segments[0].stream;
    assert_eq!(stream(&one), 0x50);
    let json = |snapshot: &Snapshot| {
        let mut text = Vec::new();
        snapshot
            .write_to(&mut text, crate::history::snapshot::Format::Json, "")
            .unwrap();
        String::from_utf8(text).unwrap()
    };
    assert!(json(&one).contains(r#""stream":80,"allocated_size":1024"#));
    assert!(json(&one).contains(r#""segment_type":"small""#));
    one.history.events[3].stream = 0x60;
    assert_eq!(stream(&one), 0, "two streams");
    one.history.events.clear();
    assert_eq!(stream(&one), 0, "no history");
    let segment = &mut one.devices[0].segments[0];
    segment.size = 4 << 20;
    segment.pieces = vec![piece(0, 4 << 20, 2 << 20, PieceState::Allocated)];
    assert!(json(&one).contains(r#""segment_type":"large""#));
}

#[test]
fn sizes_that_print_alike_are_one() {
    for (size, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 20, "1.0 MiB"),
        ((5 << 20) / 4, "1.3 MiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (1047 << 10, "1.0 MiB"),
        (u64::MAX, "16384.0 PiB"),
    ] {
        assert_eq!(bytes(size), text);
        assert_eq!(bytes(printed_alike(size)), text, "{size}");
    }
    let tenths = (1..20_000u64).map(|size| size * 997);
    for size in tenths {
        let alike = printed_alike(size);
        assert_eq!((bytes(alike), printed_alike(alike)), (bytes(size), alike));
    }
}

#[test]
fn as_many_refusals_are_analysed_as_the_maximum() {
    let mut snapshot = snapshot();
    let refused = *snapshot.history.events.last().unwrap();
    let events = &mut snapshot.history.events;
    events.resize(events.len() + Refusal::MAX_REFUSALS, refused);
    let report = Report::of(&snapshot);
    let all = Refusal::all(&report.devices[0], &Timeline::of(&report.devices[0]));
    assert_eq!(all.len(), Refusal::MAX_REFUSALS);
}

/// Requests that can never be met come after the others.
#[test]
fn the_first_refusal_that_could_have_been_met_is_the_main_one() {
    let report = Report::of(&snapshot());
    let [refusal] = &Refusal::all(&report.devices[0], &Timeline::of(&report.devices[0]))[..] else {
        panic!()
    };
    let of = |size, limit| Refusal {
        size,
        limit,
        ..refusal.clone()
    };
    assert_eq!(Refusal::main(&[]), None);
    assert_eq!(
        Refusal::main(&[of(9000, 8000), of(7000, 8000), of(6000, 8000)]),
        Some(1)
    );
    assert_eq!(Refusal::main(&[of(9000, 8000)]), Some(0));
    assert_eq!(Refusal::main(&[of(8001, 8000), of(8000, 8000)]), Some(1));
    assert_eq!(Refusal::main(&[of(9000, 0), of(4096 + 77, 0)]), Some(1));
}

#[test]
fn json_of_every_kind_is_parsed() {
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
    assert_eq!((device.number, note.what, note.time), (1, EventKind::Note, 1500));
    assert_eq!(report.names.text(note.tag), "é😀\n\"");
    let page = String::from_utf8(page(&report)).unwrap();
    assert!(page.contains(r#""é😀\u000a\"""#));
}

#[test]
fn a_name_cannot_end_the_pages_script() {
    let text = r#"{"segments":[],"device_traces":[[{"action":"note","user_metadata":"</script><!--\u2028"}]]}"#;
    let page = String::from_utf8(page(&Report::of_bytes(text.as_bytes()).unwrap())).unwrap();
    assert_eq!(
        page.matches("</script>").count(),
        2,
        "the two scripts of the page itself"
    );
    assert!(page.contains(r"\u003c/script>\u003c!--\u2028"));
}
