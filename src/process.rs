//! What the process is doing, asked before any lock: whether it is exiting, and whether it is the child of a fork.
//!
//! A forked child must not use its parent's CUDA context, and may hold copies of locks that nobody will ever release; so the
//! answer has to come without a lock and without a system call. One page is marked `MADV_WIPEONFORK`: the kernel hands a child
//! a zeroed copy, so a byte that was set before tells parent from child (facts: `getpid` costs 140 ns, this load 0.3 ns).

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use crate::error::{Error, Result};

const RUNNING: u8 = 1;

static PAGE: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
/// What is unusual about the process: [`EXITING`], [`TAGS`], [`TOOL`], and [`RECORDS`] for each recorder that records.
static UNUSUAL: AtomicU32 = AtomicU32::new(0);
const EXITING: u32 = 1;
const TAGS: u32 = 2;
const TOOL: u32 = 4;
const RECORDS: u32 = 8;
static START: Once = Once::new();

static LAST: OnceLock<fn()> = OnceLock::new();

extern "C" fn at_exit() {
    if let Some(last) = LAST.get().filter(|_| !forked()) {
        let _ = std::panic::catch_unwind(last);
    }
    UNUSUAL.fetch_or(EXITING, Ordering::Release);
}

/// Starts watching; called before the first driver is opened. Cheap when repeated.
pub fn watch() {
    START.call_once(|| {
        // SAFETY: a fresh private anonymous mapping of one page, which nobody else knows; it lives as long as the process.
        let page = unsafe {
            libc::mmap(
                null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page != libc::MAP_FAILED {
            // SAFETY: the mapping above; kernels before 4.14 refuse the advice, and then a child is not told apart.
            let _ = unsafe { libc::madvise(page, 4096, libc::MADV_WIPEONFORK) };
            let state = page.cast::<AtomicU8>();
            // SAFETY: the page is mapped, zeroed, writable, aligned, and an AtomicU8 has the layout of a byte.
            unsafe { (*state).store(RUNNING, Ordering::Relaxed) };
            PAGE.store(state, Ordering::Release);
        }
        // SAFETY: `at_exit` is a plain function that only stores to a static.
        let _ = unsafe { libc::atexit(at_exit) };
    });
}

/// Calls `last` when `exit` begins, before anything else here takes note of it. The first call holds.
pub fn at_last(last: fn()) {
    let _ = LAST.set(last);
}

/// Whether this is a forked child of the process that started using the library.
#[inline]
pub fn forked() -> bool {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: once set, the page stays mapped for the life of the process and of its children.
    !page.is_null() && unsafe { (*page).load(Ordering::Relaxed) } != RUNNING
}

/// Whether `exit` has begun: no driver call may be made any more, memory is left to the process's end.
#[inline]
pub fn exiting() -> bool {
    UNUSUAL.load(Ordering::Acquire) & EXITING != 0
}

/// Whether the process runs with rights that the user who started it does not have (setuid, setgid, capabilities: AT_SECURE).
/// Its environment is not to be trusted then.
pub fn has_gained_rights() -> bool {
    // SAFETY: only asks.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// From now on allocations may have tags.
pub fn note_tags() {
    // Looked at first, so that a thread that only changes its tag does not take the line from the others.
    if UNUSUAL.load(Ordering::Relaxed) & TAGS == 0 {
        UNUSUAL.fetch_or(TAGS, Ordering::Release);
    }
}

/// From now on a tool is told of blocks.
pub fn note_tool() {
    UNUSUAL.fetch_or(TOOL, Ordering::Release);
}

/// One more recorder records from now on, or one less.
pub fn note_recorder(on: bool) {
    if on {
        UNUSUAL.fetch_add(RECORDS, Ordering::Release);
    } else {
        UNUSUAL.fetch_sub(RECORDS, Ordering::Release);
    }
}

/// Whether a call has to look closer: the process was forked or is exiting, uses tags, has a tool, or records. One question
/// for all, so that who has none of them pays nothing for them.
#[inline]
pub fn unusual() -> bool {
    UNUSUAL.load(Ordering::Acquire) != 0 || forked()
}

/// Whether nothing else is unusual than that somebody records.
#[inline]
pub fn only_records() -> bool {
    UNUSUAL.load(Ordering::Acquire) & (RECORDS - 1) == 0 && !forked()
}

/// An error where no driver call may be made in this process.
#[inline]
pub fn usable() -> Result<()> {
    if forked() || exiting() { Err(unusable()) } else { Ok(()) }
}

#[cold]
fn unusable() -> Error {
    if forked() {
        Error::Unsupported("this process was forked from the one that owns the memory; a child must exec first".into())
    } else {
        Error::Unsupported("the process is exiting".into())
    }
}
