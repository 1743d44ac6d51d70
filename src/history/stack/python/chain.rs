//! A thread's own frames, read without the interpreter's lock.
//!
//! A thread that is in C without the lock is the only one that changes its chain of frames, and it does not change it
//! now. So what is read is one state of the chain, unless the interpreter has freed it, which the caller checks.

use std::num::NonZero;

use super::codes::{Cache, Codes};
use super::layout::{BLOCK, Layout, Position};
use super::memory::{Fault, Memory};
use super::{Missing, Running};

impl From<Fault> for Missing {
    fn from(fault: Fault) -> Missing {
        match fault {
            Fault::Refused => Missing::Refused,
            Fault::Unmapped => Missing::Unreadable,
        }
    }
}

/// The frame belongs to a generator. Such a frame is complete from its first instruction on.
const GENERATORS: u8 = 1;
/// The frame stands for a call from C and has no code.
const OF_C: u8 = 3;

/// A structure that was read, and the fields in it.
pub(super) struct Block([u8; BLOCK]);

impl Block {
    pub(super) fn read(memory: &mut Memory, address: u64, size: usize) -> Result<Block, Fault> {
        let mut block = Block([0; BLOCK]);
        memory.read(address, &mut block.0[..size])?;
        Ok(block)
    }

    pub(super) fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|byte| self.0[at + byte]))
    }

    pub(super) fn int(&self, at: usize) -> i64 {
        i64::from(i32::from_ne_bytes(std::array::from_fn(|byte| self.0[at + byte])))
    }
}

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

/// The bytes of a byte string.
pub(super) fn bytes(layout: &Layout, memory: &mut Memory, object: u64) -> Result<Box<[u8]>, Missing> {
    let length = memory.word(object.wrapping_add(layout.text.bytes_length as u64))?;
    if length > Codes::MAX_TABLE {
        return Err(Missing::Unreadable);
    }
    let mut bytes = vec![0; length as usize].into_boxed_slice();
    memory.read(object.wrapping_add(layout.text.bytes as u64), &mut bytes)?;
    Ok(bytes)
}

/// The text of a string. Strings have letters of 1, 2 or 4 bytes, after a head that is shorter where all are ASCII.
pub(super) fn text(layout: &Layout, memory: &mut Memory, object: u64) -> Result<String, Missing> {
    let of = &layout.text;
    let length = memory.word(object.wrapping_add(of.length as u64))?;
    let mut state = [0; 4];
    memory.read(object.wrapping_add(of.state as u64), &mut state)?;
    let (kind, compact, ascii) = (state[0] >> 2 & 7, state[0] & 32 != 0, state[0] & 64 != 0);
    if length > Codes::MAX_TEXT || !compact || !matches!(kind, 1 | 2 | 4) || ascii && kind != 1 {
        return Err(Missing::Unreadable);
    }
    let mut bytes = vec![0; length as usize * usize::from(kind)];
    let head = if ascii { of.ascii } else { of.wide };
    memory.read(object.wrapping_add(head as u64), &mut bytes)?;
    let letter = |letter: &[u8]| {
        let number = letter
            .iter()
            .rev()
            .fold(0u32, |number, byte| number << 8 | u32::from(*byte));
        char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    Ok(bytes.chunks_exact(usize::from(kind)).map(letter).collect())
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
