//! `share_budget`: memory that processes of one user hold together, counted by the kernel.
//!
//! There is one empty file for each name and device. One byte of it stands for 2 MiB. A process that holds memory has an
//! open-file-description lock on as many bytes, all of them below its budget. The kernel gives a byte to one open file at
//! a time, so the sum of all is never more than the budget. The locks of a process that was killed are gone with it. There
//! is no shared memory, no count that could be wrong, and no test whether a process lives.
//!
//! One more byte, far behind the others, is where a process that is short waits: it takes a shared lock there, and the
//! others look for it ([`SharedBudget::others_wait`]).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

mod lock_file;
mod ranges;
#[cfg(test)]
mod tests;

use lock_file::LockFile;
use ranges::{Range, Ranges};

/// What one byte of the file stands for.
pub const UNIT: u64 = 2 << 20;

/// The byte that a process locks while it is short.
const WAITING: u64 = 1 << 62;

/// How often a request is tried again that failed although enough was free: two processes may each have had a part.
const TRIES: u32 = 8;

/// The option `share_budget`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareBudget {
    /// Where the file is, if not in the user's private directory.
    pub directory: Option<PathBuf>,
    /// The name that the processes share.
    pub name: String,
    /// The most that they hold together, in bytes.
    pub bytes: u64,
}

/// Why memory may not be obtained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The budget has not so many bytes left.
    Short,
    /// The budget cannot be read or locked: the reason in words.
    Broken(String),
}

/// Locked bytes. They stay locked until they come to [`SharedBudget::unlock`], or the process ends.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Held(u64);

/// The budget of one device, as one pool uses it.
#[derive(Debug)]
pub struct SharedBudget {
    option: ShareBudget,
    /// The name of the file.
    file: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<LockFile>,
    /// What is held, by number: first bytes and lengths.
    held: HashMap<u64, Vec<Range>>,
    /// All that the kernel has locked for this process.
    locked: Ranges,
    /// Numbers of what is held but not locked, since the descriptor was lost.
    missing: Vec<u64>,
    /// What the kernel did not unlock. It is still in `locked`.
    stale: Vec<Range>,
    numbers: u64,
    /// Where the last lock ended. Locks that adjoin are one for the kernel.
    last: u64,
    /// How many threads wait.
    waiters: u32,
}

/// While this lives, other processes see that memory is short.
#[derive(Debug)]
pub struct Waiting<'a>(&'a SharedBudget);

impl SharedBudget {
    /// Opens the budget's file for a device. The error is the reason in words.
    pub fn open(option: &ShareBudget, device: [u8; 16]) -> Result<Arc<SharedBudget>, String> {
        let budget = SharedBudget {
            option: option.clone(),
            file: format!("{}.{}.budget", option.name, uuid(device)),
            state: Mutex::default(),
        };
        budget.state.lock().prepare(&budget)?;
        Ok(Arc::new(budget))
    }

    /// The name and the bytes, as the option has them.
    pub fn option(&self) -> &ShareBudget {
        &self.option
    }

    fn units(&self) -> u64 {
        self.option.bytes / UNIT
    }

    /// Locks as many bytes of the file as `bytes` of memory take.
    pub fn lock(&self, bytes: u64) -> Result<Held, Refusal> {
        let units = bytes.div_ceil(UNIT);
        let mut state = self.state.lock();
        state.prepare(self).map_err(Refusal::Broken)?;
        for _ in 0..TRIES {
            let taken = state.take(self.units(), units);
            if let Some(ranges) = taken.map_err(|error| self.broken(&error))? {
                state.numbers += 1;
                let number = state.numbers;
                state.held.insert(number, ranges);
                return Ok(Held(number));
            }
            if state.free(self.units()).map_err(|error| self.broken(&error))? < units {
                break;
            }
            std::thread::sleep(Duration::from_micros(jitter(100)));
        }
        Err(Refusal::Short)
    }

    /// Unlocks them. The driver has confirmed that the memory is free.
    pub fn unlock(&self, Held(number): Held) {
        let mut state = self.state.lock();
        let ranges = state.held.remove(&number).unwrap_or_default();
        if let Some(at) = state.missing.iter().position(|missing| *missing == number) {
            state.missing.swap_remove(at);
            return;
        }
        state.give(ranges);
    }

    /// Bytes that no process holds.
    pub fn free(&self) -> Result<u64, String> {
        let mut state = self.state.lock();
        state.prepare(self)?;
        let free = state.free(self.units());
        free.map(|units| units * UNIT).map_err(|error| self.reason(&error))
    }

    /// Bytes that this pool holds.
    pub fn held(&self) -> u64 {
        let state = self.state.lock();
        let units = state.held.values().flatten().map(|(_, length)| length);
        units.sum::<u64>() * UNIT
    }

    /// Lets the other processes see that memory is short, until the value is dropped.
    pub fn wait(&self) -> Waiting<'_> {
        let mut state = self.state.lock();
        state.waiters += 1;
        if state.waiters == 1 && state.prepare(self).is_ok() {
            state.show_waiting();
        }
        Waiting(self)
    }

    /// Locks what is held again where the descriptor was lost, also while nothing is requested.
    pub fn refresh(&self) {
        // What another process has taken is tried again at the next call.
        let _ = self.state.lock().prepare(self);
    }

    /// Whether another process is short. This one gives back what it does not need then.
    pub fn others_wait(&self) -> bool {
        let state = self.state.lock();
        let file = state.file.as_ref();
        file.is_some_and(|file| matches!(file.conflict(WAITING, 1), Ok(Some(_))))
    }

    /// Closes the file where nothing is held. The next lock opens it again.
    pub fn close(&self) {
        let mut state = self.state.lock();
        if state.held.is_empty() && state.waiters == 0 {
            state.file = None;
            state.locked.clear();
            state.stale.clear();
        }
    }

    fn reason(&self, error: &std::io::Error) -> String {
        format!("{}: {error}", self.file)
    }

    fn broken(&self, error: &std::io::Error) -> Refusal {
        Refusal::Broken(self.reason(error))
    }
}

/// What says which budget it is, for messages.
impl std::fmt::Display for ShareBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.directory {
            Some(directory) => write!(f, "{}:{}", directory.join(&self.name).display(), self.bytes),
            None => write!(f, "{}:{}", self.name, self.bytes),
        }
    }
}

impl Drop for SharedBudget {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        // Memory that the driver has not taken back stays counted until the process ends.
        if !state.held.is_empty() {
            std::mem::forget(state.file.take());
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.waiters -= 1;
        if state.waiters == 0
            && let Some(file) = &state.file
        {
            let _ = file.unlock(WAITING, 1);
        }
    }
}

impl State {
    /// Makes the file usable. Where its descriptor was lost, the locks were lost too, and everything is locked again. What
    /// another process has taken meanwhile is missing, and this process obtains nothing until it has that back.
    fn prepare(&mut self, budget: &SharedBudget) -> Result<(), String> {
        if !self.file.as_ref().is_some_and(LockFile::is_there) {
            // Where there is no other file, this one keeps the locks that it may still have.
            let file = LockFile::open(budget.option.directory.as_deref(), &budget.file)?;
            // The file may be the same, so what is left of its locks goes first.
            let lost = self.file.take().is_some();
            self.missing = self.held.keys().copied().collect();
            self.locked.clear();
            self.stale.clear();
            if lost {
                tracing::warn!(file = %file.path().display(), "the file of share_budget was lost, and is locked again");
            }
            self.file = Some(file);
            if self.waiters > 0 {
                self.show_waiting();
            }
        }
        for range in std::mem::take(&mut self.stale) {
            self.give_range(range);
        }
        let units = budget.units();
        let mut missing = 0;
        let mut lost = std::mem::take(&mut self.missing);
        while let Some(number) = lost.pop() {
            let wanted = self
                .held
                .get(&number)
                .map_or(0, |ranges| ranges.iter().map(|(_, length)| length).sum());
            match self.take(units, wanted) {
                Ok(Some(ranges)) => _ = self.held.insert(number, ranges),
                Ok(None) => {
                    self.missing.push(number);
                    missing += wanted;
                }
                Err(error) => {
                    // What is not locked again keeps the bytes of the old locks, which must not be unlocked here.
                    self.missing.append(&mut lost);
                    self.missing.push(number);
                    return Err(budget.reason(&error));
                }
            }
        }
        match missing {
            0 => Ok(()),
            units => Err(format!(
                "{}: the locks were lost, and others have taken {} bytes of what this process holds",
                budget.file,
                units * UNIT
            )),
        }
    }

    fn show_waiting(&self) {
        if let Some(file) = &self.file {
            let _ = file.lock_shared(WAITING, 1);
        }
    }

    /// Locks so many bytes below `end`; none of them where there are not so many.
    fn take(&mut self, end: u64, units: u64) -> std::io::Result<Option<Vec<Range>>> {
        if units > end.saturating_sub(self.locked.total()) {
            return Ok(None);
        }
        let (mut taken, mut left) = (Vec::new(), units);
        let first = self.last.min(end);
        for (mut at, end) in [(first, end), (0, first)] {
            while left > 0
                && let Some(gap) = self.locked.gap(at, end)
            {
                if let Err(error) = self.take_in(gap, &mut left, &mut taken) {
                    self.give(taken);
                    return Err(error);
                }
                at = gap.1;
            }
        }
        if left > 0 {
            self.give(taken);
            return Ok(None);
        }
        self.last = taken.last().map_or(self.last, |(start, length)| start + length);
        Ok(Some(taken))
    }

    /// Locks at most `left` bytes of a range that has none of this process's.
    fn take_in(&mut self, (mut start, end): (u64, u64), left: &mut u64, taken: &mut Vec<Range>) -> std::io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut until = end;
        while *left > 0 && start < end {
            let length = (*left).min(until - start);
            if file.lock(start, length)? {
                self.locked.add((start, length));
                taken.push((start, length));
                *left -= length;
                start += length;
                until = end;
                continue;
            }
            match file.conflict(start, length)? {
                // It is free again.
                None => {}
                Some((from, _)) if from > start => until = from,
                Some((_, to)) => (start, until) = (to, end),
            }
        }
        Ok(())
    }

    /// Unlocks ranges.
    fn give(&mut self, ranges: Vec<Range>) {
        for range in ranges {
            self.give_range(range);
        }
    }

    /// Unlocks a range. Where the kernel refuses that, its bytes are not taken again before they are unlocked.
    fn give_range(&mut self, range: Range) {
        let file = self.file.as_ref().filter(|file| file.is_open());
        // Without the descriptor there are no locks.
        if let Some(Err(error)) = file.map(|file| file.unlock(range.0, range.1)) {
            tracing::debug!(%error, "a lock of share_budget stays for now");
            self.stale.push(range);
            return;
        }
        self.locked.remove(range);
    }

    /// How many bytes below `end` no open file has locked.
    fn free(&self, end: u64) -> std::io::Result<u64> {
        let Some(file) = &self.file else {
            return Ok(0);
        };
        let (mut free, mut ranges) = (0, self.locked.gaps(0, end).collect::<Vec<_>>());
        while let Some((start, end)) = ranges.pop() {
            match file.conflict(start, end - start)? {
                None => free += end - start,
                Some((from, to)) => {
                    ranges.extend(
                        [(start, from), (to, end)]
                            .into_iter()
                            .filter(|(start, end)| start < end),
                    );
                }
            }
        }
        Ok(free)
    }
}

/// A device's UUID as NVIDIA writes it.
fn uuid(bytes: [u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let groups = [0..4, 4..6, 6..8, 8..10, 10..16];
    groups.map(|group| hex[group].concat()).join("-")
}

/// A number of microseconds below `most` that differs from process to process and from time to time.
pub fn jitter(most: u64) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    use std::time::SystemTime;
    // Each value has random keys.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    hasher.write_u128(now.map_or(0, |since| since.as_nanos()));
    hasher.write_u32(std::process::id());
    hasher.finish() % most.max(1)
}
