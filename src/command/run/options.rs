//! The allocator's options as arguments: `--limit 4GiB` is `TRTALLOC_LIMIT=4GiB` in the program's environment.

use std::ffi::OsString;

use clap::error::Error as ClapError;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use trtalloc::config::{Config, KEYS};
use trtalloc::error::{Error, Result};

/// Options that are on or off. The name alone means on.
const SWITCHES: [&str; 7] = ["rdma", "stats", "control", "passthrough", "guard", "inject", "disable"];

/// The options that `--help` lists first, with their descriptions.
const FIRST: [(&str, &str); 4] = [
    ("driver", "auto, cuda or sim"),
    (
        "limit",
        "A cap on reserved memory: bytes, 4GiB, or a percentage of the device's",
    ),
    ("stats", "A summary on stderr at the program's end"),
    ("log", "off, error, warn, info, debug or trace"),
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

fn help(key: &str) -> Option<&'static str> {
    FIRST.iter().find(|(first, _)| *first == key).map(|(_, help)| *help)
}

impl Args for OptionArguments {
    fn augment_args(mut command: Command) -> Command {
        for key in KEYS {
            let mut argument = Arg::new(*key).long(*key).value_name("VALUE").help_heading("Allocator");
            argument = match help(key) {
                Some(help) => argument.help(help),
                None => argument.help("As the option of that name").hide_short_help(true),
            };
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
