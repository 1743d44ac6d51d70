//! `trtalloc doctor`, with and without what it looks for.

use crate::common::{self, simcuda};

use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the doctor writes, with these variables and arguments and nothing else of the environment that it looks at.
fn doctor(arguments: &[&str], environment: &[(&str, &Path)]) -> String {
    examined(arguments, environment).0
}

/// The same, and its exit status.
fn examined(arguments: &[&str], environment: &[(&str, &Path)]) -> (String, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TRTALLOC_") || key.starts_with("PYTHON")) {
        command.env_remove(key);
    }
    // Of this test's own path: the library folders that cargo names.
    command.env("LD_LIBRARY_PATH", "");
    command.arg("doctor").args(arguments).envs(environment.iter().copied());
    let output = command.output().unwrap();
    let status = output.status.code().unwrap_or(-1);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(status, 0 | 1), "{}: {said}", output.status);
    (String::from_utf8(output.stdout).unwrap(), status)
}

/// The lines about `what`: its own, and what is indented deeper.
fn about<'a>(text: &'a str, what: &str) -> Vec<&'a str> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text
        .lines()
        .skip_while(|line| line.trim() != what && !line.trim().starts_with(&format!("{what} ")));
    let first = lines.next().unwrap_or_else(|| panic!("nothing about {what}: {text}"));
    let rest = lines.take_while(|line| indent(line) > indent(first));
    std::iter::once(first).chain(rest).collect()
}

/// Each of `words` is in what was said.
fn says(said: &[&str], words: &[&str]) {
    // Advice is wrapped.
    let text: Vec<&str> = said.iter().flat_map(|line| line.split_whitespace()).collect();
    let text = text.join(" ");
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text:?}");
    }
}

/// A shared library of C source, as `file` in a folder of its own.
fn library(folder: &Path, file: &str, source: &str) {
    std::fs::create_dir_all(folder).unwrap();
    let c = folder.join("source.c");
    std::fs::write(&c, source).unwrap();
    let mut compile = common::cc();
    common::run(
        compile
            .args(["-shared", "-fPIC"])
            .arg(&c)
            .arg("-o")
            .arg(folder.join(file)),
    );
}

/// A program that was built with a newer version of a library than there is.
#[test]
fn a_library_that_is_too_old_is_named() {
    let dir = common::scratch("doctor_version");
    let of_version = |version: &str| {
        std::fs::write(dir.join("map"), format!("{version} {{ global: f; }};\n")).unwrap();
        std::fs::write(dir.join("f.c"), "int f(void);\nint f(void) { return 3; }\n").unwrap();
        let mut compile = common::cc();
        compile.args(["-shared", "-fPIC", "-Wl,-soname,libversioned.so"]);
        compile
            .arg(format!("-Wl,--version-script={}", dir.join("map").display()))
            .arg(dir.join("f.c"));
        common::run(compile.arg("-o").arg(dir.join("libversioned.so")));
    };
    let program = dir.join("program");
    of_version("NEW_2");
    std::fs::write(dir.join("main.c"), "int f(void);\nint main(void) { return f(); }\n").unwrap();
    let mut compile = common::cc();
    compile.arg(dir.join("main.c")).arg("-L").arg(&dir);
    compile.args(["-lversioned", "-Wl,-rpath,$ORIGIN", "-o"]).arg(&program);
    common::run(&mut compile);
    let name = program.to_str().unwrap();
    assert_eq!(examined(&[name], &[]).1, 0);
    of_version("OLD_1");
    assert_eq!(Command::new(&program).output().unwrap().status.code(), Some(1));
    let (text, status) = examined(&[name], &[]);
    assert_eq!(status, 1, "{text}");
    says(
        &about(&text, "libversioned.so"),
        &[
            "no: it has no version NEW_2, which",
            "/program needs, so the program cannot start",
            "-> ",
        ],
    );
}

const VERSION: &str = "int getInferLibVersion(void);\nint getInferLibVersion(void) { return ";

#[test]
fn missing_parts_come_with_advice() {
    let text = doctor(&[], &[]);
    says(&about(&text, "sim"), &["simulated", "devices: 1"]);
    says(&about(&text, "virtual memory"), &["works by trial, handles of 2.0 MiB"]);
    says(&about(&text, "this process"), &["no", "setGpuAllocator"]);
    says(&about(&text, "environment"), &["the defaults hold"]);
    // A line "no" is never the last word, but for what this version does not have.
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.contains(" no: ") && !line.contains("later version") {
            let next = lines.peek().copied().unwrap_or_default();
            assert!(next.trim_start().starts_with("-> "), "no advice after {line:?}: {text}");
        }
    }
}

#[test]
fn a_cuda_device_is_tried() {
    let Some(folder) = simcuda::directory() else {
        common::skip("simcuda", "the simulated libcuda is not built");
    };
    let text = doctor(&[], &[("LD_LIBRARY_PATH", &folder)]);
    says(&about(&text, "cuda"), &["yes: CUDA 1", "devices: 1"]);
    let device = about(&text, "device 0").join("\n");
    // The simulated library exports no memory and has no RDMA: both are a "no" with advice.
    says(
        &[&device],
        &[
            "virtual memory works by trial",
            "other devices none here",
            "no: cudaIpcGetMemHandle does not take this memory",
            "RDMA no: cuMemCreate failed with 801",
            "-> Where a network or storage card reads this memory: set backing=malloc.",
        ],
    );
}

#[test]
fn an_ascend_device_is_tried() {
    says(
        &about(&doctor(&[], &[]), "ascend"),
        &["no: libascendcl.so is missing", "-> "],
    );
    let Some(folder) = simcuda::ascend() else {
        common::skip("simascend", "the stand-in for AscendCL is not built");
    };
    let text = doctor(
        &[],
        &[("LD_LIBRARY_PATH", &folder), ("SIMASCEND_DEVICES", Path::new("2"))],
    );
    says(
        &about(&text, "ascend"),
        &[
            "yes: AscendCL",
            "devices: 2",
            "virtual memory works by trial",
            "stream ids no",
        ],
    );
    let text = doctor(&[], &[("LD_LIBRARY_PATH", &folder), ("SIMASCEND_VMM", Path::new("0"))]);
    says(
        &about(&text, "ascend"),
        &["virtual memory no", "backing=malloc is used"],
    );
    let variables = [
        ("LD_LIBRARY_PATH", folder.as_path()),
        ("SIMASCEND_MISSING", Path::new("aclrtFree")),
    ];
    says(
        &about(&doctor(&[], &variables), "ascend"),
        &["no: aclrtFree is missing", "too old"],
    );
}

#[test]
fn every_tensorrt_is_found_and_named() {
    let dir = common::scratch("doctor_tensorrt");
    let (linked, packages) = (dir.join("linked"), dir.join("packages"));
    library(&linked, "libnvinfer.so.10.16.1", &format!("{VERSION}101601; }}\n"));
    std::os::unix::fs::symlink("libnvinfer.so.10.16.1", linked.join("libnvinfer.so.10")).unwrap();
    library(&linked, "libnvinfer.so.8", &format!("{VERSION}8601; }}\n"));
    library(&linked, "libnvinfer_plugin.so.10", &format!("{VERSION}1; }}\n"));
    // One whose interface is not known, one that says nothing, one that ends the process, one that is not whole.
    library(&linked, "libnvinfer.so.12", &format!("{VERSION}120000; }}\n"));
    library(
        &linked,
        "libnvinfer_lean.so.10",
        "int nothing(void);\nint nothing(void) { return 0; }\n",
    );
    library(
        &linked,
        "libnvinfer_dispatch.so.10",
        "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n",
    );
    std::fs::write(linked.join("libnvinfer_lean.so.11"), "half a file").unwrap();
    library(
        &packages.join("tensorrt_rtx_libs"),
        "libtensorrt_rtx.so.1",
        &format!("{VERSION}10701; }}\n"),
    );

    let text = doctor(&[], &[("LD_LIBRARY_PATH", &linked), ("PYTHONPATH", &packages)]);
    says(
        &about(&text, "libnvinfer.so.10"),
        &["TensorRT 10.16.1: served", "(LD_LIBRARY_PATH)"],
    );
    says(&about(&text, "libnvinfer.so.8"), &["TensorRT 8.6.1: served"]);
    says(
        &about(&text, "libnvinfer.so.12"),
        &["TensorRT 12.0.0: its interface is not known", "-> A newer trtalloc"],
    );
    says(&about(&text, "libnvinfer_lean.so.10"), &["no: reports no version"]);
    says(
        &about(&text, "libnvinfer_dispatch.so.10"),
        &["no: loading it ends the process"],
    );
    says(
        &about(&text, "libnvinfer_lean.so.11"),
        &["no: ", "libnvinfer_lean.so.11"],
    );
    assert!(!text.contains("plugin"), "{text}");
    // A file is listed once, whatever names it has.
    assert_eq!(text.matches("10.16.1: served").count(), 1, "{text}");
    if Command::new("python3").arg("--version").output().is_ok() {
        says(
            &about(&text, "libtensorrt_rtx.so.1"),
            &["TensorRT-RTX 1.7.1: served", "(a package of python3)"],
        );
    }
}

/// What a library writes while it loads, and a process that it starts, hold nothing up.
#[test]
fn a_library_that_writes_much_is_served() {
    let dir = common::scratch("doctor_writes");
    let writes = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
                  __attribute__((constructor)) static void start(void) {\n\
                  for (int i = 0; i < 4000; ++i) { puts(\"0123456789012345678901234567890123456789\"); }\n\
                  fflush(stdout);\n";
    library(&dir, "libnvinfer.so.10", &format!("{writes}}}\n{VERSION}101601; }}\n"));
    library(
        &dir,
        "libnvinfer_lean.so.10",
        &format!("{writes}if (fork() == 0) {{ sleep(50); _exit(0); }} }}\n{VERSION}101601; }}\n"),
    );
    let start = std::time::Instant::now();
    let text = doctor(&[], &[("LD_LIBRARY_PATH", &dir)]);
    for name in ["libnvinfer.so.10", "libnvinfer_lean.so.10"] {
        says(&about(&text, name), &["TensorRT 10.16.1: served"]);
    }
    assert!(start.elapsed().as_secs() < 30, "{text}");
}

#[test]
fn whether_it_is_attached() {
    let library = common::library_dir().join("libtrtalloc.so");
    let text = doctor(&[], &[("LD_PRELOAD", &library)]);
    says(
        &about(&text, "this process"),
        &["has loaded", "libtrtalloc.so", "setGpuAllocator"],
    );
    let text = doctor(&[], &[("LD_PRELOAD", Path::new("/nowhere/libtrtalloc.so"))]);
    says(
        &about(&text, "this process"),
        &["no, though LD_PRELOAD", "-> Is that path right"],
    );

    // Names of files have any bytes.
    let dir = common::scratch("doctor_names");
    let odd = dir.join(std::ffi::OsStr::from_bytes(b"cat\xff"));
    std::fs::copy("/bin/cat", &odd).unwrap();
    let cat = Path::new("cat");
    for (program, preload, words) in [
        (cat, Some(&library), "has loaded"),
        (cat, None, "has not loaded libtrtalloc.so; it has no TensorRT"),
        (&odd, Some(&library), "has loaded"),
    ] {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command.spawn().unwrap();
        // What it gives back it can only give once all is loaded.
        let (mut to, mut back) = (child.stdin.take().unwrap(), [0]);
        to.write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut back).unwrap();
        let pid = child.id().to_string();
        let text = doctor(&["--pid", &pid], &[]);
        drop(to);
        assert!(child.wait().unwrap().success());
        says(&about(&text, &format!("process {pid}")), &[words]);
    }
    let text = doctor(&["--pid", "4194305"], &[]);
    says(&about(&text, "process 4194305"), &["cannot be inspected", "-> "]);
}

#[test]
fn options_are_read_aloud() {
    let environment = [
        ("TRTALLOC_LIMIT", Path::new("3G")),
        ("TRTALLOC_GUARD", Path::new("perhaps")),
        ("TRTALLOC_LIMTI", Path::new("3G")),
        ("TRTALLOC_FILL", Path::new("")),
    ];
    let text = doctor(&[], &environment);
    says(&about(&text, "TRTALLOC_LIMIT"), &["3G"]);
    says(&about(&text, "TRTALLOC_GUARD"), &["`perhaps`", "the default holds"]);
    says(
        &about(&text, "TRTALLOC_LIMTI"),
        &["is no option; the nearest is TRTALLOC_LIMIT", "-> "],
    );
    says(&about(&text, "TRTALLOC_FILL"), &["empty"]);
}

const SIM: (&str, &str) = ("TRTALLOC_DRIVER", "sim");

/// The doctor's exit status with these variables.
fn status(arguments: &[&str], environment: &[(&str, &str)]) -> i32 {
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (*name, Path::new(value)))
        .collect();
    examined(arguments, &environment).1
}

#[test]
fn the_status_is_1_where_something_is_missing() {
    // No AscendCL is here, whatever else is.
    assert_eq!(status(&[], &[("TRTALLOC_DRIVER", "ascend")]), 1);
    assert_eq!(status(&[], &[SIM]), 0);
    assert_eq!(
        status(&[], &[SIM, ("TRTALLOC_LIMIT", "4GB"), ("TRTALLOC_LIMTI", "x")]),
        0
    );
    let (text, missing) = examined(
        &[],
        &[
            ("TRTALLOC_DRIVER", Path::new("sim")),
            ("TRTALLOC_LIMIT", Path::new("lots")),
        ],
    );
    assert_eq!(missing, 1);
    says(&about(&text, "TRTALLOC_LIMIT"), &["`lots`", "every request fails"]);
    assert_eq!(status(&[], &[SIM, ("LD_PRELOAD", "/nowhere/libtrtalloc.so")]), 1);
    assert_eq!(status(&["--pid", "4194305"], &[SIM]), 1);
    let own = std::process::id().to_string();
    assert_eq!(
        status(&["--pid", &own], &[SIM]),
        1,
        "this process has not loaded the library"
    );
    let mut attached = Command::new("cat");
    let library = common::library_dir().join("libtrtalloc.so");
    attached
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .env("LD_PRELOAD", library);
    let mut child = attached.spawn().unwrap();
    let (mut to, mut back) = (child.stdin.take().unwrap(), [0]);
    to.write_all(b"x").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut back).unwrap();
    assert_eq!(status(&["--pid", &child.id().to_string()], &[SIM]), 0);
    drop(to);
    assert!(child.wait().unwrap().success());
    // A program is looked at for what can be injected into it, whatever device is here.
    assert_eq!(status(&["cat"], &[]), 0);
}

#[test]
fn its_status_is_that_of_the_cuda_device() {
    let Some(folder) = simcuda::directory() else {
        common::skip("simcuda", "the simulated libcuda is not built");
    };
    let folder = folder.to_str().unwrap();
    let cuda = [("LD_LIBRARY_PATH", folder)];
    assert_eq!(status(&[], &cuda), 0);
    assert_eq!(status(&[], &[cuda[0], ("SIMCUDA_DEVICES", "0")]), 1);
    assert_eq!(status(&[], &[cuda[0], ("TRTALLOC_DRIVER", "ascend")]), 1);
}

/// As a shell does, the command looks for a bare name in PATH only.
#[test]
fn a_file_of_this_folder_is_hinted_at() {
    let dir = common::scratch("doctor_hint");
    let script = dir.join("rtx2.py");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    let refused = |arguments: &[&str], status: i32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trtalloc"));
        let output = command.args(arguments).current_dir(&dir).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let no_program = "rtx2.py is in this folder, but cannot be executed: name the program that runs it first";
    let said = refused(&["doctor", "rtx2.py"], 1);
    assert!(
        said.contains("rtx2.py: No such file") && said.contains(no_program),
        "{said}"
    );
    let said = refused(&["run", "--", "rtx2.py"], 127);
    assert!(said.contains(no_program), "{said}");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (arguments, status) in [(["doctor", "rtx2.py"].as_slice(), 1), (&["run", "--", "rtx2.py"], 127)] {
        let said = refused(arguments, status);
        assert!(said.contains("it is in this folder: ./rtx2.py names it"), "{said}");
    }
    let said = refused(&["doctor", "elsewhere.py"], 1);
    assert!(!said.contains("folder"), "{said}");
}
