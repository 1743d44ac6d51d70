//! The demo's scenario: the phases of an application, and the invariants checked after each.

use indicatif::ProgressBar;
use trtalloc::allocator::Allocator;
use trtalloc::error::Result;
use trtalloc::ffi::tensorrt::client::Client;
use trtalloc::stats::Stats;
use trtalloc::trace::random::Random;

use super::super::device::Device;
use super::super::progress;
use super::super::table::{Table, mib, size};
use super::caller::Caller;
use super::engine::{DETECTOR, ENCODER, Engine, GENERATOR, Plan, Session};

/// The demo's result.
pub struct Outcome {
    /// A table with a row for each phase.
    pub table: String,
    /// Each invariant, with whether it held.
    pub invariants: Vec<(bool, String)>,
}

/// An application that serves three engines.
pub struct Scenario<'a> {
    device: &'a Device,
    allocator: &'a Allocator,
    caller: Caller<'a>,
    random: Random,
    requests: u64,
    table: Table,
    before: Stats,
    invariants: Vec<(bool, String)>,
    bar: ProgressBar,
}

/// How many requests a phase made, and how many succeeded.
#[derive(Clone, Copy, Default)]
struct Requests {
    made: u64,
    met: u64,
}

/// Deciles of the number of rows in a request. The distribution is skewed, as in practice.
const ROWS: [u64; 11] = [1, 2, 4, 6, 8, 12, 16, 24, 40, 80, 160];
/// How many violations are shown.
const SHOWN: usize = 3;
/// How many requests run between two synchronizations.
const BATCH: u64 = 16;

impl<'a> Scenario<'a> {
    pub fn new(device: &'a Device, allocator: &'a Allocator, client: Client, requests: u64, seed: u64) -> Scenario<'a> {
        Scenario {
            device,
            allocator,
            caller: Caller::new(device, client),
            random: Random::new(seed),
            requests,
            table: Table::new(&[
                "phase",
                "requests",
                "succeeded",
                "calls",
                "ns/op",
                "in use MiB",
                "reserved MiB",
                "driver calls",
                "queries",
                "remaps",
            ]),
            before: Stats::default(),
            invariants: Vec::new(),
            bar: progress::bar(2 * requests),
        }
    }

    pub fn run(mut self) -> Result<Outcome> {
        let result = self.phases();
        self.bar.finish_and_clear();
        result?;
        Ok(Outcome {
            table: self.table.text(),
            invariants: self.invariants,
        })
    }

    fn phases(&mut self) -> Result<()> {
        let detector = self.load(&DETECTOR)?;
        let encoder = self.load(&ENCODER)?;
        let (Some(detector), Some(encoder)) = (detector, encoder) else {
            self.check(
                false,
                format!("two engines load under the limit: {}", self.caller.last_refusal()),
            );
            return Ok(());
        };
        let mut sessions = self.open(&[&DETECTOR, &DETECTOR, &ENCODER, &ENCODER])?;
        self.phase("load two engines", Requests::default())?;

        let served = self.serve(&sessions, self.requests)?;
        self.phase("serve, shapes vary", served)?;
        self.check(
            served.met == served.made,
            format!("{} of {} requests succeeded", served.met, served.made),
        );

        let served = self.replace_contexts(&mut sessions)?;
        self.phase("contexts come and go", served)?;
        let (met, made) = (served.met, served.made);
        self.check(
            met == made,
            format!("{met} of {made} requests succeeded while contexts and their streams came and went"),
        );

        let encoder_sessions = sessions.split_off(2);
        let generator = self.swap(encoder, encoder_sessions)?;
        self.phase("swap an engine", Requests::default())?;

        if generator.is_some() {
            sessions.extend(self.open(&[&GENERATOR, &GENERATOR])?);
        }
        let served = self.serve(&sessions, self.requests / 2)?;
        self.phase("serve the new one", served)?;
        self.check(
            served.met == served.made,
            format!("{} of {} requests of the new pair succeeded", served.met, served.made),
        );

        let refused = self.refuse(&sessions)?;
        self.phase("one too large", refused)?;

        for session in sessions {
            session.close(&mut self.caller, self.device)?;
        }
        for engine in [Some(detector), generator].into_iter().flatten() {
            engine.unload(&mut self.caller)?;
        }
        self.device.application().synchronize()?;
        self.phase("unload everything", Requests::default())?;
        self.final_checks()
    }

    fn load(&mut self, plan: &'static Plan) -> Result<Option<Engine>> {
        self.bar.set_message(format!("loading {}", plan.name));
        Engine::load(plan, &mut self.caller)
    }

    /// Opens a context for each plan; reports a violation where one does not fit.
    fn open(&mut self, plans: &[&'static Plan]) -> Result<Vec<Session>> {
        let mut sessions = Vec::new();
        for plan in plans {
            match Session::open(plan, &mut self.caller, self.device)? {
                Some(session) => sessions.push(session),
                None => {
                    let reason = self.caller.last_refusal().to_string();
                    self.check(
                        false,
                        format!("a context of the {} has its memory: {reason}", plan.name),
                    );
                }
            }
        }
        Ok(sessions)
    }

    /// Runs `count` requests of varying shape, each on a randomly chosen context.
    fn serve(&mut self, sessions: &[Session], count: u64) -> Result<Requests> {
        let mut requests = Requests::default();
        for number in 0..count {
            let Some(session) = sessions.get(self.random.below(sessions.len() as u64) as usize) else {
                break;
            };
            let rows = self.random.from_deciles(&ROWS);
            requests.made += 1;
            let met = session.infer(rows, &mut self.random, &mut self.caller, self.device)?;
            requests.met += u64::from(met);
            if number % BATCH == BATCH - 1 {
                self.device.application().synchronize()?;
            }
            self.bar.inc(1);
        }
        Ok(requests)
    }

    /// Closes contexts while their work is queued, and opens others on new streams in their place.
    fn replace_contexts(&mut self, sessions: &mut Vec<Session>) -> Result<Requests> {
        const TIMES: u64 = 40;
        self.bar.set_message("contexts");
        let mut requests = Requests::default();
        for turn in 0..TIMES {
            let served = self.serve(sessions, self.requests / 4 / TIMES)?;
            requests.made += served.made;
            requests.met += served.met;
            let at = (turn as usize) % sessions.len().max(1);
            let plan = if at < 2 { &DETECTOR } else { &ENCODER };
            sessions.remove(at).close(&mut self.caller, self.device)?;
            for (place, session) in self.open(&[plan])?.into_iter().enumerate() {
                sessions.insert(at + place, session);
            }
        }
        Ok(requests)
    }

    /// Tries to load the third engine in addition to the other two, which cannot fit, and then in place of the
    /// second.
    fn swap(&mut self, encoder: Engine, sessions: Vec<Session>) -> Result<Option<Engine>> {
        let before = self.allocator.stats(None)?;
        let third = self.load(&GENERATOR)?;
        let refused = third.is_none();
        if let Some(engine) = third {
            engine.unload(&mut self.caller)?;
        }
        let after = self.allocator.stats(None)?;
        self.check(
            refused && after.allocated == before.allocated,
            format!(
                "the {} ({}) is refused while both others are loaded, and its memory is returned",
                GENERATOR.name,
                size(GENERATOR.weights())
            ),
        );
        for session in sessions {
            session.close(&mut self.caller, self.device)?;
        }
        let name = encoder.plan.name;
        encoder.unload(&mut self.caller)?;
        let generator = self.load(&GENERATOR)?;
        let mut text = format!("it loads once the {name} ({}) is unloaded", size(ENCODER.weights()));
        if generator.is_none() {
            text = format!("{text}: {}", self.caller.last_refusal());
        }
        self.check(generator.is_some(), text);
        Ok(generator)
    }

    /// Runs a request larger than the limit, then one that fits.
    fn refuse(&mut self, sessions: &[Session]) -> Result<Requests> {
        let Some(session) = sessions.first() else {
            return Ok(Requests::default());
        };
        let before = self.allocator.stats(None)?;
        let maximum = if before.limit > 0 {
            before.limit
        } else {
            self.device.memory()
        };
        let met = session.infer(
            session.rows_beyond(maximum),
            &mut self.random,
            &mut self.caller,
            self.device,
        )?;
        let reason = self.caller.last_refusal().to_string();
        let after = self.allocator.stats(None)?;
        self.check(
            !met && after.allocated == before.allocated,
            format!("one too large is refused: {reason}"),
        );
        let next = session.infer(16, &mut self.random, &mut self.caller, self.device)?;
        self.check(next, "the next request on the same context succeeds".into());
        Ok(Requests {
            made: 2,
            met: u64::from(met) + u64::from(next),
        })
    }

    /// Checks the statistics after everything was freed.
    fn final_checks(&mut self) -> Result<()> {
        let stats = self.allocator.stats(None)?;
        let (limit, peak) = (stats.limit, stats.reserved_peak);
        self.check(
            limit == 0 || peak <= limit,
            format!("reserved memory never passed the limit: at most {}", size(peak)),
        );
        let balanced = stats.allocated == 0 && stats.requested == 0 && stats.allocations == stats.frees;
        let (allocations, frees) = (stats.allocations, stats.frees);
        self.check(
            balanced,
            format!("statistics balance: {allocations} blocks allocated, {frees} freed, none in use"),
        );
        let copied = stats.bytes_copied;
        let (grown, in_place) = (stats.reallocations, stats.reallocations_in_place);
        self.check(
            grown > 0,
            format!(
                "{grown} outputs grew, {in_place} of them in place, {} copied",
                size(copied)
            ),
        );
        let released = self.allocator.trim(None, 0)?;
        let left = self.allocator.stats(None)?.reserved;
        self.check(
            left == 0,
            format!(
                "trim returns all of it: {} released, {} left",
                size(released),
                size(left)
            ),
        );
        if self.device.is_simulated() {
            let (compared, lost) = self.caller.compared();
            self.check(
                compared > 0 && lost == 0,
                format!("outputs that grew kept their bytes: {compared} compared, {lost} lost"),
            );
            let violations = self.device.violations();
            let (checked, count) = (self.device.checked(), violations.len());
            self.check(
                count == 0,
                format!("stream order was respected: {checked} allocations checked, {count} violations"),
            );
            violations
                .into_iter()
                .take(SHOWN)
                .for_each(|violation| self.check(false, violation));
        }
        Ok(())
    }

    fn check(&mut self, held: bool, text: String) {
        self.invariants.push((held, text));
    }

    /// Ends a phase with a row of the table.
    fn phase(&mut self, name: &str, requests: Requests) -> Result<()> {
        self.bar.set_message(name.to_string());
        let stats = self.allocator.stats(None)?;
        let calls = self.caller.take_calls();
        let ns = calls.time.as_nanos() as f64 / calls.made.max(1) as f64;
        let count = |value: u64| {
            if requests.made == 0 {
                "-".to_string()
            } else {
                value.to_string()
            }
        };
        self.table.row(vec![
            name.to_string(),
            count(requests.made),
            count(requests.met),
            calls.made.to_string(),
            format!("{ns:.0}"),
            mib(stats.allocated),
            mib(stats.reserved),
            (stats.driver_calls - self.before.driver_calls).to_string(),
            (stats.driver_queries - self.before.driver_queries).to_string(),
            (stats.remaps - self.before.remaps).to_string(),
        ]);
        self.before = stats;
        Ok(())
    }
}
