//! What a stack is called in one line.

use super::model::{Frame, Report, What};

/// Where functions are a language's own, or an allocator's on the way to its pool.
const PLUMBING: [&str; 7] = [
    "core::",
    "std::",
    "alloc::",
    "__gnu_cxx::",
    "operator new",
    "c10::",
    "at::",
];

impl Report {
    /// Of each stack, the number of the frame to call it by; none where it is empty. That is the innermost one that is no
    /// plumbing, behind what every allocation's stack begins with: a wrapper of the application's tells nothing apart.
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
                let rest = &stack[same.min(stack.len().saturating_sub(1))..];
                let telling = rest.iter().find(|number| !self.is_plumbing(frame(number)));
                telling.or(rest.first()).copied()
            })
            .collect()
    }

    /// The functions that every allocation's stack begins with; none where there is but one stack.
    fn shared(&self) -> Vec<u32> {
        let pieces = self.devices.iter().flat_map(|device| &device.segments);
        let pieces = pieces.flat_map(|segment| segment.memory.pieces.iter().map(|piece| piece.stack));
        let events = self.devices.iter().flat_map(|device| &device.events);
        let events = events
            .filter(|event| event.what == What::Alloc)
            .map(|event| event.stack);
        let mut used: Vec<u32> = pieces.chain(events).filter(|stack| *stack != 0).collect();
        used.sort_unstable();
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

    fn is_plumbing(&self, frame: Frame) -> bool {
        let name = self.names.text(frame.name).trim_start_matches(['<', '&', '(']);
        // Of a function that was inlined there may be the last part of its name only.
        let inlined =
            name.starts_with('{') || name.contains('<') && !name.split('<').next().unwrap_or("").contains("::");
        PLUMBING.iter().any(|prefix| name.starts_with(prefix)) || name.contains("+0x") || inlined
    }
}
