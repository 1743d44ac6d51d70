//! `trtalloc ctl`: looks into a running process and steers it, through the process's control socket.

mod json;
mod list;
pub(in crate::command) mod process;
mod show;

use std::path::{Path, PathBuf};
use std::time::Duration;

use trtalloc::config::{Config, Limit};
use trtalloc::error::{Error, Result};
use trtalloc::history::snapshot::{Format, write_file};
use trtalloc::support::control::protocol::{Ended, Request, receive};

use self::process::Target;
use super::{Done, say, say_as_it_is};

/// How long a process may take until it answers. It serves one client at a time, and a snapshot takes as long as it does.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub struct Arguments {
    /// The process; without it, those that can be reached are listed
    pid: Option<u32>,
    #[command(subcommand)]
    what: Option<Action>,
    /// The allocator, where the process has several: they are numbered in the order of their creation
    #[arg(long, global = true, value_name = "NUMBER")]
    allocator: Option<u32>,
    /// The device, where the process uses several
    #[arg(long, global = true)]
    device: Option<u32>,
    /// A model's name, or another tag: for `limit` and `tags`
    #[arg(long, global = true)]
    name: Option<String>,
}

#[derive(clap::Subcommand)]
enum Action {
    /// The statistics of each device
    Stats {
        /// As JSON, one line for each device
        #[arg(long)]
        json: bool,
    },
    /// The statistics in the OpenMetrics text format
    Metrics,
    /// Writes a snapshot: .pickle (for PyTorch's memory viewer too), .json or .html
    Snapshot { file: PathBuf },
    /// Sets what is recorded: off, state or all, then ,context= ,stacks= ,max_entries= ,device=
    History { options: String },
    /// Gives back what is free, until at most KEEP stays reserved
    Trim {
        /// Bytes, or 512M, 4GiB and so on; 0 by default
        keep: Option<String>,
        /// Find out by context events what has completed. They end a capture that runs, unless the process is known to
        /// capture
        #[arg(long)]
        confirm: bool,
    },
    /// Limits reserved memory, or with --name what a name holds; 0 or none: no limit
    Limit { bytes: String },
    /// What each name holds
    Tags {
        /// As JSON, one line for each device
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: &Arguments) -> Result<Done> {
    let (pid, what) = match (arguments.pid, &arguments.what) {
        (None, None) => {
            let chosen = arguments.allocator.is_some() || arguments.device.is_some() || arguments.name.is_some();
            return match chosen {
                true => Err(Error::InvalidArgument(
                    "--allocator, --device and --name are for one process: name it first".into(),
                )),
                false => list::run(),
            };
        }
        (Some(pid), Some(what)) => (pid, what),
        (None, Some(_)) => {
            return Err(Error::InvalidArgument(
                "which process? `trtalloc ctl` lists those that can be reached".into(),
            ));
        }
        (Some(_), None) => {
            return Err(Error::InvalidArgument(
                "stats, metrics, snapshot FILE, history OPTIONS, trim [KEEP], limit BYTES or tags?".into(),
            ));
        }
    };
    let request = request(arguments, what)?;
    if let Action::Snapshot { file } = what {
        // Relative to the caller's folder, and refused before the process does anything.
        Format::of(file)?;
    }
    let target = Target::of(pid)?;
    target.take_user()?;
    let mut stream = target.connect()?;
    process::send(&mut stream, &request)?;
    match what {
        Action::Snapshot { file } => write_snapshot(&mut stream, file)?,
        Action::Metrics => say_as_it_is(&text(&mut stream)?),
        Action::Stats { json: true } => say_lines(&text(&mut stream)?),
        Action::Tags { json: true } => {
            let text = text(&mut stream)?;
            // An error where nothing was allocated for the name.
            if arguments.name.is_some() {
                show::tags(&json::lines(&text)?, arguments.name.as_deref())?;
            }
            say_lines(&text);
        }
        Action::Stats { json: false } => say_lines(&show::stats(&json::lines(&text(&mut stream)?)?)),
        Action::Tags { json: false } => {
            let lines = json::lines(&text(&mut stream)?)?;
            say_lines(&show::tags(&lines, arguments.name.as_deref())?);
        }
        Action::Trim { .. } => say_lines(&show::trim(&json::lines(&text(&mut stream)?)?)),
        Action::History { .. } | Action::Limit { .. } => drop(text(&mut stream)?),
    }
    Ok(Done::All)
}

fn say_lines(text: &str) {
    if !text.is_empty() {
        say(text);
    }
}

/// What the process is asked for.
fn request(arguments: &Arguments, what: &Action) -> Result<Request> {
    let with = |request: Request, key: &str, value: Option<String>| match value {
        Some(value) => request.with(key, value),
        None => request,
    };
    let request = match what {
        Action::Stats { .. } => Request::new("stats"),
        Action::Metrics => Request::new("metrics"),
        Action::Tags { .. } => Request::new("tags"),
        Action::History { options } => Request::new("history").with("options", options),
        Action::Trim { keep, confirm } => {
            let keep = keep.as_deref().map(|keep| bytes("KEEP", keep)).transpose()?;
            let request = with(Request::new("trim"), "keep", keep.map(|keep| keep.to_string()));
            with(request, "confirm", confirm.then(|| "1".to_owned()))
        }
        Action::Limit { bytes: limit } => Request::new("limit").with("bytes", bytes("BYTES", limit)?),
        Action::Snapshot { file } => {
            let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
            let request = Request::new("snapshot").with("format", part(file.extension()));
            request.with("title", part(file.file_name()))
        }
    };
    let named = match (what, &arguments.name) {
        // The names of a table are chosen here.
        (Action::Tags { json: false }, _) => None,
        (_, name) => name.clone(),
    };
    let request = with(
        request,
        "allocator",
        arguments.allocator.map(|number| number.to_string()),
    );
    let request = with(request, "device", arguments.device.map(|number| number.to_string()));
    Ok(with(request, "name", named))
}

/// Bytes, as the option `limit` has them.
fn bytes(argument: &str, text: &str) -> Result<u64> {
    let mut config = Config::default();
    let refused = || {
        Error::InvalidArgument(format!(
            "{argument}: cannot read `{text}` (bytes as 512M, 4GiB or 4GB, or none)"
        ))
    };
    config.set("limit", text).map_err(|_| refused())?;
    match config.limit {
        Limit::None => Ok(0),
        Limit::Bytes(bytes) => Ok(bytes),
        Limit::Percent(_) => Err(refused()),
    }
}

/// The answer as text.
fn text(stream: &mut impl std::io::Read) -> Result<String> {
    let mut all = Vec::new();
    let collect = |part: &[u8]| {
        all.extend(part);
        Ok(())
    };
    receive(stream, collect).map_err(ended)?;
    String::from_utf8(all).map_err(|_| Error::Io("the process's answer is not UTF-8".into()))
}

/// Writes the file once the answer is complete; otherwise the one that was there stays.
fn write_snapshot(stream: &mut impl std::io::Read, file: &Path) -> Result<()> {
    let mut refused = None;
    let written = write_file(file, |out| match receive(stream, |part| out.write_all(part)) {
        Ok(()) => Ok(()),
        Err(Ended::Broken(error)) => Err(error),
        Err(ended) => {
            refused = Some(ended);
            Err(std::io::ErrorKind::Other.into())
        }
    });
    match refused {
        Some(refused) => Err(ended(refused)),
        None => written.map(|()| say(&format!("snapshot  {}", file.display()))),
    }
}

/// The error of a process that refused, or that ended its answer early.
fn ended(ended: Ended) -> Error {
    match ended {
        // The text begins with the kind of the error, as all errors do.
        Ended::Refused(1, reason) => Error::InvalidArgument(without_kind(reason, "invalid argument: ")),
        Ended::Refused(3, reason) => Error::Unsupported(without_kind(reason, "unsupported: ")),
        Ended::Refused(_, reason) => Error::Io(format!("the process refused: {reason}")),
        Ended::Broken(error) => Error::Io(match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                "the process does not answer: it is stopped, or serves another client".into()
            }
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => {
                "the process ended the connection before its answer was complete".into()
            }
            _ => format!("the process's answer: {error}"),
        }),
    }
}

fn without_kind(reason: String, kind: &str) -> String {
    reason.strip_prefix(kind).map(str::to_owned).unwrap_or(reason)
}
