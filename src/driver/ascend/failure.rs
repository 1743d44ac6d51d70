//! What an `aclError` means to the pool.

use super::super::{DriverError, Failure, Result};
use super::functions::MISSING;

/// `ACL_ERROR_RT_CONTEXT_NULL`: no context of this thread.
pub(super) const CONTEXT_NULL: i32 = 107_002;
/// `ACL_ERROR_RT_STREAM_CONTEXT`: the stream is of another context.
pub(super) const STREAM_CONTEXT: i32 = 107_003;
/// `ACL_ERROR_RT_PARAM_INVALID`.
const RT_PARAM_INVALID: i32 = 107_000;
/// `ACL_ERROR_RT_STREAM_SYNC_TIMEOUT`.
pub(super) const SYNC_TIMEOUT: i32 = 507_046;

/// `ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED`: its number is not among those of the other capture errors.
const CAPTURE_INVALIDATED: i32 = 507_903;

/// Success, or the error of a call that acts on the calling thread's current context or on none.
#[inline]
pub(super) fn check(call: &'static str, code: i32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(error(call, code)) }
}

/// As [`check`] of `aclrtSetCurrentContext`, for a context that existed: a refused context was destroyed.
pub(super) fn check_context(call: &'static str, code: i32) -> Result<()> {
    check(call, code).map_err(|error| match code {
        CONTEXT_NULL | RT_PARAM_INVALID => DriverError {
            failure: Failure::ContextDestroyed,
            ..error
        },
        _ => error,
    })
}

#[cold]
fn error(call: &'static str, code: i32) -> DriverError {
    if code == MISSING {
        return super::super::library::missing(call);
    }
    DriverError {
        call,
        code: code as u32,
        failure: failure(code),
    }
}

/// The result of `hi_mpi_dvpp_malloc` without memory or without a buffer (`HI_ERR_SYS_NO_MEM` and the like): 0xA0, the
/// module, the level and the error. No `aclError` is that large.
fn is_media_memory(code: i32) -> bool {
    matches!(code as u32 & 0xff00_1fff, 0xa000_000c | 0xa000_000d)
}

/// Follows the comments of acl_base_rt.h and rt_error_codes.h. A code that is not listed is [`Failure::Other`].
fn failure(code: i32) -> Failure {
    match code {
        // bad_alloc, memory allocation, device out of memory
        200_000 | 207_001 | 207_018 => Failure::OutOfMemory,
        CONTEXT_NULL => Failure::NoContext,
        // api, feature not supported; no device; no permission
        200_001 | 200_006 | 207_000 | 207_004 | 207_006 => Failure::Unsupported,
        // A stream, an event or a model is captured, is not captured, is captured elsewhere, or depends on a capture.
        107_024..=107_032 | 107_036 | 107_038 | 107_041 | 107_045 | CAPTURE_INVALIDATED => Failure::Capture,
        // aclFinalize was called, the device does not respond, or its memory is broken: nothing can be used again.
        100_001 | 100_037 | 507_010 | 507_053 | 507_054 => Failure::ContextDead,
        code if is_media_memory(code) => Failure::OutOfMemory,
        _ => Failure::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_what_the_headers_say() {
        for (code, expected) in [
            (100_000, Failure::Other),
            (100_001, Failure::ContextDead),
            (107_000, Failure::Other),
            (107_002, Failure::NoContext),
            (107_003, Failure::Other),
            (107_027, Failure::Capture),
            (107_033, Failure::Other),
            (200_000, Failure::OutOfMemory),
            (207_000, Failure::Unsupported),
            (207_001, Failure::OutOfMemory),
            (207_005, Failure::Other),
            (507_010, Failure::ContextDead),
            (507_015, Failure::Other),
            (507_899, Failure::Other),
            (507_903, Failure::Capture),
            (-1, Failure::Other),
            (0xa002_800c_u32 as i32, Failure::OutOfMemory),
            (0xa007_800d_u32 as i32, Failure::OutOfMemory),
            (0xa002_8003_u32 as i32, Failure::Other),
        ] {
            let error = check("aclrtX", code).unwrap_err();
            assert_eq!((error.code as i32, error.failure), (code, expected), "code {code}");
        }
        assert_eq!(check("aclrtX", 0), Ok(()));
    }

    #[test]
    fn refused_context_counts_as_destroyed() {
        for code in [107_000, 107_002] {
            let error = check_context("aclrtSetCurrentContext", code).unwrap_err();
            assert_eq!(error.failure, Failure::ContextDestroyed);
        }
        let full = check_context("aclrtSetCurrentContext", 207_001).unwrap_err();
        assert_eq!(full.failure, Failure::OutOfMemory);
    }

    #[test]
    fn missing_function_is_named() {
        let error = check("aclrtMapMem", MISSING).unwrap_err();
        assert_eq!(error.to_string(), "aclrtMapMem is missing");
    }
}
