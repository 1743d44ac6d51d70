//! The adapter through its C++ virtual functions, from Rust: what the demo and the benches do.

use std::sync::Arc;
use std::thread;

use trtalloc::allocator::{Allocator, RESIZABLE};
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::tensorrt::client::Client;

fn last_error() -> String {
    // SAFETY: a C string, valid until this thread's next failure.
    unsafe { std::ffi::CStr::from_ptr(trtalloc::error::last()) }
        .to_string_lossy()
        .into_owned()
}

#[test]
fn at_rest() {
    let client = Client::new(ExportedAllocator::process()).unwrap();
    assert_eq!(client.allocate(0, 0, 0), 0);
    assert_eq!(client.allocate_async(0, 0, 0, 0), 0);
    assert!(last_error().contains("size is 0"), "{}", last_error());
    assert!(client.deallocate(0) && client.deallocate_async(0, 0));
    assert!(!client.deallocate(64) && !client.deallocate_async(64, 0));
    assert_eq!(client.reallocate(64, 0, 64), 0);
    assert!(last_error().contains("not of a block"), "{}", last_error());
}

#[test]
fn an_allocator_has_one_adapter_for_a_generation() {
    let exported = ExportedAllocator::process();
    let adapter = exported.tensorrt(110_400).unwrap();
    assert_ne!(adapter, 0);
    assert_eq!(exported.tensorrt(101_600).unwrap(), adapter);
    assert_eq!(exported.tensorrt(10_300).unwrap(), adapter);
    // Another generation is another object.
    let older = exported.tensorrt(8601).unwrap();
    assert!(older != 0 && older != adapter);
    assert_eq!(exported.tensorrt(8001).unwrap(), older);
    assert_eq!(exported.tensorrt(9300).unwrap(), older);
    assert!(exported.tensorrt(120_000).is_err());
    let others: Vec<usize> = (0..8)
        .map(|_| {
            thread::spawn(|| ExportedAllocator::process().tensorrt(100_000).unwrap())
                .join()
                .unwrap()
        })
        .collect();
    assert!(others.iter().all(|other| *other == adapter));
}

#[test]
fn memory() {
    let allocator = Allocator::create("driver=sim,sim_memory=1GiB").unwrap();
    let client = Client::new(ExportedAllocator::new(Arc::clone(&allocator))).unwrap();
    let block = client.allocate_async(1 << 20, 256, 0, 0);
    assert!(block != 0 && block.is_multiple_of(256), "{}", last_error());
    assert!(client.deallocate_async(block, 0));
    assert_eq!(client.allocate_async(1 << 20, 256, 0, 0), block);
    assert!(client.deallocate(block));
    assert!(!client.deallocate(block));
    let grown = client.allocate(1 << 20, 0, RESIZABLE);
    let grown = client.reallocate(grown, 0, 9 << 20);
    assert_ne!(grown, 0, "{}", last_error());
    assert!(client.deallocate_async(grown, 0));
    assert_eq!(client.allocate(2 << 30, 0, 0), 0);
    assert!(last_error().starts_with("out of memory"), "{}", last_error());
    let stats = allocator.stats(None).unwrap();
    assert_eq!((stats.allocated, stats.allocations, stats.frees), (0, 3, 3));
    allocator.close();
    assert_eq!(client.allocate(1, 0, 0), 0);
}
