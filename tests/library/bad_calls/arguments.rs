//! Arguments that mean nothing: no allocator, sizes, alignments, flags and options.

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trtalloc::allocator::{Allocator, RESIZABLE};
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::c::{self, trtalloc_status};
use trtalloc::ffi::tensorrt::client::Client;

use crate::bad_calls::{MIB, Place, World};

pub fn null_allocator_is_refused(_: Place) {
    let mut stats = c::trtalloc_stats::default();
    let size = size_of::<c::trtalloc_stats>();
    let block: *mut c_void = std::ptr::dangling_mut::<u8>().cast();
    let invalid = trtalloc_status::InvalidArgument;
    // SAFETY: null is what is tried; every other pointer is valid for what the function says of it.
    unsafe {
        assert!(c::trtalloc_allocate(null_mut(), 64, 0, 0).is_null());
        assert!(c::trtalloc_allocate_async(null_mut(), 64, 0, 0, null_mut()).is_null());
        assert!(c::trtalloc_allocate_on(null_mut(), 0, 64, 0, 0, null_mut()).is_null());
        assert!(c::trtalloc_reallocate(null_mut(), block, 0, 64).is_null());
        assert!(!c::trtalloc_deallocate(null_mut(), block));
        assert!(!c::trtalloc_deallocate_async(null_mut(), block, null_mut()));
        assert_eq!(c::trtalloc_record_stream(null_mut(), block, null_mut()), invalid);
        assert_eq!(c::trtalloc_stream_release(null_mut(), null_mut()), invalid);
        assert_eq!(c::trtalloc_stats_get(null_mut(), -1, &mut stats, size), invalid);
        assert_eq!(c::trtalloc_stats_reset_peaks(null_mut(), -1), invalid);
        assert_eq!(c::trtalloc_trim(null_mut(), -1, 0, null_mut()), invalid);
        assert_eq!(c::trtalloc_set_limit(null_mut(), -1, 0), invalid);
        assert!(c::trtalloc_tensorrt_allocator(null_mut(), 110_000).is_null());
        assert_eq!(c::trtalloc_create(std::ptr::null(), null_mut()), invalid);
        c::trtalloc_destroy(null_mut());
        assert!(!CStr::from_ptr(c::trtalloc_last_error()).is_empty());
    }
}

pub fn size_0_returns_null(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    assert_eq!(world.interface.allocate(0, 0, 0), 0);
    assert!(world.interface.last_error().contains("size is 0"));
    assert_eq!(world.interface.allocate_async(0, 4096, RESIZABLE, stream), 0);
    world.finish();
}

/// They count as out of memory, from the first one on, and the handler is asked as for every other.
pub fn size_2_to_the_63_is_refused(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    world.interface.inside().on_oom(Some(Arc::new(move |device, size| {
        assert_eq!(device, 0);
        assert!(size >= 1 << 50);
        counted.fetch_add(1, Ordering::Relaxed);
        false
    })));
    let mut refused = 0;
    for size in [1 << 50, 1 << 63, u64::MAX] {
        for flags in [0, RESIZABLE] {
            assert_eq!(world.interface.allocate(size, 0, flags), 0);
            assert_eq!(world.interface.allocate_async(size, 0, flags, stream), 0);
            refused += 2;
            assert_eq!(world.interface.stats(0).out_of_memory, refused);
        }
    }
    let block = world.interface.allocate(MIB, 0, RESIZABLE);
    assert_eq!(world.interface.reallocate(block, 0, 1 << 63), 0);
    assert!(
        world.interface.last_error().starts_with("out of memory"),
        "{}",
        world.interface.last_error()
    );
    assert_eq!(world.interface.stats(0).out_of_memory, refused + 1);
    assert_eq!(asked.load(Ordering::Relaxed), refused + 1);
    assert!(world.interface.deallocate(block));
    world.interface.inside().on_oom(None);
    world.finish();
}

fn refused_alignment(place: Place, alignment: u64) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    assert_eq!(world.interface.allocate(MIB, alignment, 0), 0);
    assert_eq!(world.interface.allocate_async(MIB, alignment, RESIZABLE, stream), 0);
    let block = world.interface.allocate(MIB, 0, RESIZABLE);
    assert_eq!(world.interface.reallocate(block, alignment, 2 * MIB), 0);
    assert!(world.interface.deallocate(block));
    world.finish();
}

pub fn alignment_3_is_refused(place: Place) {
    refused_alignment(place, 3);
}

pub fn alignment_4_gib_is_refused(place: Place) {
    refused_alignment(place, 4 << 30);
}

/// A newer TensorRT may set bits that this library does not know; those that it knows mean what they mean.
pub fn unknown_flags_are_ignored(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    let plain = world.interface.allocate(MIB, 0, 6);
    assert_ne!(plain, 0, "{}", world.interface.last_error());
    assert_eq!(world.interface.reallocate(plain, 0, 2 * MIB), 0, "it is not resizable");
    let ordered = world.interface.allocate_async(MIB, 0, 1 << 31, stream);
    assert_ne!(ordered, 0, "{}", world.interface.last_error());
    let resizable = world.interface.allocate(MIB, 0, RESIZABLE | 8);
    let resized = world.interface.reallocate(resizable, 0, 5 * MIB);
    assert_ne!(resized, 0, "{}", world.interface.last_error());
    assert!(world.interface.deallocate(plain) && world.interface.deallocate_async(ordered, stream));
    assert!(world.interface.deallocate(resized));
    // Through the vtable that TensorRT calls.
    let exported = ExportedAllocator::new(Allocator::create("driver=sim").unwrap());
    let client = Client::new(exported).unwrap();
    let block = client.allocate(MIB, 0, RESIZABLE | 4);
    assert_ne!(block, 0);
    let block = client.reallocate(block, 0, 3 * MIB);
    assert!(block != 0 && client.deallocate(block));
    world.finish();
}

pub fn free_of_null_succeeds(place: Place) {
    let world = World::new(place, "");
    assert!(world.interface.deallocate(0) && world.interface.deallocate_async(0, 0));
    world.finish();
    assert!(world.interface.deallocate(0) && world.interface.deallocate_async(0, 0));
}

pub fn unreadable_options_are_refused(_: Place) {
    for options in ["limit=plenty", "limits=1GiB", "limit", "driver=", "=1", "wait_ms=-1"] {
        let text = CString::new(format!("driver=sim,{options}")).unwrap();
        let mut out = std::ptr::dangling_mut();
        // SAFETY: a C string and a place to write to.
        let status = unsafe { c::trtalloc_create(text.as_ptr(), &mut out) };
        assert_eq!(
            (status, out),
            (trtalloc_status::InvalidArgument, null_mut()),
            "{options}"
        );
    }
}
