//! Replays a trace on an allocator and measures it.

use std::time::{Duration, Instant};

use super::{OpKind, Trace};
use crate::allocator::{Allocator, RESIZABLE, Request};
use crate::driver::Stream;
use crate::support::error::{Error, Result};
use crate::support::stats::Stats;

/// An allocator on which a trace can be replayed.
pub trait ReplayTarget {
    /// Allocates `size` bytes, to be used first on `stream`.
    fn allocate(&self, size: u64, resizable: bool, stream: Option<Stream>) -> Result<u64>;
    /// Resizes the block at `address`; on an error the block is unchanged.
    fn reallocate(&self, address: u64, size: u64) -> Result<u64>;
    /// Frees a block that was last used on `stream`.
    fn deallocate(&self, address: u64, stream: Option<Stream>) -> Result<()>;
    /// The statistics so far.
    fn stats(&self) -> Result<Stats>;
    /// Resets the peaks in [`ReplayTarget::stats`].
    fn reset_peaks(&self) -> Result<()>;
}

impl ReplayTarget for Allocator {
    fn allocate(&self, size: u64, resizable: bool, stream: Option<Stream>) -> Result<u64> {
        let flags = if resizable { RESIZABLE } else { 0 };
        Allocator::allocate(
            self,
            Request {
                size,
                alignment: 0,
                flags,
                stream,
                device: None,
            },
        )
    }

    fn reallocate(&self, address: u64, size: u64) -> Result<u64> {
        Allocator::reallocate(self, address, 0, size)
    }

    fn deallocate(&self, address: u64, stream: Option<Stream>) -> Result<()> {
        Allocator::deallocate(self, address, stream)
    }

    fn stats(&self) -> Result<Stats> {
        Allocator::stats(self, None)
    }

    fn reset_peaks(&self) -> Result<()> {
        Allocator::reset_peaks(self, None)
    }
}

/// The results of one pass over a trace.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    /// Calls made. Rows of blocks whose allocation was refused are skipped.
    pub ops: u64,
    /// Wall-clock time of these calls.
    pub time: Duration,
    /// The peak of bytes in use, each block rounded up to 512; refused blocks hold nothing.
    pub peak: u64,
    /// The peak of physical memory reserved in this pass.
    pub reserved_peak: u64,
    /// Physical memory reserved at its end, with every block freed.
    pub reserved: u64,
    /// Allocations and resizes that were refused.
    pub failures: u64,
    /// The first refusal's reason.
    pub first_failure: Option<String>,
    /// Handles moved to another address.
    pub remaps: u64,
    /// Driver calls that submit work or may block.
    pub driver_calls: u64,
    /// Driver calls that only query.
    pub driver_queries: u64,
    /// Resizes that kept the address.
    pub in_place: u64,
}

impl Pass {
    /// Nanoseconds per call.
    pub fn ns_per_op(&self) -> f64 {
        self.time.as_nanos() as f64 / self.ops.max(1) as f64
    }

    /// Peak reserved ÷ peak in use; infinite where nothing was in use.
    pub fn ratio(&self) -> f64 {
        match self.peak {
            0 if self.reserved_peak == 0 => 1.0,
            0 => f64::INFINITY,
            peak => self.reserved_peak as f64 / peak as f64,
        }
    }

    /// Remaps for each thousand allocations and resizes of `trace`.
    pub fn remaps_per_thousand(&self, trace: &Trace) -> f64 {
        let requests = trace.ops().iter().filter(|op| op.kind != OpKind::Free).count();
        self.remaps as f64 * 1000.0 / requests.max(1) as f64
    }
}

/// Is notified of a replay's calls. The measured time includes it.
pub trait Observer {
    /// Called every few thousand rows with the number of rows done.
    fn progress(&mut self, _rows: u64) {}
    /// `address` was just allocated with `size` bytes.
    fn handed_out(&mut self, _address: u64, _size: u64, _stream: Option<Stream>) -> Result<()> {
        Ok(())
    }
    /// The block at `old` is now at `new` with `size` bytes.
    fn resized(&mut self, _old: u64, _new: u64, _size: u64, _stream: Option<Stream>) -> Result<()> {
        Ok(())
    }
    /// The block at `address` is about to be freed.
    fn giving_back(&mut self, _address: u64, _stream: Option<Stream>) -> Result<()> {
        Ok(())
    }
}

/// Ignores the notifications.
impl Observer for () {}

/// Runs all rows in order on the calling thread, each on its stream in `streams`, then frees the blocks that the
/// trace leaves. Refused requests are counted; a block that cannot be freed is an error.
pub fn replay(
    trace: &Trace,
    memory: &impl ReplayTarget,
    streams: &[Stream],
    observer: &mut impl Observer,
) -> Result<Pass> {
    const ROWS_PER_REPORT: usize = 4096;
    if streams.len() < trace.streams().len() {
        let text = format!("{} streams for a trace of {}", streams.len(), trace.streams().len());
        return Err(Error::InvalidArgument(text));
    }
    let stream_of = |index: Option<u16>| index.map(|index| streams[index as usize]);
    memory.reset_peaks()?;
    let before = memory.stats()?;
    let mut pass = Pass::default();
    let mut refused: Vec<u32> = Vec::new();
    let mut addresses = vec![0u64; trace.blocks()];
    for (part, ops) in trace.ops().chunks(ROWS_PER_REPORT).enumerate() {
        let first = part * ROWS_PER_REPORT;
        observer.progress(first as u64);
        let begun = Instant::now();
        for (at, op) in ops.iter().enumerate() {
            let stream = stream_of(op.stream);
            let address = &mut addresses[op.block as usize];
            // A block whose allocation was refused cannot be resized or freed.
            if *address == 0 && !matches!(op.kind, OpKind::Alloc { .. }) {
                continue;
            }
            pass.ops += 1;
            let result = match op.kind {
                OpKind::Alloc { resizable } => memory.allocate(op.bytes, resizable, stream),
                OpKind::Realloc => memory.reallocate(*address, op.bytes),
                OpKind::Free => {
                    observer.giving_back(*address, stream)?;
                    memory.deallocate(std::mem::take(address), stream)?;
                    continue;
                }
            };
            match result {
                Ok(granted) => {
                    match op.kind {
                        OpKind::Realloc => observer.resized(*address, granted, op.bytes, stream)?,
                        _ => observer.handed_out(granted, op.bytes, stream)?,
                    }
                    *address = granted;
                }
                Err(error) => {
                    pass.first_failure.get_or_insert_with(|| error.to_string());
                    refused.push((first + at) as u32);
                }
            }
        }
        pass.time += begun.elapsed();
    }
    observer.progress(trace.ops().len() as u64);
    for (slot, stream) in trace.leftovers() {
        let address = std::mem::take(&mut addresses[slot as usize]);
        if address != 0 {
            observer.giving_back(address, stream_of(stream))?;
            memory.deallocate(address, stream_of(stream))?;
        }
    }
    let after = memory.stats()?;
    pass.failures = refused.len() as u64;
    pass.peak = trace.peak_without(&refused);
    pass.reserved_peak = after.reserved_peak;
    pass.reserved = after.reserved;
    pass.remaps = after.remaps - before.remaps;
    pass.driver_calls = after.driver_calls - before.driver_calls;
    pass.driver_queries = after.driver_queries - before.driver_queries;
    pass.in_place = after.reallocations_in_place - before.reallocations_in_place;
    Ok(pass)
}
