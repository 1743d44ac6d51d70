//! `trtalloc compare`: what a server holds more an hour later.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::tags;

use crate::command::{expect, stderr, stdout, trtalloc};
use crate::common;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A server with two models. At each moment some requests are in flight, and each has blocks of any shape.
struct Server {
    allocator: Arc<Allocator>,
    driver: Arc<SimDriver>,
    streams: [Stream; 2],
    weights: Vec<u64>,
    in_flight: VecDeque<(Stream, Vec<u64>)>,
    random: u64,
    blocks: u64,
    lost: u64,
    /// Of so many blocks one is never freed.
    loses: Option<u64>,
}

impl Server {
    fn new(options: &str, loses: Option<u64>) -> Server {
        let driver = SimDriver::new(SimConfig::default());
        let machine = driver.machine();
        machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
        let streams = [0; 2].map(|_| Stream(machine.stream_create(true).unwrap()));
        let mut server = Server {
            allocator: Allocator::with_driver(driver.clone(), Config::parse(options).unwrap()).unwrap(),
            driver,
            streams,
            weights: Vec::new(),
            in_flight: VecDeque::new(),
            random: 7,
            blocks: 0,
            lost: 0,
            loses,
        };
        server.load("resnet", 12);
        server
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn get(&mut self, size: u64, stream: Option<Stream>) -> u64 {
        self.blocks += 1;
        let request = Request {
            size,
            alignment: 0,
            flags: 0,
            stream,
            device: None,
        };
        self.allocator.allocate(request).unwrap()
    }

    #[inline(never)]
    fn load(&mut self, name: &str, layers: u64) {
        tags::set(Some(name)).unwrap();
        let weights: Vec<u64> = (1..=layers).map(|layer| self.get(layer * MIB, None)).collect();
        self.weights.extend(weights);
        tags::set(None).unwrap();
    }

    #[inline(never)]
    fn activations(&mut self, stream: Stream) -> Vec<u64> {
        (0..3)
            .map(|_| {
                let size = (1 + self.draw(40)) * 256 * KIB;
                self.get(size, Some(stream))
            })
            .collect()
    }

    #[inline(never)]
    fn outputs(&mut self, stream: Stream) -> Vec<u64> {
        let size = (1 + self.draw(8)) * 16 * KIB;
        let outputs = vec![self.get(size, Some(stream)), self.get(48 * KIB, Some(stream))];
        match self.loses {
            // The last output of every so many blocks is forgotten.
            Some(one_of) if self.blocks / one_of > self.lost => {
                self.lost += 1;
                outputs[..1].to_vec()
            }
            _ => outputs,
        }
    }

    #[inline(never)]
    fn request(&mut self, number: u64) {
        tags::set(Some(["resnet", "bert"][(number % 2) as usize])).unwrap();
        let stream = self.streams[(number % 2) as usize];
        let mut blocks = self.activations(stream);
        blocks.extend(self.outputs(stream));
        tags::set(None).unwrap();
        self.in_flight.push_back((stream, blocks));
        let many = 3 + self.draw(4) as usize;
        while self.in_flight.len() > many {
            let (stream, blocks) = self.in_flight.pop_front().unwrap();
            for block in blocks {
                self.allocator.deallocate(block, Some(stream)).unwrap();
            }
        }
        self.driver.machine().advance(100_000);
    }

    fn serve(&mut self, requests: u64) {
        for number in 0..requests {
            self.request(number);
        }
    }

    fn snapshot(&self, path: &Path) {
        self.allocator.snapshot().unwrap().write(path).unwrap();
    }
}

/// Two snapshots of a server, with this many requests between them.
fn snapshots(name: &str, options: &str, loses: Option<u64>, requests: u64) -> ([PathBuf; 2], Server) {
    let dir = common::scratch(&format!("compare_{name}"));
    let paths = ["old.pickle", "new.pickle"].map(|file| dir.join(file));
    let mut server = Server::new(options, None);
    for (path, requests) in paths.iter().zip([500, requests]) {
        server.serve(requests);
        server.snapshot(path);
        (server.loses, server.blocks) = (loses, 0);
    }
    (paths, server)
}

fn compare(paths: &[PathBuf; 2], more: &[&str]) -> String {
    let paths = paths.each_ref().map(|path| path.to_str().unwrap());
    let output = trtalloc(&[&["compare", paths[0], paths[1]], more].concat());
    expect(&output, 0);
    stdout(&output)
}

/// The cells of the first row under a title.
fn first_row(text: &str, title: &str) -> Vec<String> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(title));
    let row = lines.nth(1).unwrap_or_else(|| panic!("no row under {title}:\n{text}"));
    row.split("  ")
        .map(|cell| cell.trim().to_owned())
        .filter(|cell| !cell.is_empty())
        .collect()
}

/// One of 1,000 blocks is never freed. The blocks of requests in flight are many times as large.
#[test]
fn a_leak_of_one_block_in_a_thousand_is_found() {
    let (paths, server) = snapshots("leak", "history=all,stacks=native,max_entries=4000", Some(1000), 6_000);
    assert_eq!(server.lost, 30, "of 30,000 blocks");
    let text = compare(&paths, &[]);
    for (title, first) in [("by name", "bert"), ("by stack", "outputs"), ("by size", "48.0 KiB")] {
        let row = first_row(&text, title);
        // The last ones may be too young to last.
        let [.., last] = &row[..] else { panic!("{text}") };
        let lasting: u64 = last.rsplit(' ').next().unwrap().parse().unwrap_or(0);
        assert!(
            row[0].contains(first) && (28..=30).contains(&lasting),
            "{title}: {text}"
        );
    }
    let mut found = text
        .split("\nheld more, by name, stack and size\n")
        .nth(1)
        .expect(&text)
        .lines();
    let words = found.next().unwrap();
    assert!(
        words.contains(" more in ") && words.contains(" blocks of 48.0 KiB, bert ("),
        "{text}"
    );
    // The ring has forgotten when.
    let began = found.next().unwrap();
    assert!(
        began.starts_with("    began between 2") && began.ends_with(" UTC, the new one's first"),
        "{text}"
    );
    assert!(found.next().unwrap().contains("Server::outputs compare.rs:"), "{text}");
    // Nothing else is held more for long.
    assert!(!found.any(|line| line.contains(" more in ")), "{text}");
}

/// With a history that reaches back to the old snapshot and further, the first block that was lost says when.
#[test]
fn a_leak_says_when_it_began() {
    let (paths, server) = snapshots(
        "began",
        "history=all,stacks=native,max_entries=100000",
        Some(1000),
        6_000,
    );
    assert_eq!(server.lost, 30);
    let page = paths[0].with_file_name("page.html");
    let text = compare(&paths, &["-o", page.to_str().unwrap()]);
    let more = text
        .split("\nheld more, by name, stack and size\n")
        .nth(1)
        .expect(&text);
    // The model that was loaded at the beginning is in both, and is no growth.
    assert_eq!(more.matches(" more in ").count(), 1, "{text}");
    assert!(
        !text.contains("resnet") || first_row(&text, "by name")[0] == "bert",
        "{text}"
    );
    let began = more.lines().nth(1).unwrap();
    let event = began
        .split(" UTC, ")
        .nth(1)
        .and_then(|rest| rest.split(" s before the new snapshot's last event, at event ").nth(1));
    let (event, of) = event.and_then(|event| event.split_once(" of ")).expect(began);
    let (event, of): (usize, usize) = (event.parse().unwrap(), of.parse().unwrap());
    // That is the allocation after 1,000 of the 30,000 blocks, and after those of the 500 requests before the old snapshot.
    let before = 12 + 5 * 500;
    assert!(event > 2 * before && event < of / 5, "{began}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&format!("<p>{}</p>", began.trim())), "{page}");
}

/// Without events the requests in flight count too, and the counts of blocks tell.
#[test]
fn a_leak_is_found_by_its_count_without_events() {
    let (paths, server) = snapshots("state", "history=state,stacks=native", Some(1000), 6_000);
    assert_eq!(server.lost, 30);
    let text = compare(&paths, &["--rows", "100"]);
    assert!(text.contains("record with history=all"), "{text}");
    let of_size = text.split("by size").nth(1).unwrap().split("\n\n").next().unwrap();
    let blocks = |line: &str| line.split_whitespace().last()?.parse::<i64>().ok();
    let most = of_size
        .lines()
        .filter_map(|line| Some((blocks(line)?, line)))
        .max()
        .unwrap();
    assert!(most.0 >= 25 && most.1.starts_with("48.0 KiB"), "{text}");
}

/// A server that loses nothing holds what it held, but for the requests in flight; nothing of that lasts.
#[test]
fn nothing_lasts_in_a_server_that_loses_nothing() {
    let (paths, _) = snapshots("clean", "history=all,stacks=native,max_entries=4000", None, 3_000);
    let text = compare(&paths, &[]);
    assert!(
        text.contains("lasting: blocks that the old snapshot does not have"),
        "{text}"
    );
    assert!(!text.contains(" more in ") && !text.contains(" less in "), "{text}");
    // A snapshot has nothing more than itself.
    let same = [paths[1].clone(), paths[1].clone()];
    let text = compare(&same, &[]);
    assert!(text.ends_with("\nnothing is held more or less\n"), "{text}");
}

/// A model that was loaded, and one that was unloaded.
#[test]
fn models_that_come_and_go_are_held_more_and_less() {
    let dir = common::scratch("compare_models");
    let paths = ["old.json", "new.pickle"].map(|file| dir.join(file));
    let mut server = Server::new("history=all,stacks=native", None);
    server.snapshot(&paths[0]);
    server.load("bert", 20);
    for block in server.weights.drain(..12) {
        server.allocator.deallocate(block, None).unwrap();
    }
    server.serve(4_000);
    server.snapshot(&paths[1]);
    let page = dir.join("page.html");
    let text = compare(&paths, &["-o", page.to_str().unwrap(), "--rows", "2"]);
    assert_eq!(first_row(&text, "by name")[0], "bert", "{text}");
    assert!(text.contains("\nand ") && text.contains(" more (--rows)\n"), "{text}");
    let less = text.split("\nheld less, by name, stack and size\n").nth(1).unwrap();
    assert!(
        less.starts_with("  12.0 MiB less in 1 block of 12.0 MiB, resnet (1 in use before, 0 now)\n"),
        "{text}"
    );
    assert!(less.contains("load compare.rs:"), "{text}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("held less, by name, stack and size") && page.contains("load compare.rs:"),
        "{page}"
    );
    assert!(page.contains("<td>bert</td>") && !page.contains("<script"), "{page}");
}

#[test]
fn wrong_arguments_are_refused() {
    let json = "{\"segments\":[],\"device_traces\":[]}";
    let snapshot = crate::command::file("empty.json", json);
    let snapshot = snapshot.to_str().unwrap();
    let output = trtalloc(&["compare", snapshot, snapshot]);
    expect(&output, 0);
    assert!(
        stdout(&output).ends_with("\nno device has memory or events\n"),
        "{}",
        stdout(&output)
    );
    let output = trtalloc(&["compare", snapshot, "/nowhere/new.pickle"]);
    expect(&output, 1);
    assert!(stderr(&output).contains("/nowhere/new.pickle"), "{}", stderr(&output));
    for arguments in [
        &["compare", snapshot][..],
        &["compare", snapshot, snapshot, "-o", "page.txt"],
        &["compare", snapshot, snapshot, "--rows", "0"],
    ] {
        expect(&trtalloc(arguments), 2);
    }
    let output = trtalloc(&["compare", snapshot, snapshot, "-o", "/nowhere/page.html"]);
    expect(&output, 1);
}
