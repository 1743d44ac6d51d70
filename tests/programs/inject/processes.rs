//! Children, the end of the process, and processes that never use TensorRT.

use std::path::PathBuf;

use crate::inject::standin::{self, attached, build, of, own, preloaded, start, tested, text, texts};
use crate::inject::table::Outcome;

const SONAME: &str = "libnvinfer.so.10";

fn program() -> Result<PathBuf, Outcome> {
    let built = of("10.16").built()?;
    let children = standin::sources().join("children.cpp");
    Ok(built.link("children", &[], &[&children, &built.client, &built.library]))
}

/// What the same process prints the second time.
fn again() -> String {
    attached(SONAME).replace("4 allocations, 2 resizes, 4 frees", "8 allocations, 4 resizes, 8 frees")
}

#[test]
fn child_forked_before_the_first_use_is_injected() {
    tested(|| {
        let (stdout, stderr) = texts(&mut preloaded(&program()?, &["before"]));
        let once = attached(SONAME);
        assert_eq!((stdout, stderr), (format!("child\n{once}{once}"), String::new()));
        Ok(())
    });
}

/// It must not use its parent's context, so its objects keep their own allocator.
#[test]
fn forked_child_keeps_its_allocator_and_parent_continues() {
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
fn executed_children_are_injected() {
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
fn objects_created_at_exit_keep_their_allocator() {
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

/// A library creates its objects before main, and perhaps before this library is initialized.
#[test]
fn objects_created_before_main_are_attached() {
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

/// Servers have threads with small stacks. The first object of a process opens the allocator.
#[test]
fn small_stack_is_enough() {
    tested(|| {
        let built = of("11.4").built()?;
        let program = built.linked("linked", &[]);
        let (stdout, stderr) = texts(&mut preloaded(&program, &["", "small"]));
        assert_eq!((stdout, stderr), (attached("libnvinfer.so.11"), String::new()));
        Ok(())
    });
}

/// In a process without TensorRT there is no thread, no driver and no output, and its own names are found as before.
#[test]
fn process_without_tensorrt_is_unchanged() {
    let (with, said) =
        texts(preloaded("cat".as_ref(), &["/proc/self/status", "/proc/self/maps"]).env("TRTALLOC_LOG", "trace"));
    assert!(
        with.contains("libtrtalloc.so") && with.contains("\nThreads:\t1\n"),
        "{with}"
    );
    assert!(!with.contains("libcuda") && !with.contains("libstdc++"), "{with}");
    assert_eq!(said, "");
}

/// Python looks up the function of every module by dlsym.
#[test]
fn python_without_tensorrt_is_unchanged() {
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

/// The program's own malloc finds the real one by dlsym, before it can allocate.
#[test]
fn another_malloc_is_supported() {
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
                // An empty script for the shell.
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

/// A process is injected if it was started with LD_PRELOAD, even if it changes the variable later. Other values, or a
/// value that is set later, inject nothing.
#[test]
fn injection_depends_on_the_initial_environment() {
    tested(|| {
        let built = of("RTX 1.7").built()?;
        let both = built.linked_with_both();
        let soname = "libtensorrt_rtx.so.1";
        let script = "exec \"$0\"";
        // A preloaded shell starts a program that is not preloaded.
        let mut command = preloaded(
            "/bin/sh".as_ref(),
            &["-c", &format!("unset LD_PRELOAD; {script}"), text(&both)],
        );
        assert_eq!(texts(&mut command).0, own(soname));
        let mut command = preloaded("/bin/sh".as_ref(), &["-c", script, text(&both)]);
        assert_eq!(texts(&mut command).0, attached(soname));
        // Another library of that name, and a missing one.
        for other in ["/nowhere/libtrtalloc.so", "libtrtalloc.so.1"] {
            let mut command = start(&both, &[]);
            assert_eq!(texts(command.env("LD_PRELOAD", other)).0, own(soname), "{other}");
        }
        // A process that has overwritten its initial environment.
        let (stdout, stderr) = texts(&mut preloaded(&program()?, &["title"]));
        assert_eq!((stdout, stderr), (attached(SONAME), String::new()));
        // By the bare name, which the loader searches, and by one that it completes.
        let linked = built.linked("linked", &[]);
        for name in ["libtrtalloc.so.0", "$ORIGIN/libtrtalloc.so.0"] {
            let mut command = start(&linked, &[]);
            command.env("LD_PRELOAD", name).env("LD_LIBRARY_PATH", &built.dir);
            assert_eq!(texts(&mut command).0, attached(soname), "{name}");
        }
        Ok(())
    });
}
