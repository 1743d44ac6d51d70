//! Traces as CSV: `op,id,bytes[,stream[,thread[,time_us]]]`, plain or gzip.
//!
//! The first line names the columns in any order; columns with other names are ignored. `op` is alloc, free or
//! realloc. `id` identifies a block from its alloc to its free and may be reused afterwards. A free needs no `bytes`.
//! Without a `stream` column, all calls are on one stream; an empty stream cell is a call without a stream. `thread` is
//! the thread that made the call; an empty cell is an unknown one. `time_us` has whole microseconds that never decrease,
//! since any moment; an empty cell has the time of the row before. Numbers are decimal, or hexadecimal with `0x`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::{OpKind, Trace, TraceBlock};
use crate::support::error::{Error, Result};

/// The maximum length of a line, in bytes.
const MAX_LINE: usize = 1 << 16;

/// Reads the trace in the file at `path`, decompressing gzip. Errors name the file and the line.
pub fn open(path: &Path) -> Result<Trace> {
    let named = |text: String| format!("{}: {text}", path.display());
    let file = File::open(path).map_err(|error| Error::Io(named(error.to_string())))?;
    read(BufReader::with_capacity(1 << 16, file)).map_err(|error| match error {
        Error::InvalidArgument(text) => Error::InvalidArgument(named(text)),
        Error::Io(text) => Error::Io(named(text)),
        other => other,
    })
}

/// Reads a trace line by line, decompressing it if it begins like gzip. Errors name the line.
pub fn read(mut input: impl BufRead) -> Result<Trace> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let start = input.fill_buf().map_err(|error| Error::Io(error.to_string()))?;
    if start.starts_with(&GZIP) {
        read_plain(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(input)))
    } else if start.starts_with(&[0x80]) || start.starts_with(b"{") {
        // A pickle or JSON.
        let hint = "no trace; if it is a snapshot, `trtalloc trace` makes a trace of it";
        Err(Error::InvalidArgument(hint.into()))
    } else {
        read_plain(input)
    }
}

fn read_plain(mut input: impl BufRead) -> Result<Trace> {
    let mut line = String::new();
    let mut columns: Option<Columns> = None;
    let mut rows = Rows::default();
    for number in 1u64.. {
        line.clear();
        let at = |text: &dyn std::fmt::Display| format!("line {number}: {text}");
        // What is no trace may have no end of a line.
        let mut part = (&mut input).take(MAX_LINE as u64);
        let bytes = part.read_line(&mut line).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => Error::InvalidArgument(at(&"not UTF-8 text")),
            _ => Error::Io(at(&error)),
        })?;
        if bytes == 0 {
            break;
        }
        if bytes == MAX_LINE && !line.ends_with('\n') {
            return Err(Error::InvalidArgument(at(&format!("longer than {MAX_LINE} bytes"))));
        }
        let text = if number == 1 {
            line.trim_start_matches('\u{feff}')
        } else {
            &line
        }
        .trim();
        if text.is_empty() {
            continue;
        }
        match &columns {
            None => columns = Some(Columns::parse(text).map_err(|text| Error::InvalidArgument(at(&text)))?),
            Some(columns) => rows
                .add(columns, text)
                .map_err(|text| Error::InvalidArgument(at(&text)))?,
        }
    }
    match columns {
        Some(_) => Ok(rows.trace),
        None => Err(Error::InvalidArgument(
            "line 1: no header; expected op,id,bytes[,stream[,thread[,time_us]]]".into(),
        )),
    }
}

/// The index of each column.
struct Columns {
    op: usize,
    id: usize,
    bytes: usize,
    stream: Option<usize>,
    thread: Option<usize>,
    time: Option<usize>,
    count: usize,
}

impl Columns {
    fn parse(header: &str) -> std::result::Result<Columns, String> {
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        let find = |name: &str| {
            let mut places = names
                .iter()
                .enumerate()
                .filter(|(_, known)| **known == name)
                .map(|(at, _)| at);
            match (places.next(), places.next()) {
                (_, Some(_)) => Err(format!("column {name:?} occurs twice in the header")),
                (place, None) => Ok(place),
            }
        };
        let need = |name: &str| {
            find(name)?.ok_or_else(|| {
                format!(
                    "the header {:?} has no column {name:?}; expected op,id,bytes[,stream[,thread[,time_us]]]",
                    header.chars().take(200).collect::<String>()
                )
            })
        };
        Ok(Columns {
            op: need("op")?,
            id: need("id")?,
            bytes: need("bytes")?,
            stream: find("stream")?,
            thread: find("thread")?,
            time: find("time_us")?,
            count: names.len(),
        })
    }
}

/// The trace so far, and the block of each live id in the file.
#[derive(Default)]
struct Rows {
    trace: Trace,
    live: HashMap<u64, TraceBlock>,
    /// The time of the first row.
    begun: Option<u64>,
}

impl Rows {
    fn add(&mut self, columns: &Columns, row: &str) -> std::result::Result<(), String> {
        let mut cells = [""; 6];
        let mut count = 0;
        for (at, cell) in row.split(',').enumerate() {
            count = at + 1;
            let places = [
                Some(columns.op),
                Some(columns.id),
                Some(columns.bytes),
                columns.stream,
                columns.thread,
                columns.time,
            ];
            if let Some(place) = places.iter().position(|place| *place == Some(at)) {
                cells[place] = cell.trim();
            }
        }
        if count != columns.count {
            return Err(format!("{count} columns, the header has {}", columns.count));
        }
        let [op, id, bytes, stream, thread, time] = cells;
        let id = number("id", id)?;
        let thread = match thread {
            "" => None,
            thread => Some(number("thread", thread)?),
        };
        if !self.trace.set_thread(thread) {
            return Err("more than 65,535 threads".into());
        }
        if !time.is_empty() {
            self.time(number("time_us", time)?)?;
        }
        let label = match columns.stream {
            None => Some(0),
            Some(_) if stream.is_empty() => None,
            Some(_) => Some(number("stream", stream)?),
        };
        let stream = match label {
            None => None,
            Some(label) => Some(self.trace.stream(label).ok_or("more than 65,535 streams")?),
        };
        let size = || match number("bytes", bytes)? {
            0 => Err("0 bytes cannot be allocated".to_string()),
            size => Ok(size),
        };
        match op {
            "alloc" => {
                if self.live.contains_key(&id) {
                    return Err(format!("alloc of id {id}, which is still live"));
                }
                let block = self.trace.alloc(size()?, stream);
                self.live.insert(id, block);
            }
            "realloc" => {
                let block = self
                    .live
                    .get(&id)
                    .ok_or_else(|| format!("realloc of id {id}, which is not live"))?;
                self.trace.realloc(block, size()?, stream);
            }
            "free" => {
                let block = self
                    .live
                    .remove(&id)
                    .ok_or_else(|| format!("free of id {id}, which is not live"))?;
                self.trace.free(block, stream);
            }
            other => return Err(format!("op {other:?}; expected alloc, free or realloc")),
        }
        Ok(())
    }

    fn time(&mut self, time: u64) -> std::result::Result<(), String> {
        let begun = *self.begun.get_or_insert(time);
        match time.checked_sub(begun).is_some_and(|since| self.trace.set_time(since)) {
            true => Ok(()),
            false => Err(format!(
                "time_us {time} is before {}, that of a row above",
                begun + self.trace.length()
            )),
        }
    }
}

fn number(column: &str, text: &str) -> std::result::Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|error| format!("{column} {text:?}: {error}"))
}

/// Writes `trace` so that [`read`] returns an equal trace, apart from the numbers of slots.
pub fn write(trace: &Trace, mut output: impl Write) -> std::io::Result<()> {
    let streams = trace.streams().len() > 1
        || trace.streams().first().is_some_and(|&label| label != 0)
        || trace.ops().iter().any(|op| op.stream.is_none());
    let threads = !trace.threads().is_empty();
    let mut ids = vec![0u64; trace.blocks()];
    let mut next = 0;
    let stream_column = if streams { ",stream" } else { "" };
    let thread_column = if threads { ",thread" } else { "" };
    let time_column = if trace.has_times() { ",time_us" } else { "" };
    writeln!(output, "op,id,bytes{stream_column}{thread_column}{time_column}")?;
    for op in trace.ops() {
        let name = match op.kind {
            OpKind::Alloc { .. } => {
                ids[op.block as usize] = next;
                next += 1;
                "alloc"
            }
            OpKind::Free => "free",
            OpKind::Realloc => "realloc",
        };
        write!(output, "{name},{},{}", ids[op.block as usize], op.bytes)?;
        match op.stream {
            Some(stream) if streams => write!(output, ",{}", trace.streams()[stream as usize])?,
            None if streams => write!(output, ",")?,
            _ => {}
        }
        match op.thread {
            Some(thread) if threads => write!(output, ",{}", trace.threads()[thread as usize])?,
            None if threads => write!(output, ",")?,
            _ => {}
        }
        match trace.has_times() {
            true => writeln!(output, ",{}", op.time)?,
            false => writeln!(output)?,
        }
    }
    output.flush()
}
