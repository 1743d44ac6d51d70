//! What the documents show is compiled, what they name exists, and where they lead there is something. (Rust in the README is
//! a test of the crate's documentation.)

use std::path::{Path, PathBuf};

use crate::table::Outcome;
use crate::{common, headers};

/// The README and every page of docs/.
fn documents() -> Vec<PathBuf> {
    let mut all = vec![common::root().join("README.md")];
    let pages = std::fs::read_dir(common::root().join("docs")).unwrap().flatten();
    all.extend(
        pages
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "md")),
    );
    all.sort();
    all
}

/// The fenced blocks of that language in a page.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(tag) = line.strip_prefix("```") else {
            continue;
        };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if tag == language {
            all.push(body.join("\n"));
        }
    }
    all
}

/// A source file of a snippet: statements are put into a function that has what they name.
fn source(snippet: &str, before: &str, arguments: &str) -> String {
    let is_include = |line: &&str| line.starts_with("#include");
    let includes: Vec<&str> = snippet.lines().filter(is_include).collect();
    let body: Vec<&str> = snippet.lines().filter(|line| !is_include(line)).collect();
    let (includes, body) = (includes.join("\n"), body.join("\n"));
    let is_whole = snippet.lines().any(|line| line == "}");
    match is_whole {
        true => format!("{before}\n{includes}\n{body}\n"),
        false => {
            format!("{before}\n{includes}\nvoid snippet({arguments});\nvoid snippet({arguments}) {{\n{body}\n}}\n")
        }
    }
}

#[test]
fn c_and_cpp_compile() {
    let mut counts = [0, 0];
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let name = document.file_stem().unwrap().to_str().unwrap().to_owned();
        for (index, snippet) in blocks(&text, "c").iter().enumerate() {
            let file = common::scratch(&format!("faces_snippet_{name}_c{index}")).join("snippet.c");
            std::fs::write(&file, source(snippet, "#include <stdio.h>", "void *stream")).unwrap();
            // A function may be shown for itself.
            common::run(common::cc().args(["-Wno-unused-function", "-fsyntax-only"]).arg(file));
            counts[0] += 1;
        }
        for (index, snippet) in blocks(&text, "cpp").iter().enumerate() {
            let file = common::scratch(&format!("faces_snippet_{name}_cpp{index}")).join("snippet.cpp");
            let for_tensorrt = snippet.contains("tensorrt.hpp");
            let (before, arguments) = match for_tensorrt {
                true => ("#include <NvInfer.h>", "nvinfer1::IRuntime* runtime"),
                false => ("", "void* stream"),
            };
            std::fs::write(&file, source(snippet, before, arguments)).unwrap();
            let of: &[&str] = if for_tensorrt {
                &["RTX 1.7", "11.4", "10.16"]
            } else {
                &[""]
            };
            for tensorrt in of {
                let mut compile = common::cxx();
                if for_tensorrt && let Err(outcome) = headers::of(tensorrt).include(&mut compile) {
                    match outcome {
                        Outcome::Skipped(what, reason) => common::skip(what, &reason),
                        other => panic!("{other:?}"),
                    }
                    continue;
                }
                common::run(compile.arg("-fsyntax-only").arg(&file));
            }
            counts[1] += 1;
        }
    }
    assert!(
        counts[0] >= 2 && counts[1] >= 4,
        "{counts:?} snippets: the documents have changed, or their fences"
    );
}

#[test]
fn the_reference_names_every_function_and_field() {
    let header = std::fs::read_to_string(common::root().join("include/trtalloc/trtalloc.h")).unwrap();
    let reference = std::fs::read_to_string(common::root().join("docs/c-cpp.md")).unwrap();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words =
        |text: &str| -> std::collections::BTreeSet<String> { text.split(|c| !is_name(c)).map(str::to_owned).collect() };
    let (there, named) = (words(&header), words(&reference));
    let fields = header
        .lines()
        .filter_map(|line| line.trim().strip_prefix("uint64_t ")?.strip_suffix(';'))
        .filter(|name| !name.contains(')'));
    let types = ["trtalloc_status", "trtalloc_allocator", "trtalloc_oom_handler"];
    let functions = there
        .iter()
        .filter(|word| word.starts_with("trtalloc_") && !types.contains(&word.as_str()));
    let states = there.iter().filter(|word| word.starts_with("TRTALLOC_STATUS_"));
    for name in functions.chain(states).map(String::as_str).chain(fields) {
        assert!(named.contains(name), "docs/c-cpp.md does not name {name}");
    }
    for name in named.iter().filter(|word| word.starts_with("trtalloc_")) {
        assert!(
            there.contains(name),
            "docs/c-cpp.md names {name}, which trtalloc.h does not have"
        );
    }
}

#[test]
fn links_lead_somewhere() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            // A link to a heading of the same page has no path.
            let file = match path {
                "" => document.clone(),
                path => document.parent().unwrap_or(Path::new("")).join(path),
            };
            assert!(file.exists(), "{}: {target}", document.display());
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(file).unwrap().to_lowercase();
                let heading = format!("# {}", anchor.replace('-', " "));
                assert!(text.contains(&heading), "{}: {target}", document.display());
            }
        }
    }
}
