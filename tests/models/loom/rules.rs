//! Every rule that can be broken has a test that breaks it.

use std::fs;
use std::path::Path;

/// All Rust under `folder`, as one text.
fn rust(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts = entries.map(|path| match path.extension() {
        _ if path.is_dir() => rust(&path),
        Some(end) if end == "rs" => fs::read_to_string(&path).unwrap(),
        _ => String::new(),
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The first arguments of the calls of `function`.
fn named<'a>(text: &'a str, function: &str) -> Vec<&'a str> {
    let calls = text.split(function).skip(1);
    let names = calls.filter_map(|call| call.trim_start().strip_prefix('"')?.split('"').next());
    names.collect()
}

#[test]
fn no_rule_without_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (source, models) = (rust(&folder.join("../../src")), rust(&folder.join("loom")));
    let mut tested = named(&models, "caught(");
    // Unit tests: some break the rule directly, and some through a function of theirs.
    tested.extend(named(&source, "breaking("));
    tested.extend(named(&source, "noticed("));
    // This finds `unless_broken` too.
    let rules = named(&source, "broken(");
    assert!(rules.len() > 20, "{rules:?}");
    for rule in rules {
        assert!(tested.contains(&rule), "no test breaks this rule: {rule}");
    }
}
