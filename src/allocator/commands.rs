//! The commands of `trtalloc ctl`, as the process runs them.
//!
//! Each does what the C function of that name does, except that `trim` and `limit` wait for nothing. Allocators have
//! numbers, in the order of their creation.

use std::io::{BufWriter, Write};
use std::sync::Weak;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::*;
use crate::history::snapshot::Format;
use crate::support::control::{self, Request as Command};
use crate::support::stats;

/// The allocators that may be looked into, with their numbers.
static CONTROLLED: Mutex<Vec<(usize, Weak<Allocator>)>> = Mutex::new(Vec::new());

/// The least time from the end of a snapshot to the next one. Each stops all requests while the state is copied.
const BETWEEN_SNAPSHOTS: Duration = Duration::from_secs(1);

/// Has an allocator with `control=1` found by the commands.
pub(super) fn register(allocator: &Arc<Allocator>) {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    // A forked child may have a copy of the lock that no thread will release.
    if allocator.config.control && !process::forked() {
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut all = CONTROLLED.lock();
        all.retain(|(_, known)| known.strong_count() > 0);
        all.push((number, Arc::downgrade(allocator)));
    }
}

/// Serves the commands from now on.
pub(super) fn begin() {
    control::begin(serve);
}

fn serve(command: &Command, out: &mut dyn Write) -> Result<()> {
    match command.command.as_str() {
        "stats" => each_device(command, out, &[], |allocator, device| {
            allocator.stats_json(Some(device))
        }),
        "tags" => each_device(command, out, &["name"], |allocator, device| {
            let mut tags = allocator.tag_stats(Some(device))?;
            if let Some(name) = command.get("name") {
                tags.retain(|of| of.tag == name);
            }
            let line = stats::json_of_pool(device, &allocator.stats(Some(device))?, &tags);
            Ok(format!("{{{}{}", budget(allocator.pool_at_device(device)?), &line[1..]))
        }),
        "trim" => {
            let (keep, confirms) = (number(command, "keep")?, command.get("confirm") == Some("1"));
            each_device(command, out, &["keep", "confirm"], |allocator, device| {
                let released = allocator.trim_completed(device, keep.unwrap_or(0), confirms)?;
                let line = stats::json(device, &allocator.pool_at_device(device)?.stats(), &[]);
                Ok(format!("{{\"released\":{released},{}", &line[1..]))
            })
        }
        // `trtalloc run --metrics` asks for all allocators at once.
        "metrics" if command.get("each") == Some("1") => {
            takes(command, &["each"])?;
            let mut all = selected(command)?.into_iter();
            all.try_for_each(|(number, allocator)| {
                written(out, &format!("# allocator {number}\n{}", allocator.metrics()?))
            })
        }
        "metrics" => {
            takes(command, &["allocator"])?;
            written(out, &one(command)?.1.metrics()?)
        }
        "history" => {
            takes(command, &["allocator", "options"])?;
            let options = command.get("options").unwrap_or_default();
            let mut all = selected(command)?.into_iter();
            all.try_for_each(|(_, allocator)| allocator.history(options))
        }
        "limit" => limit(command),
        "snapshot" => snapshot(command, out),
        other => Err(Error::InvalidArgument(format!(
            "no command `{}`",
            tags::printable(other)
        ))),
    }
}

/// Writes a line of JSON for each device of each selected allocator. Each adds its fields in front of those that it got as text,
/// since the library has no serde_json (see `support::stats`).
fn each_device(
    command: &Command,
    out: &mut dyn Write,
    arguments: &[&str],
    line: impl Fn(&Allocator, i32) -> Result<String>,
) -> Result<()> {
    takes(command, &[&["allocator", "device"], arguments].concat())?;
    let device = device(command)?;
    let mut any = false;
    for (number, allocator) in selected(command)? {
        for pool in allocator.all_pools() {
            if device.is_none_or(|device| device == pool.device) {
                any = true;
                let line = line(&allocator, pool.device)?;
                written(out, &format!("{{\"allocator\":{number},{}\n", &line[1..]))?;
            }
        }
    }
    match device {
        Some(device) if !any => Err(Error::InvalidArgument(format!("device {device} has no pool"))),
        _ => Ok(()),
    }
}

/// What the pool holds of the budget that it shares with other processes, as the first fields of a line of JSON.
fn budget(pool: &Pool) -> String {
    let Some(budget) = pool.shared_budget() else {
        return String::new();
    };
    let option = tags::printable(&budget.option().to_string());
    let option = option.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"budget\":\"{option}\",\"budget_held\":{},", budget.held())
}

fn limit(command: &Command) -> Result<()> {
    takes(command, &["allocator", "device", "name", "bytes"])?;
    let bytes = number(command, "bytes")?.ok_or_else(|| Error::InvalidArgument("how many bytes?".into()))?;
    let allocator = one(command)?.1;
    let devices: Vec<i32> = allocator.all_pools().map(|pool| pool.device).collect();
    let device = match (device(command)?, devices.as_slice()) {
        (Some(device), _) => device,
        (None, [device]) => *device,
        (None, devices) => {
            return Err(Error::InvalidArgument(format!(
                "{} devices: {}; name one with --device",
                devices.len(),
                joined(devices.iter())
            )));
        }
    };
    allocator.pool_at_device(device)?;
    match command.get("name") {
        Some(name) => allocator.set_tag_limit(Some(device), name, bytes),
        None => allocator.set_limit_without_wait(device, bytes),
    }
}

fn snapshot(command: &Command, out: &mut dyn Write) -> Result<()> {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    takes(command, &["allocator", "format", "title"])?;
    let format = Format::of_suffix(command.get("format").unwrap_or_default())
        .ok_or_else(|| Error::InvalidArgument("a snapshot's format is pickle, json or html".into()))?;
    let allocator = one(command)?.1;
    // The helper thread runs one command after the other.
    if LAST.lock().is_some_and(|last| last.elapsed() < BETWEEN_SNAPSHOTS) {
        return Err(Error::Unsupported("a second snapshot within one second".into()));
    }
    let title = command.get("title").unwrap_or("snapshot");
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let written = allocator.snapshot().and_then(|snapshot| {
        let written = snapshot.write_to(&mut out, format, title);
        written.and_then(|()| out.flush()).map_err(lost)
    });
    *LAST.lock() = Some(Instant::now());
    written
}

/// The allocators that the command is about: the one with its number, or all that have a pool. One that was destroyed is
/// there as long as it holds memory.
fn selected(command: &Command) -> Result<Vec<(usize, Arc<Allocator>)>> {
    let all: Vec<(usize, Arc<Allocator>)> = {
        let all = CONTROLLED.lock();
        let alive = all
            .iter()
            .filter_map(|(number, known)| Some((*number, known.upgrade()?)));
        alive.collect()
    };
    let all = all.into_iter().filter(|(_, allocator)| !allocator.is_gone());
    let wanted = number(command, "allocator")?;
    let found = |(known, allocator): &(usize, Arc<Allocator>)| match wanted {
        Some(wanted) => *known as u64 == wanted,
        None => allocator.all_pools().next().is_some(),
    };
    let found: Vec<_> = all.filter(found).collect();
    match (wanted, found.is_empty()) {
        (Some(wanted), true) => Err(Error::InvalidArgument(format!("no allocator {wanted}"))),
        _ => Ok(found),
    }
}

/// The only allocator that the command is about.
fn one(command: &Command) -> Result<(usize, Arc<Allocator>)> {
    let mut all = selected(command)?;
    match all.len() {
        1 => Ok(all.remove(0)),
        0 => Err(Error::InvalidArgument("no allocator has memory".into())),
        count => Err(Error::InvalidArgument(format!(
            "{count} allocators: {}; name one with --allocator",
            joined(all.iter().map(|(number, _)| number))
        ))),
    }
}

fn joined(numbers: impl Iterator<Item = impl ToString>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    numbers.join(", ")
}

/// Refuses arguments that the command does not have.
fn takes(command: &Command, known: &[&str]) -> Result<()> {
    let unknown = command.arguments.iter().find(|(key, _)| !known.contains(&key.as_str()));
    match unknown {
        Some((key, _)) => Err(Error::InvalidArgument(format!(
            "`{}` takes no --{}",
            tags::printable(&command.command),
            tags::printable(key)
        ))),
        None => Ok(()),
    }
}

fn number(command: &Command, key: &str) -> Result<Option<u64>> {
    let refused = || Error::InvalidArgument(format!("{key} is no number"));
    let value = command.get(key).map(str::parse::<u64>).transpose();
    value.map_err(|_| refused())
}

fn device(command: &Command) -> Result<Option<i32>> {
    let device = number(command, "device")?.map(i32::try_from).transpose();
    device.map_err(|_| Error::InvalidArgument("no such device".into()))
}

fn written(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes()).map_err(lost)
}

/// The client does not take the answer.
fn lost(error: std::io::Error) -> Error {
    Error::Io(error.to_string())
}
