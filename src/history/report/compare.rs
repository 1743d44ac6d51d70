//! Compares the memory of two snapshots of one program: what the later one holds more, by name, stack and size.
//!
//! Some blocks are in use only for a moment, as those of a request of a server, and every snapshot has some. The histories
//! tell them apart: a block that lasts is older than nearly all blocks became that were freed.

use std::collections::HashMap;
use std::path::Path;

use super::model::{NameTable, Report, ReportDevice};
use super::timeline::{Life, NEVER, Timeline};
use crate::history::snapshot::write_file;
use crate::support::error::Result;

/// Blocks and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// How many blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Held {
    fn add(&mut self, more: Held) {
        self.blocks += more.blocks;
        self.bytes += more.bytes;
    }
}

/// What blocks have in common; for some of the questions only a part of it. Numbers are those of the comparison's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// The name; 0 is none.
    pub tag: u32,
    /// The stack of the allocation; 0 is none.
    pub stack: u32,
    /// Bytes of one block.
    pub size: u64,
}

/// What both snapshots hold of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// The kind.
    pub kind: Kind,
    /// In the old snapshot.
    pub old: Held,
    /// In the new one.
    pub new: Held,
    /// Of the new one's, what lasts there and the old one does not have.
    pub lasting: Held,
    /// The moment of the new snapshot's history at which the first of these was allocated, as the number of its event counted
    /// from 1; 0: before the first event. None where nothing lasts.
    pub began: Option<u32>,
    /// Of the old one's, what lasted there and the new one does not have.
    pub gone: Held,
}

impl Difference {
    fn nothing(kind: Kind) -> Difference {
        Difference {
            kind,
            old: Held::default(),
            new: Held::default(),
            lasting: Held::default(),
            began: None,
            gone: Held::default(),
        }
    }

    fn lasts(&mut self, life: &Life) {
        self.lasting.add(block(life));
        self.begins(Some(life.start));
    }

    fn begins(&mut self, moment: Option<u32>) {
        self.began = self.began.into_iter().chain(moment).min();
    }

    /// Bytes more in the new snapshot.
    pub fn more(&self) -> i128 {
        i128::from(self.new.bytes) - i128::from(self.old.bytes)
    }

    /// Blocks more in the new snapshot.
    pub fn more_blocks(&self) -> i128 {
        i128::from(self.new.blocks) - i128::from(self.old.blocks)
    }
}

/// A device's memory in one snapshot, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Allocated blocks.
    pub in_use: Held,
    /// Freed and not yet reusable.
    pub pending: Held,
    /// Memory held.
    pub reserved: u64,
}

impl Totals {
    fn of(device: &ReportDevice, timeline: &Timeline) -> Totals {
        let mut totals = Totals::default();
        for life in timeline.lives.iter().filter(|life| life.end == NEVER) {
            let to = if life.freed == NEVER {
                &mut totals.in_use
            } else {
                &mut totals.pending
            };
            to.add(block(life));
        }
        totals.reserved = device.segments.iter().map(|segment| segment.memory.size).sum();
        totals
    }

    /// Bytes that are neither in use nor pending.
    pub fn free(&self) -> u64 {
        self.reserved.saturating_sub(self.in_use.bytes + self.pending.bytes)
    }
}

/// One device in both snapshots.
#[derive(Debug, Clone)]
pub struct DeviceComparison {
    /// Its number.
    pub number: i32,
    /// Its memory in the old snapshot.
    pub old: Totals,
    /// In the new one.
    pub new: Totals,
    /// For how many microseconds a lasting block was there at least; none where the new snapshot has no events, and then
    /// nothing is known to last.
    pub lasting_for: Option<u64>,
    /// The same of the old snapshot.
    pub gone_after: Option<u64>,
    /// The time of the old snapshot's last event, in microseconds since 1970; 0 where it has none.
    pub old_end: u64,
    /// Every kind that either snapshot holds.
    pub kinds: Vec<Difference>,
}

impl DeviceComparison {
    /// The kinds that differ, with those together that are the same after `part`: first what is held more (see
    /// [`DeviceComparison::change`]), last what is held less.
    pub fn by(&self, part: impl Fn(Kind) -> Kind) -> Vec<Difference> {
        let mut sums: HashMap<Kind, Difference> = HashMap::new();
        for each in &self.kinds {
            let kind = part(each.kind);
            let sum = sums.entry(kind).or_insert_with(|| Difference::nothing(kind));
            sum.old.add(each.old);
            sum.new.add(each.new);
            sum.lasting.add(each.lasting);
            sum.begins(each.began);
            sum.gone.add(each.gone);
        }
        let differs = |each: &Difference| each.more() != 0 || each.more_blocks() != 0 || each.lasting.blocks != 0;
        let mut all: Vec<Difference> = sums.into_values().filter(differs).collect();
        all.sort_by_key(|each| (-self.change(each).1, -each.more(), each.kind));
        all
    }

    /// Blocks and bytes that the new snapshot holds more: of what lasts where both have events, else of everything.
    pub fn change(&self, each: &Difference) -> (i128, i128) {
        if !self.knows_lasting() {
            return (each.more_blocks(), each.more());
        }
        let (lasting, gone) = (each.lasting, each.gone);
        (
            i128::from(lasting.blocks) - i128::from(gone.blocks),
            i128::from(lasting.bytes) - i128::from(gone.bytes),
        )
    }

    /// Whether both snapshots have events, so that it is known what lasts.
    pub fn knows_lasting(&self) -> bool {
        self.lasting_for.is_some() && self.gone_after.is_some()
    }
}

/// Two snapshots of one program, compared.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The new snapshot, whose names include those of the old one.
    pub report: Report,
    /// The devices of either, by number.
    pub devices: Vec<DeviceComparison>,
}

impl Comparison {
    /// Compares a snapshot with an older one.
    pub fn of(old: &Report, new: Report) -> Comparison {
        let mut report = new;
        let (tags, stacks) = translated(&old.names, &mut report.names);
        let numbers = old.devices.iter().chain(&report.devices).map(|device| device.number);
        let mut numbers: Vec<i32> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        let nothing = ReportDevice::default();
        let of = |devices: &'_ [ReportDevice], number| devices.iter().find(|device| device.number == number).cloned();
        let devices = numbers
            .into_iter()
            .map(|number| {
                let before = of(&old.devices, number).unwrap_or_else(|| nothing.clone());
                let after = of(&report.devices, number).unwrap_or_else(|| nothing.clone());
                let kind = |life: &Life| Kind {
                    tag: tags[life.tag as usize],
                    stack: stacks[life.stack as usize],
                    size: life.size,
                };
                compared(number, &before, &after, kind)
            })
            .collect();
        Comparison { report, devices }
    }
}

/// Writes a page about a comparison. Readers never see a partial file.
pub fn write_page(path: &Path, page: &str) -> Result<()> {
    write_file(path, |out| out.write_all(page.as_bytes()))
}

/// The numbers that `names` has in `to`, of texts and of stacks. Those that are new there are added.
fn translated(names: &NameTable, to: &mut NameTable) -> (Vec<u32>, Vec<u32>) {
    let texts = names
        .texts
        .all()
        .iter()
        .map(|text| to.texts.number(text.clone()))
        .collect();
    let frames: Vec<u32> = names
        .frames
        .all()
        .iter()
        .map(|frame| to.frame(names.text(frame.name), names.text(frame.filename), frame.line))
        .collect();
    let stack = |stack: &Vec<u32>| stack.iter().map(|frame| frames[*frame as usize]).collect();
    let stacks: Vec<Vec<u32>> = names.stacks.all().iter().map(stack).collect();
    let stacks = stacks.into_iter().map(|stack| to.stacks.number(stack)).collect();
    (texts, stacks)
}

fn block(life: &Life) -> Held {
    Held {
        blocks: 1,
        bytes: life.size,
    }
}

/// The blocks that are in use at the end.
fn in_use(timeline: &Timeline) -> impl Iterator<Item = &Life> {
    let in_use = |life: &&Life| life.end == NEVER && life.freed == NEVER;
    timeline.lives.iter().filter(in_use)
}

/// What lasts in one snapshot.
#[derive(Debug, Clone, Copy)]
struct Lasting {
    /// A block that lasts was there at this moment, and before.
    since: u32,
    /// For how many microseconds that is.
    time: u64,
}

impl Lasting {
    /// Counted back from the end, twice as many events as 99 of 100 blocks were in use for that were freed; none without
    /// events.
    fn of(device: &ReportDevice, timeline: &Timeline) -> Option<Lasting> {
        let (first, last) = (device.events.first()?, device.events.last()?);
        let end = device.events.len() as u32;
        let freed = timeline.lives.iter().filter(|life| life.start > 0 && life.freed < end);
        let mut ages: Vec<u32> = freed.map(|life| life.freed.saturating_sub(life.start)).collect();
        ages.sort_unstable();
        let usual = ages.get(ages.len() * 99 / 100).copied().unwrap_or(0);
        let since = end.saturating_sub(usual.saturating_mul(2));
        let then = since.checked_sub(1).map_or(first, |at| &device.events[at as usize]);
        Some(Lasting {
            since,
            time: last.time.saturating_sub(then.time),
        })
    }
}

/// `kind` is that of a block of the old snapshot.
fn compared(number: i32, old: &ReportDevice, new: &ReportDevice, kind: impl Fn(&Life) -> Kind) -> DeviceComparison {
    let (before, after) = (Timeline::of(old), Timeline::of(new));
    let (lasting_before, lasting_after) = (Lasting::of(old, &before), Lasting::of(new, &after));
    let old_end = old.events.last().map_or(0, |event| event.time);
    let lasts = |life: &Life, of: Option<Lasting>| of.is_some_and(|of| life.start <= of.since);
    let mut kinds: HashMap<Kind, Difference> = HashMap::new();
    let mut there = HashMap::new();
    for life in in_use(&before) {
        let kind = kind(life);
        let difference = kinds.entry(kind).or_insert_with(|| Difference::nothing(kind));
        difference.old.add(block(life));
        there.insert(life.address, (kind, life));
    }
    for life in in_use(&after) {
        let kind = Kind {
            tag: life.tag,
            stack: life.stack,
            size: life.size,
        };
        let difference = kinds.entry(kind).or_insert_with(|| Difference::nothing(kind));
        difference.new.add(block(life));
        // A block of the same kind at the same place is taken for the same one, unless the history has its allocation after the
        // old snapshot.
        let older = match life.start.checked_sub(1) {
            None => true,
            Some(at) => new.events[at as usize].time <= old_end,
        };
        let same = older && there.get(&life.address).is_some_and(|(before, _)| *before == kind);
        if same {
            there.remove(&life.address);
        } else if lasts(life, lasting_after) {
            difference.lasts(life);
        }
    }
    for (kind, life) in there.into_values().filter(|(_, life)| lasts(life, lasting_before)) {
        kinds
            .entry(kind)
            .and_modify(|difference| difference.gone.add(block(life)));
    }
    DeviceComparison {
        number,
        old: Totals::of(old, &before),
        new: Totals::of(new, &after),
        lasting_for: lasting_after.map(|of| of.time),
        gone_after: lasting_before.map(|of| of.time),
        old_end,
        kinds: kinds.into_values().collect(),
    }
}
