//! Devices whose memory several processes share, counted in a file.
//!
//! Each process has a slot of the file, with the bytes that it holds of each device, and open-file-description locks on two
//! bytes for as long as it lives. A slot without both counts as zero, since memory of a process that ended is free. The
//! descriptors have a low and a high number: the kernel closes those of a killed process one after the other, and one of
//! these two is closed before any other file that says what the process holds. The file also has the most that was held at any time, for tests: a process that obtains memory adds all slots up.

use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const SLOTS: usize = 128;
const DEVICES: usize = 64;
/// The lowest number of the high descriptor. Mostly a process may have 1024.
const HIGH: libc::c_int = 900;

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
    /// The same file, opened again.
    high: Option<File>,
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
        // The slot is taken by a lock and emptied before the others say that its process lives.
        let take = |slot: &usize| lock(&shared.file, libc::F_OFD_SETLK, SLOTS + slot).is_ok();
        let slot = (0..SLOTS).find(|slot| take(slot) && !shared.lives(*slot));
        let slot = slot.ok_or_else(|| Error::other("more processes than slots"))?;
        for held in &shared.layout().held[slot] {
            held.store(0, SeqCst);
        }
        let again = OpenOptions::new().read(true).write(true).open(path)?;
        // SAFETY: duplicates an open descriptor.
        let number = unsafe { libc::fcntl(again.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH) };
        let high = match number {
            -1 => again,
            // SAFETY: a fresh descriptor, owned here alone.
            number => unsafe { File::from_raw_fd(number) },
        };
        lock(&shared.file, libc::F_OFD_SETLK, slot)?;
        lock(&high, libc::F_OFD_SETLK, 2 * SLOTS + slot)?;
        shared.high = Some(high);
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
            high: None,
            layout: start.cast(),
            slot: None,
        })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped whole until the value is dropped; any bytes are valid for it.
        unsafe { &*self.layout }
    }

    fn lives(&self, slot: usize) -> bool {
        let locked = |byte: usize| lock(&self.file, libc::F_OFD_GETLK, byte).is_ok_and(|other| other);
        Some(slot) == self.slot || locked(slot) && locked(2 * SLOTS + slot)
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

/// Sets a lock on a byte, or tests whether another open file has one.
fn lock(file: &File, command: libc::c_int, byte: usize) -> Result<bool> {
    // SAFETY: plain data.
    let mut lock = unsafe { std::mem::zeroed::<libc::flock>() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    (lock.l_start, lock.l_len) = (byte as libc::off_t, 1);
    // SAFETY: an open file, and a local.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } == 0;
    match done {
        true => Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK),
        false => Err(Error::last_os_error()),
    }
}

impl Drop for SharedDevices {
    fn drop(&mut self) {
        // SAFETY: mapped by `look`, and not used after this.
        unsafe { libc::munmap(self.layout.cast_mut().cast(), size_of::<Layout>()) };
    }
}
