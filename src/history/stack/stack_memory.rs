//! Safe reads of this thread's stack.

use std::ops::Range;

/// The address range of this thread's stack; empty where it is not known.
pub(in crate::history::stack) fn bounds() -> Range<u64> {
    // SAFETY: a zeroed attribute object may be filled in and destroyed; the calls take this thread and local variables.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return 0..0;
        }
        let (mut start, mut size) = (std::ptr::null_mut(), 0);
        let known = libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut size) == 0;
        libc::pthread_attr_destroy(&raw mut attributes);
        let start = start as u64;
        if known { start..start + size as u64 } else { 0..0 }
    }
}

/// Reads the word at `address`. Words in `known`, the used part of this thread's stack, are read directly. Other
/// words, as on the stack of a signal handler or of a coroutine, are read through the kernel, which fails where no
/// memory is mapped.
#[inline]
pub(in crate::history::stack) fn read(known: &Range<u64>, address: u64) -> Result<u64, ()> {
    if address >= known.start && address < known.end.wrapping_sub(7) && address.is_multiple_of(8) {
        // SAFETY: the part of this thread's own stack that is in use, aligned.
        return Ok(unsafe { (address as *const u64).read_volatile() });
    }
    read_through_kernel(address)
}

#[cold]
fn read_through_kernel(address: u64) -> Result<u64, ()> {
    let mut word = 0u64;
    let to = libc::iovec {
        iov_base: (&raw mut word).cast(),
        iov_len: 8,
    };
    let from = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: 8,
    };
    // SAFETY: the kernel checks the other address, and writes at most 8 bytes to a local variable.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    if read == 8 { Ok(word) } else { Err(()) }
}
