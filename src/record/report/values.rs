//! What a file of plain values says: lists, dictionaries, texts and numbers in tables of their own, so that a value that is
//! shared, or contains itself, is a number like any other, and nothing here calls itself.

use std::borrow::Cow;
use std::collections::HashMap;

/// Keys of a dictionary that are looked at: several times what any of a snapshot has.
const MOST: usize = 256;

/// A value. Those of any size are places in the tables of [`Values`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer from 2^63, as addresses may be.
    Large(u64),
    /// A number, or bytes, that nothing in a snapshot is.
    Other,
    Float(f64),
    Text(u32),
    /// A list or a tuple.
    List(u32),
    Dict(u32),
}

/// The tables. Every entry was paid for by bytes of the file, so that they cannot be larger than some times the file.
#[derive(Debug, Default)]
pub(super) struct Values<'a> {
    texts: Vec<Cow<'a, str>>,
    numbers: HashMap<Cow<'a, str>, u32>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(u32, Value)>>,
}

impl<'a> Values<'a> {
    /// The same text is one entry.
    pub(super) fn text(&mut self, text: Cow<'a, str>) -> Value {
        if let Some(number) = self.numbers.get(&text) {
            return Value::Text(*number);
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        Value::Text(number)
    }

    pub(super) fn list(&mut self, items: Vec<Value>) -> Value {
        self.lists.push(items);
        Value::List(self.lists.len() as u32 - 1)
    }

    pub(super) fn dict(&mut self) -> Value {
        self.dicts.push(Vec::new());
        Value::Dict(self.dicts.len() as u32 - 1)
    }

    /// False where `list` is none.
    pub(super) fn append(&mut self, list: Value, items: impl Iterator<Item = Value>) -> bool {
        match list {
            Value::List(number) => self.lists[number as usize].extend(items),
            _ => return false,
        }
        true
    }

    /// False where `dict` is none, or `key` no text.
    pub(super) fn set(&mut self, dict: Value, key: Value, value: Value) -> bool {
        match (dict, key) {
            (Value::Dict(number), Value::Text(key)) => self.dicts[number as usize].push((key, value)),
            _ => return false,
        }
        true
    }

    pub(super) fn items(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(number) => Some(&self.lists[number as usize]),
            _ => None,
        }
    }

    /// A dictionary's value; the last one, where a key was set twice. Looked for among the last [`MOST`].
    pub(super) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let Value::Dict(number) = dict else { return None };
        let key = *self.numbers.get(key)?;
        let mut entries = self.dicts[number as usize].iter().rev().take(MOST);
        entries.find(|(of, _)| *of == key).map(|(_, value)| *value)
    }

    pub(super) fn as_text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(number) => Some(&self.texts[number as usize]),
            _ => None,
        }
    }
}
