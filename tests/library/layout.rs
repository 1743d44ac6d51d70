//! The folders of `src`, and the parts of `src/pool`, use each other in one direction. The first comment of each
//! `mod.rs` has a line `Uses: driver, sync.` (or `Uses: nothing.`) that names what the folder may use. `circles` looks
//! at the files of each folder, and `reference` at what cargo doc shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

mod circles;
mod reference;

type Names = BTreeSet<String>;

/// The folders directly in `folder`, and what each says that it uses.
fn declared(folder: &Path) -> BTreeMap<String, Names> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = fs::read_to_string(path.join("mod.rs")) else {
            continue;
        };
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if ["command", "tests"].contains(&name.as_str()) {
            // The command uses the library from outside, and tests may use everything.
            continue;
        }
        let line = text.lines().find_map(|line| line.strip_prefix("//! Uses: "));
        let line = line.unwrap_or_else(|| panic!("{}: mod.rs has no line `//! Uses: …`", path.display()));
        let names = line.trim_end_matches('.').split(", ");
        let uses = names.filter(|name| *name != "nothing").map(str::to_owned).collect();
        all.insert(name, uses);
    }
    all
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let tests = path.file_stem().is_some_and(|name| name == "tests");
        match () {
            () if tests => {}
            () if path.is_dir() => sources(&path, into),
            () if path.extension().is_some_and(|suffix| suffix == "rs") => into.push(path),
            () => {}
        }
    }
}

/// The code of a file, without comments and without the module of its tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines();
    lines
        .map(|line| line.split("//").next().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The first names of the paths in `code` that begin with `prefix`: of `crate::a::b` and `crate::{c, d::e}`, a, c and d.
fn first_names(code: &str, prefix: &str) -> Names {
    let mut names = Names::new();
    for (at, _) in code.match_indices(prefix) {
        let rest = &code[at + prefix.len()..];
        let ident = |text: &str| {
            text.chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect::<String>()
        };
        if let Some(list) = rest.strip_prefix('{') {
            let list = list.split(';').next().unwrap();
            names.extend(list.split(',').map(|item| ident(item.trim())));
        } else {
            names.insert(ident(rest));
        }
    }
    names
}

/// Compares what the folders in `folder` use with what they declare. `prefix` is how paths to them begin.
fn check(folder: &str, prefix: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let declared = declared(&root);
    assert!(declared.len() > 5, "{declared:?}");
    let mut wrong = Vec::new();
    for (name, allowed) in &declared {
        let (mut files, mut used) = (Vec::new(), Names::new());
        sources(&root.join(name), &mut files);
        for file in &files {
            let code = code(file);
            let names = first_names(&code, prefix);
            // A path through `super` from a file of the folder leads to a neighbour only from its `mod.rs`, or twice.
            let up = match file.file_name().unwrap() == "mod.rs" && file.parent() == Some(&root.join(name)) {
                true => first_names(&code, "super::"),
                false => Names::new(),
            };
            used.extend(names.into_iter().chain(up).filter(|other| declared.contains_key(other)));
        }
        used.remove(name);
        for other in used.difference(allowed) {
            wrong.push(format!("{folder}/{name} uses {other}, and its mod.rs does not say so"));
        }
        for other in allowed.difference(&used) {
            wrong.push(format!("{folder}/{name}/mod.rs: it does not use {other}"));
        }
    }
    // What uses nothing that is left goes first; what is left at the end is a circle.
    let mut left = declared;
    while let Some(name) = left
        .iter()
        .find(|(_, uses)| uses.iter().all(|other| !left.contains_key(other)))
        .map(|(name, _)| name.clone())
    {
        left.remove(&name);
    }
    if !left.is_empty() {
        wrong.push(format!("{folder}: {:?} use each other in a circle", left.keys()));
    }
    wrong
}

#[test]
fn folders_use_each_other_in_one_direction() {
    let wrong: Vec<String> = [check("src", "crate::"), check("src/pool", "crate::pool::")].concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn paths_are_found_in_code() {
    let code = "use crate::pool::{Core, tags::Tag};\nlet x = crate::pool::reclaim::free(crate::pool::COMMON);";
    let names = first_names(code, "crate::pool::");
    assert_eq!(
        names.into_iter().collect::<Vec<_>>(),
        ["COMMON", "Core", "reclaim", "tags"]
    );
}
