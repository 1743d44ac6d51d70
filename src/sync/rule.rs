//! Rules that tests and models break on purpose, to see that they detect it.
//!
//! Code that keeps a rule queries [`broken`] with the rule's name. In the library every rule is kept: the functions
//! here are constants, and the compiler removes them.

use std::sync::atomic::Ordering;

/// Whether `rule` is broken on this thread, or in the model that this thread runs.
#[cfg(not(any(test, loom)))]
#[inline(always)]
pub const fn broken(_rule: &str) -> bool {
    false
}

/// Whether the condition that `rule` demands holds, or `rule` is broken.
#[inline(always)]
pub fn holds(rule: &str, condition: bool) -> bool {
    condition || broken(rule)
}

/// Returns `order`, or no order where `rule` is broken.
#[inline(always)]
pub fn unless_broken(rule: &str, order: Ordering) -> Ordering {
    if broken(rule) { Ordering::Relaxed } else { order }
}

#[cfg(any(test, loom))]
pub use switch::{breaking, broken};

#[cfg(any(test, loom))]
mod switch {
    use std::cell::Cell;

    // std's macro in a model too: loom runs all threads of a model on one thread.
    std::thread_local! {
        static NOW: Cell<&'static str> = const { Cell::new("") };
        static QUERIED: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether `rule` is broken on this thread, or in the model that this thread runs.
    pub fn broken(rule: &str) -> bool {
        let now = NOW.get() == rule;
        if now {
            QUERIED.set(true);
        }
        now
    }

    /// Runs `work` with `rule` broken. Panics if `work` finishes and no code has queried the rule.
    pub fn breaking<T>(rule: &'static str, work: impl FnOnce() -> T) -> T {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                NOW.set("");
            }
        }
        assert_eq!(NOW.replace(rule), "", "one rule is broken at a time");
        let restore = Restore;
        QUERIED.set(false);
        let result = work();
        drop(restore);
        assert!(QUERIED.get(), "no code queries this rule: {rule}");
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: &str = "this";
    const THAT: &str = "that";

    #[test]
    fn rule_is_broken_on_one_thread_until_the_work_ends() {
        breaking(THIS, || {
            assert!(broken(THIS) && !broken(THAT));
            assert_eq!(unless_broken(THIS, Ordering::Acquire), Ordering::Relaxed);
            assert_eq!(unless_broken(THAT, Ordering::Acquire), Ordering::Acquire);
            std::thread::scope(|scope| assert!(!scope.spawn(|| broken(THIS)).join().unwrap()));
        });
        assert!(!broken(THIS));
        let panicked = std::panic::catch_unwind(|| breaking(THIS, || panic!("{}", broken(THIS))));
        assert!(panicked.is_err() && !broken(THIS));
    }

    #[test]
    #[should_panic = "no code queries this rule: this"]
    fn a_rule_that_no_code_queries_panics() {
        breaking(THIS, || broken(THAT));
    }
}
