//! Interns stacks: the frames by number, and, for each list of loaded libraries, a table from hash to number that is read
//! without a lock. Equal frames are one stack, also where libraries were loaded and unloaded in between.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::frame::{Frame, Running};

/// A hash of 128 bits, so that collisions can be neglected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::history::stack) struct Hash(u64, u64);

/// The maximum number of stacks, and of frames in all of them: 256 MiB. Further stacks are recorded as none.
const MAX_STACKS: usize = 1 << 20;
const MAX_STORED_FRAMES: usize = 1 << 24;

/// The maximum number of hashes that are known under one list of libraries.
const MAX_KNOWN: usize = 1 << 18;

struct HashEntry {
    /// 0: the entry is free.
    first: AtomicU64,
    second: AtomicU64,
    number: AtomicU64,
}

struct HashTable {
    entries: Box<[HashEntry]>,
}

/// The numbers of stacks under one list of libraries, by hash. They end with the list, since the same addresses may then
/// belong to another library.
#[derive(Default)]
pub(in crate::history::stack) struct Known {
    /// The table that is read without a lock.
    current: AtomicPtr<HashTable>,
    all: Mutex<HashTables>,
}

/// Outgrown tables are kept, since a thread may be reading them. Each is twice as large as the one before, so together they
/// are smaller than the last.
#[derive(Default)]
struct HashTables {
    // Boxed, since `current` points to one while others are added.
    #[allow(clippy::vec_box)]
    tables: Vec<Box<HashTable>>,
    count: usize,
}

static STACKS: Mutex<StackTable> = Mutex::new(StackTable::new(MAX_STACKS, MAX_STORED_FRAMES));

/// How many calls have no stack because the table is full.
static LOST: AtomicU64 = AtomicU64::new(0);

struct StackTable {
    /// By number, from 1.
    frames: Vec<Arc<[Frame]>>,
    numbers: Option<HashMap<Arc<[Frame]>, u32>>,
    /// How many stacks and how many frames of stacks may follow.
    stacks_left: usize,
    frames_left: usize,
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

    /// Adds an entry. The caller holds the lock of [`Known`], and the table has a free entry.
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

/// The hash of a stack as it was taken. `kind` distinguishes stacks that differ in nothing else.
#[inline]
pub(in crate::history::stack) fn hash(native: &[u64], python: &[Running], kind: u64) -> Hash {
    const ODD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];
    let (mut first, mut second) = (ODD[0], (native.len() as u64 | kind << 32) ^ ODD[1]);
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

impl Known {
    /// The number of a stack that was put here before; 0 where it was lost.
    #[inline]
    pub(in crate::history::stack) fn get(&self, hash: Hash) -> Option<u32> {
        // SAFETY: null, or a table that lives as long as `self`.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }?.get(hash)
    }

    /// Keeps the number of a stack. False where there are too many.
    #[cold]
    pub(in crate::history::stack) fn put(&self, hash: Hash, number: u32) -> bool {
        let mut all = self.all.lock();
        if self.get(hash).is_some() {
            return true;
        }
        if all.count >= MAX_KNOWN {
            return false;
        }
        all.count += 1;
        let room = all.tables.last().map_or(0, |table| table.entries.len());
        if all.count * 2 > room {
            let larger = Box::new(HashTable::new((room * 2).max(64)));
            for entry in all.tables.last().iter().flat_map(|table| table.entries.iter()) {
                let hash = Hash(
                    entry.first.load(Ordering::Relaxed),
                    entry.second.load(Ordering::Relaxed),
                );
                if hash.0 != 0 {
                    larger.put(hash, entry.number.load(Ordering::Relaxed));
                }
            }
            self.current
                .store(std::ptr::from_ref(&*larger).cast_mut(), Ordering::Release);
            all.tables.push(larger);
        }
        if let Some(table) = all.tables.last() {
            table.put(hash, u64::from(number));
        }
        true
    }
}

impl StackTable {
    const fn new(stacks: usize, frames: usize) -> StackTable {
        StackTable {
            frames: Vec::new(),
            numbers: None,
            stacks_left: stacks,
            frames_left: frames,
        }
    }

    /// The number of the stack with these frames; none where it is new and the table is full.
    fn number(&mut self, frames: Vec<Frame>) -> Option<u32> {
        let numbers = self.numbers.get_or_insert_with(HashMap::new);
        if let Some(number) = numbers.get(&frames[..]) {
            return Some(*number);
        }
        self.stacks_left = self.stacks_left.checked_sub(1)?;
        // Where these frames are too many, so are others: a full table stays full.
        self.frames_left = self.frames_left.checked_sub(frames.len()).or_else(|| {
            self.stacks_left = 0;
            None
        })?;
        let frames: Arc<[Frame]> = frames.into();
        self.frames.push(frames.clone());
        let number = self.frames.len() as u32;
        numbers.insert(frames, number);
        Some(number)
    }
}

/// Interns a stack; none where there are too many.
#[cold]
pub(in crate::history::stack) fn number(frames: Vec<Frame>) -> Option<u32> {
    STACKS.lock().number(frames)
}

/// Counts a call whose stack is lost since a table is full. The log has one line about that.
#[cold]
pub(in crate::history::stack) fn lose() {
    if LOST.fetch_add(1, Ordering::Relaxed) == 0 {
        tracing::warn!("the tables of stacks are full: calls with new stacks are recorded without one from now on");
    }
}

/// How many calls of this process have no stack because a table is full.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

pub(in crate::history::stack) fn frames(stack: u32) -> Vec<Frame> {
    let stacks = STACKS.lock();
    let at = (stack as usize).checked_sub(1);
    at.and_then(|at| stacks.frames.get(at))
        .map_or_else(Vec::new, |frames| frames.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_knows_its_stacks_and_takes_no_more() {
        let stack = |number: u64, frames: u64| (0..frames).map(|at| Frame::Unknown(number << 32 | at)).collect();
        let mut table = StackTable::new(3, 100);
        assert_eq!(
            [1, 2, 3, 4].map(|number| table.number(stack(number, 2))),
            [Some(1), Some(2), Some(3), None]
        );
        assert_eq!(table.number(stack(2, 2)), Some(2));
        let mut table = StackTable::new(100, 10);
        assert_eq!(table.number(stack(1, 6)), Some(1));
        assert_eq!(table.number(stack(2, 6)), None);
        assert_eq!((table.number(stack(1, 6)), table.number(stack(3, 1))), (Some(1), None));
    }

    #[test]
    fn known_hashes_have_a_limit() {
        let known = Known::default();
        let hash = |number: usize| hash(&[number as u64], &[], 0);
        for number in 0..MAX_KNOWN {
            assert!(known.put(hash(number), number as u32));
            assert!(known.put(hash(number / 2), u32::MAX), "it is known");
        }
        assert!(!known.put(hash(MAX_KNOWN), 1));
        assert!((0..MAX_KNOWN).all(|number| known.get(hash(number)) == Some(number as u32)));
        assert_eq!(known.get(hash(MAX_KNOWN)), None);
    }
}
