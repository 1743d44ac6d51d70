//! Programs that do not use TensorRT behave the same with the library preloaded: their output, their status, their
//! threads and descriptors, and the dynamic linker's results. So does ONNX Runtime, whose plugin uses TensorRT.

mod provider;

use crate::common::{self, simcuda, table, wheel};

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn library() -> PathBuf {
    common::library_dir().join("libtrtalloc.so")
}

fn source(name: &str) -> PathBuf {
    common::root().join("tests/programs/preload").join(name)
}

/// Runs the command that `make` returns, without and with the library, and compares everything visible. Returns the
/// output.
#[track_caller]
fn same(make: impl Fn() -> Command) -> Output {
    let run = |preload: Option<PathBuf>| {
        let mut command = make();
        command.stdin(Stdio::null()).env_remove("LD_PRELOAD");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRTALLOC_")) {
            command.env_remove(name);
        }
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        command.output().unwrap()
    };
    let (without, with) = (run(None), run(Some(library())));
    let text = |output: &Output| {
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        format!("{}\n{out}\n{err}", output.status)
    };
    let mut shown = text(&with);
    if common::is_emulated() {
        // The program's own children are programs of this machine, whose loader says that it cannot use the library.
        let line = format!(
            "ERROR: ld.so: object '{}' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.",
            library().display()
        );
        shown = shown
            .replace(&format!("{line}\\n"), "")
            .replace(&format!("{line}\n"), "");
    }
    assert_eq!(shown, text(&without));
    without
}

#[track_caller]
fn expect(output: &Output, status: i32, words: &str) {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(status), "{out}{err}");
    assert!(out.contains(words), "{out}{err}");
}

fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Compiles sources of this folder.
fn compile(mut compiler: Command, name: &str, to: &Path, arguments: &[&str]) {
    compiler
        .args(["-D_GNU_SOURCE", "-Wno-pedantic"])
        .arg(source(name))
        .arg("-o")
        .arg(to);
    common::run(compiler.args(arguments));
}

#[test]
fn shell_is_unchanged() {
    common::not_emulated("the shell");
    let bash = || {
        let mut command = Command::new("bash");
        command.arg(source("script.sh"));
        command
    };
    expect(&same(bash), 9, "5050\n1000 lines\n");
}

#[test]
fn git_is_unchanged() {
    common::not_emulated("git");
    if !has("git") {
        common::skip("git", "no git");
    }
    let dir = common::scratch("preload_git");
    let git = || {
        let mut command = Command::new("bash");
        command.arg(source("git.sh")).current_dir(&dir);
        command
    };
    expect(&same(git), 128, "conflict 1\n");
}

#[test]
fn python_is_unchanged() {
    common::not_emulated("Python");
    if !has("python3") {
        common::skip("python", "no python3");
    }
    let python = |packages: Option<&Path>| {
        let mut command = Command::new("python3");
        command
            .arg(source("ordinary.py"))
            .env("PYTHONHASHSEED", "0")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        if let Some(packages) = packages {
            command.arg("numpy").env("PYTHONPATH", packages);
        }
        command
    };
    match wheel::fetch("numpy", "2.2.6") {
        Ok(packages) => expect(&same(|| python(Some(&packages))), 1, "forkserver ["),
        Err(reason) => {
            expect(&same(|| python(None)), 1, "forkserver [");
            common::skip_part("numpy", &reason);
        }
    }
}

#[test]
fn rust_program_is_unchanged() {
    let program = common::scratch("preload_rust").join("program");
    let mut rustc = Command::new("rustc");
    // As cargo finds them, where the tests are built for another machine.
    if let Ok(machine) = std::env::var("CARGO_BUILD_TARGET") {
        let linker = format!("CARGO_TARGET_{}_LINKER", machine.to_uppercase().replace('-', "_"));
        rustc.args(["--target", &machine]);
        if let Ok(linker) = std::env::var(linker) {
            rustc.arg(format!("-Clinker={linker}"));
        }
    }
    rustc
        .args(["--edition", "2024", "-o"])
        .arg(&program)
        .arg(source("program.rs"));
    common::run(&mut rustc);
    expect(&same(|| Command::new(&program)), 101, "Err(ConnectionRefused)");
}

#[test]
fn go_program_is_unchanged() {
    common::not_emulated("a program of gccgo");
    // gccgo's programs are linked dynamically with its runtime, so the library can be preloaded.
    let Some(compiler) = ["gccgo", "gccgo-12", "gccgo-13", "gccgo-14"]
        .into_iter()
        .find(|name| has(name))
    else {
        common::skip("go", "no gccgo");
    };
    let program = common::scratch("preload_go").join("program");
    common::run(Command::new(compiler).arg("-o").arg(&program).arg(source("hello.go")));
    expect(&same(|| Command::new(&program)), 7, "exit status 3");
    if has("go") {
        let program = program.with_file_name("of-go");
        common::run(
            Command::new("go")
                .args(["build", "-o"])
                .arg(&program)
                .arg(source("hello.go")),
        );
        expect(&same(|| Command::new(&program)), 7, "exit status 3");
    }
}

#[test]
fn cpp_program_with_its_own_runtime_is_unchanged() {
    let dir = common::scratch("preload_cpp");
    let mut ask = common::cxx();
    let output = common::run(ask.arg("-print-file-name=libstdc++.so.6"));
    let runtime = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    std::fs::copy(runtime, dir.join("libstdc++.so.6")).unwrap();
    let program = dir.join("program");
    compile(
        common::cxx(),
        "thrower.cpp",
        &program,
        &["-pthread", "-Wl,-rpath,$ORIGIN"],
    );
    expect(&same(|| Command::new(&program)), 2, "4950 4950");
}

/// Like conda's Python: it opens a module that needs a version of the C++ runtime which only its own folder has.
#[test]
fn program_with_a_newer_cpp_runtime_is_unchanged() {
    let dir = common::scratch("preload_newer");
    let write = |name: &str, text: &str| {
        std::fs::write(dir.join(name), text).unwrap();
        dir.join(name)
    };
    let library = |mut compiler: Command, source: PathBuf, name: &str, arguments: &[&str]| {
        compiler
            .args(["-shared", "-fPIC"])
            .arg(source)
            .arg("-L")
            .arg(&dir)
            .args(arguments);
        common::run(compiler.arg("-o").arg(dir.join(name)));
    };
    let runtime = write("runtime.c", "int newer(void);\nint newer(void) { return 6; }\n");
    let versions = write("versions", "GLIBCXX_99.0 { global: newer; local: *; };\n");
    let versions = format!("-Wl,-soname,libstdc++.so.6,--version-script={}", versions.display());
    library(common::cc(), runtime, "libstdc++.so.6", &[&versions]);
    let module = write(
        "module.c",
        "int newer(void);\nint ask(void);\nint ask(void) { return newer(); }\n",
    );
    library(
        common::cc(),
        module,
        "module.so",
        &["-l:libstdc++.so.6", "-Wl,-rpath,$ORIGIN"],
    );
    let main = dir.join("main");
    compile(common::cc(), "opener.c", &main, &[]);
    let program = || {
        let mut command = Command::new(&main);
        command.arg(dir.join("module.so"));
        command
    };
    expect(&same(program), 6, "");
    // The other preloaded library needs the system's C++ runtime, which causes the conflict.
    let other = write("other.cpp", "#include <iostream>\nvoid say() { std::cout << 1; }\n");
    let other = (other, dir.with_file_name("preload_newer_other"));
    std::fs::create_dir_all(&other.1).unwrap();
    let mut build = common::cxx();
    build
        .args(["-shared", "-fPIC"])
        .arg(other.0)
        .arg("-o")
        .arg(other.1.join("other.so"));
    common::run(&mut build);
    let output = program().env("LD_PRELOAD", other.1.join("other.so")).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("GLIBCXX_99.0"),
        "{output:?}"
    );
}

fn plugin(dir: &Path) -> PathBuf {
    let plugin = dir.join("plugin.so");
    compile(common::cc(), "plugin.c", &plugin, &["-shared", "-fPIC"]);
    plugin
}

#[test]
fn threads_descriptors_and_linker_results_are_unchanged() {
    let dir = common::scratch("preload_probe");
    let (probe, plugin) = (dir.join("probe"), plugin(&dir));
    compile(common::cc(), "probe.c", &probe, &["-pthread"]);
    let output = same(|| {
        let mut command = Command::new(&probe);
        command.arg(&plugin);
        command
    });
    expect(
        &output,
        3,
        "next /libc.so.6, first is the one called: yes, nothing behind",
    );
}

#[test]
fn program_with_its_own_dlsym_is_unchanged() {
    let dir = common::scratch("preload_hook");
    let (hook, plugin) = (dir.join("hook"), plugin(&dir));
    let version = match cfg!(target_arch = "aarch64") {
        true => "-DVERSION=\"GLIBC_2.17\"",
        false => "-DVERSION=\"GLIBC_2.2.5\"",
    };
    // A dlsym that its libraries find, and one that only the program itself uses.
    for how in ["-rdynamic", "-no-pie"] {
        compile(common::cc(), "hook.c", &hook, &[version, how]);
        let output = same(|| {
            let mut command = Command::new(&hook);
            command.arg(&plugin);
            command
        });
        expect(&output, 8, "through the hook\nreplaced\n");
    }
}

/// In a process that never uses TensorRT, the library makes no system call once it is loaded.
#[test]
fn process_without_tensorrt_makes_no_system_calls() {
    common::not_emulated("strace");
    if !has("strace") {
        common::skip("strace", "no strace");
    }
    let calls = |preload: bool| {
        let mut command = Command::new("strace");
        command.args(["-f", "-o", "/dev/stdout"]);
        if preload {
            command.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
        }
        let output = common::run(command.arg("true").env_remove("LD_PRELOAD"));
        let text = String::from_utf8(output.stdout).unwrap();
        let names = |line: &str| Some(line.split_once(' ')?.1.trim_start().split('(').next()?.to_owned());
        // The calls after the loader's work, which ends when it frees its cache. The linked C++ runtime allocates
        // memory for exceptions once, by malloc, and wakes no thread, once.
        let all: Vec<String> = text.lines().filter_map(names).collect();
        let begun = all
            .iter()
            .position(|name| name == "munmap")
            .expect("the loader has a cache");
        let runtime = ["futex", "brk", "getrandom"];
        let after = all[begun..].iter().filter(|name| !runtime.contains(&name.as_str()));
        after.cloned().collect::<Vec<_>>()
    };
    assert_eq!(calls(true), calls(false));
}
