//! Names of the objects that injection attaches to: the file of the caller, and a number. The summary at exit shows
//! them.

use crate::inject::standin::{self, Built, VERSIONS, of, preloaded, start, tested, text, texts};
use crate::inject::table::Outcome;

/// The lines of the summary that are about names, without what is the same in each.
fn names(stderr: &str) -> Vec<&str> {
    let lines = stderr.lines();
    lines
        .filter_map(|line| line.strip_prefix("trtalloc: device 0: `"))
        .collect()
}

/// What an object of a client holds at most: a block that grows to 3 MiB, then one of 1 MiB.
const EACH: &str = "allocated 0.0 MiB, at most 3.0; 2 allocations, 2 frees, 0 refused";

fn each(name: &str) -> String {
    format!("{name}`: {EACH}")
}

#[test]
fn objects_have_the_name_of_their_caller_in_every_way() {
    let check = |built: &Built| {
        let library = text(&built.library);
        let plugin = built.plugin();
        let opened = format!("{}:{library}", text(&built.plugin_that_looks_up()));
        let ways = [
            (preloaded(&built.linked("linked", &[]), &[]), "linked"),
            (preloaded(&built.looks_up(), &[library]), "looks_up"),
            (preloaded(standin::host(), &["local", "", text(&plugin)]), "plugin.so"),
            (preloaded(standin::host(), &["local", "", &opened]), "looking.so"),
        ];
        for (mut command, caller) in ways {
            let (_, stderr) = texts(command.env("TRTALLOC_STATS", "1"));
            let expected = [each(&format!("{caller}#1")), each(&format!("{caller}#2 (builder)"))];
            assert_eq!(names(&stderr), expected, "{caller}: {stderr}");
            // A program that does not ask has no names.
            let (_, stderr) = texts(command.env("TRTALLOC_STATS", "0").env("TRTALLOC_LOG", "info"));
            assert!(stderr.contains("allocates through trtalloc\n"), "{stderr}");
            let (_, stderr) = texts(command.env("TRTALLOC_HISTORY", "state"));
            let line = format!("allocates through trtalloc as `{caller}#1`\n");
            assert!(stderr.contains(&line), "{stderr}");
        }
    };
    for version in &VERSIONS {
        tested(|| {
            check(version.built()?);
            Ok(())
        });
    }
}

/// Eight threads create 320 objects.
#[test]
fn objects_after_the_64th_share_a_name() {
    tested(|| {
        let mut command = preloaded(&of("8.6").built()?.linked("linked", &[]), &["", "threads"]);
        let (_, stderr) = texts(command.env("TRTALLOC_STATS", "1"));
        let names = names(&stderr);
        assert_eq!(names.len(), 65, "{stderr}");
        let other = names.iter().find_map(|line| line.strip_prefix("other`: "));
        assert!(
            other.is_some_and(|line| line.ends_with("; 512 allocations, 512 frees, 0 refused")),
            "{stderr}"
        );
        for number in 1..=64 {
            let mine = |line: &&&str| {
                line.starts_with(&format!("linked#{number}`: "))
                    || line.starts_with(&format!("linked#{number} (builder)`: "))
            };
            assert_eq!(names.iter().filter(mine).count(), 1, "{number}: {stderr}");
        }
        Ok::<(), Outcome>(())
    });
}

/// How many runtimes a loop creates: a million in each of three ways of three versions takes minutes, so that is for
/// `TRTALLOC_TEST_RUNTIMES=1000000`.
fn runtimes() -> u64 {
    let count = std::env::var("TRTALLOC_TEST_RUNTIMES").ok();
    count.map_or(30_000, |count| {
        count.parse().expect("TRTALLOC_TEST_RUNTIMES is a number")
    })
}

/// A year of a server that loads and unloads models: injected, linked with TensorRT or looking it up; and attached with a name
/// by the program itself.
#[test]
fn runtimes_with_names_take_no_more_memory() {
    let check = |built: &Built, attaching: &std::path::Path| {
        let count = runtimes();
        let library = text(&built.library);
        let arguments = format!("loop={count}");
        let ways = [
            preloaded(&built.linked("linked", &[]), &["", &arguments]),
            preloaded(&built.looks_up(), &[library, &arguments]),
            start(attaching, &[&count.to_string()]),
        ];
        for (at, mut command) in ways.into_iter().enumerate() {
            let (_, stderr) = texts(command.env("TRTALLOC_STATS", "1"));
            let first = format!("{count} runtimes, ");
            let grown = stderr
                .lines()
                .find_map(|line| line.strip_prefix(&first)?.strip_suffix(" bytes more"));
            let grown: i64 = grown.expect(&stderr).parse().unwrap();
            assert!(grown < 1 << 20, "{at}: {grown} bytes after {count} runtimes");
            let expected = if at < 2 { 65 } else { 20 };
            assert_eq!(names(&stderr).len(), expected, "{at}: {stderr}");
        }
    };
    tested(|| {
        // One of each table of functions.
        for version in ["8.6", "11.4", "RTX 1.7"] {
            let version = of(version);
            let built = version.built()?;
            let attaching = built.program(version, "attach.cpp", &[text(&built.ours()), text(&built.library)])?;
            check(built, &attaching);
        }
        Ok(())
    });
}
