//! Programs that use the stand-ins for TensorRT of tests/programs/inject: what `run` reports about them, and `doctor` before.

use std::path::Path;
use std::process::Output;

use crate::common;
use crate::inject::standin::{self, Built, VERSIONS};
use crate::run::table::Outcome;
use crate::run::{expect, last, none_seen, text, trtalloc_run};

/// The stand-ins for 8.6, whose declarations are this project's, and for the newest TensorRT-RTX.
fn built(name: &str) -> Option<&'static Built> {
    let version = VERSIONS.iter().find(|version| version.name == name).unwrap();
    match version.built() {
        Ok(built) => Some(built),
        Err(Outcome::Skipped(what, reason)) => {
            common::skip_part(what, &reason);
            None
        }
        Err(_) => panic!("{name} cannot be built"),
    }
}

fn on_sim(program: &Path, arguments: &[&str]) -> Output {
    let mut command = trtalloc_run(&["--driver", "sim", "--sim_memory", "256MiB", "--log", "error", "--"]);
    let output = command.arg(program).args(arguments).output().unwrap();
    expect(&output, 0);
    output
}

#[test]
fn last_line_names_tensorrt_and_its_use() {
    for (name, words) in [("8.6", "TensorRT 8.6.1"), ("RTX 1.7", "TensorRT-RTX 1.7.")] {
        let Some(built) = built(name) else { continue };
        let library = built.library.to_str().unwrap();
        for (program, arguments) in [(built.linked("linked", &[]), &[][..]), (built.looks_up(), &[library])] {
            let output = on_sim(&program, arguments);
            let out = text(&output.stdout);
            assert!(
                out.contains("runtime: attached") && out.contains("4 allocations"),
                "{out}"
            );
            let said = last(&output);
            assert!(said.starts_with(words), "{said}");
            assert!(said.contains("was used by one process; peak "), "{said}");
            assert!(said.ends_with("; 4 allocations, 0 refused"), "{said}");
        }
    }
}

#[test]
fn last_line_counts_eight_threads() {
    let Some(built) = built("8.6") else { return };
    let output = on_sim(&built.linked("linked", &[]), &["", "threads"]);
    let said = last(&output);
    assert!(
        said.starts_with("TensorRT 8.6.1 was used by one process; peak "),
        "{said}"
    );
    assert!(said.ends_with("; 640 allocations, 0 refused"), "{said}");
}

#[test]
fn snapshot_and_summary_are_written_on_request() {
    let Some(built) = built("8.6") else { return };
    let dir = common::scratch("run_snapshot");
    let mut command = trtalloc_run(&[
        "--driver",
        "sim",
        "--history",
        "all",
        "--stats",
        "--snapshot",
        "%p.json",
        "--",
    ]);
    let output = command
        .arg(built.linked("linked", &[]))
        .current_dir(&dir)
        .output()
        .unwrap();
    expect(&output, 0);
    let said = text(&output.stderr);
    let summary = said.lines().find(|line| line.starts_with("trtalloc: device 0: "));
    assert!(summary.is_some_and(|line| line.contains("4 allocations")), "{said}");
    assert!(last(&output).ends_with("; 4 allocations, 0 refused"), "{said}");
    let files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let snapshot = std::fs::read_to_string(&files[0]).unwrap();
    assert!(
        snapshot.contains("device_traces") && snapshot.contains("free_completed"),
        "{snapshot}"
    );
}

#[test]
fn last_line_reports_objects_with_their_own_allocator() {
    let Some(built) = built("8.6") else { return };
    let output = on_sim(&built.linked("linked", &[]), &["", "version=7000"]);
    assert!(text(&output.stdout).contains("runtime: own"));
    let said = last(&output);
    assert!(
        said.starts_with("TensorRT 7.0.0 was used by one process; 2 of its 2 objects kept its own allocator"),
        "{said}"
    );
    // A TensorRT that the library cannot see.
    let output = on_sim(&built.linked_in(), &[]);
    assert_eq!(last(&output), none_seen());
    // A plugin that finds TensorRT's functions before ours.
    let output = on_sim(standin::host(), &["deep", "", built.plugin().to_str().unwrap()]);
    assert!(text(&output.stdout).contains("runtime: own"), "{output:?}");
    assert_eq!(last(&output), none_seen());
}

fn doctor(program: &Path) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    let output = command.arg("doctor").arg(program).args(["--", "-x"]).output().unwrap();
    // Advice is wrapped over lines.
    let said: Vec<&str> = text(&output.stdout).split_whitespace().collect();
    (output.status.code(), said.join(" "))
}

#[test]
fn doctor_predicts_which_calls_are_interposed() {
    let Some(built) = built("8.6") else { return };
    let (status, said) = doctor(&built.linked("linked", &[]));
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("linked linked with TensorRT: caught"), "{said}");
    assert!(
        said.contains("libnvinfer.so.8 TensorRT 8, as its name says: served"),
        "{said}"
    );
    assert!(said.contains(built.library.to_str().unwrap()), "{said}");

    let (status, said) = doctor(&built.looks_up());
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("no TensorRT is linked to it"), "{said}");
    assert!(said.contains("looks_up opens libraries: dlopen, dlsym"), "{said}");
    assert!(said.contains("RTLD_DEEPBIND"), "{said}");

    let (status, said) = doctor(&built.linked_in());
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("static TensorRT is linked into it: cannot be caught"),
        "{said}"
    );
}

#[test]
fn doctor_takes_this_library_for_no_tensorrt() {
    let dir = common::scratch("run_doctor_own");
    let (source, program) = (dir.join("own.c"), dir.join("own"));
    std::fs::write(
        &source,
        "#include <trtalloc/trtalloc.h>\nint main(void) { return trtalloc_default() == 0; }\n",
    )
    .unwrap();
    let mut compile = common::cc();
    compile.arg(&source).arg("-o").arg(&program);
    common::link(&mut compile, &dir);
    common::run(&mut compile);
    let (status, said) = doctor(&program);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains("trtalloc itself, which the program is linked with"),
        "{said}"
    );
    assert!(said.contains("no TensorRT is linked to it"), "{said}");
    assert!(!said.contains("TensorRT is linked into it"), "{said}");
}

#[test]
fn doctor_reports_programs_it_cannot_read() {
    let (status, said) = doctor(Path::new("/nowhere/program"));
    assert_eq!((status, said.as_str()), (Some(1), ""));
    let dir = common::scratch("run_doctor");
    let path = dir.join("script");
    let mode = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    std::fs::write(&path, "#!/usr/bin/env -S A=1 bash\nexec python3\n").unwrap();
    mode(&path);
    let (status, said) = doctor(&path);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("/bash preloading works"), "{said}");
    assert!(said.contains("is not known here; it inherits the library"), "{said}");
    // A shell runs it, the kernel does not.
    std::fs::write(&path, "exec python3\n").unwrap();
    let (status, said) = doctor(&path);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("neither a program nor a script that begins with #!"),
        "{said}"
    );
    // Library names in the program's bytes, and libraries that are missing.
    let source = dir.join("opens.c");
    std::fs::write(
        &source,
        "#include <dlfcn.h>\nint missing(void);\nint main(void) {\n\
         return dlopen(\"libnvinfer.so.10\", RTLD_NOW) == 0 && dlopen(\"libnvinfer_plugin.so.10\", RTLD_NOW) == 0 && missing(); }\n",
    )
    .unwrap();
    let library = dir.join("libmissing.so");
    let empty = dir.join("missing.c");
    std::fs::write(&empty, "int missing(void);\nint missing(void) { return 0; }\n").unwrap();
    common::run(
        common::cc()
            .args(["-shared", "-fPIC"])
            .arg(&empty)
            .arg("-o")
            .arg(&library),
    );
    let program = dir.join("opens");
    common::run(
        common::cc()
            .arg(&source)
            .arg(&library)
            .arg("-ldl")
            .arg("-o")
            .arg(&program),
    );
    std::fs::remove_file(&library).unwrap();
    let (status, said) = doctor(&program);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("opens opens libraries: dlopen; it names libnvinfer.so.10"),
        "{said}"
    );
    assert!(!said.contains("plugin"), "{said}");
    assert!(said.contains("it is not found, so the program cannot start"), "{said}");
}

#[test]
fn doctor_recognizes_other_machines_and_musl() {
    use std::os::unix::fs::PermissionsExt;
    let dir = common::scratch("run_other");
    let path = dir.join("narrow");
    std::fs::write(&path, [&b"\x7fELF\x01\x01\x01"[..], &[0; 57]].concat()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (status, said) = doctor(&path);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("is for another machine than libtrtalloc.so"), "{said}");

    // Its loader is named but may be missing here; then the kernel does not find it.
    let (source, program) = (dir.join("main.c"), dir.join("musl"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let loader = "-Wl,--dynamic-linker=/nowhere/ld-musl-machine.so.1";
    common::run(common::cc().arg(&source).arg(loader).arg("-o").arg(&program));
    let (status, said) = doctor(&program);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("is linked with musl, and libtrtalloc.so needs glibc"),
        "{said}"
    );
    let output = trtalloc_run(&["--"]).arg(&program).output().unwrap();
    expect(&output, 127);
    assert!(
        text(&output.stderr).contains("is linked with musl"),
        "{}",
        text(&output.stderr)
    );
}

/// A stand-in for Python's packages, and an interpreter that reports where they are.
#[test]
fn doctor_finds_python_packages() {
    let Some(built) = built("8.6") else { return };
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        common::skip("python", "no python3");
    }
    let find = ["-c", "import sys; print(sys.executable)"];
    let output = common::run(std::process::Command::new("python3").args(find));
    let packages = common::scratch("run_packages");
    let bindings = packages.join("tensorrt_bindings");
    std::fs::create_dir_all(&bindings).unwrap();
    std::fs::copy(built.plugin(), bindings.join("tensorrt.so")).unwrap();
    std::fs::copy(&built.library, bindings.join("libnvinfer.so.8")).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    command
        .args(["doctor", text(&output.stdout).trim()])
        .env("PYTHONPATH", &packages);
    let output = command.output().unwrap();
    expect(&output, 0);
    let said: Vec<&str> = text(&output.stdout).split_whitespace().collect();
    let said = said.join(" ");
    assert!(said.contains("tensorrt.so linked with TensorRT: caught"), "{said}");
    assert!(
        said.contains("libnvinfer.so.8 TensorRT 8, as its name says: served"),
        "{said}"
    );
}
