//! Writes the dictionary as JSON. A tuple becomes an array.
//!
//! It is not serde_json: each process that loads the library would load that too, and a process that is out of memory writes its
//! snapshot without holding it in memory.

use std::io::{Result, Write};

use super::sink::{SharedValue, Sink};

pub(in crate::history::snapshot) struct Json<W> {
    out: W,
    /// For each open list and dictionary, whether it has an item already.
    open: Vec<bool>,
}

impl<W: Write> Json<W> {
    pub(in crate::history::snapshot) fn new(out: W) -> Json<W> {
        Json { out, open: Vec::new() }
    }

    fn string(&mut self, text: &str) -> Result<()> {
        self.out.write_all(b"\"")?;
        let mut from = 0;
        for (at, byte) in text.bytes().enumerate() {
            if byte >= 0x20 && byte != b'"' && byte != b'\\' {
                continue;
            }
            self.out.write_all(&text.as_bytes()[from..at])?;
            match byte {
                b'"' => self.out.write_all(b"\\\"")?,
                b'\\' => self.out.write_all(b"\\\\")?,
                _ => write!(self.out, "\\u{byte:04x}")?,
            }
            from = at + 1;
        }
        self.out.write_all(&text.as_bytes()[from..])?;
        self.out.write_all(b"\"")
    }

    fn begin(&mut self, bracket: &[u8]) -> Result<()> {
        self.open.push(false);
        self.out.write_all(bracket)
    }

    fn close(&mut self, bracket: &[u8]) -> Result<()> {
        self.open.pop();
        self.out.write_all(bracket)
    }
}

impl<W: Write> Sink for Json<W> {
    fn references(&self) -> bool {
        false
    }

    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    fn begin_dict(&mut self, _: Option<SharedValue>) -> Result<()> {
        Json::begin(self, b"{")
    }

    fn key(&mut self, key: &'static str) -> Result<()> {
        self.item()?;
        self.string(key)?;
        self.out.write_all(b":")
    }

    fn end_dict(&mut self) -> Result<()> {
        self.close(b"}")
    }

    fn begin_list(&mut self, _: Option<SharedValue>) -> Result<()> {
        Json::begin(self, b"[")
    }

    fn item(&mut self) -> Result<()> {
        match self.open.last_mut().map(|some| std::mem::replace(some, true)) {
            Some(true) => self.out.write_all(b","),
            _ => Ok(()),
        }
    }

    fn end_list(&mut self) -> Result<()> {
        self.close(b"]")
    }

    fn again(&mut self, _: SharedValue) -> Result<bool> {
        Ok(false)
    }

    fn integer(&mut self, value: i64) -> Result<()> {
        write!(self.out, "{value}")
    }

    fn float(&mut self, value: f64) -> Result<()> {
        write!(self.out, "{value:?}")
    }

    fn boolean(&mut self, value: bool) -> Result<()> {
        write!(self.out, "{value}")
    }

    fn text(&mut self, text: &str) -> Result<()> {
        self.string(text)
    }

    fn pair(&mut self, pair: (i64, i64)) -> Result<()> {
        write!(self.out, "[{},{}]", pair.0, pair.1)
    }
}
