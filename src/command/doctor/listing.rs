//! The libraries that a program's loader would load at its start. Nothing that the program's file names is run: only a loader of
//! the system, which lists them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::findings::Findings;
use crate::command::program::{Elf, Program};

/// What the loader would load.
pub struct Listed {
    /// The program and its libraries.
    pub files: Vec<PathBuf>,
    /// Whether `files` has all of them.
    pub is_whole: bool,
    /// Whether nothing that the program needs is missing, as far as that is known.
    pub can_start: bool,
}

/// Lists the libraries of the program, and reports what it lacks.
pub fn at_start(program: &Program, loader: &Path, findings: &mut Findings) -> Listed {
    let mut listed = Listed {
        files: vec![program.runs.clone()],
        is_whole: false,
        can_start: false,
    };
    let mut unknown = |why: &str| {
        findings.found("libraries", &format!("unknown: {why}"));
        findings.advice("`trtalloc run` reports at the end whether a call was caught.");
    };
    if !is_of_system(loader) {
        unknown(&format!(
            "its loader, {}, is not the system's and is not run",
            loader.display()
        ));
        return listed;
    }
    if program.elf.as_ref().is_some_and(Elf::names_auditors) {
        unknown("it names libraries for auditing, whose code the loader runs");
        return listed;
    }
    let output = match list(loader, &program.runs) {
        Ok(output) => output,
        Err(error) => {
            unknown(&format!("{}: {error}", loader.display()));
            return listed;
        }
    };
    let (list, said) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    listed.is_whole = output.status.success();
    listed.can_start = listed.is_whole;
    for line in list.lines().map(str::trim) {
        // A library that the program names by its path is listed without an arrow.
        let place = line.split_once(" => ").map_or(line, |(_, place)| place);
        if let Some((place, _)) = place.rsplit_once(" (") {
            listed.files.push(place.into());
        }
    }
    if !listed.is_whole {
        stopped(&said, findings);
    }
    for (library, version, needed_by) in said.lines().filter_map(missing_version) {
        let what = Path::new(library).file_name().unwrap_or_default().to_string_lossy();
        findings.found(
            &what,
            &format!("no: it has no version {version}, which {needed_by} needs, so the program cannot start"),
        );
        findings.advice(&format!(
            "{library} is too old. A newer one's folder belongs into LD_LIBRARY_PATH, before that one's."
        ));
        listed.can_start = false;
    }
    listed
}

/// Whether it is a loader of the system: `/lib*/ld-linux-*`, which belongs to root.
fn is_of_system(loader: &Path) -> bool {
    let text = loader.to_string_lossy();
    let Some((folder, name)) = text.strip_prefix('/').and_then(|rest| rest.split_once('/')) else {
        return false;
    };
    let named = folder.starts_with("lib") && name.starts_with("ld-linux") && !name.contains('/');
    named && loader.metadata().is_ok_and(|file| file.is_file() && file.uid() == 0)
}

/// Lets the loader list the libraries. A loader that does not know the option starts nothing.
fn list(loader: &Path, program: &Path) -> std::io::Result<Output> {
    let mut command = Command::new(loader);
    command.arg("--list").arg(program).stdin(Stdio::null()).output()
}

/// Reports why the loader lists nothing: it ends at the first library that it does not find.
fn stopped(said: &str, findings: &mut Findings) {
    let line = said
        .lines()
        .find_map(|line| line.split_once(LOADING))
        .map(|(_, line)| line);
    match line.and_then(|line| line.split_once(": ")) {
        Some((name, why)) if why.starts_with("cannot open shared object file") => {
            findings.found(name, "no: it is not found, so the program cannot start");
            findings.advice("Its folder belongs into LD_LIBRARY_PATH, or into /etc/ld.so.conf.d.");
        }
        _ => {
            let why = line.unwrap_or("its loader lists none");
            findings.found("libraries", &format!("no: {why}, so the program cannot start"));
            findings.advice("Is that file whole, and for this machine?");
        }
    }
}

/// In the loader's line about what it cannot load, before it.
const LOADING: &str = "error while loading shared libraries: ";

/// The library, the version and the file that needs it, in the loader's line about a version that a library lacks.
fn missing_version(line: &str) -> Option<(&str, &str, &str)> {
    let (library, rest) = line.rsplit_once(": version `")?;
    let (version, needed_by) = rest.split_once("' not found (required by ")?;
    let library = library.rsplit_once(": ").map_or(library, |(_, library)| library);
    Some((library, version, needed_by.strip_suffix(')')?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaders_of_the_system() {
        for (loader, is_its_own) in [
            ("/lib64/ld-linux-x86-64.so.2", cfg!(target_arch = "x86_64")),
            ("/lib/ld-linux-aarch64.so.1", cfg!(target_arch = "aarch64")),
            ("/lib64/../tmp/ld-linux-x86-64.so.2", false),
            ("lib64/ld-linux-x86-64.so.2", false),
            ("/tmp/lib64/ld-linux-x86-64.so.2", false),
            ("/lib64/sub/ld-linux-x86-64.so.2", false),
            ("/lib64/libc.so.6", false),
            ("/lib64/ld-linux-nowhere.so.9", false),
            ("", false),
        ] {
            assert_eq!(is_of_system(Path::new(loader)), is_its_own, "{loader}");
        }
    }
}
