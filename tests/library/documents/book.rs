//! The documents as a book: docs/SUMMARY.md, in mdBook's format, has every page once, every link leads to a page and to a heading
//! that exist, and no page repeats a paragraph of another.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The parts of the book, in their order.
const PARTS: [&str; 6] = ["Start", "Guide", "Operate", "Reference", "Internals", "Decisions"];

/// How many links lead from the README to any page of the book, at most.
const CLICKS: usize = 3;

/// The README has at most so many bytes.
const README: usize = 7 * 1024;

/// Paragraphs of fewer words may occur on several pages.
const SHORT: usize = 20;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files under `folder`, relative to the repository, whose names end in one of `ends`.
fn files(folder: &str, ends: &[&str], into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let relative = path.strip_prefix(root()).unwrap().to_owned();
        if path.is_dir() {
            let is_made = ["target", "__pycache__", "node_modules"].contains(&name) || name.ends_with(".egg-info");
            if !is_made {
                files(relative.to_str().unwrap(), ends, into);
            }
        } else if ends.iter().any(|end| name.ends_with(end)) {
            into.push(relative);
        }
    }
}

/// The pages of docs/, without the table of contents.
fn pages() -> BTreeSet<PathBuf> {
    let mut all = Vec::new();
    files("docs", &[".md"], &mut all);
    all.into_iter()
        .filter(|path| path != Path::new("docs/SUMMARY.md"))
        .collect()
}

/// Every document that a reader may open: the book, and the pages beside it.
fn documents() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = pages().into_iter().collect();
    for page in [
        "docs/SUMMARY.md",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "python/README.md",
        "tests/gpu/README.md",
    ] {
        all.push(page.into());
    }
    all
}

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of a page that are not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    })
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    // A link in a heading counts as its text.
    let mut text = heading.to_owned();
    while let Some(at) = text.find("](") {
        let end = text[at..].find(')').map_or(text.len(), |length| at + length + 1);
        text.replace_range(at..end, "");
        if let Some(start) = text[..at].rfind('[') {
            text.remove(start);
        }
    }
    let kept = text.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// The anchors of a page. The second heading of the same text has `-1` at its end.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let headings = prose(text).filter(|line| line.starts_with('#') && line.trim_start_matches('#').starts_with(' '));
    headings
        .map(|line| {
            let made = anchor(line.trim_start_matches('#'));
            let count = seen.entry(made.clone()).or_default();
            *count += 1;
            match *count {
                1 => made,
                more => format!("{made}-{}", more - 1),
            }
        })
        .collect()
}

/// The targets of a page's links.
fn links(text: &str) -> Vec<String> {
    let text = prose(text).collect::<Vec<_>>().join("\n");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(str::to_owned).collect()
}

/// `path` as seen from the folder of `page`, without `..`.
fn resolved(page: &Path, path: &str) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in page.parent().unwrap_or(Path::new("")).join(path).components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            part => whole.push(part),
        }
    }
    whole
}

/// The files that a page's links lead to, and their anchors. Addresses in the network are left out.
fn targets(page: &Path, text: &str) -> Vec<(PathBuf, String)> {
    let local = links(text).into_iter().filter(|target| !target.contains("://"));
    local
        .map(|target| {
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = match path {
                "" => page.to_owned(),
                path => resolved(page, path),
            };
            (file, anchor.to_owned())
        })
        .collect()
}

#[test]
fn the_table_of_contents_has_every_page_once() {
    let text = read(Path::new("docs/SUMMARY.md"));
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    assert_eq!(lines.next(), Some("# Summary"));
    let (mut parts, mut listed) = (Vec::new(), Vec::new());
    for line in lines {
        if let Some(part) = line.strip_prefix("# ") {
            parts.push(part);
            continue;
        }
        // Pages below a page are indented by two spaces for each level.
        let item = line.trim_start();
        assert!((line.len() - item.len()).is_multiple_of(2), "{line:?}");
        let item = item.strip_prefix("- [").and_then(|rest| rest.strip_suffix(')'));
        let (title, path) = item
            .and_then(|item| item.split_once("]("))
            .unwrap_or_else(|| panic!("{line:?} is no item of mdBook's: `- [Title](page.md)`"));
        assert!(!title.is_empty() && !path.contains('#'), "{line:?}");
        listed.push(Path::new("docs").join(path));
    }
    assert_eq!(parts, PARTS);
    let there: BTreeSet<PathBuf> = listed.iter().cloned().collect();
    assert_eq!(there.len(), listed.len(), "a page is listed twice: {listed:?}");
    let pages = pages();
    let unlisted: Vec<_> = pages.difference(&there).collect();
    let absent: Vec<_> = there.difference(&pages).collect();
    assert!(
        unlisted.is_empty() && absent.is_empty(),
        "docs/SUMMARY.md lacks {unlisted:?}, and lists {absent:?}, which are not there"
    );
}

#[test]
fn links_lead_to_pages_and_headings() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in documents() {
        let text = read(&page);
        for (file, anchor) in targets(&page, &text) {
            count += 1;
            let place = page.display();
            if !root().join(&file).exists() {
                wrong.push(format!("{place}: no file {}", file.display()));
            } else if !anchor.is_empty() && !anchors(&read(&file)).contains(&anchor) {
                wrong.push(format!("{place}: {} has no heading #{anchor}", file.display()));
            }
        }
    }
    assert!(count > 100, "{count} links");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_page_is_a_few_links_from_the_readme() {
    let mut clicks = BTreeMap::from([(PathBuf::from("README.md"), 0)]);
    let mut queue = VecDeque::from([PathBuf::from("README.md")]);
    while let Some(page) = queue.pop_front() {
        let next = clicks[&page] + 1;
        for (file, _) in targets(&page, &read(&page)) {
            if file.extension().is_some_and(|end| end == "md") && !clicks.contains_key(&file) {
                clicks.insert(file.clone(), next);
                queue.push_back(file);
            }
        }
    }
    for page in pages() {
        let far = clicks.get(&page);
        assert!(
            far.is_some_and(|far| *far <= CLICKS),
            "{}: {far:?} links from the README",
            page.display()
        );
    }
}

#[test]
fn the_readme_is_short() {
    let bytes = read(Path::new("README.md")).len();
    assert!(bytes <= README, "{bytes} bytes");
}

#[test]
fn no_page_repeats_a_paragraph() {
    let mut seen = BTreeMap::<String, PathBuf>::new();
    for page in documents() {
        let text = read(&page);
        let text = prose(&text).collect::<Vec<_>>().join("\n");
        for paragraph in text.split("\n\n") {
            let words: Vec<&str> = paragraph.split_whitespace().collect();
            if words.len() < SHORT {
                continue;
            }
            if let Some(other) = seen.insert(words.join(" "), page.clone()) {
                panic!("{} and {} both have:\n{paragraph}", other.display(), page.display());
            }
        }
    }
}

/// Sources, tests and scripts name pages of docs/ in comments and messages.
#[test]
fn pages_that_sources_name_exist() {
    let mut sources = vec!["Cargo.toml".into(), "build.rs".into(), "tests/gpu/run".into()];
    for folder in [
        "src", "tests", "benches", "examples", "python", "cmake", "include", "cpp",
    ] {
        let ends = [
            ".rs", ".toml", ".txt", ".py", ".c", ".h", ".cpp", ".hpp", ".cmake", ".in", ".md",
        ];
        files(folder, &ends, &mut sources);
    }
    for script in fs::read_dir(root().join(".ci")).unwrap() {
        sources.push(script.unwrap().path().strip_prefix(root()).unwrap().to_owned());
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    for source in sources {
        // A test's data may be no text.
        let Ok(text) = fs::read_to_string(root().join(&source)) else {
            continue;
        };
        for (at, _) in text.match_indices("docs/") {
            let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            let path: String = text[at..].chars().take_while(|c| is_path(*c)).collect();
            let path = path.trim_end_matches('.');
            if path.ends_with(".md") {
                count += 1;
                if !root().join(path).exists() {
                    wrong.push(format!("{}: {path}", source.display()));
                }
            }
        }
    }
    assert!(count > 30, "{count} pages");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The paths between backticks in a document that begin in a top folder.
fn named_paths(text: &str) -> impl Iterator<Item = &str> {
    const TOP: [&str; 10] = [
        "src/",
        "tests/",
        "cpp/",
        "include/",
        "benches/",
        "examples/",
        "python/",
        "cmake/",
        "docs/",
        ".ci/",
    ];
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|path| {
        TOP.iter().any(|top| path.starts_with(top))
            && !path.starts_with("docs/zh")
            && !path.contains("NAME")
            && !path.contains([' ', '*', '<', '{', '…'])
    })
}

#[test]
fn files_that_documents_name_exist() {
    // The changelog names files that were there at its time.
    let documents = documents();
    let documents = documents.iter().filter(|path| *path != Path::new("CHANGELOG.md"));
    let (mut missing, mut count) = (Vec::new(), 0);
    for document in documents {
        let text = fs::read_to_string(root().join(document)).unwrap();
        for path in named_paths(&text) {
            count += 1;
            if !root().join(path.trim_end_matches('/')).exists() {
                missing.push(format!("{}: `{path}`", document.display()));
            }
        }
    }
    assert!(count > 50, "{count} paths");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn anchors_are_those_of_github_and_mdbook() {
    assert_eq!(
        anchor("Jetson and Grace: one memory for the CPU"),
        "jetson-and-grace-one-memory-for-the-cpu"
    );
    assert_eq!(anchor("`trtalloc doctor PROGRAM`"), "trtalloc-doctor-program");
    assert_eq!(anchor("With 0.8 × the needs"), "with-08--the-needs");
    assert_eq!(anchor("What [a page](page.md) says"), "what-a-page-says");
    let text = "# A\n```sh\n# no heading\n```\n## B\n## B\n#hash\n";
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["a", "b", "b-1"]);
    assert_eq!(
        resolved(Path::new("a/b/page.md"), "../other.md"),
        Path::new("a/other.md")
    );
}
