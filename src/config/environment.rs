//! Options of the environment: what `TRTALLOC_KEY` says, what of it cannot be read, and which names are no option's.

use std::ffi::OsString;
use std::sync::Once;

use super::{Config, KEYS, LogLevel, value};
use crate::error::{Error, Result};
use crate::{process, stderr};

/// What the name of every option begins with in the environment.
const PREFIX: &str = "TRTALLOC_";

/// Options that keep memory within bounds. A program that was to have one must not run without it: where the environment has one
/// that cannot be read, every request fails.
const BOUNDS: [&str; 1] = ["limit"];

/// Variables of the project that are no options: where the Python package finds the library, and what its tests write anew.
pub(super) const OTHERS: [&str; 2] = ["LIBRARY", "BLESS"];

/// What such variables of the tests begin with.
pub(super) const OTHER_PREFIXES: [&str; 2] = ["TEST_", "STRESS_"];

/// The names that `trtalloc run` has named on stderr already, joined by commas. Not one of the options.
pub const NAMED: &str = "__TRTALLOC_NAMED";

impl Config {
    /// Reads the environment's `TRTALLOC_KEY` for every key. A value that cannot be read is named in one line on stderr, and its
    /// default holds, but for a bound: see [`Config::bounds_hold`]. So is a variable that begins with `TRTALLOC_` and is no
    /// option. Each is named once in a process. In a process that runs with another user's rights (AT_SECURE) the defaults hold.
    pub fn from_environment() -> Config {
        static ONCE: Once = Once::new();
        let (config, unread) = Config::from_variables(variable);
        ONCE.call_once(|| {
            let named = std::env::var(NAMED).unwrap_or_default();
            let unknown = unknown_variables().into_iter();
            let unknown = unknown.filter(|(name, _)| !named.split(',').any(|known| known == name));
            for line in unread.into_iter().chain(unknown.map(|(_, line)| line)) {
                stderr::line(&format!("trtalloc: warn: {line}"));
            }
        });
        config
    }

    /// The environment's `TRTALLOC_LOG`; the default where it cannot be read, without a word.
    pub(crate) fn environment_log_level() -> LogLevel {
        value::log_level(&word("TRTALLOC_LOG")).unwrap_or_default()
    }

    /// The environment's `inject` and `disable`; false where one cannot be read, without a word: it is said where all options
    /// are read.
    pub(crate) fn environment_injection() -> (bool, bool) {
        let is_set = |name| value::boolean(&word(name)).unwrap_or_default();
        (is_set("TRTALLOC_INJECT"), is_set("TRTALLOC_DISABLE"))
    }

    /// [`Config::from_environment`] over any source of variables, with a line about each value that could not be read.
    pub(super) fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> (Config, Vec<String>) {
        let mut config = Config::default();
        let mut unread = Vec::new();
        for key in KEYS {
            let name = variable_of(key);
            let Some(text) = variable(&name) else {
                continue;
            };
            let value = text.to_string_lossy();
            // A variable that is set to nothing is as good as not set.
            if value.trim().is_empty() || config.set(key, &value).is_ok() {
                continue;
            }
            let reason = format!("{name}: cannot read `{value}`{}", value::expected(key));
            if BOUNDS.contains(key) {
                unread.push(format!("{reason}; every request fails"));
                config.unread_bounds.push((key, reason));
            } else {
                unread.push(format!("{reason}; the default holds"));
            }
        }
        (config, unread)
    }

    /// An error where the environment has a bound on memory (`limit`) that could not be read, and no option took its place. No
    /// request may be met then: a program that was to have a limit must not run without one.
    pub fn bounds_hold(&self) -> Result<()> {
        match self.unread_bounds.first() {
            Some((_, reason)) => Err(Error::InvalidArgument(reason.clone())),
            None => Ok(()),
        }
    }
}

/// A variable of the environment; none in a process that runs with another user's rights, for the environment is not that user's.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|_| !process::has_gained_rights())
}

/// A variable's value as one word in lower case; empty where it is not set.
fn word(name: &str) -> String {
    let text = variable(name).unwrap_or_default();
    text.to_string_lossy().trim().to_ascii_lowercase()
}

/// The environment's name of an option.
pub fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase())
}

/// The variables of the environment that are named as options are and are none, each with a line that says so.
pub fn unknown_variables() -> Vec<(String, String)> {
    if process::has_gained_rights() {
        return Vec::new();
    }
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mut unknown: Vec<_> = names
        .filter_map(|name| {
            let line = format!(
                "{name} is no option; the nearest is {}",
                variable_of(nearest_option(&name)?)
            );
            Some((name, line))
        })
        .collect();
    unknown.sort();
    unknown
}

/// The option that a variable of the environment was most likely meant as; none where it is an option, or is not named as one.
pub fn nearest_option(variable: &str) -> Option<&'static str> {
    let name = variable.strip_prefix(PREFIX)?;
    let of_ours = OTHERS.contains(&name) || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if of_ours || KEYS.iter().any(|key| key.to_ascii_uppercase() == name) {
        return None;
    }
    Some(nearest(&name.to_ascii_lowercase(), KEYS))
}

/// The name that `word` was most likely meant as: one that it is a part of, or that is a part of it; then the one with the fewest
/// letters to change. Empty where there are no names.
pub fn nearest<'a>(word: &str, names: &[&'a str]) -> &'a str {
    let far = |name: &&str| {
        let part = word.len() > 2 && (name.contains(word) || word.contains(name));
        (!part, strsim::osa_distance(word, name))
    };
    names.iter().copied().min_by_key(far).unwrap_or_default()
}
