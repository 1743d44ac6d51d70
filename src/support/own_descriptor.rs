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

    /// Moves `descriptor` to a high number and keeps it here.
    pub fn put(&self, descriptor: OwnedFd) -> io::Result<()> {
        close_in_children();
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

    /// Closes the descriptor. May be called where only async-signal-safe functions may.
    pub fn close(&self) {
        let number = self.get();
        self.number.store(NONE, Ordering::Release);
        if let Some(number) = number {
            // SAFETY: this library opened it, and it is used here alone.
            unsafe { libc::close(number) };
        }
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

/// Has the descriptors closed in each forked child from now on: a child that kept the socket would receive connections
/// that no thread of its serves.
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
    use super::*;

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
