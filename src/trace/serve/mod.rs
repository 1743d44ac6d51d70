//! A server: streams whose work is pending, on a device whose memory calls take time. `trtalloc bench serve` and the tests
//! measure what the allocator costs it.
//!
//! [`clients`] draws the requests, [`Run`] makes them on a [`Computer`], and [`Measured`] compares the figures with the
//! targets. [`Load`] has the requests of a trace instead, and [`RecordedRun`] makes those.

mod computer;
mod figures;
mod load;
mod recorded;
mod run;
mod workload;

pub use computer::{Computer, Graph, Memory, Simulated};
pub use figures::{Calls, Figures, MEMORY_CALLS};
pub use load::{Load, Pace, WORK};
pub use recorded::{Passes, RecordedRun};
pub use run::Run;
pub use workload::{Block, Client, Kind, Sizes, Step, clients};

use workload::MIB;

/// One workload.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// What its streams do.
    pub kind: Kind,
    /// The sizes of their requests.
    pub sizes: Sizes,
    /// How many streams.
    pub streams: usize,
    /// How many requests of a stream the host queues before it waits for the first of them.
    pub ahead: usize,
}

impl Row {
    /// Its workload and sizes in words.
    pub fn name(&self) -> String {
        format!("{}, {}", self.kind.name(), self.sizes.name())
    }
}

/// A row with its figures.
#[derive(Debug)]
pub struct Measured {
    /// The row.
    pub row: Row,
    /// With an allocator.
    pub figures: Figures,
    /// The device time without one.
    pub ideal: f64,
    /// The sum of what its clients need: see [`Client::needs`].
    pub needs: u64,
}

impl Measured {
    /// The device time, compared with that of an allocator that takes neither time nor memory.
    pub fn allocators_part(&self) -> f64 {
        self.figures.device_time / self.ideal
    }

    /// The memory held, in multiples of the needs.
    pub fn memory(&self) -> f64 {
        self.figures.memory as f64 / self.needs as f64
    }

    /// The targets of a steady state without a limit that it misses: calls, time, memory, waits.
    pub fn missed(&self) -> Vec<&'static str> {
        let Row { kind, sizes, .. } = self.row;
        let eight = matches!(sizes, Sizes::Shapes(_));
        let calls = if eight || kind != Kind::Plain { 1.0 } else { 50.0 };
        let few_calls = self.figures.per_thousand(self.figures.memory_calls) <= calls;
        let needs = self.needs as f64;
        let most = match eight && kind == Kind::Plain {
            true => needs * 1.10 + (2 * MIB * self.row.streams as u64) as f64,
            false => needs * 1.20,
        };
        let targets = [
            ("calls", few_calls),
            ("time", self.allocators_part() <= 1.005),
            ("memory", self.figures.memory as f64 <= most),
            ("waits", self.figures.waits == 0),
        ];
        let missed = targets.into_iter().filter(|(_, met)| !met);
        missed.map(|(name, _)| name).collect()
    }
}

const SMALL: Sizes = Sizes::Shapes(32 * MIB);
const LARGE: Sizes = Sizes::Shapes(256 * MIB);
const SMALL_ANY: Sizes = Sizes::Any(9 * MIB / 4, 32 * MIB);
const LARGE_ANY: Sizes = Sizes::Any(28 * MIB, 280 * MIB);

/// The workloads that are measured.
pub fn rows() -> Vec<Row> {
    let row = |kind, sizes, streams, ahead| Row {
        kind,
        sizes,
        streams,
        ahead,
    };
    let mut rows = Vec::new();
    for sizes in [SMALL, LARGE, SMALL_ANY, LARGE_ANY] {
        rows.extend([1, 2, 4, 8].map(|streams| row(Kind::Plain, sizes, streams, 2)));
    }
    for ahead in [1, 4] {
        rows.extend([1, 4].map(|streams| row(Kind::Plain, LARGE, streams, ahead)));
    }
    for kind in [Kind::TwoContexts, Kind::Outputs, Kind::Weights] {
        rows.extend([LARGE, LARGE_ANY].map(|sizes| row(kind, sizes, 1, 2)));
    }
    rows.push(row(Kind::Outputs, LARGE, 4, 2));
    rows.extend([2, 4].map(|streams| row(Kind::ForeignFrees, LARGE, streams, 4)));
    for ahead in [1, 2, 4] {
        rows.extend([1, 4].map(|streams| row(Kind::Growth, LARGE, streams, ahead)));
    }
    rows.extend([1, 2].map(|streams| row(Kind::RareLargest, LARGE, streams, 2)));
    rows.extend([1, 2].map(|streams| row(Kind::Engines, LARGE, streams, 2)));
    rows.extend([1, 2].map(|streams| row(Kind::SmallEngines, LARGE, streams, 2)));
    rows.extend([1, 2].map(|streams| row(Kind::Graph, LARGE, streams, 2)));
    rows
}
