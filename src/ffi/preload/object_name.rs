//! Names of the objects that injection attaches to. It sees only that an object is created, so a name is that of the
//! library that called TensorRT, and a number.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::ObjectType;
use super::dynamic_linker::LoadedObject;
use crate::support::config::Config;
use crate::support::config::history::RecordingMode;

/// The maximum number of objects that get a name of their own.
const MAX_NAMES: u32 = 64;

/// The name of all further objects.
const OTHER: &str = "other";

/// Whether the options ask for anything that shows names. A process that does not ask does not pay for them.
pub fn are_wanted(config: &Config) -> bool {
    let records = config.history().is_ok_and(|options| options.mode != RecordingMode::Off);
    let snapshot = |key| config.snapshot_path(key).is_some();
    config.stats || records || snapshot("snapshot_at_exit") || snapshot("snapshot_on_oom")
}

/// The name of the next object: the file name of the library, or of the program, that `caller` lies in, and a number that
/// no other object of the process has.
pub fn next(kind: ObjectType, caller: usize) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < MAX_NAMES).then_some(count + 1)
        })
        .map(|count| count + 1);
    let Ok(number) = number else {
        return OTHER.to_owned();
    };
    let library = LoadedObject::of(caller)
        .map(|object| object.path().to_owned())
        .filter(|path| path.as_os_str() != "");
    let path = library.or_else(program).unwrap_or_default();
    name(&path, number, kind)
}

fn program() -> Option<PathBuf> {
    std::fs::read_link("/proc/self/exe").ok()
}

fn name(path: &Path, number: u32, kind: ObjectType) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let builder = match kind {
        ObjectType::Runtime => "",
        ObjectType::Builder => " (builder)",
    };
    format!("{file}#{number}{builder}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_the_callers_file_and_a_number() {
        let path = Path::new("/opt/lib/libserver.so");
        assert_eq!(name(path, 1, ObjectType::Runtime), "libserver.so#1");
        assert_eq!(name(path, 2, ObjectType::Builder), "libserver.so#2 (builder)");
        // One test, because the number is the process's.
        let here = name_has_the_callers_file_and_a_number as fn() as usize;
        let program = std::env::current_exe().unwrap();
        let file = program.file_name().unwrap().to_string_lossy().into_owned();
        for number in 1..=MAX_NAMES {
            assert_eq!(next(ObjectType::Runtime, here), format!("{file}#{number}"));
        }
        assert_eq!(next(ObjectType::Runtime, here), OTHER);
        assert_eq!(next(ObjectType::Builder, 0), OTHER);
    }

    #[test]
    fn names_are_given_where_something_shows_them() {
        let asks = |options| are_wanted(&Config::parse(options).unwrap());
        assert!(!asks("") && !asks("limit=1GiB,log=info,history=off"));
        for options in [
            "stats=1",
            "history=all",
            "history=state",
            "snapshot_at_exit=/a.html",
            "snapshot_on_oom=/a.json",
        ] {
            assert!(asks(options), "{options}");
        }
    }
}
