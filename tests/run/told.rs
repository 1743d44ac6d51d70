//! What the last line says of processes that came to their ends in different ways.

use crate::{common, expect, last, program, trtalloc_run};
use std::os::unix::process::ExitStatusExt;

#[test]
fn the_last_line_has_the_figures_however_the_program_ends() {
    let dir = common::scratch("run_told");
    let uses = program("uses.c", &dir);
    let uses = uses.to_str().unwrap();
    let told = |how: &[&str]| {
        let mut command = trtalloc_run(&["--driver", "sim", "--"]);
        command.args(how).output().unwrap()
    };

    let output = told(&[uses, "nothing"]);
    expect(&output, 0);
    assert_eq!(last(&output), "no TensorRT was met");

    let output = told(&[uses, "exit"]);
    expect(&output, 5);
    assert_eq!(
        last(&output),
        "no TensorRT was met; peak 8.0 MiB in use, 8.0 MiB reserved; 1 allocations, 0 refused"
    );
    // `exit` in a signal's handler is an exit.
    let output = told(&[uses, "signal"]);
    expect(&output, 6);
    assert!(last(&output).ends_with("1 allocations, 0 refused"), "{}", last(&output));

    let cut = "1 allocations, 0 refused; one process did not exit by itself, so its figures are of shortly before";
    let output = told(&[uses, "_exit"]);
    expect(&output, 4);
    assert!(last(&output).ends_with(cut), "{}", last(&output));
    let output = told(&[uses, "kill"]);
    assert_eq!(output.status.signal(), Some(libc::SIGKILL));
    assert!(last(&output).contains("peak 8.0 MiB in use"), "{}", last(&output));
    assert!(last(&output).ends_with(cut), "{}", last(&output));

    // A process that becomes another program has told what it has told.
    let output = told(&[uses, "exec"]);
    expect(&output, 5);
    assert!(
        last(&output).contains("peak of one process 8.0 MiB in use"),
        "{}",
        last(&output)
    );
    // A child without exec is no process of its own here.
    let output = told(&[uses, "fork"]);
    expect(&output, 0);
    assert!(last(&output).contains("peak 16.0 MiB in use"), "{}", last(&output));
    assert!(
        last(&output).contains("; 2 allocations, 0 refused"),
        "{}",
        last(&output)
    );
    // One that begins to use it by itself is.
    let output = told(&[uses, "worker"]);
    expect(&output, 0);
    assert!(
        last(&output).ends_with("peak 4.0 MiB in use, 4.0 MiB reserved; 1 allocations, 0 refused"),
        "{}",
        last(&output)
    );
    // Grandchildren are.
    let script = format!("{uses} exit; {uses} exit; exit 2");
    let output = told(&["sh", "-c", &script]);
    expect(&output, 2);
    assert!(
        last(&output).ends_with("; 2 allocations, 0 refused"),
        "{}",
        last(&output)
    );
}
