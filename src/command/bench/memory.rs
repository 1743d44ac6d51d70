//! How much memory traces need.

use std::path::Path;

use trtalloc::config::{Config, Limit};
use trtalloc::error::Result;
use trtalloc::trace::generate::{NAMES, generate};
use trtalloc::trace::replay::{Pass, replay};
use trtalloc::trace::{Trace, csv};

use super::{Bench, Row};

/// The cap under which every trace should run, as a multiple of its peak in use.
const CAP: f64 = 1.02;

/// The generated traces, and those that the command line names.
pub fn traces(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, _) in NAMES {
        if let Some(trace) = generate(name, 1) {
            rows.extend(figures(bench, name, &trace)?);
        }
    }
    for path in &bench.arguments.traces {
        let name = path.file_name().map(Path::new).unwrap_or(path);
        rows.extend(figures(bench, &name.display().to_string(), &csv::open(path)?)?);
    }
    Ok(rows)
}

fn figures(bench: &Bench, name: &str, trace: &Trace) -> Result<Vec<Row>> {
    let open = passes(bench, trace, 3, |_| {})?;
    let worst = open.iter().map(Pass::ratio).fold(0.0, f64::max);
    let refused: u64 = open.iter().map(|pass| pass.failures).sum();
    let last = &open[open.len() - 1];
    let remaps = last.remaps_per_thousand(trace);
    let cap = bench.device.round_to_handles((trace.peak() as f64 * CAP) as u64);
    let capped = passes(bench, trace, 2, |config| config.limit = Limit::Bytes(cap))?;
    let above: u64 = capped.iter().map(|pass| pass.failures).sum();
    Ok(vec![
        Row::judged(
            format!("{name}: reserved ÷ peak in use, worst of 3 passes"),
            match refused {
                0 => format!("{worst:.4}"),
                _ => format!("{worst:.4}, {refused} refused"),
            },
            "at most 1.05",
            worst <= 1.05 && refused == 0,
        ),
        Row::judged(
            format!("{name}: remaps for each 1,000 requests, third pass"),
            format!("{remaps:.2}"),
            "at most 1",
            remaps <= 1.0,
        ),
        Row::judged(
            format!("{name}: requests refused at a cap of {CAP} × peak, 2 passes"),
            above.to_string(),
            "0",
            above == 0,
        ),
        Row::printed(
            format!("{name}: a call, third pass"),
            format!("{:.1} ns", last.ns_per_op()),
        ),
    ])
}

fn passes(bench: &Bench, trace: &Trace, count: usize, change: impl FnOnce(&mut Config)) -> Result<Vec<Pass>> {
    let application = bench.device.application();
    bench.fresh(change, trace.streams().len(), |allocator, _, streams| {
        let one = |_| {
            let pass = replay(trace, allocator.as_ref(), streams, &mut ())?;
            application.synchronize()?;
            Ok(pass)
        };
        (0..count).map(one).collect()
    })
}
