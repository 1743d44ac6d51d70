//! include/trtalloc/trtalloc.h is what src/capi.rs and its files say, and is good C99 and C++17.

mod common;

use cbindgen::{Builder, Config, DocumentationStyle, EnumConfig, ExportConfig, ItemType, Language, RenameRule};

const AFTER_INCLUDES: &str = "
/* A bit of `flags`: trtalloc_reallocate may change the block's size. TensorRT's AllocatorFlag::kRESIZABLE. */
#define TRTALLOC_RESIZABLE 1u

/* Sizes are bytes. Every function may be called from any thread. Nothing is written to stdout, and nothing is thrown but by
   trtalloc_torch_malloc_or_throw.
   An allocator is NULL, which is refused, or came from this library. A stream is a CUstream or cudaStream_t; NULL is the
   legacy default stream of the current context. */";

fn generate() -> String {
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::C99,
        header: Some(
            "/* trtalloc: a GPU memory allocator for TensorRT. Generated from src/capi.rs by tests/header.rs. */"
                .into(),
        ),
        include_guard: Some("TRTALLOC_TRTALLOC_H".into()),
        after_includes: Some(AFTER_INCLUDES.into()),
        no_includes: true,
        sys_includes: ["stdbool.h", "stddef.h", "stdint.h"].map(String::from).to_vec(),
        style: cbindgen::Style::Both,
        line_length: 120,
        enumeration: EnumConfig {
            rename_variants: RenameRule::QualifiedScreamingSnakeCase,
            ..EnumConfig::default()
        },
        // Constants are Rust's own; the one that is C's too is above.
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
    let mut header = Vec::new();
    let mut builder = Builder::new().with_config(config);
    for source in [
        "src/capi.rs",
        "src/capi/record.rs",
        "src/capi/output.rs",
        "src/capi/tags.rs",
        "src/capi/hooks.rs",
    ] {
        builder = builder.with_src(common::root().join(source));
    }
    builder.generate().unwrap().write(&mut header);
    String::from_utf8(header).unwrap()
}

#[test]
fn the_committed_header_is_the_generated_one() {
    let path = common::root().join("include/trtalloc/trtalloc.h");
    let generated = generate();
    if std::env::var_os("TRTALLOC_BLESS").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "trtalloc.h differs from src/capi.rs: TRTALLOC_BLESS=1 cargo test --test header"
    );
}

/// Compiles two sources that include the header, each twice, and links them into one program.
fn two_units(name: &str, extension: &str, compiler: fn() -> std::process::Command) {
    let dir = common::scratch(name);
    let include = "#include <trtalloc/trtalloc.h>\n#include <trtalloc/trtalloc.h>\n";
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
