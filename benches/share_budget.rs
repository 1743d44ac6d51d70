//! A lock and an unlock of `share_budget`, alone and beside locks of other processes, and a pair with the option and without.
//!
//!     cargo bench --bench share_budget

use std::sync::Arc;
use std::time::{Duration, Instant};

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::support::shared_budget::{ShareBudget, SharedBudget, UNIT};
use trtalloc::trace::application::Application;

const ROUNDS: usize = 21;

/// The median of some rounds, in nanoseconds for each of `times` calls.
fn median(times: u32, mut round: impl FnMut()) -> f64 {
    let mut all: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            (0..times).for_each(|_| round());
            begun.elapsed()
        })
        .collect();
    all.sort();
    all[all.len() / 2].as_nanos() as f64 / f64::from(times)
}

fn main() {
    let directory = std::env::temp_dir().join(format!("trtalloc-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the budget");
    let option = ShareBudget {
        directory: Some(directory.clone()),
        name: "bench".into(),
        bytes: 80 << 30,
    };
    let open = || SharedBudget::open(&option, [0; 16]).expect("a budget");
    println!("| | ns |\n|---|---|");
    for (others, pieces) in [(0, 0), (1, 1), (8, 1), (8, 16), (8, 128)] {
        let budgets: Vec<Arc<SharedBudget>> = (0..others).map(|_| open()).collect();
        let mut held = Vec::new();
        // The processes take turns, so that their locks do not adjoin.
        for _ in 0..pieces {
            for (at, budget) in budgets.iter().enumerate() {
                held.push((at, budget.lock(2 * UNIT).expect("a part of the budget")));
            }
        }
        let own = open();
        let pair = median(2000, || {
            let held = own.lock(8 * UNIT).expect("a part of the budget");
            own.unlock(held);
        });
        let locks = others * pieces;
        println!("| lock and unlock of 16 MiB, {others} other processes with {locks} locks | {pair:.0} |");
        let look = median(2000, || assert!(!own.others_wait()));
        println!("| look whether another process waits, {locks} locks | {look:.0} |");
        for (at, held) in held {
            budgets[at].unlock(held);
        }
    }
    for options in ["", &format!("share_budget={}/bench:20GiB", directory.display())] {
        let driver = SimDriver::new(SimConfig::default());
        let application = Application::new(driver.clone(), 0).expect("a context");
        let allocator = Allocator::with_driver(driver, Config::parse(options).expect("options")).expect("an allocator");
        let stream = application.create_stream().expect("a stream");
        let request = Request {
            size: 1 << 20,
            alignment: 0,
            flags: 0,
            stream: Some(stream),
            device: None,
        };
        let pair = median(200_000, || {
            let block = allocator.allocate(request).expect("a block");
            allocator.deallocate(block, Some(stream)).expect("its free");
        });
        let option = if options.is_empty() {
            "without the option"
        } else {
            "with it"
        };
        println!("| a pair on a stream, {option} | {pair:.1} |");
    }
    let _ = std::fs::remove_dir_all(&directory);
}
