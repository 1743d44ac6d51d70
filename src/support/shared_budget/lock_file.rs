//! The file of a budget, and its open-file-description locks.
//!
//! The kernel keeps such a lock until the last descriptor of the open file is closed. A forked child has a copy of every
//! descriptor, so it closes its copy at once (`pthread_atfork`); a program that is started closes it too (close-on-exec).
//! Every call first looks whether the descriptor still leads to the file: a program may close descriptors that it did not
//! open.

use std::ffi::OsStr;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::support::private_folder::{Place, effective_user, status_of, terminated};
use crate::support::{fork_gate, process};
use crate::sync::broken;

/// The lowest number of a descriptor. Programs that close or replace descriptors by number mostly mean low ones.
const LOWEST: RawFd = 512;

/// File systems whose locks other machines share or do not see, by the number in `statfs`: their locks are slow, get lost
/// with a connection, or hold on one machine only.
const NETWORK: [(u32, &str); 13] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
    (0x0bd0_0bd3, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
];

/// The descriptors that a forked child closes. A slot that is not in use has only zeros, so the table is not in the library's file.
struct Slot {
    /// The descriptor's number plus 1, or 0.
    mark: AtomicI32,
    device: AtomicU64,
    file: AtomicU64,
    /// How often it was taken.
    taken: AtomicU64,
}

static SLOTS: [Slot; 256] = [const {
    Slot {
        mark: AtomicI32::new(0),
        device: AtomicU64::new(0),
        file: AtomicU64::new(0),
        taken: AtomicU64::new(0),
    }
}; 256];

fn mark(descriptor: RawFd) -> i32 {
    descriptor + 1
}

/// An open file. Its locks end with it.
pub(super) struct LockFile {
    descriptor: RawFd,
    slot: &'static Slot,
    /// The slot's count when this file took it.
    taken: u64,
    identity: (u64, u64),
    path: PathBuf,
}

impl LockFile {
    /// Opens the file `name` in `directory`, or in the user's private directory, and makes it if it does not exist. The
    /// error is the reason in words.
    pub(super) fn open(directory: Option<&Path>, name: &str) -> Result<LockFile, String> {
        static AT_FORK: Once = Once::new();
        // SAFETY: a function that may be called in any child.
        AT_FORK.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
        fork_gate::unseen(|| Self::open_unseen(directory, name))
    }

    fn open_unseen(directory: Option<&Path>, name: &str) -> Result<LockFile, String> {
        let (directory, path) = match directory {
            Some(path) => {
                let open = std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
                (OwnedFd::from(open), path.join(name))
            }
            None => {
                let (folder, path) = Place::create_first()?;
                (folder.into(), path.join(name))
            }
        };
        let reason = |error: Error| format!("{}: {error}", path.display());
        if let Some(kind) = network_of(&directory) {
            return Err(format!("{} is on {kind}, a network file system", path.display()));
        }
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let text = terminated(OsStr::new(name)).map_err(reason)?;
        // SAFETY: a terminated name and an open directory.
        let low = unsafe { libc::openat(directory.as_raw_fd(), text.as_ptr(), flags, 0o600) };
        if low < 0 {
            return Err(reason(Error::last_os_error()));
        }
        // SAFETY: a fresh descriptor, owned here alone.
        let low = unsafe { OwnedFd::from_raw_fd(low) };
        let status = status_of(low.as_raw_fd()).map_err(reason)?;
        if status.st_mode & libc::S_IFMT != libc::S_IFREG || status.st_uid != effective_user() {
            return Err(format!("{} is no file of this user", path.display()));
        }
        let descriptor = high(low).map_err(reason)?;
        let identity = (status.st_dev, status.st_ino);
        // A file that has this number in its slot lost its descriptor, and must not take this one for its own.
        let lost = |slot: &&Slot| slot.mark.load(Ordering::Acquire) == mark(descriptor);
        if let Some(slot) = SLOTS.iter().find(lost) {
            slot.mark.store(0, Ordering::Release);
        }
        let Some((slot, taken)) = SLOTS.iter().find_map(|slot| slot.take(descriptor, identity)) else {
            // SAFETY: this function's own descriptor.
            unsafe { libc::close(descriptor) };
            return Err(format!("{}: more than {} budgets at once", path.display(), SLOTS.len()));
        };
        Ok(LockFile {
            descriptor,
            slot,
            taken,
            identity,
            path,
        })
    }

    /// Where the file is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the descriptor still leads to the file that other processes open by this path. A file that was removed has
    /// another one in its place once a process asks for it.
    pub(super) fn is_there(&self) -> bool {
        // SAFETY: plain data, which the call fills.
        let mut status = unsafe { std::mem::zeroed::<libc::stat>() };
        let Ok(path) = terminated(self.path.as_os_str()) else {
            return false;
        };
        // SAFETY: a terminated path, and a local that the call fills.
        let found = unsafe { libc::lstat(path.as_ptr(), &mut status) } == 0;
        found && (status.st_dev, status.st_ino) == self.identity && self.is_open()
    }

    /// Whether the descriptor still leads to the file that was opened.
    pub(super) fn is_open(&self) -> bool {
        if !self.has_slot() {
            return false;
        }
        let status = status_of(self.descriptor);
        status.is_ok_and(|status| (status.st_dev, status.st_ino) == self.identity)
    }

    /// Whether the slot is this file's. It is not where a file that was opened later got the same descriptor.
    fn has_slot(&self) -> bool {
        self.slot.taken.load(Ordering::Acquire) == self.taken
            && self.slot.mark.load(Ordering::Acquire) == mark(self.descriptor)
    }

    /// Locks bytes for this process alone. False where another open file has a lock on one of them.
    pub(super) fn lock(&self, start: u64, bytes: u64) -> Result<bool, Error> {
        self.set(libc::F_WRLCK, start, bytes)
    }

    /// Locks bytes together with others that do so.
    pub(super) fn lock_shared(&self, start: u64, bytes: u64) -> Result<bool, Error> {
        self.set(libc::F_RDLCK, start, bytes)
    }

    /// Gives up this file's locks on these bytes.
    pub(super) fn unlock(&self, start: u64, bytes: u64) -> Result<bool, Error> {
        self.set(libc::F_UNLCK, start, bytes)
    }

    fn set(&self, kind: libc::c_int, start: u64, bytes: u64) -> Result<bool, Error> {
        if kind != libc::F_UNLCK && broken("the kernel has locks left") {
            return Err(Error::from_raw_os_error(libc::ENOLCK));
        }
        // The kernel needs memory to unlock the middle of what is locked.
        if kind == libc::F_UNLCK && broken("the kernel unlocks a part") {
            return Err(Error::from_raw_os_error(libc::ENOLCK));
        }
        let mut lock = flock(kind, start, bytes);
        // SAFETY: the structure is a local. The descriptor is this file's or an error.
        match unsafe { libc::fcntl(self.descriptor, libc::F_OFD_SETLK, &mut lock) } {
            0 => Ok(true),
            _ => match Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
                error => Err(error),
            },
        }
    }

    /// A lock of another open file on one of these bytes: where it begins and ends. There may be more of them.
    pub(super) fn conflict(&self, start: u64, bytes: u64) -> Result<Option<(u64, u64)>, Error> {
        let mut lock = flock(libc::F_WRLCK, start, bytes);
        // SAFETY: as in `set`.
        if unsafe { libc::fcntl(self.descriptor, libc::F_OFD_GETLK, &mut lock) } != 0 {
            return Err(Error::last_os_error());
        }
        let (from, length) = (lock.l_start as u64, lock.l_len as u64);
        // A length of 0 goes on to the end of all files.
        let end = if length == 0 { u64::MAX } else { from + length };
        Ok((libc::c_int::from(lock.l_type) != libc::F_UNLCK).then_some((from, end)))
    }

    /// For tests: closes the descriptor as a program may.
    #[cfg(test)]
    pub(super) fn lose(&self) {
        // SAFETY: this file's own descriptor; later calls find it closed.
        unsafe { libc::close(self.descriptor) };
    }

    /// For tests: the descriptor.
    #[cfg(test)]
    pub(super) fn descriptor(&self) -> RawFd {
        self.descriptor
    }
}

impl std::fmt::Debug for LockFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} as {}", self.path.display(), self.descriptor)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if !self.has_slot() || process::forked() {
            return;
        }
        let open = self.is_open();
        self.slot.mark.store(0, Ordering::Release);
        if open {
            // SAFETY: the descriptor still leads to this file, which this value opened.
            unsafe { libc::close(self.descriptor) };
        }
    }
}

fn flock(kind: libc::c_int, start: u64, bytes: u64) -> libc::flock {
    // SAFETY: plain data.
    let mut lock = unsafe { std::mem::zeroed::<libc::flock>() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (start as libc::off_t, bytes as libc::off_t);
    lock
}

/// The descriptor's copy with a high number, if there is one.
fn high(low: OwnedFd) -> Result<RawFd, Error> {
    use std::os::fd::IntoRawFd;
    // SAFETY: duplicates an open descriptor.
    match unsafe { libc::fcntl(low.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LOWEST) } {
        // The process may open fewer descriptors.
        -1 => Ok(low.into_raw_fd()),
        descriptor => Ok(descriptor),
    }
}

/// The network file system that a directory lies on.
fn network_of(directory: &OwnedFd) -> Option<&'static str> {
    // SAFETY: plain data, which the call fills.
    let mut status = unsafe { std::mem::zeroed::<libc::statfs>() };
    // SAFETY: an open directory, and a local.
    if unsafe { libc::fstatfs(directory.as_raw_fd(), &mut status) } != 0 {
        return None;
    }
    let kind = status.f_type as u32;
    NETWORK
        .iter()
        .find(|(number, _)| *number == kind)
        .map(|(_, name)| *name)
}

impl Slot {
    /// Takes the slot, if it is not in use. Only one thread at a time opens files.
    fn take(&'static self, descriptor: RawFd, (device, file): (u64, u64)) -> Option<(&'static Slot, u64)> {
        if self.mark.load(Ordering::Acquire) != 0 {
            return None;
        }
        let taken = self.taken.fetch_add(1, Ordering::AcqRel) + 1;
        self.device.store(device, Ordering::Relaxed);
        self.file.store(file, Ordering::Relaxed);
        self.mark.store(mark(descriptor), Ordering::Release);
        Some((self, taken))
    }
}

/// Closes the child's copies, so that the locks end with the parent. It makes no call that a child may not make.
extern "C" fn in_child() {
    for slot in &SLOTS {
        let descriptor = slot.mark.swap(0, Ordering::Acquire) - 1;
        let file = (slot.device.load(Ordering::Relaxed), slot.file.load(Ordering::Relaxed));
        let status = if descriptor < 0 {
            None
        } else {
            status_of(descriptor).ok()
        };
        if status.is_some_and(|status| (status.st_dev, status.st_ino) == file) {
            // SAFETY: the descriptor leads to the file of this slot, which no value of the child uses.
            unsafe { libc::close(descriptor) };
        }
    }
}
