//! `trtalloc bench`: the first of the figures.

use std::time::Instant;

use trtalloc::allocator::Allocator;
use trtalloc::bridge::client::Client;
use trtalloc::driver::Stream;
use trtalloc::error::{Error, Result};
use trtalloc::handle::Handle;

use super::device::{Device, Otherwise};
use super::table::Table;
use super::{AllocatorArguments, Done, demo, later, say};

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    allocator: AllocatorArguments,
    /// How many pairs each figure is the mean of
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pairs: u64,
}

pub fn run(arguments: &Arguments) -> Result<Done> {
    let config = arguments.allocator.config()?;
    let device = Device::open(&config, Otherwise::Simulate)?;
    say(&format!("device  {device}"));
    say("");
    let mut table = Table::new(&[
        "allocateAsync and deallocateAsync, one thread, through the C++ vtable",
        "ns a pair",
    ]);
    for (name, trusted) in [
        ("streams=checked: two queries of the driver", false),
        ("streams=trusted: none", true),
    ] {
        let mut config = config.clone();
        config.streams_trusted = trusted;
        let allocator = Allocator::with_driver(device.driver(), config)?;
        let stream = device.application().create_stream()?;
        let pair = pair(Client::new(Handle::new(allocator.clone()))?, stream, arguments.pairs);
        allocator.close();
        device.application().destroy_stream(stream)?;
        table.row(vec![name.to_string(), format!("{:.1}", pair?)]);
    }
    say(&table.text());
    Ok(later("the rest of the table"))
}

/// Nanoseconds of one pair, the block being in the stream's cache.
fn pair(client: Client, stream: Stream, pairs: u64) -> Result<f64> {
    const SIZE: u64 = 1 << 20;
    let once = || match client.allocate_async(SIZE, 0, 0, stream.0) {
        0 => false,
        block => client.deallocate_async(block, stream.0),
    };
    let warm = (0..pairs.min(1000)).all(|_| once());
    let begun = Instant::now();
    let all = (0..pairs).all(|_| once());
    let time = begun.elapsed();
    if warm && all {
        Ok(time.as_nanos() as f64 / pairs as f64)
    } else {
        Err(Error::OutOfMemory(demo::last_error()))
    }
}
