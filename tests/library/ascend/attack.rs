//! Wrong calls of an application, and machines that lack functions.

use std::cell::RefCell;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::Config;
use trtalloc::driver::ascend::AscendDriver;
use trtalloc::driver::sim::model::{Machine, MachineConfig};
use trtalloc::driver::{DriverError, Failure, Stream};
use trtalloc::error::{Error, Result};

use crate::over::open;
use crate::standin::find;
use crate::standin::process::{Installed, exclusive};

const MIB: u64 = 1 << 20;

/// Every kind of memory.
const KINDS: [&str; 5] = [
    "rule=ascend",
    "rule=ascend,backing=malloc",
    "rule=ascend,passthrough=1",
    "rule=ascend-media",
    "rule=ascend-host,kind=pinned",
];

/// Sizes and alignments where rounding changes the result.
const PIECES: [(u64, u64); 9] = [
    (1, 0),
    (1, 64),
    (31, 256),
    (1000, 0),
    (1000, 4096),
    (4096, 2 << 20),
    (3 * MIB, 0),
    (2 * MIB - 32, 0),
    (2 * MIB, 128),
];

/// Requests that cannot succeed.
const IMPOSSIBLE: [(u64, u64); 7] = [
    (0, 0),
    (1 << 63, 0),
    (u64::MAX, 0),
    (u64::MAX - 31, 0),
    (u64::MAX - 95, 64),
    (1000, 3),
    (1000, 1 << 63),
];

fn machine() -> (Arc<Machine>, Installed) {
    let machine = Machine::new(MachineConfig {
        memory: 256 * MIB,
        ..MachineConfig::default()
    });
    let installed = exclusive(machine.clone());
    (machine, installed)
}

fn request(size: u64, alignment: u64, flags: u32, stream: Option<usize>) -> Request {
    Request {
        size,
        alignment,
        flags,
        stream: stream.map(Stream),
        device: Some(0),
    }
}

fn allocator(driver: &Arc<AscendDriver>, options: &str) -> Result<Arc<Allocator>> {
    Allocator::with_driver(driver.clone(), Config::parse(options)?)
}

/// Uses everything that a pool does, without a stream and on one.
fn life(allocator: &Allocator, stream: usize) -> Result<()> {
    for _ in 0..2 {
        let block = allocator.allocate(request(3 * MIB, 0, 0, Some(stream)))?;
        let other = allocator.allocate(request(5 * MIB, 0, 0, None))?;
        let grown = allocator.allocate(request(MIB, 0, RESIZABLE, None))?;
        let grown = allocator.reallocate(grown, 0, 90 * MIB)?;
        allocator.deallocate(block, Some(Stream(stream)))?;
        allocator.deallocate(other, None)?;
        allocator.deallocate(grown, None)?;
    }
    allocator.trim(Some(0), 0)?;
    allocator.validate().map_err(Error::InvalidArgument)
}

/// Opens the driver over an AscendCL without the function of that name. Also returns the names that it looked up.
fn without(missing: &str, media: bool) -> (std::result::Result<Arc<AscendDriver>, DriverError>, Vec<String>) {
    let asked = RefCell::new(Vec::new());
    let look = |name: &CStr, media: bool| {
        let name = name.to_str().unwrap();
        asked.borrow_mut().push(name.to_owned());
        NonNull::new(find(name, media).filter(|_| name != missing)?.cast_mut())
    };
    // SAFETY: the stand-in has AscendCL's signatures.
    let opened = unsafe { AscendDriver::over(&look, media) };
    (opened, asked.into_inner())
}

#[test]
fn missing_functions_are_named_or_replaced() {
    for media in [false, true] {
        let names = {
            let (_machine, _installed) = machine();
            let (opened, names) = without("", media);
            opened.unwrap();
            names
        };
        assert!(names.len() > 30, "{names:?}");
        let mut named = 0;
        for name in names {
            let (machine, _installed) = machine();
            let driver = match without(&name, media).0 {
                Ok(driver) => driver,
                Err(error) => {
                    named += 1;
                    assert_eq!((error.failure, error.call), (Failure::Missing, name.as_str()));
                    continue;
                }
            };
            machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
            let stream = machine.stream_create(true).unwrap();
            let rule = if media { "rule=ascend-media" } else { "rule=ascend" };
            let allocator = allocator(&driver, rule).unwrap();
            life(&allocator, stream).unwrap_or_else(|why| panic!("without {name}: {why}"));
            allocator.close();
            assert_eq!(machine.memory_held(), [0, 0, 0], "without {name}");
            assert_eq!(machine.faults(), Vec::<String>::new(), "without {name}");
            machine.context_pop().unwrap();
        }
        assert!(named >= 20, "{named}");
    }
}

/// Checks that every request is refused with the reason, and that every free is accepted.
fn dead(allocator: &Allocator, blocks: &[u64], stream: usize) {
    for flags in [0, RESIZABLE] {
        for on in [None, Some(stream)] {
            assert!(allocator.allocate(request(MIB, 0, flags, on)).is_err());
        }
    }
    assert!(allocator.reallocate(blocks[1], 0, 90 * MIB).is_err());
    allocator.deallocate(blocks[0], Some(Stream(stream))).unwrap();
    allocator.deallocate(blocks[1], None).unwrap();
    allocator.deallocate(blocks[2], None).unwrap();
    let stats = allocator.stats(Some(0)).unwrap();
    assert_eq!((stats.allocated, stats.requested), (0, 0), "{stats:?}");
    assert!(allocator.deallocate(blocks[2], None).is_err());
    let _ = allocator.trim(Some(0), 0);
    allocator.close();
}

fn call(name: &str) -> *const c_void {
    find(name, false).unwrap()
}

#[test]
fn finalize_or_reset_with_live_blocks_refuses_requests() {
    for options in KINDS {
        for finalize in [true, false] {
            let (machine, _installed) = machine();
            let driver = open(options.contains("media")).unwrap();
            machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
            let stream = machine.stream_create(true).unwrap();
            let allocator = allocator(&driver, options).unwrap();
            let get = |flags, on| allocator.allocate(request(MIB, 0, flags, on)).unwrap();
            let blocks = [get(0, Some(stream)), get(RESIZABLE, None), get(0, None)];
            // SAFETY: the functions of these names have these types.
            let code = unsafe {
                if finalize {
                    std::mem::transmute::<*const c_void, extern "C" fn() -> i32>(call("aclFinalize"))()
                } else {
                    std::mem::transmute::<*const c_void, extern "C" fn(i32) -> i32>(call("aclrtResetDeviceForce"))(0)
                }
            };
            assert_eq!(code, 0);
            dead(&allocator, &blocks, stream);
        }
    }
}

/// The bytes that the owner of `size` bytes may use.
fn extent(rule: &str, pad: &str, size: u64) -> u64 {
    match (rule, pad) {
        ("cuda", _) => size,
        (_, "pad=0") => size.next_multiple_of(32),
        (_, "pad=16") => size.next_multiple_of(32) + 16,
        _ => size.next_multiple_of(32) + 32,
    }
}

/// Checks that each block meets its rule and its request, is accessible to its last byte, and overlaps no other block.
fn carve(options: &str, start: u64, extent: impl Fn(u64) -> u64) {
    let (machine, _installed) = machine();
    machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
    let media = options.contains("ascend-media") && options.contains("device");
    let allocator = match allocator(&open(media).unwrap(), options) {
        Ok(allocator) => allocator,
        Err(why) => {
            return assert!(
                options.contains("pinned") && options.contains("guard"),
                "{options}: {why}"
            );
        }
    };
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (size, alignment) in PIECES {
        for flags in [0, RESIZABLE] {
            let outcome = allocator.allocate(request(size, alignment, flags, None));
            let what = format!("{options}: {size} bytes at a multiple of {alignment}");
            let at = outcome.unwrap_or_else(|why| panic!("{what}: {why}"));
            let bytes = extent(size);
            assert!(at.is_multiple_of(start.max(alignment)), "{what}: {at:#x}");
            let apart = |(other, theirs): &(u64, u64)| at + bytes <= *other || other + theirs <= at;
            assert!(out.iter().all(apart), "{what}: {at:#x}");
            for byte in [at, at + bytes - 1] {
                machine.write(byte, &[1]).unwrap_or_else(|why| panic!("{what}: {why}"));
            }
            out.push((at, bytes));
        }
    }
    assert_eq!(out.len(), 2 * PIECES.len());
    for (size, alignment) in IMPOSSIBLE {
        for flags in [0, RESIZABLE] {
            let outcome = allocator.allocate(request(size, alignment, flags, None));
            assert!(outcome.is_err(), "{options}: {size} bytes at a multiple of {alignment}");
        }
    }
    for (at, _) in out {
        allocator.deallocate(at, None).unwrap();
    }
    allocator.trim(Some(0), 0).unwrap();
    allocator.validate().unwrap();
    allocator.close();
    assert_eq!(machine.memory_held(), [0, 0, 0], "{options}");
    assert_eq!(machine.faults(), Vec::<String>::new(), "{options}");
}

#[test]
fn all_rules_hold_with_all_options() {
    for (rule, start) in [
        ("cuda", 512),
        ("ascend", 64),
        ("ascend-media", 128),
        ("ascend-host", 64),
    ] {
        for pad in ["pad=0", "pad=16", "pad=32"] {
            for kind in ["device", "pinned"] {
                for more in ["guard=0", "passthrough=1", "guard=1,fill=3", "backing=malloc"] {
                    let options = format!("rule={rule},{pad},kind={kind},{more}");
                    carve(&options, start, |size| extent(rule, pad, size));
                }
            }
        }
    }
}
