//! The log: what a line looks like, who gets one, and that it works while a thread ends.

use std::process::{Command, Output};

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::LogLevel;

const ROLE: &str = "TRTALLOC_TEST_ROLE";

/// Runs one test of this file in a process of its own, in which it finds `role`.
fn child(test: &str, role: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([&format!("log::{test}"), "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .output()
        .unwrap()
}

/// The library's own lines, without those of the test harness.
fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    text.lines()
        .filter(|line| line.starts_with("trtalloc: "))
        .map(str::to_owned)
        .collect()
}

fn speak() {
    tracing::error!(target: "trtalloc::test", "worst");
    tracing::warn!(target: "trtalloc::test", size = 4096u64, name = "a b", "out of {}", "luck");
    tracing::info!(target: "trtalloc::pool", "chosen");
    tracing::debug!(target: "trtalloc::test", "slow");
    tracing::trace!(target: "trtalloc::test", "all\nlines");
    tracing::error!(target: "somebody_else", "not ours");
}

#[test]
fn a_level_passes_what_is_at_least_as_grave() {
    if let Ok(role) = std::env::var(ROLE) {
        let levels = match role.as_str() {
            "off" => vec![LogLevel::Off],
            "warn" => vec![LogLevel::Warn],
            "info" => vec![LogLevel::Info],
            "again" => vec![LogLevel::Warn, LogLevel::Trace, LogLevel::Error],
            _ => unreachable!(),
        };
        for level in levels {
            trtalloc::log::init(level);
            speak();
        }
        return;
    }
    let all = [
        "trtalloc: error: worst",
        "trtalloc: warn: out of luck size=4096 name=a b",
        "trtalloc: info: chosen",
        "trtalloc: debug: slow",
        "trtalloc: trace: all lines",
    ];
    for (role, expected) in [
        ("off", vec![]),
        ("warn", all[..2].to_vec()),
        ("info", all[..3].to_vec()),
        // The last level given holds.
        ("again", [&all[..2], &all[..], &all[..1]].concat()),
    ] {
        let output = child("a_level_passes_what_is_at_least_as_grave", role);
        assert!(output.status.success(), "{role}: {output:?}");
        assert_eq!(lines(&output), expected, "{role}");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(!stdout.contains("trtalloc: "), "{role}: {stdout}");
    }
}

/// A developer who looks for a write beyond a block with `guard=1` learns that none would be found.
#[test]
fn an_option_that_has_no_effect_is_reported() {
    if let Ok(options) = std::env::var(ROLE) {
        trtalloc::log::init(LogLevel::Warn);
        let allocator = Allocator::create(&format!("driver=sim,{options}")).unwrap();
        let request = Request {
            size: 4096,
            alignment: 0,
            flags: 0,
            stream: None,
            device: None,
        };
        for _ in 0..2 {
            allocator
                .deallocate(allocator.allocate(request).unwrap(), None)
                .unwrap();
        }
        return;
    }
    let malloc = "has no effect: this memory comes from the driver's malloc device=0";
    let guard = format!("trtalloc: warn: guard=1 {malloc}");
    let share = format!("trtalloc: warn: share {malloc}");
    for (options, expected) in [
        ("guard=1,share=fd", vec![]),
        ("backing=malloc", vec![]),
        ("backing=malloc,guard=1", vec![&guard]),
        ("passthrough=1,guard=1", vec![&guard]),
        ("backing=malloc,share=fd", vec![&share]),
    ] {
        let output = child("an_option_that_has_no_effect_is_reported", options);
        assert!(output.status.success(), "{options}: {output:?}");
        assert_eq!(lines(&output).iter().collect::<Vec<_>>(), expected, "{options}");
    }
}

struct SpeaksAtTheEnd;

impl Drop for SpeaksAtTheEnd {
    fn drop(&mut self) {
        tracing::warn!(target: "trtalloc::test", "a thread ends");
    }
}

thread_local! {
    static LATE: SpeaksAtTheEnd = const { SpeaksAtTheEnd };
}

#[test]
fn a_thread_may_log_while_it_ends() {
    if std::env::var_os(ROLE).is_some() {
        trtalloc::log::init(LogLevel::Warn);
        std::thread::spawn(|| {
            // Registered first, so it is destroyed after whatever the log itself would keep.
            LATE.with(|_| {});
            tracing::warn!(target: "trtalloc::test", "a thread runs");
        })
        .join()
        .unwrap();
        return;
    }
    let output = child("a_thread_may_log_while_it_ends", "end");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        lines(&output),
        ["trtalloc: warn: a thread runs", "trtalloc: warn: a thread ends"]
    );
}

/// A program that has closed its stderr, as daemons do: the next file has the number.
#[test]
fn a_line_is_never_in_a_snapshot() {
    let path = std::env::temp_dir().join(format!("trtalloc-log-{}.json", std::process::id()));
    if let Ok(path) = std::env::var(ROLE) {
        trtalloc::log::init(LogLevel::Warn);
        // SAFETY: the rest of this process writes nothing there.
        unsafe { libc::close(libc::STDERR_FILENO) };
        let written = trtalloc::history::snapshot::write_file(path.as_ref(), |out| {
            out.write_all(b"one ")?;
            tracing::warn!(target: "trtalloc::test", "of the log");
            out.write_all(b"file")
        });
        // SAFETY: ends the process.
        unsafe { libc::_exit(if written.is_ok() { 77 } else { 1 }) };
    }
    let output = child("a_line_is_never_in_a_snapshot", path.to_str().unwrap());
    assert_eq!(output.status.code(), Some(77), "{output:?}");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(text, "one file");
}

/// A program that writes nothing itself would not end because its reader has gone, or because a file may be no larger.
#[test]
fn an_error_stream_that_takes_nothing_does_no_harm() {
    if let Ok(role) = std::env::var(ROLE) {
        trtalloc::log::init(LogLevel::Warn);
        let mut ends = [0; 2];
        // SAFETY: descriptors of this process, and sets of this frame. Rust's start has ignored one of the signals.
        unsafe {
            match role.as_str() {
                "gone" => {
                    assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
                    libc::close(ends[0]);
                }
                _ => {
                    ends[1] = libc::memfd_create(c"small".as_ptr(), 0);
                    let none = libc::rlimit {
                        rlim_cur: 0,
                        rlim_max: 0,
                    };
                    assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &none), 0);
                }
            }
            libc::dup2(ends[1], libc::STDERR_FILENO);
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            tracing::warn!(target: "trtalloc::test", "not written");
            let (mut blocked, mut pending) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut blocked);
            libc::sigpending(&mut pending);
            for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
                assert_eq!(libc::sigismember(&blocked, signal), 0);
                assert_eq!(libc::sigismember(&pending, signal), 0);
            }
            libc::_exit(77);
        }
    }
    for role in ["gone", "full"] {
        let output = child("an_error_stream_that_takes_nothing_does_no_harm", role);
        assert_eq!(output.status.code(), Some(77), "{role}: {output:?}");
    }
}
