//! What happens, in which order, and what has to hold at each step.

use indicatif::ProgressBar;
use trtalloc::allocator::Allocator;
use trtalloc::bridge::client::Client;
use trtalloc::error::Result;
use trtalloc::stats::Stats;
use trtalloc::trace::random::Random;

use super::super::device::Device;
use super::super::progress;
use super::super::table::{Table, mib, size};
use super::caller::Caller;
use super::engine::{DETECTOR, ENCODER, Engine, GENERATOR, Plan, Session};

/// How it went.
pub struct Told {
    /// A row for each phase.
    pub table: String,
    /// What was promised, and whether it was held.
    pub promises: Vec<(bool, String)>,
}

/// The life of an application that serves three engines.
pub struct Life<'a> {
    device: &'a Device,
    allocator: &'a Allocator,
    caller: Caller<'a>,
    random: Random,
    requests: u64,
    table: Table,
    before: Stats,
    promises: Vec<(bool, String)>,
    bar: ProgressBar,
}

/// Requests of a phase, and how many were met.
#[derive(Clone, Copy, Default)]
struct Requests {
    made: u64,
    met: u64,
}

/// How many rows a request has: skewed, as requests are.
const ROWS: [u64; 11] = [1, 2, 4, 6, 8, 12, 16, 24, 40, 80, 160];
/// Violations that are shown one by one.
const SHOWN: usize = 3;
/// Requests after which the application waits for its results.
const BATCH: u64 = 16;

impl<'a> Life<'a> {
    pub fn new(device: &'a Device, allocator: &'a Allocator, client: Client, requests: u64, seed: u64) -> Life<'a> {
        Life {
            device,
            allocator,
            caller: Caller::new(device, client),
            random: Random::new(seed),
            requests,
            table: Table::new(&[
                "phase",
                "requests",
                "met",
                "calls",
                "ns/op",
                "in use MiB",
                "reserved MiB",
                "driver calls",
                "queries",
                "remaps",
            ]),
            before: Stats::default(),
            promises: Vec::new(),
            bar: progress::bar(2 * requests),
        }
    }

    pub fn run(mut self) -> Result<Told> {
        let result = self.phases();
        self.bar.finish_and_clear();
        result?;
        Ok(Told {
            table: self.table.text(),
            promises: self.promises,
        })
    }

    fn phases(&mut self) -> Result<()> {
        let detector = self.load(&DETECTOR)?;
        let encoder = self.load(&ENCODER)?;
        let (Some(detector), Some(encoder)) = (detector, encoder) else {
            self.promise(
                false,
                format!("two engines load under the cap: {}", self.caller.last_refusal()),
            );
            return Ok(());
        };
        let mut sessions = self.open(&[&DETECTOR, &DETECTOR, &ENCODER, &ENCODER])?;
        self.phase("load two engines", Requests::default())?;

        let served = self.serve(&sessions, self.requests)?;
        self.phase("serve, shapes vary", served)?;
        self.promise(
            served.met == served.made,
            format!("{} of {} requests were met", served.met, served.made),
        );

        let served = self.come_and_go(&mut sessions)?;
        self.phase("contexts come and go", served)?;
        let (met, made) = (served.met, served.made);
        self.promise(
            met == made,
            format!("{met} of {made} met while contexts and their streams came and went"),
        );

        let encoder_sessions = sessions.split_off(2);
        let generator = self.swap(encoder, encoder_sessions)?;
        self.phase("swap an engine", Requests::default())?;

        if generator.is_some() {
            sessions.extend(self.open(&[&GENERATOR, &GENERATOR])?);
        }
        let served = self.serve(&sessions, self.requests / 2)?;
        self.phase("serve the new one", served)?;
        self.promise(
            served.met == served.made,
            format!("{} of {} met by the new pair", served.met, served.made),
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
        self.books()
    }

    fn load(&mut self, plan: &'static Plan) -> Result<Option<Engine>> {
        self.bar.set_message(format!("loading {}", plan.name));
        Engine::load(plan, &mut self.caller)
    }

    /// Opens a context for each plan; that one does not fit breaks a promise.
    fn open(&mut self, plans: &[&'static Plan]) -> Result<Vec<Session>> {
        let mut sessions = Vec::new();
        for plan in plans {
            match Session::open(plan, &mut self.caller, self.device)? {
                Some(session) => sessions.push(session),
                None => {
                    let reason = self.caller.last_refusal().to_string();
                    self.promise(
                        false,
                        format!("a context of the {} has its memory: {reason}", plan.name),
                    );
                }
            }
        }
        Ok(sessions)
    }

    /// `count` requests of varying shape, each to a context drawn at random.
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

    /// Contexts are closed with their work still queued, and others opened on new streams in their place.
    fn come_and_go(&mut self, sessions: &mut Vec<Session>) -> Result<Requests> {
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

    /// Tries the third engine beside the two, which cannot fit, and then in place of the second.
    fn swap(&mut self, encoder: Engine, sessions: Vec<Session>) -> Result<Option<Engine>> {
        let before = self.allocator.stats(None)?;
        let beside = self.load(&GENERATOR)?;
        let refused = beside.is_none();
        if let Some(engine) = beside {
            engine.unload(&mut self.caller)?;
        }
        let after = self.allocator.stats(None)?;
        self.promise(
            refused && after.allocated == before.allocated,
            format!(
                "the {} ({}) is refused beside the two, and what it had is given back",
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
        let why = if generator.is_some() {
            ""
        } else {
            self.caller.last_refusal()
        };
        let promise = format!(
            "it loads once the {name} ({}) is unloaded {why}",
            size(ENCODER.weights())
        );
        self.promise(generator.is_some(), promise);
        Ok(generator)
    }

    /// A request that no cap of this size can meet, then one that can be met.
    fn refuse(&mut self, sessions: &[Session]) -> Result<Requests> {
        let Some(session) = sessions.first() else {
            return Ok(Requests::default());
        };
        let before = self.allocator.stats(None)?;
        let most = if before.limit > 0 {
            before.limit
        } else {
            self.device.memory()
        };
        let met = session.infer(
            session.rows_beyond(most),
            &mut self.random,
            &mut self.caller,
            self.device,
        )?;
        let reason = self.caller.last_refusal().to_string();
        let after = self.allocator.stats(None)?;
        self.promise(
            !met && after.allocated == before.allocated,
            format!("one too large is refused: {reason}"),
        );
        let next = session.infer(16, &mut self.random, &mut self.caller, self.device)?;
        self.promise(next, "the next request on the same context is met".into());
        Ok(Requests {
            made: 2,
            met: u64::from(met) + u64::from(next),
        })
    }

    /// What must hold when everything was given back.
    fn books(&mut self) -> Result<()> {
        let stats = self.allocator.stats(None)?;
        let (cap, peak) = (stats.limit, stats.reserved_peak);
        self.promise(
            cap == 0 || peak <= cap,
            format!("reserved memory never passed the cap: at most {}", size(peak)),
        );
        let balanced = stats.allocated == 0 && stats.requested == 0 && stats.allocations == stats.frees;
        let (allocations, frees) = (stats.allocations, stats.frees);
        self.promise(
            balanced,
            format!("the books balance: {allocations} blocks out, {frees} back, none in use"),
        );
        let copied = stats.bytes_copied;
        let (grown, in_place) = (stats.reallocations, stats.reallocations_in_place);
        self.promise(
            grown > 0,
            format!(
                "{grown} outputs grew, {in_place} of them where they lay, {} copied",
                size(copied)
            ),
        );
        let released = self.allocator.trim(None, 0)?;
        let left = self.allocator.stats(None)?.reserved;
        self.promise(
            left == 0,
            format!(
                "trim gives all of it back: {} released, {} left",
                size(released),
                size(left)
            ),
        );
        if self.device.is_simulated() {
            let (compared, lost) = self.caller.compared();
            self.promise(
                compared > 0 && lost == 0,
                format!("what grew kept its bytes: {compared} compared, {lost} lost"),
            );
            let violations = self.device.violations();
            let (checked, count) = (self.device.checked(), violations.len());
            self.promise(
                count == 0,
                format!("the order of streams was kept: {checked} hand-outs checked, {count} violations"),
            );
            violations
                .into_iter()
                .for_each(|violation| self.promise(false, violation));
        }
        Ok(())
    }

    fn promise(&mut self, held: bool, text: String) {
        self.promises.push((held, text));
    }

    /// Closes a phase with a row of the table.
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
