//! The state of the process, readable without a lock: whether it is exiting, and whether it is the child of a fork.
//!
//! A forked child must not use its parent's CUDA context, and may have copies of locks that no thread will ever
//! release. So the state must be readable without a lock and without a system call. One page is marked
//! `MADV_WIPEONFORK`: the kernel gives a child a zeroed copy, so a byte that the parent set distinguishes the two
//! (measured: `getpid` takes 140 ns, this load 0.3 ns).

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use crate::support::error::{Error, Result};

const RUNNING: u8 = 1;

static PAGE: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
/// Reasons for the instrumented path: [`EXITING`], [`TAGS`], [`TOOL`], and [`RECORDS`] times the number of active
/// recorders.
static INSTRUMENTED: AtomicU32 = AtomicU32::new(0);
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
    INSTRUMENTED.fetch_or(EXITING, Ordering::Release);
}

/// Begins to watch for forks and for the exit; called before the first driver is opened. Repeated calls are cheap.
pub fn watch() {
    START.call_once(|| {
        // SAFETY: a fresh private anonymous mapping of one page, which lives as long as the process.
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
            // SAFETY: the mapping above. Kernels before 4.14 refuse the advice; then a child is not recognised.
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

/// Registers a function that is called when `exit` begins, before the process counts as exiting. The first
/// registration counts.
pub fn at_last(last: fn()) {
    let _ = LAST.set(last);
}

/// Whether this process is a forked child of the one that began to use the library.
#[inline]
pub fn forked() -> bool {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: once set, the page stays mapped for the life of the process and of its children.
    !page.is_null() && unsafe { (*page).load(Ordering::Relaxed) } != RUNNING
}

/// Runs `start`, which starts a thread, with all signals blocked. The thread inherits that.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: plain data, filled by the calls below.
    let (mut all, mut before) = unsafe { std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>() };
    // SAFETY: both are sets of this frame.
    let masked = unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0
    };
    let started = start();
    if masked {
        // SAFETY: the mask from before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    started
}

/// Runs `write`, whose failure sends this thread no signal: SIGPIPE of a pipe that no process reads, or SIGXFSZ of a file
/// beyond the process's limit (RLIMIT_FSIZE). A program must not end by what this library writes.
pub fn without_write_signals<T, E>(write: impl FnOnce() -> std::result::Result<T, E>) -> std::result::Result<T, E> {
    struct Blocked {
        before: libc::sigset_t,
        /// Those that a failure may have left waiting.
        caused: libc::sigset_t,
        failed: bool,
    }
    impl Drop for Blocked {
        fn drop(&mut self) {
            // SAFETY: sets of this value, and a time of zero.
            unsafe {
                while self.failed && libc::sigtimedwait(&self.caused, null_mut(), &std::mem::zeroed()) > 0 {}
                libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, null_mut());
            }
        }
    }
    const SIGNALS: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];
    // SAFETY: plain data, filled by the calls below.
    let (mut set, mut blocked) = unsafe { std::mem::zeroed::<(libc::sigset_t, Blocked)>() };
    // SAFETY: sets of this frame.
    let is_blocked = unsafe {
        libc::sigemptyset(&mut blocked.caused);
        libc::sigemptyset(&mut set);
        SIGNALS.iter().for_each(|signal| _ = libc::sigaddset(&mut set, *signal));
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut blocked.before) == 0
    };
    if !is_blocked {
        std::mem::forget(blocked);
        return write();
    }
    for signal in SIGNALS {
        // SAFETY: sets of this frame. A signal that the program has blocked itself may wait for the program.
        unsafe {
            if libc::sigismember(&blocked.before, signal) == 0 {
                libc::sigaddset(&mut blocked.caused, signal);
            }
        }
    }
    let written = write();
    blocked.failed = written.is_err();
    written
}

/// Whether `exit` has begun. No driver call may be made any more; the process's end frees the memory.
#[inline]
pub fn exiting() -> bool {
    INSTRUMENTED.load(Ordering::Acquire) & EXITING != 0
}

/// Whether the process runs with rights that the user who started it does not have (setuid, setgid, capabilities:
/// AT_SECURE). Then its environment cannot be trusted.
pub fn has_gained_rights() -> bool {
    // SAFETY: only reads a value.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether a filter restricts the system calls of this thread or of the main one (seccomp).
pub fn is_filtered() -> bool {
    let is_filtered = |path| {
        // It has the thread's name, which may be cut in the middle of a character.
        let status = std::fs::read(path).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        mode.is_some_and(|mode| mode.trim() != "0")
    };
    is_filtered("/proc/thread-self/status") || is_filtered("/proc/self/status")
}

/// Records that allocations may have tags from now on.
pub fn note_tags() {
    // Checked first, so that a thread that only changes its tag does not take the cache line from others.
    if INSTRUMENTED.load(Ordering::Relaxed) & TAGS == 0 {
        INSTRUMENTED.fetch_or(TAGS, Ordering::Release);
    }
}

/// Records that an NVTX tool is notified of blocks from now on.
pub fn note_tool() {
    INSTRUMENTED.fetch_or(TOOL, Ordering::Release);
}

/// Records that one more recorder is active, or one less.
pub fn note_recorder(on: bool) {
    if on {
        INSTRUMENTED.fetch_add(RECORDS, Ordering::Release);
    } else {
        INSTRUMENTED.fetch_sub(RECORDS, Ordering::Release);
    }
}

/// Whether a call must take the instrumented path: the process was forked, is exiting, uses tags, has an NVTX tool,
/// or records. One check covers all, so that processes without them pay nothing else.
#[inline]
pub fn is_instrumented() -> bool {
    INSTRUMENTED.load(Ordering::Acquire) != 0 || forked()
}

/// As [`is_instrumented`], for calls that need no tag of the thread: frees, resizes, and requests that have a tag.
#[inline]
pub fn is_observed() -> bool {
    INSTRUMENTED.load(Ordering::Acquire) & !TAGS != 0 || forked()
}

/// Whether tags and recorders are the only reasons for the instrumented path.
#[inline]
pub fn is_ordinary() -> bool {
    INSTRUMENTED.load(Ordering::Acquire) & (EXITING | TOOL) == 0 && !forked()
}

/// An error where no driver call may be made in this process.
#[inline]
pub fn usable() -> Result<()> {
    if forked() || exiting() { Err(unusable()) } else { Ok(()) }
}

/// An error in a forked child.
#[inline]
pub fn no_child() -> Result<()> {
    if forked() { Err(unusable()) } else { Ok(()) }
}

#[cold]
fn unusable() -> Error {
    if forked() {
        Error::Unsupported("this process was forked from the one that owns the memory; a child must exec first".into())
    } else {
        Error::Unsupported("the process is exiting".into())
    }
}
