//! Devices whose memory several processes share, counted in a file.
//!
//! Each process has a slot of the file, with the bytes that it holds of each device, and an open-file-description lock on
//! one byte for as long as it lives. A slot that nothing locks counts as zero, since memory of a process that ended is
//! free. The file also has the most that was held at any time, for tests: a process that obtains memory adds all slots up.

use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const SLOTS: usize = 128;
const DEVICES: usize = 64;

/// The file. Zeroes are an empty one.
#[repr(C)]
struct Layout {
    /// How often a process began to obtain or free memory. A sum during which it changed may never have been true.
    changes: AtomicU64,
    /// The most that was held of each device.
    most: [AtomicU64; DEVICES],
    held: [[AtomicU64; DEVICES]; SLOTS],
}

/// One process's part of the file.
#[derive(Debug)]
pub struct SharedDevices {
    file: File,
    layout: *const Layout,
    /// None only looks.
    slot: Option<usize>,
}

// SAFETY: the mapping has only atomics, and lives as long as the value.
unsafe impl Send for SharedDevices {}
// SAFETY: as above.
unsafe impl Sync for SharedDevices {}

impl SharedDevices {
    /// Takes a slot of the file, and makes the file if it does not exist.
    pub fn join(path: &Path) -> Result<SharedDevices> {
        let mut shared = Self::look(path)?;
        let free = (0..SLOTS).find(|slot| shared.lock(libc::F_OFD_SETLK, *slot).is_ok_and(|lock| lock.0));
        let slot = free.ok_or_else(|| Error::other("more processes than slots"))?;
        for held in &shared.layout().held[slot] {
            held.store(0, SeqCst);
        }
        shared.slot = Some(slot);
        Ok(shared)
    }

    /// Opens the file to read it.
    pub fn look(path: &Path) -> Result<SharedDevices> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).mode(0o600).open(path)?;
        file.set_len(size_of::<Layout>() as u64)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping, at an address that the kernel chooses.
        let start = unsafe {
            let none = std::ptr::null_mut();
            libc::mmap(none, size_of::<Layout>(), access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(SharedDevices {
            file,
            layout: start.cast(),
            slot: None,
        })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped whole until the value is dropped; any bytes are valid for it.
        unsafe { &*self.layout }
    }

    /// Sets or tests a lock on a slot's byte. Returns whether it was set, and whether another process has one.
    fn lock(&self, command: libc::c_int, slot: usize) -> Result<(bool, bool)> {
        // SAFETY: plain data.
        let mut lock = unsafe { std::mem::zeroed::<libc::flock>() };
        lock.l_type = libc::F_WRLCK as libc::c_short;
        (lock.l_start, lock.l_len) = (slot as libc::off_t, 1);
        // SAFETY: an open file, and a local.
        let done = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &mut lock) } == 0;
        match done {
            true => Ok((true, libc::c_int::from(lock.l_type) != libc::F_UNLCK)),
            false => Err(Error::last_os_error()),
        }
    }

    fn lives(&self, slot: usize) -> bool {
        Some(slot) == self.slot || self.lock(libc::F_OFD_GETLK, slot).is_ok_and(|(_, other)| other)
    }

    /// Bytes of a device that living processes hold together.
    pub fn held(&self, device: usize) -> u64 {
        let layout = self.layout();
        loop {
            let before = layout.changes.load(SeqCst);
            let held = layout.held.iter().map(|slot| slot[device].load(SeqCst)).enumerate();
            let living = held.filter(|(slot, bytes)| *bytes > 0 && self.lives(*slot));
            let sum = living.map(|(_, bytes)| bytes).sum();
            if layout.changes.load(SeqCst) == before {
                return sum;
            }
        }
    }

    /// The most that was held of a device at any time.
    pub fn most(&self, device: usize) -> u64 {
        self.layout().most[device].load(SeqCst)
    }

    /// This process obtains so many bytes of a device that has `total`. False where there are not so many.
    pub fn charge(&self, device: usize, bytes: u64, total: u64) -> bool {
        let Some(slot) = self.slot else { return false };
        let layout = self.layout();
        layout.changes.fetch_add(1, SeqCst);
        layout.held[slot][device].fetch_add(bytes, SeqCst);
        let sum = self.held(device);
        if sum > total {
            self.discharge(device, bytes);
            return false;
        }
        layout.most[device].fetch_max(sum, SeqCst);
        true
    }

    /// This process has freed so many bytes.
    pub fn discharge(&self, device: usize, bytes: u64) {
        if let Some(slot) = self.slot {
            let layout = self.layout();
            layout.changes.fetch_add(1, SeqCst);
            layout.held[slot][device].fetch_sub(bytes, SeqCst);
        }
    }
}

impl Drop for SharedDevices {
    fn drop(&mut self) {
        // SAFETY: mapped by `look`, and not used after this.
        unsafe { libc::munmap(self.layout.cast_mut().cast(), size_of::<Layout>()) };
    }
}
