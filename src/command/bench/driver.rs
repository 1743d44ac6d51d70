//! The time of the driver's own allocators, for comparison. It is meaningful only on a GPU.

use trtalloc::driver::{self, Driver, Failure, Stream};
use trtalloc::error::Result;

use super::time::{SIZE, nanoseconds};
use super::{Bench, Row};

/// `cuMemAlloc` and `cuMemFree`, and the driver's stream-ordered allocator.
pub fn pairs(bench: &Bench) -> Result<Vec<Row>> {
    let rows = ["cuMemAlloc and cuMemFree", "cuMemAllocAsync and cuMemFreeAsync"];
    if bench.device.is_simulated() {
        return Ok(rows.map(|what| Row::printed(what, "not here: a GPU's".into())).into());
    }
    // They cost microseconds to milliseconds.
    let count = (bench.arguments.pairs / 2000).max(5);
    let driver = bench.device.driver();
    driver.free(driver.malloc(SIZE)?)?;
    let plain = nanoseconds(count, || {
        driver.malloc(SIZE).and_then(|block| driver.free(block)).is_ok()
    })?;
    let stream = bench.device.application().create_stream()?;
    let ordered = match ordered_pair(&*driver, stream) {
        Ok(()) => nanoseconds(count, || ordered_pair(&*driver, stream).is_ok()).map(|time| format!("{time:.0} ns")),
        Err(error) if error.failure == Failure::Missing => Ok("not in this driver".into()),
        Err(error) => Ok(format!("refused: {error}")),
    };
    bench.device.application().destroy_stream(stream)?;
    let [first, second] = rows;
    Ok(vec![
        Row::printed(first, format!("{plain:.0} ns")),
        Row::printed(second, ordered?),
    ])
}

/// Allocates and frees one block with the driver's stream-ordered allocator (CUDA 11.2).
fn ordered_pair(driver: &dyn Driver, stream: Stream) -> driver::Result<()> {
    let Some(tools) = driver.tools() else {
        return Ok(());
    };
    tools.free_async(tools.malloc_async(SIZE, stream)?, stream)
}
