//! `trtalloc ctl` and the control socket: what each command does, what a hostile client can do, and what stays of a
//! process that ended.

mod commands;
mod ends;
mod hostile;
mod metrics;
mod pages;
mod rights;

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The library's descriptors in a program are at least this.
const HIGH: i32 = 900;

/// The program server.c, compiled once. Any user may execute it and read the library.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let dir = common::scratch("program");
        let path = dir.join("server");
        let mut compile = common::cc();
        compile.arg("-D_GNU_SOURCE").arg("-Wno-pedantic");
        compile.arg(common::root().join("tests/support/c/server.c"));
        compile.arg("-o").arg(&path);
        common::link(&mut compile, &dir);
        common::run(&mut compile);
        path
    })
}

/// The program by a name that is not UTF-8.
fn odd_program(name: &str) -> PathBuf {
    let path = common::scratch(name).join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    std::os::unix::fs::symlink(program(), &path).unwrap();
    path
}

/// A fresh folder that only its owner may enter, as XDG_RUNTIME_DIR is.
fn runtime(name: &str) -> PathBuf {
    let dir = common::scratch(name);
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    dir
}

/// A command with none of the environment's options.
fn clean(path: &Path) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRTALLOC_")) {
        command.env_remove(name);
    }
    command
}

fn ctl(arguments: &[&str]) -> Output {
    ctl_command(arguments).output().unwrap()
}

fn ctl_command(arguments: &[&str]) -> Command {
    let mut command = clean(Path::new(env!("CARGO_BIN_EXE_trtalloc")));
    command.arg("ctl").args(arguments);
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Expects an exit status, and returns stdout.
#[track_caller]
fn expect(output: &Output, status: i32) -> &str {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "stdout:\n{out}stderr:\n{err}");
    out
}

/// Expects a failure, and returns stderr.
#[track_caller]
fn expect_refused(output: &Output, status: i32) -> &str {
    assert_eq!(expect(output, status), "");
    text(&output.stderr)
}

/// A running server.c. It ends with this value.
struct Server {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    runtime: PathBuf,
}

impl Server {
    /// A server with a folder of its own.
    fn new(name: &str) -> Server {
        Server::start(name, &mut Server::command(&runtime(name)))
    }

    /// The program with the option control.
    fn command(runtime: &Path) -> Command {
        Server::command_as(program(), runtime)
    }

    /// The same for the program at another path.
    fn command_as(program: &Path, runtime: &Path) -> Command {
        let mut command = clean(program);
        command.envs([("TRTALLOC_DRIVER", "sim"), ("TRTALLOC_CONTROL", "1")]);
        command.env("XDG_RUNTIME_DIR", runtime);
        command
    }

    fn start(name: &str, command: &mut Command) -> Server {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{name}: {error}"));
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let runtime = command.get_envs().find(|(key, _)| *key == "XDG_RUNTIME_DIR");
        let mut server = Server {
            child,
            stdin,
            stdout,
            runtime: runtime.and_then(|(_, path)| path).unwrap_or_default().into(),
        };
        assert_eq!(server.line(), "ready", "{name}");
        server
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Has the program do something, and returns its line.
    fn does(&mut self, what: &str) -> String {
        self.begins(what);
        self.line()
    }

    fn begins(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn folder(&self) -> PathBuf {
        self.runtime.join("trtalloc")
    }

    /// The process's socket.
    fn socket(&self) -> PathBuf {
        let namespace = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/pid").unwrap());
        self.folder().join(format!("{}.{namespace}", self.pid()))
    }

    /// `trtalloc ctl PID` with these arguments.
    fn ctl(&self, arguments: &[&str]) -> Output {
        ctl(&[&[self.pid().as_str()], arguments].concat())
    }

    /// The files of its folder.
    fn files(&self) -> Vec<String> {
        files(&self.folder())
    }

    fn helpers(&self) -> usize {
        helpers(&self.pid())
    }

    /// Its open descriptors.
    fn descriptors(&self) -> Vec<i32> {
        let all = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let number = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let mut all: Vec<i32> = all.filter_map(number).collect();
        all.sort_unstable();
        all
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many threads of the library a process has.
fn helpers(pid: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let comm = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let names = tasks.filter_map(Result::ok).map(comm);
    names.filter(|name| name.trim() == "trtalloc").count()
}

fn files(folder: &Path) -> Vec<String> {
    let Ok(all) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    all.map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Waits at most a minute.
#[track_caller]
fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !until() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether this is root, which may take other users.
fn is_root() -> bool {
    // SAFETY: only reads a value.
    unsafe { libc::geteuid() == 0 }
}
