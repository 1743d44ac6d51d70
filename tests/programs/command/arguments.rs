//! Arguments and options that are refused or reported.

use crate::command::{SMALL, command, expect, file, stderr, stdout, trtalloc};
use crate::common;

#[test]
fn arguments_without_meaning_are_refused() {
    let path = file("arguments.csv", SMALL);
    let path = path.to_str().unwrap();
    let snapshot = file("arguments.json", r#"{"segments":[]}"#);
    let cases: [&[&str]; 17] = [
        &[],
        &["dance"],
        &["replay", path, "--driver", "steam"],
        &["replay", path, "--driver", "sim", "--limit", "lots"],
        &["replay", path, "--driver", "sim", "--options", "colour=red"],
        &["replay", path, "--driver", "sim", "--repeat", "0"],
        &["trace", "nothing"],
        // A generated trace has one device, and a snapshot has one history.
        &["trace", "serving", "--device", "0"],
        &["trace", snapshot.to_str().unwrap(), "--seed", "2"],
        // None of these is a bound, and a run without one would pass.
        &["replay", path, "--driver", "sim", "--cap", "0"],
        &["replay", path, "--driver", "sim", "--cap", "nan"],
        &["replay", path, "--driver", "sim", "--max-ratio", "nan"],
        &["replay", path, "--driver", "sim", "--max-remaps", "inf"],
        &["bench", "serve", "--cap", "0"],
        &["bench", "serve", "--cap", "NaN"],
        &["bench", "serve", "--reserve-part", "nan"],
        &["bench", "--driver", "sim", "--only", "paris"],
    ];
    for arguments in cases {
        let output = trtalloc(arguments);
        expect(&output, 2);
        assert!(!stderr(&output).is_empty(), "{arguments:?}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
}

#[test]
fn a_misspelt_subcommand_gets_a_hint() {
    for (typed, meant) in [
        ("rn", "run"),
        ("dcotor", "doctor"),
        ("reply", "replay"),
        ("bnech", "bench"),
    ] {
        let output = trtalloc(&[typed]);
        expect(&output, 2);
        let said = stderr(&output);
        assert!(said.contains(&format!("'{typed}'")), "{said}");
        assert!(
            said.contains(&format!("a similar subcommand exists: '{meant}'")),
            "{said}"
        );
    }
    let output = trtalloc(&["juggle"]);
    expect(&output, 2);
    assert!(!stderr(&output).contains("similar"), "{}", stderr(&output));
}

#[test]
fn a_misspelt_option_is_logged_with_the_nearest() {
    let path = file("misspelt.csv", SMALL);
    let replay = ["replay", path.to_str().unwrap(), "--driver", "sim"];
    let output = command(&replay).env("TRTALLOC_LIMTI", "1GiB").output().unwrap();
    expect(&output, 0);
    let said = "trtalloc: warn: TRTALLOC_LIMTI is no option; the nearest is TRTALLOC_LIMIT\n";
    assert_eq!(stderr(&output), said);
    let output = trtalloc(&[&replay[..], &["--options", "limti=1GiB"]].concat());
    expect(&output, 2);
    assert!(stderr(&output).contains("unknown option `limti`: the nearest is `limit`"));
    // A limit of the environment that cannot be read is no less than one that is typed.
    let output = command(&replay).env("TRTALLOC_LIMIT", "much").output().unwrap();
    expect(&output, 2);
    assert!(stderr(&output).contains("TRTALLOC_LIMIT: cannot read `much`"));
    let arguments = [&replay[..], &["--limit", "1GB"]].concat();
    expect(&command(&arguments).env("TRTALLOC_LIMIT", "much").output().unwrap(), 0);
}

#[test]
fn a_snapshot_in_place_of_a_trace_gets_a_hint() {
    for (name, text) in [("memory.pickle", &b"\x80\x04}."[..]), ("memory.json", b"{}")] {
        let path = file(name, "");
        std::fs::write(&path, text).unwrap();
        let output = trtalloc(&["replay", path.to_str().unwrap(), "--driver", "sim"]);
        expect(&output, 2);
        assert!(
            stderr(&output).contains("`trtalloc trace` makes a trace of it"),
            "{}",
            stderr(&output)
        );
    }
}

/// The commands of ours in a page's running text, as words. Blocks of code are run by tests/compatibility.
fn inline_commands(page: &str) -> Vec<Vec<String>> {
    let outside_blocks = page.split("```").step_by(2).collect::<Vec<_>>().join("\n");
    let code = outside_blocks.split('`').skip(1).step_by(2);
    let words = code.map(|code| code.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words
        .filter(|words| words.len() > 1 && words[0] == "trtalloc")
        .collect()
}

#[test]
fn documents_name_options_that_exist() {
    let mut pages = vec!["README.md".into(), "CONTRIBUTING.md".into(), "python/README.md".into()];
    let mut folders = vec![common::root().join("docs")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    let (mut help, mut checked) = (std::collections::BTreeMap::new(), 0);
    for page in pages {
        let text = std::fs::read_to_string(common::root().join(&page)).unwrap();
        for command in inline_commands(&text) {
            let own = command.iter().take_while(|word| *word != "--");
            let options: Vec<&str> = own.filter(|word| word.starts_with("--")).map(String::as_str).collect();
            let serves = command.get(2).is_some_and(|word| word == "serve");
            let subcommand = command[1..if serves { 3 } else { 2 }].to_vec();
            let known = help.entry(subcommand.clone()).or_insert_with(|| {
                let arguments: Vec<&str> = subcommand.iter().map(String::as_str).chain(["--help"]).collect();
                let output = trtalloc(&arguments);
                expect(&output, 0);
                stdout(&output)
                    .split(|c: char| c.is_whitespace() || "=[],".contains(c))
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            });
            for option in options {
                let name = option.split('=').next().unwrap();
                assert!(
                    known.iter().any(|word| word == name),
                    "{}: {command:?} has no {name}",
                    page.display()
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked}");
}
