//! Children, the end of the process, and processes that never use TensorRT.

use std::path::PathBuf;

use crate::standin::{self, attached, build, of, own, preloaded, start, tested, text, texts};
use crate::table::Outcome;

const SONAME: &str = "libnvinfer.so.10";

fn program() -> Result<PathBuf, Outcome> {
    let built = of("10.16").built()?;
    let children = standin::sources().join("children.cpp");
    Ok(built.link("children", &[], &[&children, &built.client, &built.library]))
}

/// What the same process writes the second time.
fn again() -> String {
    attached(SONAME).replace("4 allocations, 2 resizes, 4 frees", "8 allocations, 4 resizes, 8 frees")
}

#[test]
fn a_child_that_comes_before_the_first_use_is_a_process_like_any() {
    tested(|| {
        let (stdout, stderr) = texts(&mut preloaded(&program()?, &["before"]));
        let once = attached(SONAME);
        assert_eq!((stdout, stderr), (format!("child\n{once}{once}"), String::new()));
        Ok(())
    });
}

/// It must not use its parent's context, so what it creates is left alone.
#[test]
fn a_forked_child_is_left_alone_and_its_parent_goes_on() {
    tested(|| {
        let (stdout, stderr) = texts(&mut preloaded(&program()?, &["after"]));
        let before = attached(SONAME);
        let child = format!("{SONAME} runtime: own\n{SONAME} builder: own\nno figures\n");
        assert_eq!(stdout, format!("{before}child\n{child}{}", again()));
        assert_eq!(stderr.lines().count(), 2, "{stderr}");
        assert!(
            stderr.lines().all(|line| line.contains("this process was forked")),
            "{stderr}"
        );
        Ok(())
    });
}

#[test]
fn children_that_are_started_anew_have_it_too() {
    tested(|| {
        let once = attached(SONAME);
        for how in ["vfork", "spawn"] {
            let (stdout, stderr) = texts(&mut preloaded(&program()?, &[how]));
            assert_eq!(
                (stdout, stderr),
                (format!("{once}{once}{}", again()), String::new()),
                "{how}"
            );
        }
        let (stdout, stderr) = texts(&mut preloaded(&program()?, &["exec"]));
        assert_eq!((stdout, stderr), (format!("{once}{once}"), String::new()));
        Ok(())
    });
}

#[test]
fn what_is_created_as_the_process_ends_is_left_alone() {
    tested(|| {
        let version = of("11.4");
        let built = version.built()?;
        let program = built.program(version, "exit.cpp", &[text(&built.library)])?;
        let (stdout, stderr) = texts(&mut preloaded(&program, &[]));
        assert_eq!(
            stdout,
            "libnvinfer.so.11 runtime: attached\nlibnvinfer.so.11 runtime: own\n"
        );
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains("the process is exiting"), "{stderr}");
        Ok(())
    });
}

/// A library creates its objects before the program has begun, and before this one may have been started.
#[test]
fn what_is_created_before_main_is_attached() {
    tested(|| {
        let built = of("11.4").built()?;
        let early = standin::sources().join("early.cpp");
        let library = built.link(
            "libearly.so",
            &["-shared", "-fPIC"],
            &[&early, &built.client, &built.library],
        );
        let main = standin::sources().join("nothing.cpp");
        let program = built.link("early", &["-Wl,--no-as-needed"], &[&main, &library]);
        let (stdout, stderr) = texts(&mut preloaded(&program, &[]));
        assert_eq!((stdout, stderr), (attached("libnvinfer.so.11"), String::new()));
        Ok(())
    });
}

/// Servers have threads with small stacks; the first object of a process is the one that opens the allocator.
#[test]
fn a_small_stack_is_enough() {
    tested(|| {
        let built = of("11.4").built()?;
        let program = built.linked("linked", &[]);
        let (stdout, stderr) = texts(&mut preloaded(&program, &["", "small"]));
        assert_eq!((stdout, stderr), (attached("libnvinfer.so.11"), String::new()));
        Ok(())
    });
}

/// No thread, no driver and no word in a process that has no TensorRT; its own names are found as ever.
#[test]
fn a_process_without_tensorrt() {
    let (with, said) =
        texts(preloaded("cat".as_ref(), &["/proc/self/status", "/proc/self/maps"]).env("TRTALLOC_LOG", "trace"));
    assert!(
        with.contains("libtrtalloc.so") && with.contains("\nThreads:\t1\n"),
        "{with}"
    );
    assert!(!with.contains("libcuda") && !with.contains("libstdc++"), "{with}");
    assert_eq!(said, "");
}

/// Python looks up every module's function by dlsym.
#[test]
fn a_python_without_tensorrt() {
    tested(|| {
        standin::python()?;
        let script = "import json, ssl, sqlite3, ctypes; ctypes.CDLL(None).getpid(); print(json.dumps([1]))";
        for mut command in [
            start("python3".as_ref(), &["-c", script]),
            preloaded("python3".as_ref(), &["-c", script]),
        ] {
            assert_eq!(texts(&mut command), ("[1]\n".to_owned(), String::new()));
        }
        Ok(())
    });
}

/// A malloc of the program's own finds the real one by dlsym, before it can allocate anything.
#[test]
fn somebody_elses_malloc() {
    tested(|| {
        let malloc = build("malloc.cpp", "malloc.so", &["-shared", "-fPIC"]);
        let built = of("11.4").built()?;
        let ours = standin::ours();
        for order in [[&malloc, &ours], [&ours, &malloc]] {
            let order = order.map(|path| text(path)).join(":");
            for (program, said) in [
                (build("tails.cpp", "tails_malloc", &[]), String::new()),
                (built.looks_up(), attached("libnvinfer.so.11")),
            ] {
                // For the shell, a script of nothing.
                let argument = if said.is_empty() {
                    "/dev/null"
                } else {
                    text(&built.library)
                };
                let mut command = start(&program, &[argument]);
                let (stdout, stderr) = texts(command.env("LD_PRELOAD", &order));
                assert_eq!((stdout, stderr.as_str()), (said, "malloc was called\n"), "{order}");
            }
        }
        Ok(())
    });
}

/// The process is injected that was started with LD_PRELOAD, whatever it makes of the variable; and a value that is nothing
/// of ours, or set later, injects nobody.
#[test]
fn what_counts_is_how_the_process_was_started() {
    tested(|| {
        let built = of("RTX 1.7").built()?;
        let both = built.linked_with_both();
        let soname = "libtensorrt_rtx.so.1";
        let script = "exec \"$0\"";
        // A shell that was preloaded starts a program that is not.
        let mut command = preloaded(
            "/bin/sh".as_ref(),
            &["-c", &format!("unset LD_PRELOAD; {script}"), text(&both)],
        );
        assert_eq!(texts(&mut command).0, own(soname));
        let mut command = preloaded("/bin/sh".as_ref(), &["-c", script, text(&both)]);
        assert_eq!(texts(&mut command).0, attached(soname));
        // Another library of that name, and one that is not there.
        for other in ["/nowhere/libtrtalloc.so", "libtrtalloc.so.1"] {
            let mut command = start(&both, &[]);
            assert_eq!(texts(command.env("LD_PRELOAD", other)).0, own(soname), "{other}");
        }
        // One that has written over what it was started with.
        let (stdout, stderr) = texts(&mut preloaded(&program()?, &["title"]));
        assert_eq!((stdout, stderr), (attached(SONAME), String::new()));
        // By its bare name, where the loader finds it.
        let linked = built.linked("linked", &[]);
        let mut command = start(&linked, &[]);
        command
            .env("LD_PRELOAD", "libtrtalloc.so.0")
            .env("LD_LIBRARY_PATH", &built.dir);
        assert_eq!(texts(&mut command).0, attached(soname));
        Ok(())
    });
}
