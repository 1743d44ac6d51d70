//! The host's side of device memory: one sparse file in memory, and the mappings of it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// The host's page size: 4 KiB, or 16 or 64 KiB with some kernels for aarch64. No device mapping is finer.
pub(super) fn page() -> u64 {
    static PAGE: OnceLock<u64> = OnceLock::new();
    // SAFETY: asks for a number.
    *PAGE.get_or_init(|| u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

/// All physical memory of a machine. Each range of the file is handed out once and never again. The file exists while
/// one of its ranges is in use, so machines without memory hold no descriptor.
#[derive(Debug)]
pub(super) struct BackingFile {
    file: Option<OwnedFd>,
    page: u64,
    next: u64,
    /// Bytes of the ranges in use.
    out: u64,
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn mmap(address: u64, size: u64, protection: i32, flags: i32, file: i32, offset: u64) -> io::Result<u64> {
    // SAFETY: with MAP_FIXED the caller passes a range inside its own mapping (see the callers). Without it, and with
    // MAP_FIXED_NOREPLACE, no mapping is replaced. No Rust object lies there.
    let at = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            size as usize,
            protection,
            flags,
            file,
            offset as libc::off_t,
        )
    };
    if at == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(at as u64)
    }
}

impl BackingFile {
    pub(super) fn new() -> BackingFile {
        BackingFile {
            file: None,
            page: page(),
            next: 0,
            out: 0,
        }
    }

    /// A new range of the file. It costs nothing until it is written. An error where the host cannot provide it.
    pub(super) fn take(&mut self, size: u64) -> io::Result<u64> {
        if self.file.is_none() {
            self.file = Some(file()?);
        }
        self.out += size.next_multiple_of(self.page);
        Ok(self.skip(size))
    }

    /// Numbers for bytes whose memory is elsewhere, so that each physical byte of a machine has its own number.
    pub(super) fn skip(&mut self, size: u64) -> u64 {
        let at = self.next;
        self.next += size.next_multiple_of(self.page);
        at
    }

    /// Returns the pages of a range, which is not mapped any more, to the host.
    pub(super) fn punch(&mut self, offset: u64, size: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let size = size.next_multiple_of(self.page);
        self.out -= size;
        if self.out == 0 {
            self.file = None;
        } else if let Some(file) = &self.file {
            // SAFETY: a call on a descriptor that we own; nothing maps the range any more.
            unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, size as libc::off_t) };
        }
    }

    /// Maps a range of the file at `address`, which lies in a reservation, without access.
    pub(super) fn map(&self, address: u64, size: u64, offset: u64) -> io::Result<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let file = self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        mmap(address, size, libc::PROT_NONE, flags, file, offset).map(drop)
    }
}

/// A file in memory that is larger than the memory of any machine.
fn file() -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string, and the call touches no other memory.
    let file = unsafe { libc::memfd_create(c"simulated-device".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is fresh, and no other code has it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    // SAFETY: a call on a descriptor that we own.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), 1 << 62) })?;
    Ok(file)
}

/// Address space without memory.
pub(super) fn reserve(size: u64, alignment: u64) -> io::Result<u64> {
    let size = size.next_multiple_of(page());
    let alignment = alignment.max(page());
    let whole = size
        .checked_add(alignment)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let start = mmap(0, whole, libc::PROT_NONE, flags, -1, 0)?;
    let at = start.next_multiple_of(alignment);
    if at > start {
        unreserve(start, at - start);
    }
    if start + whole > at + size {
        unreserve(at + size, start + whole - at - size);
    }
    Ok(at)
}

/// Address space at exactly that address. An error where the address is taken.
pub(super) fn reserve_at(address: u64, size: u64) -> io::Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let at = mmap(address, size, libc::PROT_NONE, flags, -1, 0)?;
    if at == address {
        return Ok(at);
    }
    // Linux before 4.17 does not know the flag and takes the address as a hint.
    unreserve(at, size);
    Err(io::Error::from_raw_os_error(libc::EEXIST))
}

/// Returns address space to the host.
pub(super) fn unreserve(address: u64, size: u64) {
    // SAFETY: callers pass a range of `reserve` that is not used any more.
    unsafe { libc::munmap(address as *mut libc::c_void, size.next_multiple_of(page()) as usize) };
}

/// Makes a mapped range a bare reservation again.
pub(super) fn unmap(address: u64, size: u64) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    mmap(address, size, libc::PROT_NONE, flags, -1, 0).map(drop)
}

/// Allows or forbids the host to access a mapped range.
pub(super) fn protect(address: u64, size: u64, allow: bool) -> io::Result<()> {
    let protection = if allow {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_NONE
    };
    // SAFETY: callers pass a range that they have mapped.
    check(unsafe { libc::mprotect(address as *mut libc::c_void, size as usize, protection) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_file_begin_at_pages_of_the_host() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            let mut file = BackingFile {
                page,
                ..BackingFile::new()
            };
            let (first, second) = (file.skip(512), file.take(page + 1).unwrap());
            let third = file.take(2 << 20).unwrap();
            // mmap takes no other offset.
            assert_eq!((first, second, third), (0, page, 3 * page), "{page}");
            file.punch(second, page + 1);
            file.punch(third, 2 << 20);
            assert_eq!(file.out, 0, "{page}");
        }
    }
}
