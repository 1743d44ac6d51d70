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
/// seen here. The first of the right series is taken; the first at all, where none is. Where we do not act, the dynamic
/// linker's order holds.
pub fn real(name: &CStr, version: Option<i32>, caller: usize) -> Option<Real> {
    if !super::acts() {
        return behind_us(name)
            .or_else(|| needed_by(caller, name))
            .or_else(|| symbols::loaded().iter().find_map(|path| defined_in(path, name)));
    }
    let mut first = None;
    let mut take = |real: Option<Real>| -> Option<Real> {
        let real = real?;
        let said = version_of(real.function);
        match (version, said) {
            (Some(version), Some(said)) if !same_series(version, said) => {
                first.get_or_insert(real);
                None
            }
            _ => Some(real),
        }
    };
    take(needed_by(caller, name))
        .or_else(|| take(behind_us(name)))
        .or_else(|| symbols::loaded().iter().find_map(|path| take(defined_in(path, name))))
        .or(first)
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
    fn series() {
        for (one, other) in [(8001, 8601), (100_000, 101_601), (110_000, 110_400), (10_300, 10_701)] {
            assert!(same_series(one, other), "{one} {other}");
        }
        for (one, other) in [(8601, 9100), (101_601, 110_400), (10_300, 100_300), (9300, 10_300)] {
            assert!(!same_series(one, other), "{one} {other}");
        }
    }
}
