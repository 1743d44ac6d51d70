//! The file in memory: the command creates and reads it, and the processes open it.

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{Figures, Place, Shared, magic};

/// The command's side: the file, which lives as long as this and every process that has it open.
pub struct File {
    descriptor: OwnedFd,
    shared: &'static Shared,
}

impl File {
    /// Creates an empty file.
    pub fn new() -> Result<File> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a terminated name.
        let descriptor = unsafe { libc::memfd_create(c"trtalloc run statistics".as_ptr(), flags) };
        if descriptor < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: a fresh descriptor, owned here alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: of this process, and open.
        if unsafe { libc::ftruncate(descriptor.as_raw_fd(), size_of::<Shared>() as libc::off_t) } != 0 {
            return Err(Error::last_os_error());
        }
        // No process can take pages away that another reads. Without the seal that is only a promise.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: as above.
        unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        let start = map_whole(&descriptor).ok_or_else(Error::last_os_error)?;
        // SAFETY: mapped writable and aligned by `map_whole`; no other process knows the file yet.
        unsafe { (&raw mut (*start).magic).write(magic()) };
        // SAFETY: mapped for ever, all zeroes but for the line above, and of atomics from now on.
        let shared = unsafe { &*start };
        Ok(File { descriptor, shared })
    }

    /// The path by which processes open the file.
    pub fn path(&self) -> PathBuf {
        let (process, descriptor) = (std::process::id(), self.descriptor.as_raw_fd());
        format!("/proc/{process}/fd/{descriptor}").into()
    }

    /// What every process has written so far, in the order in which they began.
    pub fn figures(&self) -> Vec<Figures> {
        let taken = usize::try_from(self.shared.taken.load(Relaxed)).unwrap_or(usize::MAX);
        let places = self.shared.places.iter().take(taken);
        places.map(figures).filter(|figures| figures.pid != 0).collect()
    }
}

fn figures(place: &Place) -> Figures {
    Figures {
        // Read first: if it is set, the other values are the last ones.
        ended: place.ended.load(Acquire) != 0,
        pid: place.pid.load(Relaxed),
        version: place.version.load(Relaxed),
        attached: place.attached.load(Relaxed),
        left: place.left.load(Relaxed),
        allocated_peak: place.allocated_peak.load(Relaxed),
        reserved: place.reserved.load(Relaxed),
        reserved_peak: place.reserved_peak.load(Relaxed),
        allocations: place.allocations.load(Relaxed),
        out_of_memory: place.out_of_memory.load(Relaxed),
    }
}

/// Maps the file for the rest of the process's life; `None` on failure.
fn map_whole(file: &impl AsRawFd) -> Option<*mut Shared> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (none, bytes) = (std::ptr::null_mut::<c_void>(), size_of::<Shared>());
    // SAFETY: a fresh mapping, at an address that the kernel chooses.
    let start = unsafe { libc::mmap(none, bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}

/// The path that the environment names, unless the process has gained rights.
pub(in crate::support::run_statistics) fn named() -> Option<PathBuf> {
    let trusted = !crate::support::process::has_gained_rights();
    std::env::var_os(super::VARIABLE).filter(|_| trusted).map(PathBuf::from)
}

/// Maps the command's file. `None` where it is gone or is another file. Keeps no descriptor open.
pub(in crate::support::run_statistics) fn open(path: &Path) -> Option<&'static Shared> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() != size_of::<Shared>() as u64 {
        return None;
    }
    // SAFETY: queries an open file. A file that the command did not create has no seals and could shrink.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return None;
    }
    let start = map_whole(&file)?;
    // SAFETY: mapped whole and for ever; any bytes are valid for it.
    let shared = unsafe { &*start };
    (shared.magic == magic()).then_some(shared)
}
