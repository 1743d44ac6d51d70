//! Reads JSON, written by this library or by others.
//!
//! It is not serde_json, since the files may be hostile: serde_json's values recurse, so it refuses deep files by a
//! limit on the nesting, and a small file may become a tree many times its size. Here no function recurses, and values
//! are numbers into tables ([`Values`]) whose size has a limit.

use std::borrow::Cow;

use super::values::{Fault, Value, Values};

struct Reader<'a> {
    text: &'a str,
    at: usize,
    values: Values<'a>,
}

/// Parses the text into its value.
pub(in crate::history::report) fn read(bytes: &[u8]) -> Result<(Values<'_>, Value), Fault> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8 (at byte {})", error.valid_up_to()))?;
    let mut reader = Reader {
        text,
        at: 0,
        values: Values::new(bytes.len()),
    };
    let value = reader.whole();
    match value {
        Ok(value) => Ok((reader.values, value)),
        Err(fault) => Err(format!("{fault} (at byte {})", reader.at)),
    }
}

/// An open list, or an open dictionary with the key of its next value.
enum Open {
    List(Value),
    Dict(Value, Option<Value>),
}

impl<'a> Reader<'a> {
    fn whole(&mut self) -> Result<Value, Fault> {
        let mut open: Vec<Open> = Vec::new();
        loop {
            self.values.check_bytes(open.capacity() * size_of::<Open>())?;
            let mut value = match self.next()? {
                b'[' => {
                    let list = self.values.list(Vec::new());
                    if !self.closes(b']') {
                        open.push(Open::List(list));
                        continue;
                    }
                    list
                }
                b'{' => {
                    let dict = self.values.dict();
                    if !self.closes(b'}') {
                        let key = self.key()?;
                        open.push(Open::Dict(dict, Some(key)));
                        continue;
                    }
                    dict
                }
                first => self.plain(first)?,
            };
            // Adds the value to the innermost list or dictionary, and closes those that end here.
            loop {
                let Some(innermost) = open.last_mut() else {
                    return match self.peek() {
                        None => Ok(value),
                        Some(_) => Err("something follows the end".into()),
                    };
                };
                let end = match innermost {
                    Open::List(list) => {
                        self.values.append(*list, std::iter::once(value));
                        b']'
                    }
                    Open::Dict(dict, key) => {
                        let key = key.take().ok_or("a key is missing")?;
                        self.values.set(*dict, key, value);
                        b'}'
                    }
                };
                match (self.next()?, innermost) {
                    (b',', Open::List(_)) => break,
                    (b',', Open::Dict(_, key)) => {
                        *key = Some(self.key()?);
                        break;
                    }
                    (code, Open::List(closed) | Open::Dict(closed, _)) if code == end => {
                        value = *closed;
                        open.pop();
                    }
                    _ => return Err("a comma or the end of a list is missing".into()),
                }
            }
        }
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let space = |byte: &&u8| matches!(**byte, b' ' | b'\t' | b'\r' | b'\n');
        self.at += self.rest().iter().take_while(space).count();
        self.rest().first().copied()
    }

    fn next(&mut self) -> Result<u8, Fault> {
        let byte = self.peek().ok_or("the file ends in the middle")?;
        self.at += 1;
        Ok(byte)
    }

    fn closes(&mut self, end: u8) -> bool {
        let closes = self.peek() == Some(end);
        self.at += usize::from(closes);
        closes
    }

    fn key(&mut self) -> Result<Value, Fault> {
        if self.next()? != b'"' {
            return Err("a key is no text".into());
        }
        let key = self.string()?;
        match self.next()? {
            b':' => Ok(key),
            _ => Err("a colon is missing".into()),
        }
    }

    fn plain(&mut self, first: u8) -> Result<Value, Fault> {
        if first == b'"' {
            return self.string();
        }
        let start = self.at - 1;
        let word = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(**byte, b'.' | b'+' | b'-');
        self.at += self.rest().iter().take_while(word).count();
        // The byte before may be a part of a character.
        let text = self.text.get(start..self.at).unwrap_or_default();
        match text {
            "null" => return Ok(Value::None),
            "true" => return Ok(Value::Bool(true)),
            "false" => return Ok(Value::Bool(false)),
            "NaN" | "Infinity" | "-Infinity" => return Ok(Value::Other),
            _ => {}
        }
        if !text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
            return Err("not a JSON value".into());
        }
        if let Ok(value) = text.parse::<i64>() {
            return Ok(Value::Int(value));
        }
        if let Ok(value) = text.parse::<u64>() {
            return Ok(Value::Large(value));
        }
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Value::Float(value)),
            _ => Err("not a JSON value".into()),
        }
    }

    /// Reads a text after its opening quote.
    fn string(&mut self) -> Result<Value, Fault> {
        let start = self.at;
        let mut owned: Option<String> = None;
        let mut from = start;
        loop {
            let special = |byte: &u8| matches!(*byte, b'"' | b'\\' | 0..0x20);
            let length = self.rest().iter().position(special).ok_or("a text has no end")?;
            self.at += length;
            let plain = &self.text[from..self.at];
            match self.rest()[0] {
                b'"' => {
                    self.at += 1;
                    let text = match owned {
                        Some(text) => Cow::Owned(text + plain),
                        None => Cow::Borrowed(plain),
                    };
                    return Ok(self.values.text(text));
                }
                b'\\' => {
                    let text = owned.get_or_insert_default();
                    text.push_str(plain);
                    self.at += 1;
                    let c = self.escape()?;
                    owned.get_or_insert_default().push(c);
                    from = self.at;
                }
                _ => return Err("a control character in a text".into()),
            }
        }
    }

    /// Reads an escape sequence after its backslash.
    fn escape(&mut self) -> Result<char, Fault> {
        let code = *self.rest().first().ok_or("the file ends in the middle")?;
        self.at += 1;
        Ok(match code {
            b'"' | b'\\' | b'/' => char::from(code),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                // A surrogate pair, if the second half follows.
                if (0xd800..0xdc00).contains(&first) && self.rest().starts_with(b"\\u") {
                    let before = self.at;
                    self.at += 2;
                    let second = self.hex()?;
                    if (0xdc00..0xe000).contains(&second) {
                        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                        return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    self.at = before;
                }
                char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err("an unknown escape sequence".into()),
        })
    }

    fn hex(&mut self) -> Result<u32, Fault> {
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        self.at += 4;
        let value = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        value.ok_or_else(|| "four digits are missing".into())
    }
}
