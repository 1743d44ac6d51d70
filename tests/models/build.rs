//! Copies the library's source, for the models to run: as it is, but with loom's atomics and locks for the real ones,
//! with small tables, and with a switch at each rule that a model breaks on purpose. A rule that is not found where
//! `broken.rs` says fails the build.

use std::path::{Path, PathBuf};
use std::{env, fs};

include!("broken.rs");

/// What the parts that are modelled get from `crate::sync`. The simulated device stays as it is: a driver call is one step;
/// and so does the thread that waits for a driver without context events.
const SYNC: &[(&str, &str)] = &[
    ("std::sync::atomic::", "crate::sync::atomic::"),
    ("once_cell::race::OnceBox", "crate::sync::OnceBox"),
    ("parking_lot::", "crate::sync::"),
    ("std::cell::UnsafeCell", "crate::sync::UnsafeCell"),
    ("std::hint::", "crate::sync::hint::"),
    ("std::thread::", "crate::sync::thread::"),
    ("std::collections::HashMap", "crate::sync::HashMap"),
    (
        "std::collections::{HashMap, VecDeque}",
        "{crate::sync::HashMap, std::collections::VecDeque}",
    ),
    ("HashMap::new()", "HashMap::default()"),
    ("std::time::Instant", "crate::sync::Instant"),
    (
        "std::time::{Duration, Instant}",
        "{crate::sync::Instant, std::time::Duration}",
    ),
];

/// Tables made small: every run of a model makes them anew.
const SMALL: &[(&str, &str, &str)] = &[
    (
        "pool/block.rs",
        "const CHUNK: usize = 1024;",
        "const CHUNK: usize = crate::sync::CHUNK;",
    ),
    (
        "pool/block.rs",
        "const CHUNKS: usize = 1 << 14;",
        "const CHUNKS: usize = 1 << 4;",
    ),
    ("pool/block.rs", "    const fn new() -> Block", "    fn new() -> Block"),
    (
        "pool/index.rs",
        "const LEAF: usize = 4096;",
        "const LEAF: usize = crate::sync::LEAF;",
    ),
    (
        "pool/stream_cache.rs",
        "const BUCKETS: usize = 1024;",
        "const BUCKETS: usize = 1;",
    ),
    ("pool/stream_cache.rs", ">> 54) as usize", ">> 54) as usize % BUCKETS"),
    // One bucket: addresses differ from run to run.
    (
        "pool/beside.rs",
        "const BUCKET_BITS: u32 = 14;",
        "const BUCKET_BITS: u32 = 0;",
    ),
    (
        "pool/beside.rs",
        ">> (64 - BUCKET_BITS)) as usize",
        ">> 63) as usize >> 1",
    ),
    ("pool/beside.rs", "const CHUNK: usize = 256;", "const CHUNK: usize = 8;"),
    (
        "pool/beside.rs",
        "const CHUNKS: usize = 1 << 14;",
        "const CHUNKS: usize = 1 << 4;",
    ),
    (
        "allocator/mod.rs",
        "const MOST_DEVICES: i32 = 64;",
        "const MOST_DEVICES: i32 = 1;",
    ),
    ("driver/mod.rs", "pub mod ascend;", "pub use crate::ascend;"),
    ("driver/mod.rs", "pub mod cuda;", "pub use crate::cuda;"),
    ("driver/mod.rs", "\nmod library;", ""),
    (
        "driver/sim/model/threads.rs",
        "\nthread_local!",
        "\ncrate::sync::thread_local!",
    ),
    // Handles are the same in every run.
    (
        "driver/sim/model/mod.rs",
        "NUMBERS.fetch_add(1, Relaxed)",
        "NUMBERS.load(Relaxed)",
    ),
];

const TREE: &[&str] = &["allocator", "pool", "driver/sim", "config", "stats"];
const FILES: &[&str] = &[
    "answer.rs",
    "driver/mod.rs",
    "driver/none.rs",
    "config.rs",
    "error.rs",
    "nvtx.rs",
    "process.rs",
    "record/event.rs",
    "record/options.rs",
    "record/state.rs",
    "stats.rs",
    "tags.rs",
];

/// What is not modelled: nothing is recorded, and a process does not end.
const STAND_INS: &[(&str, &str)] = &[("record.rs", "record/mod.rs"), ("exit.rs", "allocator/exit.rs")];

fn main() {
    let source = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../src");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    let copy = out.join("src");
    let _ = fs::remove_dir_all(&copy);
    let mut files: Vec<PathBuf> = FILES.iter().map(PathBuf::from).collect();
    TREE.iter()
        .for_each(|folder| collect(&source, Path::new(folder), &mut files));
    for file in &files {
        let text = fs::read_to_string(source.join(file)).unwrap();
        // A file that is named by its path has its modules beside it.
        let to = copy.join(match file.to_str() {
            Some("config.rs") => Path::new("config/mod.rs"),
            Some("stats.rs") => Path::new("stats/mod.rs"),
            _ => file.as_path(),
        });
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, changed(file.to_str().unwrap(), text)).unwrap();
    }
    for (file, of) in STAND_INS {
        fs::copy(Path::new("stand_in").join(file), copy.join(of)).unwrap();
    }
    let mut root = String::new();
    for module in [
        "allocator/mod.rs",
        "answer.rs",
        "pool/mod.rs",
        "driver/mod.rs",
        "config/mod.rs",
        "error.rs",
        "nvtx.rs",
        "process.rs",
        "record/mod.rs",
        "stats/mod.rs",
        "tags.rs",
    ] {
        let name = module.split(['/', '.']).next().unwrap();
        root += &format!("#[path = {:?}]\npub mod {name};\n", copy.join(module));
    }
    fs::write(out.join("root.rs"), root).unwrap();
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-changed=broken.rs");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=stand_in");
}

fn collect(source: &Path, folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(source.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            collect(source, &path, files);
        } else {
            files.push(path);
        }
    }
}

fn changed(file: &str, mut text: String) -> String {
    for (rule, of, from, to) in BROKEN.iter().filter(|(_, of, ..)| *of == file) {
        let to = to
            .replace("broken(", "trtalloc_models::broken(")
            .replace("crate::unless(", "trtalloc_models::relaxed_if_broken(");
        text = once(&text, from, &to, &format!("{rule}, in src/{of}"));
    }
    for (of, from, to) in SMALL.iter().filter(|(of, ..)| *of == file) {
        text = once(&text, from, to, of);
    }
    let modelled = file.starts_with("pool/") || file.starts_with("allocator/");
    if modelled && file != "pool/synchronise.rs" {
        for (from, to) in SYNC {
            text = text.replace(from, to);
        }
    }
    // The models are no unit tests, and see what is private to the pool.
    text = text.replace("#[cfg(test)]", "#[cfg(any())]");
    if file == "driver/sim/model/threads.rs" {
        text = text.replace("= const {", "= {");
    }
    if file == "pool/mod.rs" {
        text = text.replace("\nmod ", "\npub mod ");
    }
    text
}

fn once(text: &str, from: &str, to: &str, what: &str) -> String {
    assert_eq!(
        text.matches(from).count(),
        1,
        "{what}: {from:?} is to be there once; see tests/models/broken.rs"
    );
    text.replace(from, to)
}
