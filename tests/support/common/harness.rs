//! Runs the tests of a binary that cargo builds without the standard harness (`harness = false`). The standard one knows
//! before a test starts whether it is ignored; here a test says so itself (`skip`), is reported as ignored with the reason,
//! and is counted at the end. Each test has a thread of its own, as in the standard harness; with `--test-threads=1` it runs
//! on the main thread. Nothing that a test prints is held back.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// A function with `#[test]`.
pub struct Test {
    pub name: &'static str,
    pub run: fn(),
}

inventory::collect!(Test);

/// What `skip` unwinds with.
pub struct Skipped {
    /// The missing piece, as TRTALLOC_TEST_REQUIRE names it; empty where nothing is missing.
    pub what: &'static str,
    pub reason: String,
}

thread_local! {
    /// What the test on this thread leaves out; none where no test of this harness runs.
    static LEFT_OUT: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// A test that takes at least this long is named at the end.
const LONG: Duration = Duration::from_secs(5);

/// The tests that took long.
static TOOK: Mutex<Vec<(Duration, &str)>> = Mutex::new(Vec::new());

/// How many tests were ignored for which reason.
static REASONS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// Runs the tests that the arguments name.
pub fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The standard harness knows this variable.
    if let (None, Ok(threads)) = (arguments.test_threads, std::env::var("RUST_TEST_THREADS")) {
        arguments.test_threads = Some(threads.parse().expect("RUST_TEST_THREADS is a number"));
    }
    let own_thread = arguments.test_threads != Some(1);
    let mut tests: Vec<&'static Test> = inventory::iter::<Test>.into_iter().collect();
    assert!(
        !tests.is_empty(),
        "no test: is `#[macro_use] extern crate trial;` there?"
    );
    tests.sort_by_key(|test| test.name);
    let trials = tests.into_iter().map(|test| {
        // The standard harness leaves the crate's name out.
        let name = test.name.split_once("::").map_or(test.name, |(_, name)| name);
        Trial::ignorable_test(name, move || {
            let began = Instant::now();
            let result = match own_thread {
                true => {
                    let thread = std::thread::Builder::new().name(name.to_owned());
                    let thread = thread.spawn(|| run(test.run)).expect("a thread starts");
                    thread.join().unwrap_or_else(|payload| Err(message(&*payload).into()))
                }
                false => run(test.run),
            };
            let took = began.elapsed();
            if took >= LONG {
                let mut all = TOOK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                all.push((took, name));
            }
            result
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    for (reason, count) in REASONS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter() {
        println!("ignored, {count}: {reason}");
    }
    let mut took = std::mem::take(&mut *TOOK.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    took.sort();
    for (time, name) in took.iter().rev() {
        println!("took {} s: {name}", time.as_secs());
    }
    conclusion.exit_code()
}

fn run(test: fn()) -> Result<Completion, Failed> {
    LEFT_OUT.set(Some(Vec::new()));
    let ended = catch_unwind(AssertUnwindSafe(test));
    let mut left_out = LEFT_OUT.take().unwrap_or_default();
    if let Err(payload) = ended {
        match payload.downcast::<Skipped>() {
            Ok(skipped) if skipped.what.is_empty() => left_out.push(skipped.reason),
            Ok(skipped) => left_out.push(format!("{}: {}", skipped.what, skipped.reason)),
            Err(payload) => return Err(message(&*payload).into()),
        }
    }
    if left_out.is_empty() {
        return Ok(Completion::Completed);
    }
    left_out.sort();
    left_out.dedup();
    let reason = left_out.join("; ");
    *REASONS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .entry(reason.clone())
        .or_default() += 1;
    Ok(Completion::ignored_with(reason))
}

/// What a panic says.
pub fn message(payload: &(dyn Any + Send)) -> String {
    match payload.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => payload.downcast_ref::<&str>().unwrap_or(&"a panic").to_string(),
    }
}

/// Whether TRTALLOC_TEST_REQUIRE demands `what`: it is a list with commas that names it or has `all`. An item `-NAME` takes a
/// name out of `all`.
pub fn required(what: &str) -> bool {
    let list = std::env::var("TRTALLOC_TEST_REQUIRE").unwrap_or_default();
    let has = |name: &str| list.split(',').any(|item| item.trim() == name);
    has(what) || has("all") && !has(&format!("-{what}"))
}

/// Whether tests may fetch packages and use those that were fetched: with TRTALLOC_TEST_DOWNLOAD=1, and where a package is
/// required. Gigabytes of packages are not fetched unasked, and a plain run tests the same whether they are there or not.
pub fn may_download() -> Result<(), String> {
    let list = std::env::var("TRTALLOC_TEST_REQUIRE").unwrap_or_default();
    let mut items = list.split(',').map(str::trim);
    let asked = items.any(|item| !item.is_empty() && !item.starts_with('-') && item != "slow");
    match asked || std::env::var("TRTALLOC_TEST_DOWNLOAD").is_ok_and(|value| value == "1") {
        true => Ok(()),
        false => Err(format!("not downloaded; TRTALLOC_TEST_DOWNLOAD=1 {}", command())),
    }
}

/// What runs this binary's tests.
fn command() -> &'static str {
    concat!("cargo test --test ", env!("CARGO_CRATE_NAME"))
}

/// Ends the test, which cannot run: it is reported as ignored, or fails where `what` is required.
#[track_caller]
pub fn skip(what: &'static str, reason: &str) -> ! {
    left_out(what, reason);
    let reason = reason.to_owned();
    // No panic's message is printed.
    std::panic::resume_unwind(Box::new(Skipped { what, reason }))
}

/// Says that a part of the test cannot run. The rest of it does; where that passes, the test is reported as ignored.
#[track_caller]
pub fn skip_part(what: &'static str, reason: &str) {
    left_out(what, reason);
    LEFT_OUT.with_borrow_mut(|all| {
        all.iter_mut()
            .for_each(|all| all.push(format!("in part: {what}: {reason}")))
    });
}

/// Ends a test that is about something else than what is here, whatever is required.
#[track_caller]
pub fn unsupported(reason: &str) -> ! {
    on_a_tests_thread();
    let (what, reason) = ("", reason.to_owned());
    std::panic::resume_unwind(Box::new(Skipped { what, reason }))
}

/// Whether tests do all that they can, however long it takes: TRTALLOC_TEST_REQUIRE has `all` or `slow`.
pub fn in_full() -> bool {
    required("slow")
}

/// Ends a test that takes long, unless tests are done in full.
#[track_caller]
pub fn slow(reason: &str) {
    if !in_full() {
        skip("slow", &format!("{reason}; TRTALLOC_TEST_REQUIRE=slow {}", command()));
    }
}

#[track_caller]
fn left_out(what: &str, reason: &str) {
    assert!(!required(what), "{what} is required, but: {reason}");
    on_a_tests_thread();
}

/// On another thread it would be lost that something was left out.
#[track_caller]
fn on_a_tests_thread() {
    let here = LEFT_OUT.with_borrow(|all| all.is_some());
    assert!(
        here,
        "only the thread of a test with harness = false can leave something out"
    );
}
