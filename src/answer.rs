//! One answer that another thread gives once. (The standard library's channels would do, with ten times the code.)

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Open,
    Told(T),
    /// Nobody will tell, or it was taken.
    Over,
}

/// Whoever tells. Dropped without a word, nobody will.
pub struct Teller<T>(Arc<Shared<T>>);

/// Whoever waits.
pub struct Asked<T>(Arc<Shared<T>>);

/// Nobody will tell any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over;

/// The two ends of one answer.
pub fn ask<T>() -> (Teller<T>, Asked<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State::Open),
        changed: Condvar::new(),
    });
    (Teller(shared.clone()), Asked(shared))
}

impl<T> Teller<T> {
    /// Gives the answer.
    pub fn tell(self, answer: T) {
        *self.0.state.lock() = State::Told(answer);
    }
}

impl<T> Drop for Teller<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if matches!(*state, State::Open) {
            *state = State::Over;
        }
        self.0.changed.notify_all();
    }
}

impl<T> Asked<T> {
    /// The answer, once it is there; at most `limit` is waited, without one for ever. None where that was too short.
    pub fn wait(&self, limit: Option<Duration>) -> Result<Option<T>, Over> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.0.state.lock();
        while matches!(*state, State::Open) {
            match deadline {
                None => self.0.changed.wait(&mut state),
                Some(deadline) => {
                    if self.0.changed.wait_until(&mut state, deadline).timed_out() && matches!(*state, State::Open) {
                        return Ok(None);
                    }
                }
            }
        }
        match std::mem::replace(&mut *state, State::Over) {
            State::Told(answer) => Ok(Some(answer)),
            _ => Err(Over),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_or_does_not() {
        let (teller, asked) = ask::<u32>();
        assert_eq!(asked.wait(Some(Duration::ZERO)), Ok(None));
        let thread = std::thread::spawn(move || teller.tell(7));
        assert_eq!(asked.wait(None), Ok(Some(7)));
        assert_eq!(asked.wait(None), Err(Over), "once");
        thread.join().unwrap();
        let (teller, asked) = ask::<u32>();
        drop(teller);
        assert_eq!(asked.wait(Some(Duration::MAX)), Err(Over));
    }
}
