//! Stacks of callers as numbers, taken in well under a microsecond.
//!
//! A stack is taken as return addresses and looked up by its hash. Only a new stack costs more: the list of loaded
//! libraries is updated, each address becomes an offset in a library that is identified by its build id, and the
//! stack gets a number. Names are looked up only when a snapshot is written. An error on the way leaves a shorter
//! stack, or none.

use std::cell::{Cell, RefCell};

use crate::support::config::history::StackKind;

mod intern;
mod modules;
mod native;
mod python;
mod stack_memory;

pub use intern::Frame;
pub(in crate::history) use modules::{Module, module};
pub(in crate::history) use python::frame as python_frame;

/// The maximum number of frames of one kind in a stack; outer frames beyond it are left out.
pub const MAX_FRAMES: usize = 128;

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
    static UNWINDER: RefCell<Option<Box<native::Thread>>> = const { RefCell::new(None) };
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
            before: CURRENT.try_with(|current| current.replace(stack)).unwrap_or(0),
        }
    }

    /// The current call's stack; 0 where there is none.
    #[inline]
    pub fn get() -> u32 {
        CURRENT.try_with(Cell::get).unwrap_or(0)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.set(self.before));
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
    let registers = native::Registers::here();
    UNWINDER
        .try_with(|unwinder| {
            // A signal handler runs while this thread takes a stack: events in the handler have no stack.
            let mut unwinder = unwinder.try_borrow_mut().ok()?;
            Some(take(
                unwinder.get_or_insert_with(native::Thread::new),
                stacks,
                registers,
            ))
        })
        .ok()
        .flatten()
        .unwrap_or(0)
}

fn take(thread: &mut native::Thread, stacks: StackKind, registers: native::Registers) -> u32 {
    let python = match stacks {
        StackKind::Python | StackKind::All => python::take(&mut thread.python),
        _ => 0,
    };
    let with_native = matches!(stacks, StackKind::Native | StackKind::All);
    let mut native = 0;
    if with_native {
        // A library may have been loaded where another was, with calls at the same addresses.
        modules::refresh_if_changed();
        native = thread.unwind(registers);
    }
    let mut hash = intern::hash(
        &thread.frames[..native],
        &thread.python[..python],
        thread.modules.number,
    );
    if let Some(number) = intern::known(hash) {
        return number;
    }
    // A new stack: take it again if the lists of libraries or unwind tables were not up to date.
    if with_native && thread.catch_up(registers, native) {
        native = thread.unwind(registers);
        while thread.load_missing(registers, native) {
            native = thread.unwind(registers);
        }
        hash = intern::hash(
            &thread.frames[..native],
            &thread.python[..python],
            thread.modules.number,
        );
    }
    if native + python == 0 {
        return 0;
    }
    let frames = thread.frames[..native].iter().map(|pc| thread.modules.frame(*pc));
    let frames = frames.chain(thread.python[..python].iter().map(|frame| python::keep(*frame)));
    intern::add(hash, frames.collect())
}

/// The frames of a stack, innermost first: those of compiled code, then those of Python.
pub fn frames(stack: u32) -> Vec<Frame> {
    intern::frames(stack)
}
