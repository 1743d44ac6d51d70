//! `trtalloc report SNAPSHOT`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use trtalloc::error::Result;
use trtalloc::history::report::model::{EventKind, NameTable, ReportDevice};
use trtalloc::history::report::{Cursor, Life, Refusal, Report, Timeline, printed_alike};
use trtalloc::tags::printable;

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
        let (version, mode) = (printable(&recording.version), printable(&recording.mode));
        text += &format!("\nby      trtalloc {version}, history={mode}");
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
        if recording.lost_stacks > 0 {
            text += &format!(
                "; {} calls have no stack, the process had too many",
                recording.lost_stacks
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
    let called: Vec<String> = report.stack_names().iter().map(|name| printable(name)).collect();
    let last = device.events.len() as u32;
    let at_peak = peak(&timeline, last);
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
    let all = Refusal::all(device, &timeline);
    let main = Refusal::main(&all).map(|at| &all[at]);
    // The page opens at this moment.
    let (opens, when) = match main {
        Some(refusal) => (refusal.event, "at the refusal"),
        None => (at_peak, "at the peak"),
    };
    let mut moments = vec![(when, opens), ("at the peak", at_peak), ("at the end", last)];
    moments.dedup_by_key(|(name, _)| *name);
    let mut header = vec![""];
    header.extend(moments.iter().map(|(name, _)| *name));
    let mut figures = Table::new(&header);
    let mut columns = vec![
        [
            "in use",
            "blocks",
            "pending",
            "reserved",
            "free",
            "free ranges",
            "largest free",
        ]
        .map(String::from),
    ];
    for (_, moment) in &moments {
        let mut then = Cursor::new(&timeline);
        then.to(*moment);
        let free = then.free();
        columns.push([
            size(then.allocated),
            then.live()
                .filter(|number| timeline.lives[*number as usize].freed > *moment)
                .count()
                .to_string(),
            size(then.pending),
            size(then.reserved),
            size(free.bytes),
            free.ranges.to_string(),
            size(free.largest),
        ]);
    }
    for row in 0..columns[0].len() {
        figures.row(columns.iter().map(|column| column[row].clone()).collect());
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
    text += &refusals(&called, device, &all);
    let mut then = Cursor::new(&timeline);
    then.to(opens);
    text += &holders(&called, &report.names, &timeline, &then, (opens, when));
    text
}

/// The first moment at which the most was in use.
fn peak(timeline: &Timeline, last: u32) -> u32 {
    let mut cursor = Cursor::new(timeline);
    let mut most = (cursor.allocated, 0);
    for moment in 1..=last {
        cursor.to(moment);
        if cursor.allocated > most.0 {
            most = (cursor.allocated, moment);
        }
    }
    most.1
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

/// The largest holders at a moment: by tag, by stack and by size. What is pending is a row of its own, and a part of the whole.
fn holders(
    called: &[String],
    names: &NameTable,
    timeline: &Timeline,
    cursor: &Cursor<'_>,
    (moment, when): (u32, &str),
) -> String {
    let live = cursor.live().map(|number| &timeline.lives[number as usize]);
    let (pending, used): (Vec<&Life>, Vec<&Life>) = live.partition(|life| life.freed <= moment);
    let stack = |life: &Life| called[life.stack as usize].clone();
    let tag = |life: &Life| match names.text(life.tag) {
        "" => "no tag".into(),
        tag => printable(tag),
    };
    let whole = cursor.allocated.saturating_add(cursor.pending).max(1);
    let row = |name: &str, bytes: u64, blocks: u64| {
        let share = 100.0 * bytes as f64 / whole as f64;
        vec![
            name.to_owned(),
            size(bytes),
            format!("{share:.1} %"),
            blocks.to_string(),
        ]
    };
    let mut text = String::new();
    for (by, kinds) in [
        ("tag", grouped(&used, |life| u64::from(life.tag), &tag)),
        ("stack", grouped(&used, |life| u64::from(life.stack), &stack)),
        (
            "size",
            grouped(&used, |life| printed_alike(life.size), &|life| size(life.size)),
        ),
    ] {
        let mut table = Table::new(&[&format!("held {when}, by {by}"), "bytes", "share", "blocks"]);
        for (name, bytes, blocks) in kinds.iter().take(NAMED) {
            table.row(row(name, *bytes, *blocks));
        }
        if let Some(rest @ [_, ..]) = kinds.get(NAMED..) {
            let (bytes, blocks) = (rest.iter().map(|k| k.1).sum(), rest.iter().map(|k| k.2).sum());
            let name = format!("{} other{}", rest.len(), if rest.len() == 1 { "" } else { "s" });
            table.row(row(&name, bytes, blocks));
        }
        if !pending.is_empty() {
            table.row(row(
                "pending: freed, not yet reusable",
                cursor.pending,
                pending.len() as u64,
            ));
        }
        if !kinds.is_empty() || !pending.is_empty() {
            text.push('\n');
            text += &table.text();
        }
    }
    text
}

type Group = (String, u64, u64);

/// Bytes and blocks of each group, the largest first.
fn grouped(live: &[&Life], key: fn(&Life) -> u64, name: &dyn Fn(&Life) -> String) -> Vec<Group> {
    let mut kinds: HashMap<u64, (&Life, u64, u64)> = HashMap::new();
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

fn refusals(called: &[String], device: &ReportDevice, all: &[Refusal]) -> String {
    let mut text = String::new();
    // A builder makes many similar requests that it expects to fail, so only the first are listed.
    for refusal in all.iter().take(NAMED) {
        let event = &device.events[refusal.event as usize];
        let by = match event.stack {
            0 => String::new(),
            stack => format!(", by {}", called[stack as usize]),
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
