//! Budgets with open files of their own in one process: for the kernel they are different processes.

use std::os::fd::FromRawFd;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::sync::breaking;

const DEVICE: [u8; 16] = [7; 16];

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("trtalloc-budget-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn budget(&self, units: u64) -> Arc<SharedBudget> {
        SharedBudget::open(&self.option(units), DEVICE).unwrap()
    }

    fn option(&self, units: u64) -> ShareBudget {
        ShareBudget {
            directory: Some(self.0.clone()),
            name: "jobs".into(),
            // What is left of a unit is not used.
            bytes: units * UNIT + UNIT - 1,
        }
    }

    fn file(&self) -> PathBuf {
        self.0.join("jobs.07070707-0707-0707-0707-070707070707.budget")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn two_hold_at_most_the_budget() {
    let directory = Directory::new("two");
    let (one, other) = (directory.budget(10), directory.budget(10));
    let first = one.lock(5 * UNIT + 1).unwrap();
    assert_eq!((one.held(), other.held()), (6 * UNIT, 0));
    assert_eq!((one.free(), other.free()), (Ok(4 * UNIT), Ok(4 * UNIT)));
    assert_eq!(other.lock(5 * UNIT), Err(Refusal::Short));
    let second = other.lock(4 * UNIT).unwrap();
    assert_eq!(one.lock(1), Err(Refusal::Short));
    one.unlock(first);
    // What is free lies on both sides of what the other holds.
    let third = other.lock(6 * UNIT).unwrap();
    assert_eq!(one.lock(1), Err(Refusal::Short));
    other.unlock(second);
    other.unlock(third);
    assert_eq!((one.free(), other.held()), (Ok(10 * UNIT), 0));
    assert_eq!(one.lock(11 * UNIT), Err(Refusal::Short));
    assert_eq!(std::fs::metadata(directory.file()).unwrap().len(), 0);
}

#[test]
fn names_and_devices_have_budgets_of_their_own() {
    let directory = Directory::new("names");
    let one = directory.budget(1);
    let named = ShareBudget {
        name: "other".into(),
        ..directory.option(1)
    };
    let other = SharedBudget::open(&named, DEVICE).unwrap();
    let device = SharedBudget::open(&directory.option(1), [8; 16]).unwrap();
    for budget in [&one, &other, &device] {
        let _ = budget.lock(UNIT).unwrap();
        assert_eq!(budget.lock(1), Err(Refusal::Short));
    }
}

#[test]
fn who_is_short_is_seen_by_others_alone() {
    let directory = Directory::new("short");
    let (one, other) = (directory.budget(1), directory.budget(1));
    let seen = || (one.others_wait(), other.others_wait());
    assert_eq!(seen(), (false, false));
    let (first, second) = (one.wait(), one.wait());
    assert_eq!(seen(), (false, true));
    let third = other.wait();
    assert_eq!(seen(), (true, true));
    drop(first);
    drop(third);
    assert_eq!(seen(), (false, true));
    drop(second);
    assert_eq!(seen(), (false, false));
}

#[test]
fn descriptor_that_was_lost_is_opened_and_locked_again() {
    let directory = Directory::new("lost");
    let (one, other) = (directory.budget(4), directory.budget(4));
    let held = one.lock(3 * UNIT).unwrap();
    // The number may be another file's by now, which is left alone.
    let descriptor = {
        let state = one.state.lock();
        let file = state.file.as_ref().unwrap();
        file.lose();
        file.descriptor()
    };
    let stranger = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: both are open files of this test, or the number is free.
    let stranger = unsafe {
        use std::os::fd::AsRawFd;
        libc::dup2(stranger.as_raw_fd(), descriptor);
        std::fs::File::from_raw_fd(descriptor)
    };
    assert_eq!(one.free(), Ok(UNIT));
    assert_eq!(other.lock(2 * UNIT), Err(Refusal::Short));
    assert!(stranger.metadata().is_ok());
    // What another has taken meanwhile is missing, and nothing is obtained until it is back.
    one.state.lock().file.as_ref().unwrap().lose();
    let taken = other.lock(2 * UNIT).unwrap();
    let Err(Refusal::Broken(reason)) = one.lock(1) else {
        panic!("a budget without its locks gave memory");
    };
    assert!(reason.contains("others have taken"), "{reason}");
    other.unlock(taken);
    let more = one.lock(UNIT).unwrap();
    assert_eq!(other.free(), Ok(0));
    one.unlock(held);
    one.unlock(more);
    assert_eq!(other.free(), Ok(4 * UNIT));
}

#[test]
fn descriptor_of_another_budget_is_not_taken_for_the_lost_one() {
    let directory = Directory::new("number");
    let one = directory.budget(4);
    let _held = one.lock(UNIT).unwrap();
    one.state.lock().file.as_ref().unwrap().lose();
    // It most likely gets the same number, of the same file.
    let other = directory.budget(4);
    let _all = other.lock(4 * UNIT).unwrap();
    assert!(matches!(one.lock(UNIT), Err(Refusal::Broken(_))));
    drop(one);
    assert!(other.state.lock().file.as_ref().unwrap().is_there());
}

/// What could not be locked again, because the kernel had no locks left, is locked once it has some.
#[test]
fn locks_that_the_kernel_refuses_are_taken_later() {
    let directory = Directory::new("refused-locks");
    let (one, other) = (directory.budget(6), directory.budget(6));
    let held = [3, 1, 1].map(|units| one.lock(units * UNIT).unwrap());
    let refused = |outcome| matches!(outcome, Err(Refusal::Broken(reason)) if reason.contains("No locks available"));
    breaking("the kernel has locks left", || {
        assert!(refused(one.lock(UNIT)));
        one.state.lock().file.as_ref().unwrap().lose();
        assert!(refused(one.lock(UNIT)));
    });
    assert_eq!((one.free(), other.free()), (Ok(UNIT), Ok(UNIT)));
    held.into_iter().for_each(|held| one.unlock(held));
    assert_eq!(other.free(), Ok(6 * UNIT));
}

#[test]
fn what_was_freed_while_its_lock_was_missing_is_gone() {
    let directory = Directory::new("missing");
    let (one, other) = (directory.budget(4), directory.budget(4));
    let held = one.lock(3 * UNIT).unwrap();
    one.state.lock().file.as_ref().unwrap().lose();
    let taken = other.lock(4 * UNIT).unwrap();
    assert!(matches!(one.lock(UNIT), Err(Refusal::Broken(_))));
    one.unlock(held);
    assert_eq!(one.lock(UNIT), Err(Refusal::Short));
    other.unlock(taken);
    assert!(one.lock(4 * UNIT).is_ok());
}

#[test]
fn file_that_was_removed_is_made_and_locked_again() {
    let directory = Directory::new("removed");
    let (one, other) = (directory.budget(4), directory.budget(4));
    let _held = one.lock(3 * UNIT).unwrap();
    std::fs::remove_file(directory.file()).unwrap();
    assert_eq!(one.free(), Ok(UNIT));
    assert_eq!(other.lock(2 * UNIT), Err(Refusal::Short));
    std::fs::remove_dir_all(&directory.0).unwrap();
    let Err(Refusal::Broken(reason)) = one.lock(UNIT) else {
        panic!("a budget without a directory gave memory");
    };
    assert!(reason.contains(directory.0.to_str().unwrap()), "{reason}");
}

#[test]
fn file_that_cannot_be_found_for_a_moment_keeps_its_locks() {
    let directory = Directory::new("moment");
    let (one, other) = (directory.budget(4), directory.budget(4));
    let (first, _second) = (one.lock(UNIT).unwrap(), one.lock(2 * UNIT).unwrap());
    let away = directory.0.with_extension("away");
    std::fs::rename(&directory.0, &away).unwrap();
    assert!(matches!(one.lock(UNIT), Err(Refusal::Broken(_))));
    one.unlock(first);
    std::fs::rename(&away, &directory.0).unwrap();
    assert_eq!((one.free(), other.free()), (Ok(2 * UNIT), Ok(2 * UNIT)));
}

#[test]
fn what_is_no_directory_or_no_own_file_is_refused() {
    let directory = Directory::new("refused");
    let reason = |path: &Path| {
        let option = ShareBudget {
            directory: Some(path.to_owned()),
            ..directory.option(1)
        };
        SharedBudget::open(&option, DEVICE).unwrap_err()
    };
    assert!(reason(&directory.0.join("none")).contains("No such file"));
    std::os::unix::fs::symlink("/dev/null", directory.file()).unwrap();
    assert!(reason(&directory.0).contains("symbolic links"));
    std::fs::remove_file(directory.file()).unwrap();
    std::fs::create_dir(directory.file()).unwrap();
    assert!(reason(&directory.0).contains("directory"));
}

#[test]
fn closed_budget_keeps_no_descriptor_and_opens_again() {
    let directory = Directory::new("closed");
    let one = directory.budget(2);
    let held = one.lock(UNIT).unwrap();
    one.close();
    assert!(one.state.lock().file.is_some(), "it holds memory");
    one.unlock(held);
    one.close();
    assert!(one.state.lock().file.is_none());
    assert!(one.lock(2 * UNIT).is_ok());
}

#[test]
fn dropped_budget_keeps_what_it_holds() {
    let directory = Directory::new("dropped");
    let (one, other) = (directory.budget(4), directory.budget(4));
    let _ = one.lock(3 * UNIT).unwrap();
    drop(one);
    assert_eq!(other.free(), Ok(UNIT), "the driver has not taken the memory back");
}

/// A request looks through what is locked. What grew unit by unit is one range, so that the next unit costs no more than the
/// first.
#[test]
fn what_grew_by_units_is_one_range() {
    let directory = Directory::new("units");
    let budget = directory.budget(100);
    let ranges = || budget.state.lock().locked.count();
    let mut held: Vec<Held> = (0..100).map(|_| budget.lock(UNIT).unwrap()).collect();
    assert_eq!(ranges(), 1);
    let middle = held.remove(50);
    budget.unlock(middle);
    assert_eq!((ranges(), budget.held()), (2, 99 * UNIT));
    held.push(budget.lock(UNIT).unwrap());
    assert_eq!((ranges(), budget.held()), (1, 100 * UNIT));
    held.into_iter().for_each(|held| budget.unlock(held));
    assert_eq!((ranges(), budget.free()), (0, Ok(100 * UNIT)));
}

/// A byte that the kernel did not unlock is not taken again before it is unlocked: the unlocking would be of the new lock.
#[test]
fn byte_that_stayed_locked_is_not_taken_again() {
    let directory = Directory::new("stays");
    let (one, other) = (directory.budget(3), directory.budget(3));
    let [_first, middle, _last] = [(); 3].map(|()| one.lock(UNIT).unwrap());
    breaking("the kernel unlocks a part", || {
        one.unlock(middle);
        assert_eq!(one.lock(UNIT), Err(Refusal::Short));
    });
    let _again = one.lock(UNIT).unwrap();
    one.refresh();
    assert_eq!(other.lock(UNIT), Err(Refusal::Short), "the first three units are held");
    assert_eq!(one.held(), 3 * UNIT);
}

#[derive(Debug, Clone)]
enum Step {
    Lock { who: usize, units: u64 },
    Unlock { who: usize, which: usize },
    Lose { who: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3usize, 0..9u64).prop_map(|(who, units)| Step::Lock { who, units }),
        4 => (0..3usize, 0..9usize).prop_map(|(who, which)| Step::Unlock { who, which }),
        1 => (0..3usize).prop_map(|who| Step::Lose { who }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every byte has one holder, everything lies below its holder's own budget, and a lock is refused only where too few
    /// bytes are free.
    #[test]
    fn locks_are_what_a_model_says(steps in proptest::collection::vec(step(), 1..80)) {
        let directory = Directory::new("model");
        let ends = [16, 16, 24];
        let budgets = ends.map(|end| directory.budget(end));
        let mut held: [Vec<Held>; 3] = Default::default();
        for step in steps {
            match step {
                Step::Lock { who, units } => {
                    let others: Vec<(u64, u64)> = budgets.iter().flat_map(|budget| {
                        let state = budget.state.lock();
                        state.held.values().flatten().copied().collect::<Vec<_>>()
                    }).collect();
                    let taken = |unit: u64| others.iter().any(|(start, length)| (*start..start + length).contains(&unit));
                    let free = (0..ends[who]).filter(|unit| !taken(*unit)).count() as u64;
                    prop_assert_eq!(budgets[who].free(), Ok(free * UNIT));
                    match budgets[who].lock(units * UNIT) {
                        Ok(lock) => {
                            prop_assert!(units <= free);
                            held[who].push(lock);
                        }
                        Err(refusal) => {
                            prop_assert_eq!(refusal, Refusal::Short);
                            prop_assert!(units > free);
                        }
                    }
                }
                Step::Unlock { who, which } if !held[who].is_empty() => {
                    let at = which % held[who].len();
                    budgets[who].unlock(held[who].swap_remove(at));
                }
                Step::Unlock { .. } => {}
                // Nothing comes between the loss and the next look.
                Step::Lose { who } => {
                    budgets[who].state.lock().file.as_ref().unwrap().lose();
                    prop_assert!(budgets[who].free().is_ok());
                }
            }
            let mut all: Vec<(u64, u64, u64)> = Vec::new();
            for (budget, end) in budgets.iter().zip(ends) {
                let state = budget.state.lock();
                all.extend(state.held.values().flatten().map(|(start, length)| (*start, *length, end)));
                prop_assert_eq!(state.locked.total() * UNIT, state.held.values().flatten().map(|(_, length)| length).sum::<u64>() * UNIT);
            }
            all.sort_unstable();
            prop_assert!(all.iter().all(|(start, length, end)| start + length <= *end));
            prop_assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{:?}", all);
        }
    }
}
