//! Demangles C++ and Rust symbols.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// `__cxa_demangle`: the mangled name, no buffer, no length, and what came of it.
type Demangle = unsafe extern "C" fn(*const c_char, *mut c_char, *mut usize, *mut c_int) -> *mut c_char;

/// The function of the C++ runtime that the process has loaded, as a process with C++ libraries has. Without one, C++ names stay
/// mangled. None is loaded here, because the program may bring a newer one.
fn of_the_process() -> Option<Demangle> {
    static FOUND: OnceLock<Demangle> = OnceLock::new();
    // C++ may be loaded later, so only a successful search is remembered.
    FOUND.get().copied().or_else(|| {
        let runtimes = [c"libstdc++.so.6", c"libc++abi.so.1"];
        let found = runtimes.into_iter().find_map(|name| {
            // SAFETY: a C string; with NOLOAD nothing is loaded and no foreign code runs. The handle is never closed.
            let runtime = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if runtime.is_null() {
                return None;
            }
            // SAFETY: a handle from dlopen and a C string.
            let function = unsafe { libc::dlsym(runtime, c"__cxa_demangle".as_ptr()) };
            // SAFETY: the function of that name has this type in the Itanium C++ ABI, which both runtimes follow.
            (!function.is_null()).then(|| unsafe { std::mem::transmute::<*mut std::ffi::c_void, Demangle>(function) })
        });
        found.map(|found| *FOUND.get_or_init(|| found))
    })
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
    let demangle = of_the_process()?;
    let name = CString::new(name).ok()?;
    let mut status = 0;
    // SAFETY: a C string; without a buffer the function allocates the result, which this function frees.
    let text = unsafe { demangle(name.as_ptr(), null_mut(), null_mut(), &raw mut status) };
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
        // As in a process with C++ libraries. The C++ runtime that is linked into this program has no part in it.
        // SAFETY: a C string; the runtime's constructors may run at any time.
        let runtime = unsafe { libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_LAZY) };
        assert!(!runtime.is_null(), "this machine has no libstdc++.so.6");
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
