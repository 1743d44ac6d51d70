//! What a `CUresult` means to the pool.

use cudarc::driver::sys::CUresult as R;

use super::super::{DriverError, Failure, Result};
use super::functions::MISSING;

/// Success, or the error of a call that acts on the calling thread's current context or on none.
#[inline]
pub(super) fn check(call: &'static str, code: u32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(error(call, code)) }
}

/// As [`check`] for a call that takes a context. There an invalid context is one that was destroyed, not a missing one.
#[inline]
pub(super) fn check_context(call: &'static str, code: u32) -> Result<()> {
    const INVALID: u32 = R::CUDA_ERROR_INVALID_CONTEXT as u32;
    match code {
        0 => Ok(()),
        INVALID => Err(DriverError {
            call,
            code,
            failure: Failure::ContextDestroyed,
        }),
        code => Err(error(call, code)),
    }
}

/// As [`check`] for a call that takes only an event of this library. There an invalid handle means that the event's
/// context was destroyed or reset.
#[inline]
pub(super) fn check_event(call: &'static str, code: u32) -> Result<()> {
    const INVALID: u32 = R::CUDA_ERROR_INVALID_HANDLE as u32;
    match code {
        0 => Ok(()),
        INVALID => Err(DriverError {
            call,
            code,
            failure: Failure::ContextDestroyed,
        }),
        code => check_context(call, code),
    }
}

/// As [`check`] for a call that obtains or maps memory. Under WSL2, a device that cannot keep more memory resident is
/// "not ready" (microsoft/WSL issue 41176).
#[inline]
pub(super) fn check_memory(call: &'static str, code: u32) -> Result<()> {
    const NOT_READY: u32 = R::CUDA_ERROR_NOT_READY as u32;
    match code {
        NOT_READY => Err(DriverError {
            call,
            code,
            failure: Failure::OutOfMemory,
        }),
        code => check(call, code),
    }
}

#[cold]
fn error(call: &'static str, code: u32) -> DriverError {
    if code == MISSING {
        return DriverError {
            call,
            code: 0,
            failure: Failure::Missing,
        };
    }
    DriverError {
        call,
        code,
        failure: failure(code),
    }
}

/// Follows the driver API's documentation of each code. A code that is not listed, also of a newer driver, is
/// [`Failure::Other`].
fn failure(code: u32) -> Failure {
    const DEAD: [R; 17] = [
        // The driver is shutting down: nothing can be used again.
        R::CUDA_ERROR_DEINITIALIZED,
        // Sticky: "any further CUDA work will return the same error".
        R::CUDA_ERROR_ECC_UNCORRECTABLE,
        R::CUDA_ERROR_NVLINK_UNCORRECTABLE,
        R::CUDA_ERROR_CONTAINED,
        R::CUDA_ERROR_ILLEGAL_ADDRESS,
        R::CUDA_ERROR_LAUNCH_TIMEOUT,
        R::CUDA_ERROR_ASSERT,
        R::CUDA_ERROR_HARDWARE_STACK_ERROR,
        R::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        R::CUDA_ERROR_MISALIGNED_ADDRESS,
        R::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        R::CUDA_ERROR_INVALID_PC,
        R::CUDA_ERROR_LAUNCH_FAILED,
        R::CUDA_ERROR_TENSOR_MEMORY_LEAK,
        R::CUDA_ERROR_EXTERNAL_DEVICE,
        R::CUDA_ERROR_MPS_CLIENT_TERMINATED,
        R::CUDA_ERROR_MPS_RPC_FAILURE,
    ];
    const UNSUPPORTED: [R; 10] = [
        R::CUDA_ERROR_STUB_LIBRARY,
        R::CUDA_ERROR_NO_DEVICE,
        R::CUDA_ERROR_DEVICE_NOT_LICENSED,
        R::CUDA_ERROR_UNSUPPORTED_LIMIT,
        R::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        // Also the result of an export as a fabric handle without access to an IMEX channel.
        R::CUDA_ERROR_NOT_PERMITTED,
        R::CUDA_ERROR_NOT_SUPPORTED,
        R::CUDA_ERROR_SYSTEM_NOT_READY,
        R::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        R::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
    ];
    // CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, which the bindings of CUDA 12 do not have.
    const NEWER_DRIVER: u32 = 36;
    const CAPTURE_FIRST: u32 = R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32;
    const CAPTURE_LAST: u32 = R::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as u32;

    if code == R::CUDA_ERROR_OUT_OF_MEMORY as u32 {
        Failure::OutOfMemory
    } else if code == R::CUDA_ERROR_INVALID_CONTEXT as u32 {
        Failure::NoContext
    } else if code == R::CUDA_ERROR_CONTEXT_IS_DESTROYED as u32 {
        Failure::ContextDestroyed
    } else if (CAPTURE_FIRST..=CAPTURE_LAST).contains(&code) {
        Failure::Capture
    } else if DEAD.iter().any(|dead| *dead as u32 == code) {
        Failure::ContextDead
    } else if UNSUPPORTED.iter().any(|unsupported| *unsupported as u32 == code) || code == NEWER_DRIVER {
        Failure::Unsupported
    } else {
        Failure::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_is_no_error() {
        assert_eq!(check("cuInit", 0), Ok(()));
        assert_eq!(check_context("cuCtxGetId", 0), Ok(()));
        assert_eq!(check_event("cuEventQuery", 0), Ok(()));
    }

    #[test]
    fn codes_mean_what_the_documentation_says() {
        for (code, expected) in [
            (1, Failure::Other),
            (2, Failure::OutOfMemory),
            (3, Failure::Other),
            (4, Failure::ContextDead),
            (100, Failure::Unsupported),
            (101, Failure::Other),
            (201, Failure::NoContext),
            (400, Failure::Other),
            (600, Failure::Other),
            (700, Failure::ContextDead),
            (701, Failure::Other),
            (709, Failure::ContextDestroyed),
            (719, Failure::ContextDead),
            (720, Failure::Other),
            (801, Failure::Unsupported),
            (899, Failure::Other),
            (900, Failure::Capture),
            (906, Failure::Capture),
            (908, Failure::Capture),
            (909, Failure::Other),
            (999, Failure::Other),
            (123_456, Failure::Other),
        ] {
            let error = check("cuX", code).unwrap_err();
            assert_eq!((error.code, error.failure), (code, expected), "code {code}");
        }
    }

    #[test]
    fn device_that_is_not_ready_lacks_memory() {
        assert_eq!(check_memory("cuMemMap", 0), Ok(()));
        for (code, expected) in [
            (2, Failure::OutOfMemory),
            (600, Failure::OutOfMemory),
            (700, Failure::ContextDead),
        ] {
            assert_eq!(check_memory("cuMemSetAccess", code).unwrap_err().failure, expected);
        }
        assert_eq!(check("cuStreamWaitEvent", 600).unwrap_err().failure, Failure::Other);
    }

    #[test]
    fn missing_function_is_named() {
        let error = check("cuCtxRecordEvent", MISSING).unwrap_err();
        assert_eq!(error.failure, Failure::Missing);
        assert_eq!(error.to_string(), "cuCtxRecordEvent is missing");
    }

    #[test]
    fn invalid_context_or_event_counts_as_destroyed() {
        assert_eq!(
            check_context("cuCtxGetId", 201).unwrap_err().failure,
            Failure::ContextDestroyed
        );
        assert_eq!(check_context("cuCtxGetId", 400).unwrap_err().failure, Failure::Other);
        assert_eq!(
            check_event("cuEventQuery", 400).unwrap_err().failure,
            Failure::ContextDestroyed
        );
        assert_eq!(
            check_event("cuEventQuery", 2).unwrap_err().failure,
            Failure::OutOfMemory
        );
    }
}
