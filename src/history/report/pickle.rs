//! Reads pickles of plain values, protocols 2 to 5: whatever Python's own pickler writes for lists, tuples,
//! dictionaries, texts, numbers, booleans and None. Opcodes that call into Python are refused.

use std::collections::HashMap;

use super::values::{Fault, Value, Values};

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Values<'a>,
    stack: Vec<Value>,
    /// The height of the stack at each open `MARK`.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
}

/// Parses a pickle into its value.
pub(in crate::history::report) fn read(bytes: &[u8]) -> Result<(Values<'_>, Value), Fault> {
    let mut reader = Reader {
        bytes,
        at: 0,
        values: Values::new(bytes.len()),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    match bytes {
        [0x80, 2..=5, ..] => {}
        [0x80, protocol, ..] => return Err(format!("a pickle of protocol {protocol}, not of 2 to 5")),
        _ => return Err("not a pickle of protocol 2 or later".into()),
    }
    loop {
        let start = reader.at;
        let code = reader.byte().map_err(|fault| at(start, fault))?;
        if code == b'.' {
            break;
        }
        reader.step(code).map_err(|fault| at(start, fault))?;
        reader
            .values
            .check_bytes(reader.own_bytes())
            .map_err(|fault| at(start, fault))?;
    }
    let value = reader.pop().map_err(|fault| at(reader.at, fault))?;
    Ok((reader.values, value))
}

fn at(place: usize, fault: Fault) -> Fault {
    format!("{fault} (at byte {place})")
}

impl<'a> Reader<'a> {
    /// The memory of the stack, the marks and the memo.
    fn own_bytes(&self) -> usize {
        /// A table of hashes is at least half full.
        const MEMO: usize = 2 * size_of::<(u32, Value)>();
        self.stack.capacity() * size_of::<Value>() + self.marks.capacity() * size_of::<usize>() + self.memo.len() * MEMO
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let bytes: &'a [u8] = self.bytes;
        let end = self.at.checked_add(count).filter(|end| *end <= bytes.len());
        let end = end.ok_or("the file ends in the middle")?;
        let taken = &bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        Ok(self.take(1)?[0])
    }

    fn word(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn length(&mut self) -> Result<usize, Fault> {
        let length = u64::from_le_bytes(self.array()?);
        usize::try_from(length).map_err(|_| "the file ends in the middle".into())
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(value) if self.stack.len() >= floor => Ok(value),
            _ => Err("a value is missing".into()),
        }
    }

    fn top(&self) -> Result<Value, Fault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let top = self.stack.last().filter(|_| self.stack.len() > floor);
        top.copied().ok_or_else(|| "a value is missing".into())
    }

    /// Pops all values above the last `MARK`.
    fn marked(&mut self) -> Result<Vec<Value>, Fault> {
        let mark = self.marks.pop().ok_or("a mark is missing")?;
        Ok(self.stack.split_off(mark))
    }

    fn step(&mut self, code: u8) -> Result<(), Fault> {
        match code {
            // PROTO and FRAME carry nothing that is needed.
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'N' => self.stack.push(Value::None),
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            b'(' | b')' | b']' | b'}' | b'l' | b't' | b'd' | b'a' | b'e' | b's' | b'u' | 0x85..=0x87 => {
                self.container(code)?;
            }
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memo(code)?,
            b'0' => drop(self.pop()?),
            b'1' => drop(self.marked()?),
            b'2' => self.stack.push(self.top()?),
            _ => {
                let value = self.plain(code)?;
                self.stack.push(value);
            }
        }
        Ok(())
    }

    fn container(&mut self, code: u8) -> Result<(), Fault> {
        match code {
            b'(' => self.marks.push(self.stack.len()),
            b')' | b']' => {
                let list = self.values.list(Vec::new());
                self.stack.push(list);
            }
            b'}' => {
                let dict = self.values.dict();
                self.stack.push(dict);
            }
            b'l' | b't' => {
                let items = self.marked()?;
                let list = self.values.list(items);
                self.stack.push(list);
            }
            0x85..=0x87 => {
                let mut items = Vec::new();
                for _ in 0x85..=code {
                    items.push(self.pop()?);
                }
                items.reverse();
                let list = self.values.list(items);
                self.stack.push(list);
            }
            b'd' => {
                let items = self.marked()?;
                let dict = self.values.dict();
                self.stack.push(dict);
                self.set(dict, &items)?;
            }
            b'a' | b'e' => {
                let items = if code == b'a' {
                    vec![self.pop()?]
                } else {
                    self.marked()?
                };
                let list = self.top()?;
                if !self.values.append(list, items.into_iter()) {
                    return Err("an append to a value that is no list".into());
                }
            }
            _ => {
                let items = if code == b's' {
                    let value = self.pop()?;
                    vec![self.pop()?, value]
                } else {
                    self.marked()?
                };
                let dict = self.top()?;
                self.set(dict, &items)?;
            }
        }
        Ok(())
    }

    fn set(&mut self, dict: Value, items: &[Value]) -> Result<(), Fault> {
        let (pairs, rest) = items.as_chunks::<2>();
        self.values.reserve(dict, pairs.len());
        if !rest.is_empty() || !pairs.iter().all(|[key, value]| self.values.set(dict, *key, *value)) {
            return Err("a dictionary's key is no text or has no value".into());
        }
        Ok(())
    }

    fn memo(&mut self, code: u8) -> Result<(), Fault> {
        let number = match code {
            b'q' | b'h' => u32::from(self.byte()?),
            b'r' | b'j' => self.word()?,
            _ => self.memo.len() as u32,
        };
        match code {
            b'h' | b'j' => {
                let value = self.memo.get(&number);
                let value = value.ok_or_else(|| format!("memo {number} is used before it is set"))?;
                self.stack.push(*value);
            }
            _ => drop(self.memo.insert(number, self.top()?)),
        }
        Ok(())
    }

    fn plain(&mut self, code: u8) -> Result<Value, Fault> {
        Ok(match code {
            b'J' => Value::Int(i32::from_le_bytes(self.array()?).into()),
            b'K' => Value::Int(self.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.array()?).into()),
            0x8a => {
                let count = self.byte()?.into();
                whole(self.take(count)?)
            }
            0x8b => {
                let count = i32::from_le_bytes(self.array()?);
                let count = usize::try_from(count).map_err(|_| "a number with a negative length")?;
                whole(self.take(count)?)
            }
            b'G' => Value::Float(f64::from_be_bytes(self.array()?)),
            b'X' | 0x8c | 0x8d => {
                let count = match code {
                    b'X' => self.word()? as usize,
                    0x8c => self.byte()?.into(),
                    _ => self.length()?,
                };
                let text = String::from_utf8_lossy(self.take(count)?);
                self.values.text(text)
            }
            b'B' | b'C' | 0x8e => {
                let count = match code {
                    b'B' => self.word()? as usize,
                    b'C' => self.byte()?.into(),
                    _ => self.length()?,
                };
                self.take(count)?;
                Value::Other
            }
            b'c' | 0x93 | b'R' | 0x81 | 0x92 | b'b' | b'o' | b'i' | b'P' | b'Q' => {
                return Err("it makes objects of Python's classes; a snapshot has plain values only".into());
            }
            _ => return Err(format!("an unknown opcode: {code:#04x}")),
        })
    }
}

/// Converts a little-endian number whose last byte has the sign.
fn whole(bytes: &[u8]) -> Value {
    let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut wide = if negative { [0xff; 16] } else { [0; 16] };
    if bytes.len() > wide.len() {
        return Value::Other;
    }
    wide[..bytes.len()].copy_from_slice(bytes);
    let wide = i128::from_le_bytes(wide);
    match (i64::try_from(wide), u64::try_from(wide)) {
        (Ok(value), _) => Value::Int(value),
        (_, Ok(value)) => Value::Large(value),
        _ => Value::Other,
    }
}
