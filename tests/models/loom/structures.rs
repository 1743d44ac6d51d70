//! The parts alone: lock, once, index, and the claim of a number that another block has by then.

use std::sync::Arc;

use crate::world::{caught, explore, spawn};
use trtalloc::driver::Stream;
use trtalloc::pool::dedicated::DedicatedTable;
use trtalloc::pool::index::Index;
use trtalloc::pool::stream_cache::block::{BlockState, Blocks};
use trtalloc::pool::stream_cache::{Key, StreamCaches};
use trtalloc::pool::{DedicatedMemory, Lock};

use std::sync::atomic::Ordering;

fn exclusion() {
    let lock = Arc::new(Lock::new(0));
    let count = |lock: &Lock<u64>| *lock.lock() += 1;
    let other = {
        let lock = lock.clone();
        spawn(move || count(&lock))
    };
    count(&lock);
    other.join().unwrap();
    assert_eq!(*lock.lock(), 2, "both counted");
}

#[test]
fn lock_has_one_holder_at_a_time() {
    explore("lock, two threads", 5, exclusion);
}

#[test]
fn one_of_three_holders_at_a_time() {
    explore("lock, three threads", 1, || {
        let lock = Arc::new(Lock::new(0));
        let others = [(); 2].map(|()| {
            let lock = lock.clone();
            spawn(move || *lock.lock() += 1)
        });
        *lock.lock() += 1;
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(*lock.lock(), 3);
    });
}

fn key(stream: usize) -> Key {
    Key {
        stream: Stream(stream),
        context: 0,
        thread: 0,
    }
}

/// A stream's cache is vacant and gets another key, while the stream uses it again and another one is looked for.
fn reused() {
    let caches = Arc::new(StreamCaches::default());
    // The bucket has as many caches as stay there, and one of them is vacant.
    drop(caches.lock(key(3)));
    for stream in [11, 13, 17] {
        let _ = caches.begin_use(key(stream));
    }
    let work = |caches: &StreamCaches, stream| {
        let (cache, mut inner) = caches.lock(key(stream));
        assert_eq!(cache.key(), key(stream), "another stream's cache");
        // As a hit does.
        inner.in_use += 1;
        drop(inner);
        let (_, mut inner) = caches.lock(key(stream));
        assert_eq!(inner.in_use, 1, "the cache kept its key");
        inner.in_use -= 1;
    };
    let other = {
        let caches = caches.clone();
        spawn(move || work(&caches, 5))
    };
    work(&caches, 3);
    other.join().unwrap();
    let keys: Vec<usize> = caches.all().map(|cache| cache.key().stream.0).collect();
    assert!((4..=5).contains(&keys.len()), "{keys:?}");
    assert!(
        keys.iter().all(|key| keys.iter().filter(|of| *of == key).count() == 1),
        "{keys:?}"
    );
}

#[test]
fn a_cache_that_gets_another_key() {
    explore("caches, another key", 3, reused);
}

#[test]
fn another_key_unnoticed() {
    caught(
        "a cache that is locked still has its key",
        &["another stream's cache"],
        || explore("", 3, reused),
    );
    caught(
        "a cache that blocks name keeps its key",
        &["the cache kept its key"],
        || explore("", 3, reused),
    );
}

/// Two threads look up two streams in one bucket, in different orders.
#[test]
fn one_cache_for_each_stream() {
    explore("caches", 3, || {
        let caches = Arc::new(StreamCaches::default());
        let other = {
            let caches = caches.clone();
            spawn(move || [7, 5, 3].map(|stream| std::ptr::from_ref(caches.begin_use(key(stream))).addr()))
        };
        let here = [3, 5, 7].map(|stream| std::ptr::from_ref(caches.begin_use(key(stream))).addr());
        let mut there = other.join().unwrap();
        there.reverse();
        assert_eq!(here, there);
        assert_eq!(caches.all().count(), 3);
    });
}

/// A thread that finds a block by its offset sees the block's contents.
fn index() {
    let index = Arc::new(Index::new(1 << 18, 512));
    let blocks = Arc::new(Blocks::default());
    // The places exist already: creating one would order what follows.
    blocks.get(3);
    index.set(512, 1);
    let other = {
        let (index, blocks) = (index.clone(), blocks.clone());
        spawn(move || {
            let found = index.get(4096);
            if found != 0 {
                let block = blocks.get(found);
                assert!(block.is_live(), "what is found is out");
                assert_eq!(block.address.load(Ordering::Relaxed), 4096, "what is found is there");
            }
            found
        })
    };
    let block = blocks.get(3);
    block.address.store(4096, Ordering::Relaxed);
    block.hand_out(None);
    index.set(4096, 3);
    assert!([0, 3].contains(&other.join().unwrap()));
    assert_eq!(index.get(4096), 3);
}

#[test]
fn indexed_entries_are_complete() {
    explore("index", 3, index);
}

/// A bad free of a former block whose number another block has now: only its owner may free that one.
fn reused_number() {
    let blocks = Arc::new(Blocks::default());
    let block = blocks.get(3);
    block.address.store(4096, Ordering::Relaxed);
    block.hand_out(None);
    let other = {
        let blocks = blocks.clone();
        spawn(move || blocks.get(3).claim(4096).is_ok())
    };
    let freed = block.claim(4096).is_ok();
    if freed {
        block.become_free(BlockState::None);
        block.address.store(8192, Ordering::Relaxed);
        block.hand_out(None);
        assert!(block.claim(8192).is_ok(), "the owner of the second block may free it");
    }
    assert!(freed != other.join().unwrap());
}

#[test]
fn a_number_that_serves_another_block() {
    explore("a number reused", 3, reused_number);
}

/// Dedicated allocations: where the memory starts, its bytes, and where the block starts.
const NEAR: [u64; 3] = [4 << 20, 1 << 20, 4 << 20];
const NEAR_THE_END: [u64; 3] = [4 << 20, 2 << 20, 5 << 20];
const FAR: [u64; 3] = [64 << 20, 1 << 20, 64 << 20];

/// A thread looks at all dedicated allocations, while another ends them and others get their cell.
fn place(blocks: &'static [[u64; 3]]) -> impl Fn() {
    move || {
        let table = Arc::new(DedicatedTable::default());
        let insert = |table: &DedicatedTable, [base, size, address]: [u64; 3]| {
            let block = Box::new(DedicatedMemory::modelled(base, size, address));
            table.insert(block, 0, 0).unwrap();
        };
        insert(&table, blocks[0]);
        let other = {
            let table = table.clone();
            spawn(move || {
                for pair in blocks.windows(2) {
                    drop(table.remove(table.claim(pair[0][2]).unwrap(), 0));
                    insert(&table, pair[1]);
                }
            })
        };
        for (_, cell) in table.all() {
            if let Some((address, (base, size, _))) = cell.place() {
                let block = [base, size, address];
                assert!(blocks.contains(&block), "no block has this place: {block:?}");
            }
        }
        other.join().unwrap();
    }
}

#[test]
fn a_blocks_place_beside_blocks_that_come_and_go() {
    explore("places, one block", 3, place(&[NEAR, NEAR_THE_END]));
    explore("places, two blocks", 3, place(&[NEAR, FAR, NEAR]));
}

#[test]
fn a_place_of_two_blocks() {
    let words = ["no block has this place"];
    caught(
        "a block's address is the same before and after its extent",
        &words,
        || explore("", 3, place(&[NEAR, NEAR_THE_END])),
    );
    caught("a block lies in its extent", &words, || {
        explore("", 3, place(&[NEAR, FAR, NEAR]))
    });
}

#[test]
fn a_lock_without_order() {
    caught("the lock acquires", &["Causality violation"], || {
        explore("", 3, exclusion)
    });
    caught("a waiter acquires", &["Causality violation"], || {
        explore("", 3, exclusion)
    });
    caught("the lock releases", &["Causality violation"], || {
        explore("", 3, exclusion)
    });
}

#[test]
fn a_claim_of_any_number() {
    let words = ["the owner of the second block", "freed != other"];
    caught("a claim compares the address", &words, || explore("", 3, reused_number));
    caught(
        "the owner's free waits for a thread that checks the block",
        &words,
        || explore("", 3, reused_number),
    );
    caught("a claim of a block without an origin is one step", &words, || {
        explore("", 3, reused_number)
    });
}

#[test]
fn an_index_without_order() {
    caught("the index releases", &["what is found is"], || explore("", 3, index));
}
