//! The interface of a format: a dictionary is written value by value.

use std::io::Result;

/// A value that is written once and referred to afterwards, where the format can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::history::snapshot) enum SharedValue {
    /// One frame of a stack.
    Frame(u32),
    /// The frames of a stack.
    Stack(u32),
}

/// A format. Values of a dictionary follow their keys; [`Sink::item`] announces each value of a list.
pub(in crate::history::snapshot) trait Sink {
    /// Whether the format can refer to a value that it has written. A format that cannot gets the stacks as tables, and
    /// entries without the values that all of them have.
    fn references(&self) -> bool;
    /// Begins the file.
    fn begin(&mut self) -> Result<()>;
    /// Ends the file.
    fn end(&mut self) -> Result<()>;
    fn begin_dict(&mut self, shared: Option<SharedValue>) -> Result<()>;
    /// Writes a key. Keys are few and compile-time constants.
    fn key(&mut self, key: &'static str) -> Result<()>;
    fn end_dict(&mut self) -> Result<()>;
    fn begin_list(&mut self, shared: Option<SharedValue>) -> Result<()>;
    fn item(&mut self) -> Result<()>;
    fn end_list(&mut self) -> Result<()>;
    /// Refers to the shared value if it was written before; returns false where it was not.
    fn again(&mut self, shared: SharedValue) -> Result<bool>;
    fn integer(&mut self, value: i64) -> Result<()>;
    fn float(&mut self, value: f64) -> Result<()>;
    fn boolean(&mut self, value: bool) -> Result<()>;
    fn text(&mut self, text: &str) -> Result<()>;
    fn pair(&mut self, pair: (i64, i64)) -> Result<()>;
}
