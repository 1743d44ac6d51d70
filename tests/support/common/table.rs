//! What was tried, with what result: the rows of a table in the documentation.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use super::harness::{Skipped, message};
use super::{root, skip, skip_part};

/// How a trial went.
#[derive(Clone, Debug)]
pub enum Outcome {
    Passed,
    Failed(String),
    /// Not run: what was missing, as TRTALLOC_TEST_REQUIRE names it, and why.
    Skipped(&'static str, String),
}

/// One TensorRT, or none, in one language or by one way.
#[derive(Clone, Debug)]
pub struct Row {
    pub tensorrt: String,
    /// The language, or the kind of program.
    pub language: &'static str,
    /// `real library`, `NVIDIA's header` or `own declaration`; or how trtalloc comes in.
    pub with: &'static str,
    pub what: &'static str,
    pub outcome: Outcome,
}

impl Row {
    /// Tries it; a panic is a failure with that reason, unless `skip` ended it.
    pub fn of(
        tensorrt: impl Into<String>,
        language: &'static str,
        with: &'static str,
        what: &'static str,
        body: impl FnOnce() -> Outcome,
    ) -> Row {
        let outcome =
            catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| match payload.downcast::<Skipped>() {
                Ok(skipped) => Outcome::Skipped(skipped.what, skipped.reason),
                Err(payload) => Outcome::Failed(message(&*payload)),
            });
        Row {
            tensorrt: tensorrt.into(),
            language,
            with,
            what,
            outcome,
        }
    }
}

/// Fails where a row failed, and where one that is required was not run. With one that was not run, the test is ignored.
pub fn check(rows: &[Row]) {
    assert!(!rows.is_empty());
    let some_ran = !rows.iter().all(|row| matches!(row.outcome, Outcome::Skipped(..)));
    let mut failed = String::new();
    for Row {
        tensorrt,
        language,
        with,
        what,
        outcome,
    } in rows
    {
        match outcome {
            Outcome::Passed => {}
            Outcome::Failed(reason) => {
                // Writing to a String cannot fail.
                let _ = writeln!(failed, "TensorRT {tensorrt}, {language}, {with}, {what}: {reason}\n");
            }
            Outcome::Skipped(missing, reason) if some_ran => skip_part(missing, reason),
            Outcome::Skipped(missing, reason) => skip(missing, reason),
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// A program under test: nothing of this process's options reaches it.
pub fn program(path: &std::path::Path) -> Command {
    let mut command = Command::new(path);
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("TRTALLOC_")) {
        command.env_remove(key);
    }
    command
}

/// Compares a page with what is committed, or writes it where TRTALLOC_BLESS is set. `rows` are all that stand in it: where
/// one was not run, there is nothing to compare, and the test is ignored.
pub fn keep(page: &str, text: &str, rows: &[Row], command: &str) {
    for row in rows {
        if let Outcome::Skipped(missing, reason) = &row.outcome {
            skip(missing, reason);
        }
    }
    let path = root().join(page);
    if std::env::var_os("TRTALLOC_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "{page} differs: TRTALLOC_BLESS=1 TRTALLOC_TEST_REQUIRE=all {command}"
    );
}
