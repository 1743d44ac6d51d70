//! Stacks of callers as numbers, taken in well under a microsecond.
//!
//! A stack is taken as return addresses and looked up by its hash. Only a new stack costs more: the list of loaded
//! libraries is updated, each address becomes an offset in a library that is identified by its build id, and the
//! stack gets a number, the same for equal frames. The tables have limits, and say so where they are full. Names are looked up only when a snapshot is written. An error on the way leaves a shorter
//! stack, or none. A stack that lacks its frames of Python says so by a frame of its own ([`Missing`]).

use std::cell::{Cell, RefCell};

use crate::support::config::history::StackKind;
use crate::support::process;

mod frame;
mod intern;
mod modules;
mod native;
mod python;
mod stack_memory;

pub use frame::{Frame, Missing};
pub use intern::lost;
pub(in crate::history) use modules::{Module, module};
pub(in crate::history) use python::frame as python_frame;

use python::Taken;

/// The maximum number of frames of one kind in a stack; outer frames beyond it are left out.
pub const MAX_FRAMES: usize = 128;

thread_local! {
    static CURRENT: Cell<ThisThread> = const { Cell::new(ThisThread { stack: 0, number: 0 }) };
    static UNWINDER: RefCell<Option<Box<native::Thread>>> = const { RefCell::new(None) };
}

/// What an event has of the thread that makes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThisThread {
    /// The current call's stack; 0 where there is none.
    pub stack: u32,
    /// The kernel's number of the thread; 0 where it is unknown.
    pub number: u32,
}

impl ThisThread {
    /// This thread, as it is now.
    #[inline]
    pub fn here() -> ThisThread {
        match CURRENT.try_with(Cell::get) {
            Ok(ThisThread { number: 0, .. }) => ThisThread::first(),
            Ok(here) => here,
            Err(_) => ThisThread { stack: 0, number: 0 },
        }
    }

    /// Looks the thread's number up, which is a system call, and keeps it.
    #[cold]
    #[inline(never)]
    fn first() -> ThisThread {
        // SAFETY: the call has no arguments and no effect.
        let number = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        let keep = |current: &Cell<ThisThread>| {
            let here = ThisThread {
                number,
                ..current.get()
            };
            current.set(here);
            here
        };
        CURRENT.try_with(keep).unwrap_or(ThisThread { stack: 0, number })
    }
}

/// Sets the stack of the call that runs on this thread, from [`Current::enter`] until this is dropped.
#[must_use]
pub struct Current {
    before: u32,
}

impl Current {
    /// Takes a stack for this thread's current call.
    #[inline(never)]
    pub fn enter(stacks: StackKind) -> Current {
        let stack = if stacks == StackKind::None { 0 } else { capture(stacks) };
        Current {
            before: exchange(stack),
        }
    }
}

/// Sets this thread's stack, and returns the one before.
fn exchange(stack: u32) -> u32 {
    let exchange = |current: &Cell<ThisThread>| {
        let before = current.get();
        current.set(ThisThread { stack, ..before });
        before.stack
    };
    CURRENT.try_with(exchange).unwrap_or(0)
}

impl Drop for Current {
    fn drop(&mut self) {
        exchange(self.before);
    }
}

/// Prepares for stacks of that kind, so that the first one costs no more than the next.
pub fn prepare(stacks: StackKind) {
    if matches!(stacks, StackKind::Native | StackKind::All) {
        modules::refresh();
    }
    if matches!(stacks, StackKind::Python | StackKind::All) {
        python::find();
    }
}

/// The number of this thread's stack; 0 where there is none.
#[inline(never)]
pub fn capture(stacks: StackKind) -> u32 {
    // A child of a fork is refused memory, and may have copies of locks that no thread will release.
    if process::forked() {
        return 0;
    }
    let registers = native::Registers::here();
    with_thread(|thread| take(thread, stacks, registers)).unwrap_or(0)
}

/// Calls `work` with what this thread needs to take stacks; `None` where it is at work already. A signal handler runs
/// while this thread takes a stack: events in the handler have no stack.
fn with_thread<T>(work: impl FnOnce(&mut native::Thread) -> T) -> Option<T> {
    UNWINDER
        .try_with(|unwinder| {
            let mut unwinder = unwinder.try_borrow_mut().ok()?;
            Some(work(unwinder.get_or_insert_with(native::Thread::new)))
        })
        .ok()
        .flatten()
}

fn take(thread: &mut native::Thread, stacks: StackKind, registers: native::Registers) -> u32 {
    let taken = match stacks {
        StackKind::Python | StackKind::All => {
            let on_its_stack = thread.is_on_its_stack(registers);
            python::take(&mut thread.reader, &mut thread.python, on_its_stack)
        }
        _ => Taken::Frames(0),
    };
    let (python, unconfirmed, missing) = match taken {
        Taken::Frames(count) => (count, false, None),
        Taken::Unconfirmed(count) => (count, true, None),
        Taken::Missing(missing) => (0, false, Some(missing)),
    };
    let alone = stacks == StackKind::Python;
    // A stack whose frames of Python cannot be had, or do not count yet, has native ones.
    let with_native = matches!(stacks, StackKind::Native | StackKind::All) || unconfirmed || missing.is_some();
    let kind = u64::from(unconfirmed) | u64::from(alone) << 1 | missing.map_or(0, |missing| (missing as u64 + 1) << 2);
    let mut native = 0;
    if with_native {
        // A library may have been loaded where another was, with calls at the same addresses.
        modules::refresh_if_changed();
        native = thread.unwind(registers);
    } else {
        thread.update();
    }
    let hash = |thread: &native::Thread, native: usize| {
        let (frames, running) = (&thread.frames[..native], &thread.python[..python]);
        intern::hash(frames, running, kind)
    };
    let mut taken = hash(thread, native);
    if let Some(number) = thread.modules.known.get(taken) {
        if number == 0 {
            intern::lose();
        }
        return number;
    }
    // A new stack: take it again if the lists of libraries or unwind tables were not up to date.
    if with_native && thread.catch_up(registers, native) {
        native = thread.unwind(registers);
        while thread.load_missing(registers, native) {
            native = thread.unwind(registers);
        }
        taken = hash(thread, native);
    }
    if native + python == 0 && missing.is_none() {
        return 0;
    }
    let frames = unconfirmed.then_some(Frame::Unconfirmed { alone });
    let frames = frames.into_iter();
    let frames = frames.chain(thread.frames[..native].iter().map(|pc| thread.modules.frame(*pc)));
    let frames = frames.chain(missing.map(Frame::Missing)).map(Some);
    let frames = frames.chain(thread.python[..python].iter().map(|frame| python::keep(*frame)));
    let number = frames.collect::<Option<Vec<Frame>>>().and_then(intern::number);
    if number.is_none() {
        intern::lose();
    }
    let number = number.unwrap_or(0);
    if !thread.modules.known.put(taken, number) {
        modules::forget_known();
    }
    number
}

/// The frames of a stack, innermost first: those of compiled code, then those of Python.
pub fn frames(stack: u32) -> Vec<Frame> {
    let mut frames = intern::frames(stack);
    let Some(Frame::Unconfirmed { alone }) = frames.first().copied() else {
        return frames;
    };
    frames.remove(0);
    let is_python = |frame: &Frame| matches!(frame, Frame::Python(_));
    match python::confirmed() {
        Ok(()) if alone => frames.retain(is_python),
        Ok(()) => {}
        Err(missing) => {
            frames.retain(|frame| !is_python(frame));
            frames.push(Frame::Missing(missing));
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_frames_are_one_stack_while_libraries_come_and_go() {
        let mut stacks = Vec::new();
        for _ in 0..20 {
            // As after each change of the loader's list.
            modules::refresh();
            stacks.push(capture(StackKind::Native));
        }
        assert!(
            stacks[0] != 0 && stacks.iter().all(|stack| *stack == stacks[0]),
            "{stacks:?}"
        );
        modules::forget_known();
        assert_ne!(capture(StackKind::Native), stacks[0], "another place");
    }
}
