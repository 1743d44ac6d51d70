//! Where the command's output goes: a full disk, a reader that goes away, an error stream that takes nothing.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::command::{SMALL, command, expect, file, stderr, stdout, trtalloc};
use crate::common;

/// A file to which nothing can be written, as on a full disk.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// A small trace and a snapshot of its replay.
fn trace_and_snapshot(name: &str) -> (String, String) {
    let trace = file(name, SMALL);
    let snapshot = trace.with_extension("pickle");
    let (trace, snapshot) = (
        trace.to_str().unwrap().to_owned(),
        snapshot.to_str().unwrap().to_owned(),
    );
    let replay = ["replay", &trace, "--driver", "sim", "--snapshot", &snapshot];
    expect(&trtalloc(&replay), 0);
    (trace, snapshot)
}

#[test]
fn output_that_cannot_be_written_fails() {
    let (trace, snapshot) = trace_and_snapshot("unwritten.csv");
    let cases: [&[&str]; 9] = [
        &["report", &snapshot],
        &["compare", &snapshot, &snapshot],
        &["replay", &trace, "--driver", "sim"],
        &["trace", "serving"],
        &["ctl"],
        &["doctor", "true"],
        &["--version"],
        &["help", "trace"],
        &["run", "--help"],
    ];
    for arguments in cases {
        let output = command(arguments).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = stderr(&output);
        let line = said.lines().last().unwrap_or_default();
        assert!(
            line.starts_with("trtalloc: io: stdout: No space left"),
            "{arguments:?}: {said}"
        );
        // As with `>&-` in a shell.
        let mut closed = command(arguments);
        let close = || {
            // SAFETY: allowed between fork and exec.
            unsafe { libc::close(libc::STDOUT_FILENO) };
            Ok(())
        };
        // SAFETY: the closure makes a system call only.
        let output = unsafe { closed.pre_exec(close) }.output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(
            said.ends_with("trtalloc: io: stdout: it is closed\n"),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let (_, snapshot) = trace_and_snapshot("closed.csv");
    let cases: [&[&str]; 2] = [&["report", &snapshot], &["trace", "serving"]];
    for arguments in cases {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(arguments).stdout(writer).output().unwrap();
        expect(&output, 0);
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
}

/// Tags and functions are what a program called them. A snapshot may come from anywhere.
#[test]
fn names_of_a_snapshot_do_not_control_the_terminal() {
    let block = r#"{"size":2097152,"state":"active_allocated","tag":"a\u001b[2J\nb","stack":1}"#;
    let text = format!(
        r#"{{"segments":[{{"address":4096,"total_size":2097152,"blocks":[{block}]}}],"stacks":[[],[0]],
        "frames":[{{"name":"f\u001b]0;x\u0007","filename":"g\r\u009b.c","line":3}}],
        "trtalloc":{{"version":"1\u001b[1m","history":"all\n"}}}}"#
    );
    let (old, new) = (file("plain.json", r#"{"segments":[]}"#), file("hostile.json", &text));
    let (old, new) = (old.to_str().unwrap(), new.to_str().unwrap());
    let shown = |arguments: &[&str]| {
        let output = trtalloc(arguments);
        expect(&output, 0);
        let text = stdout(&output);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(
            text.contains(r"a\u{1b}[2J\nb  ") && text.contains(r"f\u{1b}]0;x\u{7} g\r\u{9b}.c:3"),
            "{text}"
        );
        text
    };
    assert!(shown(&["report", new]).contains(r"trtalloc 1\u{1b}[1m, history=all\n"));
    shown(&["compare", old, new]);
}

#[test]
fn an_error_that_cannot_be_written_leaves_the_status() {
    let (_, snapshot) = trace_and_snapshot("silent.csv");
    let cases: [(&[&str], i32); 4] = [
        (&["demo", "--limit", "abc"], 2),
        (&["replay", "/nonexistent"], 1),
        (&["dance"], 2),
        (&["trace", &snapshot], 0),
    ];
    for (arguments, status) in cases {
        let output = command(arguments).stderr(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
    }
}

#[test]
fn a_trace_is_written_as_a_whole() {
    let folder = common::scratch("command-whole-trace");
    let path = folder.join("trace.csv");
    std::fs::write(&path, "what was there").unwrap();
    let name = path.to_str().unwrap();
    // Of the trace's 1.1 MB, the shell allows 512 KB.
    let limited = format!("ulimit -f 512; exec \"$0\" trace serving -o '{name}'");
    let output = Command::new("bash")
        .args(["-c", &limited, env!("CARGO_BIN_EXE_trtalloc")])
        .output()
        .unwrap();
    expect(&output, 1);
    assert!(stderr(&output).contains("File too large"), "{}", stderr(&output));
    assert!(
        std::fs::read_to_string(&path).unwrap() == "what was there",
        "it was changed"
    );
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "a part of it is left");
    // A file that is none on a disk is written to.
    let output = command(&["trace", "serving", "-o", "/dev/stdout"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    expect(&output, 0);
    assert!(stdout(&output).starts_with("op,id,bytes,stream\n"));
    let output = trtalloc(&["trace", "serving", "-o", "/dev/full"]);
    expect(&output, 1);
    assert_eq!(
        stderr(&output),
        "trtalloc: io: /dev/full: No space left on device (os error 28)\n"
    );
}
