//! Processes that share a budget: killed, stopped, forked, and started again.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use trtalloc::allocator::Allocator;
use trtalloc::driver::sim::model::shared::SharedDevices;
use trtalloc::trace::random::Random;

use crate::common;
use crate::share_budget::worker::{self, MIB, request};

/// The options of a budget in a directory of the test's own.
pub fn options(directory: &Path, mib: u64, more: &str) -> String {
    let directory = directory.display();
    format!("driver=sim,share_budget={directory}/jobs:{mib}MiB,{more}")
}

/// A process of a test. It is killed with the value.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Process {
        Process(command.spawn().unwrap())
    }

    /// The line that says that the process has begun.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let output = self.0.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn signal(&self, signal: libc::c_int) {
        send(self.0.id() as i32, signal);
    }

    fn kill(mut self) {
        self.signal(libc::SIGKILL);
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.signal(libc::SIGKILL);
            let _ = self.0.wait();
        }
    }
}

fn send(process: i32, signal: libc::c_int) {
    // SAFETY: a child of this process that was not waited for, or a child's child that ends with it.
    assert_eq!(unsafe { libc::kill(process, signal) }, 0);
}

fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !until() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process gets so much of a budget at once.
fn gets(allocator: &Arc<Allocator>, mib: u64) -> Result<(), String> {
    let block = allocator
        .allocate(request(mib * MIB, 0, None))
        .map_err(|error| error.to_string())?;
    allocator.deallocate(block, None).unwrap();
    allocator.trim(Some(0), 0).unwrap();
    Ok(())
}

#[test]
fn memory_of_another_process_counts_until_it_ends() {
    let directory = common::scratch("counts");
    let mut holder = Process::start(&mut worker::command("hold", &options(&directory, 64, "")));
    assert_eq!(holder.line(), "holds");
    let own = Allocator::create(&options(&directory, 64, "wait_ms=0")).unwrap();
    assert_eq!(gets(&own, 24), Ok(()));
    let error = gets(&own, 48).unwrap_err();
    let size = directory.join("jobs").display().to_string();
    assert!(
        error.contains(&format!("share_budget {size}:67108864: 33554432 bytes of it are free")),
        "{error}"
    );
    // A larger budget of the same name has more, and each process stays below its own.
    let larger = Allocator::create(&options(&directory, 128, "wait_ms=0")).unwrap();
    assert_eq!(gets(&larger, 96), Ok(()));
    assert!(gets(&larger, 112).is_err());
    // A process that is stopped holds what it held, and the others go on.
    holder.signal(libc::SIGSTOP);
    assert!(gets(&own, 48).is_err());
    assert_eq!(gets(&own, 24), Ok(()));
    holder.kill();
    assert_eq!(gets(&own, 64), Ok(()));
}

#[test]
fn forked_child_of_a_killed_process_holds_nothing() {
    let directory = common::scratch("forked");
    let mut holder = Process::start(&mut worker::command("fork", &options(&directory, 64, "")));
    let child: i32 = holder.line().parse().unwrap();
    let own = Allocator::create(&options(&directory, 64, "wait_ms=0")).unwrap();
    assert!(gets(&own, 48).is_err());
    holder.kill();
    let freed = gets(&own, 64);
    // SAFETY: signal 0 only asks whether the process is there.
    let lives = unsafe { libc::kill(child, 0) } == 0;
    send(child, libc::SIGKILL);
    assert!(lives);
    assert_eq!(freed, Ok(()));
}

#[test]
fn program_that_replaces_the_process_holds_nothing() {
    use std::io::Write;
    let directory = common::scratch("exec");
    let mut holder = Process::start(&mut worker::command("exec", &options(&directory, 64, "")));
    assert_eq!(holder.line(), "holds");
    let own = Allocator::create(&options(&directory, 64, "wait_ms=0")).unwrap();
    assert!(gets(&own, 48).is_err());
    holder.0.stdin.as_mut().unwrap().write_all(b"now\n").unwrap();
    wait("the budget is free after exec", || gets(&own, 64).is_ok());
    assert!(matches!(holder.0.try_wait(), Ok(None)), "it has ended");
}

#[test]
fn process_that_closed_the_descriptor_locks_again() {
    let directory = common::scratch("close");
    let mut holder = Process::start(&mut worker::command("close", &options(&directory, 64, "")));
    assert_eq!(holder.line(), "holds");
    let own = Allocator::create(&options(&directory, 64, "wait_ms=0")).unwrap();
    assert!(gets(&own, 36).is_err());
    assert_eq!(gets(&own, 24), Ok(()));
    // At its end it gives everything back.
    drop(holder.0.stdin.take());
    assert!(holder.0.wait().unwrap().success());
    assert_eq!(gets(&own, 64), Ok(()));
}

/// One of the eight.
struct Worker {
    process: Option<Process>,
    number: u64,
    stopped_until: Option<Instant>,
    starts_at: Instant,
    steps: u64,
    went_on: Instant,
}

struct Round {
    options: String,
    progress: PathBuf,
    random: Random,
}

impl Round {
    fn start(&mut self, worker: &mut Worker) {
        let mut command = worker::command("work", &self.options);
        let seed = self.random.below(u32::MAX.into());
        command.args([worker.number.to_string(), seed.to_string()]);
        command.arg(&self.progress).env("TRTALLOC_LOG", "off");
        worker.process = Some(Process::start(&mut command));
        worker.stopped_until = None;
        worker.went_on = Instant::now();
    }
}

/// What the driver has given never exceeds the budget, each process goes on that is not stopped, and the sum returns to zero.
#[test]
fn eight_processes_are_killed_stopped_and_started() {
    const BUDGET: u64 = 512;
    /// No request takes longer than `wait_ms`, and eight processes share two cores.
    const LONGEST: Duration = Duration::from_secs(20);
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seconds = number("TRTALLOC_STRESS_SECONDS").unwrap_or(12);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = number("TRTALLOC_STRESS_SEED").unwrap_or(now);
    println!("seed {seed}");
    // Another run may last longer than this one.
    let directory = common::scratch(&format!("eight-{}", std::process::id()));
    let (devices, progress) = (directory.join("devices"), directory.join("progress"));
    std::fs::write(&progress, [0; 64]).unwrap();
    let shared = format!("sim_shared={},sim_memory=2GiB,wait_ms=100", devices.display());
    let mut round = Round {
        options: options(&directory, BUDGET, &shared),
        progress: progress.clone(),
        random: Random::new(seed),
    };
    let ledger = SharedDevices::look(&devices).unwrap();
    let progress = File::open(progress).unwrap();
    let begun = Instant::now();
    let mut workers: Vec<Worker> = (0..8)
        .map(|number| Worker {
            process: None,
            number,
            stopped_until: None,
            starts_at: begun,
            steps: 0,
            went_on: begun,
        })
        .collect();
    let (mut kills, mut stops, mut steps) = (0, 0, 0u64);
    while begun.elapsed() < Duration::from_secs(seconds) {
        let now = Instant::now();
        for worker in &mut workers {
            let Some(process) = &mut worker.process else {
                if now >= worker.starts_at {
                    round.start(worker);
                }
                continue;
            };
            let ended = process.0.try_wait().unwrap();
            assert!(ended.is_none(), "a process has ended: {ended:?}");
            if let Some(until) = worker.stopped_until {
                if now >= until {
                    process.signal(libc::SIGCONT);
                    (worker.stopped_until, worker.went_on) = (None, now);
                }
                continue;
            }
            let mut bytes = [0; 8];
            progress.read_exact_at(&mut bytes, worker.number * 8).unwrap();
            let done = u64::from_ne_bytes(bytes);
            if done != worker.steps {
                // A process that was started again begins at 1.
                steps += done.checked_sub(worker.steps).unwrap_or(done);
                (worker.steps, worker.went_on) = (done, now);
            }
            assert!(
                now - worker.went_on < LONGEST,
                "process {} hangs after {done} steps",
                worker.number
            );
            match round.random.below(120) {
                0 => {
                    kills += 1;
                    worker.process.take().unwrap().kill();
                    worker.starts_at = now + Duration::from_millis(round.random.below(300));
                }
                1 => {
                    stops += 1;
                    process.signal(libc::SIGSTOP);
                    worker.stopped_until = Some(now + Duration::from_millis(round.random.below(900)));
                }
                _ => {}
            }
        }
        assert!(ledger.held(0) <= BUDGET * MIB, "{} bytes held", ledger.held(0));
        std::thread::sleep(Duration::from_millis(20));
    }
    let most = ledger.most(0);
    println!(
        "{kills} killed, {stops} stopped, {steps} steps, at most {} MiB of {BUDGET} held",
        most / MIB
    );
    assert!(most <= BUDGET * MIB, "{most} bytes were held at once");
    assert!(
        most > BUDGET * MIB * 9 / 10 && kills > 0 && stops > 0 && steps > 1000,
        "the round tests little"
    );
    for worker in &mut workers {
        if let Some(process) = &mut worker.process {
            process.signal(libc::SIGCONT);
            drop(process.0.stdin.take());
        }
    }
    for process in workers.into_iter().filter_map(|worker| worker.process) {
        let mut process = process;
        wait("a process ends", || process.0.try_wait().unwrap().is_some());
        assert!(process.0.wait().unwrap().success());
    }
    assert_eq!(ledger.held(0), 0);
    let own = Allocator::create(&options(&directory, BUDGET, "wait_ms=0")).unwrap();
    assert_eq!(gets(&own, BUDGET), Ok(()));
    std::fs::remove_dir_all(directory).unwrap();
}
