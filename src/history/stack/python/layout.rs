//! Where the interpreter keeps what a stack needs, by its exact version.
//!
//! The numbers are offsets in the structures of CPython's own headers (`Include/cpython` and `Include/internal`). They
//! are the same in all releases of a minor version and on every 64-bit Linux. CPython 3.13 states its own in
//! `_Py_DebugOffsets` at the start of `_PyRuntime`. Whatever the source, a layout counts only once `super::confirm` has
//! compared it with what the interpreter's own functions say.

use super::Missing;
use super::lines::LineTable;
use super::memory::Memory;

/// Where the frame of a thread state, its thread and its interpreter are.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadLayout {
    pub(super) interpreter: usize,
    pub(super) thread: usize,
    /// The innermost frame, or what points to it.
    pub(super) frame: usize,
    /// In what `frame` points to: the innermost frame.
    pub(super) indirect: Option<usize>,
}

/// How a frame names its instruction.
#[derive(Debug, Clone, Copy)]
pub(super) enum Position {
    /// By its number, in units of `unit` bytes. While `traced` is not 0, the frame names its line.
    Number {
        at: usize,
        unit: i64,
        traced: usize,
        traced_bytes: usize,
        line: usize,
    },
    /// By its address.
    Address { at: usize, owner: usize },
}

/// A frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameLayout {
    pub(super) back: usize,
    pub(super) code: usize,
    pub(super) position: Position,
}

/// A code object.
#[derive(Debug, Clone, Copy)]
pub(super) struct CodeLayout {
    pub(super) filename: usize,
    pub(super) name: usize,
    pub(super) lines: usize,
    pub(super) first_line: usize,
    /// The instructions, from 3.11 on. The field two words before has the number of the first instruction that is not
    /// part of the frame's own making.
    pub(super) start: Option<usize>,
}

/// Strings and byte strings.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextLayout {
    pub(super) length: usize,
    pub(super) state: usize,
    /// The size of a string's head, where it has ASCII letters only. Any other string has two words more.
    pub(super) ascii: usize,
    /// Whether other strings have another word, which is the case before 3.12.
    pub(super) wide: usize,
    pub(super) bytes_length: usize,
    pub(super) bytes: usize,
}

/// The layout of one version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) thread: ThreadLayout,
    pub(super) frame: FrameLayout,
    pub(super) code: CodeLayout,
    pub(super) text: TextLayout,
    pub(super) table: LineTable,
}

/// The room for the part of a structure that is read at once.
pub(super) const BLOCK: usize = 256;

fn end(fields: &[usize]) -> usize {
    fields.iter().max().map_or(0, |last| last + 8).min(BLOCK)
}

impl ThreadLayout {
    /// The number of bytes that have all fields.
    pub(super) fn size(&self) -> usize {
        end(&[self.interpreter, self.thread, self.frame])
    }
}

impl FrameLayout {
    /// The number of bytes that have all fields.
    pub(super) fn size(&self) -> usize {
        match self.position {
            Position::Number { at, traced, line, .. } => end(&[self.back, self.code, at, traced, line]),
            Position::Address { at, owner } => end(&[self.back, self.code, at, owner]),
        }
    }
}

impl CodeLayout {
    /// The number of bytes that have all fields.
    pub(super) fn size(&self) -> usize {
        let first = self.start.map_or(0, |start| start - 16);
        end(&[self.filename, self.name, self.lines, self.first_line, first])
    }
}

const OLD_TEXT: TextLayout = TextLayout {
    length: 16,
    state: 32,
    ascii: 48,
    wide: 72,
    bytes_length: 16,
    bytes: 32,
};

const CPYTHON_3_9: Layout = Layout {
    thread: ThreadLayout {
        interpreter: 16,
        thread: 176,
        frame: 24,
        indirect: None,
    },
    frame: FrameLayout {
        back: 24,
        code: 32,
        position: Position::Number {
            at: 104,
            unit: 1,
            traced: 80,
            traced_bytes: 8,
            line: 108,
        },
    },
    code: CodeLayout {
        filename: 104,
        name: 112,
        lines: 120,
        first_line: 40,
        start: None,
    },
    text: OLD_TEXT,
    table: LineTable::Lnotab,
};

const CPYTHON_3_10: Layout = Layout {
    thread: CPYTHON_3_9.thread,
    frame: FrameLayout {
        back: 24,
        code: 32,
        position: Position::Number {
            at: 96,
            unit: 2,
            traced: 100,
            traced_bytes: 4,
            line: 100,
        },
    },
    code: CPYTHON_3_9.code,
    text: OLD_TEXT,
    table: LineTable::Ranges,
};

const CPYTHON_3_11: Layout = Layout {
    thread: ThreadLayout {
        interpreter: 16,
        thread: 152,
        frame: 56,
        indirect: Some(8),
    },
    frame: FrameLayout {
        back: 48,
        code: 32,
        position: Position::Address { at: 56, owner: 69 },
    },
    code: CodeLayout {
        filename: 112,
        name: 128,
        lines: 136,
        first_line: 72,
        start: Some(184),
    },
    text: OLD_TEXT,
    table: LineTable::Locations,
};

const CPYTHON_3_12: Layout = Layout {
    thread: ThreadLayout {
        interpreter: 16,
        thread: 136,
        frame: 56,
        indirect: Some(0),
    },
    frame: FrameLayout {
        back: 8,
        code: 0,
        position: Position::Address { at: 56, owner: 70 },
    },
    code: CodeLayout {
        filename: 112,
        name: 128,
        lines: 136,
        first_line: 68,
        start: Some(192),
    },
    text: TextLayout {
        ascii: 40,
        wide: 56,
        ..OLD_TEXT
    },
    table: LineTable::Locations,
};

/// The layout of the interpreter with this version, as `Py_GetVersion` writes it. `runtime` is the address of
/// `_PyRuntime`, 0 where it is not known.
pub(super) fn of(version: &str, runtime: u64) -> Result<Layout, Missing> {
    let number = version.split(' ').next().unwrap_or_default();
    if version.contains("free-threading") {
        return Err(Missing::FreeThreaded);
    }
    let mut parts = number.split('.').map(|part| part.parse::<u64>().ok());
    // "3.13.0rc1" and "3.13.0+" are no releases.
    let (Some(Some(major)), Some(Some(minor)), Some(Some(micro)), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Missing::Unknown);
    };
    match (major, minor) {
        (3, 9) => Ok(CPYTHON_3_9),
        (3, 10) => Ok(CPYTHON_3_10),
        (3, 11) => Ok(CPYTHON_3_11),
        (3, 12) => Ok(CPYTHON_3_12),
        (3, 13) => described(runtime, 3 << 24 | 13 << 16 | micro << 8 | 0xf0),
        _ => Err(Missing::Unknown),
    }
}

/// The layout that CPython 3.13 describes at the start of `_PyRuntime`.
fn described(runtime: u64, version: u64) -> Result<Layout, Missing> {
    /// The words of the description, by their number in it.
    const WORDS: usize = 73;
    let mut bytes = [0; WORDS * 8];
    let mut memory = Memory::default();
    if runtime == 0 || memory.begin().is_err() || memory.read(runtime, &mut bytes).is_err() {
        return Err(Missing::Unreadable);
    }
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
    if &bytes[..8] != b"xdebugpy" || word(1) != version {
        return Err(Missing::Unknown);
    }
    if word(2) != 0 {
        return Err(Missing::FreeThreaded);
    }
    let small = |at: usize| Some(word(at) as usize).filter(|offset| *offset + 16 <= BLOCK);
    let layout = || {
        Some(Layout {
            thread: ThreadLayout {
                interpreter: small(22)?,
                thread: small(24)?,
                frame: small(23)?,
                indirect: None,
            },
            frame: FrameLayout {
                back: small(29)?,
                code: small(30)?,
                position: Position::Address {
                    at: small(31)?,
                    owner: small(33)?,
                },
            },
            code: CodeLayout {
                filename: small(35)?,
                name: small(37)?,
                lines: small(38)?,
                first_line: small(39)?,
                start: Some(small(43)?).filter(|start| *start >= 16),
            },
            text: TextLayout {
                state: small(68)?,
                length: small(69)?,
                ascii: small(70)?,
                wide: small(70)? + 16,
                bytes_length: small(65)?,
                bytes: small(66)?,
            },
            table: LineTable::Locations,
        })
    };
    layout().ok_or(Missing::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_releases_that_are_known_have_a_layout() {
        assert!(of("3.9.18 (main, Nov 20 2026)", 0).is_ok());
        assert!(of("3.12.1 (main, Nov 20 2026)", 0).is_ok());
        for version in [
            "3.8.18 (main)",
            "3.12.0rc1 (main)",
            "3.12.1+ (heads)",
            // Its frames name their code by a tagged reference, and describe more.
            "3.14.0 (main)",
            "3.15.0 (main)",
            "4.0.0",
            "",
        ] {
            assert_eq!(of(version, 0).err(), Some(Missing::Unknown), "{version}");
        }
        let version = "3.13.0 experimental free-threading build (main)";
        assert_eq!(of(version, 0).err(), Some(Missing::FreeThreaded));
        assert_eq!(of("3.13.0 (main)", 0).err(), Some(Missing::Unreadable));
    }

    #[test]
    fn a_description_of_another_version_is_not_used() {
        let mut words = [8u64; 80];
        words[0] = u64::from_ne_bytes(*b"xdebugpy");
        words[1] = 0x030d_00f0;
        words[2] = 0;
        words[43] = 200;
        let at = |words: &[u64; 80]| words.as_ptr() as u64;
        assert!(of("3.13.0 (main)", at(&words)).is_ok());
        assert_eq!(of("3.13.1 (main)", at(&words)).err(), Some(Missing::Unknown));
        words[23] = 1 << 40;
        assert_eq!(of("3.13.0 (main)", at(&words)).err(), Some(Missing::Unknown));
        words[2] = 1;
        assert_eq!(of("3.13.0 (main)", at(&words)).err(), Some(Missing::FreeThreaded));
    }
}
