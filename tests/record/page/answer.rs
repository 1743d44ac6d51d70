//! What the page opens with: a refused request or the peak, with who held what, as the text report has it.

use super::{MIB, settle, shot, text_of};
use crate::browser::Browser;
use crate::program::{Program, path, request};
use crate::server::server;

/// The rows of a table in the text report, under the title that begins so: name, bytes, share.
fn printed_rows(report: &str, title: &str) -> Vec<[String; 3]> {
    let after = report.lines().skip_while(|line| !line.starts_with(title)).skip(1);
    after
        .take_while(|line| !line.is_empty())
        .map(|line| {
            let mut cells = line.rsplit("  ").map(str::trim).filter(|cell| !cell.is_empty());
            let mut cell = || cells.next().unwrap_or_default().to_owned();
            let [_blocks, share, bytes] = [cell(), cell(), cell()];
            let name = line.split("  ").next().unwrap_or_default().to_owned();
            [name, bytes, share]
        })
        .collect()
}

/// Who, when and why, without a click: a refused request, and what the text report has of it.
#[test]
fn it_opens_with_the_answer() {
    let program = server("stacks=native", 200);
    let (file, pickle) = (path("answer.html"), path("answer.pickle"));
    let snapshot = program.allocator.snapshot().unwrap();
    snapshot.write(&file).unwrap();
    snapshot.write(&pickle).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_trtalloc"))
        .arg("report")
        .arg(&pickle)
        .output();
    let report = String::from_utf8(output.unwrap().stdout).unwrap();
    let mut browser = Browser::start("page-answer");
    for (name, width) in [("answer", 1440), ("answer-narrow", 420)] {
        browser.window(width, 1000);
        browser.open(&file);
        settle(&mut browser);
        shot(&mut browser, name);
        assert_eq!(
            browser.evaluate("document.documentElement.scrollWidth <= innerWidth"),
            true,
            "{width}"
        );
        let top = browser.number("$('answer').getBoundingClientRect().top");
        assert!(top < 250.0, "the answer is the first that is seen: {top}");
    }
    browser.window(1440, 1000);
    let answer = text_of(&mut browser, "#answer");
    for part in [
        "300.0 MiB refused",
        "event ",
        "requests",
        "detector",
        "held, by tag",
        "held, by stack",
        "short",
    ] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    assert!(answer.contains("load_engine"), "{answer}");
    // What was requested is drawn, and reaches beyond the limit.
    let drawn =
        "(() => { const {main, figures} = view.device; return main.allocated + main.pending + main.size > figures.limit
        && timeline.shown[1] >= figures.limit; })()";
    assert_eq!(browser.evaluate(drawn), true);
    let red = "(() => { const {cover} = timeline, data = cover.getContext('2d').getImageData(0, 0, cover.width, cover.height).data;
        let red = 0;
        for (let i = 0; i < data.length; i += 4) red += data[i + 3] > 200 && data[i] > 150 && data[i + 1] < 80;
        return red; })()";
    assert!(browser.number(red) > 200.0, "the request's hatching");
    let filled = "timeline.pixels.reduce((sum, pixel) => sum + (pixel !== packed(theme.background)), 0) / timeline.pixels.length";
    assert!(browser.number(filled) > 0.2, "{}", browser.number(filled));
    // The figures of this moment are those of the text report.
    let printed = |name: &str| {
        let row = report.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        let cells = row[name.len()..].split("  ").map(str::trim);
        cells
            .filter(|cell| !cell.is_empty())
            .map(str::to_owned)
            .next()
            .unwrap_or_default()
    };
    for (row, tile) in [
        ("in use ", "used"),
        ("pending ", "pending"),
        ("reserved ", "reserved"),
        ("free ", "free"),
    ] {
        assert_eq!(
            printed(row),
            text_of(&mut browser, &format!("#tile-{tile} b")),
            "{report}"
        );
    }
    let used = text_of(&mut browser, "#tile-used span");
    assert!(
        used.starts_with(&format!("{} blocks, ", printed("blocks "))),
        "{used}: {report}"
    );
    // The legend has the names of what is drawn.
    let legend = text_of(&mut browser, "#legend");
    for tag in ["detector", "classifier", "requests", "pending"] {
        assert!(legend.contains(tag), "{tag}: {legend}");
    }
    // Who held what, as the text report has it, and never more than all of it.
    browser.click("#tab-holders");
    for by in ["tag", "stack", "size"] {
        browser.click(&format!("#by-{by}"));
        settle(&mut browser);
        let rows = "[...document.querySelectorAll('#panel-holders tbody tr')].map(row =>
            [row.cells[0].querySelector('summary')?.innerText ?? row.cells[0].innerText, row.cells[1].innerText, row.cells[2].innerText])";
        let rows: Vec<[String; 3]> = serde_json::from_value(browser.evaluate(rows)).unwrap();
        let share = |row: &[String; 3]| row[2].trim_end_matches(" %").parse::<f64>().unwrap();
        let sum: f64 = rows.iter().map(share).sum();
        assert!((sum - 100.0).abs() < 0.1 * rows.len() as f64, "{by}: {sum}");
        let printed = printed_rows(&report, &format!("held at the refusal, by {by}"));
        assert!(!printed.is_empty(), "{report}");
        for row in printed.iter().filter(|row| !row[0].contains(" other")) {
            assert!(rows.contains(row), "{row:?} is not in {rows:#?}");
        }
        let names: std::collections::HashSet<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(names.len(), rows.len(), "each group has a name of its own: {rows:#?}");
    }
    assert_eq!(browser.problems(), [""; 0]);
}

/// The rows of a table on the page: name, bytes, share.
fn shown_rows(browser: &mut Browser, rows: &str) -> Vec<[String; 3]> {
    let cells = "[...row.cells].slice(0, 3).map(cell => cell.innerText.trim())";
    let rows = browser.evaluate(&format!("[...document.querySelectorAll('{rows}')].map(row => {cells})"));
    serde_json::from_value(rows).unwrap()
}

/// What is pending has a row of its own, and is a part of the whole: in the text, on the page, and in what the page opens with.
#[test]
fn pending_memory_is_a_row_and_a_part_of_the_whole() {
    let program = Program::new("history=all,limit=64MiB,wait_ms=0");
    let streams = [program.stream(), program.stream()];
    let machine = program.driver.machine();
    let kernel = machine.launch_persistent(streams[1].0, &[]).unwrap();
    trtalloc::tags::set(Some("kept")).unwrap();
    let kept = program.get(10 * MIB, Some(streams[0]));
    trtalloc::tags::set(Some("freed")).unwrap();
    let freed = program.get(30 * MIB, Some(streams[0]));
    trtalloc::tags::set(None).unwrap();
    program.allocator.record_stream(freed, streams[1]).unwrap();
    program.give(freed, Some(streams[0]));
    assert!(program.allocator.allocate(request(40 * MIB, Some(streams[0]))).is_err());
    let (file, pickle) = (path("pending-row.html"), path("pending-row.pickle"));
    program.allocator.write_snapshot(&file).unwrap();
    program.allocator.write_snapshot(&pickle).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trtalloc"));
    let report = crate::common::run(command.arg("report").arg(&pickle)).stdout;
    let report = String::from_utf8(report).unwrap();
    let expected = [
        ["kept", "10.0 MiB", "25.0 %"],
        ["pending: freed, not yet reusable", "30.0 MiB", "75.0 %"],
    ]
    .map(|row| row.map(str::to_owned));
    assert_eq!(
        printed_rows(&report, "held at the refusal, by tag"),
        expected,
        "{report}"
    );
    let mut browser = Browser::start("page-pending");
    browser.open(&file);
    settle(&mut browser);
    assert_eq!(shown_rows(&mut browser, "#answer [data-by=tag] tr"), expected);
    browser.click("#tab-holders");
    browser.click("#by-tag");
    settle(&mut browser);
    // Here the reader sorts, at first by bytes.
    let mut rows = shown_rows(&mut browser, "#panel-holders tbody tr");
    rows.reverse();
    assert_eq!(rows, expected);
    let tiles = ["used", "pending"].map(|tile| text_of(&mut browser, &format!("#tile-{tile} b")));
    assert_eq!(tiles, ["10.0 MiB", "30.0 MiB"]);
    for line in ["in use ", "pending "] {
        assert!(
            report.lines().any(|of| of.starts_with(line) && of.contains("0.0 MiB")),
            "{report}"
        );
    }
    assert_eq!(browser.problems(), [""; 0]);
    assert!(machine.release_persistent(kernel));
    program.give(kept, Some(streams[0]));
}

#[test]
fn a_peak_and_a_limit_far_above() {
    let program = Program::new("history=all,limit=8GiB");
    let stream = Some(program.stream());
    trtalloc::tags::set(Some("weights")).unwrap();
    let weights = program.get(20 * MIB, stream);
    trtalloc::tags::set(None).unwrap();
    // Sizes that print alike.
    let other = [program.get(3 * MIB, stream), program.get(3 * MIB + 4096, stream)];
    other.into_iter().for_each(|block| program.give(block, stream));
    program.give(weights, stream);
    let file = path("peak.html");
    program.allocator.write_snapshot(&file).unwrap();
    let mut browser = Browser::start("page-peak");
    browser.window(1440, 1000);
    browser.open(&file);
    settle(&mut browser);
    shot(&mut browser, "peak");
    assert_eq!(browser.number("view.moment"), browser.number("view.device.peak"));
    let answer = text_of(&mut browser, "#answer");
    for part in [
        "Peak: 26.0 MiB in use",
        "limit 8.0 GiB",
        "weights",
        "no tag",
        "No request was refused",
    ] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    assert!(
        browser.number("timeline.shown[1]") < 8e9,
        "the plot shows the memory, not the limit"
    );
    let line = "(() => { const {canvas} = timeline, y = Math.round(timeline.top);
        const data = canvas.getContext('2d').getImageData(timeline.left, y - 1, 400, 3).data;
        let red = 0;
        for (let i = 0; i < data.length; i += 4) red += data[i] > 150 && data[i + 1] < 120 && data[i + 3] > 200;
        return red; })()";
    assert!(browser.number(line) > 100.0, "the limit's line at the upper edge");
    browser.click("#tab-holders");
    browser.click("#by-size");
    settle(&mut browser);
    let rows = text_of(&mut browser, "#panel-holders tbody");
    assert_eq!(
        rows.lines().filter(|row| row.starts_with("3.0 MiB")).count(),
        1,
        "{rows}"
    );
    assert_eq!(browser.problems(), [""; 0]);
}
