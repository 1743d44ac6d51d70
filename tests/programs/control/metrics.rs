//! `trtalloc run --metrics` and `--metrics-file`: what a scraper gets of all processes of a run, and what a client cannot do.

use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};

use super::*;

/// `trtalloc run --metrics 0`, and where it serves.
pub struct Run {
    pub server: Server,
    address: String,
}

impl Run {
    /// A run of one server with these options.
    fn new(name: &str, options: &[&str]) -> Run {
        Run::of(name, options, &[program().to_str().unwrap()])
    }

    fn of(name: &str, options: &[&str], words: &[&str]) -> Run {
        Run::by(run_command(name), name, options, words)
    }

    /// A run that `command` begins.
    pub fn by(mut command: Command, name: &str, options: &[&str], words: &[&str]) -> Run {
        command.args(["--metrics", "0"]).args(options).arg("--").args(words);
        let mut server = Server::start(name, command.stderr(Stdio::piped()));
        let mut line = String::new();
        let mut said = BufReader::new(server.child.stderr.take().unwrap());
        said.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("trtalloc run: metrics at http://");
        let address = address.and_then(|line| line.strip_suffix("/metrics"));
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        // What else it says is not read, and fits the pipe.
        server.child.stderr = Some(said.into_inner());
        Run { server, address }
    }

    fn send(&self, request: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request).unwrap();
        stream
    }

    /// The head and the body of an answer.
    fn answer(&self, request: &str) -> (String, String) {
        let mut answer = String::new();
        self.send(request.as_bytes()).read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        let length = format!("\r\nContent-Length: {}\r\n", body.len());
        assert!(request.starts_with("HEAD") || head.contains(&length), "{head}");
        (head.to_owned(), body.to_owned())
    }

    /// The metrics, with that in the header `Accept`.
    pub fn metrics(&self, accept: &str) -> (String, String) {
        self.answer(&format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"))
    }

    /// The process number of the only child.
    pub fn program(&self) -> String {
        children(&self.server.pid()).remove(0)
    }
}

/// `trtalloc run --driver sim` with the options that follow.
fn run_command(name: &str) -> Command {
    let mut command = clean(Path::new(env!("CARGO_BIN_EXE_trtalloc")));
    command
        .env("XDG_RUNTIME_DIR", runtime(name))
        .args(["run", "--driver", "sim"]);
    command
}

fn children(pid: &str) -> Vec<String> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(str::to_owned).collect()
}

fn signal(pid: &str, signal: i32) {
    // SAFETY: a process of this test.
    assert_eq!(unsafe { libc::kill(pid.parse().unwrap(), signal) }, 0);
}

/// The values of the samples whose line begins so.
pub fn values<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    let lines = text.lines().filter(|line| line.starts_with(begin));
    lines.map(|line| line.rsplit_once(' ').unwrap().1).collect()
}

/// Each family has one TYPE and one HELP, its samples follow them, and no sample occurs twice.
#[track_caller]
fn assert_one_exposition(text: &str) {
    let (mut families, mut samples, mut family) = (Vec::new(), Vec::new(), "");
    for line in text.strip_suffix("# EOF\n").unwrap().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if line.starts_with("# TYPE ") {
            family = words[2];
            assert!(!families.contains(&family), "twice: {line}\n{text}");
            families.push(family);
        } else if !line.starts_with('#') {
            let (sample, _) = line.rsplit_once(' ').unwrap();
            assert!(
                sample.starts_with(family) && !samples.contains(&sample),
                "{line}\n{text}"
            );
            samples.push(sample);
        } else {
            assert_eq!(words[2], family, "{text}");
        }
    }
    assert!(families.len() > 30, "{text}");
}

pub const OPEN: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

#[test]
fn all_processes_of_a_run_are_one_exposition() {
    // The shells have no memory. One of the servers is below another shell.
    let words = [
        "sh",
        "-c",
        "(sleep 60 | \"$0\" > \"$1\") & until [ -s \"$1\" ]; do sleep 0.01; done; \"$0\"",
        program().to_str().unwrap(),
    ];
    let dir = common::scratch("several_ready");
    let ready = dir.join("ready");
    let run = Run::of("several", &[], &[&words[..], &[ready.to_str().unwrap()]].concat());
    let (head, text) = run.metrics(OPEN);
    assert!(
        head.starts_with(
            "HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
        ),
        "{head}"
    );
    assert_one_exposition(&text);
    assert_eq!(values(&text, "trtalloc_up{"), ["1", "1"], "{text}");
    assert_eq!(
        values(&text, "trtalloc_allocated_bytes{"),
        ["541065216", "541065216"],
        "{text}"
    );
    for pid in text.lines().filter_map(|line| line.strip_prefix("trtalloc_up{pid=\"")) {
        let pid = pid.split('"').next().unwrap();
        let line = format!(
            "\ntrtalloc_tag_allocated_bytes{{pid=\"{pid}\",allocator=\"0\",device=\"0\",tag=\"bert\"}} 438304768\n"
        );
        assert!(text.contains(&line), "{line}\nis not in\n{text}");
    }
    let (head, plain) = run.metrics("text/plain;version=0.0.4");
    assert!(
        head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{head}"
    );
    assert!(
        plain.contains("\n# TYPE trtalloc_allocations_total counter\n") && !plain.contains("# EOF"),
        "{plain}"
    );
}

#[test]
fn page_shows_what_is_served() {
    let run = Run::new("page", &[]);
    let mut text = String::new();
    // A process reports the figures of the whole run five times a second.
    wait("the run's figures are there", || {
        text = run.metrics(OPEN).1;
        values(&text, "trtalloc_run_allocations_total") == ["10"]
    });
    pages::assert_shown("metrics", &run.program(), &text, |line| {
        let names = [
            "up",
            "run_allocations_total",
            "allocated_bytes{",
            "tag_allocated_bytes{",
        ];
        let is_sample = names.iter().any(|name| line.starts_with(&format!("trtalloc_{name}")));
        is_sample || line.contains(" trtalloc_up ")
    });
}

#[test]
fn every_allocator_of_a_process_has_its_number() {
    let mut run = Run::new("allocators", &[]);
    assert_eq!(run.server.does("second"), "made");
    let (_, text) = run.metrics(OPEN);
    let pid = run.program();
    assert_one_exposition(&text);
    for (allocator, bytes) in [(0, 541065216), (1, 1 << 20)] {
        let line =
            format!("\ntrtalloc_allocated_bytes{{pid=\"{pid}\",allocator=\"{allocator}\",device=\"0\"}} {bytes}\n");
        assert!(text.contains(&line), "{line}\nis not in\n{text}");
    }
}

/// A process that is stopped costs a scrape one second, and the others are there.
#[test]
fn process_that_does_not_answer_is_down_after_a_second() {
    let mut run = Run::new("down", &[]);
    let program = run.program();
    signal(&program, libc::SIGSTOP);
    let begun = Instant::now();
    let (_, text) = run.metrics(OPEN);
    let waited = begun.elapsed();
    assert_eq!(
        values(&text, &format!("trtalloc_up{{pid=\"{program}\"}}")),
        ["0"],
        "{text}"
    );
    assert_eq!(values(&text, "trtalloc_allocated_bytes{"), [""; 0], "{text}");
    assert!(
        waited >= Duration::from_millis(900) && waited < Duration::from_secs(5),
        "{waited:?}"
    );
    signal(&program, libc::SIGCONT);
    wait("it answers again", || {
        values(&run.metrics(OPEN).1, "trtalloc_up{") == ["1"]
    });
    run.server.begins("exit");
    assert!(run.server.child.wait().unwrap().success());
}

#[test]
fn server_refuses_what_is_not_a_request_for_metrics() {
    let run = Run::new("requests", &[]);
    let long = format!("GET /metrics HTTP/1.1\r\nA: {}", "x".repeat(20_000));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "200 OK"),
        ("HEAD /metrics HTTP/1.0\r\n\r\n", "200 OK"),
        ("GET /metrics?a=b HTTP/1.1\r\n\r\n", "200 OK"),
        ("GET /metric HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("GET /metrics/../etc HTTP/1.1\r\n\r\n", "404 Not Found"),
        (
            "POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            "405 Method Not Allowed",
        ),
        ("nonsense\r\n\r\n", "400 Bad Request"),
        ("\0\0\0\0", "400 Bad Request"),
        (&long, "431 Request Header Fields Too Large"),
    ] {
        let (head, body) = run.answer(request);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{request:?}: {head}"
        );
        assert!(!request.starts_with("HEAD") || body.is_empty());
    }
}

/// Clients that send nothing, a part, or take nothing. More of them than the server serves at a time delay a scrape by the two
/// seconds that the server waits for them, and the program's exit by nothing.
#[test]
fn slow_clients_delay_nothing() {
    let mut run = Run::new("slow", &[]);
    let mut clients: Vec<TcpStream> = (0..10).map(|_| run.send(b"")).collect();
    clients.extend((0..10).map(|_| run.send(b"GET /metr")));
    clients.extend((0..10).map(|_| run.send(b"GET /metrics HTTP/1.1\r\n\r\n")));
    let begun = Instant::now();
    assert_eq!(values(&run.metrics(OPEN).1, "trtalloc_up{"), ["1"]);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    // More than are served are turned away, until those are given up.
    clients.extend((0..100).map(|_| run.send(b"GET")));
    wait("the slow ones are given up", || {
        let mut stream = TcpStream::connect(&run.address).unwrap();
        let mut answer = String::new();
        let _ = stream
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .and_then(|()| stream.read_to_string(&mut answer));
        answer.starts_with("HTTP/1.1 200 OK")
    });
    // Every one of them has its end: all places are free.
    for mut client in clients {
        let _ = client.read_to_end(&mut Vec::new());
    }
    let mut half = run.send(b"GET /metrics");
    half.shutdown(Shutdown::Write).unwrap();
    assert_eq!(half.read(&mut [0; 10]).unwrap(), 0);
    let _others: Vec<TcpStream> = (0..10).map(|_| run.send(b"GET /metr")).collect();
    let begun = Instant::now();
    run.server.begins("exit");
    assert!(run.server.child.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    TcpStream::connect(&run.address).unwrap_err();
}

#[test]
fn run_with_metrics_ends_as_the_program_does() {
    for (script, code, signal) in [("exit 7", Some(7), None), ("kill -TERM $$", None, Some(libc::SIGTERM))] {
        let mut command = run_command("status");
        let out = command
            .args(["--metrics", "0", "--", "sh", "-c", script])
            .output()
            .unwrap();
        let status = (
            out.status.code(),
            std::os::unix::process::ExitStatusExt::signal(&out.status),
        );
        assert_eq!(status, (code, signal), "{out:?}");
    }
    // A signal to the command still reaches the program, and not one of its threads.
    let mut run = Run::new("forwarded", &[]);
    signal_to_run(&run);
    let status = run.server.child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGTERM)
    );

    fn signal_to_run(run: &Run) {
        run.metrics(OPEN);
        signal(&run.server.pid(), libc::SIGTERM);
    }
}

#[test]
fn what_cannot_be_served_is_refused_before_the_program_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let folder = common::scratch("refused");
    let mark = folder.join("started");
    for (options, status, reason) in [
        (&["--metrics", port.as_str()][..], 125, "Address already in use"),
        (&["--metrics", "127.0.0.1"], 2, "no address; 9464 or :9464"),
        (&["--metrics", "65536"], 2, "no address"),
        (
            &["--metrics", "0", "--control=0"],
            2,
            "need the control socket, and control=0 is set",
        ),
        (
            &["--metrics", "0", "--options", "control=off"],
            2,
            "need the control socket, and control=off is set",
        ),
        (&["--metrics-file", "/no/such/a.prom"], 125, "No such file"),
        (&["--metrics-file", "a.txt"], 2, "ends in .prom"),
    ] {
        let mut command = run_command("refused_run");
        let out = command
            .args(options)
            .arg("--")
            .arg("touch")
            .arg(&mark)
            .output()
            .unwrap();
        let said = expect_refused(&out, status);
        assert!(said.contains(reason), "{options:?}: {said}");
        assert!(!mark.exists(), "{options:?}");
    }
}

#[test]
fn file_for_node_exporter_is_replaced_and_ends_without_processes() {
    let folder = common::scratch("metrics_file");
    let file = folder.join("a.prom");
    let mut run = Run::new("file", &["--metrics-file", file.to_str().unwrap()]);
    let text = || std::fs::read_to_string(&file).unwrap();
    assert_eq!(values(&text(), "trtalloc_up{"), [""; 0]);
    wait("the process is in it", || {
        values(&text(), "trtalloc_allocated_bytes{") == ["541065216"]
    });
    assert!(text().contains("\n# TYPE trtalloc_allocations_total counter\n") && !text().contains("# EOF"));
    run.server.begins("exit");
    assert!(run.server.child.wait().unwrap().success());
    // What ended holds nothing, and its counts stay.
    let text = text();
    assert_eq!(values(&text, "trtalloc_allocated_bytes{"), [""; 0], "{text}");
    assert_eq!(values(&text, "trtalloc_run_allocations_total "), ["10"], "{text}");
    assert_eq!(
        values(&text, "trtalloc_run_allocated_peak_bytes "),
        ["675282944"],
        "{text}"
    );
    assert_eq!(files(&folder), ["a.prom"]);
}

/// A Prometheus scrapes a run, and has what the process holds. Its own promtool finds no fault with the text.
#[test]
fn prometheus_scrapes_it() {
    for tool in ["prometheus", "promtool"] {
        if let Err(error) = Command::new(tool).arg("--version").output() {
            common::skip("prometheus", &format!("no {tool}: {error}"));
        }
    }
    let mut run = Run::new("scraped", &[]);
    let dir = common::scratch("prometheus");
    let (_, plain) = run.metrics("text/plain");
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(plain.as_bytes()).unwrap();
    assert!(check.wait().unwrap().success(), "{plain}");
    let config = dir.join("prometheus.yml");
    let targets = format!(
        "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: trtalloc\n    static_configs:\n      - targets: ['{}']\n",
        run.address
    );
    std::fs::write(&config, targets).unwrap();
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
        .arg(format!("--web.listen-address={free}"))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("log")).unwrap())
        .spawn()
        .unwrap();
    struct Ends(Child);
    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let _prometheus = Ends(child);
    let query = |query: &str| -> Option<serde_json::Value> {
        let mut stream = TcpStream::connect(free).ok()?;
        let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    };
    let value = |text: &str| -> Option<serde_json::Value> { Some(query(text)?["data"]["result"].get(0)?.clone()) };
    wait("Prometheus has the metrics", || value("trtalloc_up").is_some());
    let up = value("up").unwrap();
    assert_eq!(up["value"][1], "1", "{up}");
    let held = value("trtalloc_tag_allocated_bytes%7Btag=%22bert%22%7D").unwrap();
    assert_eq!(held["value"][1], "438304768", "{held}");
    assert_eq!(held["metric"]["pid"], run.program(), "{held}");
    let count = value("trtalloc_allocations_total").unwrap();
    assert_eq!(count["value"][1], "10", "{count}");
    // It took the types from the OpenMetrics text.
    let mut stream = TcpStream::connect(free).unwrap();
    stream
        .write_all(b"GET /api/v1/metadata?metric=trtalloc_allocations HTTP/1.0\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"type\":\"counter\""), "{answer}");
    run.server.begins("exit");
    assert!(run.server.child.wait().unwrap().success());
}
