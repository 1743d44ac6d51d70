//! AscendCL for commands, tests and benches, and what `trtalloc doctor` says of it.

use super::super::{Driver, DriverError, Failure, Result, Stream, Tools};
use super::AscendDriver;
use super::failure::check;
use super::functions::LIBRARY;

/// What to do about an error of this driver.
pub(super) fn advice(error: &DriverError) -> &'static str {
    match error.failure {
        Failure::Missing if error.call == LIBRARY => {
            "Only where there is an Ascend device: run CANN's set_env.sh, so that its libraries are found."
        }
        Failure::Missing => "CANN is too old for this driver, which needs that function.",
        _ => "Ask npu-smi info what is wrong.",
    }
}

impl Tools for AscendDriver {
    fn description(&self) -> String {
        "AscendCL; never run on such a device".into()
    }

    fn create_stream(&self) -> Result<Stream> {
        self.in_current_context(|acl| {
            let mut stream = 0usize;
            call!(acl, aclrtCreateStream(&mut stream))?;
            Ok(Stream(stream))
        })
    }

    /// AscendCL requires that the stream's work has completed.
    fn destroy_stream(&self, stream: Stream) -> Result<()> {
        self.context_synchronize()?;
        self.in_current_context(move |acl| call!(acl, aclrtDestroyStream(stream.0)))
    }

    fn launch(&self, stream: Stream, address: u64, bytes: u64) -> Result<()> {
        self.fill_async(address, 0, bytes, stream)
    }
}
