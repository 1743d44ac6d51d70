//! The code objects that stacks contain, by a number that is never used for another one.
//!
//! A code object that a thread with the interpreter's lock has met is kept alive, so that its address identifies it. A
//! thread without the lock touches no reference count, so an address may have another code object at the next event.
//! It counts as the same only with the same pointers and the same first line. What names it is copied when it is met
//! first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::chain::{Block, bytes, text};
use super::layout::Layout;
use super::memory::Memory;
use super::{Missing, Object, PythonFrame, Running};

/// What distinguishes a code object from another one at the same address: the pointers to its file's name, its name and
/// its table of lines, and its first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Identity([u64; 4]);

/// What was copied of a code object.
struct Copied {
    name: String,
    filename: String,
    first_line: i64,
    lines: Box<[u8]>,
    layout: Layout,
}

struct Code {
    address: usize,
    /// Whether a reference is held to it.
    held: bool,
    /// `None` while no thread without the lock has met it.
    identity: Option<Identity>,
    copied: Option<Copied>,
}

/// All code objects that were met.
pub(super) struct Codes {
    all: Vec<Code>,
    by_address: Option<HashMap<usize, u32>>,
}

static CODES: Mutex<Codes> = Mutex::new(Codes {
    all: Vec::new(),
    by_address: None,
});
/// Counts the code objects that are held, so that caches notice.
static HELD: AtomicU64 = AtomicU64::new(0);

/// The number of all code objects that are too many.
const TOO_MANY: u32 = u32::MAX;

impl Codes {
    /// The maximum number of code objects.
    const MAX: usize = 1 << 20;
    /// The maximum number of bytes of a table of lines.
    pub(super) const MAX_TABLE: u64 = 16 << 20;
    /// The maximum number of letters of a name.
    pub(super) const MAX_TEXT: u64 = 64 << 10;

    fn at(&self, address: usize) -> Option<u32> {
        self.by_address.as_ref()?.get(&address).copied()
    }

    fn add(&mut self, code: Code) -> u32 {
        if self.all.len() >= Codes::MAX {
            return TOO_MANY;
        }
        let number = self.all.len() as u32;
        self.by_address
            .get_or_insert_with(HashMap::new)
            .insert(code.address, number);
        self.all.push(code);
        number
    }
}

/// A code object that a thread has met.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    address: u64,
    identity: Identity,
    /// [`HELD`] when the entry was made.
    held_then: u64,
    held: bool,
    pub(super) number: u32,
    /// The bytes before the first instruction that is not part of the frame's own making.
    pub(super) first: i64,
    /// Whether it was read, and not only met with the lock.
    read: bool,
}

/// The code objects that a thread has met lately.
pub(super) struct Cache {
    entries: Box<[Known; Cache::SIZE]>,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache {
            entries: Box::new([Known::default(); Cache::SIZE]),
        }
    }
}

impl Cache {
    const SIZE: usize = 256;

    #[inline]
    fn entry(&mut self, address: u64) -> &mut Known {
        &mut self.entries[(address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize]
    }

    /// The number of a code object that runs on this thread, which holds the interpreter's lock. `keep` takes a
    /// reference to it.
    #[inline]
    pub(super) fn held(&mut self, code: Object, keep: impl FnOnce(Object)) -> u32 {
        let entry = self.entry(code as u64);
        if entry.address == code as u64 && entry.held {
            return entry.number;
        }
        let number = hold(code, keep);
        *entry = Known {
            address: code as u64,
            held: true,
            number,
            ..Known::default()
        };
        number
    }

    /// The code object at `address`, which runs on this thread, read without the lock.
    #[inline]
    pub(super) fn of(
        &mut self,
        layout: &Layout,
        code_type: u64,
        memory: &mut Memory,
        address: u64,
    ) -> Result<Known, Missing> {
        let entry = self.entry(address);
        if entry.address == address && entry.read && entry.held {
            return Ok(*entry);
        }
        if address == 0 || !address.is_multiple_of(8) {
            return Err(Missing::Unreadable);
        }
        let block = Block::read(memory, address, layout.code.size())?;
        const TYPE: usize = 8;
        if block.word(TYPE) != code_type {
            return Err(Missing::Unreadable);
        }
        let of = &layout.code;
        let identity = Identity([
            block.word(of.filename),
            block.word(of.name),
            block.word(of.lines),
            block.int(of.first_line) as u64,
        ]);
        if entry.address == address
            && entry.read
            && entry.identity == identity
            && entry.held_then == HELD.load(Ordering::Relaxed)
        {
            return Ok(*entry);
        }
        let known = meet(layout, memory, address, identity, &block)?;
        *entry = known;
        Ok(known)
    }
}

/// Finds or adds a code object that was read.
#[cold]
fn meet(
    layout: &Layout,
    memory: &mut Memory,
    address: u64,
    identity: Identity,
    block: &Block,
) -> Result<Known, Missing> {
    let same = |code: &Code| code.copied.is_some() && code.identity == Some(identity);
    let mut known = Known {
        address,
        identity,
        held_then: HELD.load(Ordering::Relaxed),
        held: false,
        number: TOO_MANY,
        first: layout.code.start.map_or(0, |start| block.int(start - 16) * 2),
        read: true,
    };
    let find = |codes: &Codes| {
        let number = codes.at(address as usize)?;
        let code = codes.all.get(number as usize)?;
        same(code).then_some((number, code.held))
    };
    let found = find(&CODES.lock());
    if let Some((number, held)) = found {
        return Ok(Known { number, held, ..known });
    }
    let [filename, name, lines, first_line] = identity.0;
    let copied = Copied {
        name: text(layout, memory, name)?,
        filename: text(layout, memory, filename)?,
        first_line: first_line as i64,
        lines: bytes(layout, memory, lines)?,
        layout: *layout,
    };
    let mut codes = CODES.lock();
    let held = codes
        .at(address as usize)
        .filter(|number| codes.all[*number as usize].held);
    match (find(&codes), held) {
        (Some((number, held)), _) => (known.number, known.held) = (number, held),
        (None, Some(number)) => {
            // A code object that is held stays where it is, so this is the one that was met with the lock.
            let code = &mut codes.all[number as usize];
            (code.identity, code.copied) = (Some(identity), Some(copied));
            (known.number, known.held) = (number, true);
        }
        (None, None) => {
            known.number = codes.add(Code {
                address: address as usize,
                held: false,
                identity: Some(identity),
                copied: Some(copied),
            });
        }
    }
    Ok(known)
}

/// Holds the code object, which is alive, and returns its number.
#[cold]
fn hold(code: Object, keep: impl FnOnce(Object)) -> u32 {
    let mut codes = CODES.lock();
    if let Some(number) = codes.at(code as usize)
        && codes.all[number as usize].held
    {
        return number;
    }
    // One that was met without the lock may have been another.
    let number = codes.add(Code {
        address: code as usize,
        held: true,
        identity: None,
        copied: None,
    });
    if number != TOO_MANY {
        keep(code);
        HELD.fetch_add(1, Ordering::Relaxed);
    }
    number
}

/// The address of a code object; `None` where it is not held.
pub(super) fn held_address(number: u32) -> Option<usize> {
    let codes = CODES.lock();
    codes
        .all
        .get(number as usize)
        .filter(|code| code.held)
        .map(|code| code.address)
}

/// The address that a code object had when it was met.
pub(super) fn address(number: u32) -> Option<usize> {
    CODES.lock().all.get(number as usize).map(|code| code.address)
}

/// Names a place from what was copied of its code object.
pub(super) fn named(running: Running) -> PythonFrame {
    let codes = CODES.lock();
    let code = codes.all.get(running.code as usize);
    let Some(copied) = code.and_then(|code| code.copied.as_ref()) else {
        return PythonFrame::default();
    };
    let decoded = || {
        copied
            .layout
            .table
            .line(&copied.lines, copied.first_line, running.place)
    };
    PythonFrame {
        name: copied.name.clone(),
        filename: copied.filename.clone(),
        line: running.line().or_else(decoded).map_or(0, |line| line.max(0) as u32),
    }
}
