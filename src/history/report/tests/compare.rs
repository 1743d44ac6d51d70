//! What two snapshots hold more, from blocks and events that are given.

use serde_json::{Value, json};

use super::super::Report;
use super::super::compare::{Comparison, DeviceComparison, Held, Kind};
use super::BASE;

/// A block in use at the end: place, size, name, function.
type Block<'a> = (u64, u64, &'a str, &'a str);

/// A snapshot as JSON. Each event is an allocation (true) or a free of 512 bytes at a place.
fn report(blocks: &[Block<'_>], events: &[(bool, u64)]) -> Report {
    let block = |(place, size, tag, function): &Block<'_>| {
        let frame = json!({"name": function, "filename": "a.c", "line": 3});
        json!({"address": BASE + place, "size": size, "requested_size": size, "state": "active_allocated", "tag": tag,
            "frames": [frame]})
    };
    let event = |(number, (allocated, place)): (usize, &(bool, u64))| {
        let action = if *allocated { "alloc" } else { "free" };
        json!({"action": action, "addr": BASE + place, "size": 512, "stream": 0, "time_us": 1000 * number, "frames": []})
    };
    let blocks: Vec<Value> = blocks.iter().map(block).collect();
    let events: Vec<Value> = events.iter().enumerate().map(event).collect();
    let segment = json!({"device": 0, "address": BASE, "total_size": 1 << 20, "stream": 0, "blocks": blocks});
    let snapshot = json!({"segments": [segment], "device_traces": [events]});
    Report::of_bytes(snapshot.to_string().as_bytes()).unwrap()
}

fn compared(old: &Report, new: Report) -> DeviceComparison {
    Comparison::of(old, new).devices.remove(0)
}

fn held(blocks: u64, bytes: u64) -> Held {
    Held { blocks, bytes }
}

/// Ten blocks that are allocated and freed at once.
fn short() -> Vec<(bool, u64)> {
    (0..10).flat_map(|_| [(true, 900_000), (false, 900_000)]).collect()
}

#[test]
fn a_block_is_the_same_in_both_at_the_same_place_only() {
    let old = report(
        &[(0, 512, "a", "f"), (512, 1024, "a", "f"), (2048, 512, "b", "f")],
        &short(),
    );
    // The first stays, the second has another name now, the third has moved, and a fourth is as large.
    let new = report(
        &[
            (0, 512, "a", "f"),
            (512, 1024, "b", "f"),
            (4096, 512, "b", "f"),
            (8192, 512, "b", "g"),
        ],
        &short(),
    );
    let device = compared(&old, new.clone());
    assert!(device.knows_lasting());
    assert_eq!((device.old.in_use, device.new.in_use), (held(3, 2048), held(4, 2560)));
    let by_tag = device.by(|kind| Kind {
        stack: 0,
        size: 0,
        ..kind
    });
    let [more, less] = &by_tag[..] else {
        panic!("{by_tag:?}")
    };
    assert_eq!(
        (more.old, more.new, more.lasting, more.gone),
        (held(1, 512), held(3, 2048), held(3, 2048), held(1, 512))
    );
    assert_eq!(device.change(more), (2, 1536));
    assert_eq!(
        (less.old, less.new, less.gone),
        (held(2, 1536), held(1, 512), held(1, 1024))
    );
    assert_eq!(device.change(less), (-1, -1024));
    // Names of the two files are matched by their text, and stacks by their frames.
    let kinds = device.by(|kind| kind);
    assert_eq!(kinds.len(), 3 + 1, "{kinds:?}");
    // Nothing differs from itself.
    assert!(compared(&new, new.clone()).by(|kind| kind).is_empty());
}

#[test]
fn a_block_lasts_that_is_older_than_others_became() {
    let old = report(&[], &short());
    // Two blocks: one from the beginning of the history, one from its end.
    let mut events = vec![(true, 0)];
    events.extend(short());
    events.push((true, 512));
    let blocks = [(0, 512, "a", "f"), (512, 512, "a", "f")];
    let device = compared(&old, report(&blocks, &events));
    let all = device.by(|kind| kind);
    assert_eq!((all[0].new, all[0].lasting), (held(2, 1024), held(1, 512)));
    // Freed blocks were in use for one event; of twice as many back from the end, the first is at 20 ms, the last at 21 ms.
    assert_eq!(device.lasting_for, Some(2000));
    // Without events nothing is known to last, and everything counts.
    let device = compared(&old, report(&blocks, &[]));
    assert!(!device.knows_lasting() && device.lasting_for.is_none());
    let all = device.by(|kind| kind);
    assert_eq!((all[0].lasting, device.change(&all[0])), (held(0, 0), (2, 1024)));
}

/// What is held more began with the first block that lasts and that the old snapshot does not have.
#[test]
fn growth_begins_with_its_first_block_that_is_not_in_the_old_snapshot() {
    let mut events = vec![(true, 0)];
    let at_old = report(&[(0, 512, "a", "f")], &events);
    events.extend([(true, 512), (true, 1024)]);
    events.extend(short());
    events.push((true, 1536));
    // The histories overlap: the allocation of the first block is in both, at the same time, so it is the same block.
    let blocks = [0, 512, 1024, 1536].map(|place| (place, 512, "a", "f"));
    let mut new = report(&blocks, &events);
    let later = |report: &mut Report, by| report.devices[0].events.iter_mut().for_each(|event| event.time += by);
    let (mut old, hour) = (at_old, 3_600_000_000);
    later(&mut old, hour);
    later(&mut new, hour);
    let device = compared(&old, new.clone());
    assert_eq!(device.old_end, hour);
    let all = device.by(|kind| kind);
    assert_eq!(
        (all[0].lasting, all[0].gone, all[0].began),
        (held(2, 1024), held(0, 0), Some(2))
    );
    // Sums of kinds have the earliest.
    let one = device.by(|_| Kind {
        tag: 0,
        stack: 0,
        size: 0,
    });
    assert_eq!(one[0].began, Some(2));
    // Of an old snapshot that is later than its allocation, a block at the same place is the same; of one before, it is not.
    later(&mut old, 1500);
    assert_eq!(compared(&old, new.clone()).by(|kind| kind)[0].began, Some(2));
    let mut early = old.clone();
    early.devices[0].events[0].time = hour - 1;
    assert_eq!(compared(&early, new.clone()).by(|kind| kind)[0].began, Some(1));
    // A block without an event was there before the first one.
    new.devices[0].events.drain(..2);
    let mut none = report(&[], &short());
    later(&mut none, hour - 60_000_000);
    assert_eq!(compared(&none, new).by(|kind| kind)[0].began, Some(0));
    // Nothing lasts without events.
    assert_eq!(compared(&none, report(&blocks, &[])).by(|kind| kind)[0].began, None);
}
