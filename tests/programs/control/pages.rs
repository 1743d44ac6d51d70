//! What docs/look-inside.md, docs/give-back.md and docs/metrics.md show is what the command prints. The server is tests/support/c/server.c.

use super::*;

/// Each line that is not left out is on that page of docs/. On the page, the process has the number 4711.
#[track_caller]
pub fn assert_shown(page: &str, pid: &str, output: &str, is_shown: impl Fn(&str) -> bool) {
    let text = std::fs::read_to_string(common::root().join(format!("docs/{page}.md"))).unwrap();
    let lines: Vec<String> = text.lines().map(in_words).collect();
    let mut count = 0;
    for line in output.lines().filter(|line| is_shown(line)) {
        let line = in_words(line).replace(pid, "4711");
        assert!(
            lines.contains(&line),
            "docs/{page}.md does not have:\n{line}\nof:\n{output}"
        );
        count += 1;
    }
    assert!(count > 0, "{output}");
}

fn in_words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn look_inside_shows_what_is_printed() {
    let mut server = Server::new("look_inside");
    let shown = |server: &Server, arguments: &[&str], is_shown: &dyn Fn(&str) -> bool| {
        let out = server.ctl(arguments);
        assert_shown("look-inside", &server.pid(), expect(&out, 0), is_shown);
    };
    let out = ctl(&[]);
    let own = server.pid();
    assert_shown("look-inside", &own, expect(&out, 0), |line| {
        line.starts_with("PID") || line.starts_with(&format!("{own} "))
    });
    shown(&server, &["tags"], &|_| true);
    assert_eq!(server.does("requests"), "served");
    shown(&server, &["tags"], &|_| true);
    expect(&server.ctl(&["history", "all,stacks=native"]), 0);
    assert_eq!(server.does("requests"), "served");
    let path = common::scratch("look_inside_snapshot").join("held.pickle");
    expect(&server.ctl(&["snapshot", path.to_str().unwrap()]), 0);
    let mut report = clean(Path::new(env!("CARGO_BIN_EXE_trtalloc")));
    let out = report.arg("report").arg(&path).output().unwrap();
    let report = expect(&out, 0);
    let (_, by_stack) = report.split_once("held at the peak, by stack").unwrap();
    let (by_stack, _) = by_stack.split_once("\n\n").unwrap();
    assert_shown(
        "look-inside",
        &own,
        &format!("held at the peak, by stack{by_stack}"),
        |_| true,
    );
    shown(&server, &["stats"], &|line| {
        ["reserved", "cached", "pending", "allocated "]
            .iter()
            .any(|name| line.starts_with(name))
    });
    shown(&server, &["metrics"], &|line| {
        line.starts_with("trtalloc_tag_allocated_bytes")
    });
}

#[test]
fn give_back_shows_what_is_printed() {
    let server = Server::new("give_back");
    for arguments in [&["trim"][..], &["trim", "--confirm"]] {
        let out = server.ctl(arguments);
        assert_shown("give-back", &server.pid(), expect(&out, 0), |_| true);
    }
    expect(&server.ctl(&["limit", "600MiB"]), 0);
    let out = server.ctl(&["stats"]);
    assert_shown("give-back", &server.pid(), expect(&out, 0), |line| {
        line.starts_with("reserved ") || line.starts_with("limit ")
    });
}
