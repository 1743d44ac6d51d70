//! Demangles C++ and Rust symbols.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

unsafe extern "C" {
    /// From the C++ runtime, which the library links anyway.
    fn __cxa_demangle(
        mangled: *const c_char,
        buffer: *mut c_char,
        length: *mut usize,
        status: *mut c_int,
    ) -> *mut c_char;
}

/// The demangled name, or the name itself where it is not mangled.
pub(in crate::history::symbols) fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if name.starts_with("_Z")
        && let Some(cpp) = cpp(name)
    {
        return cpp;
    }
    name.to_owned()
}

fn cpp(name: &str) -> Option<String> {
    let name = CString::new(name).ok()?;
    let mut status = 0;
    // SAFETY: a C string; without a buffer the function allocates the result, which this function frees.
    let text = unsafe { __cxa_demangle(name.as_ptr(), null_mut(), null_mut(), &raw mut status) };
    if text.is_null() {
        return None;
    }
    // SAFETY: a C string, allocated by `malloc` for this call.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        libc::free(text.cast());
        (status == 0).then_some(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpp_and_rust_symbols_are_demangled_and_others_unchanged() {
        assert_eq!(
            demangle("_ZN8nvinfer17Runtime4loadEPKcm"),
            "nvinfer1::Runtime::load(char const*, unsigned long)"
        );
        assert_eq!(demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        for plain in ["malloc", "_Z", "_ZN", ""] {
            assert_eq!(demangle(plain), plain);
        }
    }
}
