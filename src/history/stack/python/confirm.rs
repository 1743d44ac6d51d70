//! Compares a layout with what the interpreter's own functions say, on a thread that holds its lock.
//!
//! A thread that takes a stack with the lock does that, or the one that begins to record. Where neither holds the lock,
//! the interpreter's main thread is asked to do it between two of its instructions. Frames that are read before that
//! are kept, and count once the layout is confirmed.

use std::ffi::{c_int, c_void};
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::{Api, Missing, PythonFrame, Reader, Running, call, codes, held, named, read};
use crate::history::stack::{MAX_FRAMES, with_thread};
use crate::support::process;

/// What the comparison said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// There was none yet.
    Open,
    Same,
    Different,
}

const OPEN: u8 = 0;
const SAME: u8 = 1;
const DIFFERENT: u8 = 2;

static VERDICT: AtomicU8 = AtomicU8::new(OPEN);
/// How often the two differed. An interpreter that is in the middle of making a frame can differ once.
static DIFFERENCES: AtomicU8 = AtomicU8::new(0);
const MAX_DIFFERENCES: u8 = 3;
/// Whether the main thread was asked.
static ASKED: AtomicBool = AtomicBool::new(false);

#[inline]
pub(super) fn verdict() -> Verdict {
    match VERDICT.load(Ordering::Acquire) {
        SAME => Verdict::Same,
        DIFFERENT => Verdict::Different,
        _ => Verdict::Open,
    }
}

/// Compares now where this thread holds the lock, and later where it does not.
pub(super) fn begin(api: &Api) {
    if verdict() != Verdict::Open || !api.is_running() {
        return;
    }
    if held().is_some() {
        compare_here();
    }
    ask(api);
}

/// Compares where no comparison has decided yet. This thread holds the lock.
#[inline]
pub(super) fn once(api: &Api, reader: &mut Reader) {
    if verdict() == Verdict::Open {
        compare(api, reader);
    }
}

/// Asks the main thread to compare.
#[cold]
pub(super) fn ask(api: &Api) {
    if verdict() != Verdict::Open || api.layout.is_err() || ASKED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: may be called on any thread, also without the lock, while the interpreter is not ending. This library is
    // never unloaded.
    if unsafe { (api.call_later)(when_called, std::ptr::null_mut()) } != 0 {
        ASKED.store(false, Ordering::Relaxed);
    }
}

/// What the main thread calls, with the lock.
unsafe extern "C" fn when_called(_: *mut c_void) -> c_int {
    // A child of a fork takes no stacks.
    if process::forked() {
        return 0;
    }
    compare_here();
    if verdict() == Verdict::Open {
        // It runs no frame now, or takes a stack.
        ASKED.store(false, Ordering::Relaxed);
    }
    0
}

fn compare_here() {
    let _ = with_thread(|thread| {
        if let Some(api) = held() {
            compare(api, thread.reader.get_or_insert_default());
        }
    });
}

/// A frame as both ways must find it.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    code: Option<usize>,
    frame: PythonFrame,
}

#[cold]
fn compare(api: &Api, reader: &mut Reader) {
    let Some(state) = NonZero::new(api.state() as u64) else {
        return;
    };
    let mut frames = vec![Running::NONE; MAX_FRAMES];
    // Read first: the interpreter's functions make objects for frames, and a new one may begin a garbage collection.
    let read = read(api, state, reader, &mut frames).map(|count| {
        let found = frames[..count].iter().map(|running| Found {
            code: codes::address(running.code),
            frame: codes::named(*running),
        });
        found.collect::<Vec<Found>>()
    });
    let count = call(api, reader, &mut frames);
    let called: Vec<Found> = frames[..count]
        .iter()
        .map(|running| {
            let code = codes::held_address(running.code);
            Found {
                code,
                frame: code.map_or_else(PythonFrame::default, |code| named(api, code as super::Object, *running)),
            }
        })
        .collect();
    match read {
        // It cannot be read here, whatever the layout.
        Err(missing) if missing != Missing::Unreadable => {}
        // Nothing was compared.
        Ok(_) if called.is_empty() => {}
        Ok(read) if read == called => VERDICT.store(SAME, Ordering::Release),
        _ => {
            if DIFFERENCES.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_DIFFERENCES {
                VERDICT.store(DIFFERENT, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The interpreter may call it in a child of a fork. The child could wait for ever for a lock that a thread of its parent
    /// had.
    #[test]
    fn child_of_a_fork_compares_nothing() {
        process::watch();
        ASKED.store(true, Ordering::Relaxed);
        // SAFETY: the child takes no lock, allocates nothing, and ends. Its parent waits for it.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                when_called(std::ptr::null_mut());
                // An emulator may not tell the child that it is one.
                libc::_exit(i32::from(process::forked() && !ASKED.load(Ordering::Relaxed)));
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0);
            status
        };
        assert_eq!(status, 0, "the child went on to compare");
        // No frame runs here, so the comparison may be asked for again.
        // SAFETY: there is no interpreter in this process.
        unsafe { when_called(std::ptr::null_mut()) };
        assert!(!ASKED.load(Ordering::Relaxed));
    }
}
