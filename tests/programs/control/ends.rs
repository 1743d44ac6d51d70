//! What stays of a process that forks, becomes another program, exits or is killed: no file, thread or lock that harms.

use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;

use super::*;

fn kill(pid: &str) {
    // SAFETY: a process of this test.
    unsafe { libc::kill(pid.parse().unwrap(), libc::SIGKILL) };
}

#[test]
fn exit_removes_the_file_and_descriptors_are_high() {
    let mut server = Server::new("exit");
    assert_eq!(server.files().len(), 1);
    assert!(server.socket().exists());
    let high: Vec<i32> = server
        .descriptors()
        .into_iter()
        .filter(|number| *number >= HIGH)
        .collect();
    assert_eq!(high.len(), 3, "{:?}", server.descriptors());
    assert!(
        server
            .descriptors()
            .iter()
            .all(|number| *number < HIGH || high.contains(number))
    );
    wait("one thread", || server.helpers() == 1);
    server.begins("exit");
    assert!(server.child.wait().unwrap().success());
    assert_eq!(server.files(), Vec::<String>::new());
}

/// Without the option, there is nothing.
#[test]
fn process_without_the_option_has_no_socket() {
    let runtime = runtime("off");
    let server = Server::start("off", Server::command(&runtime).env_remove("TRTALLOC_CONTROL"));
    assert!(server.descriptors().iter().all(|number| *number < HIGH));
    assert_eq!(files(&runtime), Vec::<String>::new());
}

/// A process that is killed, or ends by `_exit`, leaves its file. The list removes it.
#[test]
fn list_removes_files_of_processes_that_ended() {
    for end in ["kill", "_exit"] {
        let mut server = Server::new("stale");
        match end {
            "kill" => kill(&server.pid()),
            end => server.begins(end),
        }
        server.child.wait().unwrap();
        assert_eq!(server.files().len(), 1, "{end}");
        let other = Server::start("other", &mut Server::command(&server.runtime));
        std::fs::write(server.folder().join("kept"), "no socket").unwrap();
        expect(
            ctl_command(&[])
                .env("XDG_RUNTIME_DIR", &server.runtime)
                .output()
                .as_ref()
                .unwrap(),
            0,
        );
        let mut left = server.files();
        left.sort_by_key(|name| name == "kept");
        assert_eq!(left.len(), 2, "{left:?}");
        assert_eq!((other.socket().exists(), left[1].as_str()), (true, "kept"));
    }
}

/// The file of the program that a process was before is replaced.
#[test]
fn program_that_replaces_another_replaces_its_file() {
    let mut server = Server::new("again");
    for _ in 0..3 {
        assert_eq!(server.does("again"), "ready");
        assert_eq!(server.files().len(), 1);
        expect(&server.ctl(&["tags"]), 0);
    }
    // One that allocates nothing serves nothing, and its socket is of a program that has ended.
    assert_eq!(server.does("exec"), "ready");
    assert!(
        server.descriptors().iter().all(|number| *number < HIGH),
        "{:?}",
        server.descriptors()
    );
    let out = server.ctl(&["tags"]);
    assert!(
        expect_refused(&out, 1).contains("its socket is of a program that has ended"),
        "{out:?}"
    );
}

/// A forked child has none of the descriptors. It is not reached through its parent's file, also where the parent is gone.
#[test]
fn forked_child_serves_nothing() {
    let mut server = Server::new("fork");
    let child = server.does("fork");
    let open = || -> Vec<i32> {
        let numbers = files(Path::new(&format!("/proc/{child}/fd")));
        numbers.iter().map(|number| number.parse().unwrap()).collect()
    };
    // The child runs the handlers of a fork before its own code, at a time of its own.
    let begun = Instant::now();
    while open().iter().any(|number| *number >= HIGH) && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(
        open().contains(&0) && open().iter().all(|number| *number < HIGH),
        "{:?}",
        open()
    );
    let out = ctl(&[&child, "tags"]);
    assert!(expect_refused(&out, 1).contains("no control socket"), "{out:?}");
    expect(&server.ctl(&["tags"]), 0);
    kill(&server.pid());
    server.child.wait().unwrap();
    let refused = UnixStream::connect(server.socket()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    kill(&child);
}

/// A program that closes all descriptors, as daemons do, and opens others: these are left alone.
#[test]
fn closed_descriptors_are_given_up() {
    let mut server = Server::new("closed");
    assert_eq!(server.does("close"), "closed");
    assert_eq!(server.does("reopen"), "open");
    let mut numbers = server.descriptors();
    // The end of its pipe wakes the thread, which notices.
    wait("the file is removed", || server.files().is_empty());
    expect_refused(&server.ctl(&["tags"]), 1);
    assert!(server.does("busy 100").parse::<u64>().is_ok());
    assert_eq!(server.descriptors(), std::mem::take(&mut numbers));
    server.begins("exit");
    let begun = Instant::now();
    assert!(server.child.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(server.files(), Vec::<String>::new());
}

/// Clients and servers are killed at random moments of a snapshot.
#[test]
fn kills_at_random_moments_leave_nothing_that_harms() {
    let dir = common::scratch("kills");
    let path = dir.join("held.json");
    let rounds = if common::in_full() { 200 } else { 30 };
    let mut server = Server::new("kill_client");
    expect(&server.ctl(&["history", "all"]), 0);
    server.does("busy 100");
    let before = server.descriptors();
    for round in 0..rounds {
        let mut client = ctl_command(&[&server.pid(), "snapshot", path.to_str().unwrap()]);
        let mut client = client.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(700 * (round % 40)));
        client.kill().unwrap();
        client.wait().unwrap();
    }
    expect(&server.ctl(&["stats"]), 0);
    wait("descriptors are closed", || server.descriptors() == before);
    assert_eq!(server.helpers(), 1);
    drop(server);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    for round in 0..rounds / 6 {
        std::fs::write(&path, "old").unwrap();
        let mut server = Server::new("kill_server");
        expect(&server.ctl(&["history", "all"]), 0);
        server.does("busy 60");
        let mut client = ctl_command(&[&server.pid(), "snapshot", path.to_str().unwrap()]);
        let client = client.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 * (round % 20)));
        kill(&server.pid());
        let out = client.wait_with_output().unwrap();
        let written = std::fs::read(&path).unwrap();
        match out.status.success() {
            true => assert!(
                written.ends_with(b"}") || written.ends_with(b"}\n"),
                "the file is complete"
            ),
            false => assert!(written == b"old", "{out:?}"),
        }
        assert_eq!(files(&dir), ["held.json"]);
    }
}

/// A client is answered as long as the process exists, and an exit does not wait for one.
#[test]
fn exit_does_not_wait_for_a_client() {
    let mut server = Server::new("exit_while_serving");
    let _idle = UnixStream::connect(server.socket()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    server.begins("exit");
    assert!(server.child.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert_eq!(server.files(), Vec::<String>::new());
}

/// A client that is killed while it waits for a snapshot leaves no file.
#[test]
fn client_that_is_killed_leaves_no_file() {
    let server = Server::new("client_killed");
    let dir = common::scratch("client_killed_files");
    let unnamed = std::fs::File::options()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(&dir);
    if let Err(error) = unnamed {
        common::unsupported(&format!("the file system has no files without a name: {error}"));
    }
    // A stopped process answers nothing.
    // SAFETY: a process of this test.
    unsafe { libc::kill(server.pid().parse().unwrap(), libc::SIGSTOP) };
    let path = dir.join("held.pickle");
    for old in [false, true] {
        if old {
            std::fs::write(&path, "old").unwrap();
        }
        let mut client = ctl_command(&[&server.pid(), "snapshot", path.to_str().unwrap()])
            .spawn()
            .unwrap();
        // The client opens the file after it has sent its request.
        let descriptors = format!("/proc/{}/fd", client.id());
        wait("the file is open", || {
            let entries = std::fs::read_dir(&descriptors).into_iter().flatten().flatten();
            let mut paths = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            paths.any(|path| path.starts_with(&dir))
        });
        kill(&client.id().to_string());
        client.wait().unwrap();
        let left = if old {
            vec!["held.pickle".to_owned()]
        } else {
            Vec::new()
        };
        assert_eq!(files(&dir), left);
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    // SAFETY: as above.
    unsafe { libc::kill(server.pid().parse().unwrap(), libc::SIGCONT) };
    std::thread::sleep(Duration::from_millis(1100));
    wait("a snapshot replaces it", || {
        server.ctl(&["snapshot", path.to_str().unwrap()]).status.success()
    });
    assert_eq!(files(&dir), ["held.pickle"]);
    assert!(std::fs::metadata(&path).unwrap().len() > 1000);
}
