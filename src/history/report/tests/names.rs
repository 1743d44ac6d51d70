//! The names of stacks.

use serde_json::{Value, json};

use super::super::Report;
use super::BASE;

/// The names of the stacks of blocks. A frame is `function file:line`, and a stack has its frames innermost first.
fn names(stacks: &[&[&str]]) -> Vec<String> {
    let frame = |frame: &&str| {
        let (function, place) = frame.split_once(' ').unwrap_or((frame, ":0"));
        let (file, line) = place.split_once(':').unwrap();
        json!({"name": function, "filename": file, "line": line.parse::<u32>().unwrap()})
    };
    let block = |stack: &&[&str]| {
        let frames: Vec<Value> = stack.iter().map(frame).collect();
        json!({"size": 512, "state": "active_allocated", "frames": frames})
    };
    let blocks: Vec<Value> = stacks.iter().map(block).collect();
    let snapshot = json!({"segments": [{"device": 0, "address": BASE, "total_size": 1 << 20, "blocks": blocks}]});
    let report = Report::of_bytes(snapshot.to_string().as_bytes()).unwrap();
    let names = report.stack_names();
    let pieces = &report.devices[0].segments[0].memory.pieces;
    pieces.iter().map(|piece| names[piece.stack as usize].clone()).collect()
}

#[test]
fn main_and_its_line_name_a_program_without_other_functions() {
    let start: &[&str] = &["libc.so.6+0x2724a", "__libc_start_main@@GLIBC_2.34", "_start"];
    let main = |line| [&[line][..], start].concat();
    assert_eq!(
        names(&[&main("main /src/a.c:33"), &main("main /src/a.c:40")]),
        ["main a.c:33", "main a.c:40"]
    );
    assert_eq!(names(&[&main("main /src/a.c:33")]), ["main a.c:33"]);
    // On a thread without names.
    assert_eq!(
        names(&[&["start_thread", "clone3"], &main("work b.c:1")]),
        ["start_thread", "work b.c:1"]
    );
}

#[test]
fn stacks_that_differ_have_different_names() {
    let get = "pool::get pool.rs:5";
    let all = names(&[
        &[get, "load load.rs:1", "main m.rs:1"],
        &[get, "load load.rs:2", "main m.rs:1"],
        &[get, "load load.rs:2", "main m.rs:2"],
        &["other::take take.rs:9", "main m.rs:3"],
    ]);
    assert_eq!(
        all,
        [
            "pool::get pool.rs:5 < load load.rs:1",
            "pool::get pool.rs:5 < main m.rs:1",
            "pool::get pool.rs:5 < main m.rs:2",
            "other::take take.rs:9",
        ]
    );
    // Of a recursion one stack is the beginning of the other, and some differ in frames of a runtime alone.
    let all = names(&[
        &[get, "walk w.rs:1", "main m.rs:1"],
        &[get, "walk w.rs:1", "walk w.rs:1", "main m.rs:1"],
        &[get, "walk w.rs:1", "core::iter::map i.rs:1", "main m.rs:1"],
    ]);
    let distinct: std::collections::HashSet<&String> = all.iter().collect();
    assert_eq!(distinct.len(), 3, "{all:?}");
}

/// The interpreter's C functions, libffi and the package lie between a Python function and the pool: with the interpreter's
/// sources, without its symbols, and in an event that does not begin as allocations do.
#[test]
fn a_python_function_names_its_stack_and_not_the_interpreter() {
    let inner: &[&str] = &[
        "ffi_call /lib/libffi.so.8:0",
        "_ctypes_callproc /build/Python-3.11.7/Modules/_ctypes/callproc.c:9",
    ];
    let stripped: &[&str] = &["PyCFuncPtr_call /usr/lib/lib-dynload/_ctypes.cpython-311-x86_64-linux-gnu.so:0"];
    let package = "allocate /usr/lib/python3/site-packages/trtalloc/_block.py:5";
    let outer: &[&str] = &[
        "_PyEval_Vector /build/Python-3.11.7/Python/ceval.c:7",
        "Py_BytesMain /usr/bin/python3.11:0",
    ];
    let all = names(&[
        &[inner, &[package, "load /srv/serve.py:3"], outer].concat(),
        &[stripped, &["free /srv/serve.py:9"], outer].concat(),
        &["PyObject_Call /usr/lib/libpython3.12.so.1.0:0", "step /srv/train.py:2"],
        // A file of the application has any name.
        &["python3 /srv/python3/main.c:1"],
    ]);
    assert_eq!(
        all,
        [
            "load serve.py:3",
            "free serve.py:9",
            "step train.py:2",
            "python3 main.c:1"
        ]
    );
}
