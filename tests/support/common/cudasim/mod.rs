//! The second simulated driver, for tests that run over it in child processes: where it is, its functions for tests, and its
//! clock. Each test file uses a part of it.

pub mod clock;
pub mod functions;

use std::path::PathBuf;
use std::process::Command;

/// The folder that has cudasim's libcuda.so.1, `old`: of a driver before CUDA 12. `TRTALLOC_TEST_CUDASIM` names the folder, as
/// its `build` made it; .ci/run sets it where the driver's source lies beside the checkout. It is no part of this project, so
/// .ci/run does not require it (`TRTALLOC_TEST_REQUIRE=all,-cudasim`) where the source is not there.
pub fn folder(old: bool) -> PathBuf {
    let folder = std::env::var_os("TRTALLOC_TEST_CUDASIM").filter(|folder| !folder.is_empty());
    let Some(folder) = folder else {
        super::skip("cudasim", "TRTALLOC_TEST_CUDASIM names no folder that has it");
    };
    let folder = PathBuf::from(folder);
    let folder = if old { folder.join("old") } else { folder };
    let folder = folder.canonicalize().unwrap_or(folder);
    assert!(
        folder.join("libcuda.so.1").exists(),
        "TRTALLOC_TEST_CUDASIM: no libcuda.so.1 in {}",
        folder.display()
    );
    folder
}

/// Whether `folder` is known.
pub fn is_there() -> bool {
    std::env::var_os("TRTALLOC_TEST_CUDASIM").is_some_and(|folder| !folder.is_empty())
}

/// A child process finds the driver of that version, with that many devices and bytes of memory.
pub fn environment(command: &mut Command, version: u32, devices: u32, memory: u64) {
    command
        .env("LD_LIBRARY_PATH", folder(version < 12_000))
        .env("CUDASIM_VERSION", version.to_string())
        .env("CUDASIM_DEVICES", devices.to_string())
        .env("CUDASIM_MEM", memory.to_string());
}
