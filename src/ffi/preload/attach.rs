//! Sets the process's allocator on an object of TensorRT.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::{NonNull, with_exposed_provenance, with_exposed_provenance_mut};

use super::dynamic_linker::LoadedObject;
use super::{ObjectType, object_name, resolve};
use crate::ffi::ExportedAllocator;
use crate::support::error::{Error, Result};
use crate::support::process;
use crate::support::run_statistics;

/// No object can lie below this address. Without a GPU, createInfer* of some TensorRT versions returns an address in
/// the first page.
const FIRST_PAGE: usize = 4096;

/// The virtual function's index of `setGpuAllocator` in the implementation behind an `IRuntime` or `IBuilder`, by the
/// version of TensorRT's headers (`NvInferImpl.h`). The inline method in the header calls this function. `None` where
/// the index is not known.
///
/// Within TensorRT 8 to 11, programs run with any later library of the same major version, so the index cannot
/// change. TensorRT-RTX changed it from 1.4 to 1.5 under one soname, so only versions whose header was inspected are
/// known.
pub fn setter_slot(kind: ObjectType, version: i32) -> Option<usize> {
    let (runtime, builder) = match version {
        8000..=9999 => (6, 8),
        100_000..=109_999 | 10_300..=10_499 => (8, 6),
        110_000..=119_999 | 10_500..=10_799 => (7, 4),
        _ => return None,
    };
    Some(match kind {
        ObjectType::Runtime => runtime,
        ObjectType::Builder => builder,
    })
}

/// `void setGpuAllocator(IGpuAllocator*) noexcept` of the implementation, as the ABI calls it.
type Setter = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// Sets the process's allocator on `object`, which `real` has just created for a program compiled with `version`, at a
/// call from `caller`. Where that is impossible, the object keeps TensorRT's own allocator, and one line is logged.
///
/// # Safety
/// `object` is what TensorRT's function of that kind returned, and no other thread has it yet.
pub unsafe fn attach(object: *mut c_void, kind: ObjectType, (version, caller): (i32, usize), real: NonNull<c_void>) {
    if !super::acts() {
        return;
    }
    let done = catch_unwind(AssertUnwindSafe(|| {
        if (object as usize) < FIRST_PAGE {
            run_statistics::record_object(version, None);
            return;
        }
        crate::support::log::init_from_environment();
        // SAFETY: as this function requires, and the object is not in the first page.
        let outcome = unsafe { set(object, kind, (version, caller), real) };
        run_statistics::record_object(version, Some(outcome.is_ok()));
        match outcome {
            Ok(name) => {
                let module = LoadedObject::of(real.as_ptr() as usize);
                let path = module.as_ref().map_or(Path::new(""), LoadedObject::path).display();
                let name = name.map(|name| format!(" as `{name}`")).unwrap_or_default();
                tracing::info!("I{kind:?} of TensorRT {version} in {path} allocates through trtalloc{name}");
            }
            Err(error) => {
                tracing::warn!("I{kind:?} of TensorRT {version} keeps TensorRT's own allocator: {error}");
            }
        }
    }));
    // A panic came from the log or from a failing allocation. The object keeps TensorRT's own allocator.
    let _ = done;
}

/// Returns the name that the object got, if the options ask for names.
///
/// # Safety
/// `object` is what TensorRT's function of that kind returned, and no other thread has it yet.
unsafe fn set(
    object: *mut c_void,
    kind: ObjectType,
    (version, caller): (i32, usize),
    real: NonNull<c_void>,
) -> Result<Option<String>> {
    let unknown = |version| Error::Unsupported(format!("the layout of version {version} is not known"));
    let slot = setter_slot(kind, version).ok_or_else(|| unknown(version))?;
    // The program's header determines how the object is used, and the library determines its layout.
    if let Some(library) = resolve::version_of(real) {
        match setter_slot(kind, library) {
            None => return Err(unknown(library)),
            Some(other) if other != slot => {
                return Err(Error::Unsupported(format!("the library is of version {library}")));
            }
            Some(_) => {}
        }
    }
    // The field after the object's vtable pointer is its implementation, whose vtable has the setter.
    let implementation = word((object as usize).wrapping_add(WORD)).unwrap_or(0);
    let setter = word(implementation).and_then(|table| word(table.wrapping_add(slot * WORD)));
    let setter = setter.filter(|setter| LoadedObject::of(*setter).is_some());
    let setter = setter.ok_or_else(|| Error::Unsupported("the object has an unexpected layout".into()))?;

    process::usable()?;
    let exported = ExportedAllocator::process();
    // Opened now: if this library cannot use the driver, TensorRT keeps its own allocator.
    let asks = object_name::are_wanted(exported.allocator()?.config());
    let name = asks.then(|| object_name::next(kind, caller));
    let adapter = match &name {
        Some(name) => exported.tensorrt_named(version, name.as_bytes()),
        None => exported.tensorrt(version),
    }?;
    // SAFETY: the setter of that version, with its implementation and an adapter that is never freed.
    unsafe {
        let setter = std::mem::transmute::<*const c_void, Setter>(with_exposed_provenance(setter));
        setter(
            with_exposed_provenance_mut(implementation),
            with_exposed_provenance_mut(adapter),
        );
    }
    Ok(name)
}

const WORD: usize = size_of::<usize>();

/// Reads the word at an address. `None` where no memory is mapped, since a failing TensorRT may return any value.
fn word(address: usize) -> Option<usize> {
    if address < FIRST_PAGE || !address.is_multiple_of(WORD) {
        return None;
    }
    // SAFETY: queries the page size; then msync with MS_ASYNC changes nothing, and fails for an unmapped page.
    let missing = unsafe {
        let page = address & !(libc::sysconf(libc::_SC_PAGESIZE) as usize - 1);
        libc::msync(with_exposed_provenance_mut(page), 1, libc::MS_ASYNC) != 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM)
    };
    // SAFETY: mapped and aligned, and any bytes are a number.
    (!missing).then(|| unsafe { *with_exposed_provenance::<usize>(address) })
}
