//! Bad calls, each in a process of its own, through the C ABI: a defined answer, a logged reason, no crash, nothing on
//! stdout, and the allocator works on.

use std::cell::RefCell;
use std::env;
use std::ffi::{CStr, c_char, c_void};
use std::process::{Command, Output};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use trtalloc::allocator::Allocator;
use trtalloc::capi::*;
use trtalloc::config::{Config, LogLevel};
use trtalloc::driver::sim::model::Machine;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::handle::Handle;

const ROLE: &str = "TRTALLOC_BAD_CALL";
const MIB: u64 = 1 << 20;

/// Runs the test `name` once more in a child process, where `case` is run instead.
fn in_child(name: &str, case: fn()) -> Option<Output> {
    if env::var(ROLE).is_ok_and(|role| role == name) {
        case();
        return None;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, name)
        .env("TRTALLOC_LOG", "warn")
        .env_remove("TRTALLOC_DRIVER")
        .output()
        .unwrap();
    let (told, complaints) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{name}: {}\n{told}\n{complaints}",
        output.status
    );
    // What is left of stdout is libtest's own.
    let strange = told.lines().find(|line| {
        let own = line.is_empty() || line.starts_with("running 1") || line.starts_with("test ") || *line == "ok";
        !own
    });
    assert_eq!(strange, None, "the library wrote to stdout:\n{told}");
    Some(output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A test whose case runs in a child; what it writes to stderr must contain each of `says`.
macro_rules! bad_call {
    ($name:ident, [$($says:expr),*], $case:expr) => {
        #[test]
        fn $name() {
            if let Some(output) = in_child(stringify!($name), $case) {
                let _complaints = text(&output.stderr);
                $(assert!(_complaints.contains($says), "{:?} is not in\n{_complaints}", $says);)*
            }
        }
    };
}

fn last() -> String {
    // SAFETY: never null, and valid until this thread's next call.
    unsafe { CStr::from_ptr(trtalloc_last_error()) }
        .to_string_lossy()
        .into_owned()
}

fn created(options: &CStr) -> *mut trtalloc_allocator {
    let mut allocator = null_mut();
    // SAFETY: a C string and a place for the answer.
    let status = unsafe { trtalloc_create(options.as_ptr(), &mut allocator) };
    assert_eq!(status as i32, 0, "{}", last());
    allocator
}

/// An allocator over a simulated device whose application side the test has too.
fn with_machine(devices: u32) -> (*mut trtalloc_allocator, Arc<Machine>) {
    trtalloc::log::init(LogLevel::Warn);
    let driver = SimDriver::new(SimConfig {
        devices,
        memory: 1 << 30,
        ..SimConfig::default()
    });
    let machine = driver.machine().clone();
    let context = machine.primary_retain(0).unwrap();
    machine.context_push(context).unwrap();
    let allocator = Allocator::with_driver(driver, Config::default()).unwrap();
    (std::ptr::from_ref(Handle::new(allocator)).cast_mut().cast(), machine)
}

fn get(allocator: *mut trtalloc_allocator, size: u64, alignment: u64) -> *mut c_void {
    // SAFETY: a handle or null; the other values may be anything.
    unsafe { trtalloc_allocate(allocator, size, alignment, 0) }
}

fn put(allocator: *mut trtalloc_allocator, memory: *mut c_void) -> bool {
    // SAFETY: as in `get`.
    unsafe { trtalloc_deallocate(allocator, memory) }
}

/// The allocator works on and its books balance.
fn works(allocator: *mut trtalloc_allocator) {
    let block = get(allocator, MIB, 0);
    assert!(!block.is_null(), "{}", last());
    assert!(put(allocator, block), "{}", last());
    let mut stats = trtalloc_stats::default();
    // SAFETY: a place of that size.
    let status = unsafe { trtalloc_stats_get(allocator, 0, &mut stats, size_of::<trtalloc_stats>()) };
    assert_eq!(status as i32, 0, "{}", last());
    assert_eq!(
        (stats.allocated, stats.requested, stats.allocations - stats.frees),
        (0, 0, 0)
    );
}

bad_call!(null_allocator, ["allocator"], || {
    assert!(get(null_mut(), 1, 0).is_null());
    assert!(!last().is_empty());
    assert!(!put(null_mut(), 0x1000 as *mut c_void));
    // SAFETY: null is what this is about.
    unsafe {
        assert!(trtalloc_allocate_async(null_mut(), 1, 0, 0, null_mut()).is_null());
        assert!(trtalloc_reallocate(null_mut(), null_mut(), 0, 1).is_null());
        assert_ne!(trtalloc_create(null(), null_mut()) as i32, 0);
        trtalloc_destroy(null_mut());
    }
});

bad_call!(size_0, [], || {
    let allocator = created(c"driver=sim");
    assert!(get(allocator, 0, 0).is_null());
    assert!(last().contains('0'));
    works(allocator);
});

bad_call!(absurd_sizes, [], || {
    let allocator = created(c"driver=sim");
    for size in [1 << 63, u64::MAX, u64::MAX - 511, 1 << 50] {
        assert!(get(allocator, size, 0).is_null());
        assert!(last().starts_with("out of memory"), "{}", last());
    }
    works(allocator);
});

bad_call!(absurd_alignments, ["alignment 3", "alignment 4294967296"], || {
    let allocator = created(c"driver=sim");
    for alignment in [3, 1 << 32, 4 * MIB, 513, u64::MAX] {
        assert!(get(allocator, 1, alignment).is_null());
        assert!(last().contains("alignment"), "{}", last());
    }
    works(allocator);
});

bad_call!(foreign_pointers, ["no block"], || {
    let allocator = created(c"driver=sim");
    let other = created(c"driver=sim");
    works(allocator);
    let (mut local, theirs) = (0u64, get(other, MIB, 0));
    for stranger in [
        std::ptr::from_mut(&mut local).cast(),
        4096 as *mut c_void,
        usize::MAX as *mut c_void,
        theirs,
    ] {
        assert!(!put(allocator, stranger));
        // SAFETY: any pointer is answered.
        assert!(unsafe { trtalloc_reallocate(allocator, stranger, 0, 10).is_null() });
    }
    assert!(put(other, theirs));
    works(allocator);
});

bad_call!(interior_pointers, ["no block"], || {
    let allocator = created(c"driver=sim");
    let block = get(allocator, 8 * MIB, 0);
    for inside in [1, 512, 4096, MIB as usize, 8 * MIB as usize] {
        assert!(!put(allocator, block.wrapping_byte_add(inside)));
    }
    assert!(put(allocator, block));
    works(allocator);
});

bad_call!(double_free, ["was freed before"], || {
    let (allocator, machine) = with_machine(1);
    let stream = machine.stream_create(true).unwrap() as *mut c_void;
    // SAFETY: a living stream.
    let block = unsafe { trtalloc_allocate_async(allocator, MIB, 0, 0, stream) };
    // SAFETY: as above.
    unsafe {
        assert!(trtalloc_deallocate_async(allocator, block, stream));
        assert!(!trtalloc_deallocate_async(allocator, block, stream));
        assert!(!trtalloc_deallocate(allocator, block));
        let again = trtalloc_allocate_async(allocator, MIB, 0, 0, stream);
        assert_eq!(again, block);
        let second = trtalloc_allocate_async(allocator, MIB, 0, 0, stream);
        assert_ne!(second, block, "the second free must not have handed it out twice");
        assert!(
            trtalloc_deallocate_async(allocator, again, stream) && trtalloc_deallocate_async(allocator, second, stream)
        );
    }
    works(allocator);
});

bad_call!(a_destroyed_stream, [], || {
    let (allocator, machine) = with_machine(1);
    let stream = machine.stream_create(true).unwrap();
    // SAFETY: a living stream.
    let (block, more) = unsafe {
        let block = trtalloc_allocate_async(allocator, 64 * MIB, 0, 0, stream as *mut c_void);
        (
            block,
            trtalloc_allocate_async(allocator, 64 * MIB, 0, 0, stream as *mut c_void),
        )
    };
    machine.stream_destroy(stream).unwrap();
    // SAFETY: the dead handle is what this is about: it must not reach the driver, which would abort.
    unsafe {
        assert!(
            trtalloc_deallocate_async(allocator, block, stream as *mut c_void),
            "{}",
            last()
        );
        assert!(
            trtalloc_deallocate_async(allocator, more, stream as *mut c_void),
            "{}",
            last()
        );
        // One that was never allocated on.
        let stranger = trtalloc_allocate(allocator, MIB, 0, 0);
        assert!(
            trtalloc_deallocate_async(allocator, stranger, (stream + 4096) as *mut c_void),
            "{}",
            last()
        );
    }
    works(allocator);
});

bad_call!(null_memory, [], || {
    let allocator = created(c"driver=sim");
    assert!(put(allocator, null_mut()));
    // SAFETY: null is what this is about.
    assert!(unsafe { trtalloc_deallocate_async(allocator, null_mut(), null_mut()) });
    works(allocator);
});

bad_call!(unreadable_options, [], || {
    for options in [
        c"limit=banana",
        c"=",
        c"nonsense=1",
        c"driver=sim,driver",
        c"driver=sim,device=x",
        c"\xff\xfe",
    ] {
        let mut allocator = null_mut();
        // SAFETY: a C string and a place for the answer.
        let status = unsafe { trtalloc_create(options.as_ptr().cast::<c_char>(), &mut allocator) };
        assert_eq!(status as i32, 1, "{options:?}");
        assert!(allocator.is_null() && !last().is_empty());
    }
});

bad_call!(unreadable_environment, ["TRTALLOC_LIMIT"], || {
    // SAFETY: no other thread of this process reads the environment.
    unsafe {
        env::set_var("TRTALLOC_LIMIT", "banana");
        env::set_var("TRTALLOC_DRIVER", "sim");
    }
    works(trtalloc_default());
});

bad_call!(no_driver, [], || {
    if trtalloc::driver::cuda::CudaDriver::open().is_ok() {
        return;
    }
    let mut allocator = null_mut();
    // SAFETY: a C string and a place for the answer.
    let status = unsafe { trtalloc_create(c"driver=cuda".as_ptr(), &mut allocator) };
    assert_eq!(status as i32, 4);
    assert!(last().contains("libcuda.so.1"), "{}", last());
    assert!(get(trtalloc_default(), 1, 0).is_null());
    assert!(last().contains("libcuda.so.1"), "{}", last());
});

bad_call!(a_context_that_was_reset, ["dead"], || {
    let (allocator, machine) = with_machine(1);
    let stream = machine.stream_create(true).unwrap() as *mut c_void;
    // SAFETY: a living stream.
    let (block, on) = (get(allocator, MIB, 0), unsafe {
        trtalloc_allocate_async(allocator, MIB, 0, 0, stream)
    });
    machine.primary_reset(0).unwrap();
    assert!(get(allocator, MIB, 0).is_null());
    assert!(last().contains("ContextDead"), "{}", last());
    assert!(put(allocator, block), "frees are accepted: {}", last());
    // SAFETY: frees ask the driver nothing.
    assert!(
        unsafe { trtalloc_deallocate_async(allocator, on, stream) },
        "{}",
        last()
    );
    assert!(get(allocator, MIB, 0).is_null(), "dead is dead");
    // SAFETY: a handle.
    unsafe { trtalloc_destroy(allocator) };
});

bad_call!(in_a_forked_child, [], || {
    let allocator = created(c"driver=sim");
    let block = get(allocator, MIB, 0);
    // SAFETY: the child only makes calls of the library, which must not lock, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = get(allocator, MIB, 0).is_null() && last().contains("fork") && !put(allocator, block);
        // SAFETY: leaves at once, without the parent's handlers.
        unsafe {
            trtalloc_destroy(allocator);
            libc::_exit(i32::from(!refused));
        }
    }
    let mut status = -1;
    // SAFETY: the child from above and a local.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child got something, or crashed");
    assert!(put(allocator, block));
    works(allocator);
});

static LATE: AtomicPtr<trtalloc_allocator> = AtomicPtr::new(null_mut());

extern "C" fn late() {
    let allocator = LATE.load(Ordering::Relaxed);
    let refused = get(allocator, MIB, 0).is_null();
    let accepted = put(allocator, null_mut());
    eprintln!("late: refused {refused}, accepted {accepted}, {}", last());
}

bad_call!(
    from_an_atexit_handler,
    ["late: refused true, accepted true", "exiting"],
    || {
        // Registered before the library's own handler, so it runs after it.
        // SAFETY: a function of this program.
        unsafe { libc::atexit(late) };
        let allocator = created(c"driver=sim");
        works(allocator);
        LATE.store(allocator, Ordering::Relaxed);
    }
);

struct Last(*mut trtalloc_allocator);

impl Drop for Last {
    fn drop(&mut self) {
        let block = get(self.0, MIB, 0);
        let strange = put(self.0, 0x1000 as *mut c_void);
        eprintln!("farewell: {} {} {}", !block.is_null(), put(self.0, block), !strange);
    }
}

thread_local! {
    static FAREWELL: RefCell<Option<Last>> = const { RefCell::new(None) };
}

bad_call!(
    from_a_destructor_of_a_thread_local,
    ["farewell: true true true", "no block"],
    || {
        let allocator = created(c"driver=sim,log=trace");
        let here = allocator as usize;
        let thread = std::thread::spawn(move || {
            FAREWELL.with(|last| *last.borrow_mut() = Some(Last(here as *mut trtalloc_allocator)));
            works(here as *mut trtalloc_allocator);
        });
        thread.join().unwrap();
        works(allocator);
    }
);

bad_call!(ten_thousand_threads, [], || {
    let allocator = created(c"driver=sim") as usize;
    for _ in 0..100 {
        let threads: Vec<_> = (0..100)
            .map(|_| {
                let body = move || {
                    let allocator = allocator as *mut trtalloc_allocator;
                    // SAFETY: a handle; null is the default stream.
                    let block = unsafe { trtalloc_allocate_async(allocator, 4096, 0, 0, null_mut()) };
                    // SAFETY: as above.
                    !block.is_null() && unsafe { trtalloc_deallocate_async(allocator, block, null_mut()) }
                };
                std::thread::Builder::new().stack_size(64 << 10).spawn(body).unwrap()
            })
            .collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    }
    works(allocator as *mut trtalloc_allocator);
});
