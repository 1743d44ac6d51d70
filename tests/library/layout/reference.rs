//! The reference, as `cargo doc` writes it for Rust programs: src/lib.rs shows types and four modules, and hides the library's
//! own. `cargo test` does not run rustdoc, so these tests read the sources.

use std::fs;
use std::path::Path;

/// The modules of the reference.
const MODULES: [&str; 4] = ["config", "log", "snapshot", "tags"];

/// src/lib.rs shows at most so many names.
const NAMES: usize = 50;

/// The most used methods of `Allocator`, in the order in which the reference has them.
const METHODS: [&str; 14] = [
    "create",
    "allocate",
    "deallocate",
    "reallocate",
    "record_stream",
    "stats",
    "trim",
    "set_limit",
    "tag_stats",
    "history",
    "snapshot",
    "on_oom",
    "over",
    "close",
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// What follows `prefix` at the beginning of a statement, up to `end`, except where `#[doc(hidden)]` stands before it.
fn shown<'a>(text: &'a str, prefix: &str, end: &[char]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(prefix) {
        let (before, rest) = (&text[..at], &text[at + prefix.len()..]);
        let above = before.trim_end().lines().rev().map(str::trim_start);
        let begins = before.trim_end_matches(' ').ends_with('\n');
        let hidden = above
            .take_while(|line| line.starts_with("#["))
            .any(|line| line == "#[doc(hidden)]");
        if begins && !hidden {
            found.push(rest.split(end).next().unwrap());
        }
    }
    found
}

#[test]
fn the_reference_hides_the_modules_of_the_library() {
    let text = read("src/lib.rs");
    // The models see one module more.
    let text = text.replace("#[cfg(loom)]\npub mod sync;\n", "");
    let mut modules = shown(&text, "pub mod ", &[' ', ';']);
    let mut names = Vec::new();
    for path in shown(&text, "pub use ", &[';']) {
        let list = path.rsplit("::").next().unwrap().trim_matches(['{', '}', '\n', ' ']);
        let list = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        match path.starts_with("support::{") {
            true => modules.extend(list),
            false => names.extend(list),
        }
    }
    modules.sort_unstable();
    assert_eq!(modules, MODULES);
    for name in [
        "Allocator",
        "Request",
        "Stream",
        "Config",
        "Error",
        "Stats",
        "ExportedAllocator",
        "Snapshot",
    ] {
        assert_eq!(
            names.iter().filter(|shown| **shown == name).count(),
            1,
            "{name}: {names:?}"
        );
    }
    assert!(names.len() <= NAMES && !names.contains(&"*"), "{names:?}");
}

#[test]
fn the_reference_has_the_most_used_methods_first() {
    // rustdoc goes through the modules of a file in the order of their `mod` lines, and then through the file.
    let own = read("src/allocator/mod.rs");
    let modules = own
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let files = modules.map(|name| read(&format!("src/allocator/{name}.rs")));
    let text = files.chain([own.clone()]).collect::<String>();
    let methods = shown(&text, "pub fn ", &['(', '<']);
    let known: Vec<&str> = methods.iter().copied().filter(|name| METHODS.contains(name)).collect();
    assert_eq!(known, METHODS, "of {methods:?}");
    // What they take and return is in the reference.
    for signature in shown(&text, "pub fn ", &['{']) {
        let internal = ["dyn Driver", "Recorder", "Pool"]
            .into_iter()
            .find(|name| signature.contains(name));
        assert_eq!(internal, None, "{signature}");
    }
}
