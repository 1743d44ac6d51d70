//! The code objects that stacks contained lately, by number.
//!
//! A code object that a thread with the interpreter's lock has met is kept alive, so that its address identifies it. Programs
//! may make code without end, so there are two generations: where the new one is full, it becomes the old one, and the code
//! objects of the old one are released. They get other numbers where they are met again.
//!
//! A thread without the lock touches no reference count, so an address may have another code object at the next event.
//! It counts as the same only with the same pointers and the same first line. What names it is copied when it is met
//! first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::layout::Layout;
use super::memory::Memory;
use super::objects::{Block, bytes, text};
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

/// All code objects that were met lately.
pub(super) struct Codes {
    /// The new generation, and the number of its first one.
    all: Vec<Code>,
    first: u32,
    by_address: Option<HashMap<usize, u32>>,
    /// The bytes that were copied of the new generation.
    bytes: usize,
    /// The old generation, whose numbers end where those of the new one begin.
    old: Vec<Code>,
    /// The addresses of those that a thread with the lock is to release.
    released: Vec<usize>,
}

static CODES: Mutex<Codes> = Mutex::new(Codes {
    all: Vec::new(),
    first: 0,
    by_address: None,
    bytes: 0,
    old: Vec::new(),
    released: Vec::new(),
});
/// Counts the code objects that are held, so that caches notice.
static HELD: AtomicU64 = AtomicU64::new(0);
/// Counts the generations. An entry of a cache holds for its own.
static GENERATION: AtomicU64 = AtomicU64::new(0);

impl Codes {
    /// The maximum number of code objects in a generation, and of bytes that are copied of them.
    const MAX: usize = 1 << 15;
    const MAX_BYTES: usize = 64 << 20;

    fn at(&self, address: usize) -> Option<u32> {
        self.by_address.as_ref()?.get(&address).copied()
    }

    fn get(&self, number: u32) -> Option<&Code> {
        let new = self.all.get(number.wrapping_sub(self.first) as usize);
        new.or_else(|| {
            let back = self.first.wrapping_sub(number) as usize;
            self.old.get(self.old.len().checked_sub(back)?)
        })
    }

    /// Changes one of the new generation.
    fn get_mut(&mut self, number: u32) -> Option<&mut Code> {
        self.all.get_mut(number.wrapping_sub(self.first) as usize)
    }

    fn add(&mut self, code: Code) -> u32 {
        if self.all.len() >= Codes::MAX || self.bytes >= Codes::MAX_BYTES {
            self.renew();
        }
        let number = self.first.wrapping_add(self.all.len() as u32);
        self.bytes += code.copied.as_ref().map_or(0, Copied::bytes);
        self.by_address
            .get_or_insert_with(HashMap::new)
            .insert(code.address, number);
        self.all.push(code);
        number
    }

    /// Begins a generation.
    fn renew(&mut self) {
        self.first = self.first.wrapping_add(self.all.len() as u32);
        let old = std::mem::replace(&mut self.old, std::mem::take(&mut self.all));
        self.released
            .extend(old.iter().filter(|code| code.held).map(|code| code.address));
        self.by_address = None;
        self.bytes = 0;
        HELD.fetch_add(1, Ordering::Relaxed);
        GENERATION.fetch_add(1, Ordering::Release);
    }
}

impl Copied {
    fn bytes(&self) -> usize {
        self.name.len() + self.filename.len() + self.lines.len()
    }
}

/// A code object that a thread has met.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    address: u64,
    identity: Identity,
    /// [`HELD`] when the entry was made, and [`GENERATION`].
    held_then: u64,
    generation: u64,
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
    /// reference to it, and `release` drops one.
    #[inline]
    pub(super) fn held(&mut self, code: Object, keep: impl FnOnce(Object), release: impl Fn(Object)) -> u32 {
        let entry = self.entry(code as u64);
        // A code object was released by a thread that had the lock before this one, so this thread sees its generation.
        let generation = GENERATION.load(Ordering::Acquire);
        if entry.address == code as u64 && entry.held && entry.generation == generation {
            return entry.number;
        }
        let number = hold(code, keep, release);
        *entry = Known {
            address: code as u64,
            held: true,
            generation,
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
        let generation = GENERATION.load(Ordering::Acquire);
        if entry.address == address && entry.read && entry.held && entry.generation == generation {
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
        generation: GENERATION.load(Ordering::Acquire),
        held: false,
        number: 0,
        first: layout.code.start.map_or(0, |start| block.int(start - 16) * 2),
        read: true,
    };
    let find = |codes: &Codes| {
        let number = codes.at(address as usize)?;
        let code = codes.get(number)?;
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
        .filter(|number| codes.get(*number).is_some_and(|code| code.held));
    match (find(&codes), held) {
        (Some((number, held)), _) => (known.number, known.held) = (number, held),
        (None, Some(number)) => {
            // A code object that is held stays where it is, so this is the one that was met with the lock.
            codes.bytes += copied.bytes();
            if let Some(code) = codes.get_mut(number) {
                (code.identity, code.copied) = (Some(identity), Some(copied));
            }
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
fn hold(code: Object, keep: impl FnOnce(Object), release: impl Fn(Object)) -> u32 {
    let mut codes = CODES.lock();
    if let Some(number) = codes.at(code as usize)
        && codes.get(number).is_some_and(|code| code.held)
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
    keep(code);
    HELD.fetch_add(1, Ordering::Relaxed);
    let released = std::mem::take(&mut codes.released);
    // That may run Python.
    drop(codes);
    released.into_iter().for_each(|code| release(code as Object));
    number
}

/// The address of a code object; `None` where it is not held.
pub(super) fn held_address(number: u32) -> Option<usize> {
    let codes = CODES.lock();
    codes.get(number).filter(|code| code.held).map(|code| code.address)
}

/// The address that a code object had when it was met.
pub(super) fn address(number: u32) -> Option<usize> {
    CODES.lock().get(number).map(|code| code.address)
}

/// Names a place from what was copied of its code object.
pub(super) fn named(running: Running) -> PythonFrame {
    let codes = CODES.lock();
    let code = codes.get(running.code);
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use super::*;

    /// A program may compile code for each of its calls.
    #[test]
    fn code_objects_that_are_held_are_few_and_each_is_released_as_often_as_it_was_kept() {
        const ROUNDS: usize = 5 * Codes::MAX;
        let references: RefCell<HashMap<usize, i32>> = RefCell::default();
        let keep = |code: Object| *references.borrow_mut().entry(code as usize).or_default() += 1;
        let release = |code: Object| *references.borrow_mut().entry(code as usize).or_default() -= 1;
        let mut cache = Cache::default();
        let always = 0x10 as Object;
        let (mut most, mut before) = (0, None);
        for round in 0..ROUNDS {
            let number = cache.held(always, keep, release);
            assert!(references.borrow()[&(always as usize)] > 0, "what has a number is held");
            let code = ((round + 2) * 0x1000) as Object;
            let other = cache.held(code, keep, release);
            assert_eq!(cache.held(code, keep, release), other);
            assert_eq!(held_address(other), Some(code as usize));
            assert_eq!(held_address(number), Some(always as usize), "{round}");
            if let Some((before, code)) = before.replace((other, code as usize)) {
                assert_eq!(
                    address(before),
                    Some(code),
                    "the one before has its number after a change"
                );
            }
            if round % 1000 == 0 {
                let references = references.borrow();
                assert!(references.values().all(|count| *count >= 0));
                most = most.max(references.values().sum::<i32>());
            }
        }
        assert!(most as usize <= 2 * Codes::MAX + 2, "{most}");
    }
}
