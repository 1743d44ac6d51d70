//! The reference names what the headers have. What the documents show is in blocks.rs; book.rs follows their links.

use crate::common;

#[test]
fn the_reference_names_every_function_and_field() {
    let header = |name: &str| std::fs::read_to_string(common::root().join("include/trtalloc").join(name)).unwrap();
    let header = header("trtalloc.h") + &header("hooks.h");
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
