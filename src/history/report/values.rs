//! The parsed values of a file: lists, dictionaries and texts in tables. A value is an index, so shared values and
//! lists that contain themselves need no special care, and nothing here recurses.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;

/// Why a file could not be read.
pub(in crate::history::report) type Fault = String;

/// How many of a dictionary's last keys are searched: several times as many as any dictionary of a snapshot has.
const MAX_KEYS: usize = 256;

/// A value. Texts, lists and dictionaries are indices into the tables of [`Values`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::history::report) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer from 2^63, as addresses may be.
    Large(u64),
    /// A number or bytes that no snapshot uses.
    Other,
    Float(f64),
    Text(u32),
    /// A list or a tuple.
    List(u32),
    Dict(u32),
}

/// What a file's values may take of memory for each byte of the file: twice as much as those of PyTorch's snapshots.
const BYTES: usize = 16;
/// How many keys may be compared for each byte of the file. A snapshot takes less than ten.
const STEPS: u64 = 64;
/// What a file may take however small it is.
const SMALL: usize = 1 << 20;

/// The tables. A file of unknown origin may have values that take many times its size, and refer to large ones all over. So
/// their memory and the searches in them have limits.
#[derive(Debug)]
pub(in crate::history::report) struct Values<'a> {
    /// The bytes of the tables, and how many they may be.
    bytes: usize,
    max_bytes: usize,
    /// How many keys were compared, and how many may be.
    steps: Cell<u64>,
    max_steps: u64,
    texts: Vec<Cow<'a, str>>,
    numbers: HashMap<Cow<'a, str>, u32>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(u32, Value)>>,
}

impl<'a> Values<'a> {
    /// No values yet, of a file with this many bytes.
    pub(in crate::history::report) fn new(file: usize) -> Values<'a> {
        Values {
            bytes: 0,
            max_bytes: SMALL + file.saturating_mul(BYTES),
            steps: Cell::new(0),
            max_steps: SMALL as u64 + (file as u64).saturating_mul(STEPS),
            texts: Vec::new(),
            numbers: HashMap::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
        }
    }

    /// An error where the values and `others`, so many bytes of their parser, take too much memory.
    pub(in crate::history::report) fn check_bytes(&self, others: usize) -> Result<(), Fault> {
        match self.bytes + others > self.max_bytes {
            true => Err(format!("it takes more than {} bytes of memory to read", self.max_bytes)),
            false => Ok(()),
        }
    }

    /// An error where too many keys were compared.
    pub(in crate::history::report) fn check_steps(&self) -> Result<(), Fault> {
        match self.steps.get() > self.max_steps {
            true => Err(format!("it takes more than {} steps to read", self.max_steps)),
            false => Ok(()),
        }
    }

    /// For tests: the bytes of the tables, and how many they may be.
    #[cfg(test)]
    pub(in crate::history::report) fn used(&self) -> (usize, usize) {
        (self.bytes, self.max_bytes)
    }

    /// For tests: how many keys were compared, and how many may be.
    #[cfg(test)]
    pub(in crate::history::report) fn used_steps(&self) -> (u64, u64) {
        (self.steps.get(), self.max_steps)
    }

    /// Adds a text; equal texts share one entry.
    pub(in crate::history::report) fn text(&mut self, text: Cow<'a, str>) -> Value {
        if let Some(number) = self.numbers.get(&text) {
            return Value::Text(*number);
        }
        let number = self.texts.len() as u32;
        let owned = if matches!(text, Cow::Owned(_)) {
            2 * text.len()
        } else {
            0
        };
        self.bytes += TEXT + owned;
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        Value::Text(number)
    }

    pub(in crate::history::report) fn list(&mut self, items: Vec<Value>) -> Value {
        self.bytes += LIST + taken(&items, 0);
        self.lists.push(items);
        Value::List(self.lists.len() as u32 - 1)
    }

    pub(in crate::history::report) fn dict(&mut self) -> Value {
        self.bytes += LIST;
        self.dicts.push(Vec::new());
        Value::Dict(self.dicts.len() as u32 - 1)
    }

    /// Appends to `list`; returns false where it is not a list.
    pub(in crate::history::report) fn append(&mut self, list: Value, items: impl Iterator<Item = Value>) -> bool {
        match list {
            Value::List(number) => {
                let list = &mut self.lists[number as usize];
                let before = list.capacity();
                list.extend(items);
                self.bytes += taken(list, before);
            }
            _ => return false,
        }
        true
    }

    /// Makes room for as many keys of `dict`, where it has none.
    pub(in crate::history::report) fn reserve(&mut self, dict: Value, keys: usize) {
        if let Value::Dict(number) = dict
            && self.dicts[number as usize].capacity() == 0
        {
            let entries = &mut self.dicts[number as usize];
            entries.reserve_exact(keys);
            self.bytes += taken(entries, 0);
        }
    }

    /// Sets a key; returns false where `dict` is not a dictionary or `key` not a text.
    pub(in crate::history::report) fn set(&mut self, dict: Value, key: Value, value: Value) -> bool {
        match (dict, key) {
            (Value::Dict(number), Value::Text(key)) => {
                let entries = &mut self.dicts[number as usize];
                let before = entries.capacity();
                entries.push((key, value));
                self.bytes += taken(entries, before);
            }
            _ => return false,
        }
        true
    }

    pub(in crate::history::report) fn items(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(number) => Some(&self.lists[number as usize]),
            _ => None,
        }
    }

    /// A dictionary's value: the last one where a key was set twice. Searches the last [`MAX_KEYS`].
    pub(in crate::history::report) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let Value::Dict(number) = dict else { return None };
        let key = *self.numbers.get(key)?;
        let mut entries = self.dicts[number as usize].iter().rev().take(MAX_KEYS);
        let mut steps = self.steps.get();
        let found = entries.find(|(of, _)| {
            steps += 1;
            *of == key
        });
        self.steps.set(steps);
        found.map(|(_, value)| *value)
    }

    pub(in crate::history::report) fn as_text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(number) => Some(&self.texts[number as usize]),
            _ => None,
        }
    }
}

/// A list or a dictionary without its items, in a table that has grown to twice its size.
const LIST: usize = 2 * size_of::<Vec<Value>>();
/// A text in both tables.
const TEXT: usize = 2 * (2 * size_of::<Cow<'static, str>>() + size_of::<u32>());

/// The bytes by which the items of a list have grown since it had room for `before` of them.
fn taken<T>(list: &Vec<T>, before: usize) -> usize {
    // The host's allocator needs some bytes for each of its blocks.
    const HEADER: usize = 16;
    match list.capacity() - before {
        0 => 0,
        more => more * size_of::<T>() + if before == 0 { HEADER } else { 0 },
    }
}
