//! Unusual results, versions and functions of TensorRT, and other libraries that interpose the same names.

use std::process::Command;

use crate::inject::standin::{self, VERSIONS, attached, build, of, own, preloaded, start, tested, text, texts};
use crate::inject::table::Outcome;

/// Runs a client in both ways.
fn both_ways(name: &str, what: &str) -> Result<[Command; 2], Outcome> {
    let built = of(name).built()?;
    let library = text(&built.library);
    Ok([
        preloaded(&built.linked("linked", &[]), &[library, what]),
        preloaded(&built.looks_up(), &[library, what]),
    ])
}

/// Without a GPU, real libraries return an address in the first page. Other invalid objects are passed on with a
/// warning.
#[test]
fn invalid_objects_are_passed_on() {
    tested(|| {
        let nothing = "\n0 allocations, 0 resizes, 0 frees, 0 bytes left\n";
        for (instead, shown, reported) in [
            ("0", "(nil)", false),
            ("0x228", "0x228", false),
            ("0xff8", "0xff8", false),
            ("0x8000", "0x8000", true),
            ("0x7fff00001234", "0x7fff00001234", true),
            ("0xdead000000000000", "0xdead000000000000", true),
            ("0xfffffffffffffff8", "0xfffffffffffffff8", true),
            ("0xffffffffffffffea", "0xffffffffffffffea", true),
            ("hollow", "0x", true),
        ] {
            for mut command in both_ways("10.16", "none")? {
                let (stdout, stderr) = texts(command.env("STANDIN", instead));
                assert!(stdout.starts_with(shown) && stdout.ends_with(nothing), "{stdout}");
                match reported {
                    true => expect_lines(&stderr, "the object has an unexpected layout"),
                    false => assert_eq!(stderr, ""),
                }
            }
        }
        Ok(())
    });
}

/// Checks that there is one line for the runtime and one for the builder, with these words in each.
fn expect_lines(stderr: &str, words: &str) {
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    for line in lines {
        assert!(line.starts_with("trtalloc: warn: I") && line.contains(words), "{line}");
    }
}

#[test]
fn objects_of_unknown_versions_keep_their_allocator() {
    tested(|| {
        // First the version that the program was compiled with, then the version that the library reports.
        for mut command in both_ways("11.4", "version=120000")? {
            let (stdout, stderr) = texts(&mut command);
            assert_eq!(stdout, own("libnvinfer.so.11"));
            expect_lines(&stderr, "the layout of version 120000 is not known");
        }
        for (name, soname, version, words) in [
            (
                "11.4",
                "libnvinfer.so.11",
                "120100",
                "the layout of version 120100 is not known",
            ),
            (
                "RTX 1.7",
                "libtensorrt_rtx.so.1",
                "10800",
                "the layout of version 10800 is not known",
            ),
            // Another layout under the same name.
            (
                "RTX 1.7",
                "libtensorrt_rtx.so.1",
                "10400",
                "the library is of version 10400",
            ),
            (
                "10.16",
                "libnvinfer.so.10",
                "110400",
                "the library is of version 110400",
            ),
        ] {
            for mut command in both_ways(name, "")? {
                let (stdout, stderr) = texts(command.env("STANDIN_VERSION", version));
                assert_eq!(stdout, own(soname));
                expect_lines(&stderr, words);
            }
        }
        Ok(())
    });
}

#[test]
fn objects_keep_their_allocator_if_ours_cannot_be_opened() {
    tested(|| {
        for mut command in both_ways("RTX 1.3", "")? {
            let (stdout, stderr) = texts(command.env("TRTALLOC_DRIVER", "ascend"));
            assert_eq!(stdout, own("libtensorrt_rtx.so.1"));
            expect_lines(&stderr, "keeps TensorRT's own allocator: ");
        }
        Ok(())
    });
}

#[test]
fn programs_own_allocator_replaces_ours() {
    tested(|| {
        for mut command in both_ways("9.3", "own")? {
            let (stdout, stderr) = texts(&mut command);
            assert_eq!(stdout, own("libnvinfer.so.9"));
            assert_eq!(stderr, "");
        }
        Ok(())
    });
}

#[test]
fn log_names_the_library() {
    tested(|| {
        for mut command in both_ways("11.0", "")? {
            let (_, stderr) = texts(command.env("TRTALLOC_LOG", "info"));
            for object in ["IRuntime", "IBuilder"] {
                let line = stderr.lines().find(|line| line.contains(object)).expect(&stderr);
                assert!(line.contains("110000") && line.contains("libnvinfer.so.11"), "{line}");
            }
        }
        Ok(())
    });
}

/// The forwarder does not know the arguments, so it keeps every register that may have one, and the stack.
#[test]
fn other_functions_are_forwarded_unchanged() {
    tested(|| {
        let built = of("10.16").built()?;
        let program = built.link("calls", &[], &[&standin::sources().join("calls.cpp"), &built.library]);
        let expected =
            "libnvinfer.so.10 refitter: 0x1000 0x2000 101601\nlibnvinfer.so.10 lean: 123456789\n0x1000 285\n";
        for mut command in [start(&program, &[]), preloaded(&program, &[])] {
            assert_eq!(texts(&mut command), (expected.to_owned(), String::new()));
        }
        Ok(())
    });
}

/// dlsym's special handles mean what they mean to the caller, and its errors go to the caller.
#[test]
fn pseudo_handles_are_resolved_for_the_caller() {
    let needed = build("special.cpp", "libneeded.so", &["-shared", "-fPIC", "-DNEEDED"]);
    let rpath = format!("-Wl,-rpath,{}", needed.parent().unwrap().display());
    let library = [
        "-shared",
        "-fPIC",
        "-DLIBRARY",
        "-Wl,--no-as-needed",
        text(&needed),
        &rpath,
    ];
    let library = build("special.cpp", "liblibrary.so", &library);
    let program = build("special.cpp", "special", &["-rdynamic"]);
    let now = build("special.cpp", "special_now", &["-rdynamic", "-Wl,-z,now"]);
    for program in [program, now] {
        let without = texts(&mut start(&program, &[text(&library)]));
        let text_of = &without.0;
        assert!(text_of.contains("library\nnext known: libneeded.so"), "{text_of}");
        assert!(text_of.contains("default known: special") && text_of.contains("handle known: liblibrary.so"));
        for disable in ["0", "1"] {
            let mut command = preloaded(&program, &[text(&library)]);
            assert_eq!(texts(command.env("TRTALLOC_DISABLE", disable)), without);
        }
    }
}

/// The load order decides whose dlsym the dynamic linker finds first. The library skips no dlsym that comes after it.
#[test]
fn another_dlsym_stays_in_the_chain() {
    tested(|| {
        let built = of("11.4").built()?;
        let (library, soname) = (text(&built.library), "libnvinfer.so.11");
        let hook = build("hook.cpp", "hook.so", &["-shared", "-fPIC"]);
        let (ours, theirs) = (standin::ours(), hook.as_path());
        let line = "another dlsym\n";
        let run = |order: [&std::path::Path; 2]| {
            let mut command = start(&built.looks_up(), &[library]);
            let order = order.map(text).join(":");
            texts(command.env("LD_PRELOAD", order)).0
        };
        assert_eq!(run([&ours, theirs]), format!("{line}{}", attached(soname)));
        assert_eq!(run([theirs, &ours]), format!("{line}{}", own(soname)));

        // A dlsym in the program itself comes first. A program that is linked with TensorRT needs no dlsym.
        let sources = standin::sources();
        let (main, hook) = (sources.join("main.cpp"), sources.join("hook.cpp"));
        let hooked = built.link("hooked", &[], &[&main, &hook, &built.client, &built.library]);
        let (stdout, stderr) = texts(&mut preloaded(&hooked, &[]));
        assert_eq!((stdout, stderr), (attached(soname), String::new()));
        let hooked = built.link("looks_up_hooked", &[], &[&main, &hook, &built.looks_up]);
        let (stdout, stderr) = texts(&mut preloaded(&hooked, &[library]));
        assert_eq!((stdout, stderr), (format!("{line}{}", own(soname)), String::new()));
        Ok(())
    });
}

/// A program that is compiled for trtalloc gives an object the allocator with tensorrt.hpp.
#[test]
fn program_attaches_the_allocator_itself() {
    tested(|| {
        for version in &VERSIONS {
            let built = version.built()?;
            let ours = built.ours();
            let program = built.program(version, "attach.cpp", &[text(&ours), text(&built.library)])?;
            let (stdout, stderr) = texts(&mut start(&program, &[]));
            let expected = attached(version.soname).lines().take(2).collect::<Vec<_>>().join("\n") + "\n";
            assert_eq!((stdout, stderr), (expected, String::new()));
        }
        Ok(())
    });
}

/// A Python module calls trtalloc_inject with the library preloaded.
#[test]
fn inject_switches_off_and_on() {
    tested(|| {
        standin::python()?;
        let version = of("10.16");
        let plugin = version.built()?.plugin();
        let client = "
import ctypes, sys
ours, plugin = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
for on, status in zip(sys.argv[3::2], sys.argv[4::2]):
    assert ours.trtalloc_inject(int(on)) == int(status), (on, status)
assert plugin.client(b'', b'') == 0
";
        let ours = standin::ours();
        let run = |calls: &[&str], disable: &str| {
            let mut command = preloaded("python3".as_ref(), &["-c", client, text(&ours), text(&plugin)]);
            texts(command.args(calls).env("TRTALLOC_DISABLE", disable))
        };
        let (attached, own) = (attached(version.soname), own(version.soname));
        assert_eq!(run(&["0", "0"], "0"), (own.clone(), String::new()));
        assert_eq!(run(&["0", "0", "1", "0"], "0"), (attached, String::new()));
        // TRTALLOC_STATUS_UNSUPPORTED: the environment takes precedence.
        assert_eq!(run(&["0", "0", "1", "3"], "1"), (own, String::new()));
        Ok(())
    });
}
