//! Serves the socket: one connection after the other, on the helper thread.

use std::io::{Error as IoError, ErrorKind, Write};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Handler;
use super::protocol::{Answer, MAX_MESSAGE, Request};
use super::socket_file::SocketFile;
use crate::support::error::{Error, Result};
use crate::support::helper_thread::{self, Source};
use crate::support::own_descriptor::{CONNECTION, LISTENER};
use crate::support::{own_descriptor, process};

/// How long the server waits for a client: for all of its request, and again until it takes the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A client that takes at least so many bytes a second has longer for a long answer.
const RATE: u64 = 16 << 20;

/// The user that stands for all users that are unknown here, unless the kernel names another one.
const OVERFLOW_USER: u32 = 65534;

/// The process's server.
pub(super) struct Server {
    file: SocketFile,
    handler: Handler,
    overflow_user: u32,
    started: AtomicBool,
}

impl Server {
    /// Makes the socket. Not in a process that runs with rights of another user, or that a filter restricts to few system
    /// calls: it may be killed for one that it does not expect.
    pub(super) fn create(handler: Handler) -> Result<Server> {
        if process::has_gained_rights() {
            return Err(Error::Unsupported(
                "it runs with rights that its user does not have".into(),
            ));
        }
        if process::is_filtered() {
            return Err(Error::Unsupported(
                "a filter restricts its system calls (seccomp)".into(),
            ));
        }
        let failed = |error: IoError| Error::Io(error.to_string());
        let file = own_descriptor::unseen(|| {
            // SAFETY: only reads a value.
            let (file, listener) = SocketFile::create(unsafe { libc::geteuid() })?;
            LISTENER.put(listener.into()).inspect_err(|_| file.remove())?;
            Ok(file)
        })
        .map_err(failed)?;
        let overflow_user = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
        Ok(Server {
            file,
            handler,
            overflow_user: overflow_user
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(OVERFLOW_USER),
            started: AtomicBool::new(false),
        })
    }

    /// Whether this is the first call.
    pub(super) fn starts(&self) -> bool {
        !self.started.swap(true, Ordering::Relaxed)
    }

    /// Whether a client of that user is answered.
    fn accepts(&self, user: u32) -> bool {
        // SAFETY: only reads a value.
        let own = unsafe { libc::geteuid() };
        user != self.overflow_user && (user == own || user == 0)
    }

    fn converse(&self, connection: RawFd) {
        if !peer(connection).is_some_and(|user| self.accepts(user)) {
            tracing::debug!("a client of another user was refused");
            return;
        }
        let mut answer = Answer::new(Connection::new(connection));
        let refused = |reason: &str| Err((1, reason.to_owned()));
        let outcome = match read_request(connection) {
            Ok(request) => (self.handler)(&request, &mut answer).map_err(|error| (error.status(), error.to_string())),
            Err(Unreadable::Malformed(reason)) => refused(reason),
            Err(Unreadable::Gone) => return,
        };
        if let Err(error) = answer.end(outcome) {
            tracing::debug!(%error, "a client did not take its answer");
        }
    }
}

impl Source for Server {
    fn descriptor(&self) -> Option<RawFd> {
        LISTENER.get()
    }

    fn serve(&self) {
        let Some(listener) = LISTENER.get() else { return };
        match own_descriptor::unseen(|| accept(listener)) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            Err(_) => {
                // The process may have no descriptor left, and the client is still there.
                helper_thread::wait_for(-1, 0, PATIENCE / 20);
                return;
            }
        }
        if let Some(connection) = CONNECTION.get() {
            let converse = std::panic::AssertUnwindSafe(|| self.converse(connection));
            let _ = std::panic::catch_unwind(converse);
        }
        CONNECTION.close();
    }

    fn end(&self) {
        LISTENER.close();
        self.file.remove();
    }
}

/// Accepts a client's connection as [`CONNECTION`].
fn accept(listener: RawFd) -> std::io::Result<()> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (no_address, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: a listening socket, and no room for an address is given.
    let connection = unsafe { libc::accept4(listener, no_address, no_length, flags) };
    if connection < 0 {
        return Err(IoError::last_os_error());
    }
    // SAFETY: a fresh descriptor, owned here alone.
    CONNECTION.put(unsafe { OwnedFd::from_raw_fd(connection) })
}

/// The effective user of the client when it connected.
fn peer(connection: RawFd) -> Option<u32> {
    let mut credentials = MaybeUninit::<libc::ucred>::uninit();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: room of that length on this frame.
    let found = unsafe { libc::getsockopt(connection, level, option, credentials.as_mut_ptr().cast(), &mut length) };
    // SAFETY: the call wrote all of it.
    (found == 0 && length as usize == size_of::<libc::ucred>()).then(|| unsafe { credentials.assume_init() }.uid)
}

/// Why there is no request.
enum Unreadable {
    /// The client sent something else.
    Malformed(&'static str),
    /// The client has gone, or sent no whole request in time.
    Gone,
}

fn read_request(connection: RawFd) -> std::result::Result<Request, Unreadable> {
    let deadline = Instant::now() + PATIENCE;
    let (mut bytes, mut filled) = ([0u8; MAX_MESSAGE + 1], 0);
    loop {
        match Request::missing(&bytes[..filled]) {
            Ok(0) => break,
            Ok(_) => {}
            Err(reason) => return Err(Unreadable::Malformed(reason)),
        }
        let rest = &mut bytes[filled..];
        // A plain read: the kernel closes descriptors that the client sent along.
        // SAFETY: the connection, and room of that length on this frame.
        let read = unsafe { libc::recv(connection, rest.as_mut_ptr().cast(), rest.len(), 0) };
        match read {
            0 => return Err(Unreadable::Gone),
            1.. => filled += read as usize,
            _ => {
                let left = deadline.saturating_duration_since(Instant::now());
                match IoError::last_os_error().kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock if helper_thread::wait_for(connection, libc::POLLIN, left) => {}
                    _ => return Err(Unreadable::Gone),
                }
            }
        }
        if Instant::now() >= deadline {
            return Err(Unreadable::Gone);
        }
    }
    Request::decode(&bytes[..filled]).map_err(Unreadable::Malformed)
}

/// The way to the client. All waits together take at most [`PATIENCE`], and longer for a long answer.
struct Connection {
    descriptor: RawFd,
    waited: Duration,
    sent: u64,
}

impl Connection {
    fn new(descriptor: RawFd) -> Connection {
        Connection {
            descriptor,
            waited: Duration::ZERO,
            sent: 0,
        }
    }

    /// Waits until the client has taken something.
    fn wait(&mut self) -> std::io::Result<()> {
        let patience = PATIENCE + Duration::from_millis(self.sent * 1000 / RATE);
        let left = patience.saturating_sub(self.waited).min(PATIENCE);
        let begun = Instant::now();
        let ready = !left.is_zero() && helper_thread::wait_for(self.descriptor, libc::POLLOUT, left);
        self.waited += begun.elapsed();
        if ready { Ok(()) } else { Err(ErrorKind::TimedOut.into()) }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        loop {
            // The application may have closed the descriptor meanwhile.
            if CONNECTION.get() != Some(self.descriptor) {
                return Err(ErrorKind::NotConnected.into());
            }
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: the connection, and bytes of that length.
            let sent = unsafe { libc::send(self.descriptor, bytes.as_ptr().cast(), bytes.len(), flags) };
            if sent >= 0 {
                self.sent += sent as u64;
                return Ok(sent as usize);
            }
            match IoError::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => {}
                error if error.kind() == ErrorKind::WouldBlock => self.wait()?,
                error => return Err(error),
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
