//! The printed table.

use super::super::super::table::Table;
use super::Measured;
use trtalloc::trace::serve::Figures;

/// What each column is.
pub const LEGEND: &str = "\
calls        cuMemCreate, Map, SetAccess, Unmap, Release, Alloc and Free of the allocator, for each 1,000 requests
device time  in which a stream completed its requests ÷ the length of its work; of the slowest stream
allocator's  the same ÷ that of the same workload with an allocator that takes no time and no memory
memory       the most memory allocated on the device after a call ÷ the needs: the sum over the streams, and the thread
             that loads engines, of the most bytes that each has allocated at a time
waits        for another stream, which the allocator queued, for each 1,000 requests
longest      simulated microseconds of a call of the allocator
missed       which targets of a steady state without a limit are missed: at most 1 call for 8 shapes and 50 for any size,
             1.005 of the allocator's time, 1.10 of the memory for one request at a time of 8 shapes (and 2 MiB for
             each stream) and 1.20 elsewhere, no wait
";

/// The table of `rows`. With a limit there are refusals instead of targets.
pub fn table(rows: &[Measured], limited: bool) -> Table {
    let last = if limited { "refused" } else { "missed" };
    let mut table = Table::new(&[
        "workload",
        "streams",
        "ahead",
        "calls",
        "device time",
        "allocator's",
        "memory",
        "waits",
        "longest",
        last,
    ]);
    for measured in rows {
        let figures = &measured.figures;
        let last = match limited {
            true => figures.refused.to_string(),
            false => measured.missed().join(" "),
        };
        table.row(vec![
            measured.row.name(),
            measured.row.streams.to_string(),
            measured.row.ahead.to_string(),
            count(figures, figures.memory_calls),
            format!("{:.3}", figures.device_time),
            format!("{:.3}", measured.allocators_part()),
            format!("{:.2}", measured.memory()),
            count(figures, figures.waits),
            format!("{:.1}", figures.longest as f64 / 1000.0),
            last,
        ]);
    }
    table
}

fn count(figures: &Figures, count: u64) -> String {
    match figures.per_thousand(count) {
        few if few > 0.0 && few < 10.0 => format!("{few:.1}"),
        many => format!("{many:.0}"),
    }
}
