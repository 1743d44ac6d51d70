//! Finds the processes of the run and asks each of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trtalloc::support::control::Request;
use trtalloc::support::control::protocol::receive;
use trtalloc::support::run_statistics::{ProcessFigures, SharedFile};

use super::exposition::Exposition;
use crate::command::ctl::process::{Reached, Target};

/// How long a process has for its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long this waits for a thread that should be done.
const SLACK: Duration = Duration::from_millis(100);
/// More than any answer has.
const MAX_ANSWER: usize = 64 << 20;

/// Asks the processes of the run.
pub struct Collector {
    run_statistics: Arc<SharedFile>,
    /// The processes that a thread asks now. The kernel may hold such a thread up, where a driver does not return.
    asked: Arc<Mutex<BTreeSet<u32>>>,
}

/// What a process answered.
enum Outcome {
    Answered(String),
    /// It is there, and did not answer in time.
    Silent,
    /// It has no memory of the allocator, or is not of this run.
    NotOurs,
}

/// What is known of a process before it is asked.
#[derive(Clone, Copy, Default)]
struct Candidate {
    descends: bool,
    /// It has asked for memory through its own allocator.
    used: bool,
}

impl Collector {
    pub fn new(run_statistics: Arc<SharedFile>) -> Collector {
        Collector {
            run_statistics,
            asked: Arc::default(),
        }
    }

    /// What is known without any process.
    pub fn without_processes(&self) -> Exposition {
        let mut all = Exposition::default();
        self.add_run(&mut all, Vec::new());
        all
    }

    /// The metrics of all processes that run now.
    pub fn collect(&self) -> Exposition {
        let candidates = self.candidates();
        let (until, (sender, answers)) = (Instant::now() + PATIENCE, mpsc::channel());
        let mut missing: BTreeMap<u32, Candidate> = BTreeMap::new();
        for (pid, candidate) in candidates {
            missing.insert(pid, candidate);
            if !self.asked.lock().insert(pid) {
                continue;
            }
            let (sender, asked, run_statistics) = (sender.clone(), self.asked.clone(), self.run_statistics.clone());
            let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
                let outcome = outcome(pid, candidate, &run_statistics, until);
                asked.lock().remove(&pid);
                // The collection may be over.
                let _ = sender.send((pid, outcome));
            });
            if thread.is_err() {
                self.asked.lock().remove(&pid);
            }
        }
        drop(sender);
        let mut outcomes = BTreeMap::new();
        while !missing.is_empty() {
            let left = (until + SLACK).saturating_duration_since(Instant::now());
            // All threads are done, or the time is over.
            let Ok((pid, outcome)) = answers.recv_timeout(left) else {
                break;
            };
            missing.remove(&pid);
            outcomes.insert(pid, outcome);
        }
        let silent = missing.into_iter().filter(|(_, candidate)| candidate.used);
        outcomes.extend(silent.map(|(pid, _)| (pid, Outcome::Silent)));
        let (mut processes, mut up) = (Exposition::default(), Vec::new());
        for (pid, outcome) in outcomes {
            let answered = match outcome {
                Outcome::Answered(text) => processes.add_answer(pid, &text),
                Outcome::Silent => false,
                Outcome::NotOurs => continue,
            };
            up.push((format!("pid=\"{pid}\""), u8::from(answered).to_string()));
        }
        self.add_run(&mut processes, up);
        processes
    }

    /// The processes that descend from this one, and those that have reported figures. The latter may have lost their
    /// parent.
    fn candidates(&self) -> BTreeMap<u32, Candidate> {
        let mut all = BTreeMap::new();
        for pid in descendants(std::process::id()) {
            all.insert(
                pid,
                Candidate {
                    descends: true,
                    used: false,
                },
            );
        }
        for figures in self.run_statistics.figures().iter().filter(|figures| !figures.ended) {
            if all.contains_key(&figures.pid) || std::path::Path::new(&format!("/proc/{}", figures.pid)).exists() {
                all.entry(figures.pid).or_insert_with(Candidate::default).used |=
                    figures.allocations + figures.out_of_memory > 0;
            }
        }
        all
    }

    /// Adds which processes answered, and what the last line of `run` has: also of processes that have ended.
    fn add_run(&self, to: &mut Exposition, up: Vec<(String, String)>) {
        let all = self.run_statistics.figures();
        let one = |value: u64| vec![(String::new(), value.to_string())];
        let sum = |figure: fn(&ProcessFigures) -> u64| one(all.iter().map(figure).sum());
        let most = |figure: fn(&ProcessFigures) -> u64| one(all.iter().map(figure).max().unwrap_or(0));
        to.add(
            "trtalloc_up",
            "gauge",
            "1: the process answered within a second; 0: it did not.",
            up,
        );
        for (name, kind, help, samples) in [
            (
                "trtalloc_run_allocated_peak_bytes",
                "gauge",
                "The highest peak of allocated bytes of one process of the run, also of those that ended.",
                most(|of| of.allocated_peak),
            ),
            (
                "trtalloc_run_reserved_peak_bytes",
                "gauge",
                "The highest peak of reserved bytes of one process of the run, also of those that ended.",
                most(|of| of.reserved_peak),
            ),
            (
                "trtalloc_run_allocations",
                "counter",
                "Requests that succeeded, of all processes of the run, also of those that ended.",
                sum(|of| of.allocations),
            ),
            (
                "trtalloc_run_out_of_memory",
                "counter",
                "Requests refused because memory ran out, of all processes of the run, also of those that ended.",
                sum(|of| of.out_of_memory),
            ),
        ] {
            to.add(name, kind, help, samples);
        }
    }
}

fn outcome(pid: u32, candidate: Candidate, run_statistics: &SharedFile, until: Instant) -> Outcome {
    let outcome = ask(pid, until);
    match outcome {
        Outcome::NotOurs if candidate.used && has_mapped(pid, run_statistics) => Outcome::Silent,
        // Its number may be that of a process in a container, or may have been given to another process.
        Outcome::Answered(_) | Outcome::Silent if !candidate.descends && !has_mapped(pid, run_statistics) => {
            Outcome::NotOurs
        }
        outcome => outcome,
    }
}

/// Asks a process. That takes until then at most, unless the kernel holds this thread up.
fn ask(pid: u32, until: Instant) -> Outcome {
    let Ok(target) = Target::of(pid) else {
        return Outcome::NotOurs;
    };
    // SAFETY: only reads a value.
    if target.user != unsafe { libc::geteuid() } {
        // A user may have made the folder that is looked into. Only this thread, which ends soon, opens files as the user.
        // SAFETY: plain arguments.
        unsafe { libc::setfsuid(target.user) };
    }
    let mut stream = match target.reach(until.saturating_duration_since(Instant::now())) {
        Ok(Reached::Served(stream)) => stream,
        Ok(Reached::Ended | Reached::Nothing) => return Outcome::NotOurs,
        Err(_) => return Outcome::Silent,
    };
    let answer = || -> Option<String> {
        let request = Request::new("metrics").with("each", 1).encode()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(&request).ok()?;
        let mut all = Vec::new();
        let collect = |part: &[u8]| match all.len() + part.len() > MAX_ANSWER {
            true => Err(ErrorKind::InvalidData.into()),
            false => {
                all.extend(part);
                Ok(())
            }
        };
        receive(Until { stream, until }, collect).ok()?;
        String::from_utf8(all).ok()
    };
    answer().map_or(Outcome::Silent, Outcome::Answered)
}

/// Reads until then at most.
struct Until {
    stream: UnixStream,
    until: Instant,
}

impl Read for Until {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into)
    }
}

/// Whether a process has the run's file in its memory. No other process has.
fn has_mapped(pid: u32, run_statistics: &SharedFile) -> bool {
    let Ok(inode) = std::fs::metadata(run_statistics.path()).map(|metadata| metadata.ino()) else {
        return false;
    };
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    maps.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(4);
        let inode_is = words.next().and_then(|word| word.parse().ok()) == Some(inode);
        inode_is && words.next().is_some_and(|word| word.starts_with("/memfd:trtalloc"))
    })
}

/// The processes that a process has started, and those that these have.
fn descendants(of: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        // A name may have spaces and parentheses.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let parent = after_name.split(' ').nth(1).and_then(|parent| parent.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![of];
    while let Some(parent) = next.pop() {
        let own = children.remove(&parent).unwrap_or_default();
        found.extend(&own);
        next.extend(own);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_children_are_found() {
        let mut shell = std::process::Command::new("sh");
        let shell = shell
            .args(["-c", "sleep 30 & echo $!; wait"])
            .stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
        let sleep: u32 = line.trim().parse().unwrap();
        let found = descendants(std::process::id());
        // SAFETY: a process of this test.
        unsafe { libc::kill(sleep as i32, libc::SIGKILL) };
        shell.wait().unwrap();
        assert!(found.contains(&shell.id()) && found.contains(&sleep), "{found:?}");
        assert!(!found.contains(&std::process::id()));
    }
}
