//! What a process answered, as tables.

use trtalloc::error::{Error, Result};
use trtalloc::tags::printable;

use super::json::Object;
use crate::command::table::{Table, size};

/// How a figure is printed.
#[derive(Clone, Copy)]
enum Kind {
    Bytes,
    Count,
    Time,
}

use Kind::{Bytes, Count, Time};

/// The statistics, in the order of the C struct.
const FIGURES: [(&str, Kind); 28] = [
    ("allocated", Bytes),
    ("allocated_peak", Bytes),
    ("requested", Bytes),
    ("cached", Bytes),
    ("pending", Bytes),
    ("reserved", Bytes),
    ("reserved_peak", Bytes),
    ("limit", Bytes),
    ("allocations", Count),
    ("frees", Count),
    ("reallocations", Count),
    ("reallocations_in_place", Count),
    ("out_of_memory", Count),
    ("driver_calls", Count),
    ("driver_queries", Count),
    ("bytes_copied", Bytes),
    ("remaps", Count),
    ("waits", Count),
    ("wait_ns", Time),
    ("trims", Count),
    ("trim_ns", Time),
    ("driver_ns", Time),
    ("device_free", Bytes),
    ("device_total", Bytes),
    ("held_by_others", Bytes),
    ("largest_free", Bytes),
    ("available", Bytes),
    ("awaiting_work", Bytes),
];

/// A column for each device.
pub fn stats(devices: &[Object]) -> String {
    let of: Vec<String> = devices.iter().map(|of| place(of, devices)).collect();
    let header: Vec<&str> = std::iter::once("").chain(of.iter().map(String::as_str)).collect();
    let mut table = Table::new(&header);
    for (name, kind) in FIGURES {
        let value = |of: &Object| match (kind, of.number(name)) {
            (Bytes, 0) if name == "limit" => "none".into(),
            (Bytes, bytes) => size(bytes),
            (Count, count) => count.to_string(),
            (Time, nanoseconds) => format!("{:.3} ms", nanoseconds as f64 / 1e6),
        };
        let name = name
            .strip_suffix("_ns")
            .map_or(name.to_owned(), |name| format!("{name}_time"));
        let name = name.replace('_', " ");
        table.row(std::iter::once(name).chain(devices.iter().map(value)).collect());
    }
    table.text()
}

/// A row for each name, the largest first.
pub fn tags(devices: &[Object], name: Option<&str>) -> Result<String> {
    let several = devices.len() > 1;
    let mut header = vec!["name", "allocated", "peak", "limit", "allocations", "frees", "refused"];
    if several {
        header.insert(1, "of");
    }
    let mut rows = Vec::new();
    for device in devices {
        for tag in device.list("tags") {
            let is_named = name.is_none_or(|name| name == tag.text("tag"));
            // A name that this device never saw.
            if is_named && tag.number("allocations") + tag.number("out_of_memory") + tag.number("limit") > 0 {
                rows.push((device, tag));
            }
        }
    }
    if let (Some(name), true) = (name, rows.is_empty()) {
        return Err(Error::InvalidArgument(format!(
            "nothing was allocated for `{}`",
            printable(name)
        )));
    }
    rows.sort_by_key(|(_, tag)| std::cmp::Reverse((tag.number("allocated"), tag.number("allocated_peak"))));
    let mut table = Table::new(&header);
    for (device, tag) in rows {
        let limit = match tag.number("limit") {
            0 => "none".into(),
            bytes => size(bytes),
        };
        let mut cells = vec![
            printable(tag.text("tag")),
            size(tag.number("allocated")),
            size(tag.number("allocated_peak")),
            limit,
            tag.number("allocations").to_string(),
            tag.number("frees").to_string(),
            tag.number("out_of_memory").to_string(),
        ];
        if several {
            cells.insert(1, place(device, devices));
        }
        table.row(cells);
    }
    Ok(table.text())
}

/// A line for each device.
pub fn trim(devices: &[Object]) -> String {
    let line = |of: &Object| {
        format!(
            "{}: {} given back; {} stay reserved: {} allocated, {} pending, {} cached\n",
            place(of, devices),
            size(of.number("released")),
            size(of.number("reserved")),
            size(of.number("allocated")),
            size(of.number("pending")),
            size(of.number("cached")),
        )
    };
    devices.iter().map(line).collect()
}

/// The device, and the allocator where there are several.
fn place(of: &Object, all: &[Object]) -> String {
    let device = format!("device {}", of.number("device"));
    match all
        .iter()
        .all(|other| other.number("allocator") == of.number("allocator"))
    {
        true => device,
        false => format!("allocator {}, {device}", of.number("allocator")),
    }
}
