//! Options from the environment: their values, values that cannot be read, and variables that are no options.

use std::ffi::OsString;
use std::sync::Once;

use super::{Backing, Config, KEYS, Kind, Limit, LogLevel, Peers, Share, value};
use crate::support::error::{Error, Result};
use crate::support::{process, stderr};

/// The prefix of every option's variable.
const PREFIX: &str = "TRTALLOC_";

/// Options that limit memory. A program that should have a limit must not run without one, so every request fails
/// where the environment has a limit that cannot be read.
const BOUNDS: [&str; 3] = ["limit", "headroom", "share_budget"];

/// Variables of the project that are no options: the Python package's path to the library, the tests' permission to
/// update files, and what cargo passes on from build.rs to programs that it starts.
pub(in crate::support::config) const OTHERS: [&str; 3] = ["LIBRARY", "BLESS", "SONAME"];

/// Prefixes of the tests' variables.
pub(in crate::support::config) const OTHER_PREFIXES: [&str; 2] = ["TEST_", "STRESS_"];

/// The variables that `trtalloc run` has reported on stderr already, joined by commas. It is no option.
pub const NAMED: &str = "__TRTALLOC_NAMED";

/// Where an allocator's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFrom {
    /// The driver.
    Driver,
    /// The caller brings it.
    Caller,
}

impl Config {
    /// Reads the environment's `TRTALLOC_KEY` for every key. A value that cannot be read is reported in one line on
    /// stderr, and the default applies, except for a limit: see [`Config::bounds_hold`]. A variable that begins with
    /// `TRTALLOC_` and is no option is reported too. Each is reported once in a process. The defaults apply in a
    /// process that runs with another user's rights (AT_SECURE).
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

    /// The options of an allocator that code creates: `options`, and for every other key the environment's. What the
    /// environment says only applies to memory of the kind that the options ask for: a page behind each block, for
    /// example, cannot be had in memory that the caller brings, and a program must not fail for that.
    pub fn over_environment(options: &str, memory: MemoryFrom) -> Result<Config> {
        Config::over(Config::from_environment(), options, memory)
    }

    /// [`Config::over_environment`] for any environment.
    pub(in crate::support::config) fn over(environment: Config, options: &str, memory: MemoryFrom) -> Result<Config> {
        let own = Config::parse(options)?;
        let mut config = environment;
        if memory == MemoryFrom::Caller {
            config.passthrough = false;
            config.guard = false;
            config.fill = None;
            config.forget_bounds_of_device();
        }
        if own.backing == Backing::Malloc || own.passthrough {
            config.peers = Peers::None;
        }
        if own.kind == Kind::Pinned {
            config.backing = Backing::default();
            config.guard = false;
            config.fill = None;
            config.peers = Peers::None;
            config.share = Share::None;
            config.rdma = false;
            config.forget_bounds_of_device();
            // A percentage is of the device's memory.
            for amount in [&mut config.limit, &mut config.reserve] {
                if matches!(amount, Limit::Percent(_)) {
                    *amount = Limit::None;
                }
            }
        }
        config.set_all(options)?;
        Ok(config)
    }

    /// Leaves out the bounds on what is taken of a device's memory, for memory that is not taken from a device.
    fn forget_bounds_of_device(&mut self) {
        (self.headroom, self.share_budget) = (Limit::None, None);
        self.unread_bounds.retain(|(key, _)| *key == "limit");
    }

    /// The environment's `TRTALLOC_LOG`; silently the default where it cannot be read.
    pub(crate) fn environment_log_level() -> LogLevel {
        // This crate's own tests print no messages between their results, unless asked.
        let default = if cfg!(test) { LogLevel::Off } else { LogLevel::default() };
        value::log_level(&word("TRTALLOC_LOG")).unwrap_or(default)
    }

    /// The environment's `inject` and `disable`; silently false where one cannot be read. It is reported where all
    /// options are read.
    pub(crate) fn environment_injection() -> (bool, bool) {
        let is_set = |name| value::boolean(&word(name)).unwrap_or_default();
        (is_set("TRTALLOC_INJECT"), is_set("TRTALLOC_DISABLE"))
    }

    /// [`Config::from_environment`] for any source of variables. The second value has a line for each value that
    /// cannot be read.
    pub(in crate::support::config) fn from_variables(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> (Config, Vec<String>) {
        let mut config = Config::default();
        let mut unread = Vec::new();
        for key in KEYS {
            let name = variable_of(key);
            let Some(text) = variable(&name) else {
                continue;
            };
            let value = text.to_string_lossy();
            let is_read = match text.to_str() {
                Some(value) => config.set(key, value).is_ok(),
                // A path may be other than UTF-8.
                None => config.set_path(key, &text).is_some(),
            };
            // An empty variable counts as unset.
            if is_read || value.trim().is_empty() {
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

    /// An error where the environment has a limit on memory that could not be read, and no option has replaced it. No
    /// request may succeed then: a program that should have a limit must not run without one.
    pub fn bounds_hold(&self) -> Result<()> {
        match self.unread_bounds.first() {
            Some((_, reason)) => Err(Error::InvalidArgument(reason.clone())),
            None => Ok(()),
        }
    }
}

/// A variable of the environment. `None` in a process that runs with another user's rights, since that user does not
/// control the environment.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|_| !process::has_gained_rights())
}

/// A variable's value in lower case; empty where it is not set.
fn word(name: &str) -> String {
    let text = variable(name).unwrap_or_default();
    text.to_string_lossy().trim().to_ascii_lowercase()
}

/// The name of an option's variable.
pub fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase())
}

/// The variables that are named like options but are none, each with a line that reports it.
pub fn unknown_variables() -> Vec<(String, String)> {
    if process::has_gained_rights() {
        return Vec::new();
    }
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mut unknown: Vec<(String, String)> = Vec::new();
    for name in names {
        let Some(nearest) = nearest_option(&name) else { continue };
        let line = format!("{name} is no option; the nearest is {}", variable_of(nearest));
        let at = unknown.partition_point(|(other, _)| *other < name);
        unknown.insert(at, (name, line));
    }
    unknown
}

/// The option most similar to a variable's name. `None` where the variable is an option, or is not named like one.
pub fn nearest_option(variable: &str) -> Option<&'static str> {
    let name = variable.strip_prefix(PREFIX)?;
    let of_ours = OTHERS.contains(&name) || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if of_ours || KEYS.iter().any(|key| key.to_ascii_uppercase() == name) {
        return None;
    }
    Some(nearest(&name.to_ascii_lowercase(), KEYS))
}

/// The name most similar to `word`: first one that contains it or is contained in it, then the one with the smallest
/// edit distance. Empty where there are no names.
pub fn nearest<'a>(word: &str, names: &[&'a str]) -> &'a str {
    let far = |name: &&str| {
        let part = word.len() > 2 && (name.contains(word) || word.contains(name));
        (!part, strsim::osa_distance(word, name))
    };
    names.iter().copied().min_by_key(far).unwrap_or_default()
}
