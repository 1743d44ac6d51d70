//! `trtalloc ctl` alone: the processes that can be reached, and what they hold.

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
    let mut table = Table::new(&["PID", "ALLOCATED", "RESERVED", "PROGRAM"]);
    let (mut found, mut silent) = (0, 0);
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
        let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let program = trtalloc::tags::printable(program.trim_end());
        found += 1;
        let (allocated, reserved) = match answer {
            Ok((allocated, reserved)) => (size(allocated), size(reserved)),
            Err(_) => {
                silent += 1;
                ("no answer".into(), "".into())
            }
        };
        table.row(vec![pid.to_string(), allocated, reserved, program]);
    }
    match found {
        0 => say("no process can be reached: `trtalloc run`, or the option control=1, lets a program be"),
        _ => say(&table.text()),
    }
    Ok(if silent > 0 { Done::NotAll } else { Done::All })
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

/// Allocated and reserved bytes of a process; none where it has no socket.
fn figures(target: &Target) -> Option<Result<(u64, u64)>> {
    let mut stream = target.connect().ok()?;
    let ask = || {
        process::send(&mut stream, &Request::new("tags"))?;
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(5)))
            .map_err(|error| Error::Io(error.to_string()))?;
        let lines = json::lines(&text(&mut stream)?)?;
        let sum = |key| lines.iter().map(|line| line.number(key)).sum();
        Ok((sum("allocated"), sum("reserved")))
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
