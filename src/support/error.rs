//! The library's errors, and each thread's last failure as text and as a number.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::ptr::null_mut;

use crate::driver::DriverError;

/// Every failure that a call of this library can report.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// An argument is invalid. The text says which, and why.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// The request cannot be satisfied within the limit and the device's memory.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// Not included in this build, or not possible with this driver or for this block.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// A driver call failed.
    #[error("driver: {0}")]
    Driver(#[from] DriverError),
    /// The context was reset, or has an error that persists. Every request on that device is refused from now on.
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
    // A number has no destructor, so it can be read until the thread's end, even after the text was destroyed.
    static LAST_STATUS: Cell<i32> = const { Cell::new(0) };
    // The text of a failure after `LAST` was destroyed: in destructors of a thread's locals, and while the process exits
    // in those of static objects. A pointer has no destructor, so the last such text of a thread is never freed.
    static LATE: Cell<*mut c_char> = const { Cell::new(null_mut()) };
}

/// Stores `error` as this thread's last failure.
pub fn remember(error: &Error) {
    let _ = LAST_STATUS.try_with(|last| last.set(error.status()));
    let text: String = error.to_string().chars().filter(|c| *c != '\0').collect();
    let mut text = CString::new(text).ok();
    if LAST.try_with(|last| *last.borrow_mut() = text.take()).is_err() {
        let late = text.map_or(null_mut(), CString::into_raw);
        let before = LATE.try_with(|last| last.replace(late)).unwrap_or(null_mut());
        if !before.is_null() {
            // SAFETY: from `into_raw` above, and no longer in `LATE`.
            drop(unsafe { CString::from_raw(before) });
        }
    }
}

/// This thread's last failure as a C string; empty if there was none. Valid until this thread's next failure. While a
/// thread ends, the text of an earlier failure is gone.
pub fn last() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ref().map(|text| text.as_ptr()));
    let late = || LATE.try_with(|last| last.get().cast_const()).ok();
    let text = text.unwrap_or_else(|_| late().filter(|text| !text.is_null()));
    text.unwrap_or(c"".as_ptr())
}

/// The number of this thread's last failure, as [`Error::status`] returns it; 0 if there was none.
pub fn last_status() -> i32 {
    LAST_STATUS.try_with(Cell::get).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn text() -> String {
        // SAFETY: a C string, valid until this thread's next failure.
        unsafe { CStr::from_ptr(last()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn text_and_number_belong_to_one_failure_of_one_thread() {
        let errors = [
            Error::InvalidArgument("a".into()),
            Error::OutOfMemory("b".into()),
            Error::Unsupported("c".into()),
            Error::Dead("d".into()),
            Error::Io("e".into()),
            Error::Panic("f".into()),
        ];
        for (error, status) in errors.iter().zip(1..) {
            remember(error);
            assert_eq!((text(), last_status()), (error.to_string(), status));
        }
        std::thread::spawn(|| assert_eq!((text(), last_status()), (String::new(), 0)))
            .join()
            .unwrap();
        assert_eq!(last_status(), 6);
    }

    #[test]
    fn failure_is_readable_in_destructors_of_thread_locals() {
        struct Late(std::sync::mpsc::Sender<(i32, String)>);
        impl Drop for Late {
            fn drop(&mut self) {
                for reason in ["late", "later"] {
                    remember(&Error::OutOfMemory(reason.into()));
                    self.0.send((last_status(), text())).unwrap();
                }
            }
        }
        thread_local! {
            static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // Locals are destroyed in reverse order of their first use, so the text is destroyed before this one.
            LATE.with(|late| *late.borrow_mut() = Some(Late(sender)));
            remember(&Error::Io("early".into()));
        })
        .join()
        .unwrap();
        for reason in ["out of memory: late", "out of memory: later"] {
            assert_eq!(receiver.recv(), Ok((2, reason.to_owned())));
        }
    }
}
