//! Frames of Python on threads that have given the interpreter's lock up, and what stands in their place.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::wheel;
use crate::python::Frames;
use crate::viewer;

/// The minor versions of Python 3 whose frames are read, and how TRTALLOC_TEST_REQUIRE names them.
const VERSIONS: [(u32, &str); 5] = [
    (9, "python3.9"),
    (10, "python3.10"),
    (11, "python3.11"),
    (12, "python3.12"),
    (13, "python3.13"),
];

/// An interpreter of that version: pyenv's, or one on the path.
fn interpreter(minor: u32) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv"));
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or(home)?;
    let installed = std::fs::read_dir(root.join("versions")).into_iter().flatten().flatten();
    let installed = installed
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("3.{minor}.")))
        .map(|entry| entry.path().join(format!("bin/python3.{minor}")));
    let of_version = |python: &PathBuf| {
        let script = "import sys; print(sys.version_info[1])";
        let output = Command::new(python).args(["-c", script]).output();
        output.is_ok_and(|output| output.stdout == format!("{minor}\n").as_bytes())
    };
    installed
        .chain([
            PathBuf::from(format!("python3.{minor}")),
            PathBuf::from("/usr/bin/python3"),
        ])
        .find(of_version)
}

/// Each version's interpreter, with its minor version. What is missing is left out, and the test says so.
fn each() -> Vec<(u32, PathBuf)> {
    let found: Vec<(u32, PathBuf)> = VERSIONS
        .iter()
        .filter_map(|(minor, name)| {
            let found = interpreter(*minor);
            if found.is_none() {
                common::skip_part(name, "no such interpreter");
            }
            Some((*minor, found?))
        })
        .collect();
    if found.is_empty() {
        common::skip("python3", "no interpreter whose frames are read");
    }
    found
}

/// tests/record/without_lock.c, compiled once.
fn helper() -> &'static Path {
    static HELPER: OnceLock<PathBuf> = OnceLock::new();
    HELPER.get_or_init(|| {
        let helper = common::scratch("without-lock-helper").join("helper.so");
        let mut compiler = common::cc();
        compiler.args(["-shared", "-fPIC", "-pthread"]);
        compiler.arg(common::root().join("tests/record/without_lock.c"));
        common::run(compiler.arg("-o").arg(&helper));
        helper
    })
}

fn script(python: &Path, stacks: &str, case: &str, snapshot: &Path) -> Command {
    let mut command = Command::new(python);
    command.arg(common::root().join("tests/record/without_lock.py"));
    command.arg(common::library_dir().join("libtrtalloc.so"));
    command.arg(helper()).arg(snapshot).args([stacks, case]);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Runs a command that must not hang. It is a process group of its own, which ends with it.
fn in_time(mut command: Command) -> Output {
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(90) {
            // SAFETY: sends a signal to the group that was made above, whose leader was not waited for.
            unsafe { libc::killpg(child.id() as i32, libc::SIGKILL) };
            panic!("{command:?} hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

fn read(snapshot: &Path) -> Frames {
    viewer::open(snapshot);
    Frames(serde_json::from_slice(&std::fs::read(snapshot).unwrap()).unwrap())
}

/// What tests/record/without_lock.py recorded in that case.
fn seen(python: &Path, stacks: &str, case: &str) -> Frames {
    let dir = common::scratch(&format!("without-{case}-{stacks}-{}", number()));
    let snapshot = dir.join("frames.json");
    in_time(script(python, stacks, case, &snapshot));
    read(&snapshot)
}

fn number() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// The line of the script that contains `text`.
fn line(text: &str) -> u64 {
    let script = std::fs::read_to_string(common::root().join("tests/record/without_lock.py")).unwrap();
    script.lines().position(|line| line.contains(text)).unwrap() as u64 + 1
}

/// Whether the stack says why it has no frames of Python, and has native ones.
fn is_marked(frames: &Frames, size: u64, why: &str) -> bool {
    let names = frames.names(size);
    let mark = names
        .iter()
        .position(|name| *name == format!("<no Python frames: {why}>"));
    mark.is_some() && names.len() > 2 && !names.iter().any(|name| name == "<module>")
}

/// The same places with the lock and without it have the same functions, files and lines.
#[test]
fn frames_read_without_the_lock_are_those_of_the_interpreter() {
    for (minor, python) in each() {
        let seen = seen(&python, "python", "frames");
        for size in (1000..=1034).step_by(2) {
            let (held, released) = (seen.of(size), seen.of(size + 1));
            assert_eq!(released, held, "3.{minor}, {size}");
            assert_eq!(
                (held[0].0.as_str(), held[0].2),
                ("pair", line("# line of the pair")),
                "3.{minor}"
            );
        }
        let second = |size: u64| {
            let (name, file, line) = seen.of(size + 1)[1].clone();
            (name.rsplit('.').next().unwrap().to_owned(), file, line)
        };
        for (size, name, text) in [
            (1004, "recursive", "# line of recursive"),
            (1014, "generator", "# line of the generator"),
            (1016, "traced", "# line of the traced pair"),
            (1022, "far_below", "# line far below"),
            (1024, "many_constants", "# line after many instructions"),
        ] {
            let (found, file, at) = second(size);
            assert_eq!((found.as_str(), at), (name, line(text)), "3.{minor}");
            assert!(file.ends_with("tests/record/without_lock.py"), "3.{minor}: {file}");
        }
        assert_eq!(second(1028), ("größe".to_owned(), "<日本>".to_owned(), 3), "3.{minor}");
        assert_eq!(seen.of(1027).len(), 128, "3.{minor}");
        let names: Vec<String> = seen.names(1007);
        assert!(
            names.contains(&"coroutine".to_owned()) && names[1] == "awaited",
            "{names:?}"
        );
    }
}

#[test]
fn the_main_thread_confirms_what_others_read() {
    for (minor, python) in each() {
        let seen = seen(&python, "python", "asked");
        let (name, _, at) = seen.of(1)[1].clone();
        assert_eq!(
            (name.as_str(), at),
            ("asked", line("# line of the first block")),
            "3.{minor}"
        );
    }
}

/// A request never waits for the interpreter's lock.
#[test]
fn a_thread_with_the_lock_may_wait_for_one_that_allocates() {
    for (minor, python) in each() {
        let seen = seen(&python, "all", "locks");
        let frames = seen.of(1);
        let work = frames.iter().find(|(name, ..)| name.ends_with("work"));
        assert_eq!(
            work.map(|(.., line)| *line),
            Some(line("# line with the lock")),
            "3.{minor}: {frames:?}"
        );
    }
}

#[test]
fn threads_allocate_while_the_interpreter_ends_and_after_it() {
    for (minor, python) in each() {
        for round in 0..2 {
            let dir = common::scratch(&format!("without-daemons-{minor}-{round}"));
            let snapshot = dir.join("frames.json");
            let mut command = script(&python, "python", "daemons", &snapshot);
            command.env("TRTALLOC_SNAPSHOT_AT_EXIT", &snapshot);
            in_time(command);
            let seen = read(&snapshot);
            let stacks = seen.all(9);
            assert_eq!(seen.0["trtalloc"]["dropped"], 0, "3.{minor}");
            let has = |name: &str| {
                stacks
                    .iter()
                    .any(|names| names.iter().any(|found| found.ends_with(name)))
            };
            assert!(has("outlive"), "3.{minor}: {stacks:?}");
            assert!(has("<no Python frames: Python is ending>"), "3.{minor}: {stacks:?}");
            // The thread that ends the interpreter.
            assert!(
                is_marked(&seen, 13, "Python is ending"),
                "3.{minor}: {:?}",
                seen.names(13)
            );
            // There is always one of both, and no other reason.
            let neither = |names: &Vec<String>| {
                let frames = names.iter().any(|name| name.ends_with("outlive"));
                let mark = names.iter().any(|name| name == "<no Python frames: Python is ending>");
                frames == mark
            };
            assert!(!stacks.iter().any(neither), "3.{minor}: {stacks:?}");
        }
    }
}

#[test]
fn children_of_threads_that_take_stacks_end() {
    for (minor, python) in each() {
        let seen = seen(&python, "all", "forks");
        let after = line("# line after the forks");
        assert!(seen.of(11).iter().any(|(.., line)| *line == after), "3.{minor}");
    }
}

/// A code object's address says nothing of what is there at the next event.
#[test]
fn functions_that_come_and_go_keep_their_names() {
    for (minor, python) in each() {
        let seen = seen(&python, "python", "reused");
        for number in 0..300 {
            let expected = (
                format!("f{}", number / 4),
                format!("<{}>", number / 2 % 2),
                number % 2 + 2,
            );
            assert_eq!(seen.of(2000 + number)[1], expected, "3.{minor}");
        }
    }
}

#[test]
fn signal_handlers_have_the_frames_that_they_interrupt() {
    for (minor, python) in each() {
        let seen = seen(&python, "python", "signals");
        for size in 21..=24 {
            let names = seen.names(size);
            assert!(
                names.len() == 3 && names[0].ends_with("send") && names[1] == "signals",
                "3.{minor}: {names:?}"
            );
        }
    }
}

#[test]
fn a_stack_says_why_it_has_no_frames_of_python() {
    for (minor, python) in each() {
        for stacks in ["python", "all"] {
            let refused = seen(&python, stacks, "refused");
            assert!(refused.names(31).contains(&"refused".to_owned()), "3.{minor}");
            assert!(
                is_marked(&refused, 32, "the kernel refuses process_vm_readv"),
                "3.{minor}: {:?}",
                refused.names(32)
            );
            assert!(refused.names(33).contains(&"refused".to_owned()), "3.{minor}");
            let second = seen(&python, stacks, "interpreters");
            for size in [41, 43, 44] {
                assert!(
                    second.names(size).contains(&"interpreters".to_owned()),
                    "3.{minor}, {size}"
                );
            }
            assert!(
                is_marked(&second, 42, "the process has several interpreters"),
                "3.{minor}: {:?}",
                second.names(42)
            );
        }
    }
}

/// A program begins to record before it loads an interpreter, ends that, and begins another.
#[test]
fn an_interpreter_that_is_loaded_later_is_found() {
    let dir = common::scratch("without-embedded");
    let program = dir.join("embedded");
    let mut compiler = common::cc();
    compiler.arg(common::root().join("tests/record/embedded.c"));
    common::run(compiler.arg("-o").arg(&program).arg("-ldl"));
    let mut ran = false;
    for (minor, python) in each() {
        let script = "import sysconfig as s, sys; print(s.get_config_var('LIBDIR') + '/' + s.get_config_var('INSTSONAME')); print(sys.prefix)";
        let output = common::run(Command::new(&python).args(["-c", script]));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (library, prefix) = text.trim().split_once('\n').unwrap();
        if !Path::new(library).exists() {
            continue;
        }
        ran = true;
        let snapshot = dir.join(format!("{minor}.json"));
        let mut command = Command::new(&program);
        command
            .arg(common::library_dir().join("libtrtalloc.so"))
            .arg(library)
            .arg(&snapshot);
        // CPython 3.12.1 itself ends with "free(): invalid pointer" where it begins again and imports ctypes.
        let lives = if minor == 12 { 1 } else { 2 };
        command.arg(lives.to_string());
        command.env("PYTHONHOME", prefix).env("PYTHONDONTWRITEBYTECODE", "1");
        in_time(command);
        let seen = read(&snapshot);
        for life in 1..=lives {
            let frames = seen.of(life);
            let expected = [(format!("embedded_{life}"), 5), ("<module>".to_owned(), 6)];
            let found: Vec<(String, u64)> = frames.into_iter().map(|(name, _, line)| (name, line)).collect();
            assert_eq!(found, expected, "3.{minor}");
        }
    }
    if !ran {
        common::skip("python3", "no interpreter with a library of its own");
    }
}

/// TensorRT-RTX's own bindings. Without a GPU they build a plan and request no memory, and no engine is made of it.
#[test]
fn tensorrts_bindings_have_the_scripts_functions() {
    let package = |name| match wheel::fetch(name, "1.7.1.116") {
        Ok(folder) => folder,
        Err(reason) => common::skip("tensorrt", &format!("{name}: {reason}")),
    };
    let bindings = package("tensorrt-rtx-cu12-bindings");
    let libraries = package("tensorrt-rtx-cu12-libs").join("tensorrt_rtx_libs");
    let dir = common::scratch("without-rtx");
    let snapshot = dir.join("frames.json");
    // The file's name contains the Python versions that it supports, which are those of `python3`.
    let mut command = Command::new("python3");
    command.arg(common::root().join("tests/record/rtx.py"));
    command.env("LD_PRELOAD", common::library_dir().join("libtrtalloc.so"));
    command.env("LD_LIBRARY_PATH", &libraries).env("PYTHONPATH", &bindings);
    command.env("TRTALLOC_SNAPSHOT_AT_EXIT", &snapshot);
    command.envs([
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("TRTALLOC_INJECT", "1"),
        ("TRTALLOC_HISTORY", "all"),
        ("TRTALLOC_STACKS", "python"),
    ]);
    let output = in_time(command);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(stdout.starts_with("a plan\n"), "{stdout}");
    let stacks = if snapshot.exists() {
        read(&snapshot).every()
    } else {
        Vec::new()
    };
    if stacks.is_empty() {
        assert_eq!(stdout, "a plan\n", "an engine without memory");
        common::unsupported("without a GPU, TensorRT-RTX requests no memory");
    }
    for names in &stacks {
        let known = ["build_a_plan", "load_the_plan", "create_a_context"];
        assert!(
            known.iter().any(|known| names.iter().any(|name| name == known)),
            "{stacks:?}"
        );
    }
}

/// Functions that take the place of the interpreter's own: it says that it has another version, or another line.
const OTHER_VERSION: &str =
    "const char *Py_GetVersion(void);\nconst char *Py_GetVersion(void) { return \"VERSION (main)\"; }\n";
const OTHER_LINES: &str = "int PyFrame_GetLineNumber(void *);\nint PyFrame_GetLineNumber(void *frame) { return frame ? 77 : 0; }\n\
    int PyCode_Addr2Line(void *, int);\nint PyCode_Addr2Line(void *code, int at) { return code && at > -9 ? 77 : 0; }\n";

#[test]
fn a_layout_that_is_not_the_interpreters_is_not_used() {
    let dir = common::scratch("without-version");
    let run = |python: &Path, functions: &str| {
        let name = number();
        let (source, library) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.so")));
        std::fs::write(&source, functions).unwrap();
        let mut compiler = common::cc();
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        common::run(&mut compiler);
        let snapshot = dir.join(format!("{name}.json"));
        let mut command = script(python, "python", "version", &snapshot);
        command.env("LD_PRELOAD", library);
        in_time(command);
        read(&snapshot)
    };
    for (minor, python) in each() {
        let is_shared = Command::new(&python)
            .args([
                "-c",
                "import sysconfig; print(sysconfig.get_config_var('Py_ENABLE_SHARED'))",
            ])
            .output()
            .unwrap();
        if is_shared.stdout != b"1\n" {
            // The functions of an interpreter in one piece cannot be replaced.
            continue;
        }
        let version = |version| OTHER_VERSION.replace("VERSION", version);
        let unknown = run(&python, &version("3.99.0"));
        let other = run(&python, &version(if minor == 12 { "3.11.0" } else { "3.12.0" }));
        let lines = run(&python, OTHER_LINES);
        for size in [51, 53, 56] {
            let why = "this version of Python is not known";
            assert!(is_marked(&unknown, size, why), "3.{minor}: {:?}", unknown.names(size));
        }
        for seen in [&other, &lines] {
            let why = "Python's memory is laid out differently";
            assert!(is_marked(seen, 56, why), "3.{minor}: {:?}", seen.names(56));
        }
        for seen in [&unknown, &other, &lines] {
            for size in [52, 54, 55] {
                assert_eq!(seen.names(size), ["get", "version", "<module>"], "3.{minor}");
            }
        }
    }
}
