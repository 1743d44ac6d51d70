//! Where the simulated `libcuda.so.1` is: a folder to put into a child process's `LD_LIBRARY_PATH`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh folder under the target directory with the example `simcuda` in it as `libcuda.so.1`. The example is built
/// where cargo runs the test, so that it is never an old one. None where there is neither cargo nor an example.
pub fn directory() -> Option<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let built = built()?;
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    remove_old(parent);
    let name = format!(
        "simcuda-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, Ordering::Relaxed)
    );
    let folder = parent.join(name);
    std::fs::create_dir_all(&folder).ok()?;
    std::fs::copy(built, folder.join("libcuda.so.1")).ok()?;
    Some(folder)
}

/// The example of this test's profile.
fn built() -> Option<PathBuf> {
    // target/PROFILE/deps/THIS_TEST
    let profile = env::current_exe().ok()?.parent()?.parent()?.to_path_buf();
    if let Some(cargo) = env::var_os("CARGO") {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--example", "simcuda", "--manifest-path"]);
        build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        build.arg("--target-dir").arg(target);
        // The folder of the profile `dev` is called debug.
        let name = profile.file_name()?.to_str()?;
        build.args(["--profile", if name == "debug" { "dev" } else { name }]);
        if !build.status().ok()?.success() {
            return None;
        }
        let file = target.join(name).join("examples/libsimcuda.so");
        return file.exists().then_some(file);
    }
    let file = profile.join("examples/libsimcuda.so");
    file.exists().then_some(file)
}

/// Removes folders whose process has ended.
fn remove_old(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix("simcuda-")?.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
