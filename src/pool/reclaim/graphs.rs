//! The memory of stream captures, which belongs to the graph.
//!
//! Memory allocated on a capturing stream is reused inside that capture on the same stream. It is reused elsewhere only
//! once the graph and every executable made of it are gone *and* the block's owner has freed it. The driver calls a
//! user object's destructor when a graph is gone. The destructor may make no driver call and runs on a thread shared
//! with others, so it only sets a flag and increments a counter.
//!
//! A capture may build the body of a conditional node. Its graph is a child of the node's graph then, and CUDA's
//! Programming Guide has executables retain what child graphs own.

use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::Arc;

use crate::driver::{CaptureInfo, Context, Result, RunningCapture};
use crate::pool::free_space::{FreeSpace, NodeId, Owner};
use crate::pool::reclaim::Reclaimer;
use crate::pool::reclaim::sets::{Asker, Freed, Held, SetId, Sets, Wait};
use crate::pool::stream_cache::{Key, StreamCaches};
use crate::pool::{Memory, Pool};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{HashMap, Mutex};

/// What a graph's destructor reports.
struct Notice {
    gone: AtomicBool,
    /// How many graphs are gone, of all captures.
    count: Arc<AtomicU64>,
}

/// One capture and the graph that was made from it.
struct Capture {
    id: u64,
    /// As every allocator of the process sees it.
    running: Arc<RunningCapture>,
    notice: Arc<Notice>,
    /// The keys of `spaces`.
    keys: Arc<Mutex<Vec<Key>>>,
    /// What each of its streams freed inside the capture: the owner of that space, and the set that it is.
    spaces: HashMap<Key, (Owner, SetId)>,
    /// Blocks in use.
    live: HashSet<NodeId>,
    /// What the application freed outside the capture.
    kept: Option<SetId>,
}

/// What a graph that is gone leaves.
struct Remains {
    /// The capture's number.
    number: u32,
    /// The sets that waited for it.
    sets: Vec<SetId>,
    /// Blocks that are ordinary blocks from now on.
    live: HashSet<NodeId>,
}

/// Every capture of one pool whose graph may still exist.
#[derive(Default)]
pub struct Captures {
    captures: HashMap<u32, Capture>,
    /// The last number that a capture got.
    pub(in crate::pool) numbers: u32,
    count: Arc<AtomicU64>,
    seen: u64,
}

unsafe extern "C" fn graph_gone(data: *mut c_void) {
    // SAFETY: `data` came from `Arc::into_raw` in `Captures::number`, and the driver calls this once.
    let notice = unsafe { Arc::from_raw(data.cast::<Notice>()) };
    notice.gone.store(true, Ordering::Release);
    notice.count.fetch_add(1, Ordering::Release);
}

/// Whether a capture has ended, as far as its pool knows: its graph is gone, or each of its streams has made a request
/// outside of it.
fn ended(
    number: u32,
    pool: &Pool,
    notice: &Arc<Notice>,
    keys: &Arc<Mutex<Vec<Key>>>,
) -> impl Fn() -> bool + Send + Sync + 'static {
    let (caches, notice, keys) = (Arc::downgrade(&pool.caches), notice.clone(), keys.clone());
    move || {
        let keys = keys.lock().clone();
        let outside = |caches: Arc<StreamCaches>| {
            let inside = |key: &Key| {
                caches
                    .lock_known(*key)
                    .is_some_and(|(_, inner)| inner.capture == number)
            };
            !keys.is_empty() && !keys.iter().any(inside)
        };
        notice.gone.load(Ordering::Acquire) || caches.upgrade().is_some_and(outside)
    }
}

impl Captures {
    /// The number of a running capture, for a request inside it on a stream of `context`. The first call binds a notice to
    /// its graph. Where the driver has no user objects (before CUDA 11.3), such memory is kept until the process ends.
    pub fn number(&mut self, pool: &Pool, context: Context, info: CaptureInfo) -> Result<u32> {
        let calls = &pool.calls;
        if let Some((number, capture)) = self.captures.iter_mut().find(|(_, capture)| capture.id == info.id) {
            pool.driver().running_captures().request_inside(&capture.running);
            return Ok(*number);
        }
        let notice = Arc::new(Notice {
            gone: AtomicBool::new(false),
            count: self.count.clone(),
        });
        if calls.driver().features().user_objects {
            let data = Arc::into_raw(notice.clone()).cast_mut().cast::<c_void>();
            // SAFETY: the destructor uses only `data`, which it owns and which is safe to use from any thread.
            let bound = calls.submit(|driver| unsafe { driver.retain_user_object(info.graph, graph_gone, data) });
            if let Err(error) = bound {
                // SAFETY: the driver refused the object, so this is the only owner of `data`.
                drop(unsafe { Arc::from_raw(data.cast::<Notice>()) });
                return Err(error);
            }
        }
        let number = self.next_number();
        let keys = Arc::new(Mutex::new(Vec::new()));
        let running = RunningCapture::new(pool.device, context, ended(number, pool, &notice, &keys));
        pool.driver().running_captures().request_inside(&running);
        self.captures.insert(
            number,
            Capture {
                id: info.id,
                running,
                notice,
                keys,
                spaces: HashMap::default(),
                live: HashSet::new(),
                kept: None,
            },
        );
        Ok(number)
    }

    /// A number that no graph has. Numbers come again after 2^32 captures, and 0 means none.
    fn next_number(&mut self) -> u32 {
        loop {
            self.numbers = self.numbers.wrapping_add(1);
            if self.numbers != 0 && !self.captures.contains_key(&self.numbers) {
                return self.numbers;
            }
        }
    }

    /// The number of the capture with the driver's id `id`.
    pub fn number_of(&self, id: u64) -> Option<u32> {
        let found = self.captures.iter().find(|(_, capture)| capture.id == id)?;
        Some(*found.0)
    }

    /// The owner of the free space that the stream of `key` and `id` uses inside capture `number`.
    pub fn owner(
        &mut self,
        (sets, free_space): (&mut Sets, &mut FreeSpace),
        number: u32,
        key: Key,
        id: u64,
    ) -> Option<Owner> {
        let capture = self.captures.get_mut(&number)?;
        let space = capture.spaces.entry(key).or_insert_with(|| {
            let owner = free_space.add_owner();
            (
                owner,
                sets.insert_space(Asker::Capture(key, id), Wait::Graph(number), owner),
            )
        });
        Some(space.0)
    }

    /// Notes that the cache of `key` knows that its stream captures in `number`.
    pub fn note_stream(&mut self, number: u32, key: Key) {
        if let Some(capture) = self.captures.get_mut(&number) {
            let mut keys = capture.keys.lock();
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }

    /// Notes that a block was allocated inside capture `number`.
    pub fn allocated(&mut self, number: u32, id: NodeId) {
        if let Some(capture) = self.captures.get_mut(&number) {
            capture.live.insert(id);
        }
    }

    /// Whether capture `number` has memory, or its graph.
    pub fn has(&self, number: u32) -> bool {
        number != 0 && self.captures.contains_key(&number)
    }

    /// The owner of what is freed on the stream of `key` inside capture `number`, if that stream has joined it.
    pub fn owner_of(&self, number: u32, key: Key) -> Option<Owner> {
        let (owner, _) = self.captures.get(&number)?.spaces.get(&key)?;
        Some(*owner)
    }

    /// Notes that a block of capture `number` was freed inside it.
    pub fn freed_inside(&mut self, number: u32, id: NodeId) {
        if let Some(capture) = self.captures.get_mut(&number) {
            capture.live.remove(&id);
        }
    }

    /// Keeps what capture `number` allocated and was freed elsewhere until the graph is gone.
    pub fn keep(&mut self, sets: &mut Sets, number: u32, freed: Freed, free_space: &FreeSpace) {
        let Some(capture) = self.captures.get_mut(&number) else {
            return;
        };
        if let Freed::Block { id, .. } = &freed {
            capture.live.remove(id);
        }
        match capture.kept {
            Some(kept) => sets.push(kept, freed, free_space),
            None => capture.kept = Some(sets.insert(Asker::NoOne, Wait::Graph(number), freed, free_space)),
        }
    }

    /// Whether graphs have gone since the last call of [`Captures::take_gone`].
    #[inline]
    fn has_gone(&self) -> bool {
        self.count.load(Ordering::Acquire) != self.seen
    }

    /// What the graphs that have gone since the last call leave.
    fn take_gone(&mut self) -> Vec<Remains> {
        self.seen = self.count.load(Ordering::Acquire);
        self.captures
            .extract_if(|_, capture| capture.notice.gone.load(Ordering::Acquire))
            .map(|(number, capture)| {
                let spaces = capture.spaces.into_values().map(|(_, set)| set);
                Remains {
                    number,
                    sets: spaces.chain(capture.kept).collect(),
                    live: capture.live,
                }
            })
            .collect()
    }

    /// The free space of every capture's streams.
    fn spaces(&self) -> impl Iterator<Item = Owner> {
        let spaces = self.captures.values().flat_map(|capture| capture.spaces.values());
        spaces.map(|(owner, _)| *owner)
    }

    /// Whether `owner` is a capture's stream.
    pub fn owns(&self, owner: Owner) -> bool {
        self.spaces().any(|of| of == owner)
    }

    /// Bytes that were freed inside captures, and wait for their graphs.
    pub fn free_bytes(&self, free_space: &FreeSpace) -> u64 {
        self.spaces().map(|owner| free_space.free_bytes(owner)).sum()
    }

    /// Whether no graph holds memory.
    pub fn is_empty(&self) -> bool {
        self.captures.is_empty()
    }
}

impl Reclaimer {
    /// Reclaims what graphs that are gone leave. Memory freed on a stream of the capture counts as freed on that stream
    /// just now, because the free may have come after the capture, behind work that still runs. The rest stays pending
    /// like anything freed without a stream.
    #[inline]
    pub(in crate::pool) fn reclaim_graphs(&mut self, pool: &Pool, memory: &mut Memory) {
        if self.graphs.has_gone() {
            self.reclaim_gone_graphs(pool, memory);
        }
    }

    #[cold]
    fn reclaim_gone_graphs(&mut self, pool: &Pool, memory: &mut Memory) {
        for Remains { number, sets, live } in self.graphs.take_gone() {
            for id in sets {
                let Some(set) = self.pending.sets.remove(id) else {
                    continue;
                };
                match (set.asker, set.held) {
                    (Asker::Capture(key, id), Held::Space(owner)) => {
                        self.leave_capture(pool, memory, (number, key, id), owner);
                    }
                    (_, held) => self.file_all(memory, held),
                }
            }
            for id in live {
                pool.blocks.get(id).capture.store(0, Ordering::Relaxed);
            }
        }
    }

    /// What the stream of that key and id has freed inside that capture, which is gone, goes to its arena behind its next
    /// completion event. Where the handle has another stream, it waits for all contexts.
    fn leave_capture(&mut self, pool: &Pool, memory: &mut Memory, (number, key, id): (u32, Key, u64), space: Owner) {
        let cache = pool.caches.lock_known(key).map(|(_, mut inner)| {
            // No cache stays in a capture that is gone: another key may have it.
            if (inner.capture, inner.capture_device) == (number, pool.device) {
                inner.capture = 0;
            }
            inner
        });
        let serving = cache.and_then(|inner| {
            let served = inner.served()?;
            let owner = (served.id == id && served.device == pool.device).then_some(served.owner)?;
            Some((owner, inner))
        });
        let Some((owner, mut inner)) = serving else {
            return self.file_all(memory, Held::Space(space));
        };
        if pool.recorder.is_on() {
            let of_it = memory.free_space.tiles().filter(|tile| tile.free == Some(space));
            of_it.for_each(|tile| pool.record_range_completed(tile.offset, tile.size));
        }
        inner.uncovered += memory.free_space.transfer(space, owner, u64::MAX, inner.next_event);
        memory.free_space.remove_owner(space);
    }
}
