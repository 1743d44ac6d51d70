//! Two simple pools: one mutex, and maps of the standard library. They ignore streams.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pools::Pool;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The minimum that a pool can do: one lock, a list for each size, and a map from address to size. Freed memory is
/// reused only for the same size.
#[derive(Default)]
pub struct Exact(Mutex<ExactInner>);

#[derive(Default)]
struct ExactInner {
    ready: HashMap<u64, Vec<usize>>,
    live: HashMap<usize, u64>,
    end: usize,
}

impl Pool for Exact {
    fn allocate(&self, size: u64, _stream: usize) -> usize {
        let mut pool = locked(&self.0);
        let ready = pool.ready.get_mut(&size).and_then(Vec::pop);
        let block = ready.unwrap_or_else(|| {
            // Address 0 is no block.
            let block = pool.end.max(1 << 32);
            pool.end = block + size as usize;
            block
        });
        pool.live.insert(block, size);
        block
    }

    fn deallocate(&self, block: usize, _size: u64, _stream: usize) -> bool {
        let mut pool = locked(&self.0);
        let Some(size) = pool.live.remove(&block) else {
            return false;
        };
        pool.ready.entry(size).or_default().push(block);
        true
    }
}

/// One lock, free ranges by address and by size, best fit, with coalescing.
pub struct BestFit(Mutex<BestFitInner>);

struct BestFitInner {
    by_address: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
    live: HashMap<usize, usize>,
}

impl BestFit {
    /// A pool of that many bytes.
    pub fn new(bytes: u64) -> BestFit {
        let mut inner = BestFitInner {
            by_address: BTreeMap::new(),
            by_size: BTreeSet::new(),
            live: HashMap::new(),
        };
        inner.put(1 << 32, bytes as usize);
        BestFit(Mutex::new(inner))
    }
}

impl BestFitInner {
    fn put(&mut self, address: usize, size: usize) {
        self.by_address.insert(address, size);
        self.by_size.insert((size, address));
    }

    fn take(&mut self, address: usize, size: usize) {
        self.by_address.remove(&address);
        self.by_size.remove(&(size, address));
    }
}

impl Pool for BestFit {
    fn allocate(&self, size: u64, _stream: usize) -> usize {
        let size = size.next_multiple_of(512) as usize;
        let mut pool = locked(&self.0);
        let Some(&(found, address)) = pool.by_size.range((size, 0)..).next() else {
            return 0;
        };
        pool.take(address, found);
        if found > size {
            pool.put(address + size, found - size);
        }
        pool.live.insert(address, size);
        address
    }

    fn deallocate(&self, block: usize, _size: u64, _stream: usize) -> bool {
        let mut pool = locked(&self.0);
        let Some(mut size) = pool.live.remove(&block) else {
            return false;
        };
        let mut start = block;
        if let Some(&next) = pool.by_address.get(&(block + size)) {
            pool.take(block + size, next);
            size += next;
        }
        let before = pool.by_address.range(..block).next_back();
        if let Some((&address, &bytes)) = before.filter(|(address, bytes)| *address + *bytes == block) {
            pool.take(address, bytes);
            start = address;
            size += bytes;
        }
        pool.put(start, size);
        true
    }
}
