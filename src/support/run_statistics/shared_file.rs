//! The file in memory that the processes share: the command creates and reads it, and the processes open it.

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{FileLayout, ProcessFigures, Slot, magic};
use crate::support::process;

/// The file as the command holds it. The file exists while this value exists or a process has it open.
pub struct SharedFile {
    descriptor: OwnedFd,
    shared: &'static FileLayout,
}

impl SharedFile {
    /// Creates an empty file.
    pub fn new() -> Result<SharedFile> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a terminated name.
        let descriptor = unsafe { libc::memfd_create(c"trtalloc run statistics".as_ptr(), flags) };
        if descriptor < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: a fresh descriptor, owned here alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let bytes = size_of::<FileLayout>() as libc::off_t;
        // SAFETY: the descriptor is open.
        process::without_write_signals(|| match unsafe { libc::ftruncate(descriptor.as_raw_fd(), bytes) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        })?;
        // With the seals no process can shrink the file under another that reads it. Without seals a read could fault.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: as above.
        unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        let start = map_whole(&descriptor).ok_or_else(Error::last_os_error)?;
        // SAFETY: mapped writable and aligned by `map_whole`; no other process knows the file yet.
        unsafe { (&raw mut (*start).magic).write(magic()) };
        // SAFETY: the mapping is never removed. It is zeroed except for `magic`, and only atomics are written from now
        // on.
        let shared = unsafe { &*start };
        Ok(SharedFile { descriptor, shared })
    }

    /// The path by which processes open the file.
    pub fn path(&self) -> PathBuf {
        let (process, descriptor) = (std::process::id(), self.descriptor.as_raw_fd());
        format!("/proc/{process}/fd/{descriptor}").into()
    }

    /// The statistics of all processes so far, in the order in which the processes began.
    pub fn figures(&self) -> Vec<ProcessFigures> {
        let taken = usize::try_from(self.shared.taken.load(Relaxed)).unwrap_or(usize::MAX);
        let slots = self.shared.slots.iter().take(taken);
        slots.map(figures).filter(|figures| figures.pid != 0).collect()
    }
}

fn figures(slot: &Slot) -> ProcessFigures {
    ProcessFigures {
        // Read first: if it is set, the other values are the last ones.
        ended: slot.ended.load(Acquire) != 0,
        pid: slot.pid.load(Relaxed),
        version: slot.version.load(Relaxed),
        attached: slot.attached.load(Relaxed),
        left: slot.left.load(Relaxed),
        allocated_peak: slot.allocated_peak.load(Relaxed),
        reserved: slot.reserved.load(Relaxed),
        reserved_peak: slot.reserved_peak.load(Relaxed),
        allocations: slot.allocations.load(Relaxed),
        out_of_memory: slot.out_of_memory.load(Relaxed),
    }
}

/// Maps the file for the rest of the process's life; `None` on failure.
fn map_whole(file: &impl AsRawFd) -> Option<*mut FileLayout> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (none, bytes) = (std::ptr::null_mut::<c_void>(), size_of::<FileLayout>());
    // SAFETY: a fresh mapping, at an address that the kernel chooses.
    let start = unsafe { libc::mmap(none, bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}

/// The path that the environment names, unless the process has gained rights.
pub(in crate::support::run_statistics) fn named() -> Option<PathBuf> {
    let trusted = !process::has_gained_rights();
    std::env::var_os(super::VARIABLE).filter(|_| trusted).map(PathBuf::from)
}

/// Maps the command's file. `None` where it is gone or is another file. Keeps no descriptor open.
pub(in crate::support::run_statistics) fn open(path: &Path) -> Option<&'static FileLayout> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() != size_of::<FileLayout>() as u64 {
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
