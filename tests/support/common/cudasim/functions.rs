//! The functions that the second simulated driver has for tests.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

macro_rules! functions {
    ($($name:ident $symbol:literal ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        pub struct Cudasim {
            $($name: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl Cudasim {
            /// None where libcuda.so.1 is another driver.
            pub fn open() -> Option<Cudasim> {
                // SAFETY: opening the driver runs its constructors, which is what it is opened for.
                let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return None;
                }
                Some(Cudasim {
                    $($name: {
                        let found = find(library, $symbol)?;
                        // SAFETY: the function of that name has that type; cudasim's README.md and source say so.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(found) }
                    },)*
                })
            }

            $(pub fn $name(&self, $($argument: $type),*) -> $result {
                // SAFETY: the function takes any values; pointers come from this module and lead to what is large enough.
                unsafe { (self.$name)($($argument),*) }
            })*
        }
    };
}

fn find(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: an open library and a name that ends.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

functions! {
    calls c"cudasim_calls" (name: *const c_char) -> u64;
    now c"cudasim_now" () -> u64;
    busy c"cudasim_busy" (stream: usize, nanoseconds: u64) -> c_int;
    until c"cudasim_until" (stream: usize) -> u64;
    done c"cudasim_done" (stream: usize) -> u64;
    context_until c"cudasim_ctx_until" () -> u64;
    memory c"cudasim_mem" (device: c_int, used: *mut u64, peak: *mut u64) -> ();
    arm c"cudasim_fail" (calls: *const c_char) -> ();
    fired c"cudasim_fired" () -> u64;
    seen c"cudasim_fault_seen" () -> u64;
    hold c"cudasim_hold" (address: u64, bytes: u64, until: u64) -> ();
    unmapped_in_use c"cudasim_unmapped_in_use" () -> u64;
    wrong_context c"cudasim_wrong_ctx" () -> u64;
    captures_broken c"cudasim_captures_broken" () -> u64;
    backed c"cudasim_backed" (address: u64, bytes: u64) -> c_int;
    physical c"cudasim_extents" (address: u64, bytes: u64, out: *mut u64, most: c_int) -> c_int;
    live c"cudasim_live" (what: *const c_char) -> u64;
}

impl Cudasim {
    /// Makes calls fail as `calls` says; empty: none.
    pub fn fail(&self, calls: &str) {
        let calls = CString::new(calls).expect("no zero in it");
        self.arm(calls.as_ptr());
    }

    /// Bytes of a device that are in use.
    pub fn used(&self, device: i32) -> u64 {
        let (mut used, mut peak) = (0, 0);
        self.memory(device, &mut used, &mut peak);
        used
    }

    /// The physical bytes behind a range, as pairs of start and length; none where a part is not backed.
    pub fn extents(&self, address: u64, bytes: u64) -> Option<Vec<[u64; 2]>> {
        let mut pairs = vec![[0, 0]; 8];
        loop {
            let count = self.physical(address, bytes, pairs.as_mut_ptr().cast(), pairs.len() as c_int);
            if let Ok(count) = usize::try_from(count) {
                pairs.truncate(count);
                return Some(pairs);
            }
            // No range is of more pages than this.
            if pairs.len() as u64 > bytes / (2 << 20) + 2 {
                return None;
            }
            pairs = vec![[0, 0]; pairs.len() * 4];
        }
    }

    pub fn count(&self, what: &CStr) -> usize {
        self.live(what.as_ptr()) as usize
    }
}
