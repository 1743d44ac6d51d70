//! Finds the library, and the value of `LD_PRELOAD`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use trtalloc::error::{Error, Result};

use crate::command::program::Elf;

/// The library that `--library` names, or the one that belongs to this command: in its folder, or where libraries are
/// installed relative to it.
pub fn find(named: Option<&Path>) -> Result<PathBuf> {
    let library = match named {
        Some(path) if path.is_file() => path.to_owned(),
        Some(path) => return Err(Error::Io(format!("--library {}: no such file", path.display()))),
        None => find_installed()?,
    };
    let library =
        std::path::absolute(&library).map_err(|error| Error::Io(format!("{}: {error}", library.display())))?;
    // The loader splits the value at spaces and colons, and expands $ORIGIN and the like.
    if library.as_os_str().as_bytes().iter().any(|byte| b" :$".contains(byte)) {
        return Err(Error::Io(format!(
            "{}: LD_PRELOAD cannot name it, for its path has a space, a colon or a dollar sign; --library can name a link to it",
            library.display()
        )));
    }
    match Elf::read(&library).is_some_and(|elf| elf.is_native()) {
        true => Ok(library),
        // The loader would only warn and continue without it.
        false => Err(Error::Io(format!("{}: no library for this machine", library.display()))),
    }
}

fn find_installed() -> Result<PathBuf> {
    let command = std::env::current_exe().map_err(|error| Error::Io(format!("this command: {error}")))?;
    let folder = command.parent().unwrap_or(Path::new("/"));
    let soname = env!("TRTALLOC_SONAME");
    let machine = format!("../lib/{}-linux-gnu", std::env::consts::ARCH);
    // cargo builds into `deps`; the library in the command's folder may be from an earlier build.
    let folders = ["deps", ".", "../lib", "../lib64", &machine];
    let mut places = folders
        .iter()
        .flat_map(|relative| [soname, "libtrtalloc.so"].map(|name| folder.join(relative).join(name)));
    places
        .find(|path| path.is_file())
        // A path without `..`, for messages.
        .map(|path| path.canonicalize().unwrap_or(path))
        .ok_or_else(|| {
            Error::Io(format!(
                "no libtrtalloc.so in the folder of {} nor in ../lib, ../lib64 or {machine}; --library names it",
                command.display()
            ))
        })
}

/// Puts the library first in `before`. If it is there already, nothing changes. Other copies of it are removed.
pub fn preload(library: &Path, before: &OsStr) -> OsString {
    let items = before.as_bytes().split(|byte| b" :".contains(byte));
    let items: Vec<&Path> = items
        .filter(|item| !item.is_empty())
        .map(|item| Path::new(OsStr::from_bytes(item)))
        .collect();
    let real = library.canonicalize().ok();
    let is_it = |item: &&Path| real.is_some() && item.canonicalize().ok() == real;
    if items.iter().any(is_it) {
        return before.to_owned();
    }
    let copy = |item: &&Path| {
        let name = item.file_name().unwrap_or_default().as_bytes();
        name.starts_with(b"libtrtalloc.so")
    };
    let mut text = library.as_os_str().as_bytes().to_vec();
    for item in items.into_iter().filter(|item| !copy(item)) {
        text.push(b':');
        text.extend_from_slice(item.as_os_str().as_bytes());
    }
    OsString::from_vec(text)
}

/// Whether AddressSanitizer's runtime, of GCC or of clang, is among the preloaded libraries.
pub fn has_asan(preload: &OsStr) -> bool {
    preload.as_bytes().split(|byte| b" :".contains(byte)).any(|item| {
        let name = Path::new(OsStr::from_bytes(item)).file_name().unwrap_or_default();
        [&b"libasan.so"[..], b"libclang_rt.asan"]
            .iter()
            .any(|known| name.as_bytes().starts_with(known))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloaded_libraries_stay_and_the_library_occurs_once() {
        let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let name = library.to_str().unwrap();
        let line = |before: &str| preload(&library, OsStr::new(before)).into_string().unwrap();
        assert_eq!(line(""), name);
        assert_eq!(line("/a/liba.so"), format!("{name}:/a/liba.so"));
        assert_eq!(line("/a/liba.so libb.so"), format!("{name}:/a/liba.so:libb.so"));
        // The library itself under another path.
        let other = format!("liba.so:{}/src/../Cargo.toml", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(line(&other), other);
        // Another copy.
        assert_eq!(line("/old/libtrtalloc.so.0:liba.so"), format!("{name}:liba.so"));
    }
}
