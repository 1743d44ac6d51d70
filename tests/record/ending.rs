//! What a process leaves at its end, however it ends.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common;
use crate::viewer;

/// tests/record/ending.c, compiled once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = common::scratch("ending-program").join("ending");
        let mut compiler = common::cc();
        compiler.arg("-pthread");
        compiler.arg(common::root().join("tests/record/ending.c"));
        common::run(compiler.arg("-o").arg(&program).arg("-ldl"));
        program
    })
}

struct Ended {
    output: Output,
    /// The folder that it wrote to.
    folder: PathBuf,
}

impl Ended {
    /// Runs the program to its end in `way`; `file` is what it is to leave.
    fn by(way: &str, file: &str, preload: bool) -> Ended {
        let folder = common::scratch(&format!("ending-{way}-{preload}"));
        let library = common::library_dir().join("libtrtalloc.so");
        let mut command = Command::new(program());
        for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TRTALLOC_")) {
            command.env_remove(key);
        }
        command.arg(way).arg(&library).current_dir(&folder);
        command.envs([
            ("TRTALLOC_DRIVER", "sim"),
            ("TRTALLOC_HISTORY", "all"),
            ("TRTALLOC_STATS", "1"),
        ]);
        command.env("TRTALLOC_SNAPSHOT_AT_EXIT", folder.join(file));
        command.env("SNAPSHOT_HERE", folder.join("here.pickle"));
        if preload {
            command.env("LD_PRELOAD", &library);
        }
        if way == "full" {
            std::fs::write(folder.join("here.pickle"), "what was there before").unwrap();
        }
        Ended {
            output: finished(&mut command),
            folder,
        }
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The names of all it left.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// Runs to the end, and fails where there is none.
fn finished(command: &mut Command) -> Output {
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("{command:?} did not end: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// The program's own five blocks are what is left.
fn whole(file: &Path) {
    let seen = viewer::open(file);
    assert_eq!(seen.number("active_allocated"), 5, "{seen}");
    assert_eq!((seen.number("alloc"), seen.number("free_requested")), (6, 1), "{seen}");
    assert_eq!((seen.number("dropped"), seen.number("left_out")), (0, 0), "{seen}");
}

#[test]
fn snapshots_are_left_at_exit_and_close() {
    for preload in [false, true] {
        for (way, code) in [
            ("return", 0),
            ("sigterm", 3),
            ("dlclose", 0),
            ("fork", 0),
            ("silent", 0),
        ] {
            let ended = Ended::by(way, "left-%p.pickle", preload);
            let stderr = ended.stderr();
            assert_eq!(ended.output.status.code(), Some(code), "{way}: {stderr}");
            assert!(ended.output.stdout.is_empty(), "{way}");
            let files = ended.files();
            // A child of a fork says nothing, and leaves nothing under its own number.
            let [file] = files.as_slice() else {
                panic!("{way}: {files:?}")
            };
            let process = file.strip_prefix("left-").and_then(|rest| rest.strip_suffix(".pickle"));
            assert!(
                process.is_some_and(|process| process.parse::<u32>().is_ok()),
                "{way}: {file}"
            );
            whole(&ended.folder.join(file));
            let summaries = stderr
                .matches("device 0: 6 allocations, 1 frees, 0 reallocations")
                .count();
            assert_eq!(summaries, usize::from(way != "silent"), "{way}: {stderr}");
        }
    }
}

#[test]
fn while_other_threads_allocate() {
    for round in 0..5 {
        let ended = Ended::by("threads", "left.json", round % 2 == 0);
        let stderr = ended.stderr();
        assert_eq!(ended.output.status.code(), Some(3), "{stderr}");
        assert_eq!(ended.files(), ["left.json"], "{stderr}");
        assert_eq!(stderr.matches("trtalloc: device 0: ").count(), 1, "{stderr}");
        let seen = viewer::open(&ended.folder.join("left.json"));
        assert!((5..=8).contains(&seen.number("active_allocated")), "{seen}");
        assert!(seen.number("alloc") > 1000, "{seen}");
    }
}

#[test]
fn an_end_without_exit_and_a_library_that_was_not_used_leave_nothing() {
    for preload in [false, true] {
        for (way, code, signal) in [
            ("idle", Some(0), None),
            ("_exit", Some(0), None),
            ("killed", None, Some(9)),
        ] {
            let ended = Ended::by(way, "left.pickle", preload);
            assert_eq!(
                (ended.output.status.code(), ended.output.status.signal()),
                (code, signal),
                "{way}"
            );
            assert_eq!(ended.files(), [""; 0], "{way}");
            assert_eq!(ended.stderr(), "", "{way}");
        }
    }
}

#[test]
fn each_allocator_has_a_file_of_its_own() {
    let ended = Ended::by("several", "left.pickle", false);
    let stderr = ended.stderr();
    assert_eq!(ended.output.status.code(), Some(0), "{stderr}");
    assert_eq!(
        ended.files(),
        ["left.1.pickle", "left.2.pickle", "left.pickle"],
        "{stderr}"
    );
    let files = ended.files().into_iter();
    let counts = files.map(|file| viewer::open(&ended.folder.join(file)).number("active_allocated"));
    let mut counts: Vec<u64> = counts.collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 5]);
}

#[test]
fn a_failed_write_is_logged_and_leaves_no_file() {
    for (file, line) in [
        ("none/left.pickle", "trtalloc: warn: snapshot_at_exit: "),
        // A name without a format is refused at the beginning.
        ("left.text", "trtalloc: warn: TRTALLOC_SNAPSHOT_AT_EXIT: cannot read "),
    ] {
        let ended = Ended::by("return", file, false);
        let stderr = ended.stderr();
        assert_eq!(ended.output.status.code(), Some(0), "{stderr}");
        assert_eq!(ended.files(), [""; 0], "{file}");
        let said = stderr.lines().filter(|said| said.starts_with(line));
        assert_eq!(said.filter(|said| said.contains(file)).count(), 1, "{stderr}");
        assert!(stderr.contains("device 0: 6 allocations"), "{stderr}");
    }
    // No file may be larger than 8 KiB: as on a full disk, writing fails when some of it is written.
    let ended = Ended::by("full", "left.pickle", false);
    let stderr = ended.stderr();
    assert_eq!(ended.output.status.code(), Some(0), "{stderr}");
    assert_eq!(ended.files(), ["here.pickle"], "{stderr}");
    let kept = std::fs::read_to_string(ended.folder.join("here.pickle")).unwrap();
    assert_eq!(kept, "what was there before");
    assert!(
        stderr.contains("trtalloc: warn: snapshot_at_exit: ") && stderr.contains("left.pickle: "),
        "{stderr}"
    );
}
