//! Opens drivers' libraries at run time and loads tables of their functions.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use super::{DriverError, Failure};

/// A loaded library. It is never unloaded, because drivers have threads and exit handlers of their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Library(NonNull<c_void>);

// SAFETY: the handle is used with dlsym only, which any thread may call.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// `None` where there is no library of that name.
    pub(super) fn open(name: &CStr) -> Option<Library> {
        // SAFETY: a terminated name. The driver is responsible for its library's constructors.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Library)
    }

    /// `None` where the process has not loaded a library of that name.
    pub(super) fn loaded(name: &CStr) -> Option<Library> {
        // SAFETY: a terminated name. Nothing is loaded, so no constructor runs.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        NonNull::new(handle).map(Library)
    }

    /// The only place where a symbol is looked up. It must call the loader's own dlsym, even where this library exports
    /// a function of that name.
    pub(super) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: an open library and a terminated name.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// The error for a missing library or function.
pub(super) fn missing(name: &'static str) -> DriverError {
    DriverError {
        call: name,
        code: 0,
        failure: Failure::Missing,
    }
}

/// Declares the table of a library's functions: the type of their results, a result that no function of the library
/// returns, and for each function whether it is required, its exported name and its parameters.
macro_rules! functions {
    ($result:ty, $missing:expr; $( $need:expr, $name:ident ( $($argument:ty),* $(,)? ); )*) => {
        /// Each function under its exported name. An optional function that is missing is replaced by one that returns
        /// the result for missing functions, so every call is one indirect call.
        #[allow(non_snake_case)]
        pub(super) struct Functions {
            $( pub $name: unsafe extern "C" fn($($argument),*) -> $result, )*
            absent: Vec<&'static str>,
        }

        impl Functions {
            /// # Safety
            ///
            /// `find` returns the documented functions of these names.
            unsafe fn load(
                find: &dyn Fn(&std::ffi::CStr) -> Option<std::ptr::NonNull<std::ffi::c_void>>,
            ) -> $crate::driver::Result<Functions> {
                let mut absent = Vec::new();
                Ok(Functions {
                    $( $name: {
                        type Function = unsafe extern "C" fn($($argument),*) -> $result;
                        unsafe extern "C" fn absent_function($(_: $argument),*) -> $result {
                            $missing
                        }
                        const TEXT: &str = concat!(stringify!($name), "\0");
                        const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(TEXT.as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("an identifier has no null byte"),
                        };
                        match find(NAME) {
                            // SAFETY: the documented function of this name has this type. Its result is an enum, which
                            // is passed as an integer of this size.
                            Some(found) => unsafe {
                                std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, Function>(found)
                            },
                            None if $need => return Err($crate::driver::library::missing(stringify!($name))),
                            None => {
                                absent.push(stringify!($name));
                                absent_function as Function
                            }
                        }
                    }, )*
                    absent,
                })
            }

            /// Whether the library exports `name`.
            pub(super) fn has(&self, name: &str) -> bool {
                !self.absent.contains(&name)
            }

            /// Whether the library exports all of `names`.
            pub(super) fn has_all(&self, names: &[&str]) -> bool {
                names.iter().all(|name| self.has(name))
            }
        }
    };
}
pub(super) use functions;
