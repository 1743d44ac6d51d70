//! The command `trtalloc`: demo, run, ctl, replay, trace, report, compare, doctor and bench.
//!
//! The command uses only the library's public names. It writes results to stdout and everything else to stderr. Its
//! exit status is 0 if everything was done, 1 if something failed or an invariant was violated, and 2 for invalid
//! arguments. `run` exits with its program's status.

mod advise;
mod bench;
mod compare;
mod ctl;
mod demo;
mod device;
mod doctor;
mod generate;
mod load;
#[cfg(test)]
mod pages;
mod program;
mod progress;
mod replay;
mod report;
mod run;
mod snapshot;
mod table;

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, Parser};
use trtalloc::config::{Config, nearest};
use trtalloc::error::{Error, Result};

/// A GPU memory allocator for TensorRT: demonstrates and measures it.
#[derive(Parser)]
#[command(name = "trtalloc", version)]
struct Command {
    #[command(subcommand)]
    what: Subcommand,
}

#[derive(clap::Subcommand)]
enum Subcommand {
    /// Runs an application's memory use through TensorRT's interface: engines, contexts, streams, an engine swap
    /// under a limit
    Demo(demo::Arguments),
    /// Runs a trace of allocations (CSV: op,id,bytes[,stream[,thread[,time_us]]]; gzip is unpacked) and measures it, or
    /// tries settings on it
    Replay(Box<replay::Arguments>),
    /// Writes a generated trace, or what a program did according to a snapshot, as CSV
    Trace(generate::Arguments),
    /// Reports which driver, devices, virtual memory and TensorRT libraries this machine has
    Doctor(doctor::Arguments),
    /// Measures the project's targets: a table of figures, targets and whether they are met
    Bench(Box<bench::Arguments>),
    /// Runs a program with the allocator injected into the TensorRT it uses; its exit status is the program's
    Run(run::Arguments),
    /// Looks into a running process and steers it; without arguments, lists the processes that can be reached
    Ctl(ctl::Arguments),
    /// Summarises a snapshot: who held the memory, and why a request was refused; -o writes a page for a browser
    Report(report::Arguments),
    /// Compares two snapshots of one program: what is held more and less, by name, stack and size
    Compare(compare::Arguments),
}

/// A subcommand's options of the allocator. They override those of the environment.
#[derive(Args, Clone, Default)]
struct AllocatorArguments {
    /// auto, cuda, ascend or sim
    #[arg(long)]
    driver: Option<String>,
    /// A limit on reserved memory: bytes, 4GiB, or a percentage of the device's
    #[arg(long)]
    limit: Option<String>,
    /// checked, or trusted: streams outlive the allocator and never capture
    #[arg(long)]
    streams: Option<String>,
    /// Any other options, as key=value,key=value
    #[arg(long)]
    options: Option<String>,
}

impl AllocatorArguments {
    /// The environment's options, then `--options`, then the named ones.
    fn config(&self) -> Result<Config> {
        let mut config = Config::from_environment();
        for item in self
            .options
            .iter()
            .flat_map(|text| text.split(','))
            .filter(|item| !item.trim().is_empty())
        {
            let (key, value) = item
                .split_once('=')
                .ok_or_else(|| Error::InvalidArgument(format!("--options: {item:?} is not key=value")))?;
            config.set(key, value)?;
        }
        let named = [
            ("driver", &self.driver),
            ("limit", &self.limit),
            ("streams", &self.streams),
        ];
        for (key, value) in named {
            if let Some(value) = value {
                config.set(key, value)?;
            }
        }
        trtalloc::log::init(config.log);
        config.bounds_hold()?;
        Ok(config)
    }
}

/// Whether everything was done. If not, stdout says what is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    All,
    NotAll,
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => return shown(&hinted(error)),
    };
    let result = match command.what {
        Subcommand::Demo(arguments) => demo::run(&arguments),
        Subcommand::Replay(arguments) => replay::run(&arguments),
        Subcommand::Trace(arguments) => generate::run(&arguments),
        Subcommand::Doctor(arguments) => doctor::run(&arguments),
        Subcommand::Bench(arguments) => bench::run(&arguments),
        Subcommand::Run(arguments) => return run::run(&arguments),
        Subcommand::Ctl(arguments) => ctl::run(&arguments),
        Subcommand::Report(arguments) => report::run(&arguments),
        Subcommand::Compare(arguments) => compare::run(&arguments),
    };
    match result {
        Ok(done) => match UNWRITTEN.get() {
            Some(reason) => failed(&Error::Io(reason.clone()), 1),
            None if done == Done::All => ExitCode::SUCCESS,
            None => ExitCode::from(1),
        },
        Err(error @ Error::InvalidArgument(_)) => failed(&error, 2),
        Err(error) => failed(&error, 1),
    }
}

/// A number from 0 on, for an option that is a bound. `nan` would be none, since no number is above it.
fn from_zero(text: &str) -> std::result::Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "a number from 0 on is needed".to_owned())
}

/// A number above 0, likewise.
fn above_zero(text: &str) -> std::result::Result<f64, String> {
    let number = from_zero(text).ok().filter(|number| *number > 0.0);
    number.ok_or_else(|| "a number above 0 is needed".to_owned())
}

/// Refuses a page whose name does not end in .html.
fn check_page_name(path: Option<&Path>) -> Result<()> {
    match path.filter(|path| path.extension().is_none_or(|suffix| suffix != "html")) {
        Some(path) => Err(Error::InvalidArgument(format!(
            "{}: a page's name ends in .html",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Adds a similar subcommand to the error where one was misspelt. clap itself suggests none for a word as short as
/// `rn`.
fn hinted(mut error: clap::Error) -> clap::Error {
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) if error.kind() == clap::error::ErrorKind::InvalidSubcommand => {
            typed.to_lowercase()
        }
        _ => return error,
    };
    let command = Command::command();
    let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let meant = nearest(&typed, &names);
    // At least half of the letters must be right.
    if 2 * strsim::osa_distance(&typed, meant) <= meant.len() {
        let meant = ContextValue::Strings(vec![meant.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
    error
}

/// Prints clap's answer: what is wrong, or the help or the version that was asked for.
fn shown(answer: &clap::Error) -> ExitCode {
    let status = ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(2));
    if answer.use_stderr() {
        // As with `remark`.
        let _ = answer.print();
        return status;
    }
    let printed = check_stdout().and_then(|()| match answer.print() {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::Io(format!("stdout: {error}"))),
        _ => Ok(()),
    });
    printed.map_or_else(|error| failed(&error, 1), |()| status)
}

fn failed(error: &Error, status: u8) -> ExitCode {
    remark(&format!("trtalloc: {error}"));
    ExitCode::from(status)
}

/// Why stdout took not all of the output. The command then fails at its end.
static UNWRITTEN: OnceLock<String> = OnceLock::new();

/// Prints a line on stdout. A closed pipe is not an error.
fn say(text: &str) {
    say_as_it_is(&format!("{}\n", text.strip_suffix('\n').unwrap_or(text)));
}

/// Prints a text that ends with a newline on stdout. A closed pipe is not an error.
fn say_as_it_is(text: &str) {
    if let Err(Error::Io(reason)) = check_stdout() {
        let _ = UNWRITTEN.set(reason);
    }
    if let Err(error) = std::io::stdout().lock().write_all(text.as_bytes())
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = UNWRITTEN.set(format!("stdout: {error}"));
    }
}

/// An error where this command was started without a stdout. Rust's runtime has opened /dev/null in its place.
fn check_stdout() -> Result<()> {
    match run::was_closed(libc::STDOUT_FILENO) {
        true => Err(Error::Io("stdout: it is closed".into())),
        false => Ok(()),
    }
}

/// Prints a line on stderr. Where stderr takes none, there is no place to report that.
fn remark(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}
