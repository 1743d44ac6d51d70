//! Names a stack in one line, by the function that called the allocator.

use super::model::{EventKind, Report, ReportFrame};
use crate::support::sort;

/// Prefixes of what names no stack: functions of a language's runtime, or of a framework's allocator, that lie between the
/// caller and the pool, and the mark of a stack without Python's frames.
const PLUMBING: [&str; 8] = [
    "core::",
    "std::",
    "alloc::",
    "__gnu_cxx::",
    "operator new",
    "c10::",
    "at::",
    "no Python frames:",
];

/// The files of the same kind: a language's runtime and what it calls C functions with, and this library's Python package. They
/// lie between a Python function and the pool.
const PLUMBING_FILES: [&str; 6] = [
    "/libffi.so",
    "/libpython3",
    "/bin/python3",
    "/_ctypes.cpython-3",
    "/Python-3.",
    "/trtalloc/_",
];

/// Functions that begin a program or a thread. They name no stack that has another function.
const BEGINNINGS: [&str; 7] = [
    "_start",
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
    "__rust_try",
];

impl Report {
    /// For each stack, the number of the frame that names it; `None` where the stack is empty. That is the innermost
    /// frame that is no plumbing, after the frames with which every allocation's stack begins: an
    /// application's own wrapper distinguishes nothing.
    pub fn callers(&self) -> Vec<Option<u32>> {
        let shared = self.shared();
        let frame = |number: &u32| self.names.frames.all()[*number as usize];
        let stacks = self.names.stacks.all().iter();
        stacks
            .map(|stack| {
                let same = stack
                    .iter()
                    .zip(&shared)
                    .take_while(|(number, name)| frame(number).name == **name)
                    .count();
                let (inner, rest) = stack.split_at(same);
                let own = |number: &&u32| !self.is_plumbing(frame(number));
                // Where all functions are the same, stacks may still differ in the line of the outermost.
                let caller = rest.iter().find(own).or_else(|| inner.iter().rev().find(own));
                caller.or(stack.first()).copied()
            })
            .collect()
    }

    /// The numbers of a stack's frames from `caller`, which names it, outwards, without plumbing.
    pub fn outward(&self, stack: u32, caller: Option<u32>) -> impl Iterator<Item = u32> + '_ {
        let frames = self
            .names
            .stacks
            .all()
            .get(stack as usize)
            .map_or(&[][..], Vec::as_slice);
        let inner = frames.iter().position(|frame| Some(*frame) == caller).unwrap_or(0);
        let rest = frames[inner..].iter().copied();
        rest.filter(move |frame| Some(*frame) == caller || !self.is_plumbing(self.names.frames.all()[*frame as usize]))
    }

    /// The functions with which every allocation's stack begins; none where there is only one stack.
    fn shared(&self) -> Vec<u32> {
        let pieces = self.devices.iter().flat_map(|device| &device.segments);
        let pieces = pieces.flat_map(|segment| segment.memory.pieces.iter().map(|piece| piece.stack));
        let events = self.devices.iter().flat_map(|device| &device.events);
        let events = events
            .filter(|event| event.what == EventKind::Alloc)
            .map(|event| event.stack);
        let mut used: Vec<u32> = pieces.chain(events).filter(|stack| *stack != 0).collect();
        sort::by_key(&mut used, |stack| (u64::from(*stack), 0));
        used.dedup();
        let [first, others @ ..] = &used[..] else {
            return Vec::new();
        };
        if others.is_empty() {
            return Vec::new();
        }
        let functions = |stack: u32| {
            let frames = self.names.stacks.all()[stack as usize].iter();
            frames.map(|number| self.names.frames.all()[*number as usize].name)
        };
        let mut shared: Vec<u32> = functions(*first).collect();
        for stack in others {
            let same = shared
                .iter()
                .zip(functions(*stack))
                .take_while(|(a, b)| **a == *b)
                .count();
            shared.truncate(same);
        }
        shared
    }

    fn is_plumbing(&self, frame: ReportFrame) -> bool {
        let name = self.names.text(frame.name).trim_start_matches(['<', '&', '(']);
        // An inlined function may have only the last part of its name.
        let inlined =
            name.starts_with('{') || name.contains('<') && !name.split('<').next().unwrap_or("").contains("::");
        let begins = BEGINNINGS.contains(&name) || name.starts_with("__libc_start");
        let file = self.names.text(frame.filename);
        let of_a_runtime = PLUMBING_FILES.iter().any(|part| file.contains(part));
        PLUMBING.iter().any(|prefix| name.starts_with(prefix))
            || name.contains("+0x")
            || begins
            || inlined
            || of_a_runtime
    }
}
