//! Several TensorRTs in one process, many threads, and libraries that are opened and closed.

use std::path::PathBuf;

use crate::common;
use crate::inject::standin::{self, Version, attached, build, of, preloaded, tested, text, texts};
use crate::inject::table::Outcome;

const APART: [&str; 4] = ["8.6", "10.16", "11.4", "RTX 1.7"];

/// The output of clients that run one after another. The counts are those of the process.
fn outputs(sonames: &[&str]) -> String {
    let mut text = String::new();
    for (i, soname) in sonames.iter().enumerate() {
        let count = 4 * (i + 1);
        text += &format!("{soname} runtime: attached\n{soname} builder: attached\n");
        text += &format!(
            "{count} allocations, {} resizes, {count} frees, 0 bytes left\n",
            count / 2
        );
    }
    text
}

fn sonames(names: &[&str]) -> Vec<&'static str> {
    names.iter().map(|name| of(name).soname).collect()
}

#[test]
fn plugins_of_several_tensorrts_use_their_own() {
    tested(|| {
        let mut linked = Vec::new();
        let mut looking = Vec::new();
        for name in APART {
            let built = of(name).built()?;
            linked.push(text(&built.plugin()).to_owned());
            looking.push(format!(
                "{}:{}",
                text(&built.plugin_that_looks_up()),
                text(&built.library)
            ));
        }
        for plugins in [linked, looking] {
            let mut command = preloaded(standin::host(), &["local", ""]);
            let (stdout, stderr) = texts(command.args(&plugins));
            assert_eq!((stdout, stderr), (outputs(&sonames(&APART)), String::new()));
        }
        Ok(())
    });
}

/// A program that is linked with one TensorRT and opens a plugin of another.
#[test]
fn plugin_of_another_tensorrt_uses_its_own() {
    tested(|| {
        let plugin = of("10.16").built()?.plugin();
        let built = of("11.4").built()?;
        let host = standin::sources().join("host.cpp");
        let program = built.link("host", &["-Wl,--no-as-needed"], &[&host, &built.library]);
        let (stdout, stderr) = texts(&mut preloaded(&program, &["local", "", text(&plugin)]));
        assert_eq!((stdout, stderr), (attached("libnvinfer.so.10"), String::new()));
        Ok(())
    });
}

/// A plugin whose TensorRT the linker left out, in a process that has another TensorRT.
#[test]
fn plugin_finds_the_tensorrt_that_the_linker_left_out() {
    tested(|| {
        let other = of("10.16").built()?.plugin();
        let built = of("11.4").built()?;
        let arguments = ["-shared", "-Wl,--as-needed"];
        let left = built.link("left.so", &arguments, &[&built.client, &built.ours(), &built.library]);
        let mut command = preloaded(standin::host(), &["local", "", text(&other), text(&left)]);
        let expected = outputs(&["libnvinfer.so.10", "libnvinfer.so.11"]);
        assert_eq!(texts(&mut command), (expected, String::new()));
        Ok(())
    });
}

/// The full and the lean library of one version: only the libraries that the caller needs tell them apart.
#[test]
fn full_and_lean_library_of_one_version_are_distinguished() {
    tested(|| {
        let version = of("10.16");
        let built = version.built()?;
        let lean = built.dir.join("libnvinfer_lean.so.10");
        version.library("libnvinfer_lean.so.10", &lean)?;
        let of_lean = built.link("lean.so", &["-shared"], &[&built.client, &lean]);
        let looking = text(&built.plugin_that_looks_up()).to_owned();
        let opened = [&built.library, &lean].map(|library| format!("{looking}:{}", text(library)));
        let linked = [text(&built.plugin()).to_owned(), text(&of_lean).to_owned()];
        for plugins in [linked, opened] {
            let mut command = preloaded(standin::host(), &["local", ""]);
            let (stdout, stderr) = texts(command.args(plugins));
            let expected = outputs(&["libnvinfer.so.10", "libnvinfer_lean.so.10"]);
            assert_eq!((stdout, stderr), (expected, String::new()));
        }
        Ok(())
    });
}

/// A call by a jump has the return address of a caller that needs no TensorRT: the version shows which TensorRT is
/// meant.
#[test]
fn tail_calls_use_the_version() {
    tested(|| {
        let mut arguments: Vec<String> = Vec::new();
        for (name, version) in [("8.6", "8601"), ("10.16", "101600"), ("9.3", "9300")] {
            let built = of(name).built()?;
            let source = standin::sources().join("tail.cpp");
            let tail = built.link("tail.so", &["-shared", "-fPIC", "-O2"], &[&source, &built.library]);
            arguments.extend([text(&tail).to_owned(), version.to_owned()]);
        }
        let program = build("tails.cpp", "tails", &[]);
        let mut command = preloaded(&program, &[]);
        let (stdout, stderr) = texts(command.args(&arguments).env("TRTALLOC_LOG", "info"));
        assert_eq!(stdout, "made\nmade\nmade\n", "{stderr}");
        let libraries: Vec<&str> = stderr.lines().filter(|line| line.contains("IRuntime")).collect();
        for (line, soname) in libraries
            .iter()
            .zip(["libnvinfer.so.8", "libnvinfer.so.10", "libnvinfer.so.9"])
        {
            assert!(line.contains(soname), "{stderr}");
        }
        assert_eq!(libraries.len(), 3, "{stderr}");
        Ok(())
    });
}

#[test]
fn eight_threads_create_objects_at_once() {
    tested(|| {
        for name in ["9.3", "11.4"] {
            let built = of(name).built()?;
            for program in [built.linked("linked", &[]), built.looks_up()] {
                let (stdout, stderr) = texts(&mut preloaded(&program, &[text(&built.library), "threads"]));
                assert_eq!(stderr, "");
                let count = |what: &str| stdout.lines().filter(|line| line.ends_with(what)).count();
                assert_eq!(count("runtime: attached"), 160);
                assert_eq!(count("builder: attached"), 160);
                assert!(stdout.ends_with("\n640 allocations, 320 resizes, 640 frees, 0 bytes left\n"));
            }
        }
        Ok(())
    });
}

/// More libraries than the table of looked-up functions has entries.
fn copies(version: &Version, count: usize) -> Result<(PathBuf, Vec<String>), Outcome> {
    let built = version.built()?;
    let program = built.program(version, "reopen.cpp", &[])?;
    let dir = common::scratch("inject_copies");
    // A library with a symbol that is unique in the process would not be closed.
    let once = dir.join("once.so");
    version.library_with(version.soname, &once, &["-fno-gnu-unique"])?;
    let mut all = Vec::new();
    for i in 0..count {
        let copy = dir.join(format!("copy{i}.so"));
        std::fs::copy(&once, &copy).unwrap();
        all.push(text(&copy).to_owned());
    }
    Ok((program, all))
}

#[test]
fn opened_and_closed_libraries_reuse_entries() {
    tested(|| {
        let version = of("11.4");
        let (program, libraries) = copies(version, 20)?;
        let line = |state: &str| format!("{} runtime: {state}\n", version.soname);
        // One at a time, any number works. Twice, so that entries are reused.
        let mut command = preloaded(&program, &["one"]);
        let (stdout, stderr) = texts(command.args(&libraries).args(&libraries));
        assert_eq!((stdout, stderr), (line("attached").repeat(40), String::new()));
        // All at once, the table is full, and further libraries keep their own allocator.
        let mut command = preloaded(&program, &["all"]);
        let (stdout, stderr) = texts(command.args(&libraries));
        assert_eq!(stdout, line("attached").repeat(16) + &line("own").repeat(4));
        assert_eq!(stderr.lines().count(), 4, "{stderr}");
        Ok(())
    });
}
