//! A snapshot that `trtalloc ctl` takes of a server while it runs.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::Viewer;
use crate::common;

/// Ends the server.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn snapshot_of_a_live_server() {
    let mut viewer = Viewer::start("controlled");
    let dir = common::scratch("controlled");
    let program = dir.join("server");
    let mut compile = common::cc();
    compile.arg("-D_GNU_SOURCE").arg("-Wno-pedantic");
    compile.arg(common::root().join("tests/support/c/server.c"));
    compile.arg("-o").arg(&program);
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    let mut command = Command::new(&program);
    command.envs([
        ("TRTALLOC_DRIVER", "sim"),
        ("TRTALLOC_CONTROL", "1"),
        ("TRTALLOC_HISTORY", "all"),
        ("TRTALLOC_STACKS", "native"),
    ]);
    let mut server = Ends(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut ready = String::new();
    let mut said = BufReader::new(server.0.stdout.take().unwrap());
    said.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let file = dir.join("controlled.pickle");
    let mut ctl = Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    ctl.args(["ctl", &server.0.id().to_string(), "snapshot"]).arg(&file);
    common::run(&mut ctl);
    viewer.open(&file);
    assert_eq!(viewer.devices(), [0]);
    viewer.show("Active Memory Timeline", 0);
    let (elements, _) = viewer.plotted(0, false);
    // Two models, and eight blocks that were freed.
    assert_eq!(elements, 10);
    let text = viewer.hovered("polygon", "one => one.size === 418 << 20");
    assert!(text.contains("(438304768 bytes) allocation"), "{text}");
    assert!(text.contains("server.c") || text.contains("main"), "{text}");
    viewer.show("Allocator State History", 0);
    assert!(viewer.events(0) >= 10);
    viewer.picture("history", 0);
}
