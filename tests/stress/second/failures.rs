//! Makes driver calls fail: one rule at a time, which does not apply to the application's own calls.

use parking_lot::Mutex;

use crate::cudasim::functions::Cudasim;

#[derive(Debug, Default)]
struct FailureState {
    rule: Option<Rule>,
    /// Running calls of the application.
    exempt: u32,
    /// Whether the driver has the rule.
    armed: bool,
    failed: u64,
    /// How many captures had been ended when the running call of the application began.
    ended_before: u64,
    /// How many captures calls of the application have ended.
    ended_by_application: u64,
    /// How many calls the rule was checked for.
    seen: u64,
}

#[derive(Debug)]
struct Rule {
    /// The call's name in the driver; `*` for any.
    call: String,
    n: u64,
    /// Whether later calls fail too.
    repeats: bool,
    code: u32,
}

#[derive(Default)]
pub struct Failures(Mutex<FailureState>);

/// While it exists, no call fails.
pub struct Exempt<'f>(&'f Failures, &'f Cudasim);

impl Drop for Exempt<'_> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.exempt -= 1;
        if state.exempt == 0 {
            state.ended_by_application += self.1.captures_broken() - state.ended_before;
        }
        state.update_driver(self.1);
    }
}

impl FailureState {
    /// Removes the rule from the driver and counts the calls that it made fail.
    fn disarm(&mut self, sim: &Cudasim) {
        if !std::mem::take(&mut self.armed) {
            return;
        }
        let (seen, fired) = (sim.seen(), sim.fired());
        sim.fail("");
        self.failed += fired;
        self.seen += seen;
        if let Some(rule) = &mut self.rule {
            rule.n = rule.n.saturating_sub(seen).max(1);
            if fired > 0 && !rule.repeats {
                self.rule = None;
            }
        }
    }

    fn update_driver(&mut self, sim: &Cudasim) {
        match &self.rule {
            Some(_) if self.exempt > 0 => self.disarm(sim),
            Some(rule) if !self.armed => {
                let repeats = if rule.repeats { "+" } else { "" };
                sim.fail(&format!("{}:{}{repeats}:{}", rule.call, rule.n, rule.code));
                self.armed = true;
            }
            _ => {}
        }
    }
}

impl Failures {
    pub fn exempt<'f>(&'f self, sim: &'f Cudasim) -> Exempt<'f> {
        let mut state = self.0.lock();
        if state.exempt == 0 {
            state.ended_before = sim.captures_broken();
        }
        state.exempt += 1;
        state.update_driver(sim);
        Exempt(self, sim)
    }

    /// How many captures were ended by calls that are not exempt.
    pub fn captures_ended(&self, sim: &Cudasim) -> u64 {
        let state = self.0.lock();
        let before = if state.exempt == 0 {
            sim.captures_broken()
        } else {
            state.ended_before
        };
        before - state.ended_by_application
    }

    pub fn arm(&self, sim: &Cudasim, call: Option<&str>, n: u64, repeats: bool, code: u32) -> bool {
        let mut state = self.0.lock();
        state.disarm(sim);
        state.seen = 0;
        let call = call.unwrap_or("*").to_owned();
        state.rule = Some(Rule { call, n, repeats, code });
        state.update_driver(sim);
        n > 0
    }

    pub fn clear(&self, sim: &Cudasim) {
        let mut state = self.0.lock();
        state.disarm(sim);
        state.rule = None;
    }

    /// Calls of the last rule's name that were not the application's.
    pub fn seen(&self) -> u64 {
        self.0.lock().seen
    }

    pub fn failed(&self, sim: &Cudasim) -> u64 {
        let mut state = self.0.lock();
        state.disarm(sim);
        let failed = state.failed;
        state.update_driver(sim);
        failed
    }
}
