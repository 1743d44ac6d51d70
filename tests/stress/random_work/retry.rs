//! What a refusal means: no trim makes a request possible that is refused although all work has completed.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use trtalloc::allocator::Request;
use trtalloc::error::Error;
use trtalloc::tags::Tag;

use super::world::{World, done};

impl World {
    /// Whether refusals are repeated: one thread does all the work, a limit is the reason of most of them, and nothing
    /// else returns memory meanwhile.
    pub fn retries_refusals(options: &str, threads: u64, failures: bool) -> bool {
        let limited = options.contains("limit=") && options.contains("MiB");
        let others = ["decay_ms=", "share_budget=", "retry_ms=", "headroom="];
        threads == 1 && !failures && limited && !others.iter().any(|option| options.contains(option))
    }

    /// Repeats a request that was refused, once all work has completed. Where it is refused again, it is refused after
    /// a trim, too.
    pub fn retry(&self, request: &Request, tag: Tag, error: &Error) {
        let capturing = self.capturing.load(Relaxed) > 0;
        // Without context events, a thread waits for the work, and may not have come to its end in time.
        let events = self.allocator.driver().features().context_events;
        if !self.retries || !events || capturing || !matches!(error, Error::OutOfMemory(_)) || !self.synchronize_all() {
            return;
        }
        // What the pool takes for a capture that runs counts as over two seconds later, which may be before the trim.
        let captures = self.allocator.driver().running_captures();
        if !captures.seen(-1, Duration::ZERO, |_| true).is_empty() {
            return;
        }
        let again = || match self.ask(|allocator| allocator.allocate_for(request, tag)) {
            Ok(address) => {
                let freed = self.ask(|allocator| allocator.deallocate(address, request.stream));
                freed.expect("the block is in use");
                true
            }
            Err(_) => false,
        };
        if again() {
            return;
        }
        let before: Vec<_> = self.allocator.stats_of_all().collect();
        self.ask(|allocator| allocator.trim(None, 0)).expect("a trim");
        self.counts.retried.fetch_add(1, Relaxed);
        assert!(
            !again(),
            "{request:?} was refused until a trim, with {}: {error}\n{before:#?}",
            self.options
        );
    }

    /// Waits for the work of every context that lives as long as the round, and of the current one. False where that is not
    /// possible.
    fn synchronize_all(&self) -> bool {
        let synchronized = self.app(|machine| {
            let waited = |context: usize| {
                machine.context_push(context).unwrap();
                let waited = done(machine.context_synchronize());
                machine.context_pop().unwrap();
                waited
            };
            let current = machine.context_current().unwrap_or_default();
            let mut contexts = self.contexts.iter().map(|context| context.handle);
            contexts.all(waited) && (current == 0 || done(machine.context_synchronize()))
        });
        self.machine.drain_user_objects();
        synchronized
    }
}
