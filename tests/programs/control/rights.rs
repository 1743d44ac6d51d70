//! Who is answered: the process's own user and root. And where there is no server at all.

use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;

use trtalloc::support::control::Request;

use super::metrics::{OPEN, Run, values};
use super::*;

const USER: u32 = 54_321;
const OTHER: u32 = 54_322;
const OVERFLOW: u32 = 65_534;

/// A folder of that user under /tmp, where any user may pass.
struct Home(PathBuf);

impl Home {
    fn new(name: &str, user: u32) -> Home {
        let path = PathBuf::from(format!("/tmp/trtalloc-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        chown(&path, Some(user), Some(user)).unwrap();
        Home(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Programs of other users, copied to where these can execute them.
fn copied(name: &str) -> Home {
    if !is_root() {
        common::skip("root", "only root can take other users");
    }
    let home = Home::new(name, 0);
    std::fs::set_permissions(&home.0, PermissionsExt::from_mode(0o755)).unwrap();
    let library = common::library_dir().join("libtrtalloc.so");
    let command = Path::new(env!("CARGO_BIN_EXE_trtalloc"));
    for (from, name) in [
        (program(), "server"),
        (&library, env!("TRTALLOC_SONAME")),
        (command, "trtalloc"),
    ] {
        common::copy_program(from, &home.0.join(name));
    }
    home
}

/// A server of that user.
fn server_of(user: u32, programs: &Home, home: &Home) -> Server {
    let mut command = clean(&programs.0.join("server"));
    command.envs([("TRTALLOC_DRIVER", "sim"), ("TRTALLOC_CONTROL", "1")]);
    command
        .env("XDG_RUNTIME_DIR", &home.0)
        .env("LD_LIBRARY_PATH", &programs.0);
    Server::start("of a user", command.uid(user).gid(user).current_dir("/"))
}

fn ctl_as(user: u32, programs: &Home, arguments: &[&str]) -> Output {
    let mut command = clean(&programs.0.join("trtalloc"));
    command.arg("ctl").args(arguments).uid(user).gid(user).current_dir("/");
    command.output().unwrap()
}

#[test]
fn own_user_and_root_are_answered_and_no_other() {
    let programs = copied("programs_one");
    let home = Home::new("home", USER);
    let server = server_of(USER, &programs, &home);
    let pid = server.pid();
    expect(&ctl_as(USER, &programs, &[&pid, "tags"]), 0);
    expect(&server.ctl(&["tags"]), 0);
    let out = ctl_as(OTHER, &programs, &[&pid, "tags"]);
    assert!(expect_refused(&out, 1).contains("belongs to another user"), "{out:?}");
    assert!(!text(&ctl_as(OTHER, &programs, &[]).stdout).contains(&pid));
    assert!(text(&ctl_as(USER, &programs, &[]).stdout).contains(&pid));
    assert!(text(&ctl(&[]).stdout).contains(&pid));
    // Root writes the snapshot as the process's user.
    let file = home.0.join("held.json");
    expect(&server.ctl(&["snapshot", file.to_str().unwrap()]), 0);
    assert_eq!(
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&file).unwrap()),
        USER
    );
    // Where another user could reach the socket, the server itself refuses.
    for path in [home.0.clone(), server.folder()] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    std::fs::set_permissions(server.socket(), PermissionsExt::from_mode(0o777)).unwrap();
    for (user, answered) in [(OTHER, false), (OVERFLOW, false), (USER, true), (0, true)] {
        assert_eq!(asks(user, &server.socket()), answered, "{user}");
    }
}

/// Whether a client of that user gets an answer.
fn asks(user: u32, socket: &Path) -> bool {
    let message = Request::new("tags").encode().unwrap();
    // A process of its own, since users belong to the whole process.
    // SAFETY: the child makes few calls, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain arguments.
        let taken = unsafe { libc::setgroups(0, std::ptr::null()) == 0 && libc::setresuid(user, user, user) == 0 };
        let answer = || -> std::io::Result<usize> {
            let mut stream = UnixStream::connect(socket)?;
            let _ = stream.write_all(&message);
            stream.read(&mut [0; 4])
        };
        let status = match answer() {
            Ok(4) if taken => 0,
            Ok(0) | Err(_) if taken => 1,
            _ => 2,
        };
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: writes to this frame.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    match libc::WEXITSTATUS(status) {
        0 => true,
        1 => false,
        other => panic!("{other}"),
    }
}

/// The user that stands for unknown ones is refused, also where the process is its own.
#[test]
fn overflow_user_is_refused() {
    let programs = copied("programs_two");
    let home = Home::new("overflow", OVERFLOW);
    let server = server_of(OVERFLOW, &programs, &home);
    let out = ctl_as(OVERFLOW, &programs, &[&server.pid(), "tags"]);
    assert!(!out.status.success(), "{out:?}");
    assert!(!asks(OVERFLOW, &server.socket()) && asks(0, &server.socket()));
}

/// A folder that others may enter, that another user owns, or that a symbolic link names, is not used.
#[test]
fn folder_that_is_not_private_is_not_used() {
    let base = common::scratch("folders");
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(&base, 0o700);
    let private = base.join("private");
    std::fs::create_dir(&private).unwrap();
    mode(&private, 0o700);
    let open = base.join("open");
    std::fs::create_dir_all(open.join("trtalloc")).unwrap();
    mode(&open, 0o700);
    mode(&open.join("trtalloc"), 0o750);
    let shared = base.join("shared");
    std::fs::create_dir(&shared).unwrap();
    mode(&shared, 0o755);
    let link = base.join("link");
    symlink(&private, &link).unwrap();
    let linked = base.join("linked");
    std::fs::create_dir(&linked).unwrap();
    mode(&linked, 0o700);
    symlink(&private, linked.join("trtalloc")).unwrap();
    for runtime in [
        &open,
        &shared,
        &link,
        &linked,
        &base.join("no/such"),
        Path::new("relative"),
        &private.join(".."),
    ] {
        let runtime: &Path = runtime;
        let server = Server::start("folders", &mut Server::command(runtime));
        // It takes the next one, which is in /run/user or /tmp.
        expect(&server.ctl(&["tags"]), 0);
        assert!(!server.socket().exists(), "{}", runtime.display());
        assert_eq!(files(&private), Vec::<String>::new(), "{}", runtime.display());
    }
    // The client follows no link either.
    let server = Server::start("private", &mut Server::command(&private));
    expect(&server.ctl(&["tags"]), 0);
    let socket = server.socket();
    std::fs::rename(&socket, base.join("moved")).unwrap();
    symlink(base.join("moved"), &socket).unwrap();
    let out = server.ctl(&["tags"]);
    assert!(expect_refused(&out, 1).contains("not a socket of that user"), "{out:?}");
}

/// Another process that serves the file of a process's name is not believed.
#[test]
fn process_that_serves_anothers_file_is_not_believed() {
    let server = Server::new("impostor");
    std::fs::remove_file(server.socket()).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(server.socket()).unwrap();
    let out = server.ctl(&["tags"]);
    assert!(expect_refused(&out, 1).contains("another process serves it"), "{out:?}");
}

#[test]
fn filter_of_system_calls_means_no_server() {
    for program in [program(), &odd_program("filtered_program")] {
        let runtime = runtime("filtered");
        let server = Server::start("filtered", Server::command_as(program, &runtime).arg("filtered"));
        assert_eq!(server.files(), Vec::<String>::new());
        assert!(server.descriptors().iter().all(|number| *number < HIGH));
        let out = server.ctl(&["tags"]);
        assert!(expect_refused(&out, 1).contains("seccomp"), "{out:?}");
    }
}

#[test]
fn setuid_program_has_no_server() {
    let programs = copied("programs_three");
    let path = programs.0.join("server");
    chown(&path, Some(USER), None).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
    for (user, served) in [(USER, true), (OTHER, false)] {
        let home = Home::new(&format!("setuid_{user}"), USER);
        let mut command = clean(&path);
        command.arg("by_code").env("XDG_RUNTIME_DIR", &home.0);
        command.uid(user).gid(user).current_dir("/");
        // The loader does not read LD_LIBRARY_PATH for such a program; it has the path of the library in it.
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut child = child;
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        if line.is_empty() {
            child.wait().unwrap();
            common::unsupported("that user cannot read the library, or programs of this folder gain no rights");
        }
        let (socket, id) = (files(&home.0.join("trtalloc")), child.id());
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        child.wait().unwrap();
        assert!(status.contains(&format!("\nUid:\t{user}\t{USER}\t")), "{status}");
        assert_eq!(socket.len(), usize::from(served), "{user}: {socket:?}");
    }
}

/// A process in a container of its own, with its own process numbers and its own /tmp.
#[test]
fn container_is_reached_from_outside() {
    if !is_root() {
        common::skip("root", "only root can make a namespace of processes here");
    }
    let dir = common::scratch("container");
    let script = "mount -t tmpfs none /tmp && exec \"$0\"";
    let start = || {
        let mut command = clean(Path::new("unshare"));
        command.args([
            "--pid",
            "--fork",
            "--mount-proc",
            "--mount",
            "--net",
            "--kill-child",
            "sh",
            "-c",
            script,
        ]);
        command
            .arg(program())
            .envs([("TRTALLOC_DRIVER", "sim"), ("TRTALLOC_CONTROL", "1")]);
        command.env_remove("XDG_RUNTIME_DIR");
        command
    };
    let tried = start().args(["x"]).stdin(Stdio::null()).output();
    if !tried.as_ref().is_ok_and(|out| out.stdout.starts_with(b"ready")) {
        common::skip("unshare", &format!("no container can be made here: {tried:?}"));
    }
    let (one, two) = (Server::start("one", &mut start()), Server::start("two", &mut start()));
    for server in [&one, &two] {
        let children = format!("/proc/{0}/task/{0}/children", server.pid());
        let inside = std::fs::read_to_string(children).unwrap().trim().to_owned();
        let out = ctl(&[&inside, "tags"]);
        assert!(expect(&out, 0).contains("bert"), "{out:?}");
        let path = dir.join("held.json");
        expect(&ctl(&[&inside, "snapshot", path.to_str().unwrap()]), 0);
        assert!(
            std::fs::metadata(&path).unwrap().len() > 1000,
            "the file is where the client is"
        );
        assert!(text(&ctl(&[]).stdout).lines().any(|line| line.starts_with(&inside)));
    }
}

/// Root's run takes the user of each program before it looks for the socket.
#[test]
fn root_serves_the_metrics_of_another_users_program() {
    let (programs, home) = (copied("metrics-programs"), Home::new("metrics-other", OTHER));
    let library = programs.0.join(env!("TRTALLOC_SONAME"));
    std::fs::copy(library, programs.0.join("libtrtalloc.so")).unwrap();
    let mut command = clean(&programs.0.join("trtalloc"));
    command
        .env("XDG_RUNTIME_DIR", &home.0)
        .env("LD_LIBRARY_PATH", &programs.0);
    command.args(["run", "--driver", "sim"]);
    let user = [format!("--reuid={OTHER}"), format!("--regid={OTHER}")];
    let server = programs.0.join("server");
    let words = [
        "setpriv",
        &user[0],
        &user[1],
        "--clear-groups",
        server.to_str().unwrap(),
    ];
    let mut run = Run::by(command, "metrics-other", &[], &words);
    let program = run.program();
    let (_, text) = run.metrics(OPEN);
    assert_eq!(
        values(&text, &format!("trtalloc_up{{pid=\"{program}\"}}")),
        ["1"],
        "{text}"
    );
    assert_eq!(values(&text, "trtalloc_allocated_bytes{"), ["541065216"], "{text}");
    run.server.begins("exit");
    assert!(run.server.child.wait().unwrap().success());
}
