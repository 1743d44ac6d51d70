//! What holds at each moment and at the end of a case.

use trtalloc::stats::Stats;

use super::{RETRIES, World};

impl World {
    /// Checks that the statistics match the calls, and that the allocator's parts are consistent.
    pub fn check_books(&self) {
        let books = self.books.lock().unwrap();
        let (mut counts, mut copied) = ([0; 4], 0);
        for device in 0..self.device.count() {
            let stats = self.interface.stats(device);
            let here = || books.live.values().filter(|live| live.device == device);
            let requested: u64 = here().map(|live| live.size).sum();
            let allocated: u64 = here().map(|live| self.rule.stride(live.size).unwrap()).sum();
            assert_eq!((stats.requested, stats.allocated), (requested, allocated), "{stats:?}");
            assert!(stats.allocated + stats.pending <= stats.reserved, "{stats:?}");
            assert_eq!(
                stats.allocated + stats.pending + stats.cached,
                stats.reserved,
                "{stats:?}"
            );
            assert!(stats.allocated_peak >= stats.allocated && stats.reserved_peak >= stats.reserved);
            copied += stats.bytes_copied;
            counts[0] += stats.allocations;
            counts[1] += stats.frees;
            counts[2] += stats.reallocations;
            counts[3] += stats.reallocations_in_place;
        }
        let expected = [
            books.allocations,
            books.frees,
            books.reallocations,
            books.reallocations_in_place,
        ];
        assert_eq!(copied, books.copied, "bytes copied");
        assert_eq!(counts, expected, "allocations, frees, reallocations, in place");
        self.interface.inside().validate().unwrap();
    }

    /// Ends a case: releases everything, and checks that nothing is left and nothing was wrong.
    pub fn finish(self) {
        self.check_books();
        if !self.entered() {
            self.enter(0);
        }
        let live: Vec<usize> = self.books.lock().unwrap().live.keys().copied().collect();
        live.into_iter().for_each(|address| self.put(address));
        self.check_books();
        for device in 0..self.device.count() {
            let stats = self.trimmed(device);
            assert_eq!((stats.allocated, stats.requested), (0, 0), "{stats:?}");
            if self.keeps_captures() {
                continue;
            }
            // Without context events, what was freed without a stream waits until its memory is needed.
            if !self.features().context_events && (self.external || !self.patient) {
                continue;
            }
            assert_eq!(stats.pending, 0, "{stats:?}");
            if !self.external {
                assert_eq!((stats.reserved, stats.cached), (0, 0), "{stats:?}");
            }
        }
        self.check_books();
        self.interface.close();
        assert_eq!(self.interface.allocate(64, 0, 0), 0, "closed");
        self.right();
        if let Some(machine) = self.device.machine().filter(|_| self.returns_all()) {
            for device in 0..self.device.count() {
                let (free, total) = machine.memory_info(device).unwrap();
                assert_eq!(free, total, "memory is left on device {device}");
            }
            assert_eq!(machine.checker().live_blocks(), 0);
        }
    }

    /// The statistics after everything that can be released was. A driver reports the end of a graph later, on a thread
    /// of its own, and no call waits for that. For a driver without context events, a thread of the library waits.
    fn trimmed(&self, device: i32) -> Stats {
        let context_events = self.features().context_events;
        let at_once = context_events && self.device.machine().is_some();
        for again in (0..RETRIES).rev() {
            let (status, _) = self.interface.trim(device, 0);
            assert_eq!(status, 0, "{}", self.interface.last_error());
            let stats = self.interface.stats(device);
            if again == 0 || stats.pending == 0 || self.keeps_captures() || at_once {
                return stats;
            }
            if !context_events && (self.external || !self.patient) {
                return stats;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        unreachable!("the last round returns")
    }

    /// Checks that nothing was allocated, and no memory taken away, against the rules.
    pub fn right(&self) {
        if let Some(machine) = self.device.machine() {
            assert_eq!(machine.checker().violations(), Vec::<String>::new());
            assert_eq!(machine.faults(), Vec::<String>::new());
        }
    }
}
