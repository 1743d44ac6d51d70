//! include/trtalloc/trtalloc.h and hooks.h are what the files of src/ffi/c say, and are good C99 and C++17.

use crate::common;

use cbindgen::{Builder, Config, DocumentationStyle, EnumConfig, ExportConfig, ItemType, Language, RenameRule};

/// A header: what stands before its groups, the groups, and what stands behind them.
struct Header {
    name: &'static str,
    before: &'static str,
    /// A file of src/ffi/c each, with its heading.
    groups: &'static [(&'static str, &'static str)],
    behind: &'static str,
}

const HEADERS: [Header; 2] = [
    Header {
        name: "trtalloc.h",
        before: r#"/* trtalloc: a GPU memory allocator for TensorRT. Generated from src/ffi/c by tests/library/header.rs. */

#ifndef TRTALLOC_TRTALLOC_H
#define TRTALLOC_TRTALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rules for every function:
   - It may be called from any thread. An allocator is NULL, which is refused, or came from this library.
   - A function that fails leaves the reason for trtalloc_last_status and trtalloc_last_error. Where it returns a pointer or a
     bool, NULL or false means that it failed. A call that succeeds leaves the last reason as it is. A call that fails
     writes to no other place that it is given, except that trtalloc_create and trtalloc_create_from set `*out` to NULL.
   - Sizes are bytes. `device` is -1, the current one, or a device that exists.
   - A stream is a CUstream or cudaStream_t; NULL is the legacy default stream of the current context. A program that is compiled
     with per-thread default streams passes cudaStreamPerThread, on the thread whose stream it is.
   - In the child of a fork nothing can be allocated or freed if the parent has used an allocator: it must call exec first.
     While the process exits, requests are refused, and frees are accepted.
   - Nothing is written to stdout. Only trtalloc_torch_malloc_or_throw throws an exception. */

/* A bit of `flags`: trtalloc_reallocate may change the block's size. TensorRT's AllocatorFlag::kRESIZABLE. */
#define TRTALLOC_RESIZABLE 1u
"#,
        groups: &[
            ("status", "Status, last failure, version"),
            ("allocator", "Allocators"),
            ("block", "Blocks"),
            ("stream", "Streams"),
            ("limit", "Limits, and requests that cannot be satisfied"),
            ("stats", "Statistics"),
            ("tag", "Tags"),
            ("history", "History and snapshots"),
            ("tensorrt", "TensorRT"),
            ("output", "Output tensors of TensorRT"),
        ],
        behind: "
/* Hooks of other frameworks, for programs that expect them in this header. */
#include <trtalloc/hooks.h>

#endif  /* TRTALLOC_TRTALLOC_H */
",
    },
    Header {
        name: "hooks.h",
        before: r#"/* trtalloc for other frameworks: functions with the types that the frameworks' hooks require. All use trtalloc_default().
   Pass a function to its framework by address or by name. Generated from hooks.rs and dlpack.rs of src/ffi/c by
   tests/library/header.rs. */

#ifndef TRTALLOC_HOOKS_H
#define TRTALLOC_HOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
"#,
        groups: &[
            ("hooks", "Hooks of PyTorch, ONNX Runtime and CuPy"),
            (
                "dlpack",
                "Blocks that owners share, for DLPack and for the Python package",
            ),
        ],
        behind: "
#endif  /* TRTALLOC_HOOKS_H */
",
    },
];

/// The types and functions of one file. Types of other files keep their names.
fn group(source: &str) -> String {
    let config = Config {
        language: Language::C,
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::C99,
        no_includes: true,
        style: cbindgen::Style::Both,
        line_length: 120,
        enumeration: EnumConfig {
            rename_variants: RenameRule::QualifiedScreamingSnakeCase,
            ..EnumConfig::default()
        },
        // Constants are Rust's own.
        export: ExportConfig {
            item_types: vec![
                ItemType::Enums,
                ItemType::Structs,
                ItemType::Typedefs,
                ItemType::OpaqueItems,
                ItemType::Functions,
            ],
            ..ExportConfig::default()
        },
        ..Config::default()
    };
    let path = common::root().join(format!("src/ffi/c/{source}.rs"));
    let mut text = Vec::new();
    let bindings = Builder::new().with_config(config).with_src(path).generate().unwrap();
    bindings.write(&mut text);
    String::from_utf8(text).unwrap().trim().to_owned()
}

fn generate(header: &Header) -> String {
    let mut text = header.before.to_owned();
    text += "\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n";
    for (source, heading) in header.groups {
        let line = "-".repeat(heading.len());
        text += &format!("\n/* {line}\n   {heading}\n   {line} */\n\n{}\n", group(source));
    }
    text + "\n#ifdef __cplusplus\n}  /* extern \"C\" */\n#endif\n" + header.behind
}

#[test]
fn committed_headers_are_the_generated_ones() {
    for header in &HEADERS {
        let path = common::root().join("include/trtalloc").join(header.name);
        let generated = generate(header);
        if std::env::var_os("TRTALLOC_BLESS").is_some() {
            std::fs::write(&path, &generated).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == generated,
            "{} differs from src/ffi/c: TRTALLOC_BLESS=1 cargo test --test library header",
            header.name
        );
    }
}

/// Compiles two sources that include the headers, each twice, and links them into one program.
fn two_units(name: &str, extension: &str, compiler: fn() -> std::process::Command) {
    let dir = common::scratch(name);
    // hooks.h needs nothing before it.
    let include = "#include <trtalloc/hooks.h>\n#include <trtalloc/trtalloc.h>\n".repeat(2);
    let other = dir.join(format!("other.{extension}"));
    let main = dir.join(format!("main.{extension}"));
    std::fs::write(
        &other,
        format!("{include}const char *other(void);\nconst char *other(void) {{ return trtalloc_version(); }}\n"),
    )
    .unwrap();
    std::fs::write(
        &main,
        format!(
            "{include}const char *other(void);\n\
             int main(void) {{\n  static trtalloc_stats stats;\n  trtalloc_status status = TRTALLOC_STATUS_OK;\n  \
             trtalloc_ort_free(NULL);\n  \
             return status == 0 && stats.remaps == 0 && other() == trtalloc_version() ? 0 : 1;\n}}\n"
        ),
    )
    .unwrap();
    let mut command = compiler();
    command.args([&main, &other]).arg("-o").arg(dir.join("program"));
    common::link(&mut command, &dir);
    common::run(&mut command);
    common::run(&mut std::process::Command::new(dir.join("program")));
}

#[test]
fn it_is_c99() {
    two_units("header_c", "c", common::cc);
}

#[test]
fn it_is_cxx17() {
    two_units("header_cxx", "cpp", common::cxx);
}
