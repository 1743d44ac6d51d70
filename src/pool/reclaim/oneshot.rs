//! A channel for one value, whose receiver waits at most so long.
//!
//! It is not `std::sync::mpsc`, which would do: std's receiver waits until an absolute time of CLOCK_MONOTONIC, so it
//! waits too long in a process whose clock a test shifts (tests/support/common/cudasim). parking_lot's waits are relative.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    /// No value was sent yet.
    Open,
    /// The value was sent and not received.
    Sent(T),
    /// The value was received, or the sender was dropped without one.
    Closed,
}

/// The end that sends. If it is dropped before that, the receiver gets [`Closed`].
pub struct Sender<T>(Arc<Shared<T>>);

/// The end that receives.
pub struct Receiver<T>(Arc<Shared<T>>);

/// No value will come any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

/// The two ends.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State::Open),
        changed: Condvar::new(),
    });
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Sends the value.
    pub fn send(self, value: T) {
        *self.0.state.lock() = State::Sent(value);
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if matches!(*state, State::Open) {
            *state = State::Closed;
        }
        self.0.changed.notify_all();
    }
}

impl<T> Receiver<T> {
    /// The value, once. Waits at most `limit` for it, and returns none where that was too short.
    pub fn receive(&self, limit: Duration) -> Result<Option<T>, Closed> {
        let deadline = Instant::now().checked_add(limit);
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
        match std::mem::replace(&mut *state, State::Closed) {
            State::Sent(value) => Ok(Some(value)),
            _ => Err(Closed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_received_once() {
        let (sender, receiver) = channel::<u32>();
        assert_eq!(receiver.receive(Duration::ZERO), Ok(None));
        let thread = std::thread::spawn(move || sender.send(7));
        assert_eq!(receiver.receive(Duration::MAX), Ok(Some(7)));
        assert_eq!(receiver.receive(Duration::MAX), Err(Closed));
        thread.join().unwrap();
    }

    #[test]
    fn dropped_sender_closes_the_channel() {
        let (sender, receiver) = channel::<u32>();
        drop(sender);
        assert_eq!(receiver.receive(Duration::MAX), Err(Closed));
    }
}
