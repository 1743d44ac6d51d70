//! What the built library shows and needs: the contract's names, and nothing of a C++ runtime.

use crate::common;
use crate::common::exports::NAMES;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Runs one of binutils over a file.
fn tool(name: &str, arguments: &[&str], file: &Path) -> String {
    if Command::new(name).arg("--version").output().is_err() {
        common::skip("binutils", &format!("no {name}"));
    }
    let output = common::run(Command::new(name).args(arguments).arg(file));
    String::from_utf8(output.stdout).unwrap()
}

/// The words in square brackets on the lines that have `tag`.
fn bracketed<'a>(text: &'a str, tag: &str) -> BTreeSet<&'a str> {
    let lines = text.lines().filter(|line| line.contains(tag));
    lines
        .filter_map(|line| line.split_once('[')?.1.split_once(']'))
        .map(|(word, _)| word)
        .collect()
}

#[test]
fn the_contracts_names_are_exported_and_nothing_else() {
    let library = common::library_dir().join("libtrtalloc.so");
    let text = tool("nm", &["-D", "--defined-only", "--format=posix"], &library);
    let exported: BTreeSet<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(exported, NAMES.iter().copied().collect());
}

/// The functions that a header declares: the words before a parenthesis, comments apart.
fn declared(header: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(common::root().join("include/trtalloc").join(header)).unwrap();
    let (mut code, mut rest) = (String::new(), text.as_str());
    while let Some((before, comment)) = rest.split_once("/*") {
        code += before;
        rest = comment.split_once("*/").unwrap().1;
    }
    code += rest;
    let lines = code.lines().map(|line| line.split("//").next().unwrap());
    let code = lines.collect::<Vec<_>>().join("\n");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = code
        .match_indices('(')
        .map(|(at, _)| code[..at].rsplit(|c| !is_name(c)).next().unwrap());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[test]
fn headers_declare_what_is_exported_once() {
    let (own, hooks) = (declared("trtalloc.h"), declared("hooks.h"));
    assert_eq!(own.intersection(&hooks).count(), 0);
    let exported = NAMES.iter().filter(|name| name.starts_with("trtalloc_"));
    assert_eq!(&own | &hooks, exported.map(|name| (*name).to_owned()).collect());
    let frameworks = ["trtalloc_torch_", "trtalloc_ort_", "trtalloc_cupy_", "trtalloc_dlpack_"];
    let is_hook = |name: &String| frameworks.iter().any(|framework| name.starts_with(framework));
    assert!(
        hooks.iter().all(is_hook) && !own.iter().any(is_hook),
        "{own:?} {hooks:?}"
    );
}

#[test]
fn nothing_but_libc_is_needed() {
    let library = common::library_dir().join("libtrtalloc.so");
    // This test too is an executable over the library's C++ side, once it uses it.
    let client = trtalloc::ffi::tensorrt::client::Client::new(trtalloc::ffi::ExportedAllocator::process()).unwrap();
    assert!(client.deallocate(0));
    let executable = std::env::current_exe().unwrap();
    for file in [
        library.as_path(),
        Path::new(env!("CARGO_BIN_EXE_trtalloc")),
        &executable,
    ] {
        let text = tool("readelf", &["-dW"], file);
        let needed = bracketed(&text, "(NEEDED)");
        let surplus: Vec<_> = needed
            .iter()
            .filter(|name| !["libc.so.6", "libgcc_s.so.1", "libm.so.6"].contains(name) && !name.starts_with("ld-linux"))
            .collect();
        assert!(surplus.is_empty(), "{}: {surplus:?}", file.display());
    }
    let text = tool("readelf", &["-dW"], &library);
    // cpp/unwinder.c loads it when it is needed.
    assert!(!bracketed(&text, "(NEEDED)").contains("libgcc_s.so.1"), "{text}");
    assert_eq!(bracketed(&text, "(SONAME)"), BTreeSet::from(["libtrtalloc.so.0"]));
    assert!(text.contains("NODELETE"), "{text}");
}

/// The library's own way to the unwinder, in a program that has the C++ runtime linked in, as the library does.
#[test]
fn the_unwinder_is_loaded_by_the_first_exception() {
    let source = common::root().join("cpp/unwinder.c");
    let text = std::fs::read_to_string(&source).unwrap();
    let names = text.lines().filter_map(|line| {
        let name = line.trim_start().strip_prefix("X(")?.split(", ").nth(1)?;
        name.starts_with("_Unwind_").then_some(name)
    });
    let names: Vec<&str> = names.collect();
    assert_eq!(names.len(), 17, "{names:?}");
    let build = std::fs::read_to_string(common::root().join("build.rs")).unwrap();
    let wrapped: Vec<&str> = build.split('"').filter(|text| text.starts_with("_Unwind_")).collect();
    assert_eq!(names, wrapped);
    let dir = common::scratch("unwinder");
    let object = dir.join("unwinder.o");
    let mut compile = std::process::Command::new("cc");
    common::run(compile.args(["-O1", "-fPIC", "-c", "-o"]).args([&object, &source]));
    let program = dir.join("program");
    let mut compile = common::cxx();
    compile
        .arg(common::root().join("tests/support/cpp/unwinder.cpp"))
        .arg(&object);
    compile
        .args(["-static-libstdc++", "-pthread", "-ldl", "-Wl,--as-needed"])
        .args(names.iter().map(|name| format!("-Wl,--wrap={name}")));
    common::run(compile.arg("-o").arg(&program));
    common::run(&mut std::process::Command::new(&program));
}

/// A version as numbers, so that 2.9 is before 2.10.
fn version(text: &str) -> Vec<u32> {
    text.split('.').map_while(|part| part.parse().ok()).collect()
}

#[test]
fn no_newer_libc_is_needed_than_this_machines() {
    let library = common::library_dir().join("libtrtalloc.so");
    let text = tool("nm", &["-D", "--undefined-only", "--with-symbol-versions"], &library);
    let newest = text
        .split("@GLIBC_")
        .skip(1)
        .filter_map(|rest| rest.split_whitespace().next())
        .max_by_key(|v| version(v));
    let newest = newest.expect("libc is used");
    // SAFETY: returns a static C string.
    let here = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) }
        .to_str()
        .unwrap();
    println!("newest GLIBC version needed: {newest}; this machine has {here}");
    assert!(version(newest) <= version(here), "{newest} > {here}");
    for runtime in ["GLIBCXX_", "CXXABI_"] {
        assert!(
            !text.contains(runtime),
            "a symbol of the C++ runtime is not linked in: {text}"
        );
    }
}
