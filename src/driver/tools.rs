//! What commands, tests and benches need of a driver beside memory. The pool uses none of it.

use std::sync::Arc;

use super::library::missing;
use super::sim::Machine;
use super::{Result, Stream};

/// An open driver for commands, tests and benches: what it is, and an application's calls.
pub trait Tools {
    /// What is open, in a few words, for `trtalloc doctor`.
    fn description(&self) -> String;
    /// What could be better on this machine, for `trtalloc doctor`.
    fn advice(&self) -> Option<&'static str> {
        None
    }
    /// Whether physical memory may be shared with other devices, processes and network cards. Only a trial shows whether
    /// that works.
    fn shares_memory(&self) -> bool {
        false
    }

    /// A new stream of the current context, which does not wait for the legacy default stream (`cuStreamCreate`).
    fn create_stream(&self) -> Result<Stream>;
    /// Destroys a stream; work queued on it still runs (`cuStreamDestroy`).
    fn destroy_stream(&self, stream: Stream) -> Result<()>;
    /// Queues work on `stream` that writes `[address, address + bytes)`.
    fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()>;

    /// Memory from the driver's own stream-ordered allocator (`cuMemAllocAsync`), for comparison.
    fn malloc_async(&self, _size: u64, _stream: Stream) -> Result<u64> {
        Err(missing("malloc_async"))
    }
    /// Frees such memory (`cuMemFreeAsync`).
    fn free_async(&self, _address: u64, _stream: Stream) -> Result<()> {
        Err(missing("free_async"))
    }

    /// The simulated computer, where the driver has one: its order checker, its clock and its failures.
    fn simulation(&self) -> Option<&Arc<Machine>> {
        None
    }
}
