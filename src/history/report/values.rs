//! The parsed values of a file: lists, dictionaries and texts in tables. A value is an index, so shared values and
//! lists that contain themselves need no special care, and nothing here recurses.

use std::borrow::Cow;
use std::collections::HashMap;

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

/// The tables. Each entry takes bytes of the file, so the tables are at most a few times as large as the file.
#[derive(Debug, Default)]
pub(in crate::history::report) struct Values<'a> {
    texts: Vec<Cow<'a, str>>,
    numbers: HashMap<Cow<'a, str>, u32>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(u32, Value)>>,
}

impl<'a> Values<'a> {
    /// Adds a text; equal texts share one entry.
    pub(in crate::history::report) fn text(&mut self, text: Cow<'a, str>) -> Value {
        if let Some(number) = self.numbers.get(&text) {
            return Value::Text(*number);
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        Value::Text(number)
    }

    pub(in crate::history::report) fn list(&mut self, items: Vec<Value>) -> Value {
        self.lists.push(items);
        Value::List(self.lists.len() as u32 - 1)
    }

    pub(in crate::history::report) fn dict(&mut self) -> Value {
        self.dicts.push(Vec::new());
        Value::Dict(self.dicts.len() as u32 - 1)
    }

    /// Appends to `list`; returns false where it is not a list.
    pub(in crate::history::report) fn append(&mut self, list: Value, items: impl Iterator<Item = Value>) -> bool {
        match list {
            Value::List(number) => self.lists[number as usize].extend(items),
            _ => return false,
        }
        true
    }

    /// Sets a key; returns false where `dict` is not a dictionary or `key` not a text.
    pub(in crate::history::report) fn set(&mut self, dict: Value, key: Value, value: Value) -> bool {
        match (dict, key) {
            (Value::Dict(number), Value::Text(key)) => self.dicts[number as usize].push((key, value)),
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
        entries.find(|(of, _)| *of == key).map(|(_, value)| *value)
    }

    pub(in crate::history::report) fn as_text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(number) => Some(&self.texts[number as usize]),
            _ => None,
        }
    }
}
