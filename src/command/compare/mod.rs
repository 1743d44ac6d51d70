//! `trtalloc compare OLD NEW`.

mod page;
mod text;

use std::path::PathBuf;

use trtalloc::error::Result;
use trtalloc::history::report::compare::{Comparison, DeviceComparison, Difference, Kind, write_page};
use trtalloc::history::report::{Report, printed_alike};
use trtalloc::tags::printable;

use super::table::size;
use super::{Done, check_page_name, say};

/// How many kinds that are held more, and less, are shown with their stacks.
const WITH_STACK: usize = 5;

#[derive(clap::Args)]
pub struct Arguments {
    /// The older snapshot: a pickle, of trtalloc or of PyTorch, or JSON
    old: PathBuf,
    /// The newer snapshot of the same program
    new: PathBuf,
    /// Write a page to look at in a browser
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// How many rows each table has
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
}

pub fn run(arguments: &Arguments) -> Result<Done> {
    check_page_name(arguments.output.as_deref())?;
    let old = Report::read(&arguments.old)?;
    let compared = Comparison::of(&old, Report::read(&arguments.new)?);
    let answer = Answer::of(&compared, arguments);
    say(&answer.text());
    if let Some(path) = &arguments.output {
        write_page(path, &answer.page())?;
        say(&format!("page    {}", path.display()));
    }
    Ok(Done::All)
}

/// What is printed, and what the page shows.
struct Answer {
    old: String,
    new: String,
    devices: Vec<DeviceAnswer>,
}

struct DeviceAnswer {
    number: i32,
    /// In use, blocks, pending, reserved, free: the name, old, new, and the difference.
    totals: Vec<[String; 4]>,
    /// What lasting means here, or why nothing is known to last.
    lasting: String,
    /// Whether anything is known to last.
    knows_lasting: bool,
    tables: Vec<DifferenceTable>,
    more: Vec<KindWithStack>,
    less: Vec<KindWithStack>,
}

/// What differs by one property.
struct DifferenceTable {
    title: &'static str,
    rows: Vec<DifferenceRow>,
    /// How many rows are left out.
    others: usize,
}

struct DifferenceRow {
    name: String,
    old: String,
    new: String,
    more: String,
    blocks: String,
    lasting: String,
}

/// What is held more or less of one name, stack and size.
struct KindWithStack {
    words: String,
    /// When what is held more was allocated first; empty where that is not known.
    began: String,
    frames: Vec<String>,
}

impl Answer {
    fn of(compared: &Comparison, arguments: &Arguments) -> Answer {
        let names = compared.report.stack_names();
        let called: Vec<String> = names.iter().map(|name| printable(name)).collect();
        let device = |device: &DeviceComparison| DeviceAnswer::of(compared, &called, device, arguments.rows as usize);
        Answer {
            old: arguments.old.display().to_string(),
            new: arguments.new.display().to_string(),
            devices: compared.devices.iter().map(device).collect(),
        }
    }
}

impl DeviceAnswer {
    fn of(compared: &Comparison, called: &[String], device: &DeviceComparison, rows: usize) -> DeviceAnswer {
        let names = &compared.report.names;
        let tag = |kind: Kind| match names.text(kind.tag) {
            "" => "no name".to_owned(),
            tag => printable(tag),
        };
        let by_stack = device.by(|kind| Kind {
            tag: 0,
            size: 0,
            ..kind
        });
        let callers = compared.report.callers();
        let stack = |kind: Kind| called[kind.stack as usize].clone();
        let by_tag = device.by(|kind| Kind {
            stack: 0,
            size: 0,
            ..kind
        });
        let by_size = device.by(|kind| Kind {
            tag: 0,
            stack: 0,
            size: printed_alike(kind.size),
        });
        let table = |title, all: Vec<Difference>, name: &dyn Fn(Kind) -> String| DifferenceTable {
            title,
            rows: all.iter().take(rows).map(|each| row(each, name(each.kind))).collect(),
            others: all.len().saturating_sub(rows),
        };
        let tables = vec![
            table("by name", by_tag, &tag),
            table("by stack", by_stack, &stack),
            table("by size", by_size, &|kind| size(kind.size)),
        ];
        let kinds = device.by(|kind| Kind {
            size: printed_alike(kind.size),
            ..kind
        });
        let with_stack = |each: &Difference| KindWithStack {
            words: words(each, device.change(each), &tag(each.kind)),
            began: began(compared, device, each),
            frames: frames(compared, &callers, each.kind.stack),
        };
        let more = kinds.iter().filter(|each| device.change(each).1 > 0);
        let less = kinds.iter().rev().filter(|each| device.change(each).1 < 0);
        DeviceAnswer {
            number: device.number,
            totals: totals(device),
            lasting: match device.lasting_for.filter(|_| device.knows_lasting()) {
                Some(time) => format!(
                    "lasting: blocks that the old snapshot does not have, and that were there for {:.3} s at least, twice as \
                     long as 99 of 100 that were freed",
                    time as f64 / 1e6
                ),
                None => "not both snapshots have events, so what is in use for a moment only cannot be distinguished from what lasts: \
                         record with history=all"
                    .into(),
            },
            knows_lasting: device.knows_lasting(),
            tables,
            more: more.take(WITH_STACK).map(with_stack).collect(),
            less: less.take(WITH_STACK).map(with_stack).collect(),
        }
    }
}

fn totals(device: &DeviceComparison) -> Vec<[String; 4]> {
    let (old, new) = (&device.old, &device.new);
    let bytes = |name: &str, old: u64, new: u64| {
        let more = i128::from(new) - i128::from(old);
        [name.to_owned(), size(old), size(new), signed(more)]
    };
    let blocks = i128::from(new.in_use.blocks) - i128::from(old.in_use.blocks);
    vec![
        bytes("in use", old.in_use.bytes, new.in_use.bytes),
        [
            "blocks".into(),
            old.in_use.blocks.to_string(),
            new.in_use.blocks.to_string(),
            format!("{blocks:+}"),
        ],
        bytes("pending", old.pending.bytes, new.pending.bytes),
        bytes("reserved", old.reserved, new.reserved),
        bytes("free", old.free(), new.free()),
    ]
}

fn row(each: &Difference, name: String) -> DifferenceRow {
    DifferenceRow {
        name,
        old: size(each.old.bytes),
        new: size(each.new.bytes),
        more: signed(each.more()),
        blocks: format!("{:+}", each.more_blocks()),
        lasting: match each.lasting.blocks {
            0 => "–".into(),
            blocks => format!("{} in {blocks}", size(each.lasting.bytes)),
        },
    }
}

/// A kind in a sentence, with the blocks and bytes that are held more.
fn words(each: &Difference, (blocks, bytes): (i128, i128), tag: &str) -> String {
    let direction = if bytes < 0 { "less" } else { "more" };
    let bytes = u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX);
    let blocks = blocks.unsigned_abs();
    let plural = if blocks == 1 { "" } else { "s" };
    format!(
        "{} {direction} in {blocks} block{plural} of {}, {tag} ({} in use before, {} now)",
        size(bytes),
        size(each.kind.size),
        each.old.blocks,
        each.new.blocks
    )
}

/// When the first block was allocated of those that are held more, as far as the histories say it.
fn began(compared: &Comparison, device: &DeviceComparison, each: &Difference) -> String {
    let known = device.knows_lasting() && device.change(each).1 > 0;
    let Some(moment) = each.began.filter(|_| known) else {
        return String::new();
    };
    let mut devices = compared.report.devices.iter();
    let events = devices.find(|of| of.number == device.number);
    let events = events.map_or(&[][..], |of| &of.events);
    let (Some(first), Some(last)) = (events.first(), events.last()) else {
        return String::new();
    };
    let Some(event) = (moment as usize).checked_sub(1).and_then(|at| events.get(at)) else {
        return match (date(device.old_end), date(first.time)) {
            (Some(old), Some(new)) if device.old_end <= first.time => {
                format!("began between {old}, the old snapshot's last event, and {new}, the new one's first")
            }
            _ => "began before the new snapshot's first event".into(),
        };
    };
    let place = format!("event {moment} of {}", events.len());
    match date(event.time) {
        Some(date) => {
            let ago = last.time.saturating_sub(event.time) as f64 / 1e6;
            format!("began {date}, {ago:.3} s before the new snapshot's last event, at {place}")
        }
        None => format!("began at {place} of the new snapshot"),
    }
}

/// The date and time of day of microseconds since 1970; none for 0, which is no time.
fn date(micros: u64) -> Option<String> {
    let seconds = (micros != 0).then_some(micros / 1_000_000)?;
    // The civil calendar repeats every 400 years of 146,097 days. A year begins in March here, so that the leap day is its last.
    let (days, of_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * march + 2) / 5 + 1, (march + 2) % 12 + 1);
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    Some(format!(
        "{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"
    ))
}

/// Bytes with their sign.
fn signed(bytes: i128) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!(
        "{sign}{}",
        size(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX))
    )
}

/// The frames of a stack from the one that names it outwards.
fn frames(compared: &Comparison, callers: &[Option<u32>], stack: u32) -> Vec<String> {
    let report = &compared.report;
    let numbers = report.outward(stack, callers[stack as usize]);
    numbers.map(|number| printable(&report.frame_name(number))).collect()
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (1, "1970-01-01 00:00:01 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds * 1_000_000 + 7).unwrap(), text);
        }
        assert_eq!(date(0), None);
    }
}
