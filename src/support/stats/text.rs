//! Statistics as JSON, and as OpenMetrics text for monitoring.
//!
//! The JSON is written without serde_json, which each process that loads the library would load too.

use std::fmt::Write;

use super::{Stats, TagStats};

/// The unit of a statistic, and whether it is a gauge or a counter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FigureUnit {
    /// Bytes at present.
    Bytes,
    /// Bytes since the start.
    BytesEver,
    /// A count since the start.
    Ever,
    /// Nanoseconds since the start. The metric is in seconds, as OpenMetrics demands.
    Nanoseconds,
}

use FigureUnit::{Bytes, BytesEver, Ever, Nanoseconds};

type DeviceFigure = (&'static str, fn(&Stats) -> u64);

type Figure<T> = (&'static str, FigureUnit, &'static str, fn(&T) -> u64);

/// The statistics of a pool, in the order of the C struct: name, unit, description, value.
const FIGURES: [Figure<Stats>; 22] = [
    ("allocated", Bytes, "Allocated, after rounding", |s| s.allocated),
    ("allocated_peak", Bytes, "Peak of allocated bytes", |s| s.allocated_peak),
    ("requested", Bytes, "Requested, before rounding", |s| s.requested),
    ("cached", Bytes, "Free and reusable", |s| s.cached),
    ("pending", Bytes, "Freed, and not yet reusable", |s| s.pending),
    ("reserved", Bytes, "Physical memory held", |s| s.reserved),
    ("reserved_peak", Bytes, "Peak of reserved bytes", |s| s.reserved_peak),
    ("limit", Bytes, "The limit on reserved memory; 0: none", |s| s.limit),
    ("allocations", Ever, "Requests that succeeded", |s| s.allocations),
    ("frees", Ever, "Blocks freed", |s| s.frees),
    ("reallocations", Ever, "Blocks resized", |s| s.reallocations),
    (
        "reallocations_in_place",
        Ever,
        "Blocks resized that kept their address",
        |s| s.reallocations_in_place,
    ),
    ("out_of_memory", Ever, "Requests refused because memory ran out", |s| {
        s.out_of_memory
    }),
    (
        "driver_calls",
        Ever,
        "Driver calls that submit work or may block",
        |s| s.driver_calls,
    ),
    ("driver_queries", Ever, "Driver calls that only query", |s| {
        s.driver_queries
    }),
    ("bytes_copied", BytesEver, "Copied by resizing", |s| s.bytes_copied),
    ("remaps", Ever, "Handles moved to another address", |s| s.remaps),
    ("waits", Ever, "Waits for work to complete", |s| s.waits),
    ("wait_ns", Nanoseconds, "Time of these waits", |s| s.wait_ns),
    ("trims", Ever, "Trims", |s| s.trims),
    ("trim_ns", Nanoseconds, "Time of these trims", |s| s.trim_ns),
    (
        "driver_ns",
        Nanoseconds,
        "Time of driver calls that submit work or may block",
        |s| s.driver_ns,
    ),
];

/// What is asked of the driver and of the whole pool, so only for one device at a time, and not for metrics.
const DEVICE_FIGURES: [DeviceFigure; 6] = [
    ("device_free", |s| s.device_free),
    ("device_total", |s| s.device_total),
    ("held_by_others", |s| s.held_by_others),
    ("largest_free", |s| s.largest_free),
    ("available", |s| s.available),
    ("awaiting_work", |s| s.awaiting_work),
];

/// The statistics of a tag. Their metrics begin with trtalloc_tag_.
const TAG_FIGURES: [Figure<TagStats>; 6] = [
    ("allocated", Bytes, "Allocated with a tag, after rounding", |t| {
        t.allocated
    }),
    ("allocated_peak", Bytes, "Peak of bytes allocated with a tag", |t| {
        t.allocated_peak
    }),
    ("limit", Bytes, "The limit on what a tag holds; 0: none", |t| t.limit),
    ("allocations", Ever, "Requests of a tag that succeeded", |t| {
        t.allocations
    }),
    ("frees", Ever, "Blocks of a tag freed", |t| t.frees),
    ("out_of_memory", Ever, "Requests of a tag refused", |t| t.out_of_memory),
];

/// One device's statistics as JSON, with those of its tags under `tags`.
pub fn json(device: i32, stats: &Stats, tags: &[TagStats]) -> String {
    object(device, stats, &DEVICE_FIGURES, tags)
}

/// As [`json`], without the figures for which the driver is asked.
pub fn json_of_pool(device: i32, stats: &Stats, tags: &[TagStats]) -> String {
    object(device, stats, &[], tags)
}

fn object(device: i32, stats: &Stats, of_device: &[DeviceFigure], tags: &[TagStats]) -> String {
    let mut text = format!("{{\"device\":{device}");
    for (name, _, _, value) in FIGURES {
        let _ = write!(text, ",\"{name}\":{}", value(stats));
    }
    for (name, value) in of_device {
        let _ = write!(text, ",\"{name}\":{}", value(stats));
    }
    text.push_str(",\"tags\":[");
    for (at, tag) in tags.iter().enumerate() {
        let _ = write!(text, "{}{{\"tag\":\"", if at > 0 { "," } else { "" });
        for c in tag.tag.chars() {
            match c {
                '"' | '\\' => text.extend(['\\', c]),
                c if c < ' ' => {
                    let _ = write!(text, "\\u{:04x}", c as u32);
                }
                c => text.push(c),
            }
        }
        text.push('"');
        for (name, _, _, value) in TAG_FIGURES {
            let _ = write!(text, ",\"{name}\":{}", value(tag));
        }
        text.push('}');
    }
    text.push_str("]}");
    text
}

/// The statistics of devices and their tags, in the OpenMetrics text format (prometheus.io, version 1.0.0).
pub fn metrics(devices: &[(i32, Stats, Vec<TagStats>)]) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in FIGURES {
        let samples = devices
            .iter()
            .map(|(device, stats, _)| (format!("device=\"{device}\""), value(stats)));
        family(&mut text, "trtalloc", name, kind, help, samples);
    }
    for (name, kind, help, value) in TAG_FIGURES {
        let samples = devices.iter().flat_map(|(device, _, tags)| {
            tags.iter()
                .map(move |tag| (format!("device=\"{device}\",tag=\"{}\"", label(tag.tag)), value(tag)))
        });
        family(&mut text, "trtalloc_tag", name, kind, help, samples);
    }
    text.push_str("# EOF\n");
    text
}

fn family(
    text: &mut String,
    prefix: &str,
    name: &str,
    kind: FigureUnit,
    help: &str,
    samples: impl Iterator<Item = (String, u64)>,
) {
    let unit = match kind {
        Ever => "",
        Nanoseconds => "_seconds",
        Bytes | BytesEver => "_bytes",
    };
    let (type_, suffix) = if kind == Bytes {
        ("gauge", "")
    } else {
        ("counter", "_total")
    };
    // A family's name ends with its unit.
    let name = format!(
        "{prefix}_{}{unit}",
        name.strip_prefix("bytes_").or(name.strip_suffix("_ns")).unwrap_or(name)
    );
    let _ = writeln!(text, "# TYPE {name} {type_}");
    if !unit.is_empty() {
        let _ = writeln!(text, "# UNIT {name} {}", &unit[1..]);
    }
    let _ = writeln!(text, "# HELP {name} {help}.");
    for (labels, value) in samples {
        let _ = match kind {
            Nanoseconds => writeln!(text, "{name}{suffix}{{{labels}}} {}", value as f64 / 1e9),
            _ => writeln!(text, "{name}{suffix}{{{labels}}} {value}"),
        };
    }
}

/// Escapes a label's value: backslash, quote and line feed.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: TagStats = TagStats {
        tag: "a \"b\" \\ \n",
        allocated: 512,
        allocated_peak: 1024,
        limit: 0,
        allocations: 3,
        frees: 2,
        out_of_memory: 1,
    };

    #[test]
    fn json_has_every_field_and_is_escaped() {
        let stats = Stats {
            allocated: 1,
            remaps: 17,
            device_total: 19,
            driver_ns: 21,
            ..Stats::default()
        };
        let text = json(2, &stats, &[TAG, TagStats { tag: "plain", ..TAG }]);
        assert!(
            text.starts_with("{\"device\":2,\"allocated\":1,\"allocated_peak\":0,"),
            "{text}"
        );
        assert!(
            text.contains(r#""driver_ns":21,"device_free":0,"device_total":19,"held_by_others":0,"largest_free":0,"available":0,"awaiting_work":0,"tags":[{"tag":"a \"b\" \\ \u000a","allocated":512,"#),
            "{text}"
        );
        assert!(text.ends_with(r#"{"tag":"plain","allocated":512,"allocated_peak":1024,"limit":0,"allocations":3,"frees":2,"out_of_memory":1}]}"#));
    }

    #[test]
    fn each_metric_family_has_its_samples_together() {
        let stats = Stats {
            allocations: 7,
            bytes_copied: 9,
            wait_ns: 1_500_000_000,
            ..Stats::default()
        };
        let text = metrics(&[(0, stats, vec![TAG]), (1, Stats::default(), Vec::new())]);
        for part in [
            "# TYPE trtalloc_allocations counter\n# HELP trtalloc_allocations Requests that succeeded.\n\
             trtalloc_allocations_total{device=\"0\"} 7\ntrtalloc_allocations_total{device=\"1\"} 0\n# TYPE ",
            "# TYPE trtalloc_copied_bytes counter\n# UNIT trtalloc_copied_bytes bytes\n",
            "trtalloc_copied_bytes_total{device=\"0\"} 9\n",
            "# TYPE trtalloc_wait_seconds counter\n# UNIT trtalloc_wait_seconds seconds\n",
            "trtalloc_wait_seconds_total{device=\"0\"} 1.5\n",
            "# TYPE trtalloc_reserved_bytes gauge\n# UNIT trtalloc_reserved_bytes bytes\n",
            "trtalloc_tag_allocated_bytes{device=\"0\",tag=\"a \\\"b\\\" \\\\ \\n\"} 512\n",
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n"));
    }
}
