//! A thread's own frames, read without the interpreter's lock.
//!
//! A thread that is in C without the lock is the only one that changes its chain of frames, and it does not change it
//! now. So what is read is one state of the chain, unless the interpreter has freed it, which the caller checks.

use std::num::NonZero;

use super::codes::Cache;
use super::layout::{Layout, Position};
use super::memory::Memory;
use super::objects::Block;
use super::{Missing, Running};

/// The frame belongs to a generator. Such a frame is complete from its first instruction on.
const GENERATORS: u8 = 1;
/// The frame stands for a call from C and has no code.
const OF_C: u8 = 3;

/// The interpreter that the chain belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    /// The thread's state, which is not null.
    pub(super) state: NonZero<u64>,
    /// The only interpreter of the process.
    pub(super) interpreter: u64,
    /// `PyCode_Type`
    pub(super) code_type: u64,
}

/// Reads the frames that run on this thread, innermost first; returns their number.
pub(super) fn read(
    layout: &Layout,
    owner: Owner,
    memory: &mut Memory,
    codes: &mut Cache,
    frames: &mut [Running],
) -> Result<usize, Missing> {
    memory.begin()?;
    let state = Block::read(memory, owner.state.get(), layout.thread.size())?;
    // SAFETY: takes no argument.
    let this = unsafe { libc::pthread_self() } as u64;
    if state.word(layout.thread.thread) != this || state.word(layout.thread.interpreter) != owner.interpreter {
        return Err(Missing::Unreadable);
    }
    let mut at = state.word(layout.thread.frame);
    if let Some(indirect) = layout.thread.indirect {
        at = memory.word(at.wrapping_add(indirect as u64))?;
    }
    let mut count = 0;
    // Some frames are left out, so the steps are bounded too.
    for _ in 0..frames.len() * 4 {
        if at == 0 || count == frames.len() {
            return Ok(count);
        }
        if !at.is_multiple_of(8) {
            return Err(Missing::Unreadable);
        }
        let frame = Block::read(memory, at, layout.frame.size())?;
        at = frame.word(layout.frame.back);
        let owned_by = match layout.frame.position {
            Position::Address { owner, .. } => frame.0[owner],
            Position::Number { .. } => 0,
        };
        if owned_by == OF_C {
            continue;
        }
        let address = frame.word(layout.frame.code);
        let code = codes.of(layout, owner.code_type, memory, address)?;
        let place = match layout.frame.position {
            Position::Number {
                at,
                unit,
                traced,
                traced_bytes,
                line,
            } => {
                let traced = frame.0[traced..traced + traced_bytes].iter().any(|byte| *byte != 0);
                if traced {
                    Running::LINE | frame.int(line)
                } else {
                    frame.int(at) * unit
                }
            }
            Position::Address { at, .. } => {
                let start = address + layout.code.start.unwrap_or(0) as u64;
                let place = frame.word(at).wrapping_sub(start) as i64;
                // As in the interpreter's own functions, a frame counts once its cells and free variables are there.
                if owned_by != GENERATORS && place < code.first {
                    continue;
                }
                place.max(-1)
            }
        };
        if !(-1..1 << 33).contains(&place) {
            return Err(Missing::Unreadable);
        }
        frames[count] = Running {
            code: code.number,
            place,
        };
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::super::layout::{CodeLayout, FrameLayout, TextLayout, ThreadLayout};
    use super::super::lines::LineTable;
    use super::*;

    /// A thread whose state, at the first word, names itself, its interpreter and a frame. A frame has the frame before it, its
    /// code, its instruction and its owner, in this order.
    const LAYOUT: Layout = Layout {
        thread: ThreadLayout {
            interpreter: 0,
            thread: 8,
            frame: 16,
            indirect: None,
        },
        frame: FrameLayout {
            back: 0,
            code: 8,
            position: Position::Address { at: 16, owner: 24 },
        },
        code: CodeLayout {
            filename: 0,
            name: 8,
            lines: 16,
            first_line: 24,
            start: Some(64),
        },
        text: TextLayout {
            length: 16,
            state: 32,
            ascii: 40,
            wide: 56,
            bytes_length: 16,
            bytes: 32,
        },
        table: LineTable::Locations,
    };

    /// What is found where the first frame is `frames[0]`, and each has the index of the one before it.
    fn found(frames: &[(usize, u8)], room: usize) -> Result<usize, Missing> {
        let mut words = vec![[0u64; 64]; frames.len() + 1];
        // SAFETY: takes no argument.
        let thread = unsafe { libc::pthread_self() } as u64;
        let address = |words: &[[u64; 64]], at: usize| words[at].as_ptr() as u64;
        let (state, first) = (address(&words, frames.len()), address(&words, 0));
        words[frames.len()][..3].copy_from_slice(&[7, thread, first]);
        for (at, (back, owner)) in frames.iter().enumerate() {
            let back = address(&words, *back);
            words[at][..4].copy_from_slice(&[back, 0, 0, u64::from(*owner)]);
        }
        let owner = Owner {
            state: NonZero::new(state).unwrap(),
            interpreter: 7,
            code_type: 0,
        };
        let mut taken = vec![Running::NONE; room];
        read(
            &LAYOUT,
            owner,
            &mut Memory::default(),
            &mut Cache::default(),
            &mut taken,
        )
    }

    /// What the interpreter freed may be anything, also a ring. Frames without code count as steps.
    #[test]
    fn a_chain_without_an_end_is_left() {
        assert_eq!(found(&[(0, OF_C)], 128), Ok(0), "itself");
        assert_eq!(found(&[(1, OF_C), (2, OF_C), (0, OF_C)], 128), Ok(0));
        // A frame with a code that is none ends it.
        assert_eq!(found(&[(1, OF_C), (0, 0)], 128), Err(Missing::Unreadable));
    }
}
