//! Requests that were refused for want of memory, and what they would have needed.

use super::course::Course;
use super::model::{Device, What};
use super::walk::Walk;

/// A request that was refused, and the memory at that moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Its event.
    pub event: u32,
    /// Bytes that were asked for.
    pub size: u64,
    /// The stream it was for.
    pub stream: u64,
    /// Bytes free on the device, as it said.
    pub device_free: u64,
    /// The limit on what is reserved; 0: none, or nobody told.
    pub limit: u64,
    /// Bytes handed out.
    pub allocated: u64,
    /// Bytes freed and not yet free.
    pub pending: u64,
    /// Bytes held from the device.
    pub reserved: u64,
    /// Bytes free.
    pub free: u64,
    /// In how many ranges.
    pub ranges: u64,
    /// Bytes of the largest.
    pub largest: u64,
    /// Of the free bytes, those that another stream freed last.
    pub elsewhere: u64,
}

impl Refusal {
    /// Each costs a walk over all memory, and one who probes without end asks for the same.
    pub const MOST: usize = 4096;

    /// The refusals of a device, the first [`Refusal::MOST`] of them.
    pub fn all(device: &Device, course: &Course) -> Vec<Refusal> {
        let limit = device.figures.map_or(0, |figures| figures.stats.limit);
        let mut walk = Walk::new(course);
        let mut free = walk.free();
        let events = (0..).zip(&device.events).filter(|(_, event)| event.what == What::Oom);
        events
            .take(Refusal::MOST)
            .map(|(at, event)| {
                // Who probes for memory asks many times in a row.
                if walk.to(at) {
                    free = walk.free();
                }
                let others = free.by_stream.iter().filter(|(stream, _)| **stream != event.stream);
                Refusal {
                    event: at,
                    size: event.size,
                    stream: event.stream,
                    device_free: event.address,
                    limit,
                    allocated: walk.allocated,
                    pending: walk.pending,
                    reserved: walk.reserved,
                    free: free.bytes,
                    ranges: free.ranges,
                    largest: free.largest,
                    elsewhere: others.map(|(_, bytes)| bytes).sum(),
                }
            })
            .collect()
    }

    /// Bytes that could still have been reserved.
    pub fn room(&self) -> u64 {
        match self.limit {
            0 => self.device_free,
            limit => limit.saturating_sub(self.reserved).min(self.device_free),
        }
    }

    /// What would have had to be otherwise, in a sentence.
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
        have += &format!(", {} more to be had from {bound}", bytes(room));
        let possible = free.saturating_add(room);
        let lacking = self.size.saturating_sub(possible);
        let wanted = if self.largest >= self.size {
            "A free range was large enough, but not for this stream: it had to become free for it.".to_owned()
        } else if possible >= self.size {
            format!(
                "Fragmentation: enough is free, but {} of it would have had to lie in one piece.",
                bytes(self.size.saturating_sub(room))
            )
        } else if possible.saturating_add(self.pending) >= self.size {
            format!(
                "{} short; {} were freed and waited for the device to be done with them.",
                bytes(lacking),
                bytes(self.pending)
            )
        } else if self.limit > 0 && self.size > self.limit {
            format!(
                "More than the limit of {}: no state of the memory could have met it.",
                bytes(self.limit)
            )
        } else {
            format!(
                "{} short: that much more would have had to be freed before.",
                bytes(lacking)
            )
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

/// Bytes in the unit one would say them in.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = (bytes.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{:.1} {}", bytes as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit]),
    }
}
