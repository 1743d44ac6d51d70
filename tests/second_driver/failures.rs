//! Calls that the driver makes fail: one rule at a time, which does not strike the application's own calls.

use parking_lot::Mutex;

use crate::cudasim::functions::Cudasim;

#[derive(Debug, Default)]
struct State {
    rule: Option<Rule>,
    /// Calls of the application's that are going on.
    exempt: u32,
    /// The driver has the rule.
    armed: bool,
    struck: u64,
    /// Calls that the rule was looked at for.
    seen: u64,
}

#[derive(Debug)]
struct Rule {
    /// As the driver names them; `*`: any.
    call: String,
    n: u64,
    /// Later calls fail too.
    ever: bool,
    code: u32,
}

#[derive(Default)]
pub struct Failures(Mutex<State>);

/// While it lives, no call is made to fail.
pub struct Exempt<'f>(&'f Failures, &'f Cudasim);

impl Drop for Exempt<'_> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.exempt -= 1;
        state.settle(self.1);
    }
}

impl State {
    /// What the driver was made to fail since the rule was given to it.
    fn take_back(&mut self, sim: &Cudasim) {
        if !std::mem::take(&mut self.armed) {
            return;
        }
        let (seen, fired) = (sim.seen(), sim.fired());
        sim.fail("");
        self.struck += fired;
        self.seen += seen;
        if let Some(rule) = &mut self.rule {
            rule.n = rule.n.saturating_sub(seen).max(1);
            if fired > 0 && !rule.ever {
                self.rule = None;
            }
        }
    }

    fn settle(&mut self, sim: &Cudasim) {
        match &self.rule {
            Some(_) if self.exempt > 0 => self.take_back(sim),
            Some(rule) if !self.armed => {
                let ever = if rule.ever { "+" } else { "" };
                sim.fail(&format!("{}:{}{ever}:{}", rule.call, rule.n, rule.code));
                self.armed = true;
            }
            _ => {}
        }
    }
}

impl Failures {
    pub fn exempt<'f>(&'f self, sim: &'f Cudasim) -> Exempt<'f> {
        let mut state = self.0.lock();
        state.exempt += 1;
        state.settle(sim);
        Exempt(self, sim)
    }

    pub fn arm(&self, sim: &Cudasim, call: Option<&str>, n: u64, ever: bool, code: u32) -> bool {
        let mut state = self.0.lock();
        state.take_back(sim);
        state.seen = 0;
        let call = call.unwrap_or("*").to_owned();
        state.rule = Some(Rule { call, n, ever, code });
        state.settle(sim);
        n > 0
    }

    pub fn clear(&self, sim: &Cudasim) {
        let mut state = self.0.lock();
        state.take_back(sim);
        state.rule = None;
    }

    /// Calls of the last rule's name that were not the application's.
    pub fn seen(&self) -> u64 {
        self.0.lock().seen
    }

    pub fn struck(&self, sim: &Cudasim) -> u64 {
        let mut state = self.0.lock();
        state.take_back(sim);
        let struck = state.struck;
        state.settle(sim);
        struck
    }
}
