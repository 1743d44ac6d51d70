//! Injected failures, counters and latencies of calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::Machine;
use super::code::Result;
use super::functions::{Call, CallKind};
use super::tables::{FLAG_ARMED, FLAG_HOST, FLAG_LATENCY, Tables};

#[derive(Debug)]
struct FailureRule {
    /// `None` for any call that an allocator may make.
    call: Option<Call>,
    /// The rule applies when this many more calls have been made.
    left: u64,
    /// The rule applies again after so many calls; 0: only once.
    every: u64,
    /// The call's result; 0: the call does not fail.
    code: u32,
    /// The call does what it is for, and returns the error of earlier work all the same.
    late: bool,
    work: Option<ConcurrentWork>,
}

/// What another thread of the application does just before a call.
struct ConcurrentWork(Box<dyn FnOnce(&Machine) + Send>);

impl std::fmt::Debug for ConcurrentWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConcurrentWork")
    }
}

#[derive(Debug, Default)]
pub(super) struct Failures {
    rules: Mutex<Vec<FailureRule>>,
    /// Calls that could have failed since the first rule was set.
    failed: AtomicU64,
}

impl Machine {
    /// Returns an error where a rule makes this call fail.
    pub(super) fn apply_rules(&self, call: Call) -> Result<()> {
        let (code, work) = self.failures.apply_rules(&self.tables, call, false);
        for ConcurrentWork(work) in work {
            let _exempt = self.exempt();
            work(self);
        }
        if code == 0 { Ok(()) } else { Err(code) }
    }
}

impl Machine {
    /// Returns the error of a rule of [`Machine::fail_late`] for a call that has done its work.
    pub(super) fn late_error(&self, call: Call) -> Result<()> {
        let armed = self.tables.flags.load(Relaxed) & FLAG_ARMED != 0;
        if !armed || self.threads.here().exempt.load(Relaxed) != 0 {
            return Ok(());
        }
        match self.failures.apply_rules(&self.tables, call, true) {
            (0, _) => Ok(()),
            (code, _) => Err(code),
        }
    }
}

impl Failures {
    fn apply_rules(&self, tables: &Tables, call: Call, late: bool) -> (u32, Vec<ConcurrentWork>) {
        let (mut code, mut work) = (0, Vec::new());
        let mut rules = self.rules.lock();
        rules.retain_mut(|rule| {
            let meant = match rule.call {
                Some(named) => named == call,
                None => call.kind() != CallKind::Application,
            };
            if !meant || rule.late != late {
                return true;
            }
            rule.left -= 1;
            if rule.left > 0 {
                return true;
            }
            match rule.work.take() {
                Some(due) => work.push(due),
                None => code = rule.code,
            }
            rule.left = rule.every;
            rule.every > 0
        });
        tables.set_flag(FLAG_ARMED, !rules.is_empty());
        self.failed.fetch_add(u64::from(code != 0), Relaxed);
        (code, work)
    }
}

/// While it exists, its thread's calls are not counted and do not fail.
#[derive(Debug)]
pub struct Exempt<'a> {
    machine: &'a Machine,
    // The exemption belongs to its thread and must end there.
    _here: std::marker::PhantomData<*const ()>,
}

impl Drop for Exempt<'_> {
    fn drop(&mut self) {
        self.machine.threads.here().exempt.fetch_sub(1, Relaxed);
    }
}

impl Machine {
    /// Makes the `n`-th call (from 1) from now on of that name fail with `code`, once. Without a name, every call that
    /// an allocator may make counts. Returns false where no function has that name or `n` is 0.
    pub fn fail_nth(&self, call: Option<&str>, n: u64, code: u32) -> bool {
        code != 0 && self.add_rule(call, n, (0, false), code, None)
    }

    /// Makes every `n`-th call from now on fail with `code`. Otherwise as [`Machine::fail_nth`].
    pub fn fail_every(&self, call: Option<&str>, n: u64, code: u32) -> bool {
        code != 0 && self.add_rule(call, n, (n, false), code, None)
    }

    /// Makes the `n`-th call (from 1) from now on of that name take effect and return `code` all the same, once, as a
    /// driver may that reports an error of earlier work. Of cuCtxPushCurrent and cuCtxPopCurrent only.
    pub fn fail_late(&self, call: &str, n: u64, code: u32) -> bool {
        code != 0 && self.add_rule(Some(call), n, (0, true), code, None)
    }

    /// Runs `work` just before the `n`-th call (from 1) from now on of that name, as another thread could. Returns
    /// false where no function has that name or `n` is 0.
    pub fn come_between(&self, call: &str, n: u64, work: impl FnOnce(&Machine) + Send + 'static) -> bool {
        self.add_rule(Some(call), n, (0, false), 0, Some(ConcurrentWork(Box::new(work))))
    }

    fn add_rule(
        &self,
        call: Option<&str>,
        n: u64,
        (every, late): (u64, bool),
        code: u32,
        work: Option<ConcurrentWork>,
    ) -> bool {
        let call = match call.map(Call::by_name) {
            Some(None) => return false,
            Some(known) => known,
            None => None,
        };
        if n == 0 {
            return false;
        }
        let mut rules = self.failures.rules.lock();
        rules.push(FailureRule {
            call,
            left: n,
            every,
            code,
            late,
            work,
        });
        self.tables.set_flag(FLAG_ARMED, true);
        true
    }

    /// Removes all rules.
    pub fn clear_failures(&self) {
        let mut rules = self.failures.rules.lock();
        rules.clear();
        self.tables.set_flag(FLAG_ARMED, false);
    }

    /// How many calls the rules have made fail so far.
    pub fn failures_struck(&self) -> u64 {
        self.failures.failed.load(Relaxed)
    }

    /// Until the returned value is dropped, this thread's calls are not counted and do not fail. It is for calls that a
    /// test makes between those that it examines.
    pub fn exempt(&self) -> Exempt<'_> {
        self.threads.here().exempt.fetch_add(1, Relaxed);
        Exempt {
            machine: self,
            _here: std::marker::PhantomData,
        }
    }

    /// Sets how many simulated nanoseconds a call takes. Returns false where no function has that name.
    pub fn set_latency(&self, call: &str, nanoseconds: u64) -> bool {
        let Some(call) = Call::by_name(call) else {
            return false;
        };
        self.latencies[call as usize].store(nanoseconds, Relaxed);
        let queries = Call::ALL.iter().filter(|call| call.kind() == CallKind::Query);
        let any = queries
            .clone()
            .any(|call| self.latencies[*call as usize].load(Relaxed) > 0);
        self.tables.set_flag(FLAG_LATENCY, any);
        true
    }

    /// Whether the calling thread spends a call's latency, too, as it would in a driver. It waits without the machine's
    /// lock, so calls of several threads pass at the same time.
    pub fn spend_host_time(&self, on: bool) {
        self.tables.set_flag(FLAG_HOST, on);
    }

    /// How often each function was called, by name, without those that were never called.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        let all = Call::ALL.iter().map(|&call| (call.name(), self.threads.total(call)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// How often one function was called.
    pub fn count(&self, call: &str) -> u64 {
        Call::by_name(call).map_or(0, |call| self.threads.total(call))
    }

    fn count_kind(&self, kind: CallKind) -> u64 {
        Call::ALL
            .iter()
            .filter(|call| call.kind() == kind)
            .map(|&call| self.threads.total(call))
            .sum()
    }

    /// How many queries were made.
    pub fn queries(&self) -> u64 {
        self.count_kind(CallKind::Query)
    }

    /// How many calls were made that submit work, change state or may block, without those that only applications make.
    pub fn submissions(&self) -> u64 {
        self.count_kind(CallKind::Call)
    }

    /// How many calls were made that an allocator may make. These are the calls that [`Machine::fail_nth`] counts
    /// without a name.
    pub fn calls_made(&self) -> u64 {
        self.queries() + self.submissions()
    }
}
