//! The folders of a Python interpreter's packages, as files show them. The interpreter would say it exactly, but it runs what its
//! packages name for its start.

use std::path::{Path, PathBuf};

use super::libraries::entries;

/// The folders in which the interpreter would search for packages: those of `PYTHONPATH`, of its virtual environment, of its
/// installation and of the user.
pub fn folders(interpreter: &Path) -> Vec<PathBuf> {
    let variable = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let mut folders: Vec<_> = std::env::split_paths(&variable)
        .filter(|folder| !folder.as_os_str().is_empty())
        .collect();
    let version = version(interpreter);
    for prefix in prefixes(interpreter) {
        for lib in [prefix.join("lib"), prefix.join("lib64")] {
            let pythons = entries(&lib).into_iter().filter(|path| is_of(path, version.as_deref()));
            folders.extend(pythons.flat_map(|path| [path.join("site-packages"), path.join("dist-packages")]));
        }
    }
    folders.retain(|folder| folder.is_dir());
    // A folder may have two names, as where lib64 is a link to lib.
    let mut seen = std::collections::BTreeSet::new();
    folders.retain(|folder| seen.insert(folder.canonicalize().unwrap_or_else(|_| folder.clone())));
    folders
}

/// The version in the name of the interpreter's file, as in `python3.11`.
fn version(interpreter: &Path) -> Option<String> {
    let file = interpreter.canonicalize().ok()?;
    let version = file.file_name()?.to_str()?.strip_prefix("python")?.to_owned();
    version.contains('.').then_some(version)
}

/// Whether a folder of `lib` is that version's. Debian has `python3` for all versions.
fn is_of(folder: &Path, version: Option<&str>) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("python")
        .is_some_and(|of| of == "3" || version.map_or(of.starts_with('3'), |version| of == version))
}

/// The folders that have a `lib` for the interpreter.
fn prefixes(interpreter: &Path) -> Vec<PathBuf> {
    // Without following the interpreter's own link: a virtual environment has one.
    let named = std::path::absolute(interpreter).unwrap_or_else(|_| interpreter.into());
    let mut prefixes: Vec<PathBuf> = named.ancestors().nth(2).map(Path::to_owned).into_iter().collect();
    let environment = prefixes
        .first()
        .and_then(|prefix| std::fs::read_to_string(prefix.join("pyvenv.cfg")).ok());
    if environment.is_some_and(|text| !includes_system(&text)) {
        return prefixes;
    }
    let installed = interpreter.canonicalize().unwrap_or(named);
    prefixes.extend(installed.ancestors().nth(2).map(Path::to_owned));
    if installed.starts_with("/usr/bin") {
        prefixes.push("/usr/local".into());
    }
    prefixes.extend(std::env::var_os("HOME").map(|home| Path::new(&home).join(".local")));
    prefixes
}

/// Whether a virtual environment has its interpreter's packages too, according to its `pyvenv.cfg`.
fn includes_system(text: &str) -> bool {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .any(|(key, value)| key.trim() == "include-system-site-packages" && value.trim().eq_ignore_ascii_case("true"))
}
