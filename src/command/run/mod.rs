//! `trtalloc run`: starts a program with the library preloaded, and reports at the end whether it used TensorRT.

mod child;
mod library;
mod metrics;
mod options;
mod summary;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use trtalloc::config::{self, Config};
use trtalloc::error::{Error, Result};
use trtalloc::support::run_statistics;

use self::child::End;
pub use self::child::was_closed;
use super::program::{OPTION_OF_ASAN, Program};

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    options: options::OptionArguments,
    /// The library to preload; the default is the one in this command's folder, or installed with it
    #[arg(long)]
    library: Option<PathBuf>,
    #[command(flatten)]
    metrics: metrics::MetricsArguments,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// The exit statuses where this command itself fails, as in `env` and `timeout`. Other statuses are the program's own.
const RUN_FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

pub fn run(arguments: &Arguments) -> ExitCode {
    let mut prepared = match prepare(arguments) {
        Ok(prepared) => prepared,
        Err(error) => {
            say(&error.to_string());
            return ExitCode::from(if matches!(error, Error::InvalidArgument(_)) {
                2
            } else {
                RUN_FAILED
            });
        }
    };
    let (name, rest) = (&arguments.program[0], &arguments.program[1..]);
    let started = Program::find(name).and_then(|program| {
        let refuses = program.refuses();
        if let Some(why) = &refuses {
            say(&format!(
                "{why}: the allocator cannot be injected into it, it runs as it is"
            ));
        }
        let mut command = Command::new(&program.path);
        // The program sees the name that was typed.
        std::os::unix::process::CommandExt::arg0(&mut command, name);
        command.args(rest).envs(prepared.environment.iter().cloned());
        command.env(run_statistics::VARIABLE, prepared.run_statistics.path());
        if !program.breaks_with_preload() {
            command.env("LD_PRELOAD", &prepared.preload);
            if program.is_sanitized() || library::has_asan(&prepared.preload) {
                // The last one counts.
                let mut options = std::env::var_os("ASAN_OPTIONS").unwrap_or_default();
                options.push(format!(":{OPTION_OF_ASAN}"));
                command.env("ASAN_OPTIONS", options);
            }
        }
        let started = || prepared.metrics.iter_mut().for_each(metrics::Metrics::start);
        Ok((child::run(&mut command, started)?, refuses))
    });
    let (end, refuses) = match started {
        Ok(end) => end,
        Err(error) => {
            let hint = Program::hint(name, &error);
            say(&format!("{}: {error}{hint}", name.to_string_lossy()));
            return ExitCode::from(match (error.kind(), error.raw_os_error()) {
                (ErrorKind::NotFound, _) => NOT_FOUND,
                // The system lacks resources, which says nothing about the program.
                (_, Some(libc::EAGAIN | libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => RUN_FAILED,
                _ => NOT_EXECUTABLE,
            });
        }
    };
    prepared.metrics.iter().for_each(metrics::Metrics::end);
    let figures = prepared.run_statistics.figures();
    if matches!(end, End::Signal(_)) && !figures.is_empty() && prepared.sets("TRTALLOC_SNAPSHOT_AT_EXIT") {
        say(
            "a signal ended the program, so it wrote no snapshot; `trtalloc ctl PID snapshot FILE` writes one while it runs",
        );
    }
    say(&summary::line(&figures, refuses.is_some()));
    match end {
        End::Status(status) => ExitCode::from(status),
        End::Signal(signal) => child::end_likewise(signal),
    }
}

/// What is needed to start the program.
struct Prepared {
    environment: Vec<(String, OsString)>,
    preload: OsString,
    run_statistics: Arc<run_statistics::SharedFile>,
    metrics: Option<metrics::Metrics>,
}

impl Prepared {
    /// Whether the program has the variable, from the arguments or from this command's own environment.
    fn sets(&self, variable: &str) -> bool {
        self.environment.iter().any(|(name, _)| name == variable) || of_environment(variable).is_some()
    }
}

/// A variable of this command's own environment. An empty one counts as unset, as in the library.
fn of_environment(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.to_string_lossy().trim().is_empty())
}

fn prepare(arguments: &Arguments) -> Result<Prepared> {
    let mut environment = arguments.options.environment()?;
    for (name, path) in environment
        .iter()
        .filter(|(name, _)| name.starts_with("TRTALLOC_SNAPSHOT_"))
    {
        let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
        // A process id in its name is known only later, and the program may make the folder.
        if !folder.to_string_lossy().contains("%p") && !folder.is_dir() {
            let option = match name.as_str() {
                "TRTALLOC_SNAPSHOT_ON_OOM" => "--snapshot_on_oom",
                _ => "--snapshot",
            };
            say(&format!(
                "{option}: there is no folder {}, so it must be made before the snapshot is written",
                folder.display()
            ));
        }
    }
    let unknown = config::unknown_variables();
    for (_, line) in &unknown {
        say(line);
    }
    if !unknown.is_empty() {
        // So that the library does not report them again in each process.
        let names: Vec<&str> = unknown.iter().map(|(name, _)| name.as_str()).collect();
        environment.push((config::NAMED.to_owned(), names.join(",").into()));
    }
    let disable = environment.iter().rev().find(|(name, _)| name == "TRTALLOC_DISABLE");
    let disable = disable.map(|(_, value)| value.clone());
    let disable = disable
        .or_else(|| of_environment("TRTALLOC_DISABLE"))
        .unwrap_or_default();
    let mut config = Config::default();
    if config.set("disable", &disable.to_string_lossy()).is_ok() && config.disable {
        say("TRTALLOC_DISABLE is set, so the library does nothing in the program");
    }
    // What is given here or in the environment holds.
    let control = environment.iter().rev().find(|(name, _)| name == "TRTALLOC_CONTROL");
    let control = control.map(|(_, value)| value.clone());
    match control.or_else(|| of_environment("TRTALLOC_CONTROL")) {
        Some(value) => {
            let value = value.to_string_lossy();
            let is_on = config.set("control", &value).is_ok() && config.control;
            if arguments.metrics.any() && !is_on {
                return Err(Error::InvalidArgument(format!(
                    "--metrics and --metrics-file need the control socket, and control={value} is set"
                )));
            }
        }
        None => environment.push(("TRTALLOC_CONTROL".to_owned(), "1".into())),
    }
    let library = library::find(arguments.library.as_deref())?;
    let run_statistics = run_statistics::SharedFile::new();
    let run_statistics = Arc::new(run_statistics.map_err(|error| Error::Io(format!("a file in memory: {error}")))?);
    Ok(Prepared {
        metrics: arguments.metrics.prepare(&run_statistics)?,
        environment,
        preload: library::preload(&library, &std::env::var_os("LD_PRELOAD").unwrap_or_default()),
        run_statistics,
    })
}

/// Prints a line on stderr. A closed pipe is not an error.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(format!("trtalloc run: {text}\n").as_bytes());
}
