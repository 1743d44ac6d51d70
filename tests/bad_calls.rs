//! Calls that should not have been made, each in a process of its own: over the simulated device (`sim`) over CUDA
//! through the simulated libcuda.so.1 (`cuda`), and through the second simulated driver's where that is there (`second`), by the C
//! functions. Each has a defined answer and a logged reason;
//! nothing is written to stdout, nothing crashes, and the process ends with status 0.

#[macro_use]
extern crate trial;

mod common;
#[path = "common/cudasim/mod.rs"]
mod cudasim;
#[allow(dead_code)]
#[path = "conformance/device.rs"]
mod device;
#[path = "bad_calls/devices.rs"]
mod devices;
#[path = "bad_calls/environment.rs"]
mod environment;
#[allow(dead_code)]
#[path = "conformance/interface.rs"]
mod interface;
#[path = "common/simcuda.rs"]
mod simcuda;

use std::cell::RefCell;
use std::env;
use std::ffi::{CStr, CString, c_void};
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use device::{Cuda, Device, Sim};
use devices::devices_that_are_not_there;
use interface::{Interface, Over, Way};
use trtalloc::allocator::{Allocator, RESIZABLE};
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::c::{self, trtalloc_status};
use trtalloc::ffi::tensorrt::client::Client;

fn main() -> std::process::ExitCode {
    common::harness::main()
}

const ROLE: &str = "TRTALLOC_TEST_ROLE";
const OUTPUT: &str = "TRTALLOC_TEST_OUTPUT";
const MIB: u64 = 1 << 20;

/// Where a case runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Sim,
    Cuda,
    /// The second simulated driver, where it is there.
    Second,
    /// With no driver to be found.
    Nowhere,
}

/// An application with device 0 current, and an allocator used through C.
struct World {
    device: Arc<dyn Device>,
    interface: Box<dyn Interface>,
}

impl World {
    fn new(place: Place, options: &str) -> World {
        let (device, over): (Arc<dyn Device>, Over) = match place {
            Place::Sim => {
                let driver = SimDriver::new(SimConfig {
                    memory: 1 << 30,
                    ..SimConfig::default()
                });
                (Arc::new(Sim(driver.clone())), Over::Driver(driver))
            }
            _ => (Arc::new(Cuda::new()), Over::Cuda),
        };
        device.enter(0);
        World {
            interface: interface::open(Way::C, &over, options, None),
            device,
        }
    }

    fn get(&self, size: u64) -> usize {
        let block = self.interface.allocate(size, 0, 0);
        assert_ne!(block, 0, "{}", self.interface.last_error());
        block
    }

    /// The allocator works as if nothing had happened.
    fn finish(&self) {
        let stream = self.device.stream();
        let block = self.interface.allocate_async(3 * MIB, 0, 0, stream);
        assert_ne!(block, 0, "{}", self.interface.last_error());
        self.device.write(stream, block, 3 * MIB, 1);
        assert!(self.interface.deallocate_async(block, stream));
        self.interface.inside().validate().unwrap();
        assert_eq!(self.interface.stats(0).allocated, 0);
        let (status, _) = self.interface.trim(0, 0);
        assert_eq!((status, self.interface.stats(0).reserved), (0, 0));
        self.interface.close();
    }
}

fn simulated_library() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built"))
}

/// Runs `body` in a process of its own, whose stderr must have each of `reasons`.
fn run(place: Place, name: &str, body: fn(Place), reasons: &[&str], variables: &[(&str, &str)]) {
    if env::var(ROLE).is_ok_and(|role| role == name) {
        let output = fs::File::create(env::var(OUTPUT).unwrap()).unwrap();
        // SAFETY: both descriptors are open; from here on stdout is the file.
        assert!(unsafe { libc::dup2(output.as_raw_fd(), 1) } >= 0);
        body(place);
        // SAFETY: as `exit` at the end of a program's main: handlers run, the test harness is left out.
        unsafe { libc::exit(0) };
    }
    let output =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bad-{}-{}", std::process::id(), name.replace(':', "-")));
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, name)
        .env(OUTPUT, &output)
        .env("TRTALLOC_LOG", "debug")
        .envs(variables.iter().copied());
    match place {
        Place::Cuda => {
            command
                .env("LD_LIBRARY_PATH", simulated_library())
                .env("SIMCUDA_MEMORY", (1u64 << 30).to_string());
        }
        // CUDA: cuDevicePrimaryCtxReset "explicitly destroys and cleans up all resources"; there it does nothing.
        Place::Second if name.ends_with("a_context_that_was_reset") => {
            common::unsupported("the second simulated driver resets no context");
        }
        Place::Second => cudasim::environment(&mut command, 13_020, 1, 1 << 30),
        Place::Nowhere => {
            command.env_remove("LD_LIBRARY_PATH");
        }
        Place::Sim => {}
    }
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{name}: {}\n{said}", ended.status);
    let written = fs::read(&output).unwrap_or_else(|error| panic!("{name} did not run: {error}\n{said}"));
    let _ = fs::remove_file(&output);
    assert!(
        written.is_empty(),
        "{name} on stdout: {}",
        String::from_utf8_lossy(&written)
    );
    assert!(
        !said.contains("panicked") && !said.contains("simcuda:"),
        "{name}:\n{said}"
    );
    for reason in reasons {
        assert!(said.contains(reason), "{name} does not say `{reason}`:\n{said}");
    }
}

/// A test over the simulated device, one over CUDA and one over the second simulated driver for each case.
macro_rules! cases {
    ($($name:ident $reasons:expr;)*) => {
        mod sim {
            $(#[test]
            fn $name() {
                super::run(super::Place::Sim, concat!("sim::", stringify!($name)), super::$name, &$reasons, &[]);
            })*
        }
        mod cuda {
            $(#[test]
            fn $name() {
                super::run(super::Place::Cuda, concat!("cuda::", stringify!($name)), super::$name, &$reasons, &[]);
            })*
        }
        mod second {
            $(#[test]
            fn $name() {
                super::run(super::Place::Second, concat!("second::", stringify!($name)), super::$name, &$reasons, &[]);
            })*
        }
    };
}

cases! {
    null_allocator ["allocator is NULL"];
    size_0 [];
    size_2_to_the_63 ["9223372036854775808 bytes"];
    alignment_3 ["alignment 3 is not"];
    alignment_4_gib ["alignment 4294967296 is not"];
    foreign_pointer ["is no block of this allocator"];
    interior_pointer ["is no block of this allocator"];
    double_free ["freed before", "is no block of this allocator"];
    unknown_flags ["flags 0x6 are not known"];
    devices_that_are_not_there ["device -2 of 1", "device 1 of 1"];
    deallocate_async_on_a_destroyed_stream [];
    deallocate_null [];
    an_unreadable_option ["option `limit`: cannot read `plenty`", "unknown option `limits`"];
    a_context_that_was_reset ["the pool is dead"];
    after_fork ["this process was forked"];
    at_exit ["the process is exiting"];
    from_a_thread_local_destructor ["is no block of this allocator"];
    ten_thousand_threads [];
    after_destroy ["the allocator was destroyed"];
}

fn null_allocator(_: Place) {
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

fn size_0(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    assert_eq!(world.interface.allocate(0, 0, 0), 0);
    assert!(world.interface.last_error().contains("size is 0"));
    assert_eq!(world.interface.allocate_async(0, 4096, RESIZABLE, stream), 0);
    world.finish();
}

/// They count as out of memory, from the first one on, and the handler is asked as for every other.
fn size_2_to_the_63(place: Place) {
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

fn alignment_3(place: Place) {
    refused_alignment(place, 3);
}

fn alignment_4_gib(place: Place) {
    refused_alignment(place, 4 << 30);
}

/// None of them is a block, whatever is done with it.
fn refused_blocks(world: &World, addresses: &[usize]) {
    let stream = world.device.stream();
    for address in addresses {
        assert!(!world.interface.deallocate(*address), "{address:#x}");
        assert!(!world.interface.deallocate_async(*address, stream), "{address:#x}");
        assert_eq!(world.interface.reallocate(*address, 0, MIB), 0, "{address:#x}");
        assert_ne!(world.interface.record_stream(*address, stream), 0, "{address:#x}");
    }
}

fn foreign_pointer(place: Place) {
    let world = World::new(place, "");
    let block = world.get(MIB);
    let own = world.device.malloc(MIB);
    let local = 0;
    refused_blocks(
        &world,
        &[own, std::ptr::from_ref(&local).addr(), 1, 4096, usize::MAX, 1 << 63],
    );
    world.device.free(own);
    assert!(world.interface.deallocate(block));
    world.finish();
}

fn interior_pointer(place: Place) {
    let world = World::new(place, "");
    let block = world.get(4 * MIB);
    let special = world.interface.allocate(4 * MIB, 0, RESIZABLE);
    for inside in [1, 256, 512, 4096, 2 << 20] {
        refused_blocks(&world, &[block + inside, special + inside]);
    }
    assert!(world.interface.deallocate(block) && world.interface.deallocate(special));
    world.finish();
}

fn double_free(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    let ordered = world.interface.allocate_async(MIB, 0, 0, stream);
    let (plain, special) = (world.get(MIB), world.interface.allocate(MIB, 0, RESIZABLE));
    assert!(world.interface.deallocate_async(ordered, stream));
    // The pool knows it as a block until it collects what has completed.
    assert!(!world.interface.deallocate_async(ordered, stream));
    assert!(world.interface.deallocate(plain) && world.interface.deallocate(special));
    refused_blocks(&world, &[ordered, plain, special]);
    // Twice at once.
    for _ in 0..200 {
        let block = world.get(MIB);
        let taken: usize = std::thread::scope(|scope| {
            let free = || usize::from(world.interface.deallocate(block));
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(free)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 1);
    }
    world.finish();
}

/// A newer TensorRT may set bits that this library does not know; those that it knows mean what they mean.
fn unknown_flags(place: Place) {
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

fn deallocate_async_on_a_destroyed_stream(place: Place) {
    let world = World::new(place, "");
    for rebirth in [false, true] {
        let stream = world.device.stream();
        let blocks: Vec<usize> = (0..200)
            .map(|at| {
                world
                    .interface
                    .allocate_async(MIB, 0, if at == 3 { RESIZABLE } else { 0 }, stream)
            })
            .collect();
        for block in &blocks {
            world.device.write(stream, *block, MIB, 1);
        }
        world.device.destroy(stream);
        let born = rebirth.then(|| world.device.stream());
        for block in &blocks {
            assert!(
                world.interface.deallocate_async(*block, stream),
                "{}",
                world.interface.last_error()
            );
        }
        if let Some(born) = born {
            let block = world.interface.allocate_async(MIB, 0, 0, born);
            assert!(block != 0 && world.interface.deallocate_async(block, born));
        }
    }
    world.finish();
}

fn deallocate_null(place: Place) {
    let world = World::new(place, "");
    assert!(world.interface.deallocate(0) && world.interface.deallocate_async(0, 0));
    world.finish();
    assert!(world.interface.deallocate(0) && world.interface.deallocate_async(0, 0));
}

fn an_unreadable_option(_: Place) {
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

fn a_context_that_was_reset(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    let ordered = world.interface.allocate_async(MIB, 0, 0, stream);
    let blocks = [world.get(MIB), world.interface.allocate(MIB, 0, RESIZABLE)];
    match world.device.machine() {
        Some(machine) => machine.primary_reset(0).unwrap(),
        // SAFETY: the test's own device; nothing of its context is used after this.
        None => assert_eq!(unsafe { cudarc::driver::sys::cuDevicePrimaryCtxReset_v2(0) } as u32, 0),
    }
    world.device.leave_what_is_gone();
    world.device.enter(0);
    let stream = world.device.stream();
    for _ in 0..3 {
        assert_eq!(world.interface.allocate(40 * MIB, 0, 0), 0);
        assert_eq!(world.interface.allocate(MIB, 0, RESIZABLE), 0);
        assert_eq!(world.interface.allocate_async(40 * MIB, 0, 0, stream), 0);
        assert_eq!(world.interface.reallocate(blocks[1], 0, 90 * MIB), 0);
        assert!(!world.interface.last_error().is_empty());
    }
    assert!(world.interface.deallocate(blocks[0]) && world.interface.deallocate_async(blocks[1], stream));
    assert!(world.interface.deallocate_async(ordered, stream));
    assert!(!world.interface.deallocate(blocks[0]));
    world.interface.stats(0);
    world.interface.close();
}

fn after_fork(place: Place) {
    let world = World::new(place, "");
    let stream = world.device.stream();
    let (plain, ordered) = (world.get(MIB), world.interface.allocate_async(MIB, 0, 0, stream));
    // Another thread most likely holds the locks at the time of the fork.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                world.device.enter(0);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let block = world.interface.allocate(700_000, 0, 0);
                    assert!(world.interface.deallocate(block));
                }
                world.device.leave();
            });
        }
        for _ in 0..5 {
            // SAFETY: the child calls the library under test, and leaves by _exit.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                let refused = world.interface.allocate(MIB, 0, 0) == 0
                    && world.interface.allocate_async(MIB, 0, 0, stream) == 0
                    && world.interface.allocate(MIB, 0, RESIZABLE) == 0
                    && world.interface.reallocate(plain, 0, MIB) == 0
                    && !world.interface.deallocate(plain)
                    && !world.interface.deallocate_async(ordered, stream)
                    && world.interface.deallocate(0)
                    && world.interface.trim(0, 0).0 != 0
                    && world.interface.set_limit(0, 1) != 0
                    && world.interface.stream_release(stream) != 0
                    && world.interface.record_stream(plain, stream) != 0;
                world.interface.close();
                // SAFETY: ends the child without its parent's handlers.
                unsafe { libc::_exit(if refused { 0 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: the child of this process and a local to write to.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child was not refused, or did not end");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(world.interface.deallocate(plain) && world.interface.deallocate_async(ordered, stream));
    world.finish();
}

static WORLD: OnceLock<World> = OnceLock::new();

/// Whatever the order of handlers, calls have an answer.
extern "C" fn use_it_late() {
    let world = WORLD.get().unwrap();
    let block = world.interface.allocate(3 * MIB, 0, 0);
    let resized = world.interface.reallocate(block, 0, 5 * MIB);
    let ordered = world.interface.allocate_async(3 * MIB, 0, 0, 0);
    let taken = world.interface.deallocate(block) && world.interface.deallocate_async(ordered, 0);
    if resized != 0 || !taken {
        // SAFETY: ends the process where a panic would look like a crash.
        unsafe { libc::_exit(3) };
    }
    world.interface.trim(0, 0);
    world.interface.close();
}

fn at_exit(place: Place) {
    // SAFETY: a plain function. It is registered before the library's own handler, so it runs after it.
    assert_eq!(unsafe { libc::atexit(use_it_late) }, 0);
    let world = WORLD.get_or_init(|| World::new(place, ""));
    let block = world.get(MIB);
    world.device.write(0, block, MIB, 1);
    // SAFETY: as above; this one runs before the library's.
    assert_eq!(unsafe { libc::atexit(use_it_late) }, 0);
}

struct Late(Option<usize>);

impl Drop for Late {
    fn drop(&mut self) {
        let world = WORLD.get().unwrap();
        let block = world.interface.allocate(MIB, 0, 0);
        // A refusal is logged, while the thread's locals are going.
        let refused = !world.interface.deallocate(12_345) && world.interface.reallocate(block, 3, 1) == 0;
        let taken =
            world.interface.deallocate(block) && self.0.is_none_or(|block| world.interface.deallocate_async(block, 2));
        if block == 0 || !refused || !taken {
            // SAFETY: as above.
            unsafe { libc::_exit(4) };
        }
    }
}

thread_local! {
    static FIRST: RefCell<Late> = const { RefCell::new(Late(None)) };
    static LAST: RefCell<Late> = const { RefCell::new(Late(None)) };
}

fn from_a_thread_local_destructor(place: Place) {
    let world = WORLD.get_or_init(|| World::new(place, ""));
    for _ in 0..20 {
        // Joined by its handle: that waits for its locals, too.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // One that is destroyed after, and one before, whatever the library keeps for a thread.
                FIRST.with(|late| late.borrow_mut().0 = None);
                world.device.enter(0);
                let block = world.interface.allocate_async(MIB, 0, 0, 2);
                LAST.with(|late| late.borrow_mut().0 = Some(block));
            });
            thread.join().unwrap();
        });
    }
    world.finish();
}

fn ten_thousand_threads(place: Place) {
    let world = World::new(place, "");
    for batch in 0..50 {
        let threads: Vec<_> = std::thread::scope(|scope| {
            (0..200)
                .map(|at| {
                    let world = &world;
                    std::thread::Builder::new()
                        .stack_size(128 << 10)
                        .spawn_scoped(scope, move || {
                            world.device.enter(0);
                            let stream = if at % 2 == 0 { 2 } else { 0 };
                            let block = world.interface.allocate_async(1 + at * 100 + batch, 0, 0, stream);
                            world.device.leave();
                            block
                        })
                        .unwrap()
                })
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(
            threads.iter().all(|block| *block != 0),
            "{}",
            world.interface.last_error()
        );
        for block in threads {
            assert!(world.interface.deallocate(block));
        }
    }
    world.finish();
}

fn after_destroy(place: Place) {
    let world = World::new(place, "");
    let block = world.get(MIB);
    world.interface.close();
    world.interface.close();
    assert_eq!(world.interface.allocate(MIB, 0, 0), 0);
    assert_eq!(world.interface.allocate_async(MIB, 0, 0, 0), 0);
    assert!(world.interface.deallocate(block) && !world.interface.deallocate(block));
    assert_eq!(world.interface.stats(0).allocated, 0);
    world.interface.close();
}

fn without_a_driver(_: Place) {
    let mut out = std::ptr::dangling_mut();
    // SAFETY: a C string and a place to write to.
    let status = unsafe { c::trtalloc_create(c"driver=cuda".as_ptr(), &mut out) };
    assert_eq!((status, out), (trtalloc_status::Driver, null_mut()));
    let default = c::trtalloc_default();
    for _ in 0..3 {
        // SAFETY: a handle that lives for ever.
        unsafe {
            assert!(c::trtalloc_allocate(default, 4096, 0, 0).is_null());
            assert!(
                CStr::from_ptr(c::trtalloc_last_error())
                    .to_string_lossy()
                    .contains("libcuda.so.1")
            );
            assert!(c::trtalloc_deallocate(default, null_mut()));
            assert!(!c::trtalloc_deallocate(default, std::ptr::dangling_mut::<u8>().cast()));
        }
    }
}

#[test]
fn no_driver() {
    if Path::new("/dev/nvidiactl").exists() {
        common::unsupported("a driver is installed here, and the loader's cache would find it");
    }
    run(
        Place::Nowhere,
        "no_driver",
        without_a_driver,
        &["libcuda.so.1 is missing"],
        &[],
    );
}
