//! Parses the values of options. Every function takes lower-case text and returns `None` for an invalid value.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::history::RecordingOptions;
use super::{Limit, LogLevel, Peers};
use crate::driver::DriverChoice;
use crate::support::shared_budget::{ShareBudget, UNIT};

/// A whole number.
pub(in crate::support::config) fn number(text: &str) -> Option<u64> {
    // `parse` alone would take a leading plus sign.
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// A device's ordinal.
pub(in crate::support::config) fn device(text: &str) -> Option<i32> {
    number(text).and_then(|device| i32::try_from(device).ok())
}

/// 1/0, true/false, yes/no, on/off.
pub(in crate::support::config) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A decimal number without sign or exponent.
fn decimal(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole = number(whole)?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Further digits are less than a byte of any unit. (Parsing a float exactly takes 25 KiB of tables and code.)
    let fraction = &fraction[..fraction.len().min(15)];
    Some(whole as f64 + number(fraction)? as f64 / 10f64.powi(fraction.len() as i32))
}

/// Bytes: `4096`, `512m`, `1.5gib`, `4gb`. A fraction of a byte is dropped, except where nothing would be left.
pub(in crate::support::config) fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let unit: u64 = match text[digits.len()..].trim() {
        "" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    if !digits.contains('.') {
        return number(digits)?.checked_mul(unit);
    }
    if unit == 1 {
        return None;
    }
    let bytes = decimal(digits)? * unit as f64;
    // 0 bytes would mean no limit. 2^64 as a float: a cast of a larger value would saturate.
    let is_zero = digits.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    let fits = is_zero || (1.0..18_446_744_073_709_551_616.0).contains(&bytes);
    fits.then_some(bytes as u64)
}

/// none, 0, bytes, or a percentage above 0 and up to 100.
pub(in crate::support::config) fn limit(text: &str) -> Option<Limit> {
    if text == "none" {
        return Some(Limit::None);
    }
    if let Some(percent) = text.strip_suffix('%') {
        return decimal(percent.trim_end())
            .filter(|p| *p > 0.0 && *p <= 100.0)
            .map(Limit::Percent);
    }
    Some(match size(text)? {
        0 => Limit::None,
        bytes => Limit::Bytes(bytes),
    })
}

/// none, or NAME:BYTES or /dir/NAME:BYTES. This text is as it was given, since a name has upper and lower case.
pub(in crate::support::config) fn share_budget(text: &str) -> Option<Option<ShareBudget>> {
    if text.eq_ignore_ascii_case("none") {
        return Some(None);
    }
    let (path, bytes) = text.rsplit_once(':')?;
    let (directory, name) = match path.trim().rsplit_once('/') {
        Some((directory, name)) if directory.starts_with('/') || directory.is_empty() => (Some(directory), name),
        Some(_) => return None,
        None => (None, path.trim()),
    };
    // The name is a part of the name of a file.
    let valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > 100 || name.starts_with('.') || !name.chars().all(valid) {
        return None;
    }
    Some(Some(ShareBudget {
        directory: directory.map(|directory| format!("{directory}/").into()),
        name: name.to_owned(),
        bytes: size(&bytes.trim().to_ascii_lowercase()).filter(|bytes| *bytes >= UNIT)?,
    }))
}

/// none, auto, or ordinals joined by colons.
pub(in crate::support::config) fn peers(text: &str) -> Option<Peers> {
    match text {
        "none" => Some(Peers::None),
        "auto" => Some(Peers::Auto),
        list => list
            .split(':')
            .map(|item| device(item.trim()))
            .collect::<Option<Vec<_>>>()
            .map(Peers::List),
    }
}

/// What the host's programs use of an integrated GPU's memory in bytes; `none` where the GPU has memory of its own.
pub(in crate::support::config) fn integrated(text: &str) -> Option<Option<u64>> {
    match text {
        "none" => Some(None),
        bytes => size(bytes).map(Some),
    }
}

/// off, error, warn, info, debug, trace.
pub(in crate::support::config) fn log_level(text: &str) -> Option<LogLevel> {
    Some(match text {
        "off" => LogLevel::Off,
        "error" => LogLevel::Error,
        "warn" => LogLevel::Warn,
        "info" => LogLevel::Info,
        "debug" => LogLevel::Debug,
        "trace" => LogLevel::Trace,
        _ => return None,
    })
}

/// none, or a byte in decimal or as 0x and hexadecimal digits.
pub(in crate::support::config) fn fill(text: &str) -> Option<Option<u8>> {
    if text == "none" {
        return Some(None);
    }
    let byte = match text.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => number(text),
    };
    byte.and_then(|byte| u8::try_from(byte).ok()).map(Some)
}

/// How the name of a snapshot's file may end; the suffix is its format.
pub const SNAPSHOT_SUFFIXES: [&str; 4] = ["pickle", "pkl", "json", "html"];

/// A path for a snapshot. It is refused here, since it would otherwise fail when there is something to write.
pub(in crate::support::config) fn snapshot(path: &OsStr) -> Option<&Path> {
    let path = Path::new(path);
    let suffix = path.extension().and_then(OsStr::to_str);
    suffix
        .is_some_and(|suffix| SNAPSHOT_SUFFIXES.contains(&suffix))
        .then_some(path)
}

/// The path with the process's number in place of each `%p`.
pub(in crate::support::config) fn with_process(path: &Path, process: u32) -> PathBuf {
    let (mut rest, mut all) = (path.as_os_str().as_bytes(), Vec::new());
    while let Some((first, after)) = rest.split_first() {
        if rest.starts_with(b"%p") {
            all.extend(process.to_string().into_bytes());
            rest = &rest[2..];
        } else {
            all.push(*first);
            rest = after;
        }
    }
    OsString::from_vec(all).into()
}

/// How many events a history keeps.
pub(in crate::support::config) fn entries(text: &str) -> Option<u64> {
    number(text).filter(|entries| (1..=RecordingOptions::MAX_ENTRIES).contains(entries))
}

/// The word, if it is one of those allowed.
pub(in crate::support::config) fn one_of<'a>(text: &'a str, words: &[&str]) -> Option<&'a str> {
    words.contains(&text).then_some(text)
}

/// 11.2, 11.8, 12.4 or 12.9, in the driver's own encoding: 1000 × major + 10 × minor.
pub(in crate::support::config) fn driver_version(text: &str) -> Option<u32> {
    Some(match text {
        "11.2" => 11_020,
        "11.8" => 11_080,
        "12.4" => 12_040,
        "12.9" => 12_090,
        _ => return None,
    })
}

/// The maximum of `sim_memory`. The pool reserves eight times as many addresses.
pub const MAX_SIM_MEMORY: u64 = 1 << 43;

/// The part of an error message that lists a key's values.
pub(in crate::support::config) fn expected(key: &str) -> Cow<'static, str> {
    let text = match key {
        "driver" => return Cow::Owned(drivers()),
        "device" => " (a device's number, or -1)",
        "limit" | "headroom" | "reserve" => " (bytes as 512M, 4GiB or 4GB up to 16 EiB, a percentage as 80%, or none)",
        "share_budget" => " (NAME:BYTES or /dir/NAME:BYTES, as jobs:16GiB, with at least 2 MiB, or none)",
        "backing" => " (auto, vmm or malloc)",
        "release_threshold" => " (auto, all, or bytes as 512M, 4GiB or 4GB)",
        "streams" => " (checked or trusted)",
        "peers" => " (none, auto, or devices as 0:1:3)",
        "share" => " (none, fd or fabric)",
        "kind" => " (device or pinned)",
        "rule" => " (cuda, ascend, ascend-media or ascend-host)",
        "pad" => " (0, 16 or 32)",
        "wait_ms" | "retry_ms" | "decay_ms" => " (milliseconds)",
        "history" => " (off, state or all)",
        "context" => " (none, state, alloc or all)",
        "stacks" => " (none, native, python or all)",
        "max_entries" => " (a number from 1 to 67108864)",
        "snapshot_on_oom" | "snapshot_at_exit" => " (a path that ends in .pickle, .json or .html)",
        "log" => " (off, error, warn, info, debug or trace)",
        "fill" => " (a byte as 165 or 0xa5, or none)",
        "sim_memory" => " (bytes as 512M, 4GiB or 4GB, above 0, at most 8 TiB)",
        "sim_devices" => " (a number above 0)",
        "sim_driver" => " (11.2, 11.8, 12.4 or 12.9)",
        "sim_shared" => " (the path of a file, from the root)",
        "sim_latency" => " (short or a100)",
        "sim_integrated" => " (bytes as 512M, 4GiB or 4GB that the host's programs use, or none)",
        _ => " (1, 0, true, false, yes, no, on or off)",
    };
    Cow::Borrowed(text)
}

/// As `expected`, of the option `driver`.
fn drivers() -> String {
    let names: Vec<_> = DriverChoice::names().collect();
    match names.split_last() {
        Some((last, others)) => format!(" ({} or {last})", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 bytes would mean no limit.
    #[test]
    fn a_limit_is_never_rounded_down_to_none() {
        let of = |text: &str| limit(text).map(|limit| limit.of(24 << 30));
        assert_eq!((of("0.000000001%"), of("50%")), (Some(1), Some(12 << 30)));
        assert_eq!((of("0.0001k"), of("0.00000000000000001gib")), (None, None));
        assert_eq!((of("0.0g"), of("0.001kb")), (Some(0), Some(1)));
        // Digits that no number has room for.
        assert_eq!(of("1.00000000000000000000000000k"), Some(1024));
        for text in ["1.0000000000000000000000000xk", "1.k", ".5k", "1.5", "1.0.0k"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
