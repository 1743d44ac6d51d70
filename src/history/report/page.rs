//! Writes a report as one HTML page that needs no network and no other files.
//!
//! The page computes what it shows from columns. A column lists one field of all lifetimes, ranges or events; some
//! moments are differences, since these are shorter. `page/data.js` reads the columns.
//!
//! They are not written with serde_json: the library writes a snapshot as a page too, in processes that would load serde_json with it.

use std::io::{Read, Result, Write};
use std::path::Path;

use super::model::{EventKind, Report, ReportDevice};
use super::refusal::Refusal;
use super::timeline::{Life, NEVER, Timeline};
use crate::history::snapshot::write_file;
use crate::support::sort;

/// The page without its data, compressed by build.rs. A model writes no page.
#[cfg(not(loom))]
const PAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/page.deflate"));
#[cfg(loom)]
const PAGE: &[u8] = &[];

impl Report {
    /// Writes the page to `path`, through a temporary file; `title` is its title.
    pub fn write_page(&self, path: &Path, title: &str) -> crate::support::error::Result<()> {
        write_file(path, |out| self.write(title, out))
    }

    /// Writes the page.
    pub(in crate::history) fn write(&self, title: &str, out: &mut dyn Write) -> Result<()> {
        let mut page = String::new();
        flate2::read::DeflateDecoder::new(PAGE).read_to_string(&mut page)?;
        let mut parts = page.split('\0');
        let mut part = || parts.next().unwrap_or_default();
        let (mut rest, style, scripts) = (part(), part(), part());
        for mark in ["/*style*/", "/*data*/", "/*script*/"] {
            let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
            out.write_all(before.as_bytes())?;
            match mark {
                "/*style*/" => out.write_all(style.as_bytes())?,
                "/*data*/" => self.data(title, out)?,
                _ => out.write_all(scripts.as_bytes())?,
            }
            rest = after;
        }
        out.write_all(rest.as_bytes())
    }

    fn data(&self, title: &str, out: &mut dyn Write) -> Result<()> {
        let names = &self.names;
        out.write_all(b"{\"title\":")?;
        text(out, title)?;
        if let Some(recording) = &self.recording {
            out.write_all(b",\"version\":")?;
            text(out, &recording.version)?;
            out.write_all(b",\"mode\":")?;
            text(out, &recording.mode)?;
            let (most, dropped, left_out) = (recording.max_entries, recording.dropped, recording.left_out);
            write!(
                out,
                ",\"max_entries\":{most},\"dropped\":{dropped},\"left_out\":{left_out},\"lost_stacks\":{}",
                recording.lost_stacks
            )?;
        }
        out.write_all(b",\"texts\":[")?;
        for (at, one) in names.texts.all().iter().enumerate() {
            comma(out, at)?;
            text(out, one)?;
        }
        out.write_all(b"]")?;
        let frames = names.frames.all().iter();
        column(
            out,
            "frames",
            frames.flat_map(|frame| [frame.name, frame.filename, frame.line]),
        )?;
        out.write_all(b",\"stacks\":[")?;
        for (at, stack) in names.stacks.all().iter().enumerate() {
            comma(out, at)?;
            list(out, &mut stack.iter().map(|frame| u64::from(*frame)))?;
        }
        out.write_all(b"]")?;
        out.write_all(b",\"names\":[")?;
        for (at, name) in self.stack_names().iter().enumerate() {
            comma(out, at)?;
            text(out, name)?;
        }
        out.write_all(b"],\"functions\":[")?;
        for frame in 0..names.frames.all().len() as u32 {
            comma(out, frame as usize)?;
            text(out, &self.function_name(frame))?;
        }
        out.write_all(b"]")?;
        out.write_all(b",\"devices\":[")?;
        for (at, of) in self.devices.iter().enumerate() {
            comma(out, at)?;
            device(out, of)?;
        }
        out.write_all(b"]}")
    }
}

fn device(out: &mut dyn Write, device: &ReportDevice) -> Result<()> {
    let timeline = Timeline::of(device);
    let (lives, ranges) = (&timeline.lives, &timeline.ranges);
    let addresses = lives.iter().map(|life| life.address);
    let base = addresses
        .chain(ranges.iter().map(|range| range.address))
        .min()
        .unwrap_or(0);
    let mut streams: Vec<u64> = lives.iter().map(|life| life.stream).collect();
    streams.extend(device.events.iter().map(|event| event.stream));
    sort::by_key(&mut streams, |stream| (*stream, 0));
    streams.dedup();
    let stream = |handle| streams.binary_search(&handle).unwrap_or(0) as u64;
    // Relative to the beginning; 0: never.
    let after = |moment: u32, start: u32| if moment == NEVER { 0 } else { moment - start };

    write!(
        out,
        "{{\"device\":{},\"base\":\"{base:#x}\",\"misfits\":{}",
        device.number, timeline.misfits
    )?;
    out.write_all(b",\"streams\":[")?;
    for (at, handle) in streams.iter().enumerate() {
        comma(out, at)?;
        write!(out, "\"{handle:#x}\"")?;
    }
    out.write_all(b"],\"lives\":{\"count\":")?;
    write!(out, "{}", lives.len())?;
    column(out, "address", lives.iter().map(|life| life.address - base))?;
    column(out, "size", lives.iter().map(|life| life.size))?;
    column(
        out,
        "padding",
        lives.iter().map(|life| life.size.saturating_sub(life.requested)),
    )?;
    column(out, "stream", lives.iter().map(|life| stream(life.stream)))?;
    column(out, "stack", lives.iter().map(|life| life.stack))?;
    column(out, "tag", lives.iter().map(|life| life.tag))?;
    let mut last = 0;
    column(
        out,
        "start",
        lives
            .iter()
            .map(|life| life.start - std::mem::replace(&mut last, life.start)),
    )?;
    // One more than the difference, since a block may be pending from its beginning.
    let freed = |life: &Life| {
        if life.freed == NEVER {
            0
        } else {
            life.freed.saturating_sub(life.start) + 1
        }
    };
    column(out, "freed", lives.iter().map(freed))?;
    column(out, "end", lives.iter().map(|life| after(life.end, life.start)))?;
    write!(out, "}},\"ranges\":{{\"count\":{}", ranges.len())?;
    column(out, "address", ranges.iter().map(|range| range.address - base))?;
    column(out, "size", ranges.iter().map(|range| range.size))?;
    column(out, "expandable", ranges.iter().map(|range| u8::from(range.expandable)))?;
    column(out, "start", ranges.iter().map(|range| range.start))?;
    column(out, "end", ranges.iter().map(|range| after(range.end, range.start)))?;
    events(out, device, base, stream)?;
    let all = Refusal::all(device, &timeline);
    refusals(out, &all, stream)?;
    if let Some(main) = Refusal::main(&all) {
        write!(out, ",\"main\":{main}")?;
    }
    if let Some(figures) = &device.figures {
        let stats = &figures.stats;
        out.write_all(b",\"figures\":{\"kept\":")?;
        write!(out, "{}", figures.cached_handle_bytes)?;
        for (name, value) in [
            ("allocated", stats.allocated),
            ("allocated_peak", stats.allocated_peak),
            ("requested", stats.requested),
            ("cached", stats.cached),
            ("pending", stats.pending),
            ("reserved", stats.reserved),
            ("reserved_peak", stats.reserved_peak),
            ("limit", stats.limit),
            ("allocations", stats.allocations),
            ("frees", stats.frees),
            ("reallocations", stats.reallocations),
            ("out_of_memory", stats.out_of_memory),
        ] {
            write!(out, ",\"{name}\":{value}")?;
        }
        out.write_all(b"}")?;
    }
    out.write_all(b"}")
}

fn events(out: &mut dyn Write, device: &ReportDevice, base: u64, stream: impl Fn(u64) -> u64) -> Result<()> {
    let events = &device.events;
    let first = events.first().map_or(0, |event| event.time);
    write!(out, "}},\"events\":{{\"count\":{},\"first\":{first}", events.len())?;
    write!(
        out,
        ",\"resized\":{}",
        events.iter().filter(|event| event.resized).count()
    )?;
    column(out, "what", events.iter().map(|event| event.what as u8))?;
    let mut last = first;
    column(
        out,
        "time",
        events
            .iter()
            .map(|event| event.time - std::mem::replace(&mut last, event.time)),
    )?;
    column(out, "stream", events.iter().map(|event| stream(event.stream)))?;
    column(out, "stack", events.iter().map(|event| event.stack))?;
    // Events of segments have an address and a size of their own; for blocks these are in the lifetimes.
    let of_block = |what| {
        matches!(
            what,
            EventKind::Alloc | EventKind::FreeRequested | EventKind::FreeCompleted
        )
    };
    let others = || (0u32..).zip(events).filter(|(_, event)| !of_block(event.what));
    column(out, "other", others().map(|(at, _)| at))?;
    let offset = |address: u64| address.saturating_sub(base);
    column(out, "address", others().map(|(_, event)| offset(event.address)))?;
    column(out, "size", others().map(|(_, event)| event.size))?;
    let notes = || (0u32..).zip(events).filter(|(_, event)| event.what == EventKind::Note);
    column(out, "note", notes().map(|(at, _)| at))?;
    column(out, "word", notes().map(|(_, event)| event.tag))?;
    out.write_all(b"}")
}

fn refusals(out: &mut dyn Write, refusals: &[Refusal], stream: impl Fn(u64) -> u64) -> Result<()> {
    out.write_all(b",\"refusals\":[")?;
    for (at, refusal) in refusals.iter().enumerate() {
        comma(out, at)?;
        write!(
            out,
            "{{\"event\":{},\"stream\":{}",
            refusal.event,
            stream(refusal.stream)
        )?;
        for (name, value) in [
            ("size", refusal.size),
            ("device_free", refusal.device_free),
            ("limit", refusal.limit),
            ("allocated", refusal.allocated),
            ("pending", refusal.pending),
            ("reserved", refusal.reserved),
            ("free", refusal.free),
            ("ranges", refusal.ranges),
            ("largest", refusal.largest),
            ("elsewhere", refusal.elsewhere),
            ("room", refusal.room()),
            ("lacking", refusal.lacking()),
        ] {
            write!(out, ",\"{name}\":{value}")?;
        }
        out.write_all(b",\"reason\":")?;
        text(out, &refusal.reason())?;
        out.write_all(b"}")?;
    }
    out.write_all(b"]")
}

fn comma(out: &mut dyn Write, at: usize) -> Result<()> {
    if at > 0 { out.write_all(b",") } else { Ok(()) }
}

fn list(out: &mut dyn Write, values: &mut dyn Iterator<Item = u64>) -> Result<()> {
    out.write_all(b"[")?;
    for (at, value) in values.enumerate() {
        comma(out, at)?;
        write!(out, "{value}")?;
    }
    out.write_all(b"]")
}

/// Writes a list under a name, after another entry of the dictionary.
fn column(out: &mut dyn Write, name: &str, mut values: impl Iterator<Item = impl Into<u64>>) -> Result<()> {
    write!(out, ",\"{name}\":")?;
    list(out, &mut values.by_ref().map(Into::into))
}

/// Writes a text with the characters escaped that could end the script around it.
fn text(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(b"\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(out, "\\{c}")?,
            '\0'..' ' | '<' | '\u{7f}' | '\u{2028}' | '\u{2029}' => write!(out, "\\u{:04x}", c as u32)?,
            _ => write!(out, "{c}")?,
        }
    }
    out.write_all(b"\"")
}
