//! `trtalloc ctl` alone: the processes that can be reached, and what they hold.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

use trtalloc::error::{Error, Result};
use trtalloc::support::control::Request;
use trtalloc::support::control::socket_file::{self, Found};
use trtalloc::support::private_folder::{self, Place};

use super::process::{self, Target};
use super::{json, text};
use crate::command::table::{Table, size};
use crate::command::{Done, say};

pub fn run() -> Result<Done> {
    remove_stale();
    let (mut found, mut silent) = (Vec::new(), false);
    // SAFETY: only reads a value.
    let own = unsafe { libc::geteuid() };
    for pid in processes()? {
        // A process may end at any time.
        let Ok(target) = Target::of(pid) else { continue };
        if own != 0 && target.user != own {
            continue;
        }
        let Some(answer) = as_user(target.user, || figures(&target)) else {
            continue;
        };
        let program = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let program = trtalloc::tags::printable(String::from_utf8_lossy(&program).trim_end());
        silent |= answer.is_err();
        found.push((pid, answer.ok(), program));
    }
    if found.is_empty() {
        say(
            "no process can be reached; one can that was started by `trtalloc run` or with TRTALLOC_CONTROL=1, and has allocated \
             memory",
        );
        return Ok(Done::All);
    }
    let mut table = Table::new(&["PID", "ALLOCATED", "RESERVED", "PROGRAM"]);
    let mut budgets = Table::new(&["BUDGET", "HELD", "PID", "PROGRAM"]);
    let mut shared = Vec::new();
    for (pid, figures, program) in found {
        let (allocated, reserved) = figures.as_ref().map_or(("no answer".into(), String::new()), |figures| {
            (size(figures.allocated), size(figures.reserved))
        });
        table.row(vec![pid.to_string(), allocated, reserved, program.clone()]);
        for (budget, held) in figures.map(|figures| figures.budgets).unwrap_or_default() {
            shared.push(vec![budget, size(held), pid.to_string(), program.clone()]);
        }
    }
    say(&table.text());
    if !shared.is_empty() {
        shared.sort();
        shared.into_iter().for_each(|row| budgets.row(row));
        say(&budgets.text());
    }
    Ok(if silent { Done::NotAll } else { Done::All })
}

/// What a process holds, in bytes.
struct Figures {
    allocated: u64,
    reserved: u64,
    /// The options `share_budget` of its allocators, and what it holds of each.
    budgets: BTreeMap<String, u64>,
}

fn processes() -> Result<Vec<u32>> {
    let failed = |error: std::io::Error| Error::Io(format!("/proc: {error}"));
    let entries = std::fs::read_dir("/proc").map_err(failed)?;
    let mut all: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    all.sort_unstable();
    Ok(all)
}

/// What a process holds; none where it has no socket.
fn figures(target: &Target) -> Option<Result<Figures>> {
    let mut stream = target.connect().ok()?;
    let ask = || {
        process::send(&mut stream, &Request::new("tags"))?;
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(5)))
            .map_err(|error| Error::Io(error.to_string()))?;
        let lines = json::lines(&text(&mut stream)?)?;
        let sum = |key| lines.iter().map(|line| line.number(key)).sum();
        let mut budgets = BTreeMap::new();
        for line in lines.iter().filter(|line| !line.text("budget").is_empty()) {
            *budgets
                .entry(trtalloc::tags::printable(line.text("budget")))
                .or_default() += line.number("budget_held");
        }
        Ok(Figures {
            allocated: sum("allocated"),
            reserved: sum("reserved"),
            budgets,
        })
    };
    let mut ask = ask;
    Some(ask())
}

/// Calls `call` as that user where this process is root: a user may have made the folder that is looked into.
fn as_user<T>(user: u32, call: impl FnOnce() -> Option<T>) -> Option<T> {
    // SAFETY: only reads a value.
    if user == unsafe { libc::geteuid() } {
        return call();
    }
    // SAFETY: plain arguments; no other thread runs.
    if unsafe { libc::seteuid(user) } != 0 {
        return None;
    }
    let called = call();
    // SAFETY: as above. This process is root's.
    if unsafe { libc::seteuid(0) } != 0 {
        std::process::exit(1);
    }
    called
}

/// Removes this user's files of processes that have ended.
fn remove_stale() {
    // SAFETY: only reads a value.
    let own = unsafe { libc::geteuid() };
    let (Ok(root), Ok(namespace)) = (private_folder::root(Path::new("/")), socket_file::namespace("self")) else {
        return;
    };
    for place in Place::of_user(own, std::env::var_os("XDG_RUNTIME_DIR")) {
        let Ok(folder) = place.open(root.as_fd(), own) else {
            continue;
        };
        let Ok(entries) = std::fs::read_dir(folder.path()) else {
            continue;
        };
        for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
            let ours = socket_file::parse(&name).is_some();
            if ours && matches!(socket_file::open(&folder, &name, own), Ok(Found::Refused)) {
                // What cannot be removed harms nothing.
                let _ = socket_file::remove_stale(&folder, &name, namespace);
            }
        }
    }
}
