//! Interns stacks: a table from hash to number that is read without a lock, and the frames by number.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::python::{Missing, Running};

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

/// A hash of 128 bits, so that collisions can be neglected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::history::stack) struct Hash(u64, u64);

/// The maximum number of stacks; further ones are recorded as none.
const MAX_STACKS: usize = 1 << 20;

struct HashEntry {
    /// 0: the entry is free.
    first: AtomicU64,
    second: AtomicU64,
    number: AtomicU64,
}

struct HashTable {
    entries: Box<[HashEntry]>,
}

/// The table that is read without a lock. Outgrown tables are never freed, since a thread may be reading them. Each
/// is twice as large as the one before, so together they are smaller than the last.
static TABLE: AtomicPtr<HashTable> = AtomicPtr::new(null_mut());
static STACKS: Mutex<StackTable> = Mutex::new(StackTable {
    frames: Vec::new(),
    tables: Vec::new(),
});

struct StackTable {
    /// By number, from 1.
    frames: Vec<Box<[Frame]>>,
    tables: Vec<&'static HashTable>,
}

impl HashTable {
    fn new(room: usize) -> HashTable {
        let entry = || HashEntry {
            first: AtomicU64::new(0),
            second: AtomicU64::new(0),
            number: AtomicU64::new(0),
        };
        HashTable {
            entries: (0..room).map(|_| entry()).collect(),
        }
    }

    fn get(&self, hash: Hash) -> Option<u32> {
        let mask = self.entries.len() - 1;
        let mut at = hash.0 as usize & mask;
        loop {
            let entry = &self.entries[at];
            let first = entry.first.load(Ordering::Acquire);
            if first == 0 {
                return None;
            }
            if first == hash.0 && entry.second.load(Ordering::Relaxed) == hash.1 {
                return Some(entry.number.load(Ordering::Relaxed) as u32);
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds an entry. The caller holds the lock of [`STACKS`], and the table has a free entry.
    fn put(&self, hash: Hash, number: u64) {
        let mask = self.entries.len() - 1;
        let mut at = hash.0 as usize & mask;
        while self.entries[at].first.load(Ordering::Relaxed) != 0 {
            at = (at + 1) & mask;
        }
        let entry = &self.entries[at];
        entry.second.store(hash.1, Ordering::Relaxed);
        entry.number.store(number, Ordering::Relaxed);
        // A thread that sees this store sees the two above.
        entry.first.store(hash.0, Ordering::Release);
    }
}

/// The hash of a stack and of the set of libraries that were loaded when it was taken. `kind` distinguishes stacks that
/// differ in nothing else.
#[inline]
pub(in crate::history::stack) fn hash(native: &[u64], python: &[Running], modules: u64, kind: u64) -> Hash {
    const ODD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];
    let (mut first, mut second) = (modules ^ ODD[0], (native.len() as u64 | kind << 32) ^ ODD[1]);
    let mut mix = |word: u64| {
        first = (first ^ word).wrapping_mul(ODD[0]);
        first ^= first >> 32;
        second = (second.rotate_left(23) ^ word).wrapping_mul(ODD[1]);
    };
    native.iter().for_each(|pc| mix(*pc));
    for frame in python {
        mix(u64::from(frame.code) << 34 ^ frame.place as u64);
    }
    Hash(first.max(1), second ^ second >> 29)
}

/// The number of a stack that was interned before.
#[inline]
pub(in crate::history::stack) fn known(hash: Hash) -> Option<u32> {
    // SAFETY: null, or a table that is never freed.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }?.get(hash)
}

/// Interns a stack; returns 0 where there are too many.
#[cold]
pub(in crate::history::stack) fn add(hash: Hash, frames: Box<[Frame]>) -> u32 {
    let mut stacks = STACKS.lock();
    if let Some(number) = known(hash) {
        return number;
    }
    if stacks.frames.len() >= MAX_STACKS {
        return 0;
    }
    let room = stacks.tables.last().map_or(0, |table| table.entries.len());
    if stacks.frames.len() * 2 >= room {
        let larger: &'static HashTable = Box::leak(Box::new(HashTable::new((room * 2).max(4096))));
        for entry in stacks.tables.last().iter().flat_map(|table| table.entries.iter()) {
            let hash = Hash(
                entry.first.load(Ordering::Relaxed),
                entry.second.load(Ordering::Relaxed),
            );
            if hash.0 != 0 {
                larger.put(hash, entry.number.load(Ordering::Relaxed));
            }
        }
        stacks.tables.push(larger);
        TABLE.store(std::ptr::from_ref(larger).cast_mut(), Ordering::Release);
    }
    stacks.frames.push(frames);
    let number = stacks.frames.len() as u32;
    if let Some(table) = stacks.tables.last() {
        table.put(hash, u64::from(number));
    }
    number
}

pub(in crate::history::stack) fn frames(stack: u32) -> Vec<Frame> {
    let stacks = STACKS.lock();
    let at = (stack as usize).checked_sub(1);
    at.and_then(|at| stacks.frames.get(at))
        .map_or_else(Vec::new, |frames| frames.to_vec())
}
