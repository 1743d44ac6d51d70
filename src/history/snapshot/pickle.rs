//! Writes the dictionary in the subset of the pickle protocol that PyTorch's viewer reads: protocol 4, memoized by
//! number, never by `MEMOIZE`.

use std::collections::HashMap;
use std::io::{Result, Write};

use super::sink::{SharedValue, Sink};

/// The maximum of items in one `APPENDS` or `SETITEMS`: the viewer passes them as arguments of a call.
const BATCH: usize = 1000;

pub(in crate::history::snapshot) struct Pickle<W> {
    out: W,
    /// How many items each open list and dictionary has so far.
    open: Vec<usize>,
    memo: u32,
    shared: HashMap<SharedValue, u32>,
    keys: HashMap<(*const u8, usize), u32>,
    texts: HashMap<String, u32>,
}

impl<W: Write> Pickle<W> {
    pub(in crate::history::snapshot) fn new(out: W) -> Pickle<W> {
        Pickle {
            out,
            open: Vec::new(),
            memo: 0,
            shared: HashMap::new(),
            keys: HashMap::new(),
            texts: HashMap::new(),
        }
    }

    fn code(&mut self, code: u8, operand: &[u8]) -> Result<()> {
        self.out.write_all(&[code])?;
        self.out.write_all(operand)
    }

    /// Memoizes the value on top of the stack; returns its number.
    fn put(&mut self) -> Result<u32> {
        let number = self.memo;
        self.memo += 1;
        match u8::try_from(number) {
            Ok(short) => self.code(b'q', &[short])?,
            Err(_) => self.code(b'r', &number.to_le_bytes())?,
        }
        Ok(number)
    }

    fn get(&mut self, number: u32) -> Result<()> {
        match u8::try_from(number) {
            Ok(short) => self.code(b'h', &[short]),
            Err(_) => self.code(b'j', &number.to_le_bytes()),
        }
    }

    fn unicode(&mut self, text: &str) -> Result<()> {
        match u8::try_from(text.len()) {
            Ok(short) => self.code(0x8c, &[short])?,
            Err(_) => {
                let length = u32::try_from(text.len()).map_err(std::io::Error::other)?;
                self.code(b'X', &length.to_le_bytes())?;
            }
        }
        self.out.write_all(text.as_bytes())
    }

    fn begin(&mut self, code: u8, shared: Option<SharedValue>) -> Result<()> {
        self.code(code, &[])?;
        if let Some(shared) = shared {
            let number = self.put()?;
            self.shared.insert(shared, number);
        }
        self.open.push(0);
        Ok(())
    }

    /// Begins another item of the innermost list or dictionary. `finish` is the code that appends a batch.
    fn next(&mut self, finish: u8) -> Result<()> {
        let Some(count) = self.open.last_mut() else {
            return Ok(());
        };
        let before = *count;
        *count += 1;
        if before % BATCH == 0 {
            if before > 0 {
                self.code(finish, &[])?;
            }
            self.code(b'(', &[])?;
        }
        Ok(())
    }

    fn close(&mut self, finish: u8) -> Result<()> {
        match self.open.pop() {
            Some(1..) => self.code(finish, &[]),
            _ => Ok(()),
        }
    }
}

impl<W: Write> Sink for Pickle<W> {
    fn references(&self) -> bool {
        true
    }

    fn begin(&mut self) -> Result<()> {
        self.code(0x80, &[4])
    }

    fn end(&mut self) -> Result<()> {
        self.code(b'.', &[])?;
        self.out.flush()
    }

    fn begin_dict(&mut self, shared: Option<SharedValue>) -> Result<()> {
        Pickle::begin(self, b'}', shared)
    }

    fn key(&mut self, key: &'static str) -> Result<()> {
        self.next(b'u')?;
        match self.keys.get(&(key.as_ptr(), key.len())).copied() {
            Some(number) => self.get(number),
            None => {
                self.unicode(key)?;
                let number = self.put()?;
                self.keys.insert((key.as_ptr(), key.len()), number);
                Ok(())
            }
        }
    }

    fn end_dict(&mut self) -> Result<()> {
        self.close(b'u')
    }

    fn begin_list(&mut self, shared: Option<SharedValue>) -> Result<()> {
        Pickle::begin(self, b']', shared)
    }

    fn item(&mut self) -> Result<()> {
        self.next(b'e')
    }

    fn end_list(&mut self) -> Result<()> {
        self.close(b'e')
    }

    fn again(&mut self, shared: SharedValue) -> Result<bool> {
        match self.shared.get(&shared).copied() {
            Some(number) => self.get(number).map(|()| true),
            None => Ok(false),
        }
    }

    fn integer(&mut self, value: i64) -> Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            return self.code(b'K', &[byte]);
        }
        if let Ok(two) = u16::try_from(value) {
            return self.code(b'M', &two.to_le_bytes());
        }
        if let Ok(four) = i32::try_from(value) {
            return self.code(b'J', &four.to_le_bytes());
        }
        // LONG1: the fewest bytes that hold the number and its sign.
        let bytes = value.to_le_bytes();
        let length = (value.unsigned_abs().ilog2() as usize + 1) / 8 + 1;
        let length = length.min(8);
        self.code(0x8a, &[length as u8])?;
        self.out.write_all(&bytes[..length])
    }

    fn float(&mut self, value: f64) -> Result<()> {
        self.code(b'G', &value.to_be_bytes())
    }

    fn boolean(&mut self, value: bool) -> Result<()> {
        self.code(if value { 0x88 } else { 0x89 }, &[])
    }

    fn text(&mut self, text: &str) -> Result<()> {
        if let Some(number) = self.texts.get(text).copied() {
            return self.get(number);
        }
        self.unicode(text)?;
        let number = self.put()?;
        self.texts.insert(text.to_owned(), number);
        Ok(())
    }

    fn pair(&mut self, pair: (i64, i64)) -> Result<()> {
        self.integer(pair.0)?;
        self.integer(pair.1)?;
        self.code(0x86, &[])
    }
}
