//! Reads of the process's own memory through the kernel.
//!
//! The interpreter frees thread states when it ends, also those of threads that are in C. A read through the kernel
//! fails where no memory is mapped; a load would end the process. The kernel's work is per page, so whole pages are
//! read, and the pages that the last stack needed are read by one call for the next one.

use std::io::Error;

/// What the kernel is asked for at once. No page of any machine is smaller.
const PAGE: u64 = 4096;
/// The maximum number of pages that are kept: 256 KiB for a thread of Python.
const MAX_PAGES: usize = 64;

/// Why a read failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// No memory is mapped there.
    Unmapped,
    /// The kernel lets this thread read no memory at all, as under a filter of system calls.
    Refused,
}

/// The pages that were read for one stack.
#[derive(Default)]
pub(super) struct Memory {
    thread: libc::pid_t,
    /// The pages' addresses; `contents` has the same order.
    pages: Vec<u64>,
    contents: Vec<[u8; PAGE as usize]>,
    used: Vec<bool>,
    /// How many pages, from the first on, are sorted by address.
    sorted: usize,
    last: usize,
}

impl Memory {
    /// Begins a new stack: forgets what was read, and reads the pages again that the last stack needed.
    pub(super) fn begin(&mut self) -> Result<(), Fault> {
        // Not kept from the last stack: in a child of a fork it would be the parent's. The thread's own number, since the
        // process's fails once the main thread has ended.
        // SAFETY: takes no argument.
        self.thread = unsafe { libc::syscall(libc::SYS_gettid) } as libc::pid_t;
        let mut kept = 0;
        for at in 0..self.pages.len() {
            if self.used[at] {
                self.pages[kept] = self.pages[at];
                kept += 1;
            }
        }
        self.pages.truncate(kept);
        // Most of them are sorted, and they are few.
        for at in 1..kept {
            let mut place = at;
            while place > 0 && self.pages[place - 1] > self.pages[place] {
                self.pages.swap(place - 1, place);
                place -= 1;
            }
        }
        let mut ranges = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; MAX_PAGES];
        let mut count = 0;
        for (at, page) in self.pages.iter().enumerate() {
            if at > 0 && self.pages[at - 1] + PAGE == *page {
                ranges[count - 1].iov_len += PAGE as usize;
            } else {
                ranges[count] = libc::iovec {
                    iov_base: *page as *mut libc::c_void,
                    iov_len: PAGE as usize,
                };
                count += 1;
            }
        }
        let read = match transfer(self.thread, &ranges[..count], &mut self.contents[..kept]) {
            Ok(bytes) => bytes / PAGE as usize,
            Err(Fault::Unmapped) => 0,
            Err(Fault::Refused) => {
                self.pages.clear();
                self.used.clear();
                return Err(Fault::Refused);
            }
        };
        // The kernel stops at the first page that is not mapped. The pages after it are read when they are needed.
        self.pages.truncate(read);
        self.used.clear();
        self.used.resize(read, false);
        self.sorted = read;
        self.last = 0;
        Ok(())
    }

    /// Copies the bytes from `address` on.
    pub(super) fn read(&mut self, mut address: u64, mut to: &mut [u8]) -> Result<(), Fault> {
        while !to.is_empty() {
            let page = self.page(address & !(PAGE - 1))?;
            let from = (address % PAGE) as usize;
            let count = to.len().min(PAGE as usize - from);
            let (now, later) = to.split_at_mut(count);
            now.copy_from_slice(&self.contents[page][from..from + count]);
            to = later;
            address = address.checked_add(count as u64).ok_or(Fault::Unmapped)?;
        }
        Ok(())
    }

    pub(super) fn word(&mut self, address: u64) -> Result<u64, Fault> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// The place of a page in `contents`.
    #[inline]
    fn page(&mut self, page: u64) -> Result<usize, Fault> {
        if self.pages.get(self.last) == Some(&page) {
            self.used[self.last] = true;
            return Ok(self.last);
        }
        let (sorted, others) = self.pages.split_at(self.sorted);
        let found = sorted.binary_search(&page).ok();
        let found = found.or_else(|| Some(self.sorted + others.iter().position(|other| *other == page)?));
        self.last = match found {
            Some(at) => at,
            None => self.fetch(page)?,
        };
        self.used[self.last] = true;
        Ok(self.last)
    }

    #[cold]
    fn fetch(&mut self, page: u64) -> Result<usize, Fault> {
        // A stack with more pages than are kept reads some of them again.
        let at = self.pages.len().min(MAX_PAGES - 1);
        if self.contents.len() <= at {
            self.contents.push([0; PAGE as usize]);
        }
        self.pages.truncate(at);
        self.used.truncate(at);
        self.sorted = self.sorted.min(at);
        let range = libc::iovec {
            iov_base: page as *mut libc::c_void,
            iov_len: PAGE as usize,
        };
        let read = transfer(self.thread, &[range], &mut self.contents[at..=at])?;
        if read != PAGE as usize {
            return Err(Fault::Unmapped);
        }
        self.pages.push(page);
        self.used.push(true);
        Ok(at)
    }
}

/// Copies these ranges one after the other; returns the number of bytes up to the first that is not mapped.
fn transfer(thread: libc::pid_t, from: &[libc::iovec], to: &mut [[u8; PAGE as usize]]) -> Result<usize, Fault> {
    if from.is_empty() {
        return Ok(0);
    }
    let to = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: size_of_val(to),
    };
    // SAFETY: the kernel checks the ranges that it reads, and writes at most the length of `to`.
    let read =
        unsafe { libc::process_vm_readv(thread, &raw const to, 1, from.as_ptr(), from.len() as libc::c_ulong, 0) };
    match usize::try_from(read) {
        Ok(read) => Ok(read),
        Err(_) if Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => Err(Fault::Unmapped),
        Err(_) => Err(Fault::Refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_fails_and_the_rest_is_read() {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 };
        // SAFETY: a fresh mapping of three pages, of which one is unmapped again.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(
                std::ptr::null_mut(),
                3 * page as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            let words = page as usize / 8;
            start.cast::<u64>().add(words - 1).write(11);
            start.cast::<u64>().add(words).write(12);
            start.cast::<u64>().add(2 * words).write(13);
            start as u64
        };
        let mut memory = Memory::default();
        memory.begin().unwrap();
        let mut across = [0; 16];
        memory.read(start + page - 8, &mut across).unwrap();
        assert_eq!((across[0], across[8]), (11, 12));
        assert_eq!(memory.word(start + 2 * page), Ok(13));
        // SAFETY: the pages of the mapping above.
        unsafe { libc::munmap((start + page) as *mut libc::c_void, page as usize) };
        // What was read stays as it was until the next stack begins.
        assert_eq!(memory.word(start + page), Ok(12));
        memory.begin().unwrap();
        assert_eq!(memory.word(start + page - 8), Ok(11));
        assert_eq!(memory.word(start + page), Err(Fault::Unmapped));
        assert_eq!(memory.word(start + 2 * page), Ok(13));
        assert_eq!(memory.word(u64::MAX - 3), Err(Fault::Unmapped));
        // SAFETY: as above.
        unsafe { libc::munmap(start as *mut libc::c_void, 3 * page as usize) };
    }

    #[test]
    fn more_pages_than_are_kept_are_read_again() {
        let words: Vec<u64> = (0..512 * 3 * MAX_PAGES as u64).collect();
        let mut memory = Memory::default();
        for _ in 0..3 {
            memory.begin().unwrap();
            for word in words.iter().step_by(512).chain(words.iter().step_by(512).rev()) {
                assert_eq!(memory.word(std::ptr::from_ref(word) as u64), Ok(*word));
            }
        }
        assert!(memory.contents.len() <= MAX_PAGES);
    }
}
