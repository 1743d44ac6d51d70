//! The C ABI through C and C++ programs that are linked with the shared library.

use crate::common::{self, simcuda};

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiles and runs one program of tests/support/c; the library may write nothing to stdout.
fn program(name: &str, environment: &[(&str, &str)]) -> Output {
    build_and_run(name, common::cc(), &format!("tests/support/c/{name}.c"), environment)
}

fn build_and_run(name: &str, compile: Command, source: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(build(name, compile, source));
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TRTALLOC_")) {
        command.env_remove(key);
    }
    let output = common::run(command.envs(environment.iter().copied()));
    assert!(
        output.stdout.is_empty(),
        "{name} wrote to stdout: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    output
}

fn build(name: &str, mut compile: Command, source: &str) -> PathBuf {
    let dir = common::scratch(&format!("c_{name}"));
    compile.arg(format!("-DTRTALLOC_EXPECTED_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
    compile.arg(common::root().join(source));
    compile.arg("-o").arg(dir.join(name));
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    dir.join(name)
}

#[test]
fn refusals() {
    let quiet = program("refusals", &[("TRTALLOC_LOG", "off")]);
    assert!(quiet.stderr.is_empty(), "{quiet:?}");
    let usual = program("refusals", &[]);
    let stderr = String::from_utf8_lossy(&usual.stderr);
    assert!(
        stderr.lines().all(|line| line.starts_with("trtalloc: warn: ")),
        "{stderr}"
    );
    assert!(
        stderr.contains("trtalloc_allocate: invalid argument: allocator is NULL"),
        "{stderr}"
    );
}

#[test]
fn memory() {
    program("memory", &[("TRTALLOC_DRIVER", "sim")]);
}

#[test]
fn no_driver() {
    // There is no AscendCL here, and the simulated device is not asked for.
    let output = program(
        "no_driver",
        &[("TRTALLOC_DRIVER", "ascend"), ("TRTALLOC_GUARD", "perhaps")],
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    let complaints = stderr.lines().filter(|line| line.contains("TRTALLOC_GUARD")).count();
    assert_eq!(complaints, 1, "{stderr}");
}

/// A percentage needs the device's total, which the simulated device has in its options.
#[test]
fn the_limit_is_known_from_the_beginning() {
    for (limit, bytes) in [
        ("", "0"),
        ("4GB", "4000000000"),
        ("3 MiB", "3145728"),
        ("50%", "536870912"),
    ] {
        let environment = [
            ("TRTALLOC_DRIVER", "sim"),
            ("TRTALLOC_SIM_MEMORY", "1GiB"),
            ("TRTALLOC_LIMIT", limit),
            ("TRTALLOC_TEST_LIMIT", bytes),
        ];
        let output = program("limit", &environment);
        assert!(output.stderr.is_empty(), "{limit}: {output:?}");
    }
}

/// trtalloc_default() initializes no driver before its first allocation, and asks one that the program has initialized.
#[test]
fn a_limit_in_percent_is_known_once_the_program_uses_cuda() {
    let folder = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    let environment = [
        ("LD_LIBRARY_PATH", folder.to_str().unwrap()),
        ("SIMCUDA_MEMORY", "1073741824"),
        ("TRTALLOC_LIMIT", "50%"),
    ];
    let mut compile = common::cc();
    compile.arg("-ldl");
    let output = build_and_run(
        "limit_percent",
        compile,
        "tests/support/c/limit_percent.c",
        &environment,
    );
    assert!(output.stderr.is_empty(), "{output:?}");
}

/// What docs/which-model.md shows is what the library writes.
#[test]
fn models_have_figures_of_their_own() {
    let output = program("models", &[("TRTALLOC_DRIVER", "sim"), ("TRTALLOC_STATS", "1")]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let shown = |line: &str| !line.starts_with("trtalloc: device 0: 5 allocations");
    let lines: Vec<&str> = stderr.lines().filter(|line| shown(line)).collect();
    assert_eq!(lines.len(), 8, "{stderr}");
    assert_shown("which-model", &lines);
}

/// What docs/leave-memory.md and docs/memory-not-asked-for.md show is what the library writes: what others hold, and what
/// stays free for them.
#[test]
fn others_have_memory_that_stays_theirs() {
    let folder = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    let mut compile = common::cc();
    compile.arg("-ldl");
    let folder = folder.to_str().unwrap();
    let environment = [("LD_LIBRARY_PATH", folder), ("TRTALLOC_LOG", "off")];
    let output = build_and_run("room", compile, "tests/support/c/room.c", &environment);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 9, "{stderr}");
    assert_shown("leave-memory", &lines);
    assert_shown("memory-not-asked-for", &lines[1..5]);
}

/// What docs/share-budget.md shows is what two processes write, with a budget and without one.
#[test]
fn two_servers_share_one_gpu() {
    let directory = common::scratch("two_servers");
    let mut rights = std::fs::metadata(&directory).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut rights, 0o700);
    std::fs::set_permissions(&directory, rights).unwrap();
    let runtime = directory.to_str().unwrap();
    for budget in ["none", "servers:20GiB"] {
        let devices = directory.join(budget).display().to_string();
        let environment = [
            ("TRTALLOC_DRIVER", "sim"),
            ("TRTALLOC_SIM_SHARED", devices.as_str()),
            ("TRTALLOC_SHARE_BUDGET", budget),
            ("TRTALLOC_WAIT_MS", "1000"),
            ("TRTALLOC_LOG", "off"),
            ("XDG_RUNTIME_DIR", runtime),
        ];
        let output = build_and_run("two", common::cc(), "tests/support/c/two.c", &environment);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = stderr.lines().collect();
        assert_eq!(lines.len(), 4, "{stderr}");
        assert_shown("share-budget", &lines);
    }
    let files = std::fs::read_dir(directory.join("trtalloc")).unwrap();
    let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, ["servers.73696d75-6c61-7465-6420-646576696300.budget"]);
}

/// Each of the lines is on that page of docs/, which breaks long ones.
fn assert_shown(page: &str, lines: &[&str]) {
    let text = std::fs::read_to_string(common::root().join(format!("docs/{page}.md"))).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = words(&text);
    for line in lines {
        assert!(
            text.contains(&words(line)),
            "docs/{page}.md does not have:\n{line}\nof:\n{}",
            lines.join("\n")
        );
    }
}

/// Adapters are never freed, and are reachable from one list.
#[test]
fn names_are_no_leak() {
    let mut checked = common::cc();
    checked.args(["-g", "-fsanitize=leak"]);
    let built = build("names", checked, "tests/support/c/names.c");
    let run = |arguments: &[&str]| {
        Command::new(&built)
            .args(arguments)
            .env("TRTALLOC_LOG", "off")
            .output()
            .unwrap()
    };
    let output = run(&[]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let stderr = String::from_utf8_lossy(&run(&["lose"]).stderr).into_owned();
    assert!(stderr.contains("4711 byte(s) leaked in 1 allocation(s)"), "{stderr}");
}

#[test]
fn destroyed_allocators_leave_no_descriptors() {
    program("many", &[]);
}

/// A setuid program that is linked with the library must not do as the environment of its caller says.
#[test]
fn a_setuid_program_ignores_the_environment() {
    const OTHER_USER: u32 = 65534;
    let program = build("rights", common::cc(), "tests/support/c/rights.c");
    let owned = std::os::unix::fs::chown(&program, Some(OTHER_USER), None);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    if owned.and_then(|()| std::fs::set_permissions(&program, mode)).is_err() {
        common::skip("setuid", "only root can give a file to another user");
    }
    let variables = [
        ("TRTALLOC_LIMIT", "4GB"),
        ("TRTALLOC_LIMTI", "4GB"),
        ("TRTALLOC_GUARD", "much"),
    ];
    let output = Command::new(&program).envs(variables).output().unwrap();
    match output.status.code() {
        Some(77) => common::skip("setuid", "programs of this folder gain no rights"),
        // A checkout that only root may read, whatever the library does.
        Some(127) => common::unsupported("that user cannot read the library"),
        status => assert_eq!((status, output.stderr.as_slice()), (Some(0), &b""[..]), "{output:?}"),
    }
}

#[test]
fn a_destroyed_allocator_calls_no_handler() {
    program("handler", &[]);
}

/// Nothing unwinds through the library, and no call returns as if nothing had happened.
#[test]
fn an_exception_of_a_handler_ends_the_process() {
    let program = build(
        "throwing_handler",
        common::cxx(),
        "tests/support/cpp/throwing_handler.cpp",
    );
    let output = Command::new(program).output().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(6), "{output:?}");
}

/// The last `log=` that an allocator's options name counts. `inject` and `disable` act in the environment alone.
#[test]
fn options_of_the_process_are_not_ignored() {
    let output = program("options", &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said: Vec<Vec<&str>> = stderr
        .split("-- ")
        .skip(1)
        .map(|of| of.lines().skip(1).collect())
        .collect();
    assert_eq!(
        said.iter().map(Vec::len).collect::<Vec<_>>(),
        [0, 0, 1, 2, 2],
        "{stderr}"
    );
    assert!(
        said[2][0].contains("is not of a block") || said[2][0].contains("is no block"),
        "{stderr}"
    );
    assert!(
        said[3][0].contains("`inject`") && said[3][0].contains("TRTALLOC_INJECT=1"),
        "{stderr}"
    );
    assert!(
        said[4][0].contains("`disable`") && said[4][0].contains("TRTALLOC_DISABLE=1"),
        "{stderr}"
    );
}

#[test]
fn raii() {
    build_and_run("raii", common::cxx(), "tests/support/cpp/raii.cpp", &[]);
}

/// Over memory of the program's own no driver is needed; but one that is there and cannot be opened may have work of others.
#[test]
fn memory_of_the_programs_own() {
    let program = build("given", common::cc(), "tests/support/c/given.c");
    let run = |libraries: Option<&Path>, devices: &str, expected: &str| {
        let mut command = Command::new(&program);
        command
            .arg(expected)
            .env("TRTALLOC_LOG", "off")
            .env("SIMCUDA_DEVICES", devices);
        libraries.map(|folder| command.env("LD_LIBRARY_PATH", folder));
        common::run(&mut command);
    };
    // Whatever this machine has.
    run(None, "1", "works");
    let folder = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
    run(Some(&folder), "1", "works");
    run(Some(&folder), "0", "works");
    let other = common::scratch("no_driver_at_all");
    std::fs::copy(common::library_dir().join("libtrtalloc.so"), other.join("libcuda.so.1")).unwrap();
    run(Some(&other), "1", "cuInit is missing");
}
