//! Memory for media processing: from `acldvppMalloc` (libacl_dvpp.so), or `hi_mpi_dvpp_malloc` (libacl_dvpp_mpi.so) on
//! newer products. Both round up to 32 bytes, add 32, and return multiples of 128. The memory cannot be mapped.

use std::ffi::{CStr, c_void};
use std::ptr::{NonNull, null_mut};

use super::super::Result;
use super::super::library::{Library, missing};
use super::failure::check;
use super::functions::{Acl, Find};

const NAMES: &str = "libacl_dvpp.so and libacl_dvpp_mpi.so";

type MallocV1 = unsafe extern "C" fn(*mut *mut c_void, usize) -> i32;
type MallocV2 = unsafe extern "C" fn(u32, *mut *mut c_void, u64) -> i32;
type Free = unsafe extern "C" fn(*mut c_void) -> i32;

/// The two functions of either library.
#[derive(Debug, Clone, Copy)]
pub(super) enum Media {
    V1(MallocV1, Free),
    V2(MallocV2, Free),
}

impl Media {
    /// Opens the first library that is installed, the older one first.
    pub(super) fn open() -> Result<Media> {
        let first = Library::open(c"libacl_dvpp.so");
        let second = Library::open(c"libacl_dvpp_mpi.so");
        let in_both = |name: &CStr| {
            let of = |library: &Option<Library>| library.as_ref().and_then(|library| library.symbol(name));
            of(&first).or_else(|| of(&second))
        };
        if first.is_none() && second.is_none() {
            return Err(missing(NAMES));
        }
        // SAFETY: the libraries have the functions that AscendCL documents.
        unsafe { Media::load(&in_both) }
    }

    /// # Safety
    ///
    /// `find` returns the documented functions of these names.
    pub(super) unsafe fn load(find: Find<'_>) -> Result<Media> {
        // SAFETY: the documented functions of these names have these types.
        unsafe {
            let free = |name: &CStr| find(name).map(|found| std::mem::transmute::<NonNull<c_void>, Free>(found));
            if let Some(malloc) = find(c"acldvppMalloc") {
                let malloc = std::mem::transmute::<NonNull<c_void>, MallocV1>(malloc);
                return Ok(Media::V1(malloc, free(c"acldvppFree").ok_or(missing("acldvppFree"))?));
            }
            let malloc = find(c"hi_mpi_dvpp_malloc").ok_or(missing("acldvppMalloc and hi_mpi_dvpp_malloc"))?;
            let malloc = std::mem::transmute::<NonNull<c_void>, MallocV2>(malloc);
            Ok(Media::V2(
                malloc,
                free(c"hi_mpi_dvpp_free").ok_or(missing("hi_mpi_dvpp_free"))?,
            ))
        }
    }

    /// Allocates memory of the current device.
    pub(super) fn malloc(self, acl: &Acl, bytes: usize) -> Result<u64> {
        let mut address = null_mut();
        match self {
            // SAFETY: a local to write to.
            Media::V1(malloc, _) => check("acldvppMalloc", unsafe { malloc(&mut address, bytes) })?,
            Media::V2(malloc, _) => {
                let mut device = 0;
                call!(acl, aclrtGetDevice(&mut device))?;
                // SAFETY: a local to write to.
                let code = unsafe { malloc(device as u32, &mut address, bytes as u64) };
                check("hi_mpi_dvpp_malloc", code)?;
            }
        }
        Ok(address as u64)
    }

    pub(super) fn free(self, address: *mut c_void) -> Result<()> {
        match self {
            // SAFETY: the trait's caller passes an address that `malloc` returned. It is not null.
            Media::V1(_, free) => check("acldvppFree", unsafe { free(address) }),
            // SAFETY: as above.
            Media::V2(_, free) => check("hi_mpi_dvpp_free", unsafe { free(address) }),
        }
    }
}
