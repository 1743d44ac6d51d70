//! The pack for a machine with a GPU (tests/gpu/README.md): it is made and run over the second simulated driver, cudasim,
//! which `TRTALLOC_TEST_CUDASIM` names, and what it prints is compared with what is known of that driver. Its kernels are
//! assembled by NVIDIA's assembler, where downloads are allowed. `probe` asks a driver without the pack.

mod probe;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{self, cudasim};

fn here() -> PathBuf {
    common::root().join("tests/gpu")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The lines of a table, in cells.
fn table(path: &Path) -> Vec<Vec<String>> {
    let lines = fs::read_to_string(path).unwrap();
    let rows = lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|line| line.split(" | ").map(str::to_owned).collect())
        .collect()
}

fn expectations() -> Vec<Vec<String>> {
    table(&here().join("expectations.txt"))
}

#[test]
fn each_assumption_names_code_that_is_there() {
    let mut questions = HashSet::new();
    for row in expectations() {
        let [question, expected, assumption, place] = &row[..] else {
            panic!("not four cells: {row:?}")
        };
        assert!(questions.insert(question.clone()), "twice: {question}");
        assert!(!expected.is_empty() && !assumption.is_empty(), "{row:?}");
        let (file, words) = place.split_once(": ").expect("FILE: TEXT");
        let code = fs::read_to_string(common::root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(code.contains(words), "{file} does not have {words:?} ({question})");
    }
    for row in table(&here().join("cudasim.txt")) {
        assert!(questions.contains(&row[0]), "nothing assumes {row:?}");
    }
}

/// Prints the page of a folder of results.
fn page(results: &Path, more: &[&str]) -> Output {
    let mut python = Command::new("python3");
    python.arg(here().join("page.py")).arg(results).args(more);
    python.output().expect("python3 starts")
}

/// A folder of results in which every assumption holds, but for what `change` makes of a row: its question and answer.
fn results(name: &str, change: impl Fn(&str, String) -> Option<String>) -> PathBuf {
    let folder = common::scratch(name);
    let mut rows = "question | answer | evidence\ndriver | made up | none\n".to_owned();
    for row in expectations() {
        let expected = row[1].split(" or ").next().unwrap();
        let words = expected.trim_start_matches("at least ").trim_start_matches("at most ");
        let good = words.trim_start_matches("about ").replace("decides", "something");
        if let Some(answer) = change(&row[0], good) {
            rows += &format!("{} | {answer} | made up\n", row[0]);
        }
    }
    fs::write(folder.join("made-up.txt"), rows).unwrap();
    fs::write(folder.join("summary.txt"), "made-up: status 0 after 0 s\n").unwrap();
    folder
}

#[test]
fn the_page_fails_exactly_where_an_assumption_does_not_hold() {
    let good = page(&results("good", |_, answer| Some(answer)), &[]);
    assert!(good.status.success(), "{}", text(&good.stdout));
    assert!(text(&good.stdout).contains(" 0 do not,"), "{}", text(&good.stdout));
    // Each row starts Python once.
    let step = if common::in_full() { 1 } else { 8 };
    for row in expectations().into_iter().step_by(step) {
        // A wrong answer where one is expected; a question that hangs, or whose answer has no figure, everywhere.
        let wrong = match row[1].as_str() {
            "decides" => "hangs",
            expected if expected.starts_with("at most") => "1000000 ns",
            expected if expected.starts_with("at least") => "1",
            _ => "otherwise",
        };
        let results = results("bad", |question, answer| {
            Some(if question == row[0] { wrong.to_owned() } else { answer })
        });
        let bad = page(&results, &[]);
        assert_eq!(bad.status.code(), Some(1), "{row:?}");
        let said = text(&bad.stdout);
        assert!(said.contains(" 1 do not,"), "{row:?}: {said}");
        let line = said.lines().find(|line| line.starts_with("NOT")).unwrap();
        assert!(
            line.contains(row[0].chars().take(82).collect::<String>().trim()),
            "{line}"
        );
    }
}

#[test]
fn what_was_not_asked_is_said_and_is_no_failure() {
    let missing = "cuMemMap beside work on another stream";
    let output = page(
        &results("missing", |question, answer| match question {
            "cost of cuStreamGetId" => Some("absent".into()),
            question => (question != missing).then_some(answer),
        }),
        &[],
    );
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(", 2 were not asked"), "{said}");
    assert!(
        said.contains(&format!("no step of this run asks it: {missing}")),
        "{said}"
    );
}

#[test]
fn a_step_that_fails_fails_the_page() {
    let folder = results("step", |_, answer| Some(answer));
    fs::write(folder.join("summary.txt"), "demo: status 1 after 3 s\n").unwrap();
    let output = page(&folder, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("NOT   demo: status 1"),
        "{}",
        text(&output.stdout)
    );
    let empty = common::scratch("empty");
    assert_eq!(page(&empty, &[]).status.code(), Some(1));
}

#[test]
fn what_is_known_of_a_driver_has_to_be_exact() {
    let question = "after a primary context reset, the new context's id is";
    let known = here().join("cudasim.txt");
    let known = ["--known", known.to_str().unwrap()];
    for (answer, status) in [("the same", 0), ("another", 1), ("crashes", 1)] {
        let results = results("known", |asked, good| {
            Some(if asked == question { answer.to_owned() } else { good })
        });
        let output = page(&results, &known);
        assert_eq!(output.status.code(), Some(status), "{answer}: {}", text(&output.stdout));
    }
}

#[test]
fn the_pack_runs_over_the_second_driver() {
    let driver = cudasim::folder(false);
    let scratch = common::scratch("pack");
    let (folder, out) = (scratch.join("folder"), scratch.join("out"));
    // The profile of this build, whose library and command are there already.
    let profile = std::env::current_exe().unwrap();
    let profile = profile
        .parent()
        .and_then(Path::parent)
        .and_then(Path::file_name)
        .unwrap();
    let mut pack = Command::new(here().join("pack"));
    pack.args([
        "--profile",
        if profile == "debug" {
            "dev"
        } else {
            profile.to_str().unwrap()
        },
    ])
    .arg(&folder)
    // The conformance suite runs over this driver elsewhere (`second`).
    .env("PACK_TESTS", "cuda_driver");
    let packed = text(&common::run(&mut pack).stdout);
    assert!(packed.contains("MiB, needs GLIBC_"), "{packed}");

    let known = here().join("cudasim.txt");
    let run = |phases: &[&str]| {
        let mut run = Command::new(folder.join("run"));
        run.args(phases)
            .env("OUT", &out)
            .env("QUICK", "1")
            .env("LD_LIBRARY_PATH", &driver)
            .env("PAGE_OPTIONS", format!("--known {}", known.display()))
            // Three cases that this driver does not pass: events behind host functions, a context that is reset, green
            // contexts.
            .env(
                "TEST_ARGUMENTS",
                "--skip streams_and_events --skip a_destroyed_context_is_noticed --skip green_contexts",
            );
        run.output().unwrap()
    };
    let output = run(&["questions", "library", "frameworks", "tests"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    assert!(said.contains(" 0 do not, 1 differ as is known"), "{said}");
    assert!(said.contains("0 of 10 steps failed"), "{said}");
    // Each question of the page is one that a step asks.
    assert!(!said.contains("no step of this run asks it"), "{said}");
    // A simulated driver executes no kernel, and the page says so.
    assert!(
        said.contains("the driver accepts a kernel and computes nothing"),
        "{said}"
    );
    assert_eq!(
        fs::read_to_string(out.join("page.txt")).unwrap(),
        said[said.find("\ndriver: ").unwrap() + 1..]
    );

    assert_eq!(run(&["nothing"]).status.code(), Some(2));
    // The page of what was run before, without the list of what is known.
    let mut again = Command::new(folder.join("run"));
    let again = again.arg("page").env("OUT", &out).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stdout));
    assert!(text(&again.stdout).contains(" 1 do not,"), "{}", text(&again.stdout));
}

/// NVIDIA's assembler takes the probe's kernels, for the oldest and the newest devices that they are for.
#[test]
fn kernels_are_valid_ptx() {
    let package = common::wheel::fetch("nvidia-cuda-nvcc-cu12", "12.9.86");
    let folder = package.unwrap_or_else(|reason| common::skip("ptxas", &reason));
    let scratch = common::scratch("ptx");
    let probe = scratch.join("probe");
    let mut compile = common::cc();
    // ISO C has no conversion from dlsym's result to a function.
    compile.arg("-Wno-pedantic").arg("-o").arg(&probe);
    for file in fs::read_dir(common::root().join("tests/gpu/probe")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|suffix| suffix == "c") {
            compile.arg(path);
        }
    }
    common::run(compile.args(["-ldl", "-pthread"]));
    for (number, kinds) in [("0", &["sm_75", "sm_90", "sm_120"][..]), ("1", &["sm_90", "sm_120"])] {
        let module = common::run(Command::new(&probe).args(["--ptx", number])).stdout;
        let path = scratch.join(format!("{number}.ptx"));
        fs::write(&path, &module).unwrap();
        for kind in kinds {
            let mut assemble = Command::new(folder.join("nvidia/cuda_nvcc/bin/ptxas"));
            assemble.args(["-arch", kind, "-o", "/dev/null"]).arg(&path);
            common::run(&mut assemble);
        }
    }
}
