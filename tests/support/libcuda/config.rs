//! Settings from the environment, and the names of result codes.

use std::env;
use std::ffi::CStr;

use crate::model::Addresses;

/// A failure to inject: the function's name, which call of it (from 1), the code.
pub(crate) type Injected = (String, u64, u32);

/// How long calls take on the wall clock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Latency {
    /// Only the call's own work.
    Zero,
    /// As published for an A100.
    Peers,
}

pub(crate) struct Config {
    pub(crate) memory: Option<u64>,
    pub(crate) devices: Option<u32>,
    pub(crate) version: u32,
    pub(crate) latency: Latency,
    pub(crate) addresses: Addresses,
    pub(crate) failures: Vec<Injected>,
}

fn number<T: std::str::FromStr>(name: &str) -> Result<Option<T>, String> {
    match env::var(name) {
        Ok(text) => text
            .trim()
            .parse()
            .map(Some)
            .map_err(|_| format!("{name}={text} is not a number")),
        Err(_) => Ok(None),
    }
}

fn failure(rule: &str) -> Option<Injected> {
    let mut parts = rule.trim().split(':');
    let parsed = (
        parts.next()?.to_string(),
        parts.next()?.parse().ok()?,
        parts.next()?.parse().ok()?,
    );
    (parts.next().is_none() && parsed.1 > 0 && parsed.2 > 0).then_some(parsed)
}

impl Config {
    /// Reads the environment. An error names the variable with an invalid value.
    pub(crate) fn read() -> Result<Config, String> {
        let latency = match env::var("SIMCUDA_LATENCY").as_deref() {
            Err(_) | Ok("" | "zero") => Latency::Zero,
            Ok("peers") => Latency::Peers,
            Ok(other) => return Err(format!("SIMCUDA_LATENCY={other} is neither zero nor peers")),
        };
        let addresses = match env::var("SIMCUDA_ADDRESSES").as_deref() {
            Ok("ascending") => Addresses::Ascending,
            Ok("descending") => Addresses::Descending,
            Ok("returning") => Addresses::Returning,
            Ok("apart") => Addresses::Apart,
            Ok("odd") => Addresses::Odd,
            _ => Addresses::Drawn(number("SIMCUDA_ADDRESSES")?.unwrap_or(0)),
        };
        let rules = env::var("SIMCUDA_FAIL").unwrap_or_default();
        let failures: Option<Vec<Injected>> = rules.split(';').filter(|rule| !rule.is_empty()).map(failure).collect();
        Ok(Config {
            memory: number("SIMCUDA_MEMORY")?,
            devices: number("SIMCUDA_DEVICES")?,
            version: number("SIMCUDA_VERSION")?.unwrap_or(12090),
            latency,
            addresses,
            failures: failures.ok_or_else(|| format!("SIMCUDA_FAIL={rules} is not call:n:code"))?,
        })
    }
}

/// Nanoseconds of a call as published for an A100 (kvcached's bench_vmm; cuMemGetInfo from PyTorch's). Zero for other
/// calls.
pub(crate) fn published_nanoseconds(call: &str) -> u64 {
    match call {
        "cuMemAddressReserve" => 19_000,
        "cuMemCreate" => 193_000,
        "cuMemMap" => 1_450,
        "cuMemSetAccess" => 36_000,
        "cuMemUnmap" => 25_600,
        "cuMemGetInfo_v2" => 6_000,
        _ => 0,
    }
}

/// A code's name and description.
pub(crate) fn error_names(code: u32) -> Option<(&'static CStr, &'static CStr)> {
    Some(match code {
        0 => (c"CUDA_SUCCESS", c"no error"),
        1 => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        2 => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        3 => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        4 => (c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
        100 => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        101 => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        201 => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        400 => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        401 => (
            c"CUDA_ERROR_ILLEGAL_STATE",
            c"the operation cannot be performed in the present state",
        ),
        500 => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        600 => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        700 => (
            c"CUDA_ERROR_ILLEGAL_ADDRESS",
            c"an illegal memory access was encountered",
        ),
        709 => (c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
        719 => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        800 => (c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
        801 => (c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
        900 => (
            c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            c"operation not permitted when stream is capturing",
        ),
        901 => (
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation failed due to a previous error during capture",
        ),
        902 => (
            c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
            c"operation would result in a merge of separate capture sequences",
        ),
        903 => (
            c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
            c"capture was not ended in the same stream as it began",
        ),
        904 => (
            c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
            c"capturing stream has unjoined work",
        ),
        905 => (
            c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
            c"dependency created on uncaptured work in another stream",
        ),
        906 => (
            c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
            c"operation would make the legacy stream depend on a capture",
        ),
        907 => (
            c"CUDA_ERROR_CAPTURED_EVENT",
            c"operation not permitted on an event last recorded in a capturing stream",
        ),
        908 => (
            c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
            c"attempt to terminate a capture from another thread",
        ),
        999 => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        _ => return None,
    })
}
