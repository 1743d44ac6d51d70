//! What each command does, and what it refuses.

use std::time::Duration;

use super::*;

#[test]
fn stats_and_tags_are_those_of_the_process() {
    let server = Server::new("stats");
    let out = server.ctl(&["stats"]);
    let out = expect(&out, 0);
    for line in [
        "allocated               516.0 MiB",
        "limit                        none",
        "frees                           8",
    ] {
        assert!(out.lines().any(|known| known == line), "{line}\nis not in\n{out}");
    }
    let out = server.ctl(&["stats", "--json"]);
    let value: serde_json::Value = serde_json::from_str(expect(&out, 0)).unwrap();
    assert_eq!(
        (&value["allocator"], &value["allocated"]),
        (&0.into(), &(516u64 << 20).into())
    );
    assert_eq!(value["tags"][1]["tag"], "bert");
    let out = server.ctl(&["tags"]);
    assert_eq!(
        expect(&out, 0),
        "name    allocated       peak  limit  allocations  frees  refused\n\
         bert    418.0 MiB  418.0 MiB   none            1      0        0\n\
         resnet   98.0 MiB   98.0 MiB   none            1      0        0\n"
    );
    let out = server.ctl(&["--name", "resnet", "tags"]);
    assert_eq!(expect(&out, 0).lines().count(), 2);
    let out = server.ctl(&["tags", "--name", "gpt"]);
    assert_eq!(
        expect_refused(&out, 2),
        "trtalloc: invalid argument: nothing was allocated for `gpt`\n"
    );
    // What the driver would have to be asked for is not there, so a program cannot take it for 0.
    let out = server.ctl(&["tags", "--json", "--name", "resnet"]);
    let value: serde_json::Value = serde_json::from_str(expect(&out, 0)).unwrap();
    let tags = value["tags"].as_array().unwrap();
    assert_eq!((tags.len(), &tags[0]["tag"]), (1, &"resnet".into()), "{value}");
    assert_eq!(value["allocated"], 516u64 << 20);
    for key in [
        "device_free",
        "device_total",
        "held_by_others",
        "largest_free",
        "available",
        "awaiting_work",
    ] {
        assert!(value.get(key).is_none(), "{key}: {value}");
    }
    let out = server.ctl(&["tags", "--json", "--name", "gpt"]);
    assert_eq!(
        expect_refused(&out, 2),
        "trtalloc: invalid argument: nothing was allocated for `gpt`\n"
    );
    for command in ["stats", "tags", "trim", "limit 1GiB"] {
        let arguments: Vec<&str> = command.split(' ').chain(["--device", "3"]).collect();
        let out = server.ctl(&arguments);
        assert_eq!(
            expect_refused(&out, 2),
            "trtalloc: invalid argument: device 3 has no pool\n",
            "{command}"
        );
    }
    let out = server.ctl(&["metrics"]);
    let out = expect(&out, 0);
    assert!(
        out.contains("\ntrtalloc_tag_allocated_bytes{device=\"0\",tag=\"bert\"} 438304768\n"),
        "{out}"
    );
    assert!(out.ends_with("# EOF\n"));
}

#[test]
fn trim_and_limit_act() {
    let mut server = Server::new("trim");
    let reserved = |server: &Server| -> u64 {
        let out = server.ctl(&["stats", "--json"]);
        serde_json::from_str::<serde_json::Value>(expect(&out, 0)).unwrap()["reserved"]
            .as_u64()
            .unwrap()
    };
    let before = reserved(&server);
    let out = server.ctl(&["trim", "--confirm"]);
    let line = expect(&out, 0);
    assert!(
        line.ends_with("given back; 516.0 MiB stay reserved: 516.0 MiB allocated, 0 B pending, 0 B cached\n"),
        "{line}"
    );
    assert!(before > 600 << 20 && reserved(&server) == 516 << 20);
    expect(&server.ctl(&["limit", "600MiB"]), 0);
    let out = server.ctl(&["stats"]);
    assert!(
        expect(&out, 0).contains("limit                   600.0 MiB\n"),
        "{out:?}"
    );
    expect(&server.ctl(&["limit", "450M", "--name", "bert"]), 0);
    let out = server.ctl(&["tags", "--name", "bert"]);
    assert!(expect(&out, 0).contains("450.0 MiB"), "{out:?}");
    expect(&server.ctl(&["limit", "none"]), 0);
    let out = server.ctl(&["stats"]);
    assert!(
        expect(&out, 0).contains("limit                        none\n"),
        "{out:?}"
    );
    // The program goes on.
    assert!(server.does("busy 10").parse::<u64>().is_ok());
}

#[test]
fn snapshot_is_written_by_the_client_and_opens() {
    let mut server = Server::new("snapshot");
    let dir = common::scratch("snapshots");
    expect(&server.ctl(&["history", "all,stacks=native"]), 0);
    server.does("busy 20");
    for suffix in ["pickle", "json", "html"] {
        let path = dir.join(format!("held.{suffix}"));
        std::fs::write(&path, "old").unwrap();
        let path = path.to_str().unwrap();
        let out = server.ctl(&["snapshot", path]);
        assert_eq!(expect(&out, 0), format!("snapshot  {path}\n"));
        let written = std::fs::read(path).unwrap();
        assert!(written.len() > 1000, "{suffix}");
        // A second one within a second is refused, and the file stays.
        let out = server.ctl(&["snapshot", path]);
        let reason = expect_refused(&out, 1);
        assert_eq!(reason, "trtalloc: unsupported: a second snapshot within one second\n");
        assert!(std::fs::read(path).unwrap() == written);
        if suffix != "html" {
            let mut report = clean(Path::new(env!("CARGO_BIN_EXE_trtalloc")));
            let out = report.args(["report", path]).output().unwrap();
            let out = expect(&out, 0);
            assert!(out.contains("bert") && out.contains("418.0"), "{out}");
        }
        std::thread::sleep(Duration::from_millis(1100));
    }
    // Where the file cannot be written, and where the name says no format.
    let out = server.ctl(&["snapshot", dir.join("no/such.json").to_str().unwrap()]);
    assert!(expect_refused(&out, 1).contains("No such file"), "{out:?}");
    let out = server.ctl(&["snapshot", "held.txt"]);
    assert!(
        expect_refused(&out, 2).contains("ends in .pickle, .json or .html"),
        "{out:?}"
    );
    assert_eq!(files(&dir).len(), 3, "no temporary file is left: {:?}", files(&dir));
    expect(&server.ctl(&["history", "off"]), 0);
}

#[test]
fn what_is_unclear_is_refused() {
    let mut server = Server::new("unclear");
    for (arguments, status, reason) in [
        (&["stats", "--name", "bert"][..], 2, "`stats` takes no --name"),
        (&["trim", "much"], 2, "KEEP: cannot read `much`"),
        (&["limit", "80%"], 2, "BYTES: cannot read `80%`"),
        (&["history", "most"], 2, "history cannot be `most`"),
        (&["limit", "1G", "--device", "1"], 2, "device 1 has no pool"),
        (&["metrics", "--allocator", "7"], 2, "no allocator 7"),
        (&["tags", "--name", &"x".repeat(5000)], 2, "nothing was allocated"),
        (&["limit", "1G", "--name", &"x".repeat(5000)], 2, "too long"),
        (&[], 2, "stats, metrics, snapshot FILE"),
    ] {
        let out = server.ctl(arguments);
        let said = expect_refused(&out, status);
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
    assert!(expect_refused(&ctl(&["stats"]), 2).contains("which process?"));
    for chosen in [["--device", "0"], ["--allocator", "0"], ["--name", "bert"]] {
        assert!(expect_refused(&ctl(&chosen), 2).contains("are for one process"));
    }
    let out = ctl(&["4000000", "stats"]);
    assert_eq!(expect_refused(&out, 1), "trtalloc: io: no process 4000000\n");
    // Several allocators.
    assert_eq!(server.does("second"), "made");
    let out = server.ctl(&["metrics"]);
    let said = expect_refused(&out, 2);
    assert_eq!(
        said,
        "trtalloc: invalid argument: 2 allocators: 0, 1; name one with --allocator\n"
    );
    expect(&server.ctl(&["metrics", "--allocator", "1"]), 0);
    let out = server.ctl(&["stats"]);
    let header = expect(&out, 0).lines().next().unwrap();
    assert!(
        header.contains("allocator 0, device 0") && header.contains("allocator 1, device 0"),
        "{header}"
    );
    let out = server.ctl(&["stats", "--allocator=1", "--json"]);
    assert!(
        expect(&out, 0).starts_with("{\"allocator\":1,\"device\":0,\"allocated\":1048576,"),
        "{out:?}"
    );
    expect(&server.ctl(&["limit", "1G", "--allocator", "1"]), 0);
}

/// An allocator that was destroyed is looked into as long as it holds memory. Then it is in no command's way.
#[test]
fn destroyed_allocator_is_there_while_it_holds_memory() {
    let mut server = Server::new("destroyed");
    assert_eq!(
        (server.does("second"), server.does("destroy")),
        ("made".into(), "destroyed".into())
    );
    let out = server.ctl(&["stats", "--allocator", "1", "--json"]);
    assert!(expect(&out, 0).contains(",\"allocated\":1048576,"), "{out:?}");
    assert!(expect_refused(&server.ctl(&["metrics"]), 2).contains("2 allocators"));
    assert_eq!(server.does("free"), "freed");
    for command in ["metrics", "trim", "limit 2GiB", "history off", "stats"] {
        let arguments: Vec<&str> = command.split(' ').collect();
        let out = server.ctl(&arguments);
        assert!(!expect(&out, 0).contains("allocator 1"), "{command}: {out:?}");
    }
    assert!(expect_refused(&server.ctl(&["stats", "--allocator", "1"]), 2).contains("no allocator 1"));
}

#[test]
fn list_says_who_holds_what_of_a_shared_budget() {
    let runtime = runtime("list_budget");
    let budget = format!("list{}:2GiB", std::process::id());
    let start = |name| Server::start(name, Server::command(&runtime).env("TRTALLOC_SHARE_BUDGET", &budget));
    let mut both = [start("first"), start("second")];
    // Each allocator may have a budget of its own.
    let other = format!("other{}:1GiB", std::process::id());
    assert_eq!(both[1].does(&format!("budget {other}")), "made");
    // Its status says whether every process answered, also those of other tests.
    let out = ctl(&[]);
    let list = text(&out.stdout);
    for server in &both {
        let row = list
            .lines()
            .filter(|line| line.starts_with(budget.split(':').next().unwrap()))
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|words| words[3] == server.pid())
            .unwrap_or_else(|| panic!("{list}"));
        assert_eq!(
            (row[0].ends_with(":2147483648"), row[2], row[4]),
            (true, "MiB", "server"),
            "{list}"
        );
        let held: f64 = row[1].parse().unwrap();
        assert!((516.0..700.0).contains(&held), "{list}");
    }
    let row = list
        .lines()
        .find(|line| line.starts_with(other.split(':').next().unwrap()));
    let words: Vec<&str> = row.unwrap_or_else(|| panic!("{list}")).split_whitespace().collect();
    assert_eq!(
        (words[1], words[2], words[3]),
        ("64.0", "MiB", both[1].pid().as_str()),
        "{list}"
    );
}

#[test]
fn list_has_the_processes_that_can_be_reached() {
    let (one, two) = (Server::new("list_one"), Server::new("list_two"));
    let runtime = runtime("list_without");
    let without = Server::start("without", Server::command(&runtime).env("TRTALLOC_CONTROL", "0"));
    let out = ctl(&[]);
    let list = text(&out.stdout);
    let row = |server: &Server| {
        list.lines()
            .find(|line| line.split_whitespace().next() == Some(&server.pid()))
    };
    for server in [&one, &two] {
        let words: Vec<_> = row(server)
            .unwrap_or_else(|| panic!("{list}"))
            .split_whitespace()
            .collect();
        assert_eq!((words[1], words[2], words[5]), ("516.0", "MiB", "server"), "{list}");
    }
    assert!(row(&without).is_none(), "{list}");
    let out = without.ctl(&["stats"]);
    assert!(
        expect_refused(&out, 1).contains("it has no control socket. It gets one"),
        "{out:?}"
    );
    assert_eq!(files(&runtime), Vec::<String>::new());
}

/// A program's name may be cut in the middle of a character.
#[test]
fn program_whose_name_is_not_utf_8_is_reached() {
    let runtime = runtime("odd");
    let server = Server::start("odd", &mut Server::command_as(&odd_program("odd_program"), &runtime));
    let out = server.ctl(&["tags"]);
    assert!(expect(&out, 0).contains("bert"), "{out:?}");
    let out = ctl(&[]);
    let row = text(&out.stdout)
        .lines()
        .find(|line| line.split_whitespace().next() == Some(&server.pid()));
    assert!(row.is_some_and(|row| row.ends_with(" odd\u{fffd}")), "{out:?}");
}

#[test]
fn run_turns_it_on() {
    for (options, variable, reached) in [
        (&[][..], None, true),
        (&["--control=0"], None, false),
        (&["--options", "control=0"], None, false),
        (&[], Some("0"), false),
        // An empty variable counts as unset.
        (&[], Some(""), true),
        (&["--control"], Some("0"), true),
    ] {
        let mut command = clean(Path::new(env!("CARGO_BIN_EXE_trtalloc")));
        command
            .env("XDG_RUNTIME_DIR", runtime("run"))
            .args(["run", "--driver", "sim"]);
        command.args(options).arg("--").arg(program());
        if let Some(value) = variable {
            command.env("TRTALLOC_CONTROL", value);
        }
        let mut server = Server::start("run", command.stderr(Stdio::null()));
        // `run` itself is the child; the program is its child.
        let children = format!("/proc/{0}/task/{0}/children", server.pid());
        let program = std::fs::read_to_string(children).unwrap();
        let out = ctl(&[program.trim(), "stats"]);
        assert_eq!(out.status.success(), reached, "{options:?} {variable:?}: {out:?}");
        // One thread serves the figures of `run`, too.
        wait("one thread", || helpers(program.trim()) == 1);
        server.begins("exit");
        wait("the program ends", || server.child.try_wait().unwrap().is_some());
        assert_eq!(server.files(), Vec::<String>::new());
    }
}
