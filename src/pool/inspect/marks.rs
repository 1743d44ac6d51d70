//! The recorded mark of each block's allocation.

use crate::history::Mark;
use crate::pool::free_space::NodeId;
use crate::pool::stream_cache::block::Blocks;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{HashMap, Mutex, OnceBox, boxed};

const CHUNK: usize = 1024;

type Chunk = OnceBox<[AtomicU64; CHUNK]>;

/// The recorded mark of each block's allocation: by number for blocks of the pool's range, by address for dedicated
/// allocations. It takes memory only once something is recorded.
#[derive(Default)]
pub(in crate::pool) struct Marks {
    chunks: OnceBox<Vec<Chunk>>,
    pub(in crate::pool) dedicated: Mutex<HashMap<u64, Mark>>,
}

impl Marks {
    pub(in crate::pool) fn set(&self, id: NodeId, mark: Mark) {
        let chunks = self.chunks.get_or_init(|| {
            let count = Blocks::MAX as usize / CHUNK + 1;
            Box::new((0..count).map(|_| OnceBox::new()).collect())
        });
        let chunk = chunks[id as usize / CHUNK].get_or_init(|| boxed(|| AtomicU64::new(0)));
        chunk[id as usize % CHUNK].store(mark.0, Ordering::Relaxed);
    }

    /// Clears the mark of block `id`, which is being freed, so that the next block with its number does not get it.
    pub(in crate::pool) fn clear(&self, id: NodeId) {
        if let Some(mark) = self.place(id) {
            mark.store(0, Ordering::Relaxed);
        }
    }

    /// Forgets the dedicated allocation at `address`.
    pub(in crate::pool) fn forget(&self, address: u64) {
        self.dedicated.lock().remove(&address);
    }

    pub(in crate::pool) fn get(&self, id: NodeId) -> Mark {
        Mark(self.place(id).map_or(0, |mark| mark.load(Ordering::Relaxed)))
    }

    fn place(&self, id: NodeId) -> Option<&AtomicU64> {
        let chunk = self.chunks.get()?.get(id as usize / CHUNK)?.get()?;
        Some(&chunk[id as usize % CHUNK])
    }
}
