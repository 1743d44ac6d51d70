//! Removes a name from this library's symbol table while the library is loaded.

use std::ffi::{c_int, c_void};

/// `RTLD_DL_SYMENT`: requests the symbol's entry.
const ENTRY: c_int = 1;

unsafe extern "C" {
    fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

/// The loader's look-ups ignore a symbol without a value.
pub fn hide_symbol(function: *const c_void) {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let mut entry: *mut c_void = std::ptr::null_mut();
    // SAFETY: the arguments are as dladdr1 requires for this flag. The entry that it returns belongs to this library,
    // in pages that are private to this process, and no other thread looks names up here while the library is being
    // loaded.
    unsafe {
        assert_ne!(dladdr1(function, info.as_mut_ptr(), &mut entry, ENTRY), 0);
        let entry: *mut libc::Elf64_Sym = entry.cast();
        assert_eq!((*entry).st_value, function as u64 - (*info.as_ptr()).dli_fbase as u64);
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let start = entry as usize / page * page;
        let bytes = entry as usize + size_of::<libc::Elf64_Sym>() - start;
        assert_eq!(
            libc::mprotect(start as *mut c_void, bytes, libc::PROT_READ | libc::PROT_WRITE),
            0
        );
        (*entry).st_value = 0;
        assert_eq!(libc::mprotect(start as *mut c_void, bytes, libc::PROT_READ), 0);
    }
}
