//! PyTorch's own comparison of two snapshots.

use std::process::Command;

use crate::common;
use crate::program::Program;
use crate::viewer::viewers;

#[inline(never)]
fn a_model_that_came_later(program: &Program) -> Vec<u64> {
    (1..6).map(|of| program.get(of << 22, None)).collect()
}

/// `compare` of PyTorch's `_memory_viz.py`, as a function and as a command.
#[test]
fn pytorchs_comparison_takes_two_snapshots() {
    let viewers = match viewers() {
        Ok(viewers) => viewers,
        Err(reason) => common::skip("torch", reason),
    };
    let dir = common::scratch("compared");
    for backing in ["", ",backing=malloc"] {
        let program = Program::new(&format!("history=all,stacks=native{backing}"));
        let paths = ["before.pickle", "after.pickle"].map(|name| dir.join(name));
        let weights = program.get(3 << 20, None);
        program.allocator.write_snapshot(&paths[0]).unwrap();
        let model = a_model_that_came_later(&program);
        program.give(weights, None);
        program.allocator.write_snapshot(&paths[1]).unwrap();
        let script = |name| common::root().join("tests/record").join(name);
        common::run(Command::new("python3").arg(script("torch.py")).arg(&dir));
        let mut command = Command::new("python3");
        command.arg(script("viewer_compare.py")).args(&paths);
        command.arg(dir.join("today-4.pickle")).arg(&dir).args(viewers);
        print!("{}", String::from_utf8(common::run(&mut command).stdout).unwrap());
        assert_eq!(model.len(), 5);
    }
}
