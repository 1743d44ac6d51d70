//! Driver calls of a pool that is filled for the first time.

use trtalloc::error::Result;

use super::time::refused;
use super::{Bench, Row};

const MIB: u64 = 1 << 20;

/// How much the blocks of each row hold together.
const FILLED: u64 = 8 << 30;

/// The sizes of the blocks in MiB.
const SIZES: [u64; 5] = [1, 4, 16, 64, 256];

/// The size for which there is a target, and the target.
const JUDGED: (u64, u64) = (16, 300);

/// Blocks of one size on one stream of a fresh allocator. None is freed before all are there.
pub fn fill(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for size in SIZES {
        let (calls, ratio) = bench.fresh(
            |_| {},
            1,
            |allocator, client, streams| {
                let mut blocks = Vec::new();
                for _ in 0..FILLED / (size * MIB) {
                    match client.allocate_async(size * MIB, 0, 0, streams[0].0) {
                        0 => return Err(refused()),
                        block => blocks.push(block),
                    }
                }
                let stats = allocator.stats(None)?;
                let ratio = stats.reserved_peak as f64 / FILLED as f64;
                let mut blocks = blocks.into_iter();
                match blocks.all(|block| client.deallocate_async(block, streams[0].0)) {
                    true => Ok((stats.driver_calls, ratio)),
                    false => Err(refused()),
                }
            },
        )?;
        let what = format!("the first 8 GiB in blocks of {size} MiB: driver calls, and memory held");
        let measured = format!("{calls}, {ratio:.2} ×");
        rows.push(match size == JUDGED.0 {
            true => Row::judged(what, measured, &format!("at most {}", JUDGED.1), calls <= JUDGED.1),
            false => Row::printed(what, measured),
        });
    }
    Ok(rows)
}
