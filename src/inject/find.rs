//! Which function a call would have reached without us.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::NonNull;

use super::symbols::{self, Library, Module};

/// A function of a TensorRT, which stays loaded as long as this.
pub struct Real {
    /// Its address.
    pub function: NonNull<c_void>,
    _library: Option<Library>,
}

/// TensorRT's own `getInferLibVersion`.
type Version = unsafe extern "C" fn() -> i32;

/// What the TensorRT that has `function` says its version is; none where it does not say.
pub fn version_of(function: NonNull<c_void>) -> Option<i32> {
    let module = Module::of(function.as_ptr() as usize)?;
    let library = module.open()?;
    let ask = library
        .look_up(c"getInferLibVersion")
        .filter(|ask| module.has(ask.as_ptr() as usize))?;
    // SAFETY: TensorRT's documented function of this name, in a library that also creates TensorRT's objects.
    Some(unsafe { transmute::<*mut c_void, Version>(ask.as_ptr())() })
}

/// Whether a program compiled with `version` can be meant for a library of version `library`: the same series.
fn same_series(version: i32, library: i32) -> bool {
    let series = |version| match version {
        ..10_000 => (0, version / 1000),
        10_000..20_000 => (1, version / 10_000),
        _ => (2, version / 10_000),
    };
    series(version) == series(library)
}

/// The function `name` for a call from `caller` (an address in its code) that gives `version`, where it gives one.
///
/// In order: what the caller's library needs, as that is what it was linked with; what comes behind us in the order of the
/// dynamic linker; any TensorRT that is loaded, for a call may have come through a tail call of a library that cannot be
/// seen here. The first of the right series is taken; where none is, what the linker would have taken. Where we do not act,
/// that holds in any case.
///
/// At last, what is not loaded: a program that was linked with this library first, and with TensorRT behind it, has all names
/// from here, so that a linker with `--as-needed` (many have it by default) left TensorRT out.
pub fn real(name: &CStr, version: Option<i32>, caller: usize) -> Option<Real> {
    let fits = |real: &Real| match (version, version_of(real.function)) {
        (Some(version), Some(library)) => same_series(version, library),
        _ => true,
    };
    let (needed, behind) = (needed_by(caller, name), behind_us(name));
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
    let meant = symbols::loaded()
        .iter()
        .find_map(|path| defined_in(path, name).filter(fits));
    meant.or(linked).or_else(|| left_out(name, version?, caller))
}

/// Loads the TensorRT of `version`, from where the caller's libraries are looked for, or where the loader finds it.
fn left_out(name: &CStr, version: i32, caller: usize) -> Option<Real> {
    let module = Module::of(caller).filter(|module| !module.is_own());
    let library = module.and_then(|module| module.open()).or_else(Library::program);
    let folders = library.map(|library| library.folders()).unwrap_or_default();
    file_names(version).iter().find_map(|file| {
        let paths = folders
            .iter()
            .map(|folder| folder.join(file))
            .filter(|path| path.exists());
        let library = paths.chain([file.into()]).find_map(|path| symbols::load(&path))?;
        let function = library.look_up(name)?;
        not_ours(function)?;
        Some(Real {
            function,
            _library: Some(library),
        })
    })
}

/// Under which names NVIDIA's libraries of that version may be there.
fn file_names(version: i32) -> Vec<String> {
    let (names, major): (&[&str], _) = match version {
        1000..10_000 => (&["nvinfer", "nvinfer_dispatch", "nvinfer_lean"], version / 1000),
        10_000..20_000 => (&["tensorrt_rtx"], version / 10_000),
        20_000.. => (&["nvinfer", "nvinfer_dispatch", "nvinfer_lean"], version / 10_000),
        _ => return Vec::new(),
    };
    names.iter().map(|name| format!("lib{name}.so.{major}")).collect()
}

/// What stands in nobody's way: what is not of this library.
fn not_ours(function: NonNull<c_void>) -> Option<Module> {
    Module::of(function.as_ptr() as usize).filter(|module| !module.is_own())
}

fn needed_by(caller: usize, name: &CStr) -> Option<Real> {
    let module = Module::of(caller).filter(|module| !module.is_own())?;
    let library = module.open()?;
    let function = library.look_up(name)?;
    not_ours(function)?;
    // Where the caller has the name itself it is either a TensorRT, or another that stands in front of one and wants the next.
    if module.has(function.as_ptr() as usize) && version_of(function).is_none() {
        return None;
    }
    Some(Real {
        function,
        _library: Some(library),
    })
}

fn behind_us(name: &CStr) -> Option<Real> {
    // SAFETY: a handle with a meaning of its own.
    let function = unsafe { symbols::look_up(libc::RTLD_NEXT, name) }?;
    let library = not_ours(function)?.open();
    Some(Real {
        function,
        _library: library,
    })
}

/// What a TensorRT has itself.
fn defined_in(path: &CStr, name: &CStr) -> Option<Real> {
    let library = Library::open(path)?;
    let function = library.look_up(name)?;
    let module = not_ours(function)?;
    // The library's own, not that of one which it needs.
    (module.path_is(path) && version_of(function).is_some()).then_some(Real {
        function,
        _library: Some(library),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_version() {
        assert_eq!(file_names(8601)[0], "libnvinfer.so.8");
        assert_eq!(file_names(10_701), ["libtensorrt_rtx.so.1"]);
        assert_eq!(
            file_names(101_601),
            ["libnvinfer.so.10", "libnvinfer_dispatch.so.10", "libnvinfer_lean.so.10"]
        );
        assert!(file_names(-1).is_empty() && file_names(0).is_empty());
    }

    #[test]
    fn series() {
        for (one, other) in [(8001, 8601), (100_000, 101_601), (110_000, 110_400), (10_300, 10_701)] {
            assert!(same_series(one, other), "{one} {other}");
        }
        for (one, other) in [(8601, 9100), (101_601, 110_400), (10_300, 100_300), (9300, 10_300)] {
            assert!(!same_series(one, other), "{one} {other}");
        }
    }
}
