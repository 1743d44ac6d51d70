//! Frames: as a stack has them, and as they were taken.

/// One frame of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Frame {
    /// An address in a library or executable: its module's number, and the offset of the return address.
    Native(u32, u64),
    /// An address outside every library, as in code generated at run time.
    Unknown(u64),
    /// A number of `super::python_frame`.
    Python(u32),
    /// Stands for the frames of Python, which could not be had.
    Missing(Missing),
    /// The frames of Python in this stack count once the interpreter's layout is confirmed. Until then its native frames
    /// count; with `alone`, only until then. `super::frames` resolves it.
    Unconfirmed {
        /// Whether the stack was to have frames of Python alone.
        alone: bool,
    },
}

/// A frame of Python as it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::history::stack) struct Running {
    /// The code object's number.
    pub(in crate::history::stack) code: u32,
    /// The instruction, in bytes from the first one, or [`Running::LINE`] and the line.
    pub(in crate::history::stack) place: i64,
}

impl Running {
    pub(in crate::history::stack) const NONE: Running = Running { code: 0, place: 0 };
    pub(in crate::history::stack) const LINE: i64 = 1 << 32;

    /// The line, where the place is one.
    pub(in crate::history::stack) fn line(self) -> Option<i64> {
        (self.place >= Running::LINE).then_some(self.place - Running::LINE)
    }
}

/// Why a stack has no frames of Python although Python runs on its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Missing {
    /// No layout is known of this interpreter.
    Unknown,
    /// The interpreter has no lock.
    FreeThreaded,
    /// What was read is not what the interpreter's functions say.
    Different,
    /// No thread with the interpreter's lock has compared the two.
    Unconfirmed,
    /// The kernel does not let the thread read.
    Refused,
    /// The process has several interpreters.
    Interpreters,
    /// The interpreter is ending, and frees the states of threads.
    Ending,
    /// What was read is no chain of frames.
    Unreadable,
}

impl Missing {
    /// The name of the frame that stands in a stack for those that are missing.
    pub fn mark(self) -> &'static str {
        match self {
            Missing::Unknown => "<no Python frames: this version of Python is not known>",
            Missing::FreeThreaded => "<no Python frames: Python is built without its lock>",
            Missing::Different => "<no Python frames: Python's memory is laid out differently>",
            Missing::Unconfirmed => "<no Python frames: no thread with Python's lock has confirmed them>",
            Missing::Refused => "<no Python frames: the kernel refuses process_vm_readv>",
            Missing::Interpreters => "<no Python frames: the process has several interpreters>",
            Missing::Ending => "<no Python frames: Python is ending>",
            Missing::Unreadable => "<no Python frames: they cannot be read>",
        }
    }
}
