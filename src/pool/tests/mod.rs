//! The pool under the order checker of the simulated device. The checker notices each broken rule. No failing driver
//! call loses memory. Memory whose stream or context is gone is reclaimed.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use crate::allocator::{Allocator, RESIZABLE, Request};
use crate::driver::sim::model::Machine;
use crate::driver::sim::{SimConfig, SimDriver};
use crate::support::config::Config;
use crate::support::error::Result;

mod application;
mod arena_misses;
mod block_numbers;
mod broken_rules;
mod captures;
mod closing;
mod contexts;
mod deaths;
mod decay;
mod destroyed_contexts;
mod ends;
mod faults;
mod frees;
mod granularity;

mod greens;
mod grown_bytes;
mod growths;
mod headroom;
mod large;
mod lifetimes;
mod many_streams;
mod outside;
mod owners;
mod pauses;
mod peers;
mod per_free_events;
mod polls;
mod reach;
mod refusals;
mod remainders;
mod reserve;
mod resizable_memory;
mod resizable_small;
mod resizing;
mod retries;
mod returns;
mod rises;
mod segments;
mod sharing;
mod silence;
mod slices;
mod steady;
mod synchronizing;
mod unlocked;
mod vacated;

const MIB: u64 = 1 << 20;

/// An allocator on a simulated machine of its own, with its application. Each use is reported to the order checker.
struct Bench {
    machine: Arc<Machine>,
    allocator: Arc<Allocator>,
}

impl Bench {
    /// The same requests always make the same calls.
    const REPEATS: bool = true;
    /// Options under which calls are made to fail, besides those of every driver.
    const MORE: &[&str] = &[];

    fn new(options: &str) -> Bench {
        Bench::on(SimConfig::default(), options)
    }

    /// A device of 1 GiB.
    fn on(config: SimConfig, options: &str) -> Bench {
        let memory = 1 << 30;
        Bench::over(SimConfig { memory, ..config }, options)
    }

    /// A device of so many bytes.
    fn of(memory: u64, options: &str) -> Bench {
        let config = SimConfig::default();
        Bench::over(SimConfig { memory, ..config }, options)
    }

    /// This thread enters device 0's primary context.
    fn over(config: SimConfig, options: &str) -> Bench {
        let driver = SimDriver::new(config);
        let machine = driver.machine().clone();
        let context = machine.primary_retain(0).unwrap();
        machine.context_push(context).unwrap();
        Bench {
            allocator: Allocator::with_driver(driver, Config::parse(&format!("decay_ms=0,{options}")).unwrap())
                .unwrap(),
            machine,
        }
    }

    /// Allocates `count` blocks for a stream, uses each, and frees them all.
    fn use_and_free(&self, stream: usize, count: u64, size: u64) -> Vec<u64> {
        let blocks: Vec<u64> = (0..count).map(|_| self.get(size, Some(stream))).collect();
        for block in &blocks {
            self.launch(stream, *block, size);
        }
        blocks.iter().for_each(|block| self.put(*block, Some(stream)));
        blocks
    }

    /// A request without a stream for another thread to make, in the context that is current here, and its outcome.
    fn request_of_another_thread(
        &self,
        size: u64,
        flags: u32,
    ) -> (impl FnOnce() + Send + use<>, Receiver<Result<u64>>) {
        let context = self.app(|machine| machine.context_current()).unwrap();
        let (allocator, machine) = (self.allocator.clone(), self.machine.clone());
        let (sender, receiver) = std::sync::mpsc::channel();
        let ask = move || {
            machine.context_push(context).unwrap();
            let request = Request {
                size,
                alignment: 0,
                flags,
                stream: None,
                device: None,
            };
            let outcome = allocator.allocate(request);
            machine.context_pop().unwrap();
            sender.send(outcome).unwrap();
        };
        (ask, receiver)
    }

    fn finish(self) {
        self.finish_of("");
    }
}
