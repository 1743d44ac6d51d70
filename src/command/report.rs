//! `trtalloc report SNAPSHOT`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use trtalloc::error::Result;
use trtalloc::history::report::model::{EventKind, NameTable, ReportDevice};
use trtalloc::history::report::{Cursor, Life, Refusal, Report, Timeline};

use super::table::{Table, size};
use super::{Done, check_page_name, say};

/// How many holders of each kind, and refusals, are listed.
const NAMED: usize = 5;

#[derive(clap::Args)]
pub struct Arguments {
    /// The snapshot: a pickle, of trtalloc or of PyTorch, or JSON
    snapshot: PathBuf,
    /// Write a page to look at in a browser
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<Done> {
    check_page_name(arguments.output.as_deref())?;
    let report = Report::read(&arguments.snapshot)?;
    say(&summary(&arguments.snapshot, &report));
    if let Some(path) = &arguments.output {
        let name = arguments.snapshot.file_name().unwrap_or_default();
        report.write_page(path, &name.to_string_lossy())?;
        say(&format!("page    {}", path.display()));
    }
    Ok(Done::All)
}

fn summary(path: &Path, report: &Report) -> String {
    let mut text = format!("file    {}", path.display());
    if let Some(recording) = &report.recording {
        text += &format!("\nby      trtalloc {}, history={}", recording.version, recording.mode);
        if recording.dropped > 0 {
            let (kept, dropped) = (recording.max_entries, recording.dropped);
            text += &format!("; the oldest {dropped} events are missing, the history kept {kept}");
        }
        if recording.left_out > 0 {
            text += &format!(
                "; {} events contradict the memory and were left out",
                recording.left_out
            );
        }
    }
    text.push('\n');
    for device in &report.devices {
        text.push('\n');
        text += &of_device(report, device);
    }
    if report.devices.is_empty() {
        text += "no device has memory or events\n";
    }
    text
}

fn of_device(report: &Report, device: &ReportDevice) -> String {
    let timeline = Timeline::of(device);
    let called = called(report);
    let last = device.events.len() as u32;
    let (peak, at_peak) = peak(&timeline, last);
    let mut cursor = Cursor::new(&timeline);
    cursor.to(last);
    let time = match (device.events.first(), device.events.last()) {
        (Some(first), Some(last)) if last.time > first.time => {
            format!(" in {:.3} s", (last.time - first.time) as f64 / 1e6)
        }
        _ => String::new(),
    };
    let mut text = format!("device {}: {} events{time}\n", device.number, device.events.len());
    if timeline.misfits > 0 {
        text += &format!(
            "{} events contradict the memory at the end and were ignored\n",
            timeline.misfits
        );
    }
    let mut figures = Table::new(&["", "at the end", "at its peak"]);
    let mut then = Cursor::new(&timeline);
    then.to(at_peak);
    let (free, free_then) = (cursor.free(), then.free());
    let blocks = |cursor: &Cursor<'_>| cursor.live().count().to_string();
    let rows = [
        ("in use", size(cursor.allocated), size(peak)),
        ("blocks", blocks(&cursor), blocks(&then)),
        ("pending", size(cursor.pending), size(then.pending)),
        ("reserved", size(cursor.reserved), size(then.reserved)),
        ("free", size(free.bytes), size(free_then.bytes)),
        ("free ranges", free.ranges.to_string(), free_then.ranges.to_string()),
        ("largest free", size(free.largest), size(free_then.largest)),
    ];
    for (name, now, then) in rows {
        figures.row(vec![name.into(), now, then]);
    }
    text += &figures.text();
    text += &format!("the peak was {}\n", moment(device, at_peak));
    if let Some(figures) = device.figures {
        let stats = figures.stats;
        text += &format!(
            "the allocator's statistics: peak in use {}, peak reserved {}, limit {}, {} allocations, {} refused\n",
            size(stats.allocated_peak),
            size(stats.reserved_peak),
            if stats.limit == 0 {
                "none".into()
            } else {
                size(stats.limit)
            },
            stats.allocations,
            stats.out_of_memory
        );
    }
    text += &holders(&called, &report.names, &timeline, &then, peak);
    text += &refusals(&called, device, &timeline);
    text
}

/// The peak in use, and the first moment at which it was reached.
fn peak(timeline: &Timeline, last: u32) -> (u64, u32) {
    let mut cursor = Cursor::new(timeline);
    let mut most = (cursor.allocated, 0);
    for moment in 1..=last {
        cursor.to(moment);
        if cursor.allocated > most.0 {
            most = (cursor.allocated, moment);
        }
    }
    most
}

fn moment(device: &ReportDevice, moment: u32) -> String {
    let Some(event) = moment.checked_sub(1).and_then(|at| device.events.get(at as usize)) else {
        return "before the first event".into();
    };
    let since = event.time.saturating_sub(device.events[0].time);
    format!(
        "at event {moment} of {}, {:.3} s after the first",
        device.events.len(),
        since as f64 / 1e6
    )
}

/// The largest holders at the peak: by stack, by tag and by size.
fn holders(called: &[String], names: &NameTable, timeline: &Timeline, cursor: &Cursor<'_>, peak: u64) -> String {
    let live: Vec<&Life> = cursor.live().map(|number| &timeline.lives[number as usize]).collect();
    let stack = |life: &Life| called[life.stack as usize].clone();
    let tag = |life: &Life| match names.text(life.tag) {
        "" => "no tag".into(),
        tag => tag.to_owned(),
    };
    let mut text = String::new();
    for (title, kinds) in [
        ("held at the peak, by stack", grouped(&live, |life| life.stack, &stack)),
        ("by tag", grouped(&live, |life| life.tag, &tag)),
        ("by size", grouped(&live, |life| life.size, &|life| size(life.size))),
    ] {
        let mut table = Table::new(&[title, "bytes", "share", "blocks"]);
        for (name, bytes, blocks) in kinds.iter().take(NAMED) {
            let share = 100.0 * *bytes as f64 / peak.max(1) as f64;
            table.row(vec![
                shortened(name),
                size(*bytes),
                format!("{share:.1} %"),
                blocks.to_string(),
            ]);
        }
        if kinds.len() > NAMED {
            let rest = &kinds[NAMED..];
            let (bytes, blocks): (u64, u64) = (rest.iter().map(|k| k.1).sum(), rest.iter().map(|k| k.2).sum());
            let share = 100.0 * bytes as f64 / peak.max(1) as f64;
            table.row(vec![
                format!("{} other{}", rest.len(), if rest.len() == 1 { "" } else { "s" }),
                size(bytes),
                format!("{share:.1} %"),
                blocks.to_string(),
            ]);
        }
        if !kinds.is_empty() {
            text.push('\n');
            text += &table.text();
        }
    }
    text
}

type Group = (String, u64, u64);

/// Bytes and blocks of each group, the largest first.
fn grouped<K: std::hash::Hash + Eq>(live: &[&Life], key: fn(&Life) -> K, name: &dyn Fn(&Life) -> String) -> Vec<Group> {
    let mut kinds: HashMap<K, (&Life, u64, u64)> = HashMap::new();
    for life in live {
        let kind = kinds.entry(key(life)).or_insert((life, 0, 0));
        kind.1 += life.size;
        kind.2 += 1;
    }
    let mut kinds: Vec<Group> = kinds
        .into_values()
        .map(|(life, bytes, blocks)| (name(life), bytes, blocks))
        .collect();
    kinds.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    kinds
}

/// The name of each stack.
pub(super) fn called(report: &Report) -> Vec<String> {
    let names = &report.names;
    let called = |number: Option<u32>| {
        let Some(number) = number else { return "no stack".into() };
        let frame = names.frames.all()[number as usize];
        let (name, file) = (names.text(frame.name), names.text(frame.filename));
        match (file.rsplit('/').next().unwrap_or_default(), frame.line) {
            ("", _) => name.to_owned(),
            (file, 0) => format!("{name}  {file}"),
            (file, line) => format!("{name}  {file}:{line}"),
        }
    };
    report.callers().into_iter().map(called).collect()
}

/// Shortens a long name to its end, which is more specific than its beginning.
pub(super) fn shortened(name: &str) -> String {
    const MAX_LENGTH: usize = 72;
    match name.char_indices().rev().nth(MAX_LENGTH) {
        Some((at, c)) => format!("…{}", &name[at + c.len_utf8()..]),
        None => name.to_owned(),
    }
}

fn refusals(called: &[String], device: &ReportDevice, timeline: &Timeline) -> String {
    let all = Refusal::all(device, timeline);
    let mut text = String::new();
    // A builder makes many similar requests that it expects to fail, so only the first are listed.
    for refusal in all.iter().take(NAMED) {
        let event = &device.events[refusal.event as usize];
        let by = match event.stack {
            0 => String::new(),
            stack => format!(", by {}", shortened(&called[stack as usize])),
        };
        text += &format!(
            "\nrefused {} {}{by}\n",
            size(refusal.size),
            moment(device, refusal.event + 1)
        );
        text += &format!("  {}\n", refusal.reason());
    }
    let count = device
        .events
        .iter()
        .filter(|event| event.what == EventKind::Oom)
        .count();
    if count > NAMED {
        text += &format!("\nand {} more were refused\n", count - NAMED);
    }
    text
}
