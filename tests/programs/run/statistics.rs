//! The figures in the last line for processes that end in different ways.

use crate::common;
use crate::run::{expect, last, program, trtalloc_run};
use std::os::unix::process::ExitStatusExt;

#[test]
fn last_line_has_the_figures_for_every_kind_of_end() {
    let dir = common::scratch("run_statistics");
    let uses = program("uses.c", &dir);
    let uses = uses.to_str().unwrap();
    let last = |output: &_| {
        // None of these uses TensorRT.
        last(output).strip_suffix(crate::run::NOT_CAUGHT).unwrap().to_owned()
    };
    let run = |how: &[&str]| {
        let mut command = trtalloc_run(&["--driver", "sim", "--"]);
        command.args(how).output().unwrap()
    };

    let output = run(&[uses, "nothing"]);
    expect(&output, 0);
    assert_eq!(last(&output), "no TensorRT was seen");

    let output = run(&[uses, "exit"]);
    expect(&output, 5);
    assert_eq!(
        last(&output),
        "no TensorRT was seen; peak 8.0 MiB in use, 8.0 MiB reserved; 1 allocations, 0 refused"
    );
    // `exit` in a signal handler is an exit.
    let output = run(&[uses, "signal"]);
    expect(&output, 6);
    assert!(last(&output).ends_with("1 allocations, 0 refused"), "{}", last(&output));

    let cut = "1 allocations, 0 refused; one process did not exit by itself, so its figures are of shortly before";
    let output = run(&[uses, "_exit"]);
    expect(&output, 4);
    assert!(last(&output).ends_with(cut), "{}", last(&output));
    let output = run(&[uses, "kill"]);
    assert_eq!(output.status.signal(), Some(libc::SIGKILL));
    assert!(last(&output).contains("peak 8.0 MiB in use"), "{}", last(&output));
    assert!(last(&output).ends_with(cut), "{}", last(&output));

    // A process that executes another program has already reported its figures.
    let output = run(&[uses, "exec"]);
    expect(&output, 5);
    assert!(
        last(&output).contains("peak of one process 8.0 MiB in use"),
        "{}",
        last(&output)
    );
    // A forked child without exec does not count as a process of its own.
    let output = run(&[uses, "fork"]);
    expect(&output, 0);
    assert!(last(&output).contains("peak 16.0 MiB in use"), "{}", last(&output));
    assert!(
        last(&output).contains("; 2 allocations, 0 refused"),
        "{}",
        last(&output)
    );
    // A child that is the first to use the library counts.
    let output = run(&[uses, "worker"]);
    expect(&output, 0);
    assert!(
        last(&output).ends_with("peak 4.0 MiB in use, 4.0 MiB reserved; 1 allocations, 0 refused"),
        "{}",
        last(&output)
    );
    // Grandchildren count.
    let script = format!("{uses} exit; {uses} exit; exit 2");
    let output = run(&["sh", "-c", &script]);
    expect(&output, 2);
    assert!(
        last(&output).ends_with("; 2 allocations, 0 refused"),
        "{}",
        last(&output)
    );
}

/// A process that may start no thread, as with a small `ulimit -u`, writes its figures as it exits.
#[test]
fn last_line_has_the_figures_of_a_process_without_threads() {
    let dir = common::scratch("run_threadless");
    let uses = program("uses.c", &dir);
    let (source, library) = (dir.join("threadless.c"), dir.join("threadless.so"));
    let text = "#include <errno.h>\nint pthread_create(void *thread, void *how, void *(*start)(void *), void *with);\n\
                int pthread_create(void *thread, void *how, void *(*start)(void *), void *with) {\n  \
                (void)thread, (void)how, (void)start, (void)with;\n  return EAGAIN;\n}\n";
    std::fs::write(&source, text).unwrap();
    let mut compile = common::cc();
    compile.args(["-shared", "-fPIC"]).arg(&source).arg("-o").arg(&library);
    common::run(&mut compile);
    for (how, status) in [("exit", 5), ("signal", 6)] {
        let mut command = trtalloc_run(&["--driver", "sim", "--"]);
        command.arg(&uses).arg(how).env("LD_PRELOAD", &library);
        let output = command.output().unwrap();
        expect(&output, status);
        let wanted = "no TensorRT was seen; peak 8.0 MiB in use, 8.0 MiB reserved; 1 allocations, 0 refused";
        assert_eq!(last(&output).strip_suffix(crate::run::NOT_CAUGHT), Some(wanted));
    }
}

#[test]
fn a_snapshot_that_a_signal_prevented_is_reported() {
    let dir = common::scratch("run_no_snapshot");
    let uses = program("uses.c", &dir);
    let said = |options: &[&str], how: &str| {
        let mut command = trtalloc_run(&["--driver", "sim"]);
        command.args(options).arg("--").arg(&uses).arg(how).current_dir(&dir);
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let line = "trtalloc run: a signal ended the program, so it wrote no snapshot; `trtalloc ctl PID snapshot FILE` writes one \
                while it runs\n";
    assert!(said(&["--snapshot", "left.pickle"], "kill").contains(line));
    assert!(!dir.join("left.pickle").exists());
    assert!(!said(&[], "kill").contains(line));
    assert!(!said(&["--snapshot", "left.pickle"], "exit").contains(line));
    assert!(dir.join("left.pickle").exists());
}
