//! The files and folders that lie directly in one folder use each other in one direction, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{code, sources};

/// The path of a module, from the crate's root.
type Module = Vec<String>;

/// The paths in `text` from its beginning: of `a::{b::C, d}`, `a::b::C` and `a::d`.
fn paths_at(text: &str) -> Vec<Module> {
    let ident: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    if let Some(list) = text.strip_prefix('{') {
        let (mut paths, mut depth, mut begin) = (Vec::new(), 0, 0);
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                ',' | '}' if depth == 0 => {
                    paths.extend(paths_at(list[begin..at].trim()));
                    begin = at + 1;
                }
                '}' => depth -= 1,
                _ => {}
            }
            if c == '}' && begin == at + 1 {
                break;
            }
        }
        return paths;
    }
    match text[ident.len()..].strip_prefix("::") {
        _ if ident.is_empty() => Vec::new(),
        Some(rest) => {
            let mut rest = paths_at(rest);
            rest.iter_mut().for_each(|path| path.insert(0, ident.clone()));
            if rest.is_empty() { vec![vec![ident]] } else { rest }
        }
        None => vec![vec![ident]],
    }
}

/// The path from the crate's root of a path that is written in `module`, if it begins at a module.
fn resolved(module: &Module, path: &[String]) -> Option<Module> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let base: &[String] = match path[0].as_str() {
        "crate" => &[],
        "self" => module,
        "super" => &module[..module.len().checked_sub(ups)?],
        _ => return None,
    };
    Some([base, &path[ups.max(1)..]].concat())
}

/// The modules of the crate, with the code of each.
struct Modules {
    code: BTreeMap<Module, String>,
    /// What a module brings into its scope from other modules, as far as its own files take it from there.
    names: BTreeMap<Module, Module>,
}

impl Modules {
    fn of(root: &Path) -> Modules {
        let mut files = Vec::new();
        sources(root, &mut files);
        let mut code_of = BTreeMap::new();
        for file in &files {
            let inside = file.strip_prefix(root).unwrap().with_extension("");
            let mut module: Module = inside.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
            if ["mod", "lib", "main"].contains(&module.last().unwrap().as_str()) {
                module.pop();
            }
            code_of.insert(module, code(file));
        }
        Modules::with(code_of)
    }

    fn with(code: BTreeMap<Module, String>) -> Modules {
        let mut modules = Modules {
            code,
            names: BTreeMap::new(),
        };
        for (module, code) in &modules.code {
            for (at, _) in code.match_indices("use ") {
                for path in paths_at(&code[at + 4..]) {
                    let child = [&module[..], &path[..1]].concat();
                    let child = modules
                        .code
                        .contains_key(&child)
                        .then(|| [&module[..], &path[..]].concat());
                    if let Some(target) = resolved(module, &path).or(child)
                        && let Some(name) = target.last().cloned()
                    {
                        let name = [&module[..], &[name]].concat();
                        modules.names.insert(name, target);
                    }
                }
            }
        }
        modules
    }

    /// The module that has the item, followed through the modules that only bring its name into their scope.
    fn home(&self, mut path: Module) -> Module {
        for _ in 0..8 {
            let known = (1..=path.len())
                .rev()
                .find(|length| self.names.contains_key(&path[..*length]));
            let Some(length) = known.filter(|length| !self.code.contains_key(&path[..*length])) else {
                break;
            };
            path = [&self.names[&path[..length]], &path[length..]].concat();
        }
        while !path.is_empty() && !self.code.contains_key(&path) {
            path.pop();
        }
        path
    }

    /// The modules that the code of a module names.
    fn used_by(&self, module: &Module) -> BTreeSet<Module> {
        let code = &self.code[module];
        let mut used = BTreeSet::new();
        for prefix in ["crate::", "super::", "self::"] {
            for (at, _) in code.match_indices(prefix) {
                let before = code[..at].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                let paths = paths_at(&code[at..]);
                used.extend(
                    paths
                        .iter()
                        .filter_map(|path| resolved(module, path))
                        .map(|path| self.home(path)),
                );
            }
        }
        used
    }

    /// The circles among the files and folders that lie directly in each folder below `root`. A folder's own `mod.rs` does
    /// not count: it has what they all share.
    fn circles(&self, root: &[&str]) -> Vec<String> {
        let mut reach: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for module in self.code.keys() {
            for other in self.used_by(module) {
                let same = module.iter().zip(&other).take_while(|(a, b)| a == b).count();
                if same < module.len().min(other.len()) && same >= root.len() && module[..root.len()] == *root {
                    let of = module[..=same].to_vec();
                    reach.entry(of).or_default().insert(other[..=same].to_vec());
                }
            }
        }
        // What is reached through others is reached.
        loop {
            let before: usize = reach.values().map(BTreeSet::len).sum::<usize>();
            for of in reach.keys().cloned().collect::<Vec<_>>() {
                let through: Vec<Module> = reach[&of]
                    .iter()
                    .filter_map(|by| reach.get(by))
                    .flatten()
                    .cloned()
                    .collect();
                reach.get_mut(&of).unwrap().extend(through);
            }
            if before == reach.values().map(BTreeSet::len).sum::<usize>() {
                break;
            }
        }
        let mut circles = BTreeSet::new();
        for (of, reached) in &reach {
            if reached.contains(of) {
                let back = reached
                    .iter()
                    .filter(|other| reach.get(*other).is_some_and(|back| back.contains(of)));
                let names: Vec<&str> = back.map(|other| other.last().unwrap().as_str()).collect();
                circles.insert(format!("{}: {}", of[..of.len() - 1].join("/"), names.join(", ")));
            }
        }
        circles.into_iter().collect()
    }
}

/// The folders below which this test looks. `allocator` and `sync` have no circles either.
const LOOKED_AT: [&str; 9] = [
    "allocator",
    "command",
    "driver",
    "ffi",
    "history",
    "pool",
    "support",
    "sync",
    "trace",
];

/// The circles that there are. A driver's descriptor and `Tools` name the simulated device, whose driver implements both; an
/// exported allocator has the list of its names, and each of them the allocator; a snapshot is written as a report's page.
const KNOWN: [&str; 3] = [
    "driver: ascend, cuda, none, open, sim, tools",
    "ffi: call, exported, named, tensorrt",
    "history: report, snapshot",
];

#[test]
fn files_use_each_other_in_one_direction() {
    let modules = Modules::of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let circles: Vec<String> = LOOKED_AT.iter().flat_map(|folder| modules.circles(&[folder])).collect();
    assert_eq!(circles, KNOWN, "files that use each other in a circle");
}

#[test]
fn circles_among_files_are_found() {
    let module = |path: &str| -> Module { path.split('/').map(str::to_owned).collect() };
    let code = [
        ("top", "use deep::Thing;"),
        ("top/a", "use super::{Thing, b::{self, x}};"),
        ("top/b", "fn b() { crate::top::c::of(super::x) }"),
        ("top/c", "use super::a::A;"),
        ("top/d", "use super::{a, c::{of, a}};"),
        ("top/deep", "mod one; mod two;"),
        ("top/deep/one", "use super::two::Two;"),
        ("top/deep/two", "use super::super::a;"),
    ];
    let of = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(path, code)| (module(path), (*code).to_owned()));
        Modules::with(files.collect()).circles(&["top"])
    };
    // `top/a` takes `Thing` from its parent, which has it from `top/deep`, and `top/deep/two` uses `top/a`.
    assert_eq!(of(&code), ["top: a, b, c, deep"]);
    assert_eq!(of(&code[2..]), [""; 0]);
}
