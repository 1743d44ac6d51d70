//! The rules that models break on purpose. The models are in `loom/`.

use std::cell::Cell;
use std::sync::atomic::Ordering;

include!("../broken.rs");

thread_local! {
    static NOW: Cell<&'static str> = const { Cell::new("") };
}

/// Whether that rule is broken in the models that this thread runs.
pub fn broken(rule: &str) -> bool {
    NOW.get() == rule
}

/// No order where that rule is broken.
pub fn relaxed_if_broken(rule: &str, order: Ordering) -> Ordering {
    if broken(rule) { Ordering::Relaxed } else { order }
}

/// Runs a model with a rule broken; panics unless the model does, which it may do with any of `words`.
pub fn caught(rule: &'static str, words: &[&str], model: impl FnOnce() + std::panic::UnwindSafe) {
    assert!(
        BROKEN.iter().any(|(name, ..)| *name == rule),
        "no rule is called {rule}"
    );
    NOW.set(rule);
    let outcome = std::panic::catch_unwind(model);
    NOW.set("");
    let Err(panic) = outcome else {
        panic!("{rule} was broken and nobody noticed")
    };
    let told = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or(panic.downcast_ref::<&str>().copied());
    let told = told.unwrap_or_default();
    assert!(
        words.iter().any(|word| told.contains(word)),
        "{rule} was noticed for another reason: {told}"
    );
}
