//! Runs one call from another language: catches panics, and records and logs failures.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::allocator::Request;
use crate::driver::Stream;
use crate::ffi::ExportedAllocator;
use crate::support::error::{self, Error, Result};
use crate::support::process;
use crate::support::tags::Tag;

/// Runs `body`, but not in a forked child: there `body` might wait for a lock that no thread will release. On an error or a
/// panic it returns `failed`, records the error as this thread's last, and logs a line that names `call`.
#[inline]
pub(crate) fn guarded<T>(call: &'static str, failed: T, body: impl FnOnce() -> Result<T>) -> T {
    caught(call, failed, || {
        process::no_child()?;
        body()
    })
}

/// As [`guarded`], for a `body` that looks for the fork itself before it takes a lock.
#[inline]
fn caught<T>(call: &'static str, failed: T, body: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            report(call, &error);
            failed
        }
        Err(payload) => {
            report(call, &Error::Panic(panic_text(payload)));
            failed
        }
    }
}

/// As [`guarded`], for calls whose only result is a status: returns a number of `trtalloc_status`.
pub(crate) fn status(call: &'static str, body: impl FnOnce() -> Result<()>) -> i32 {
    let mut status = Error::Panic(String::new()).status();
    caught(call, (), || match process::no_child().and_then(|()| body()) {
        Ok(()) => {
            status = 0;
            Ok(())
        }
        Err(error) => {
            status = error.status();
            Err(error)
        }
    });
    status
}

#[cold]
pub(crate) fn report(call: &'static str, error: &Error) {
    error::remember(error);
    crate::support::log::init_from_environment();
    match error {
        // TensorRT's builder makes requests that it expects to be refused.
        Error::OutOfMemory(_) | Error::Unsupported(_) => tracing::debug!("{call}: {error}"),
        Error::InvalidArgument(_) | Error::Driver(_) | Error::Dead(_) | Error::Io(_) => {
            tracing::warn!("{call}: {error}")
        }
        Error::Panic(_) => tracing::error!("{call}: {error}"),
    }
}

#[cold]
fn panic_text(payload: Box<dyn Any + Send>) -> String {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        return (*text).to_owned();
    }
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => {
            // Its destructor might panic in turn.
            std::mem::forget(other);
            "of an unknown kind".to_owned()
        }
    }
}

/// A block's address, or 0. A request of size 0 is refused without a line in the log, since TensorRT may make one.
#[inline]
pub(crate) fn allocate(call: &'static str, exported: &ExportedAllocator, request: &Request) -> usize {
    if request.size == 0 {
        return refuse_nothing();
    }
    caught(call, 0, || Ok(exported.allocator()?.serve(request)? as usize))
}

/// As [`allocate`], for a block that counts for `tag`.
#[inline]
pub(crate) fn allocate_for(call: &'static str, exported: &ExportedAllocator, request: &Request, tag: Tag) -> usize {
    if request.size == 0 {
        return refuse_nothing();
    }
    caught(call, 0, || {
        Ok(exported.allocator()?.allocate_for(request, tag)? as usize)
    })
}

#[cold]
fn refuse_nothing() -> usize {
    error::remember(&Error::InvalidArgument("size is 0".into()));
    0
}

/// The resized block's address. 0 on failure; the old block is then unchanged.
#[inline]
pub(crate) fn reallocate(
    call: &'static str,
    exported: &ExportedAllocator,
    address: usize,
    alignment: u64,
    new_size: u64,
) -> usize {
    caught(call, 0, || {
        let allocator = exported.existing().ok_or_else(foreign)?;
        Ok(allocator.reallocate(address as u64, alignment, new_size)? as usize)
    })
}

/// Whether the block was freed. Address 0 counts as freed.
#[inline]
pub(crate) fn deallocate(
    call: &'static str,
    exported: &ExportedAllocator,
    memory: usize,
    stream: Option<Stream>,
) -> bool {
    if memory == 0 {
        return true;
    }
    caught(call, false, || {
        let allocator = exported.existing().ok_or_else(foreign)?;
        allocator.deallocate(memory as u64, stream)?;
        Ok(true)
    })
}

/// The error for an address that is passed to an allocator which has not allocated anything yet.
#[cold]
pub(crate) fn foreign() -> Error {
    process::no_child().err().unwrap_or_else(|| {
        Error::InvalidArgument("the address is not of a block of this allocator: it has not allocated any".into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: a C string, valid until this thread's next failure.
        unsafe { std::ffi::CStr::from_ptr(error::last()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn panic_returns_the_failure_value() {
        assert_eq!(guarded("test", 7, || panic!("of text")), 7);
        assert_eq!(last(), "panic: of text");
        let number = 3;
        assert_eq!(guarded("test", 7, || panic!("of number {number}")), 7);
        assert_eq!(last(), "panic: of number 3");
        assert_eq!(status("test", || std::panic::panic_any(5)), 6);
        assert_eq!(last(), "panic: of an unknown kind");
    }

    #[test]
    fn error_is_stored_for_the_thread() {
        assert_eq!(guarded("test", 1, || Ok(2)), 2);
        assert_eq!(status("test", || Ok(())), 0);
        assert_eq!(status("test", || Err(Error::OutOfMemory("of 5 bytes".into()))), 2);
        assert_eq!(last(), "out of memory: of 5 bytes");
    }
}
