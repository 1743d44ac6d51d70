//! The simulated device for commands, tests and benches.

use std::sync::Arc;

use super::model::Machine;
use super::model::functions::Call;
use super::{SimDriver, checked};
use crate::driver::{Result, Stream, Tools};

impl Tools for SimDriver {
    fn description(&self) -> String {
        "simulated, for trials without a GPU".into()
    }

    fn create_stream(&self) -> Result<Stream> {
        checked(Call::StreamCreate, self.machine.stream_create(true)).map(Stream)
    }

    fn destroy_stream(&self, stream: Stream) -> Result<()> {
        checked(Call::StreamDestroy, self.machine.stream_destroy(stream.0))
    }

    /// A kernel that takes two simulated microseconds to start and moves a TiB each second.
    fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()> {
        let nanoseconds = 2_000 + bytes / 1_100;
        let launched = self.machine.launch(stream.0, nanoseconds, &[(address, bytes)]);
        checked(Call::LaunchKernel, launched)
    }

    fn simulation(&self) -> Option<&Arc<Machine>> {
        Some(&self.machine)
    }
}
