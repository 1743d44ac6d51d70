//! Reads the JSON that a process sends: objects of numbers and texts, and lists of such objects.

use std::collections::BTreeMap;

use trtalloc::error::{Error, Result};

/// How deep objects may lie in each other.
const DEPTH: usize = 4;

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Number(u64),
    Text(String),
    List(Vec<Object>),
}

/// An object.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Object(BTreeMap<String, Value>);

impl Object {
    /// A number; 0 where there is none.
    pub fn number(&self, key: &str) -> u64 {
        match self.0.get(key) {
            Some(Value::Number(number)) => *number,
            _ => 0,
        }
    }

    /// A text; empty where there is none.
    pub fn text(&self, key: &str) -> &str {
        match self.0.get(key) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// A list; empty where there is none.
    pub fn list(&self, key: &str) -> &[Object] {
        match self.0.get(key) {
            Some(Value::List(list)) => list,
            _ => &[],
        }
    }
}

/// Reads one object a line.
pub fn lines(text: &str) -> Result<Vec<Object>> {
    let read = |line: &str| {
        let mut reader = Reader { rest: line };
        let object = reader.object(0).filter(|_| reader.rest.is_empty());
        object.ok_or_else(|| Error::Io("the process's answer cannot be read".into()))
    };
    text.lines().map(read).collect()
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn take(&mut self, text: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    /// Reads items and the commas between them up to `end`.
    fn items(&mut self, end: &str, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if self.take(end).is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            if self.take(end).is_some() {
                return Some(());
            }
            self.take(",")?;
        }
    }

    fn object(&mut self, depth: usize) -> Option<Object> {
        let mut object = Object::default();
        self.take("{").filter(|()| depth < DEPTH)?;
        self.items("}", |reader| {
            let key = reader.text()?;
            reader.take(":")?;
            object.0.insert(key, reader.value(depth)?);
            Some(())
        })?;
        Some(object)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if self.rest.starts_with('"') {
            return self.text().map(Value::Text);
        }
        if self.take("[").is_some() {
            let mut list = Vec::new();
            self.items("]", |reader| {
                list.push(reader.object(depth + 1)?);
                Some(())
            })?;
            return Some(Value::List(list));
        }
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits.parse().ok().map(Value::Number)
    }

    fn text(&mut self) -> Option<String> {
        self.take("\"")?;
        let mut text = String::new();
        let mut characters = self.rest.chars();
        loop {
            match characters.next()? {
                '"' => break,
                '\\' => match characters.next()? {
                    'u' => {
                        let code = characters.as_str().get(..4)?;
                        text.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
                        characters = characters.as_str()[4..].chars();
                    }
                    c => text.push(c),
                },
                c => text.push(c),
            }
        }
        self.rest = characters.as_str();
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_sends_is_read() {
        let line = r#"{"allocator":0,"device":1,"reserved":18446744073709551615,"tags":[{"tag":"a \"b\" \\ \u000aü","limit":3},{}]}"#;
        let objects = lines(&format!("{line}\n{{}}\n")).unwrap();
        assert_eq!(objects.len(), 2);
        assert_eq!(
            (objects[0].number("device"), objects[0].number("reserved")),
            (1, u64::MAX)
        );
        let tags = objects[0].list("tags");
        assert_eq!((tags[0].text("tag"), tags[0].number("limit")), ("a \"b\" \\ \nü", 3));
        assert!(objects[1] == Object::default() && objects[1].list("tags").is_empty());
        for length in 1..line.len() {
            if line.is_char_boundary(length) {
                assert!(lines(&line[..length]).is_err(), "{length}");
            }
        }
        let deep = r#"{"a":["#.repeat(1000);
        for other in ["{}}", "[]", "{\"a\":-1}", "{\"a\":1,}", "{\"a\":\"\\u00\"}", &deep] {
            assert!(lines(other).is_err(), "{other}");
        }
    }
}
