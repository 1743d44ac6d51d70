//! Tests of the simulated device against CUDA's rules, one by one.

mod addresses;
mod capture;
mod checker;
mod driver;
mod mapping;
mod memory;
mod objects;
mod oracle;
mod streams;
mod threads;

use std::process::{Command, Output};
use std::sync::Arc;

use trtalloc::driver::sim::{Machine, SimConfig};

pub const MIB: u64 = 1 << 20;

/// A machine whose primary context of device 0 is current to this thread.
pub fn machine() -> Arc<Machine> {
    machine_with(SimConfig::default())
}

pub fn machine_with(config: SimConfig) -> Arc<Machine> {
    let machine = Machine::new(config);
    let context = machine.primary_retain(0).unwrap();
    machine.context_push(context).unwrap();
    machine
}

/// Maps `size` bytes of new device memory with access. Returns (address, handle).
pub fn mapped(machine: &Machine, size: u64) -> (u64, u64) {
    let address = machine.memory_reserve(size, 0).unwrap();
    let handle = machine.memory_create(0, size).unwrap();
    machine.memory_map(address, size, 0, handle).unwrap();
    machine.memory_set_access(address, size, &[0], true).unwrap();
    (address, handle)
}

/// Runs one test of this folder again, alone and with `TRTALLOC_TEST_ROLE` set.
pub fn child(test: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([&format!("sim::{test}"), "--exact", "--nocapture", "--test-threads=1"])
        .env("TRTALLOC_TEST_ROLE", "1")
        .output()
        .unwrap()
}

/// Whether this process is such a child.
pub fn in_child() -> bool {
    std::env::var_os("TRTALLOC_TEST_ROLE").is_some()
}

/// Runs `test` in a child, which must abort with `message` on stderr.
pub fn aborts(test: &str, message: &str) {
    use std::os::unix::process::ExitStatusExt;
    let output = child(test);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(6), "{test}: {stderr}");
    assert!(stderr.contains(message), "{test}: {stderr}");
}
