//! Finds the function that a call would have reached without this library.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::NonNull;

use super::dynamic_linker::{self, Library, LoadedObject};

/// A function of TensorRT, whose library stays loaded as long as this exists.
pub struct Real {
    /// Its address.
    pub function: NonNull<c_void>,
    _library: Option<Library>,
}

/// TensorRT's own `getInferLibVersion`.
type Version = unsafe extern "C" fn() -> i32;

/// The version that the library with `function` reports; `None` where it reports none.
pub fn version_of(function: NonNull<c_void>) -> Option<i32> {
    let object = LoadedObject::of(function.as_ptr() as usize)?;
    let library = object.open()?;
    let get_version = library
        .look_up(c"getInferLibVersion")
        .filter(|found| object.has(found.as_ptr() as usize))?;
    // SAFETY: TensorRT's documented function of this name, in a library that also creates TensorRT's objects.
    Some(unsafe { transmute::<*mut c_void, Version>(get_version.as_ptr())() })
}

/// Whether a program compiled with `version` can use a library of version `library`: both are of the same series.
fn same_series(version: i32, library: i32) -> bool {
    let series = |version| match version {
        ..10_000 => (0, version / 1000),
        10_000..20_000 => (1, version / 10_000),
        _ => (2, version / 10_000),
    };
    series(version) == series(library)
}

/// The function `name` for a call from `caller`, an address in the caller's code. `version` is the caller's, where
/// the call passes it.
///
/// Candidates, in order: the function in the libraries that the caller's library is linked with; the next function in
/// the dynamic linker's order; and the function of any TensorRT that is loaded, since a tail call may hide the
/// calling library. The first candidate of the right series is taken. Where none is of that series, or injection is
/// off, the linker's choice is taken.
///
/// Last comes a TensorRT that is not loaded. A program that is linked with this library first and with TensorRT after
/// it finds all names here, so a linker with `--as-needed` (often the default) has left TensorRT out.
pub fn real(name: &CStr, version: Option<i32>, caller: usize) -> Option<Real> {
    let fits = |real: &Real| match (version, version_of(real.function)) {
        (Some(version), Some(library)) => same_series(version, library),
        _ => true,
    };
    let (needed, behind) = (needed_by(caller, name), next_after_us(name));
    let linked = if super::acts() {
        match (needed, behind) {
            (Some(needed), _) if fits(&needed) => return Some(needed),
            (_, Some(behind)) if fits(&behind) => return Some(behind),
            (needed, behind) => behind.or(needed),
        }
    } else {
        match behind.or(needed) {
            None => None,
            linked => return linked,
        }
    };
    let meant = dynamic_linker::loaded()
        .iter()
        .find_map(|path| defined_in(path, name).filter(fits));
    meant.or(linked).or_else(|| load_omitted(name, version?, caller))
}

/// Loads the TensorRT of `version`, from the folders in which the caller's libraries are searched, or where the
/// loader finds it.
fn load_omitted(name: &CStr, version: i32, caller: usize) -> Option<Real> {
    let object = LoadedObject::of(caller).filter(|object| !object.is_own());
    let library = object.and_then(|object| object.open()).or_else(Library::program);
    let folders = library.map(|library| library.folders()).unwrap_or_default();
    file_names(version).iter().find_map(|file| {
        let paths = folders
            .iter()
            .map(|folder| folder.join(file))
            .filter(|path| path.exists());
        let library = paths
            .chain([file.into()])
            .find_map(|path| dynamic_linker::load(&path))?;
        let function = library.look_up(name)?;
        other_object(function)?;
        Some(Real {
            function,
            _library: Some(library),
        })
    })
}

/// The file names of NVIDIA's libraries of that version.
fn file_names(version: i32) -> Vec<String> {
    let (names, major): (&[&str], _) = match version {
        1000..10_000 => (&["nvinfer", "nvinfer_dispatch", "nvinfer_lean"], version / 1000),
        10_000..20_000 => (&["tensorrt_rtx"], version / 10_000),
        20_000.. => (&["nvinfer", "nvinfer_dispatch", "nvinfer_lean"], version / 10_000),
        _ => return Vec::new(),
    };
    names.iter().map(|name| format!("lib{name}.so.{major}")).collect()
}

/// The loaded object with a function, unless that is this library.
fn other_object(function: NonNull<c_void>) -> Option<LoadedObject> {
    LoadedObject::of(function.as_ptr() as usize).filter(|object| !object.is_own())
}

fn needed_by(caller: usize, name: &CStr) -> Option<Real> {
    let object = LoadedObject::of(caller).filter(|object| !object.is_own())?;
    let library = object.open()?;
    let function = library.look_up(name)?;
    other_object(function)?;
    // A caller that defines the name itself is a TensorRT, or another interposing library that wants the next
    // function.
    if object.has(function.as_ptr() as usize) && version_of(function).is_none() {
        return None;
    }
    Some(Real {
        function,
        _library: Some(library),
    })
}

fn next_after_us(name: &CStr) -> Option<Real> {
    // SAFETY: RTLD_NEXT is a valid pseudo-handle.
    let function = unsafe { dynamic_linker::look_up(libc::RTLD_NEXT, name) }?;
    let library = other_object(function)?.open();
    Some(Real {
        function,
        _library: library,
    })
}

/// The function that a TensorRT library defines itself.
fn defined_in(path: &CStr, name: &CStr) -> Option<Real> {
    let library = Library::open(path)?;
    let function = library.look_up(name)?;
    let object = other_object(function)?;
    // The library's own function, not that of a library that it needs.
    (object.path_is(path) && version_of(function).is_some()).then_some(Real {
        function,
        _library: Some(library),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_names_follow_the_version() {
        assert_eq!(file_names(8601)[0], "libnvinfer.so.8");
        assert_eq!(file_names(10_701), ["libtensorrt_rtx.so.1"]);
        assert_eq!(
            file_names(101_601),
            ["libnvinfer.so.10", "libnvinfer_dispatch.so.10", "libnvinfer_lean.so.10"]
        );
        assert!(file_names(-1).is_empty() && file_names(0).is_empty());
    }

    #[test]
    fn versions_of_one_series_are_compatible() {
        for (one, other) in [(8001, 8601), (100_000, 101_601), (110_000, 110_400), (10_300, 10_701)] {
            assert!(same_series(one, other), "{one} {other}");
        }
        for (one, other) in [(8601, 9100), (101_601, 110_400), (10_300, 100_300), (9300, 10_300)] {
            assert!(!same_series(one, other), "{one} {other}");
        }
    }
}
