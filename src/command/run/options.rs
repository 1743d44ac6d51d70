//! The allocator's options as arguments: `--limit 4GiB` is `TRTALLOC_LIMIT=4GiB` in the program's environment.

use std::ffi::OsString;

use clap::error::Error as ClapError;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use trtalloc::config::{Config, KEYS};
use trtalloc::error::{Error, Result};

/// Options that are on or off. The name alone means on.
const SWITCHES: [&str; 8] = [
    "captures",
    "rdma",
    "stats",
    "control",
    "passthrough",
    "guard",
    "inject",
    "disable",
];

/// The options that `-h` lists.
const FIRST: [&str; 4] = ["driver", "limit", "stats", "log"];

/// What each option is for. docs/options.md has all of it.
const HELP: &[(&str, &str)] = &[
    ("driver", "auto, cuda, ascend or sim"),
    ("device", "The device's number; the default is the current device"),
    (
        "limit",
        "A limit on reserved memory: bytes, 4GiB, or a percentage of the device's",
    ),
    (
        "headroom",
        "How much of the device's memory stays free for others, written as for --limit",
    ),
    (
        "reserve",
        "How much memory the pool obtains at its first request, and keeps, written as for --limit",
    ),
    (
        "share_budget",
        "NAME:BYTES: the user's processes with this NAME hold at most BYTES of a device together",
    ),
    ("backing", "auto, vmm (virtual memory) or malloc"),
    (
        "release_threshold",
        "auto, all, or bytes: how much free memory the pool keeps",
    ),
    (
        "decay_ms",
        "After how many milliseconds free memory goes back to the driver; 0: never",
    ),
    (
        "streams",
        "checked, or trusted: streams outlive the allocator and never capture",
    ),
    (
        "captures",
        "1: the process captures streams into graphs, maybe where the allocator cannot see it",
    ),
    (
        "peers",
        "none, auto, or the devices that may access the memory, as 0:1:3",
    ),
    (
        "share",
        "none, fd or fabric: how memory can be exported to other processes",
    ),
    ("rdma", "1: the memory can be used for RDMA"),
    ("kind", "device, or pinned: page-locked host memory"),
    (
        "rule",
        "cuda, ascend, ascend-media or ascend-host: how requests are rounded",
    ),
    ("pad", "0, 16 or 32: bytes after each block by Ascend's rules"),
    (
        "wait_ms",
        "How many milliseconds a request waits for pending memory before it is refused",
    ),
    (
        "retry_ms",
        "How many milliseconds a request waits for other threads to free memory before it is refused",
    ),
    ("history", "off, state or all: what is recorded for snapshots"),
    ("context", "none, state, alloc or all: what is recorded with a stack"),
    ("stacks", "none, native, python or all: which frames a stack has"),
    ("max_entries", "How many of the last events are kept"),
    (
        "snapshot_on_oom",
        "Where a snapshot is written when a request is first refused: .pickle, .json or .html; %p is the process",
    ),
    ("snapshot_at_exit", "The same as --snapshot"),
    ("stats", "A summary on stderr at the program's end"),
    (
        "control",
        "1, the default: `trtalloc ctl` can look into the program and steer it; 0: it cannot",
    ),
    ("log", "off, error, warn, info, debug or trace"),
    ("passthrough", "1: every request is a driver allocation"),
    ("guard", "1: an unmapped page after each block"),
    (
        "fill",
        "A byte, as 165 or 0xa5, with which new and freed memory is filled",
    ),
    (
        "inject",
        "1: TensorRT's objects get the allocator; a preloaded library gives it to them in any case",
    ),
    ("disable", "1: the library does nothing"),
    ("sim_memory", "The simulated device's memory in bytes, or as 24GiB"),
    ("sim_devices", "How many simulated devices there are"),
    ("sim_driver", "11.2, 11.8, 12.4 or 12.9: the simulated driver's version"),
    (
        "sim_latency",
        "short, or a100: how long the simulated driver's calls take",
    ),
    (
        "sim_integrated",
        "Bytes that the host's programs use of an integrated simulated GPU's memory",
    ),
    (
        "sim_shared",
        "A file from the root: processes that name it share the memory of their simulated devices",
    ),
];

/// The options that were given; later ones override earlier ones.
#[derive(Clone, Default)]
pub struct OptionArguments {
    pairs: Vec<(String, String)>,
}

impl OptionArguments {
    /// The options as environment variables. An option that cannot be read is an error here; the library in the
    /// program would only warn and continue.
    pub fn environment(&self) -> Result<Vec<(String, OsString)>> {
        let mut config = Config::default();
        let mut variables = Vec::new();
        for (key, value) in &self.pairs {
            config.set(key, value)?;
            let name = format!("TRTALLOC_{}", key.trim().to_ascii_uppercase());
            // A relative path is made absolute, since the program may change its folder.
            let value = match key.starts_with("snapshot") {
                true => std::path::absolute(value)
                    .map_err(|error| Error::InvalidArgument(format!("{value:?}: {error}")))?
                    .into_os_string(),
                false => value.into(),
            };
            variables.push((name, value));
        }
        Ok(variables)
    }
}

fn help(key: &str) -> &'static str {
    HELP.iter()
        .find(|(known, _)| *known == key)
        .map_or("", |(_, help)| help)
}

impl Args for OptionArguments {
    fn augment_args(mut command: Command) -> Command {
        for key in KEYS {
            let mut argument = Arg::new(*key).long(*key).value_name("VALUE").help_heading("Allocator");
            argument = argument.help(help(key)).hide_short_help(!FIRST.contains(key));
            // The device -1 is the current one.
            argument = argument.allow_negative_numbers(*key == "device");
            if SWITCHES.contains(key) {
                argument = argument.num_args(0..=1).require_equals(true).default_missing_value("1");
            }
            command = command.arg(argument);
        }
        let snapshot = Arg::new("snapshot").long("snapshot").value_name("FILE");
        let options = Arg::new("options").long("options").value_name("KEY=VALUE,...");
        command
            .arg(
                snapshot
                    .conflicts_with("snapshot_at_exit")
                    .help_heading("Allocator")
                    .help(
                        "Where a snapshot is written at the program's end: .pickle, .json or .html; %p is the process",
                    ),
            )
            .arg(
                options
                    .help_heading("Allocator")
                    .help("Any options, as key=value,key=value"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        OptionArguments::augment_args(command)
    }
}

impl FromArgMatches for OptionArguments {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<OptionArguments, ClapError> {
        let mut pairs = Vec::new();
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        for item in text("options").iter().flat_map(|text| text.split(',')) {
            if !item.trim().is_empty() {
                let (key, value) = item.split_once('=').unwrap_or((item, ""));
                pairs.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        let named = KEYS
            .iter()
            .map(|key| (*key, *key))
            .chain([("snapshot", "snapshot_at_exit")]);
        for (name, key) in named {
            pairs.extend(text(name).map(|value| (key.to_owned(), value)));
        }
        Ok(OptionArguments { pairs })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), ClapError> {
        *self = OptionArguments::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_help() {
        let known: Vec<&str> = HELP.iter().map(|(key, _)| *key).collect();
        assert_eq!(known, KEYS);
    }

    #[test]
    fn options_that_are_on_or_off_are_switches() {
        let mut default = Config::default();
        let is_switch = |key: &&&str| default.set(key, "off").is_ok() && default.set(key, "yes").is_ok();
        let found: Vec<&str> = KEYS.iter().filter(is_switch).copied().collect();
        assert_eq!(found, SWITCHES);
    }
}
