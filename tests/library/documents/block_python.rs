//! The documents' Python: compiled, each name of the package's looked up in it, and run over the simulated device.

use std::process::Command;

use super::blocks;
use crate::common;

/// Compiles what is on stdin, and looks each `trtalloc.name` in it up in the package.
const LOOK_UP: &str = "
import ast, sys, trtalloc
tree = ast.parse(sys.stdin.read())
for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == 'trtalloc':
        if not hasattr(trtalloc, node.attr):
            raise SystemExit(f'line {node.lineno}: trtalloc has no {node.attr}')
";

fn python() -> Command {
    let mut python = Command::new("python3");
    python
        .env("PYTHONPATH", common::root().join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TRTALLOC_LIBRARY", common::library_dir().join("libtrtalloc.so"))
        .env("TRTALLOC_DRIVER", "sim");
    python
}

#[test]
fn python_names_what_there_is_and_runs() {
    let blocks = blocks::of("python");
    assert!(blocks.len() >= 5);
    let mut run = 0;
    for block in blocks {
        let file = block.scratch().join("block.py");
        std::fs::write(&file, &block.body).unwrap();
        let input = std::fs::File::open(&file).unwrap();
        common::run(python().args(["-c", LOOK_UP]).stdin(input));
        if block.not_run.is_none() {
            common::run(python().arg(&file));
            run += 1;
        }
    }
    assert!(run >= 1);
}
