//! `trtalloc demo`: a TensorRT-shaped life through the C++ interface, under a cap, with its promises checked.
//!
//! [`caller`] makes the calls, [`engine`] says which an engine and its contexts make, [`life`] is the order of events.

mod caller;
mod engine;
mod life;

use std::ffi::CStr;

use trtalloc::allocator::Allocator;
use trtalloc::bridge::client::Client;
use trtalloc::config::Limit;
use trtalloc::error::Result;
use trtalloc::handle::Handle;

use self::life::Life;
use super::device::{Device, Otherwise};
use super::table::size;
use super::{AllocatorArguments, Done, say, snapshot};

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    allocator: AllocatorArguments,
    /// A tenth of the requests
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    snapshot: snapshot::Argument,
    /// The seed of the requests' shapes
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The cap under which two of the three engines fit, and the third only in place of one of them.
const CAP: u64 = 2 << 30;

pub fn run(arguments: &Arguments) -> Result<Done> {
    let mut config = arguments.allocator.config()?;
    if config.limit == Limit::None {
        config.limit = Limit::Bytes(CAP);
    }
    let requests = if arguments.short { 400 } else { 4000 };
    let snapshot = match arguments.snapshot.path()? {
        Some(path) => path.to_owned(),
        None => std::env::temp_dir().join("trtalloc-demo.pickle"),
    };
    // Each is some thirty calls of TensorRT's.
    snapshot::record(&mut config, 60 * requests, "native")?;
    let device = Device::open(&config, Otherwise::Simulate)?;
    let cap = match config.limit {
        Limit::None => "none".to_string(),
        Limit::Bytes(bytes) => size(bytes),
        Limit::Percent(percent) => format!("{percent} % of the device's memory"),
    };
    say(&format!("device  {device}\ncap     {cap}, on reserved memory"));
    say("");
    let allocator = Allocator::with_driver(device.driver(), config)?;
    let client = Client::new(Handle::new(allocator.clone()))?;
    let result = Life::new(&device, &allocator, client, requests, arguments.seed).run();
    let written = allocator.write_snapshot(&snapshot);
    // Nothing of the pool may outlive the context it was used with.
    allocator.close();
    let told = result?;
    say(&told.table);
    say("");
    let mut done = Done::All;
    for (held, promise) in told.promises {
        say(&format!("{:6}  {promise}", if held { "ok" } else { "FAILED" }));
        if !held {
            done = Done::NotAll;
        }
    }
    say("");
    match written {
        Ok(()) => {
            let page = snapshot.extension().is_some_and(|suffix| suffix == "html");
            let whom = match page {
                true => "for a browser",
                false => "for `trtalloc report` and for PyTorch's memory viewer",
            };
            say(&format!("snapshot  {}, {whom}", snapshot.display()));
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

/// This thread's last failure in the library, in words.
pub fn last_error() -> String {
    // SAFETY: the library gives a terminated string that stays until this thread's next call of it.
    unsafe { CStr::from_ptr(trtalloc::error::last()) }
        .to_string_lossy()
        .into_owned()
}
