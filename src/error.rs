//! What can go wrong, in one enum, and this thread's last failure in words.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use crate::driver::DriverError;

/// Every failure a call of this library can report.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The caller passed something that has no meaning: the message says what.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// The request cannot be met within the limit and the device's memory.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// Not built, not available on this driver, or not possible for this block.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// A driver call failed.
    #[error("driver: {0}")]
    Driver(#[from] DriverError),
    /// The context was reset or carries an error that will not go away: no request of that device is met any more.
    #[error("driver: the pool is dead: {0}")]
    Dead(String),
    /// A file could not be read or written.
    #[error("io: {0}")]
    Io(String),
    /// A panic inside the library was caught at its boundary.
    #[error("panic: {0}")]
    Panic(String),
}

/// The library's own result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The numbers of `trtalloc_status`.
    pub fn status(&self) -> i32 {
        match self {
            Error::InvalidArgument(_) => 1,
            Error::OutOfMemory(_) => 2,
            Error::Unsupported(_) => 3,
            Error::Driver(_) | Error::Dead(_) => 4,
            Error::Io(_) => 5,
            Error::Panic(_) => 6,
        }
    }
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Keeps `error` as this thread's last failure. Does nothing while the thread's locals are being destroyed.
pub fn remember(error: &Error) {
    let text: String = error.to_string().chars().filter(|c| *c != '\0').collect();
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(text).ok());
}

/// This thread's last failure as a C string, empty where there was none; valid until this thread's next failure.
pub fn last() -> *const c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ref().map_or(NONE.as_ptr(), |text| text.as_ptr()))
        .unwrap_or(NONE.as_ptr())
}
