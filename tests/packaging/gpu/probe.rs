//! The probe compiles with nothing but a C compiler, and has an answer in every row: over the simulated libcuda.so.1,
//! or (with `TRTALLOC_TEST_DRIVER=cuda`) over the driver that is installed.

use std::collections::HashSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::simcuda;

fn sources() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu/probe");
    let files = std::fs::read_dir(folder).expect("tests/gpu/probe is there");
    let mut sources: Vec<PathBuf> = files.map(|file| file.expect("can be listed").path()).collect();
    sources.retain(|path| path.extension().is_some_and(|suffix| suffix == "c"));
    sources.sort();
    sources
}

fn compile() -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("probe-{}", std::process::id()));
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command
        .args(["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg("-o")
        .arg(&program)
        .args(sources());
    let status = command
        .args(["-ldl", "-pthread"])
        .status()
        .expect("there is a C compiler");
    assert!(status.success());
    program
}

#[test]
fn every_question_has_an_answer() {
    let program = compile();
    let mut probe = Command::new(&program);
    // cargo builds the library beside this executable.
    let library = env::current_exe()
        .expect("this executable")
        .with_file_name("libtrtalloc.so");
    assert!(library.exists(), "no {}", library.display());
    probe.env("TRTALLOC_LIBRARY", library);
    let simulated = !env::var("TRTALLOC_TEST_DRIVER").is_ok_and(|driver| driver == "cuda");
    if simulated {
        let folder = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
        probe.env("LD_LIBRARY_PATH", folder);
    }
    let output = probe.output().expect("the probe starts");
    let _ = std::fs::remove_file(&program);
    let table = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{table}\n{complaints}", output.status);

    let mut questions = HashSet::new();
    let mut answers = Vec::new();
    for line in table.lines() {
        let cells: Vec<&str> = line.splitn(3, " | ").map(str::trim).collect();
        let [question, answer, evidence] = cells[..] else {
            panic!("no row: {line}")
        };
        assert!(!answer.is_empty() && !evidence.is_empty(), "no answer: {line}");
        assert!(questions.insert(question.to_string()), "asked twice: {line}");
        answers.push((question.to_string(), answer.to_string()));
    }
    let answer = |question: &str| -> &str {
        let found = answers.iter().find(|(asked, _)| asked == question);
        &found.unwrap_or_else(|| panic!("not asked: {question}\n{table}")).1
    };
    assert_eq!(answer("driver"), if simulated { "simulated" } else { "a GPU" });
    for question in [
        "cost of cuStreamGetId",
        "cost of cuStreamIsCapturing",
        "cost of cuCtxGetCurrent",
    ] {
        assert!(answer(question).ends_with(" ns"), "{question}: {}", answer(question));
    }
    for size in ["2 MiB", "32 MiB", "1 GiB"] {
        for call in [
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemUnmap",
            "cuMemRelease",
            "cuMemAlloc",
            "cuMemFree",
        ] {
            let question = format!("cost of {call}, {size}");
            assert!(answer(&question).ends_with(" us"), "{question}: {}", answer(&question));
        }
    }
    if !simulated {
        return;
    }
    // What the simulated device is known to do: its rules, and that the probe can tell.
    for (question, expected) in [
        ("cuCtxRecordEvent ends another thread's relaxed capture", "yes"),
        (
            "cuCtxRecordEvent, relaxed, ends another thread's thread-local capture",
            "yes",
        ),
        ("the default stream sees a blocking stream's capture", "as implicit"),
        ("the default stream sees a non-blocking stream's capture", "not at all"),
        ("cuMemAlloc during a global capture", "refused, no wait, capture ended"),
        (
            "cuStreamGetId of a stream in a relaxed capture",
            "refused, capture ended",
        ),
        (
            "cuStreamGetCtx of a stream in a global capture",
            "refused, capture ended",
        ),
        (
            "cuStreamGetCaptureInfo of a stream in a global capture",
            "allowed, capture lives",
        ),
        ("cuStreamGetId ends another thread's global capture", "yes"),
        ("cuCtxGetId, relaxed, ends another thread's global capture", "no"),
        (
            "cuMemAlloc during a global capture, thread exchanged to relaxed",
            "allowed, no wait, capture lives",
        ),
        ("one cuMemUnmap over several handles", "allowed"),
        ("cuMemUnmap of part of a mapping", "refused"),
        ("cuMemMap at an offset in the handle", "refused"),
        ("cuMemSetAccess on part of a mapping", "refused"),
        (
            "a write at one address is read at the other, synchronized between",
            "yes",
        ),
        ("a handle keeps its bytes from one mapping to the next", "yes"),
        ("cuMemRelease keeps the memory while it is mapped", "yes"),
        ("cuCtxRecordEvent covers work of a destroyed stream", "yes"),
        ("cuStreamDestroy waits for the stream's work", "no wait"),
        ("a dead stream's handle comes back while its work is pending", "yes"),
        ("an executable keeps its graph's user objects", "yes"),
        ("a driver call in a user object's destructor", "crashes"),
        ("after a primary context reset, the new context's handle is", "the same"),
        ("after a primary context reset, the new context's id is", "another"),
        (
            "cuCtxRecordEvent of the primary context covers a green context's work",
            "yes",
        ),
        (
            "an event of the primary context covers work on a green context's stream",
            "yes",
        ),
        ("a green context is made current in a second thread", "refused"),
        (
            "cuStreamGetCtx_v2 of a green context's default stream",
            "the primary and the green one",
        ),
        ("a green context's default stream can be captured", "yes"),
        ("the primary context's default stream can be captured", "no"),
        ("cuCtxGetId of a destroyed context", "refused"),
        (
            "an executable keeps the user objects of a conditional node's body",
            "absent",
        ),
        // It refuses modules, so what kernels see is not asked.
        ("the driver compiles PTX and runs kernels", "not asked"),
        (
            "a persistent kernel reads what was written meanwhile through an alias",
            "not asked",
        ),
        (
            "a handle gets a second address while work on it is pending",
            "allowed, no wait, bytes are there",
        ),
        ("unmapping one of two addresses leaves the other", "yes"),
        ("cuMemMap beside work on another stream", "no wait"),
        ("cuMemFree beside work on another stream", "waits"),
        ("a reservation of eight times the device's memory", "allowed"),
        ("cuMemGetInfo follows cuMemCreate and cuMemRelease", "yes"),
        ("cuMemGetInfo follows cuMemAlloc and cuMemFree", "yes"),
        (
            "the pool: a global capture, non-blocking, beside an engine that loads",
            "lives, and cuMemAlloc's ends",
        ),
        (
            "the pool: a thread-local capture, non-blocking, beside an engine that loads",
            "lives, as with cuMemAlloc",
        ),
        (
            "the pool: a relaxed capture, blocking, beside an engine that loads, captures=1",
            "lives, as with cuMemAlloc",
        ),
        ("the pool: memory of a graph, captured in relaxed mode", "yes"),
        ("the pool: a block that grows keeps what pending work writes", "yes"),
        ("the pool: a limit holds, and all memory goes back", "yes"),
    ] {
        assert_eq!(answer(question), expected, "{question}\n{table}");
    }
    for (question, answer) in &answers {
        assert!(
            answer != "hangs" && answer != "no answer",
            "{question}: {answer}\n{table}\n{complaints}"
        );
        assert!(
            answer != "crashes" || question.contains("destructor"),
            "{question}: {answer}\n{table}\n{complaints}"
        );
    }
}
