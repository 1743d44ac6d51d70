use trtalloc::driver::sim::model::code::*;
use trtalloc::driver::sim::{Addresses, Machine, SimConfig};

use crate::sim::{MIB, aborts, child, in_child, machine, machine_with, mapped};

const G: u64 = 2 * MIB;

#[test]
fn sizes_must_be_multiples_of_the_granularity() {
    let m = machine();
    assert_eq!(m.memory_reserve(G + 1, 0), Err(INVALID_VALUE));
    assert_eq!(m.memory_reserve(0, 0), Err(INVALID_VALUE));
    assert_eq!(m.memory_reserve(G, 3 * MIB), Err(INVALID_VALUE));
    assert_eq!(m.memory_create(0, 4096), Err(INVALID_VALUE));
    assert_eq!(m.memory_create(0, 0), Err(INVALID_VALUE));
    assert_eq!(m.memory_create(1, G), Err(INVALID_DEVICE));
    assert_eq!(m.memory_reserve(G, 64 * MIB).unwrap() % (64 * MIB), 0);
    assert_eq!(m.memory_reserve(G, 0).unwrap() % G, 0);
}

#[test]
fn map_needs_a_whole_handle_in_a_free_reservation() {
    let m = machine();
    let at = m.memory_reserve(4 * G, 0).unwrap();
    let handle = m.memory_create(0, 2 * G).unwrap();
    assert_eq!(m.memory_map(at, 2 * G, G, handle), Err(INVALID_VALUE), "offset");
    assert_eq!(m.memory_map(at, G, 0, handle), Err(INVALID_VALUE), "part of the handle");
    assert_eq!(
        m.memory_map(at + 4096, 2 * G, 0, handle),
        Err(INVALID_VALUE),
        "alignment"
    );
    assert_eq!(
        m.memory_map(at + 3 * G, 2 * G, 0, handle),
        Err(INVALID_VALUE),
        "beyond the end"
    );
    assert_eq!(
        m.memory_map(at - G, 2 * G, 0, handle),
        Err(INVALID_VALUE),
        "before the start"
    );
    assert_eq!(m.memory_map(at, 2 * G, 0, 12345), Err(INVALID_VALUE), "no such handle");
    m.memory_map(at + G, 2 * G, 0, handle).unwrap();
    for over in [at, at + G, at + 2 * G] {
        assert_eq!(
            m.memory_map(over, 2 * G, 0, handle),
            Err(INVALID_VALUE),
            "over a mapping"
        );
    }
}

#[test]
fn unmap_needs_whole_mappings() {
    let m = machine();
    let at = m.memory_reserve(4 * G, 0).unwrap();
    for n in 0..3 {
        let handle = m.memory_create(0, G).unwrap();
        m.memory_map(at + n * G, G, 0, handle).unwrap();
        m.memory_release(handle).unwrap();
    }
    let big = m.memory_create(0, 2 * G).unwrap();
    let there = m.memory_reserve(2 * G, 0).unwrap();
    m.memory_map(there, 2 * G, 0, big).unwrap();
    assert_eq!(m.memory_unmap(there, G), Err(INVALID_VALUE), "a part");
    assert_eq!(m.memory_unmap(there + G, G), Err(INVALID_VALUE), "the other part");
    assert_eq!(m.memory_unmap(at, 4 * G), Err(INVALID_VALUE), "with a gap");
    assert_eq!(
        m.memory_set_access(there, G, &[0], true),
        Err(INVALID_VALUE),
        "access to a part"
    );
    assert_eq!(
        m.memory_set_access(at, 4 * G, &[0], true),
        Err(INVALID_VALUE),
        "access with a gap"
    );
    assert_eq!(m.memory_set_access(at, G, &[7], true), Err(INVALID_DEVICE));
    m.memory_set_access(at, 3 * G, &[0], true).unwrap();
    assert_eq!(
        m.memory_unreserve(at, 4 * G),
        Err(INVALID_VALUE),
        "with something mapped"
    );
    assert_eq!(m.faults().len(), 1, "CUDA does not promise to refuse it");
    m.clear_faults();
    m.memory_unmap(at, 3 * G).unwrap();
    assert_eq!(m.memory_unmap(at, G), Err(INVALID_VALUE), "no mapping is left");
    assert_eq!(m.memory_unreserve(at, 2 * G), Err(INVALID_VALUE), "a part of it");
    assert_eq!(m.memory_unreserve(at + G, 3 * G), Err(INVALID_VALUE), "not its start");
    m.memory_unreserve(at, 4 * G).unwrap();
    assert_eq!(m.memory_unreserve(at, 4 * G), Err(INVALID_VALUE), "twice");
    assert!(m.faults().is_empty());
}

#[test]
fn handle_at_two_addresses_is_one_memory() {
    let m = machine();
    let (one, handle) = mapped(&m, G);
    let two = m.memory_reserve(G, 0).unwrap();
    m.memory_map(two, G, 0, handle).unwrap();
    m.memory_set_access(two, G, &[0], true).unwrap();
    m.write(one + 5, b"alias").unwrap();
    let mut seen = [0; 5];
    m.read(two + 5, &mut seen).unwrap();
    assert_eq!(&seen, b"alias");
    // SAFETY: the range is mapped with access.
    assert_eq!(unsafe { *((two + 5) as *const u8) }, b'a');
}

#[test]
fn contents_move_with_their_handle() {
    let m = machine();
    let (one, handle) = mapped(&m, G);
    m.write(one, b"kept").unwrap();
    m.memory_unmap(one, G).unwrap();
    assert_eq!(m.read(one, &mut [0; 4]), Err(INVALID_VALUE));
    let two = m.memory_reserve(G, 0).unwrap();
    m.memory_map(two, G, 0, handle).unwrap();
    assert_eq!(m.read(two, &mut [0; 4]), Err(INVALID_VALUE), "no access yet");
    m.memory_set_access(two, G, &[0], true).unwrap();
    let mut seen = [0; 4];
    m.read(two, &mut seen).unwrap();
    assert_eq!(&seen, b"kept");
    m.memory_set_access(two, G, &[0], false).unwrap();
    assert_eq!(m.read(two, &mut seen), Err(INVALID_VALUE), "access taken away");
}

#[test]
fn memory_is_freed_with_its_last_mapping() {
    let m = machine_with(SimConfig {
        memory: 8 * G,
        ..SimConfig::default()
    });
    let (at, handle) = mapped(&m, 4 * G);
    let plain = m.memory_malloc(2 * G).unwrap();
    assert_eq!(m.memory_info(0), Ok((2 * G, 8 * G)));
    assert_eq!(m.memory_create(0, 4 * G), Err(OUT_OF_MEMORY));
    assert_eq!(m.memory_malloc(3 * G), Err(OUT_OF_MEMORY));
    assert_eq!(m.memory_malloc(u64::MAX), Err(OUT_OF_MEMORY));
    assert_eq!(m.memory_malloc(0), Err(INVALID_VALUE));
    m.memory_release(handle).unwrap();
    assert_eq!(m.memory_info(0), Ok((2 * G, 8 * G)), "still mapped");
    assert_eq!(m.memory_release(handle), Err(INVALID_VALUE), "twice");
    let other = m.memory_reserve(4 * G, 0).unwrap();
    assert_eq!(
        m.memory_map(other, 4 * G, 0, handle),
        Err(INVALID_VALUE),
        "a released handle"
    );
    m.memory_unmap(at, 4 * G).unwrap();
    assert_eq!(m.memory_info(0), Ok((6 * G, 8 * G)));
    m.memory_free(plain).unwrap();
    assert_eq!(m.memory_free(plain), Err(INVALID_VALUE), "twice");
    assert_eq!(m.memory_info(0), Ok((8 * G, 8 * G)));
}

#[test]
fn new_handle_is_other_memory() {
    let m = machine();
    let (one, handle) = mapped(&m, G);
    m.write(one, b"old").unwrap();
    m.memory_unmap(one, G).unwrap();
    m.memory_release(handle).unwrap();
    let (two, _) = mapped(&m, G);
    let mut seen = [1; 3];
    m.read(two, &mut seen).unwrap();
    assert_eq!(seen, [0; 3]);
}

#[test]
fn malloc_and_handle_functions_refuse_each_others_memory() {
    let m = machine();
    let (at, _) = mapped(&m, G);
    let plain = m.memory_malloc(G).unwrap();
    assert_eq!(m.memory_free(at), Err(INVALID_VALUE));
    assert_eq!(m.memory_free(plain + 512), Err(INVALID_VALUE), "inside");
    assert_eq!(m.memory_unmap(plain, G), Err(INVALID_VALUE));
    assert_eq!(m.memory_set_access(plain, G, &[0], true), Err(INVALID_VALUE));
    assert_eq!(m.memory_at(plain + 7).unwrap().base, plain);
    assert_eq!(m.memory_at(at + G), None);
}

#[test]
fn without_virtual_memory_only_malloc_works() {
    let m = machine_with(SimConfig {
        virtual_memory: false,
        ..SimConfig::default()
    });
    assert_eq!(m.memory_reserve(G, 0), Err(NOT_SUPPORTED));
    assert_eq!(m.memory_create(0, G), Err(NOT_SUPPORTED));
    let at = m.memory_malloc(100).unwrap();
    m.write(at, &[7; 100]).unwrap();
    m.memory_free(at).unwrap();
}

#[test]
fn fills_and_copies_reach_memory_in_order() {
    let m = machine();
    let (at, _) = mapped(&m, G);
    let plain = m.memory_malloc(4096).unwrap();
    let s = m.stream_create(true).unwrap();
    m.fill_async(at, 0xab, G, s).unwrap();
    m.copy_async(plain, at + 100, 4096, s).unwrap();
    let mut host = [0u8; 4096];
    m.copy_async(host.as_mut_ptr() as u64, plain, 4096, s).unwrap();
    m.stream_synchronize(s).unwrap();
    assert_eq!(host, [0xab; 4096]);
    assert_eq!(m.fill_async(at, 0, G + 1, s), Err(INVALID_VALUE), "beyond the mapping");
    assert_eq!(
        m.copy_async(at, plain, 8192, s),
        Err(INVALID_VALUE),
        "beyond the source"
    );
}

#[test]
fn access_is_per_device() {
    let m = machine_with(SimConfig {
        devices: 2,
        ..SimConfig::default()
    });
    let at = m.memory_reserve(G, 0).unwrap();
    let handle = m.memory_create(1, G).unwrap();
    m.memory_map(at, G, 0, handle).unwrap();
    m.memory_set_access(at, G, &[1], true).unwrap();
    let s = m.stream_create(true).unwrap();
    assert_eq!(
        m.copy_async(at, at + 4096, 64, s),
        Err(INVALID_VALUE),
        "device 0 has no access"
    );
    m.memory_set_access(at, G, &[0, 1], true).unwrap();
    m.launch(s, 10, &[(at, G)]).unwrap();
    m.stream_synchronize(s).unwrap();
    assert!(m.faults().is_empty(), "{:?}", m.faults());
    assert_eq!(m.memory_info(0).unwrap().0, m.memory_info(0).unwrap().1);
    assert_eq!(m.memory_info(1).unwrap().0, m.memory_info(1).unwrap().1 - G);
}

#[test]
fn kernel_out_of_bounds_poisons_its_context() {
    let m = machine();
    let at = m.memory_reserve(G, 0).unwrap();
    let s = m.stream_create(true).unwrap();
    m.launch(s, 10, &[(at, 4)]).unwrap();
    assert_eq!(m.faults().len(), 1);
    assert_eq!(m.stream_synchronize(s), Err(ILLEGAL_ADDRESS));
    assert_eq!(m.stream_is_capturing(s), Err(ILLEGAL_ADDRESS));
    assert_eq!(m.context_synchronize(), Err(ILLEGAL_ADDRESS));
    assert_eq!(m.event_create(), Err(ILLEGAL_ADDRESS));
    m.primary_reset(0).unwrap();
    assert_eq!(m.stream_create(true), Err(CONTEXT_IS_DESTROYED));
    m.primary_retain(0).unwrap();
    m.stream_create(true).unwrap();
}

#[test]
fn pinned_memory_is_host_memory() {
    let m = machine();
    let at = m.memory_host_malloc(10_000).unwrap();
    // SAFETY: the range was just allocated.
    unsafe { std::ptr::write_bytes(at as *mut u8, 3, 10_000) };
    let s = m.stream_create(true).unwrap();
    m.launch(s, 1, &[(at, 10_000)]).unwrap();
    assert!(m.faults().is_empty());
    m.stream_synchronize(s).unwrap();
    m.memory_host_free(at).unwrap();
    assert_eq!(m.memory_host_free(at), Err(INVALID_VALUE));
}

#[test]
fn uses_of_pinned_memory_are_checked() {
    let m = machine();
    let (pinned, device) = (m.memory_host_malloc(8192).unwrap(), m.memory_malloc(8192).unwrap());
    let s = m.stream_create(true).unwrap();
    // A copy out of the bounds of the pinned memory.
    assert_eq!(m.copy_async(device, pinned + 4096, 8192, s), Err(INVALID_VALUE));
    m.copy_async(device, pinned, 4096, s).unwrap();
    // The copy is pending: the host would write to memory that the copy reads. The host may use other memory.
    m.checker().hand_out(pinned + 4096, 4096, None);
    assert_eq!(m.checker().violations(), Vec::<String>::new());
    m.checker().hand_out(pinned, 4096, None);
    let violations = m.checker().violations();
    assert!(
        violations.len() == 1 && violations[0].contains(": a copy at "),
        "{violations:?}"
    );
    // The memory may not be freed either, because cuMemFreeHost does not wait.
    m.copy_async(pinned, device, 4096, s).unwrap();
    m.memory_host_free(pinned).unwrap();
    let faults = m.faults();
    assert!(faults.iter().any(|fault| fault.contains("cuMemFreeHost")), "{faults:?}");
}

#[test]
fn access_without_permission_kills() {
    if in_child() {
        let m = machine();
        let at = m.memory_reserve(G, 0).unwrap();
        let handle = m.memory_create(0, G).unwrap();
        m.memory_map(at, G, 0, handle).unwrap();
        // SAFETY: none; the test expects the fault.
        unsafe { std::ptr::write_volatile(at as *mut u8, 1) };
        return;
    }
    use std::os::unix::process::ExitStatusExt;
    let output = crate::sim::child("memory::access_without_permission_kills");
    assert_eq!(output.status.signal(), Some(11));
}

#[test]
fn machines_refuse_each_others_handles() {
    if in_child() {
        let (one, two) = (machine(), machine());
        let s = one.stream_create(true).unwrap();
        let _ = two.stream_id(s);
        return;
    }
    aborts(
        "memory::machines_refuse_each_others_handles",
        "never a stream of this machine",
    );
    let (one, two) = (machine(), machine());
    let event = one.event_create().unwrap();
    assert_eq!(two.event_query(event), Err(INVALID_HANDLE));
    let context = one.context_current().unwrap();
    assert_eq!(two.context_push(context), Err(INVALID_CONTEXT));
}

#[test]
fn any_call_can_fail() {
    let m = machine();
    assert!(!m.fail_nth(Some("cuNothing"), 1, 2));
    assert!(m.fail_nth(Some("cuMemCreate"), 2, OUT_OF_MEMORY));
    m.memory_create(0, G).unwrap();
    m.memory_reserve(G, 0).unwrap();
    assert_eq!(m.memory_create(0, G), Err(OUT_OF_MEMORY));
    m.memory_create(0, G).unwrap();
    assert_eq!(
        m.memory_info(0).unwrap().0,
        (24 << 30) - 2 * G,
        "a failed call changes nothing"
    );

    // All calls of an allocator, also queries, but not an application's calls and not exempt ones.
    let s = m.stream_create(true).unwrap();
    assert!(m.fail_nth(None, 1, 999));
    m.stream_synchronize(s).unwrap();
    {
        let _exempt = m.exempt();
        m.stream_id(s).unwrap();
        m.event_create().unwrap();
    }
    assert_eq!(m.stream_id(s), Err(999));
    m.stream_id(s).unwrap();

    assert!(m.fail_every(Some("cuEventCreate"), 2, 3));
    let made: Vec<bool> = (0..6).map(|_| m.event_create().is_ok()).collect();
    assert_eq!(made, [true, false, true, false, true, false]);
    m.clear_failures();
    m.event_create().unwrap();
    m.event_create().unwrap();
    assert_eq!(m.failures_struck(), 5);
}

#[test]
fn calls_are_counted_by_name_and_kind() {
    let m = machine();
    let s = m.stream_create(true).unwrap();
    let (queries, submissions) = (m.queries(), m.submissions());
    for _ in 0..10 {
        m.stream_id(s).unwrap();
        m.stream_is_capturing(s).unwrap();
    }
    m.stream_synchronize(s).unwrap();
    assert_eq!(m.queries() - queries, 20);
    assert_eq!(m.submissions(), submissions);
    assert_eq!(m.count("cuStreamGetId"), 10);
    assert_eq!(m.calls()["cuStreamIsCapturing"], 10);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| assert!(m.stream_id(s).is_ok())));
        }
    });
    assert_eq!(m.count("cuStreamGetId"), 4010, "other threads' calls too");
    let made = m.calls_made();
    m.memory_reserve(G, 0).unwrap();
    assert_eq!(m.calls_made(), made + 1);
}

/// Whether all of a range is mapped, by the kernel's list.
fn is_mapped(from: u64, to: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split_once(' ').unwrap().0;
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        number(start) <= from && to <= number(end)
    })
}

#[test]
fn addresses_are_returned_when_all_memory_is_freed() {
    let m = machine_with(SimConfig {
        addresses: Addresses::Ascending,
        ..SimConfig::default()
    });
    let takes: [fn(&Machine) -> u64; 2] = [
        |m| m.memory_malloc(MIB).unwrap(),
        |m| m.memory_host_malloc(MIB).unwrap(),
    ];
    let gives: [fn(&Machine, u64); 2] = [
        |m, at| m.memory_free(at).unwrap(),
        |m, at| m.memory_host_free(at).unwrap(),
    ];
    for (take, give) in takes.into_iter().zip(gives) {
        let (first, second) = (take(&m), take(&m));
        // Behind the last piece there are addresses for gigabytes.
        let behind = (second + 8 * MIB, second + (4 << 30));
        give(&m, first);
        m.return_addresses();
        assert!(is_mapped(behind.0, behind.1), "a piece is left");
        // SAFETY: the piece is allocated, and the host may access it.
        unsafe { (second as *mut u8).write(7) };
        give(&m, second);
        m.return_addresses();
        assert!(!is_mapped(behind.0, behind.1));
        let again = take(&m);
        give(&m, again);
    }
}

#[test]
fn malloc_works_where_addresses_are_few() {
    const TEST: &str = "memory::malloc_works_where_addresses_are_few";
    if !in_child() {
        let output = child(TEST);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    const GIB: u64 = 1 << 30;
    let m = machine_with(SimConfig {
        memory: 3 * GIB,
        ..SimConfig::default()
    });
    let room = libc::rlimit {
        rlim_cur: 8 * GIB,
        rlim_max: 8 * GIB,
    };
    // SAFETY: limits this process, which is a child for this test.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &room) }, 0);
    let all = m.memory_malloc(3 * GIB).unwrap();
    m.memory_free(all).unwrap();
    let pinned = m.memory_host_malloc(GIB).unwrap();
    m.memory_host_free(pinned).unwrap();
}
