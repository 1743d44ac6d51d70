//! `trtalloc doctor`: tests what this machine has, and advises about each "no".
//!
//! Its exit status is 1 where something is missing: a driver and a device for this environment's options, a limit
//! that can be read, the library in a process, or a way to inject it into a program.
//!
//! `drivers` tests drivers and devices, `libraries` finds TensorRT, `attached` inspects a process, `program` inspects
//! a program before it starts, `listing` lists its libraries, `packages` finds those of a Python, `findings` formats the
//! findings.

mod attached;
mod drivers;
mod findings;
mod libraries;
mod listing;
mod packages;
mod program;

use std::ffi::OsString;
use std::path::PathBuf;

use trtalloc::config::{Config, KEYS, Rule, nearest_option, variable_of};
use trtalloc::driver::DRIVERS;
use trtalloc::error::Result;

use self::findings::Findings;
pub use self::libraries::in_words as version_in_words;
pub use self::program::NOT_CAUGHT;
use super::{Done, say};

#[derive(clap::Args)]
pub struct Arguments {
    /// Also inspects a running process: whether it has loaded trtalloc, and TensorRT
    #[arg(long)]
    pid: Option<u32>,
    /// Loads one library, prints its version and ends. The doctor runs this in a process of its own
    #[arg(long, hide = true)]
    library: Option<PathBuf>,
    /// Only inspects this program, without starting it: which TensorRT it would load, and whether `trtalloc run`
    /// would catch it
    ///
    /// Nothing that its file names is run: the system's own dynamic loader lists its libraries (--list), their files are
    /// read, and what only a run would show is "unknown". Without PROGRAM, the doctor opens the drivers, runs ldconfig and
    /// python3, and loads each TensorRT library that it finds in a process of its own.
    #[arg(trailing_var_arg = true, conflicts_with = "pid")]
    program: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> Result<Done> {
    if let Some(library) = &arguments.library {
        return Ok(libraries::print_version(library));
    }
    let mut findings = Findings::new();
    if let Some(name) = arguments.program.first() {
        let done = program::examine(name, &mut findings)?;
        say(findings.text());
        return Ok(done);
    }
    findings.section("driver");
    let settings = Config {
        // Of the device's memory, not of the library for media processing.
        rule: Rule::default(),
        ..Config::from_environment()
    }
    .driver_settings();
    let with_devices = DRIVERS.iter().filter(|driver| !driver.external_only);
    let usable: Vec<_> = with_devices
        .map(|driver| (drivers::driver(driver, &settings, &mut findings), *driver))
        .collect();
    findings.section("TensorRT");
    libraries::all(&mut findings);
    findings.section("attached");
    let mut all = attached::this_process(&mut findings);
    if let Some(pid) = arguments.pid {
        all &= attached::process(pid, &mut findings);
    }
    findings.section("options");
    let config = options(&mut findings);
    say(findings.text());
    let wanted = config.driver.descriptor();
    // A driver for external memory needs no device.
    all &= usable.iter().all(|(usable, driver)| *usable || *driver != wanted);
    all &= config.bounds_hold().is_ok();
    Ok(if all { Done::All } else { Done::NotAll })
}

/// Reports the options in the environment, and those that cannot be read.
fn options(findings: &mut Findings) -> Config {
    let config = Config::from_environment();
    let mut any = false;
    let mut names: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| name.starts_with("TRTALLOC_"))
        .collect();
    names.sort();
    for (name, value) in names {
        any = true;
        let key = name["TRTALLOC_".len()..].to_ascii_lowercase();
        if let Some(nearest) = nearest_option(&name) {
            findings.found(&name, &format!("is no option; the nearest is {}", variable_of(nearest)));
            findings.advice("If it is meant as one, see docs/options.md for how it is spelt.");
        } else if config.unread_bounds.iter().any(|(bound, _)| *bound == key) {
            findings.found(&name, &format!("cannot read `{value}`: every request fails"));
            findings.advice(
                "A program that should have a limit does not run without one. See docs/options.md for how it is written.",
            );
        } else if value.trim().is_empty() {
            findings.found(&name, "empty, so the default holds");
        } else if let Err(error) = Config::default().set(&key, &value)
            && KEYS.contains(&key.as_str())
        {
            findings.found(&name, &format!("{error}; the default holds"));
        } else {
            findings.found(&name, &value);
        }
    }
    if !any {
        findings.found("environment", "no TRTALLOC_ variables, so the defaults hold");
    }
    config
}
