//! The output at the end of the process. It also works where the application destroys no allocator, and where a signal
//! handler calls `exit`.

use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::support::log;
use crate::support::sort;

static WITH_OUTPUT: Mutex<Vec<Weak<Allocator>>> = Mutex::new(Vec::new());

/// Registers an allocator that writes statistics or a snapshot at exit.
pub(super) fn register(allocator: &Arc<Allocator>) {
    let config = &allocator.config;
    if config.stats || config.snapshot_path("snapshot_at_exit").is_some() {
        allocator.write_at_exit.store(true, Ordering::Relaxed);
        let mut all = WITH_OUTPUT.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(allocator));
        process::at_last(at_last);
    }
}

fn at_last() {
    // The thread that the signal interrupted may hold the lock.
    let Some(all) = WITH_OUTPUT.try_lock() else { return };
    for allocator in all.iter().filter_map(Weak::upgrade) {
        allocator.write_at_exit();
        // If this is the last reference, the allocator is not dropped: its memory ends with the process.
        std::mem::forget(allocator);
    }
}

impl Allocator {
    /// Writes the summary and the snapshot that the options request, once: at the end of the process, or where the application
    /// destroys the allocator.
    pub(crate) fn write_at_exit(&self) {
        if !self.write_at_exit.swap(false, Ordering::Relaxed) || process::forked() {
            return;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if let Some(path) = self.config.snapshot_path("snapshot_at_exit")
            && let Err(error) = self.write_snapshot(&numbered(path, COUNT.fetch_add(1, Ordering::Relaxed)))
        {
            log::line(&format!("trtalloc: warn: snapshot_at_exit: {error}"));
        }
        if self.config.stats {
            for pool in self.all_pools() {
                summary(pool).iter().for_each(|line| log::line(line));
            }
        }
    }
}

/// Returns the path unchanged for the first allocator, which has number 0, and with its number before the suffix for each
/// later one.
pub(super) fn numbered(path: std::path::PathBuf, number: u32) -> std::path::PathBuf {
    let Some(suffix) = path.extension().filter(|_| number > 0) else {
        return path;
    };
    let suffix = format!("{number}.{}", suffix.to_string_lossy());
    path.with_extension(suffix)
}

/// A line for the device, and one for each tag that was used, the largest first.
fn summary(pool: &Pool) -> Vec<String> {
    let Some(held) = pool.inspect(std::time::Duration::from_secs(1)) else {
        return vec![format!("trtalloc: device {}: in use, no statistics", pool.device)];
    };
    drop(held);
    let stats = pool.stats();
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let device = format!(
        "trtalloc: device {}: {} allocations, {} frees, {} reallocations ({} in place), {} refused; allocated {:.1} MiB, at \
         most {:.1}; reserved {:.1} MiB, at most {:.1}; {} driver calls, {} queries, {} remaps",
        pool.device,
        stats.allocations,
        stats.frees,
        stats.reallocations,
        stats.reallocations_in_place,
        stats.out_of_memory,
        mib(stats.allocated),
        mib(stats.allocated_peak),
        mib(stats.reserved),
        mib(stats.reserved_peak),
        stats.driver_calls,
        stats.driver_queries,
        stats.remaps,
    );
    let mut tags = pool.tag_stats();
    sort::by_key(&mut tags, |of| (!of.allocated, !of.allocated_peak));
    let of_tags = tags.iter().map(|of| {
        format!(
            "trtalloc: device {}: `{}`: allocated {:.1} MiB, at most {:.1}; {} allocations, {} frees, {} refused",
            pool.device,
            tags::printable(of.tag),
            mib(of.allocated),
            mib(of.allocated_peak),
            of.allocations,
            of.frees,
            of.out_of_memory,
        )
    });
    [device].into_iter().chain(of_tags).collect()
}
