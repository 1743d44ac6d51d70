//! Signals, jobs, and how the parent process sees the program's end.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use crate::run::{expect, last, trtalloc_run, with_default_signals};

/// Starts a shell script under the command and waits until it prints "ready". It is a job of its own, as under a shell:
/// the kernel does not stop an orphaned job, such as checks that run in the background.
fn started(script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = trtalloc_run(&["--", "sh", "-c", script])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, output)
}

fn send(child: &Child, signal: i32) {
    // SAFETY: a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn signals_to_the_command_reach_the_program() {
    for (name, number) in [
        ("HUP", libc::SIGHUP),
        ("INT", libc::SIGINT),
        ("QUIT", libc::SIGQUIT),
        ("TERM", libc::SIGTERM),
        ("USR1", libc::SIGUSR1),
        ("USR2", libc::SIGUSR2),
    ] {
        let script = format!("trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let (mut child, mut output) = started(&script);
        send(&child, number);
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("got {name}\n"));
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }
}

/// A program that signals its group, as `kill 0` does, has already got the signal. The parent of this command may be in
/// that group, too, so the group does not tell the two cases apart.
#[test]
fn signals_from_the_program_to_its_group_are_not_returned() {
    let script =
        "trap 'echo got' USR1; trap 'exit 5' USR2; echo ready; kill -USR1 0; echo sent; while :; do sleep 0.05; done";
    let (mut child, mut output) = started(script);
    let mut line = String::new();
    while !line.ends_with("sent\n") {
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "{line}");
    }
    // Pending signals arrive in the order of their numbers, so this is the last.
    send(&child, libc::SIGUSR2);
    output.read_to_string(&mut line).unwrap();
    assert_eq!(line, "got\nsent\n");
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

/// `perl -e 'alarm 60; exec @ARGV'` limits a program's time: the executed program has the timer, and the signal has no
/// sender.
#[test]
fn inherited_timer_reaches_the_program() {
    let mut command = trtalloc_run(&["--", "sleep", "600"]);
    // SAFETY: the call is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::alarm(1);
            Ok(())
        });
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGALRM));
}

#[test]
fn signal_that_ends_the_program_ends_the_command() {
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGINT, libc::SIGPIPE] {
        let script = format!("kill -{signal} $$");
        let output = trtalloc_run(&["--", "sh", "-c", &script]).output().unwrap();
        assert_eq!(output.status.signal(), Some(signal));
        assert_eq!(last(&output), crate::run::none_seen());
    }
    // As a shell reports it.
    let command = env!("CARGO_BIN_EXE_trtalloc");
    let script = format!("{command} run -- sh -c 'kill -9 $$'; echo $?");
    let output = std::process::Command::new("bash")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"137\n");
}

#[test]
fn command_stops_and_continues_with_the_program() {
    let (mut child, mut output) = started("trap 'echo went on; exit 3' USR1; echo ready; while :; do sleep 0.05; done");
    let changed = |how| {
        let mut status = 0;
        // SAFETY: a child that was not waited for, and has not ended; the status is this frame's.
        assert_eq!(
            unsafe { libc::waitpid(child.id() as i32, &mut status, how) },
            child.id() as i32
        );
        status
    };
    send(&child, libc::SIGTSTP);
    let status = changed(libc::WUNTRACED);
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
    send(&child, libc::SIGCONT);
    let status = changed(libc::WCONTINUED);
    assert!(libc::WIFCONTINUED(status), "{status:#x}");
    send(&child, libc::SIGUSR1);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "went on\n");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

/// Some services start with SIGCHLD ignored, and then the system does not report a child's end.
#[test]
fn program_end_is_seen_with_sigchld_ignored() {
    let ignoring = |mut command: Command| {
        // SAFETY: the call is allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                Ok(())
            });
        }
        command.output().unwrap()
    };
    let probe = ["sh", "-c", "grep SigIgn /proc/self/status; exit 4"];
    let with = ignoring(trtalloc_run(&[&["--"], &probe[..]].concat()));
    expect(&with, 4);
    let mut alone = Command::new(probe[0]);
    alone.args(&probe[1..]);
    with_default_signals(&mut alone);
    assert_eq!(with.stdout, ignoring(alone).stdout);
}

/// The program starts with the same blocked, ignored and caught signals and the same descriptors as without the
/// command.
#[test]
fn program_starts_with_unchanged_signals_and_descriptors() {
    let command = env!("CARGO_BIN_EXE_trtalloc");
    // A pipe to read from, and a descriptor beyond the usual ones.
    let probe = "grep -E '^(Sig|Shd)' /proc/self/status | grep -v SigQ; ls /proc/self/fd";
    for before in [
        "",
        "trap '' PIPE;",
        "trap '' HUP USR1 INT;",
        "exec 7</dev/null;",
        "exec 0<&-;",
        "exec 0<&- 2>&-;",
    ] {
        let run = |run: &str| {
            let script = format!("{before} {run} sh -c \"$1\"");
            let mut shell = std::process::Command::new("bash");
            shell.args(["-c", &script, "bash", probe]);
            let output = shell.output().unwrap();
            expect(&output, 0);
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(run(&format!("{command} run --")), run(""), "{before}");
    }
}
