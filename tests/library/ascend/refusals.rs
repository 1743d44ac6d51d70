//! The stand-in refuses what CANN refuses. Tests over a stand-in that accepts everything would show nothing.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use trtalloc::driver::sim::model::{Machine, MachineConfig};

use crate::standin::process::{Installed, exclusive};
use crate::standin::{
    CONTEXT_NULL, INVALID_DEVICE, INVALID_PARAM, NOT_SUPPORTED, OUT_OF_MEMORY, REPEATED_INIT, RT_PARAM_INVALID,
    STREAM_CONTEXT, UNALIGNED, UNINITIALIZED, find,
};

const PAGE: usize = 2 << 20;

/// Calls a function of the stand-in by its name, as a program that loads the library does.
macro_rules! call {
    ($name:ident ( $($argument:expr => $kind:ty),* $(,)? )) => {{
        let found = find(stringify!($name), false).or_else(|| find(stringify!($name), true)).unwrap();
        // SAFETY: the function of that name has that type; pointers are null or lead to locals.
        unsafe {
            let function: unsafe extern "C" fn($($kind),*) -> c_int = std::mem::transmute(found);
            function($($argument),*)
        }
    }};
}

#[repr(C)]
struct Properties {
    kinds: [c_int; 3],
    id: u32,
    side: c_int,
    reserve: u64,
}

const HUGE: Properties = Properties {
    kinds: [0, 0, 4],
    id: 0,
    side: 1,
    reserve: 0,
};

fn machine(config: MachineConfig) -> (Arc<Machine>, Installed) {
    let machine = Machine::new(config);
    let installed = exclusive(machine.clone());
    (machine, installed)
}

fn device() -> (Arc<Machine>, Installed) {
    let (machine, installed) = machine(MachineConfig {
        devices: 2,
        memory: 64 << 20,
        ..MachineConfig::default()
    });
    assert_eq!(call!(aclInit(null() => *const c_void)), 0);
    assert_eq!(call!(aclrtSetDevice(0 => i32)), 0);
    (machine, installed)
}

fn malloc(size: usize) -> Result<*mut c_void, c_int> {
    let mut address = null_mut();
    match call!(aclrtMalloc(&mut address => *mut *mut c_void, size => usize, 0 => u32)) {
        0 => Ok(address),
        code => Err(code),
    }
}

fn free(address: *mut c_void) -> c_int {
    call!(aclrtFree(address => *mut c_void))
}

#[test]
fn init_comes_first_and_once() {
    let (_machine, _installed) = machine(MachineConfig::default());
    assert_eq!(call!(aclrtSetDevice(0 => i32)), UNINITIALIZED);
    assert_eq!(call!(aclInit(null() => *const c_void)), 0);
    assert_eq!(call!(aclInit(null() => *const c_void)), REPEATED_INIT);
    assert_eq!(call!(aclrtSetDevice(7 => i32)), INVALID_DEVICE);
    assert_eq!(call!(aclFinalize()), 0);
    assert_eq!(call!(aclrtSetDevice(0 => i32)), UNINITIALIZED);
}

#[test]
fn contexts_belong_to_threads() {
    let (_machine, _installed) = device();
    let there = malloc(1000).unwrap() as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = 0usize;
            assert_eq!(call!(aclrtGetCurrentContext(&mut out => *mut usize)), CONTEXT_NULL);
            assert_eq!(malloc(1000), Err(CONTEXT_NULL));
            let mut host = null_mut();
            let code = call!(aclrtMallocHost(&mut host => *mut *mut c_void, 64 => usize));
            assert_eq!(code, CONTEXT_NULL);
            assert_eq!(free(there as *mut c_void), 0, "a free needs no context");
            assert_eq!(call!(aclrtCreateStream(&mut out => *mut usize)), CONTEXT_NULL);
            assert_eq!(call!(aclrtCreateEvent(&mut out => *mut usize)), CONTEXT_NULL);
            assert_eq!(call!(aclrtSynchronizeDevice()), CONTEXT_NULL);
            assert_eq!(call!(aclrtSetDevice(0 => i32)), 0);
            assert_eq!(call!(aclrtSetCurrentContext(0 => usize)), RT_PARAM_INVALID);
        });
    });
    // A destroyed context is current to no thread.
    let mut context = 0usize;
    let own = |context: &mut usize| call!(aclrtGetCurrentContext(context => *mut usize));
    assert_eq!(own(&mut context), 0);
    assert_eq!(call!(aclrtResetDeviceForce(0 => i32)), 0);
    assert_eq!(own(&mut context), CONTEXT_NULL);
    assert_eq!(malloc(1000), Err(CONTEXT_NULL));
    assert_eq!(call!(aclrtSetCurrentContext(context => usize)), RT_PARAM_INVALID);
}

#[test]
fn streams_belong_to_contexts() {
    let (_machine, _installed) = device();
    let (mut stream, mut event) = (0usize, 0usize);
    assert_eq!(call!(aclrtCreateStream(&mut stream => *mut usize)), 0);
    assert_eq!(call!(aclrtSetDevice(1 => i32)), 0);
    assert_eq!(call!(aclrtCreateEvent(&mut event => *mut usize)), 0);
    let record = |stream| call!(aclrtRecordEvent(event => usize, stream => usize));
    assert_eq!(record(stream), STREAM_CONTEXT);
    assert_eq!(record(1), RT_PARAM_INVALID);
    assert_eq!(record(0), 0);
    assert_eq!(call!(aclrtSynchronizeStream(stream => usize)), STREAM_CONTEXT);
}

#[test]
fn stream_destroy_waits_for_its_work() {
    let (machine, _installed) = device();
    let mut stream = 0usize;
    assert_eq!(call!(aclrtCreateStream(&mut stream => *mut usize)), 0);
    assert_eq!(call!(aclmdlRICaptureBegin(stream => usize, 2 => u32)), 0);
    let destroy = || call!(aclrtDestroyStream(stream => usize));
    assert_eq!(destroy(), crate::standin::STREAM_CAPTURED);
    let mut model = 0usize;
    assert_eq!(call!(aclmdlRICaptureEnd(stream => usize, &mut model => *mut usize)), 0);
    let address = malloc(1000).unwrap();
    machine
        .launch(stream, 1_000_000_000, &[(address as u64, 1000)])
        .unwrap();
    assert_eq!((destroy(), free(address)), (0, 0));
    assert_eq!(machine.faults(), Vec::<String>::new());
}

#[test]
fn event_flags_limit_its_uses() {
    let (_machine, _installed) = device();
    let create = |flags| {
        let mut event = 0usize;
        match call!(aclrtCreateEventExWithFlag(&mut event => *mut usize, flags => u32)) {
            0 => Ok(event),
            code => Err(code),
        }
    };
    let wait = |event| call!(aclrtStreamWaitEvent(0 => usize, event => usize));
    let ask = |event| {
        let mut status = 9u32;
        let code = call!(aclrtQueryEventStatus(event => usize, &mut status => *mut u32));
        (code, status)
    };
    // ACL_EVENT_SYNC; ACL_EVENT_CAPTURE_STREAM_PROGRESS; ACL_EVENT_TIME_LINE.
    for (flags, waited_for) in [(1, 0), (3, 0), (9, 0), (2, NOT_SUPPORTED), (8, NOT_SUPPORTED)] {
        let event = create(flags).unwrap();
        assert_eq!(call!(aclrtRecordEvent(event => usize, 0 => usize)), 0);
        assert_eq!((wait(event), ask(event).0), (waited_for, 0), "flags {flags}");
        assert_eq!(call!(aclrtDestroyEvent(event => usize)), 0);
    }
    // Never recorded: complete.
    assert_eq!(ask(create(1).unwrap()), (0, 1));
    for flags in [0, 0x10, 0x20, 0x41, 0x80] {
        assert_eq!(create(flags), Err(RT_PARAM_INVALID), "flags {flags}");
    }
}

#[test]
fn zero_sizes_are_refused() {
    let (_machine, _installed) = device();
    assert_eq!(malloc(0), Err(INVALID_PARAM));
    assert_eq!(malloc(usize::MAX), Err(INVALID_PARAM));
    assert_eq!(malloc(1 << 30), Err(OUT_OF_MEMORY));
    assert_eq!(
        call!(aclrtMalloc(null_mut() => *mut *mut c_void, 8 => usize, 0 => u32)),
        INVALID_PARAM
    );
    let mut out = null_mut();
    // An unknown policy counts as the default.
    assert_eq!(
        call!(aclrtMalloc(&mut out => *mut *mut c_void, 8 => usize, 9 => u32)),
        0
    );
    assert_eq!(free(out), 0);
    assert_eq!(free(null_mut()), INVALID_PARAM);
    let address = malloc(1000).unwrap();
    assert_eq!(
        (address as usize % 64, address as usize % 128),
        (0, 64),
        "no larger alignment than documented"
    );
    assert_eq!(free(address.wrapping_byte_add(64)), RT_PARAM_INVALID);
    assert_eq!(free(address), 0);
    assert_eq!(free(address), RT_PARAM_INVALID);
    assert_eq!(
        call!(aclrtMallocHost(&mut out => *mut *mut c_void, 0 => usize)),
        INVALID_PARAM
    );
    assert_eq!(call!(aclrtFreeHost(null_mut() => *mut c_void)), INVALID_PARAM);
}

#[test]
fn free_does_not_wait() {
    let (machine, _installed) = device();
    let mut stream = 0usize;
    assert_eq!(call!(aclrtCreateStream(&mut stream => *mut usize)), 0);
    let address = malloc(1000).unwrap();
    machine
        .launch(stream, 1_000_000_000, &[(address as u64, 1000)])
        .unwrap();
    assert_eq!(free(address), 0);
    assert_eq!(machine.faults().len(), 1, "{:?}", machine.faults());
}

#[test]
fn media_memory_has_its_own_functions() {
    let (machine, _installed) = device();
    let (mut first, mut second) = (null_mut(), null_mut());
    assert_eq!(call!(acldvppMalloc(&mut first => *mut *mut c_void, 1000 => usize)), 0);
    assert_eq!(
        call!(hi_mpi_dvpp_malloc(0 => u32, &mut second => *mut *mut c_void, 1000 => u64)),
        0
    );
    // The device number is ignored.
    let mut third = null_mut();
    assert_eq!(
        call!(hi_mpi_dvpp_malloc(1 => u32, &mut third => *mut *mut c_void, 1000 => u64)),
        0
    );
    assert_eq!(machine.memory_at(third as u64).unwrap().device, 0);
    assert_eq!(call!(hi_mpi_dvpp_free(third => *mut c_void)), 0);
    for address in [first, second] {
        assert_eq!((address as usize % 128, address as usize % 256), (0, 128));
        assert_eq!(free(address), RT_PARAM_INVALID);
    }
    assert_eq!(call!(acldvppFree(first => *mut c_void)), 0);
    assert_eq!(call!(hi_mpi_dvpp_free(second => *mut c_void)), 0);
    assert_eq!(call!(acldvppFree(null_mut() => *mut c_void)), INVALID_PARAM);
}

fn reserve(size: usize, alignment: usize) -> Result<*mut c_void, c_int> {
    let mut out = null_mut();
    let (wish, flags) = (null_mut(), 0);
    let code = call!(aclrtReserveMemAddress(
        &mut out => *mut *mut c_void, size => usize, alignment => usize, wish => *mut c_void, flags => u64
    ));
    if code == 0 { Ok(out) } else { Err(code) }
}

fn physical(size: usize) -> Result<usize, c_int> {
    let mut out = 0;
    match call!(aclrtMallocPhysical(&mut out => *mut usize, size => usize, &HUGE => *const Properties, 0 => u64)) {
        0 => Ok(out),
        code => Err(code),
    }
}

fn map(address: *mut c_void, size: usize, offset: usize, handle: usize) -> c_int {
    call!(aclrtMapMem(address => *mut c_void, size => usize, offset => usize, handle => usize, 0 => u64))
}

#[test]
fn handles_are_mapped_whole() {
    let (machine, _installed) = device();
    assert_eq!(reserve(0, 0), Err(INVALID_PARAM));
    assert_eq!(reserve(PAGE, PAGE), Err(RT_PARAM_INVALID));
    assert_eq!(reserve(PAGE + 4096, 0), Err(UNALIGNED));
    let base = reserve(8 * PAGE, 0).unwrap();
    let at = |page: usize| base.wrapping_byte_add(page * PAGE);
    assert_eq!(physical(PAGE + 1), Err(UNALIGNED));
    assert_eq!(physical(1 << 30), Err(OUT_OF_MEMORY));
    let handle = physical(2 * PAGE).unwrap();
    assert_eq!(map(at(0), PAGE, 0, handle), RT_PARAM_INVALID, "a part");
    assert_eq!(map(at(0), PAGE, PAGE, handle), RT_PARAM_INVALID, "an offset");
    assert_eq!(
        map(at(7), 2 * PAGE, 0, handle),
        RT_PARAM_INVALID,
        "beyond the reservation"
    );
    assert_eq!(map(at(0), 2 * PAGE, 0, handle), 0);
    assert_eq!(map(at(1), 2 * PAGE, 0, handle), RT_PARAM_INVALID, "over a mapping");
    assert_eq!(machine.write(at(0) as u64, &[7]), Ok(()), "the owner has access");
    let unmap = |address| call!(aclrtUnmapMem(address => *mut c_void));
    let release = |address| call!(aclrtReleaseMemAddress(address => *mut c_void));
    assert_eq!(unmap(at(1)), RT_PARAM_INVALID, "a part of a mapping");
    assert_eq!(release(base), RT_PARAM_INVALID, "something is mapped");
    // The memory is freed once it is not mapped any more.
    assert_eq!(call!(aclrtFreePhysical(handle => usize)), 0);
    assert_eq!(machine.read(at(0) as u64, &mut [0]), Ok(()));
    assert_eq!(unmap(at(0)), 0);
    assert_eq!(unmap(at(0)), RT_PARAM_INVALID);
    assert_eq!(release(at(1)), RT_PARAM_INVALID);
    assert_eq!(release(base), 0);
    assert_eq!(machine.memory_held(), [0, 0, 0]);
}

#[test]
fn some_devices_have_no_virtual_memory() {
    let (_machine, _installed) = machine(MachineConfig {
        virtual_memory: false,
        ..MachineConfig::default()
    });
    assert_eq!(call!(aclInit(null() => *const c_void)), 0);
    assert_eq!(call!(aclrtSetDevice(0 => i32)), 0);
    let mut bytes = 0usize;
    let code =
        call!(aclrtMemGetAllocationGranularity(&HUGE => *const Properties, 0 => c_int, &mut bytes => *mut usize));
    assert_eq!(code, NOT_SUPPORTED);
    assert_eq!(reserve(PAGE, 0), Err(NOT_SUPPORTED));
}

#[test]
fn capturing_context_refuses_to_synchronize() {
    let (_machine, _installed) = device();
    let (mut stream, mut model, mut status) = (0usize, 0usize, 9u32);
    assert_eq!(call!(aclrtCreateStream(&mut stream => *mut usize)), 0);
    assert_eq!(call!(aclmdlRICaptureBegin(0 => usize, 2 => u32)), INVALID_PARAM);
    assert_eq!(call!(aclmdlRICaptureBegin(stream => usize, 2 => u32)), 0);
    assert_eq!(call!(aclrtSynchronizeDevice()), crate::standin::STREAM_CAPTURED);
    let ask = |status: *mut u32, model: *mut usize| call!(aclmdlRICaptureGetInfo(stream => usize, status => *mut u32, model => *mut usize));
    assert_eq!(ask(&mut status, &mut model), 0);
    assert!(status == 1 && model != 0, "the refusal ended no capture: {status}");
    let mut ended = 0usize;
    assert_eq!(call!(aclmdlRICaptureEnd(stream => usize, &mut ended => *mut usize)), 0);
    assert_eq!(ended, model);
    assert_eq!(call!(aclmdlRIExecuteAsync(model => usize, stream => usize)), 0);
    assert_eq!(call!(aclmdlRIDestroy(model => usize)), 0);
    assert_eq!(call!(aclmdlRIDestroy(model => usize)), RT_PARAM_INVALID);
}
