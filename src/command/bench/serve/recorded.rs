//! `trtalloc bench serve --trace`: one's own load.

use std::path::Path;

use trtalloc::config::{Config, Limit};
use trtalloc::error::Result;
use trtalloc::trace::serve::Load;

use super::super::super::{Done, load, progress, say};
use super::table::{self, Line};
use super::{Arguments, verdict};

/// How often a trace is run where the command line does not say.
const REPEAT: u32 = 3;

pub fn run(path: &Path, arguments: &Arguments, mut config: Config, limited: bool) -> Result<Done> {
    let trace = load::open(path)?;
    let pace = arguments.pace.pace(arguments.repeat.unwrap_or(REPEAT))?;
    let load = Load::new(&trace, pace);
    let needs = load.needs() as f64;
    if let Some(cap) = arguments.cap {
        config.limit = Limit::Bytes(((needs * cap) as u64).max(1));
    }
    if let Some(part) = arguments.reserve_part {
        config.reserve = Limit::Bytes((needs * part) as u64);
    }
    say(&super::device_line(arguments));
    say(&load::head(path, &trace, &load, pace));
    say(&format!(
        "measured     {} passes after the first, {} requests ahead",
        pace.passes - 1,
        pace.ahead
    ));
    say(table::LEGEND_OF_TRACE);
    let bar = progress::bar(2 * load.calls());
    let [_, ideal] = load::run_work(&config, &load, &mut |made| bar.set_position(made))?;
    let [first, mut later] = load::run(&config, &load, true, &mut |made| bar.set_position(load.calls() + made))?;
    bar.finish_and_clear();
    let refused = first.figures.refused;
    later.figures.refused += refused;
    let name = path.file_name().map_or(path, Path::new).display().to_string();
    let line = Line {
        name: name.clone(),
        streams: load.streams(),
        ahead: pace.ahead,
        figures: &later.figures,
        allocators_part: later.figures.device_time / ideal.figures.device_time,
        memory: later.figures.memory as f64 / needs,
        last: later.figures.refused.to_string(),
    };
    say(&table::table(&[line], "refused").text());
    let reason = first.figures.reason.as_ref().or(later.figures.reason.as_ref());
    if let (Some(reason), false) = (reason, limited) {
        say(&format!(
            "refused: {} in {name}, the first: {reason}",
            later.figures.refused
        ));
    }
    let done = verdict([(name, &later.figures)].into_iter());
    Ok(match reason.is_some() && !limited {
        true => Done::NotAll,
        false => done,
    })
}
