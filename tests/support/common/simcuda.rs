//! Where the simulated driver libraries are: folders to put into a child process's `LD_LIBRARY_PATH`. Each test file uses a
//! part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh folder with the example `simcuda` in it as `libcuda.so.1`.
pub fn directory() -> Option<PathBuf> {
    folder("simcuda", &["libcuda.so.1"])
}

/// A fresh folder with the example `simascend` in it as AscendCL's libraries: one library under all of their names.
#[allow(dead_code)]
pub fn ascend() -> Option<PathBuf> {
    folder("simascend", &["libascendcl.so", "libacl_dvpp.so", "libacl_dvpp_mpi.so"])
}

/// A fresh folder under the target directory with an example of that name in it, as the first of `names`; the others are
/// links to it. The example is built where cargo runs the test, once for this process, so that it is never an old one. None where
/// there is neither cargo nor an example.
fn folder(example: &str, names: &[&str]) -> Option<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    static BUILT: Mutex<BTreeMap<String, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    let built = {
        let mut all = BUILT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.entry(example.to_owned())
            .or_insert_with(|| built(example))
            .clone()?
    };
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    remove_old(parent);
    let name = format!(
        "{example}-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, Ordering::Relaxed)
    );
    let folder = parent.join(name);
    // An earlier run may have had this process's number.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).ok()?;
    let (first, others) = names.split_first()?;
    // A later build puts another file in the place of the built one.
    std::fs::hard_link(&built, folder.join(first))
        .or_else(|_| std::fs::copy(&built, folder.join(first)).map(drop))
        .ok()?;
    for other in others {
        std::os::unix::fs::symlink(first, folder.join(other)).ok()?;
    }
    Some(folder)
}

/// The example of this test's profile.
fn built(example: &str) -> Option<PathBuf> {
    // target/PROFILE/deps/THIS_TEST
    let profile = env::current_exe().ok()?.parent()?.parent()?.to_path_buf();
    if let Some(cargo) = env::var_os("CARGO") {
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
        // For another machine, cargo builds in a folder of its name.
        let machine = env::var_os("CARGO_BUILD_TARGET");
        let target = match machine.is_some_and(|machine| built.file_name() == Some(&machine)) {
            true => built.parent()?,
            false => built,
        };
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--example", example, "--manifest-path"]);
        build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        build.arg("--target-dir").arg(target);
        // The folder of the profile `dev` is called debug.
        let name = profile.file_name()?.to_str()?;
        build.args(["--profile", if name == "debug" { "dev" } else { name }]);
        if !build.status().ok()?.success() {
            return None;
        }
        let file = built.join(name).join(format!("examples/lib{example}.so"));
        return file.exists().then_some(file);
    }
    let file = profile.join(format!("examples/lib{example}.so"));
    file.exists().then_some(file)
}

/// Removes folders whose process has ended.
fn remove_old(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = ["simcuda-", "simascend-"]
            .iter()
            .find_map(|prefix| name.to_str()?.strip_prefix(prefix)?.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
