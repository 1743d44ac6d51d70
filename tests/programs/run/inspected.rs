//! `doctor PROGRAM` runs nothing that the program's file names, and says "unknown" of what only a run would show.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::run::text;

/// A folder with a C file whose code leaves a file named `ran` there.
struct Place {
    dir: PathBuf,
}

impl Place {
    fn new(name: &str) -> Place {
        let dir = common::scratch(name);
        let marks = format!("fclose(fopen(\"{}\", \"w\"));", dir.join("ran").display());
        let source = format!(
            "#include <stdio.h>\nint mark(void);\nint mark(void) {{ {marks} return 0; }}\n\
             __attribute__((constructor)) static void start(void) {{ mark(); }}\n\
             unsigned la_version(unsigned version);\nunsigned la_version(unsigned version) {{ mark(); return version; }}\n\
             int getInferLibVersion(void);\nint getInferLibVersion(void) {{ return 101601; }}\n\
             #ifdef PROGRAM\nint main(void) {{ return 0; }}\n#endif\n"
        );
        std::fs::write(dir.join("mark.c"), source).unwrap();
        std::fs::write(dir.join("main.c"), "int main(void) { return 0; }\n").unwrap();
        Place { dir }
    }

    /// A library of that code.
    fn library(&self, name: &str) -> PathBuf {
        let library = self.dir.join(name);
        let mut compile = common::cc();
        compile.args(["-shared", "-fPIC"]).arg(format!("-Wl,-soname,{name}"));
        common::run(compile.arg(self.dir.join("mark.c")).arg("-o").arg(&library));
        library
    }

    /// A program that does nothing, linked with these arguments.
    fn program(&self, name: &str, arguments: &[&str]) -> PathBuf {
        let program = self.dir.join(name);
        let mut compile = common::cc();
        compile.arg(self.dir.join("main.c")).arg("-o").arg(&program);
        common::run(compile.args(arguments));
        program
    }

    /// The doctor's status and words about the program, which ran nothing.
    #[track_caller]
    fn inspected(&self, program: &Path, variables: &[(&str, &Path)]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trtalloc"));
        command.arg("doctor").arg(program).envs(variables.iter().copied());
        let output = command.output().unwrap();
        let said: Vec<&str> = text(&output.stdout).split_whitespace().collect();
        let said = said.join(" ");
        assert!(!self.dir.join("ran").exists(), "{program:?} ran: {said}");
        (output.status.code(), said)
    }
}

#[test]
fn a_loader_of_the_program_is_not_run() {
    let place = Place::new("run_loader");
    // A static one: another would have the system's own loader, which the variable for listing stops.
    let loader = place.dir.join("ld-linux-x86-64.so.2");
    let mut compile = common::cc();
    compile.args(["-static", "-DPROGRAM"]).arg(place.dir.join("mark.c"));
    if !compile.arg("-o").arg(&loader).output().unwrap().status.success() {
        common::skip("static", "the C compiler links nothing statically");
    }
    let outside = format!("/lib64/..{}", loader.display());
    for named in [loader.to_str().unwrap(), &outside] {
        let program = place.program("program", &[&format!("-Wl,--dynamic-linker={named}")]);
        let (status, said) = place.inspected(&program, &[]);
        assert_eq!(status, Some(1), "{said}");
        assert!(
            said.contains("libraries unknown: its loader, ") && said.contains("is not the system's and is not run"),
            "{said}"
        );
        assert!(said.contains("TensorRT at its start unknown"), "{said}");
    }
}

#[test]
fn a_library_for_auditing_is_not_run() {
    let place = Place::new("run_audit");
    let library = place.library("libaudit.so");
    let library = library.to_str().unwrap();
    for option in ["audit", "depaudit"] {
        let program = place.program(option, &[&format!("-Wl,--{option}={library}")]);
        let (status, said) = place.inspected(&program, &[]);
        assert_eq!(status, Some(1), "{said}");
        assert!(
            said.contains("libraries unknown: it names libraries for auditing, whose code the loader runs"),
            "{said}"
        );
    }
}

#[test]
fn a_tensorrt_of_the_program_is_not_loaded() {
    let place = Place::new("run_tensorrt");
    let rpath = format!("-Wl,--no-as-needed,-rpath,{}", place.dir.display());
    for (name, words) in [
        ("libnvinfer.so.10.16.1", "TensorRT 10.16.1, as its name says: served"),
        ("libnvinfer.so.8", "TensorRT 8, as its name says: served"),
        ("libtensorrt_rtx.so.1", "TensorRT-RTX 1, as its name says: served"),
        (
            "libnvinfer.so.12",
            "TensorRT 12, as its name says: its interface is not known",
        ),
        ("libnvinfer_lean.so", "unknown: its name has no version"),
    ] {
        let library = place.library(name);
        let program = place.program("program", &[&rpath, library.to_str().unwrap()]);
        let (status, said) = place.inspected(&program, &[]);
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains(&format!("{name} {words}")), "{said}");
    }
    // A link's target has the whole version.
    std::fs::rename(place.dir.join("libnvinfer.so.8"), place.dir.join("libnvinfer.so.8.6.1")).unwrap();
    std::os::unix::fs::symlink("libnvinfer.so.8.6.1", place.dir.join("libnvinfer.so.8")).unwrap();
    let eight = place.dir.join("libnvinfer.so.8");
    let program = place.program("program", &[&rpath, eight.to_str().unwrap()]);
    let (_, said) = place.inspected(&program, &[]);
    assert!(
        said.contains("libnvinfer.so.8 TensorRT 8.6.1, as its name says"),
        "{said}"
    );
}

#[test]
fn names_in_a_program_do_not_control_the_terminal() {
    let place = Place::new("run_names");
    let library = place.library("libno\u{1b}[2J.so");
    let program = place.program("program", &["-Wl,--no-as-needed", library.to_str().unwrap()]);
    std::fs::remove_file(&library).unwrap();
    let (status, said) = place.inspected(&program, &[]);
    assert_eq!(status, Some(1), "{said:?}");
    assert!(
        said.contains(r"libno\u{1b}[2J.so no: it is not found") && !said.contains('\u{1b}'),
        "{said:?}"
    );
}

/// Neither the interpreter nor what its packages would run at its start.
#[test]
fn a_python_is_not_run() {
    let place = Place::new("run_python");
    let (bin, packages) = (place.dir.join("bin"), place.dir.join("lib/python3.11/site-packages"));
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::create_dir_all(packages.join("tensorrt_libs")).unwrap();
    let site = format!("open({:?}, 'w')\n", place.dir.join("ran"));
    std::fs::write(packages.join("sitecustomize.py"), site).unwrap();
    std::fs::rename(
        place.library("libnvinfer.so.10"),
        packages.join("tensorrt_libs/libnvinfer.so.10"),
    )
    .unwrap();
    std::fs::rename(place.program("python3.11", &[]), bin.join("python3.11")).unwrap();
    std::os::unix::fs::symlink("python3.11", bin.join("python")).unwrap();
    let served = "libnvinfer.so.10 TensorRT 10, as its name says: served";
    let (status, said) = place.inspected(&bin.join("python"), &[]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(served), "{said}");

    // A virtual environment has its own packages, and its interpreter's only where it says so.
    let environment = place.dir.join("environment");
    std::fs::create_dir_all(environment.join("bin")).unwrap();
    std::os::unix::fs::symlink(bin.join("python3.11"), environment.join("bin/python")).unwrap();
    for (includes, finds) in [("false", false), ("true", true)] {
        let text = format!("home = {}\ninclude-system-site-packages = {includes}\n", bin.display());
        std::fs::write(environment.join("pyvenv.cfg"), text).unwrap();
        let (_, said) = place.inspected(&environment.join("bin/python"), &[]);
        assert_eq!(said.contains(served), finds, "{said}");
    }
    std::fs::write(environment.join("pyvenv.cfg"), "home = /nowhere\n").unwrap();
    let (_, said) = place.inspected(&environment.join("bin/python"), &[("PYTHONPATH", &packages)]);
    assert!(said.contains(served), "{said}");
    // One that would run something shows that it is not run.
    std::fs::copy(place.dir.join("mark.c"), place.dir.join("main.c")).unwrap();
    let (_, said) = place.inspected(&place.program("python3.12", &["-DPROGRAM"]), &[]);
    assert!(said.contains("as far as its folders show"), "{said}");
}
