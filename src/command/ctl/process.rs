//! Finds a process's control socket, also in a container, and connects to it as the process's user.

use std::io::{Error as IoError, ErrorKind, Write};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use trtalloc::error::{Error, Result};
use trtalloc::support::control::Request;
use trtalloc::support::control::socket_file::{self, Found};
use trtalloc::support::private_folder::{self, Place};

use super::PATIENCE;

/// How long this waits where too many clients wait for the process.
const CROWDED: Duration = Duration::from_secs(10);

/// A process, as `/proc` describes it.
pub struct Target {
    pub pid: u32,
    /// Its effective user and group, as they are called here.
    pub user: u32,
    group: u32,
    /// Where its paths begin.
    root: OwnedFd,
    places: Vec<Place>,
    /// The name of its socket.
    name: String,
}

/// What was found in place of a process's socket.
pub enum Reached {
    /// The process serves it.
    Served(UnixStream),
    /// A program that has ended left it.
    Ended,
    /// There is none.
    Nothing,
}

impl Target {
    /// Reads what is needed of the process while this one still has all its rights.
    pub fn of(pid: u32) -> Result<Target> {
        let failed = |error: IoError| match error.kind() {
            ErrorKind::NotFound => Error::Io(format!("no process {pid}")),
            _ => Error::Io(format!("process {pid}: {error}")),
        };
        let proc = format!("/proc/{pid}");
        // It has the process's name, which the kernel may have cut in the middle of a character.
        let status = std::fs::read(format!("{proc}/status")).map_err(failed)?;
        let status = String::from_utf8_lossy(&status);
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().split_whitespace()
        };
        let effective = |name: &str| field(name).nth(1).and_then(|number| number.parse::<u32>().ok());
        let (Some(user), Some(group)) = (effective("Uid:"), effective("Gid:")) else {
            return Err(Error::Io(format!("process {pid}: its user is not known")));
        };
        // Only the user of a process that others may look into can follow these; others are looked for here.
        let root =
            private_folder::root(Path::new(&format!("{proc}/root"))).or_else(|_| private_folder::root(Path::new("/")));
        let namespace = socket_file::namespace(&pid.to_string()).or_else(|_| socket_file::namespace("self"));
        let inner = field("NSpid:")
            .last()
            .and_then(|number| number.parse().ok())
            .unwrap_or(pid);
        let mut places = Place::of_user(user_there(&proc, user), variable(&proc, "XDG_RUNTIME_DIR"));
        for place in Place::of_user(user, std::env::var_os("XDG_RUNTIME_DIR")) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        Ok(Target {
            pid,
            user,
            group,
            root: root.map_err(failed)?,
            places,
            name: socket_file::name(inner, namespace.map_err(failed)?),
        })
    }

    /// Becomes the process's user for good. Only root can; for others that user must be their own.
    pub fn take_user(&self) -> Result<()> {
        // SAFETY: only reads a value.
        let own = unsafe { libc::geteuid() };
        if own == self.user {
            return Ok(());
        }
        if own != 0 {
            return Err(Error::Unsupported(format!(
                "process {} belongs to another user: only that user and root can reach it",
                self.pid
            )));
        }
        let (user, group) = (self.user, self.group);
        // SAFETY: plain arguments; no other thread runs.
        let taken = unsafe {
            libc::setgroups(0, std::ptr::null()) == 0
                && libc::setresgid(group, group, group) == 0
                && libc::setresuid(user, user, user) == 0
        };
        match taken {
            true => Ok(()),
            false => Err(Error::Io(format!("user {user}: {}", IoError::last_os_error()))),
        }
    }

    /// Connects to the process's socket.
    pub fn connect(&self) -> Result<UnixStream> {
        let reason = match self.reach(CROWDED)? {
            Reached::Served(stream) => return Ok(stream),
            Reached::Ended => "its socket is of a program that has ended",
            Reached::Nothing => {
                "it has no control socket. It gets one at its first allocation, if it was started by `trtalloc run` or with \
                 TRTALLOC_CONTROL=1, and has no seccomp filter and no setuid bit"
            }
        };
        Err(Error::Io(format!("process {}: {reason}", self.pid)))
    }

    /// Connects to the process's socket, if it has one. Where too many clients wait for it, this waits so long.
    pub fn reach(&self, patience: Duration) -> Result<Reached> {
        let mut refused = false;
        for place in &self.places {
            let Ok(folder) = place.open(self.root.as_fd(), self.user) else {
                continue;
            };
            match self.connect_in(&folder, patience) {
                Ok(Found::Served(stream)) => return Ok(Reached::Served(stream)),
                Ok(Found::Refused) => refused = true,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Error::Io(format!("process {}: its socket: {error}", self.pid))),
            }
        }
        Ok(if refused { Reached::Ended } else { Reached::Nothing })
    }

    fn connect_in(&self, folder: &private_folder::Folder, patience: Duration) -> std::io::Result<Found> {
        let begun = Instant::now();
        loop {
            match socket_file::open(folder, &self.name, self.user) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && begun.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(Found::Served(stream)) => {
                    return match peer(&stream) == Some(self.pid) {
                        true => Ok(Found::Served(stream)),
                        false => Err(IoError::new(ErrorKind::PermissionDenied, "another process serves it")),
                    };
                }
                other => return other,
            }
        }
    }
}

/// Sends a request, and sets how long the answer may take.
pub fn send(stream: &mut UnixStream, request: &Request) -> Result<()> {
    let message = request.encode();
    let message = message.ok_or_else(|| Error::InvalidArgument("an argument is too long, or has a zero".into()))?;
    let sent = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.write_all(&message));
    // A process that refuses this user closes the connection at once.
    sent.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Error::Io("the process refuses this user".into()),
        _ => Error::Io(format!("the process: {error}")),
    })
}

/// The process that serves the socket, as its number is here.
fn peer(stream: &UnixStream) -> Option<u32> {
    let mut credentials = MaybeUninit::<libc::ucred>::uninit();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: room of that length on this frame.
    let found = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            level,
            option,
            credentials.as_mut_ptr().cast(),
            &mut length,
        )
    };
    // SAFETY: the call wrote all of it.
    (found == 0).then(|| unsafe { credentials.assume_init() }.pid as u32)
}

/// A user's number in the process's own namespace of users.
fn user_there(proc: &str, user: u32) -> u32 {
    let namespace = |process: &str| std::fs::read_link(format!("{process}/ns/user")).ok();
    if namespace(proc) == namespace("/proc/self") {
        return user;
    }
    let map = std::fs::read_to_string(format!("{proc}/uid_map")).unwrap_or_default();
    let line = |line: &str| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        (user >= outside && user - outside < count).then(|| inside + (user - outside))
    };
    map.lines().find_map(line).unwrap_or(user)
}

/// A variable of the environment that the process began with.
fn variable(proc: &str, name: &str) -> Option<std::ffi::OsString> {
    use std::os::unix::ffi::OsStringExt;
    let all = std::fs::read(format!("{proc}/environ")).ok()?;
    let mut variables = all.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(std::ffi::OsString::from_vec(value.to_vec()))
}
