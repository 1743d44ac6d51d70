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

/// What each column is where the load is that of a trace.
pub const LEGEND_OF_TRACE: &str = "\
request      a stream's run of allocations and the frees after it; calls without a stream have requests of their own
calls        cuMemCreate, Map, SetAccess, Unmap, Release, Alloc and Free of the allocator, for each 1,000 requests
device time  in which a stream completed its requests ÷ the length of its work; of the slowest stream. It has the time in
             which the trace makes no request, too
allocator's  the same ÷ that of the same load with an allocator that takes no time and no memory
memory       the most memory allocated on the device ÷ the needs: the sum over the streams, and the calls without one, of
             the most bytes that each has allocated at a time
waits        for another stream, which the allocator queued, for each 1,000 requests
longest      simulated microseconds of a call of the allocator
refused      requests for memory that were refused, in the first pass too
";

/// A row of the table.
pub struct Line<'a> {
    pub name: String,
    pub streams: usize,
    pub ahead: usize,
    pub figures: &'a Figures,
    /// The device time, compared with that without an allocator.
    pub allocators_part: f64,
    /// In multiples of the needs.
    pub memory: f64,
    /// What the last column has.
    pub last: String,
}

impl Line<'_> {
    /// The line of a workload. With a limit there are refusals instead of targets.
    pub fn of(measured: &Measured, limited: bool) -> Line<'_> {
        Line {
            name: measured.row.name(),
            streams: measured.row.streams,
            ahead: measured.row.ahead,
            figures: &measured.figures,
            allocators_part: measured.allocators_part(),
            memory: measured.memory(),
            last: match limited {
                true => measured.figures.refused.to_string(),
                false => measured.missed().join(" "),
            },
        }
    }
}

/// The table of these lines. `last` is the name of the last column.
pub fn table(lines: &[Line], last: &str) -> Table {
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
    for line in lines {
        let figures = line.figures;
        table.row(vec![
            line.name.clone(),
            line.streams.to_string(),
            line.ahead.to_string(),
            count(figures, figures.memory_calls),
            format!("{:.3}", figures.device_time),
            format!("{:.3}", line.allocators_part),
            format!("{:.2}", line.memory),
            count(figures, figures.waits),
            format!("{:.1}", figures.longest as f64 / 1000.0),
            line.last.clone(),
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
