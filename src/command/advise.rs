//! `trtalloc replay TRACE --advise`: what settings would cost and hold with the load of a trace.
//!
//! Every setting runs on a fresh simulated device of its own, in simulated time, so a difference between two rows is never
//! noise. Small differences are no reason to change a setting either: see [`advice`].

use std::path::Path;

use trtalloc::config::{Config, Limit, LogLevel, MAX_SIM_MEMORY, variable_of};
use trtalloc::driver::DriverChoice;
use trtalloc::driver::sim::{self, Latencies};
use trtalloc::error::{Error, Result};
use trtalloc::trace::serve::{Load, Passes};

use super::load::{self, PaceArguments};
use super::table::{Table, mib, size};
use super::{Done, progress, say};

/// How often a trace is run where the command line does not say.
const REPEAT: u32 = 3;
/// The granularity of limits and reserves: a physical handle's.
const HANDLE: u64 = 2 << 20;

/// A setting is advised if it holds at least this part less, or saves at least this part of the time.
const LESS_MEMORY: f64 = 0.05;
const LESS_TIME: f64 = 0.005;
/// What it may cost of the other one.
const MORE_MEMORY: f64 = 0.02;
const MORE_TIME: f64 = 0.001;

const LEGEND: &str = "\
held         the most memory allocated on the device, in MiB; ÷ in use: in multiples of the most that was in use
mean         the memory allocated on the device on average over time, in MiB
calls        cuMemCreate, Map, SetAccess, Unmap, Release, Alloc and Free, in the first pass and in each later one
ms in calls  simulated milliseconds in the allocator's calls, over all passes
longest      simulated microseconds of a call of the allocator
waits        of one stream for another, which the allocator queued, over all passes
refused      requests for memory that were refused, over all passes
";

/// A setting, and what it cost and held.
#[derive(Debug, Clone, Default)]
struct Outcome {
    /// The option and its value; `None`: what the command line and the environment have.
    setting: Option<(&'static str, String)>,
    /// Whether it is only there to compare with.
    only_compared: bool,
    held: u64,
    peak: u64,
    mean: u64,
    first_calls: u64,
    later_calls: f64,
    /// Nanoseconds.
    spent: u64,
    length: u64,
    longest: u64,
    waits: u64,
    refused: u64,
}

impl Outcome {
    fn new(setting: Option<(&'static str, String)>, [first, later]: &[Passes; 2], passes: u32) -> Outcome {
        let both = |of: fn(&Passes) -> u64| (of(first), of(later));
        let most = |of| {
            let (first, later) = both(of);
            first.max(later)
        };
        let sum = |of| {
            let (first, later) = both(of);
            first + later
        };
        let length = sum(|passes| passes.length).max(1);
        let mean = |passes: &Passes| u128::from(passes.mean_memory()) * u128::from(passes.length);
        Outcome {
            only_compared: matches!(setting, Some(("passthrough", _))),
            setting,
            held: most(|passes| passes.figures.memory),
            peak: most(|passes| passes.peak),
            mean: ((mean(first) + mean(later)) / u128::from(length)) as u64,
            first_calls: first.figures.memory_calls,
            later_calls: later.figures.memory_calls as f64 / f64::from(passes - 1),
            spent: sum(|passes| passes.spent),
            length,
            longest: most(|passes| passes.figures.longest),
            waits: sum(|passes| passes.figures.waits),
            refused: sum(|passes| passes.figures.refused),
        }
    }

    fn name(&self) -> String {
        match &self.setting {
            None => "as it is".into(),
            Some((key, value)) => format!("{key}={value}"),
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.name(),
            mib(self.held),
            format!("{:.3}", self.held as f64 / self.peak.max(1) as f64),
            mib(self.mean),
            self.first_calls.to_string(),
            format!("{:.0}", self.later_calls),
            format!("{:.2}", self.spent as f64 / 1e6),
            format!("{:.1}", self.longest as f64 / 1000.0),
            self.waits.to_string(),
            self.refused.to_string(),
        ]
    }

    /// By how much of `other` it holds less, as a part of that.
    fn less_memory(&self, other: &Outcome) -> f64 {
        (other.held as f64 - self.held as f64) / other.held.max(1) as f64
    }

    /// How much less time it spends in calls, as a part of the time that `other` ran.
    fn less_time(&self, other: &Outcome) -> f64 {
        (other.spent as f64 - self.spent as f64) / other.length.max(1) as f64
    }

    /// What it holds and spends, compared with `other`.
    fn compared(&self, other: &Outcome) -> String {
        let more = |less: bool| if less { "less" } else { "more" };
        let (memory, time) = (self.less_memory(other), self.less_time(other));
        let held = format!(
            "{} {} held ({:.1} %)",
            size(self.held.abs_diff(other.held)),
            more(memory > 0.0),
            100.0 * memory.abs()
        );
        let spent = format!(
            "{:.2} ms {} in calls ({:.2} % of the time)",
            self.spent.abs_diff(other.spent) as f64 / 1e6,
            more(time > 0.0),
            100.0 * time.abs()
        );
        match time / LESS_TIME > memory / LESS_MEMORY {
            true => format!("{spent}, {held}"),
            false => format!("{held}, {spent}"),
        }
    }
}

/// The setting that is clearly better than the present one; `None`: there is none.
///
/// Fewer refusals come first. With as many refusals, a setting must hold 5 % less and spend at most 0.1 % of the time more,
/// or save 0.5 % of the time and hold at most 2 % more. Of several, the one that saves most of both.
fn advice<'a>(now: &Outcome, others: &'a [Outcome]) -> Option<&'a Outcome> {
    let worth = |one: &Outcome| {
        let (memory, time) = (one.less_memory(now), one.less_time(now));
        let saves_memory = memory >= LESS_MEMORY && time >= -MORE_TIME;
        let saves_time = time >= LESS_TIME && memory >= -MORE_MEMORY;
        let worth = memory / LESS_MEMORY + time / LESS_TIME;
        (one.refused < now.refused || saves_memory || saves_time).then_some(worth)
    };
    let possible = others
        .iter()
        .filter(|one| !one.only_compared && one.refused <= now.refused);
    let worthy = possible.filter_map(|one| Some((one, worth(one)?)));
    let better = |(one, worth): &(&Outcome, f64), (other, than): &(&Outcome, f64)| {
        other.refused.cmp(&one.refused).then(worth.total_cmp(than))
    };
    worthy.max_by(better).map(|(one, _)| one)
}

/// The settings to try beside the present one, of which `now` is the outcome.
fn settings(config: &Config, has_times: bool, now: &Outcome) -> Vec<(&'static str, String)> {
    let handles = |bytes: f64| format!("{}MiB", ((bytes / HANDLE as f64).ceil() as u64).max(1) * 2);
    let mut settings = vec![
        ("release_threshold", "all".to_owned()),
        ("release_threshold", "0".to_owned()),
    ];
    // Without times, nothing is idle for long.
    let decays: &[&str] = if has_times { &["1000", "60000", "0"] } else { &[] };
    settings.extend(decays.iter().map(|decay| ("decay_ms", decay.to_string())));
    settings.push(("reserve", handles(now.held as f64)));
    if config.limit == Limit::None {
        settings.extend([1.1, 1.02].map(|part| ("limit", handles(now.peak as f64 * part))));
    }
    settings.push(("backing", "malloc".to_owned()));
    settings.push(("passthrough", "1".to_owned()));
    settings
}

/// Runs the trace at `path` with the options as they are and with other settings, and prints a table and the advice.
pub fn run(path: &Path, mut config: Config, pace: &PaceArguments, repeat: Option<u32>) -> Result<Done> {
    if ![DriverChoice::Auto, DriverChoice::Named(&sim::DRIVER)].contains(&config.driver) {
        let why = "--advise counts calls and time of the simulated device: --driver sim";
        return Err(Error::InvalidArgument(why.into()));
    }
    let passes = repeat.unwrap_or(REPEAT);
    if !(2..=100).contains(&passes) {
        return Err(Error::InvalidArgument(format!(
            "--repeat {passes}: --advise takes 2 to 100"
        )));
    }
    let trace = load::open(path)?;
    let pace = pace.pace(passes)?;
    let load = Load::new(&trace, pace);
    if config.log == LogLevel::Warn {
        // The table counts refusals.
        trtalloc::log::init(LogLevel::Error);
    }
    config.driver = DriverChoice::Named(&sim::DRIVER);
    config.sim_latency = Latencies::A100;
    // The trace may come from a larger device.
    let twice = load.needs().saturating_mul(2).min(MAX_SIM_MEMORY);
    config.sim_memory = config.sim_memory.max(twice.next_multiple_of(1 << 30));
    say(&format!(
        "device       simulated, {}, memory calls as long as on an A100; one thread makes all calls",
        size(config.sim_memory)
    ));
    say(&load::head(path, &trace, &load, pace));
    say(&format!("passes       {passes}, {} requests ahead", pace.ahead));
    say(LEGEND);
    let bar = progress::bar(100);
    let seen = load::run(&config, &load, true, &mut |_| ())?;
    let violations = seen[0].figures.violations.clone();
    let now = Outcome::new(None, &seen, passes);
    let mut others: Vec<Outcome> = Vec::new();
    let settings = settings(&config, trace.has_times(), &now);
    bar.set_length(settings.len() as u64);
    for (key, value) in settings {
        bar.set_message(format!("{key}={value}"));
        let mut changed = config.clone();
        changed.set(key, &value)?;
        if changed != config && changed.bounds_hold().is_ok() {
            let seen = load::run(&changed, &load, false, &mut |_| ())?;
            others.push(Outcome::new(Some((key, value)), &seen, passes));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut table = Table::new(&[
        "setting",
        "held",
        "÷ in use",
        "mean",
        "calls",
        "later",
        "ms in calls",
        "longest",
        "waits",
        "refused",
    ]);
    table.row(now.cells());
    others.iter().for_each(|one| table.row(one.cells()));
    say(&table.text());
    say(&line(&now, &others));
    for violation in violations.iter().take(3) {
        say(&format!("VIOLATION: {violation}"));
    }
    Ok(if violations.is_empty() { Done::All } else { Done::NotAll })
}

/// The advice in one line.
fn line(now: &Outcome, others: &[Outcome]) -> String {
    let Some(best) = advice(now, others) else {
        return format!(
            "advice       change nothing: no setting holds {:.0} % less for at most {:.1} % more time, or saves {:.1} % of the \
             time for at most {:.0} % more memory",
            100.0 * LESS_MEMORY,
            100.0 * MORE_TIME,
            100.0 * LESS_TIME,
            100.0 * MORE_MEMORY
        );
    };
    let (key, value) = best.setting.clone().unwrap_or_default();
    let refused = match now.refused - best.refused {
        0 => String::new(),
        fewer => format!("{fewer} requests fewer refused, "),
    };
    format!(
        "advice       {key}={value} (in the environment {}={value}): {refused}{}",
        variable_of(key),
        best.compared(now)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(setting: Option<(&'static str, &str)>, held: u64, spent: u64, refused: u64) -> Outcome {
        Outcome {
            setting: setting.map(|(key, value)| (key, value.to_owned())),
            held,
            spent,
            refused,
            length: 1_000_000,
            ..Outcome::default()
        }
    }

    fn advised(now: &Outcome, others: &[Outcome]) -> Option<String> {
        advice(now, others).map(Outcome::name)
    }

    #[test]
    fn a_setting_must_be_clearly_better() {
        let now = outcome(None, 1000, 10_000, 0);
        let other = |held, spent, refused| [outcome(Some(("limit", "1MiB")), held, spent, refused)];
        let advised = |one: [Outcome; 1]| advised(&now, &one).is_some();
        assert!(!advised(other(1000, 10_000, 0)));
        assert!(!advised(other(951, 10_000, 0)), "4.9 % are too little");
        assert!(advised(other(950, 10_000, 0)));
        assert!(advised(other(950, 11_000, 0)), "0.1 % of the time is allowed");
        assert!(!advised(other(950, 11_001, 0)));
        assert!(!advised(other(1000, 5_001, 0)), "less than 0.5 % of the time");
        assert!(advised(other(1000, 5_000, 0)));
        assert!(advised(other(1020, 5_000, 0)));
        assert!(!advised(other(1021, 5_000, 0)));
        assert!(!advised(other(10, 0, 1)), "it refuses a request");
    }

    #[test]
    fn the_best_setting_is_advised_and_refusals_come_first() {
        let now = outcome(None, 1000, 10_000, 5);
        let others = [
            outcome(Some(("release_threshold", "all")), 1000, 1_000, 5),
            outcome(Some(("limit", "8MiB")), 500, 10_000, 5),
            outcome(Some(("reserve", "8MiB")), 2000, 90_000, 1),
            Outcome {
                only_compared: true,
                ..outcome(Some(("passthrough", "1")), 1, 1, 0)
            },
        ];
        assert_eq!(advised(&now, &others).unwrap(), "reserve=8MiB");
        assert_eq!(advised(&now, &others[..2]).unwrap(), "limit=8MiB");
        assert_eq!(advised(&now, &others[3..]), None);
        assert_eq!(
            line(&now, &others[..2]),
            "advice       limit=8MiB (in the environment TRTALLOC_LIMIT=8MiB): 500 B less held (50.0 %), 0.00 ms more in \
             calls (0.00 % of the time)"
        );
        assert!(line(&now, &others[2..3]).contains(": 4 requests fewer refused, "));
        assert!(line(&now, &[]).starts_with("advice       change nothing: "));
    }

    #[test]
    fn settings_are_readable_options() {
        let now = outcome(None, 5 << 20, 0, 0);
        for has_times in [false, true] {
            let all = settings(&Config::default(), has_times, &now);
            assert_eq!(all.iter().any(|(key, _)| *key == "decay_ms"), has_times);
            for (key, value) in all {
                Config::default().set(key, &value).unwrap();
            }
        }
        let reserve = settings(&Config::default(), false, &now);
        assert!(reserve.contains(&("reserve", "6MiB".into())), "{reserve:?}");
    }
}
