//! The library's own descriptors in the application's process.
//!
//! They have high numbers, since programs expect their own files at the lowest free ones, and are closed by `exec` and in
//! a forked child. A program may close every descriptor that it does not know, as daemons do, and open files with the same
//! numbers. So before each use the kernel is asked whether the number still belongs to the file that it belonged to.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::support::fork_gate;

const NONE: RawFd = -1;

/// The place of one descriptor. Each file that is put there has an inode of its own: a socket or a pipe.
pub struct OwnDescriptor {
    number: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

/// The socket that `trtalloc ctl` connects to.
pub static LISTENER: OwnDescriptor = OwnDescriptor::new();
/// The connection that is served.
pub static CONNECTION: OwnDescriptor = OwnDescriptor::new();
/// The ends of the pipe that wakes the helper thread.
pub static WAKE_READ: OwnDescriptor = OwnDescriptor::new();
/// See [`WAKE_READ`].
pub static WAKE_WRITE: OwnDescriptor = OwnDescriptor::new();

impl OwnDescriptor {
    const fn new() -> OwnDescriptor {
        OwnDescriptor {
            number: AtomicI32::new(NONE),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }

    /// Moves `descriptor` to a high number and keeps it here. The caller opens it and calls this within
    /// [`unseen`], so that no child has a copy that it does not close.
    pub fn put(&self, descriptor: OwnedFd) -> io::Result<()> {
        let descriptor = moved_up(descriptor)?;
        let (device, inode) = identity(descriptor.as_raw_fd()).ok_or_else(io::Error::last_os_error)?;
        self.device.store(device, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
        self.number.store(descriptor.into_raw_fd(), Ordering::Release);
        Ok(())
    }

    /// The descriptor; none where there is none, or the application closed it.
    pub fn get(&self) -> Option<RawFd> {
        let number = self.number.load(Ordering::Acquire);
        let own = (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        (number != NONE && identity(number) == Some(own)).then_some(number)
    }

    /// Closes the descriptor. May be called where only async-signal-safe functions may, and on several threads.
    pub fn close(&self) {
        if let Some(number) = self.take() {
            // SAFETY: this library opened it, and no other call of this function has its number.
            unsafe { libc::close(number) };
        }
    }

    /// Takes the descriptor away, on one of several threads. Once that one has closed it, the number may be another file's.
    fn take(&self) -> Option<RawFd> {
        let number = self.number.swap(NONE, Ordering::AcqRel);
        let own = (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        (number != NONE && identity(number) == Some(own)).then_some(number)
    }
}

/// The device and the inode of an open file.
fn identity(descriptor: RawFd) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call writes to this frame.
    let found = unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } == 0;
    // SAFETY: the call succeeded, so it wrote all of it.
    found
        .then(|| unsafe { status.assume_init() })
        .map(|status| (status.st_dev, status.st_ino))
}

/// The same file at a number that is near the process's limit, but at most 4095: a higher one would make the kernel's
/// table of the process large.
fn moved_up(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: only reads a value.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    let limit = if limit > 0 { limit.min(4096) as RawFd } else { 1024 };
    // SAFETY: the descriptor is open.
    let high = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, limit * 15 / 16) };
    match high {
        // No high number is free.
        NONE => Ok(descriptor),
        // SAFETY: a fresh descriptor, owned here alone.
        high => Ok(unsafe { OwnedFd::from_raw_fd(high) }),
    }
}

/// Runs `open`, which opens descriptors and puts them here. Each forked child closes them: a child that kept the socket would
/// receive connections that no thread of its serves. No other thread forks meanwhile, so the call must be short.
pub fn unseen<T>(open: impl FnOnce() -> T) -> T {
    // A fork that waits already would not call what is registered meanwhile.
    close_in_children();
    fork_gate::unseen(open)
}

fn close_in_children() {
    extern "C" fn in_child() {
        for own in [&LISTENER, &CONNECTION, &WAKE_READ, &WAKE_WRITE] {
            own.close();
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a plain function, which makes only async-signal-safe calls.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A pipe, of which neither end blocks.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [NONE; 2];
    // SAFETY: the call writes to this frame.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fresh descriptors, owned here alone.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use super::*;

    /// At the exit, the thread that ends the process and the helper thread may close the same descriptor.
    #[test]
    fn one_of_two_threads_closes_a_descriptor() {
        const ROUNDS: usize = 200;
        let all = [const { OwnDescriptor::new() }; 64];
        let (arrived, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // Both leave it at nearly the same time.
        let meet = |times: usize| {
            arrived.fetch_add(1, Ordering::AcqRel);
            for spins in 1.. {
                if arrived.load(Ordering::Acquire) >= 2 * times {
                    break;
                }
                if spins % 1_000 == 0 {
                    std::thread::yield_now();
                }
            }
        };
        let takes = |puts: bool| {
            for round in 0..ROUNDS {
                if puts {
                    all.iter().for_each(|own| own.put(pipe().unwrap().0).unwrap());
                }
                meet(2 * round + 1);
                for number in all.iter().filter_map(OwnDescriptor::take) {
                    taken.fetch_add(1, Ordering::Relaxed);
                    // SAFETY: taken here.
                    unsafe { libc::close(number) };
                }
                meet(2 * round + 2);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| takes(false));
            takes(true);
        });
        assert_eq!(taken.into_inner(), ROUNDS * all.len());
    }

    /// A child that kept a connection would keep its client waiting.
    #[test]
    fn child_of_a_fork_has_no_copy_of_what_is_just_opened() {
        let (opened, forked) = (AtomicI32::new(NONE), AtomicBool::new(false));
        // Each end is a file of its own.
        let (client, server) = std::os::unix::net::UnixStream::pair().unwrap();
        let own = identity(server.as_raw_fd());
        let status = std::thread::scope(|scope| {
            let forks = scope.spawn(|| {
                while opened.load(Ordering::Acquire) == NONE {
                    std::thread::yield_now();
                }
                // SAFETY: the child calls what a child may, and ends. Its parent waits for it.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        libc::_exit((0..4096).any(|descriptor| identity(descriptor) == own).into());
                    }
                    forked.store(true, Ordering::Release);
                    let mut status = -1;
                    libc::waitpid(child, &raw mut status, 0);
                    status
                }
            });
            unseen(|| {
                opened.store(server.as_raw_fd(), Ordering::Release);
                for _ in 0..100 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    if forked.load(Ordering::Acquire) {
                        break;
                    }
                }
                CONNECTION.put(server.into()).unwrap();
            });
            forks.join().unwrap()
        });
        assert!(CONNECTION.get().is_some());
        CONNECTION.close();
        drop(client);
        assert_eq!(status, 0, "the child has a copy");
    }

    #[test]
    fn number_that_belongs_to_another_file_is_left_alone() {
        let own = OwnDescriptor::new();
        assert_eq!(own.get(), None);
        let (read, write) = pipe().unwrap();
        own.put(read).unwrap();
        let number = own.get().unwrap();
        assert!(number > 500, "{number}");
        // As a program that closes what it does not know, and opens a file of its own.
        let (other, _write) = pipe().unwrap();
        // SAFETY: the number is only used here.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert_eq!(own.get(), None);
        own.close();
        assert_eq!(
            identity(number),
            identity(other.as_raw_fd()),
            "the other file is still open"
        );
        // SAFETY: the duplicate of above.
        unsafe { libc::close(number) };
        own.put(write).unwrap();
        let number = own.get().unwrap();
        own.close();
        assert!(identity(number).is_none() && own.get().is_none());
    }
}
