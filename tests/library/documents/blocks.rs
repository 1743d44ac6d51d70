//! Every block of code in the README, in CONTRIBUTING.md, in docs/ and in the Python package's README: C and C++ are compiled, CMake is configured
//! and built, Python and our own commands are run (block_python.rs, block_commands.rs), Rust is a test of the crate's
//! documentation. A block that cannot be run says so, and why, in a comment before it:
//!
//!     <!-- not run: what it needs -->

use std::path::PathBuf;
use std::process::Command;

use crate::common::table::Outcome;
use crate::common::{self, headers, installed, wheel};

/// How many blocks say that they cannot be run. One more is a decision, made here.
const NOT_RUN: usize = 43;

/// The languages that a block may have.
const LANGUAGES: [&str; 7] = ["c", "cmake", "cpp", "python", "rust", "sh", "text"];

const MARK: &str = "<!-- not run: ";

/// A block of code between two fences.
pub struct Block {
    /// The page's path in the repository.
    pub document: String,
    /// The line of its first fence.
    pub line: usize,
    pub language: String,
    pub body: String,
    /// Why it is not run.
    pub not_run: Option<String>,
}

impl Block {
    /// A name for what is made of it.
    fn name(&self) -> String {
        format!("blocks/{}_{}", self.document.replace(['/', '.'], "_"), self.line)
    }

    pub fn scratch(&self) -> PathBuf {
        common::scratch(&self.name())
    }

    pub fn place(&self) -> String {
        format!("{}:{}", self.document, self.line)
    }
}

/// The README, CONTRIBUTING.md, every page of docs/, and the Python package's README.
pub fn documents() -> Vec<PathBuf> {
    let mut all = vec![
        common::root().join("README.md"),
        common::root().join("CONTRIBUTING.md"),
        common::root().join("python/README.md"),
    ];
    let mut folders = vec![common::root().join("docs")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                all.push(path);
            }
        }
    }
    all.sort();
    all
}

/// The blocks of a page, and what is wrong with it: a fence without a language or end, code that is only indented.
fn read(document: &str, text: &str) -> (Vec<Block>, Vec<String>) {
    let (mut blocks, mut wrong) = (Vec::new(), Vec::new());
    let mut before = "";
    let mut is_list = false;
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let place = format!("{document}:{}", number + 1);
        let inside = line.trim_start();
        if let Some(language) = inside.strip_prefix("```") {
            let indent = line.len() - inside.len();
            let mut body = String::new();
            let mut ends = false;
            for (_, line) in lines.by_ref() {
                if line.trim() == "```" {
                    ends = true;
                    break;
                }
                body += line.get(indent..).unwrap_or_default();
                body.push('\n');
            }
            if !ends || !LANGUAGES.contains(&language) {
                wrong.push(format!(
                    "{place}: a block of {language:?}; it may be one of {LANGUAGES:?}"
                ));
            }
            let reason = before.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(" -->"));
            blocks.push(Block {
                document: document.to_owned(),
                line: number + 1,
                language: language.to_owned(),
                body,
                not_run: reason.map(str::to_owned),
            });
            before = "";
            continue;
        }
        if !line.starts_with(' ') && !line.is_empty() {
            is_list = line.starts_with("* ") || line.split_once(". ").is_some_and(|(n, _)| n.parse::<u8>().is_ok());
        }
        if line.starts_with("    ") && !is_list {
            wrong.push(format!("{place}: indented code has no language; put it between fences"));
        }
        if !line.trim().is_empty() {
            before = inside;
        }
    }
    (blocks, wrong)
}

/// Every block of every page.
pub fn all() -> Vec<Block> {
    let mut all = Vec::new();
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        let document = path.strip_prefix(common::root()).unwrap().display().to_string();
        let (blocks, wrong) = read(&document, &text);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        all.extend(blocks);
    }
    all
}

/// The blocks of a language.
pub fn of(language: &str) -> Vec<Block> {
    all().into_iter().filter(|block| block.language == language).collect()
}

#[test]
fn every_block_is_checked_or_says_why_it_is_not_run() {
    let all = all();
    for block in &all {
        let place = block.place();
        if block.language == "text" {
            assert!(block.not_run.is_some(), "{place}: text needs {MARK}…");
        }
        // The documentation tests have the Rust of this page, and no other's.
        assert!(
            block.language != "rust" || block.document == "docs/rust.md",
            "{place}: Rust that is not compiled"
        );
    }
    let not_run: Vec<String> = all
        .iter()
        .filter_map(|block| {
            Some(format!(
                "{} ({}): {}",
                block.place(),
                block.language,
                block.not_run.as_ref()?
            ))
        })
        .collect();
    println!("{} blocks; not run:\n{}", all.len(), not_run.join("\n"));
    assert_eq!(not_run.len(), NOT_RUN, "{}", not_run.join("\n"));
}

#[test]
fn a_block_without_a_language_or_an_end_is_found() {
    let wrong = |text: &str| read("page", text).1.len();
    assert_eq!(wrong("```c\nint x;\n```\n"), 0);
    assert_eq!(wrong("```\nint x;\n```\n"), 1);
    assert_eq!(wrong("```basic\n10 END\n```\n"), 1);
    assert_eq!(wrong("```c\nint x;\n"), 1);
    assert_eq!(wrong("Like this:\n\n    int x;\n"), 1);
    assert_eq!(wrong("* a list\n\n    that goes on\n"), 0);
    let (blocks, _) = read(
        "page",
        "<!-- not run: no tape -->\n```sh\nrewind\n```\n\n```sh\neject\n```\n",
    );
    assert_eq!(blocks[0].not_run.as_deref(), Some("no tape"));
    assert!(blocks[1].not_run.is_none() && blocks[1].body == "eject\n");
}

/// A source file of a block, which has all the includes that it needs. Statements are put into a function that has what they
/// name.
fn source(body: &str, parameter: &str) -> String {
    if body.lines().any(|line| line == "}") {
        return body.to_owned();
    }
    let is_include = |line: &&str| line.starts_with("#include");
    let includes: Vec<&str> = body.lines().filter(is_include).collect();
    let rest: Vec<&str> = body.lines().filter(|line| !is_include(line)).collect();
    let (includes, rest) = (includes.join("\n"), rest.join("\n"));
    let name = parameter.rsplit([' ', '*']).next().unwrap_or_default();
    format!("{includes}\nvoid snippet({parameter});\nvoid snippet({parameter}) {{\n(void){name};\n{rest}\n}}\n")
}

#[test]
fn c_compiles_as_it_stands() {
    let blocks = of("c");
    assert!(blocks.len() >= 4);
    for block in blocks {
        let file = block.scratch().join("block.c");
        std::fs::write(&file, source(&block.body, "void *stream")).unwrap();
        let mut compile = common::cc();
        compile
            .arg("-isystem")
            .arg(common::root().join("tests/support/onnxruntime"));
        // A function may be shown for itself.
        common::run(compile.args(["-Wno-unused-function", "-fsyntax-only"]).arg(file));
    }
}

#[test]
fn cpp_compiles_as_it_stands() {
    let blocks = of("cpp");
    assert!(blocks.len() >= 7);
    for block in blocks {
        let file = block.scratch().join("block.cpp");
        let for_tensorrt = block.body.contains("tensorrt.hpp");
        let parameter = match for_tensorrt {
            true => "nvinfer1::IRuntime* runtime",
            false => "void* stream",
        };
        std::fs::write(&file, source(&block.body, parameter)).unwrap();
        let of: &[&str] = match for_tensorrt {
            true => &["RTX 1.7", "11.4", "10.16"],
            false => &[""],
        };
        for tensorrt in of {
            let mut compile = common::cxx();
            let for_cuda = ["rmm.hpp", "mr.hpp"].iter().any(|header| block.body.contains(header));
            let includes = match (for_tensorrt, for_cuda) {
                (true, _) => headers::of(tensorrt).include(&mut compile),
                (false, true) => with_rmm(&mut compile),
                (false, false) => Ok(()),
            };
            match includes {
                Ok(()) => drop(common::run(compile.arg("-fsyntax-only").arg(&file))),
                Err(Outcome::Skipped(what, reason)) => common::skip_part(what, &reason),
                Err(other) => panic!("{}: {other:?}", block.place()),
            }
        }
    }
}

/// The headers of RMM, of CCCL, which it brings, and of CUDA's runtime with what they include.
fn with_rmm(compile: &mut Command) -> Result<(), Outcome> {
    let fetch = |name, version| wheel::fetch(name, version).map_err(|reason| Outcome::Skipped("rmm", reason));
    let rmm = fetch("librmm-cu12", "26.10.0")?.join("librmm/include");
    for folder in [
        rmm.join("rapids"),
        rmm,
        fetch("rapids-logger", "0.3.0")?.join("rapids_logger/include"),
        fetch("nvidia-cuda-runtime-cu12", "12.9.79")?.join("nvidia/cuda_runtime/include"),
        fetch("nvidia-cuda-nvcc-cu12", "12.9.86")?.join("nvidia/cuda_nvcc/include"),
    ] {
        compile.arg("-isystem").arg(folder);
    }
    // The newest RMM needs it. The last of several standards holds.
    compile.arg("-std=c++20");
    Ok(())
}

#[test]
fn cmake_builds_against_the_installed_package() {
    let prefix = match installed::prefix() {
        Ok(prefix) => prefix,
        Err(Outcome::Skipped(what, reason)) => common::skip(what, &reason),
        Err(other) => panic!("{other:?}"),
    };
    let blocks = of("cmake");
    assert!(!blocks.is_empty());
    for block in blocks {
        let dir = block.scratch();
        let project = format!(
            "cmake_minimum_required(VERSION 3.18)\nproject(app C)\nadd_executable(app main.c)\nadd_library(nvinfer INTERFACE)\n{}",
            block.body
        );
        std::fs::write(dir.join("CMakeLists.txt"), project).unwrap();
        std::fs::copy(common::root().join("examples/c/main.c"), dir.join("main.c")).unwrap();
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(&dir).arg("-B").arg(dir.join("build"));
        common::run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
        common::run(Command::new("cmake").arg("--build").arg(dir.join("build")));
        common::run(Command::new(dir.join("build/app")).arg("driver=sim"));
    }
}

/// The commands by which the reference links with what is installed elsewhere: as they stand, but for the installation itself.
#[test]
fn a_program_is_linked_with_an_rpath_as_the_reference_says() {
    let prefix = match installed::prefix() {
        Ok(prefix) => prefix,
        Err(Outcome::Skipped(what, reason)) => common::skip(what, &reason),
        Err(other) => panic!("{other:?}"),
    };
    let block = of("sh")
        .into_iter()
        .find(|block| block.body.contains("-rpath"))
        .expect("docs/c-cpp.md shows it");
    let dir = block.scratch();
    std::os::unix::fs::symlink(prefix, dir.join("trtalloc")).unwrap();
    std::fs::copy(common::root().join("examples/c/main.c"), dir.join("main.c")).unwrap();
    if !prefix.join("lib/pkgconfig").exists() || Command::new("pkg-config").arg("--version").output().is_err() {
        common::skip("pkg-config", "no pkg-config, or the library is in lib64");
    }
    let lines: Vec<&str> = block
        .body
        .lines()
        .filter(|line| !line.starts_with("cmake --install"))
        .collect();
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &lines.join("\n")]).current_dir(&dir);
    common::run(shell.env("HOME", &dir).env_remove("LD_LIBRARY_PATH"));
    common::run(
        Command::new(dir.join("app"))
            .arg("driver=sim")
            .env_remove("LD_LIBRARY_PATH"),
    );
}
