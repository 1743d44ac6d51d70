//! Programs that can be started and that cannot, and their environment.

use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use crate::common;
use crate::run::{expect, last, none_seen, text, trtalloc_run};

#[test]
fn output_input_and_status_pass_through() {
    for status in [0, 1, 3, 255] {
        let output = trtalloc_run(&["sh", "-c", &format!("echo out; exit {status}")])
            .output()
            .unwrap();
        expect(&output, status);
        assert_eq!(text(&output.stdout), "out\n");
        assert_eq!(text(&output.stderr), format!("trtalloc run: {}\n", none_seen()));
    }
    let mut child = trtalloc_run(&["--", "cat", "-", "--", "-n"]);
    child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"in\n").unwrap();
    let output = child.wait_with_output().unwrap();
    // The arguments too, whatever they look like: cat takes those after its own "--" as files.
    expect(&output, 1);
    assert_eq!(text(&output.stdout), "in\n");
}

#[test]
fn start_failures_have_the_statuses_of_env() {
    let dir = common::scratch("run_cannot");
    let plain = dir.join("plain");
    std::fs::write(&plain, "no program").unwrap();
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
    let broken = dir.join("broken");
    common::write_program(&broken, b"#!/nowhere/interpreter\n");
    for (name, status) in [
        ("/nowhere/program", 127),
        ("no-such-program-anywhere", 127),
        ("", 127),
        (plain.to_str().unwrap(), 126),
        (dir.to_str().unwrap(), 126),
        (broken.to_str().unwrap(), 127),
    ] {
        let output = trtalloc_run(&["--", name]).output().unwrap();
        expect(&output, status);
        assert!(last(&output).starts_with(&format!("{name}: ")), "{}", last(&output));
        assert!(output.stdout.is_empty());
    }
    // This command has no descriptors left to start the program, which is not the program's error.
    let command = env!("CARGO_BIN_EXE_trtalloc");
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("ulimit -n 4; exec {command} run -- true")])
        .output()
        .unwrap();
    expect(&output, 125);
    // Nor may its file in memory be as large as it has to be.
    let output = std::process::Command::new("bash")
        .args(["-c", &format!("ulimit -f 1; exec {command} run -- true")])
        .output()
        .unwrap();
    expect(&output, 125);
    assert!(last(&output).contains("File too large"), "{}", last(&output));
    // The shell runs a script without a first line, as with any execvp.
    let script = dir.join("script");
    common::write_program(&script, b"echo script\n");
    let output = trtalloc_run(&["--", script.to_str().unwrap()]).output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), "script\n");
}

/// The library in the program does not repeat the warning, except for names that the program adds.
#[test]
fn unknown_options_are_reported_once() {
    let dir = common::scratch("run_unknown");
    let program = crate::run::program("uses.c", &dir);
    let uses = program.to_str().unwrap();
    let named = |output: &std::process::Output, name: &str| {
        let lines = text(&output.stderr).lines();
        lines
            .filter(|line| line.contains(&format!("{name} is no option; the nearest is ")))
            .count()
    };
    let output = trtalloc_run(&["--driver", "sim", "--", uses, "exit"])
        .env("TRTALLOC_LIMTI", "4GiB")
        .env("TRTALLOC_TEST_X", "1")
        .output()
        .unwrap();
    expect(&output, 5);
    assert_eq!(named(&output, "TRTALLOC_LIMTI"), 1, "{}", text(&output.stderr));
    assert_eq!(named(&output, ""), 1, "{}", text(&output.stderr));
    let adds = format!("TRTALLOC_GAURD=1 exec {uses} exit");
    let output = trtalloc_run(&["--driver", "sim", "--", "sh", "-c", &adds])
        .env("TRTALLOC_LIMTI", "4GiB")
        .output()
        .unwrap();
    expect(&output, 5);
    assert_eq!(named(&output, "TRTALLOC_LIMTI"), 1, "{}", text(&output.stderr));
    assert_eq!(named(&output, "TRTALLOC_GAURD"), 1, "{}", text(&output.stderr));
    // Without such names, the program's environment has no list of them.
    let output = trtalloc_run(&["--", "sh", "-c", "env | grep -c TRTALLOC_NAMED"])
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "0\n");
    let output = trtalloc_run(&["--limti", "4GiB", "--", "true"]).output().unwrap();
    expect(&output, 2);
    assert!(
        text(&output.stderr).contains("a similar argument exists: '--limit'"),
        "{output:?}"
    );
    let output = trtalloc_run(&["--options", "limti=4GiB", "--", "true"])
        .output()
        .unwrap();
    expect(&output, 2);
    assert!(
        text(&output.stderr).contains("unknown option `limti`: the nearest is `limit`"),
        "{output:?}"
    );
}

#[test]
fn options_set_the_programs_environment() {
    let show = ["--", "sh", "-c", "env | grep ^TRTALLOC_ | sort"];
    let output = trtalloc_run(&["--limit", "4GiB", "--stats", "--driver=sim", "--log", "info"])
        .args(show)
        .output();
    let output = output.unwrap();
    expect(&output, 0);
    assert_eq!(
        text(&output.stdout),
        "TRTALLOC_CONTROL=1\nTRTALLOC_DRIVER=sim\nTRTALLOC_LIMIT=4GiB\nTRTALLOC_LOG=info\nTRTALLOC_STATS=1\n"
    );
    // They replace options that are already set, also in a list. A path does not depend on the program's current
    // folder.
    let dir = common::scratch("run_options");
    let mut command = trtalloc_run(&["--options", "wait_ms=5, limit=1G", "--limit", "80%", "--stats=off"]);
    command.args(["--snapshot", "a%p.pickle"]).args(show);
    let output = command.env("TRTALLOC_LIMIT", "2G").current_dir(&dir).output().unwrap();
    expect(&output, 0);
    let path = dir.join("a%p.pickle");
    let wanted = format!(
        "TRTALLOC_CONTROL=1\nTRTALLOC_LIMIT=80%\nTRTALLOC_SNAPSHOT_AT_EXIT={}\nTRTALLOC_STATS=off\nTRTALLOC_WAIT_MS=5\n",
        path.display()
    );
    assert_eq!(text(&output.stdout), wanted);
    let mut command = trtalloc_run(&["--captures", "--device", "-1"]);
    let output = command.args(show).output().unwrap();
    expect(&output, 0);
    assert_eq!(
        text(&output.stdout),
        "TRTALLOC_CAPTURES=1\nTRTALLOC_CONTROL=1\nTRTALLOC_DEVICE=-1\n"
    );
    let mut disabled = trtalloc_run(&["--disable", "--", "true"]);
    let output = disabled.output().unwrap();
    expect(&output, 0);
    assert!(text(&output.stderr).contains("TRTALLOC_DISABLE is set"));
}

#[test]
fn invalid_options_fail_before_the_program_starts() {
    let dir = common::scratch("run_errors");
    let begun = dir.join("begun");
    for arguments in [
        &["--limit", "much"][..],
        &["--limit", ""],
        &["--stats=perhaps"],
        &["--options", "limit"],
        &["--options", "limti=3"],
        &["--snapshot", "memory.txt"],
        &["--snapshot_on_oom", "memory"],
        &["--no-such-option"],
    ] {
        let output = trtalloc_run(arguments)
            .args(["--", "touch"])
            .arg(&begun)
            .output()
            .unwrap();
        expect(&output, 2);
        assert!(!output.stderr.is_empty());
    }
    let output = trtalloc_run(&["--metrics-file", "/nonexistent/a.prom", "--", "true"])
        .output()
        .unwrap();
    expect(&output, 125);
    assert!(
        last(&output).starts_with("io: --metrics-file /nonexistent/a.prom: No such file"),
        "{}",
        last(&output)
    );
    let text_file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for (library, words) in [
        ("/nowhere/libtrtalloc.so", "no such file"),
        (".", "no such file"),
        (text_file, "no library for this machine"),
    ] {
        let output = trtalloc_run(&["--library", library, "--", "touch"])
            .arg(&begun)
            .output()
            .unwrap();
        expect(&output, 125);
        assert!(last(&output).contains(words), "{}", last(&output));
    }
    let spaced = dir.join("a folder");
    std::fs::create_dir(&spaced).unwrap();
    std::fs::write(spaced.join("libtrtalloc.so"), "").unwrap();
    let mut command = trtalloc_run(&["--library"]);
    let output = command
        .arg(spaced.join("libtrtalloc.so"))
        .args(["--", "touch"])
        .arg(&begun)
        .output()
        .unwrap();
    expect(&output, 125);
    assert!(last(&output).contains("has a space"), "{}", last(&output));
    expect(&trtalloc_run(&[]).output().unwrap(), 2);
    assert!(!begun.exists());
}

#[test]
fn a_folder_that_a_snapshot_lacks_is_reported_before_the_program_starts() {
    let dir = common::scratch("run_snapshot_folder");
    let line = "trtalloc run: --snapshot: there is no folder ";
    let snapshot = dir.join("later/%p.pickle");
    let said = |path: &std::path::Path| {
        let output = trtalloc_run(&["--snapshot"])
            .arg(path)
            .args(["--", "true"])
            .output()
            .unwrap();
        expect(&output, 0);
        text(&output.stderr).to_owned()
    };
    let first = said(&snapshot);
    let wanted = format!(
        "{line}{}, so it must be made before the snapshot is written\n",
        dir.join("later").display()
    );
    assert!(first.starts_with(&wanted), "{first}");
    std::fs::create_dir(dir.join("later")).unwrap();
    assert!(!said(&snapshot).contains(line));
    // The folder's name is known only in the process.
    assert!(!said(&dir.join("%p/memory.pickle")).contains(line));
}

#[test]
fn library_is_found_where_it_is_installed() {
    let dir = common::scratch("run_installed");
    let (bin, lib) = (dir.join("bin"), dir.join("lib"));
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::create_dir_all(&lib).unwrap();
    common::copy_program(env!("CARGO_BIN_EXE_trtalloc").as_ref(), &bin.join("trtalloc"));
    let run = || {
        let mut command = std::process::Command::new(bin.join("trtalloc"));
        command
            .args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"])
            .env_remove("LD_PRELOAD");
        command.output().unwrap()
    };
    let output = run();
    expect(&output, 125);
    assert!(last(&output).contains("--library names it"), "{}", last(&output));
    let library = lib.join("libtrtalloc.so.0");
    std::fs::hard_link(common::library_dir().join("libtrtalloc.so"), &library)
        .or_else(|_| std::fs::copy(common::library_dir().join("libtrtalloc.so"), &library).map(drop))
        .unwrap();
    let output = run();
    expect(&output, 0);
    assert_eq!(
        text(&output.stdout).trim(),
        library.canonicalize().unwrap().to_str().unwrap()
    );
}

#[test]
fn preload_keeps_other_libraries_and_is_not_repeated() {
    let library = common::library_dir().join("libtrtalloc.so").canonicalize().unwrap();
    let other = common::scratch("run_preload").join("libother.so");
    let source = other.with_extension("c");
    std::fs::write(&source, "int other(void);\nint other(void) { return 1; }\n").unwrap();
    common::run(
        common::cc()
            .args(["-shared", "-fPIC"])
            .arg(&source)
            .arg("-o")
            .arg(&other),
    );
    let show = "echo $LD_PRELOAD; grep -c 'libtrtalloc.so$' /proc/self/maps | sed 's/^0$/none/; s/^[1-9].*/loaded/'";
    let mut command = trtalloc_run(&["--", "sh", "-c", show]);
    let output = command.env("LD_PRELOAD", &other).output().unwrap();
    expect(&output, 0);
    let both = format!("{}:{}\nloaded\n", library.display(), other.display());
    assert_eq!(text(&output.stdout), both);
    // `trtalloc run` under `trtalloc run`.
    let command = env!("CARGO_BIN_EXE_trtalloc");
    let mut nested = trtalloc_run(&["--", command, "run", "--", "sh", "-c", show]);
    let output = nested.env("LD_PRELOAD", &other).output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), both);
}

/// AddressSanitizer's runtime refuses to start where it is not the first library, unless it is asked not to.
#[test]
fn programs_with_address_sanitizer_run() {
    let dir = common::scratch("run_asan");
    let (source, program) = (dir.join("sanitized.c"), dir.join("sanitized"));
    let code = "#include <stdlib.h>\nint main(int count, char **words) {\n  char *block = malloc(8);\n  \
                block[count > 1 ? 8 : 0] = (char)count;\n  free(block);\n  return block == NULL || words == NULL ? 1 : 3;\n}\n";
    std::fs::write(&source, code).unwrap();
    let mut compile = common::cc();
    compile
        .args(["-fsanitize=address", "-g"])
        .arg(&source)
        .arg("-o")
        .arg(&program);
    let compiled = compile.output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        common::skip("asan", "the C compiler has no AddressSanitizer");
    }
    let sanitized = program.to_str().unwrap();
    for options in [None, Some("exitcode=42")] {
        let run = |words: &[&str]| {
            let mut command = trtalloc_run(&["--"]);
            command.args(words).env_remove("ASAN_OPTIONS");
            command.envs(options.map(|options| ("ASAN_OPTIONS", options)));
            command.output().unwrap()
        };
        let output = run(&[sanitized]);
        expect(&output, 3);
        assert_eq!(last(&output), none_seen());
        // It finds what it is there for, and what it was asked for holds.
        let output = run(&[sanitized, "beyond"]);
        expect(&output, if options.is_some() { 42 } else { 1 });
        let said = text(&output.stderr);
        assert!(said.contains("heap-buffer-overflow"), "{said}");
    }
    // As for an interpreter whose modules are built so. This command's own leaks are not looked for.
    let mut ask = common::cc();
    let runtime = common::run(ask.arg("-print-file-name=libasan.so")).stdout;
    let runtime = Path::new(text(&runtime).trim()).canonicalize();
    let Some(runtime) = runtime.ok().filter(|path| path.is_absolute()) else {
        common::skip_part("libasan", "the C compiler is not GCC");
        return;
    };
    let mut command = trtalloc_run(&["--", "sh", "-c", "echo $ASAN_OPTIONS"]);
    command.env("LD_PRELOAD", runtime).env("ASAN_OPTIONS", "detect_leaks=0");
    let output = command.output().unwrap();
    expect(&output, 0);
    assert_eq!(text(&output.stdout), "detect_leaks=0:verify_asan_link_order=0\n");
    // Others' variables stay as they are.
    let mut command = trtalloc_run(&["--", "sh", "-c", "echo ${ASAN_OPTIONS-none}"]);
    let output = command.env_remove("ASAN_OPTIONS").output().unwrap();
    assert_eq!(text(&output.stdout), "none\n");
}

fn compiles_statically(dir: &Path) -> bool {
    let source = dir.join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut compile = common::cc();
    compile.arg("-static").arg(&source).arg("-o").arg(dir.join("empty"));
    compile.output().is_ok_and(|output| output.status.success())
}

#[test]
fn programs_that_cannot_be_preloaded_run_with_a_warning() {
    let dir = common::scratch("run_refuses");
    if compiles_statically(&dir) {
        let empty = dir.join("empty");
        let script = dir.join("script");
        common::write_program(&script, format!("#!{}\n", empty.display()).as_bytes());
        for path in [&empty, &script] {
            let output = trtalloc_run(&["--", path.to_str().unwrap()]).output().unwrap();
            expect(&output, 0);
            let words = format!(
                "{} is linked statically: the allocator cannot be injected",
                empty.display()
            );
            assert!(text(&output.stderr).contains(&words), "{}", text(&output.stderr));
            assert_eq!(last(&output), "no TensorRT was seen");
        }
    } else {
        common::skip_part("static", "the C compiler links nothing statically");
    }

    // SAFETY: a query.
    if unsafe { libc::geteuid() } != 0 {
        common::skip("setuid", "only root can give a file away");
    }
    let (source, owned) = (dir.join("owned.c"), dir.join("owned"));
    std::fs::write(&source, "int main(void) { return 4; }\n").unwrap();
    common::run(common::cc().arg(&source).arg("-o").arg(&owned));
    let name = CString::new(owned.as_os_str().as_bytes()).unwrap();
    // SAFETY: a terminated name.
    assert_eq!(unsafe { libc::chown(name.as_ptr(), 65534, 65534) }, 0);
    std::fs::set_permissions(&owned, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let output = trtalloc_run(&["--", owned.to_str().unwrap()]).output().unwrap();
    expect(&output, 4);
    assert!(text(&output.stderr).contains("is setuid"), "{}", text(&output.stderr));
}
