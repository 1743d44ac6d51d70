//! Devices that no process has, and devices that this one has not.

use std::ffi::CString;
use std::ptr::null_mut;

use trtalloc::allocator::Allocator;
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::c::{self, trtalloc_status};

use crate::bad_calls::{MIB, Place, World, run};

/// -1 is the current device. Nothing else that is no device's number means one.
pub fn unknown_devices_are_refused(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    let exported = ExportedAllocator::new(Allocator::create("driver=sim").unwrap());
    let own = std::ptr::from_ref(exported).cast::<c::trtalloc_allocator>().cast_mut();
    let invalid = trtalloc_status::InvalidArgument;
    let mut stats = c::trtalloc_stats::default();
    let (size, mut text) = (size_of::<c::trtalloc_stats>(), [0; 4096]);
    for device in [-2, i32::MIN, 1, 63, 64, i32::MAX] {
        for stream in [0, stream] {
            assert_eq!(world.interface.allocate_on(device, MIB, stream), 0, "{device}");
            let said = world.interface.last_error();
            assert!(said.starts_with("invalid argument: device"), "{device}: {said}");
        }
        // SAFETY: a handle, which lives for ever, and places to write to.
        unsafe {
            let status = c::trtalloc_stats_get(own, device, &mut stats, size);
            assert_eq!(status, invalid, "{device}");
            assert_eq!(c::trtalloc_stats_reset_peaks(own, device), invalid, "{device}");
            assert_eq!(c::trtalloc_trim(own, device, 0, null_mut()), invalid, "{device}");
            assert_eq!(c::trtalloc_set_limit(own, device, MIB), invalid, "{device}");
            let tag = c"tag".as_ptr();
            assert_eq!(c::trtalloc_set_tag_limit(own, device, tag, MIB), invalid, "{device}");
            let mut figures = c::trtalloc_tag_stats::default();
            let bytes = size_of_val(&figures);
            let status = c::trtalloc_tag_stats_get(own, device, tag, &mut figures, bytes);
            assert_eq!(status, invalid, "{device}");
            let length = c::trtalloc_stats_json(own, device, text.as_mut_ptr(), text.len());
            assert_eq!(length, 0, "{device}");
            let history = CString::new(format!("all,device={device}")).unwrap();
            assert_eq!(c::trtalloc_history(own, history.as_ptr()), invalid, "{device}");
        }
    }
    let block = world.interface.allocate_on(-1, MIB, stream);
    assert!(block != 0 && world.interface.deallocate_async(block, stream));
    world.finish();
}

/// The process's own allocator touches no driver before its first allocation, so it cannot know how many devices there are;
/// what is no device's number in any process is refused all the same.
fn devices_of_an_unused_allocator(_: Place) {
    let own = c::trtalloc_default();
    let mut stats = c::trtalloc_stats::default();
    let (size, mut text) = (size_of::<c::trtalloc_stats>(), [0; 4096]);
    let invalid = trtalloc_status::InvalidArgument;
    // SAFETY: a handle that lives for ever, and places to write to.
    unsafe {
        for device in [-2, i32::MIN, 64, i32::MAX] {
            assert_eq!(
                c::trtalloc_stats_get(own, device, &mut stats, size),
                invalid,
                "{device}"
            );
            assert_eq!(c::trtalloc_stats_reset_peaks(own, device), invalid, "{device}");
            assert_eq!(c::trtalloc_trim(own, device, 0, null_mut()), invalid, "{device}");
            let length = c::trtalloc_stats_json(own, device, text.as_mut_ptr(), text.len());
            assert_eq!(length, 0, "{device}");
        }
        for device in [-1, 0, 63] {
            assert_eq!(
                c::trtalloc_stats_get(own, device, &mut stats, size),
                trtalloc_status::Ok
            );
        }
    }
}

#[test]
fn an_unused_allocator_refuses_unknown_devices() {
    run(
        Place::Sim,
        "devices::an_unused_allocator_refuses_unknown_devices",
        devices_of_an_unused_allocator,
        &["device -2"],
        &[("TRTALLOC_DRIVER", "sim")],
    );
}
