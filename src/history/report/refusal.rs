//! Requests that were refused because memory ran out, and what they lacked.

use super::cursor::Cursor;
use super::model::{EventKind, ReportDevice};
use super::timeline::Timeline;

/// A refused request, and the memory at that moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Its event.
    pub event: u32,
    /// Bytes requested.
    pub size: u64,
    /// The request's stream.
    pub stream: u64,
    /// Bytes free on the device, as the driver reported.
    pub device_free: u64,
    /// The limit on reserved bytes; 0: none or unknown.
    pub limit: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Bytes freed but not yet reusable.
    pub pending: u64,
    /// Bytes reserved from the device.
    pub reserved: u64,
    /// Bytes free.
    pub free: u64,
    /// The number of free ranges.
    pub ranges: u64,
    /// Bytes of the largest free range.
    pub largest: u64,
    /// Of the free bytes, those last freed by another stream.
    pub elsewhere: u64,
}

impl Refusal {
    /// The maximum number of refusals that are analysed. Each costs a pass over all memory, and a program may request
    /// memory in vain without end.
    pub const MAX_REFUSALS: usize = 4096;

    /// How many blocks and ranges these passes look at together: some seconds.
    const MAX_STEPS: usize = 1 << 28;

    /// The refusals of a device, the first [`Refusal::MAX_REFUSALS`] of them, and fewer where it has very many blocks.
    pub fn all(device: &ReportDevice, timeline: &Timeline) -> Vec<Refusal> {
        Refusal::first(device, timeline, Refusal::MAX_STEPS)
    }

    /// The refusals before the passes take that many steps, and at least one.
    pub(in crate::history::report) fn first(
        device: &ReportDevice,
        timeline: &Timeline,
        mut steps: usize,
    ) -> Vec<Refusal> {
        let limit = device.figures.map_or(0, |figures| figures.stats.limit);
        let mut cursor = Cursor::new(timeline);
        let mut free = cursor.free();
        let events = (0..)
            .zip(&device.events)
            .filter(|(_, event)| event.what == EventKind::Oom);
        events
            .take(Refusal::MAX_REFUSALS)
            .map_while(|(at, event)| {
                // A program may be refused many times in a row with the memory unchanged.
                if cursor.to(at) {
                    if steps == 0 {
                        return None;
                    }
                    free = cursor.free();
                    steps = steps.saturating_sub(cursor.parts());
                }
                let others = free.by_stream.iter().filter(|(stream, _)| **stream != event.stream);
                Some(Refusal {
                    event: at,
                    size: event.size,
                    stream: event.stream,
                    device_free: event.address,
                    limit,
                    allocated: cursor.allocated,
                    pending: cursor.pending,
                    reserved: cursor.reserved,
                    free: free.bytes,
                    ranges: free.ranges,
                    largest: free.largest,
                    elsewhere: others.map(|(_, bytes)| bytes).sum(),
                })
            })
            .collect()
    }

    /// The refusal that explains the most, as an index into `all`: the first one that less memory in use could have avoided. A
    /// builder requests more than there can be to find out what it may have, so such requests count only where there is no
    /// other.
    pub fn main(all: &[Refusal]) -> Option<usize> {
        let possible = all.iter().position(|refusal| !refusal.exceeds_everything());
        possible.or((!all.is_empty()).then_some(0))
    }

    /// Whether the request is larger than the limit, or than all memory of the device that is free or reserved.
    pub fn exceeds_everything(&self) -> bool {
        match self.limit {
            0 => self.size > self.reserved.saturating_add(self.device_free),
            limit => self.size > limit,
        }
    }

    /// Bytes by which the request exceeds what was free and what could still be reserved.
    pub fn lacking(&self) -> u64 {
        self.size.saturating_sub(self.free.saturating_add(self.room()))
    }

    /// Bytes that could still be reserved.
    pub fn room(&self) -> u64 {
        match self.limit {
            0 => self.device_free,
            limit => limit.saturating_sub(self.reserved).min(self.device_free),
        }
    }

    /// Explains in a sentence what the request lacked.
    pub fn reason(&self) -> String {
        let (free, room) = (self.free, self.room());
        let mut have = format!(
            "{} free in {} {}",
            bytes(free),
            self.ranges,
            plural(self.ranges, "range")
        );
        if self.ranges > 1 {
            have += &format!(", the largest {}", bytes(self.largest));
        }
        let bound = match self.limit {
            limit if limit > 0 && limit.saturating_sub(self.reserved) < self.device_free => "the limit",
            _ => "the device",
        };
        have += &format!(", {} more available from {bound}", bytes(room));
        let possible = free.saturating_add(room);
        let lacking = self.lacking();
        let wanted = if self.largest >= self.size {
            "A free range was large enough, but not yet reusable by this stream.".to_owned()
        } else if possible >= self.size {
            format!(
                "Fragmentation: enough is free, but {} of it would have to be contiguous.",
                bytes(self.size.saturating_sub(room))
            )
        } else if possible.saturating_add(self.pending) >= self.size {
            format!(
                "{} short; {} were freed but still in use by the device.",
                bytes(lacking),
                bytes(self.pending)
            )
        } else if self.limit > 0 && self.size > self.limit {
            format!(
                "More than the limit of {}: the request can never be satisfied.",
                bytes(self.limit)
            )
        } else {
            format!("{} short: that much more would have to be freed first.", bytes(lacking))
        };
        format!("{have}. {wanted}")
    }
}

fn plural(count: u64, what: &str) -> String {
    match count {
        1 => what.to_owned(),
        _ => format!("{what}s"),
    }
}

/// Formats bytes in a readable unit.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (tenths, unit) = printed(bytes);
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit]),
    }
}

/// A size in the middle of all that [`bytes`] prints as it prints `size`. Sizes that print alike have the same.
pub fn printed_alike(size: u64) -> u64 {
    let (tenths, unit) = printed(size);
    u64::try_from((u128::from(tenths) << (10 * unit)) / 10).unwrap_or(u64::MAX)
}

/// The tenths of a unit that are printed for some bytes, and the number of the unit. Bytes have no tenths.
fn printed(bytes: u64) -> (u64, usize) {
    let unit = (bytes.max(1).ilog2() as usize / 10).min(5);
    if unit == 0 {
        return (10 * bytes, 0);
    }
    let one = 1u128 << (10 * unit);
    let tenths = ((10 * u128::from(bytes) + one / 2) / one) as u64;
    match tenths {
        10_240.. if unit < 5 => (10, unit + 1),
        _ => (tenths, unit),
    }
}
