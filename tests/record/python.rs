//! Frames of Python, by a program of Python's.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common;
use crate::viewer;

/// The interpreters on this machine: with a library of their own, or in one piece.
fn interpreters() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for name in ["python3", "/usr/bin/python3"] {
        let script = "import os, sys; print(os.path.realpath(sys.executable)) if sys.version_info >= (3, 9) else None";
        let Ok(output) = Command::new(name).args(["-c", script]).output() else {
            continue;
        };
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        if path.is_file() && !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

/// The frames of each way to allocate, by its size: names, innermost first, and the first one's place.
pub struct Frames(pub Value);

impl Frames {
    pub fn of(&self, size: u64) -> Vec<(String, String, u64)> {
        let events = self.0["device_traces"][0].as_array().unwrap();
        let alloc = events
            .iter()
            .find(|event| event["action"] == "alloc" && event["size"] == size)
            .unwrap_or_else(|| panic!("{size} was allocated"));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        self.frames(alloc)
            .map(|frame| {
                (
                    text(&frame["name"]),
                    text(&frame["filename"]),
                    frame["line"].as_u64().unwrap(),
                )
            })
            .collect()
    }

    /// The frames of an event's stack.
    fn frames(&self, event: &Value) -> impl Iterator<Item = &Value> {
        let stack = event["stack"].as_u64().unwrap_or(0) as usize;
        let frames = self.0["stacks"][stack].as_array().unwrap().iter();
        frames.map(|number| &self.0["frames"][number.as_u64().unwrap() as usize])
    }

    /// The names of every stack in which a block of that size was allocated.
    pub fn all(&self, size: u64) -> Vec<Vec<String>> {
        self.stacks(|event| event["size"] == size)
    }

    /// The names of every stack in which a block was allocated.
    pub fn every(&self) -> Vec<Vec<String>> {
        self.stacks(|_| true)
    }

    fn stacks(&self, wanted: impl Fn(&Value) -> bool) -> Vec<Vec<String>> {
        let traces = self.0["device_traces"].as_array().unwrap().iter();
        let events = traces.flat_map(|trace| trace.as_array().unwrap());
        let allocs = events.filter(|event| event["action"] == "alloc" && wanted(event));
        let mut stacks: Vec<Vec<String>> = allocs
            .map(|alloc| {
                let names = self.frames(alloc).map(|frame| frame["name"].as_str().unwrap());
                names.map(str::to_owned).collect()
            })
            .collect();
        stacks.sort();
        stacks.dedup();
        stacks
    }

    pub fn names(&self, size: u64) -> Vec<String> {
        self.of(size).into_iter().map(|(name, ..)| name).collect()
    }
}

/// Runs tests/record/frames.py with that interpreter.
fn run(python: &PathBuf, stacks: &str, number: usize) -> Frames {
    let dir = common::scratch(&format!("frames-{stacks}-{number}"));
    let helper = dir.join("helper.so");
    let mut compiler = common::cc();
    compiler.args(["-shared", "-fPIC", "-pthread"]);
    compiler.arg(common::root().join("tests/record/frames.c"));
    common::run(compiler.arg("-o").arg(&helper));
    let snapshot = dir.join("frames.json");
    let mut command = Command::new(python);
    command.arg(common::root().join("tests/record/frames.py"));
    command.arg(common::library_dir().join("libtrtalloc.so"));
    command.arg(&helper).arg(&snapshot).arg(stacks);
    common::run(command.env("PYTHONDONTWRITEBYTECODE", "1"));
    viewer::open(&snapshot);
    Frames(serde_json::from_slice(&std::fs::read(&snapshot).unwrap()).unwrap())
}

#[test]
fn a_scripts_functions_are_named() {
    let interpreters = interpreters();
    if interpreters.is_empty() {
        common::skip("python3", "not installed, or older than 3.9");
    }
    let script = std::fs::read_to_string(common::root().join("tests/record/frames.py")).unwrap();
    let line = |text: &str| script.lines().position(|line| line.contains(text)).unwrap() as u64 + 1;
    for (number, python) in interpreters.iter().enumerate() {
        let seen = run(python, "python", number);
        let outer = "outer_function";
        let expected = ["get", "load_engine", outer, outer, outer, outer, "<module>"];
        assert_eq!(seen.names(1001), expected, "{}", python.display());
        let frames = seen.of(1001);
        assert!(
            frames
                .iter()
                .all(|(_, file, _)| file.ends_with("tests/record/frames.py")),
            "{frames:?}"
        );
        assert_eq!(frames[0].2, line("address = library.trtalloc_allocate"), "{frames:?}");
        assert_eq!(frames[1].2, line("# line of the engine"), "{frames:?}");
        // From 3.11 on a name has its class.
        let forward = &seen.names(1003);
        assert!(
            forward.iter().any(|name| name == "Model.forward" || name == "forward"),
            "{forward:?}"
        );
        for (size, name) in [
            (1004, "generated"),
            (1005, "ünïcode_name"),
            (1006, "in_another_thread"),
            (1007, "while_an_error_is_handled"),
            (1010, "made_at_run_time"),
        ] {
            assert_eq!(seen.names(size)[1], name, "{}", python.display());
        }
        assert!(seen.names(1008)[1].ends_with("__del__"), "{:?}", seen.names(1008));
        assert_eq!(seen.of(1010)[1].1, "<made>");
        let deep = seen.names(1009);
        assert!(
            deep.len() == 128 && deep[1..].iter().all(|name| name == "deeply"),
            "{deep:?}"
        );
        assert_eq!(
            seen.names(2001),
            ["get", "without_the_lock", "<module>"],
            "{}",
            python.display()
        );
        assert!(seen.names(2002).is_empty(), "{:?}", seen.names(2002));
    }
}

#[test]
fn compiled_code_comes_before_the_python_that_called_it() {
    let Some(python) = interpreters().into_iter().next() else {
        common::skip("python3", "not installed, or older than 3.9");
    };
    let seen = run(&python, "all", 0);
    let names = seen.names(1001);
    let python = names.iter().position(|name| name == "load_engine").unwrap();
    assert!(names.len() > 10 && names[0] != "trtalloc_allocate", "{names:?}");
    // They stand where the interpreter's loop does, if it has a name.
    let named = names.iter().any(|name| name.contains("_PyEval_EvalFrame"));
    assert_eq!(python > 2, named, "{names:?}");
    // The thread of C has its own frames, and nothing of the thread that waits for it.
    let names = seen.names(2002);
    assert_eq!(names[0], "work", "{names:?}");
    assert!(!names.iter().any(|name| name == "on_a_thread_of_c"), "{names:?}");
    // Without the lock, too.
    let names = seen.names(2001);
    let python = names.iter().position(|name| name == "without_the_lock").unwrap();
    assert_eq!(python > 2, named, "{names:?}");
}

/// A program may compile code for each of its calls.
#[test]
fn code_that_is_made_for_each_call_is_released_and_has_one_stack() {
    let interpreters = interpreters();
    if interpreters.is_empty() {
        common::skip("python3", "not installed, or older than 3.9");
    }
    for (number, python) in interpreters.iter().enumerate() {
        let snapshot = common::scratch(&format!("made-code-{number}")).join("made.json");
        let mut command = Command::new(python);
        command.arg(common::root().join("tests/record/made_code.py"));
        command.arg(common::library_dir().join("libtrtalloc.so")).arg(&snapshot);
        common::run(&mut command);
        let seen = Frames(serde_json::from_slice(&std::fs::read(&snapshot).unwrap()).unwrap());
        let events = seen.0["device_traces"][0].as_array().unwrap();
        // The snapshot adds allocations that are older than the history. They have no thread.
        let allocs = events
            .iter()
            .filter(|event| event["action"] == "alloc" && event["thread"].is_u64());
        let mut stacks: Vec<&Value> = allocs.map(|event| &event["stack"]).collect();
        assert!(stacks.len() > 900, "{}", stacks.len());
        stacks.dedup();
        let names = stacks
            .iter()
            .map(|stack| {
                seen.frames(&serde_json::json!({ "stack": stack }))
                    .map(|frame| frame["name"].clone())
                    .collect()
            })
            .collect::<Vec<Vec<Value>>>();
        assert_eq!(names, [["made", "<module>"]], "{}", python.display());
        assert_eq!(seen.0["trtalloc"]["lost_stacks"], 0);
    }
}
