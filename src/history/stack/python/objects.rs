//! Objects of the interpreter, copied from memory.

use super::Missing;
use super::layout::{BLOCK, Layout};
use super::memory::{Fault, Memory};

/// The maximum number of bytes of a byte string, as of a table of lines.
const MAX_BYTES: u64 = 16 << 20;
/// The maximum number of letters of a text, as of a name.
const MAX_TEXT: u64 = 64 << 10;

impl From<Fault> for Missing {
    fn from(fault: Fault) -> Missing {
        match fault {
            Fault::Refused => Missing::Refused,
            Fault::Unmapped => Missing::Unreadable,
        }
    }
}

/// A structure that was read, and the fields in it.
pub(super) struct Block(pub(super) [u8; BLOCK]);

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

/// The bytes of a byte string.
pub(super) fn bytes(layout: &Layout, memory: &mut Memory, object: u64) -> Result<Box<[u8]>, Missing> {
    let length = memory.word(object.wrapping_add(layout.text.bytes_length as u64))?;
    if length > MAX_BYTES {
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
    if length > MAX_TEXT || !compact || !matches!(kind, 1 | 2 | 4) || ascii && kind != 1 {
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
