//! `trtalloc demo`: runs an application's memory use through TensorRT's C++ interface, under a limit, and checks
//! invariants.
//!
//! [`caller`] makes the calls, [`engine`] models engines and contexts, [`scenario`] has the phases.

mod caller;
mod engine;
mod scenario;

use std::ffi::CStr;
use std::path::PathBuf;

use trtalloc::allocator::Allocator;
use trtalloc::config::Limit;
use trtalloc::error::Result;
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::tensorrt::client::Client;

use self::scenario::Scenario;
use super::device::{Device, Fallback};
use super::table::size;
use super::{AllocatorArguments, Done, say, snapshot};

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    allocator: AllocatorArguments,
    /// Make a tenth of the requests
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    snapshot: snapshot::Argument,
    /// The seed for the requests' shapes
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A limit under which two of the three engines fit, and the third only in place of the second.
const LIMIT: u64 = 2 << 30;

pub fn run(arguments: &Arguments) -> Result<Done> {
    let mut config = arguments.allocator.config()?;
    if config.limit == Limit::None {
        config.limit = Limit::Bytes(LIMIT);
    }
    let requests = if arguments.short { 400 } else { 4000 };
    let snapshot = match arguments.snapshot.path()? {
        Some(path) => path.to_owned(),
        None => default_snapshot(),
    };
    // A request makes about thirty calls as TensorRT does.
    snapshot::record(&mut config, 60 * requests, "native")?;
    let device = Device::open(&config, Fallback::Simulate)?;
    let limit = match config.limit {
        Limit::None => "none".to_string(),
        Limit::Bytes(bytes) => size(bytes),
        Limit::Percent(percent) => format!("{percent} % of the device's memory"),
    };
    say(&format!("device  {device}\nlimit   {limit}, on reserved memory"));
    say("");
    let allocator = Allocator::with_driver(device.driver(), config)?;
    let client = Client::new(ExportedAllocator::new(allocator.clone()))?;
    let result = Scenario::new(&device, &allocator, client, requests, arguments.seed).run();
    let written = allocator.write_snapshot(&snapshot);
    // The pool must be closed before its context is destroyed.
    allocator.close();
    let outcome = result?;
    say(&outcome.table);
    say("");
    let mut done = Done::All;
    for (held, text) in outcome.invariants {
        say(&format!("{:6}  {text}", if held { "ok" } else { "FAILED" }));
        if !held {
            done = Done::NotAll;
        }
    }
    say("");
    match written {
        Ok(()) => {
            let page = snapshot.extension().is_some_and(|suffix| suffix == "html");
            let reader = match page {
                true => "for a browser",
                false => "for `trtalloc report` and for PyTorch's memory viewer",
            };
            say(&format!("snapshot  {}, {reader}", snapshot.display()));
        }
        Err(error) => {
            done = Done::NotAll;
            say(&format!("snapshot  FAILED: {error}"));
        }
    }
    if device.is_simulated() {
        say("\nThe device is simulated: times are the allocator's own and the simulation's, not a GPU's.");
    }
    Ok(done)
}

/// The snapshot's path where none was named. Each user has one, since the folder is often one that all users share, where
/// the file of another user cannot be replaced.
fn default_snapshot() -> PathBuf {
    // SAFETY: only reads a value.
    let user = unsafe { libc::geteuid() };
    std::env::temp_dir().join(format!("trtalloc-demo-{user}.pickle"))
}

/// The text of this thread's last error in the library.
pub fn last_error() -> String {
    // SAFETY: the library returns a terminated string, valid until this thread's next call of the library.
    unsafe { CStr::from_ptr(trtalloc::error::last()) }
        .to_string_lossy()
        .into_owned()
}
