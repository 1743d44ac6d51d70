//! Where a stack leads: through code without frame pointers, through what is unloaded, signals, forks and threads.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use trtalloc::driver::{Driver, Stream};

use crate::common;
use crate::program::{Program, path};

type Work = extern "C" fn();

/// A library that calls back, compiled without frame pointers. `name` is its function's.
fn library(name: &str, strip: bool) -> PathBuf {
    let dir = common::scratch(&format!("stacks-{name}"));
    let source = dir.join("library.cpp");
    let text = format!(
        "namespace engine {{ __attribute__((noinline)) void {name}(void (*work)()) {{
           volatile char room[100]; room[7] = 1; work(); room[8] = room[7]; }} }}
         extern \"C\" __attribute__((visibility(\"default\"))) void enter(void (*work)()) {{ engine::{name}(work); volatile int after = 1; (void)after; }}"
    );
    std::fs::write(&source, text).unwrap();
    let library = dir.join(format!("lib{name}.so"));
    let mut compiler = common::cxx();
    compiler.args([
        "-O2",
        "-fomit-frame-pointer",
        "-fno-optimize-sibling-calls",
        "-shared",
        "-fPIC",
        "-Wl,--build-id",
    ]);
    if strip {
        compiler.arg("-s").arg("-fvisibility=hidden");
    } else {
        compiler.arg("-g1");
    }
    if compiler.arg("-o").arg(&library).arg(&source).output().is_err() {
        common::skip("c++", "no compiler");
    }
    library
}

struct Loaded(*mut libc::c_void);

impl Loaded {
    fn open(path: &Path) -> Loaded {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a C string; the library runs nothing when it is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{}", path.display());
        Loaded(handle)
    }

    fn enter(&self, work: Work) {
        // SAFETY: the library's function has this signature.
        let enter: extern "C" fn(Work) = unsafe { std::mem::transmute(libc::dlsym(self.0, c"enter".as_ptr())) };
        enter(work);
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, and nothing of it is used any more.
        unsafe { libc::dlclose(self.0) };
    }
}

/// What a callback without arguments works on. Tests that use it take turns.
static ALLOCATOR: AtomicUsize = AtomicUsize::new(0);
static BLOCK: AtomicU64 = AtomicU64::new(0);
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

extern "C" fn allocate_here() {
    // SAFETY: set by a test that keeps its program until it has taken its turn to the end.
    let program = unsafe { &*(ALLOCATOR.load(Ordering::Acquire) as *const Program) };
    BLOCK.store(program.get(3 << 20, Some(Stream(0))), Ordering::Release);
}

fn in_turn(test: impl FnOnce(&Program)) {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let program = Program::new("history=all,stacks=native");
    ALLOCATOR.store(std::ptr::from_ref(&program).addr(), Ordering::Release);
    test(&program);
}

#[test]
fn through_code_without_frame_pointers_and_after_it_is_unloaded() {
    let made = [
        ("denoise", false),
        ("upscale", false),
        ("nameless", true),
        ("interpolate", false),
    ];
    let [first, second, bare, gone] = made.map(|(name, strip)| library(name, strip));
    in_turn(|program| {
        // The second may come to lie where the first lay.
        for library in [&first, &second, &bare] {
            Loaded::open(library).enter(allocate_here);
        }
        let seen = program.snapshot("unloaded");
        let here = "through_code_without_frame_pointers";
        assert!(seen.stack(&["engine::denoise(void (*)())", "enter", here]), "{seen}");
        assert!(seen.stack(&["engine::upscale(void (*)())", "enter", here]), "{seen}");
        assert!(seen.stack(&["libnameless.so+0x", "enter", here]), "{seen}");
        assert!(!seen.stack(&["engine::denoise", "engine::upscale"]), "{seen}");
        // A file that is another by now has nothing to say.
        Loaded::open(&gone).enter(allocate_here);
        std::fs::remove_file(&gone).unwrap();
        std::fs::copy(&second, &gone).unwrap();
        let seen = program.snapshot("replaced");
        assert!(
            seen.stack(&["libinterpolate.so+0x", here]) && !seen.names("engine::interpolate"),
            "{seen}"
        );
        assert!(seen.stack(&["engine::denoise(void (*)())", "enter", here]), "{seen}");
    });
}

extern "C" fn on_signal(_: i32) {
    allocate_here();
    // No jump to it, which would leave this function out of the stack.
    std::hint::black_box(());
}

#[inline(never)]
fn interrupted() {
    // SAFETY: sends this thread a signal that has a handler.
    unsafe { libc::raise(libc::SIGUSR1) };
    std::hint::black_box(());
}

#[test]
fn inside_a_signal_handler_on_a_stack_of_its_own_too() {
    in_turn(|program| {
        for flags in [0, libc::SA_ONSTACK] {
            let mut room = vec![0u8; 256 << 10];
            let stack = libc::stack_t {
                ss_sp: room.as_mut_ptr().cast(),
                ss_flags: 0,
                ss_size: room.len(),
            };
            // SAFETY: the stack lives until the old one is set again; the handler has the signature of one.
            unsafe {
                let mut old_stack = std::mem::zeroed();
                libc::sigaltstack(&raw const stack, &raw mut old_stack);
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
                action.sa_flags = flags;
                libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
                interrupted();
                libc::sigaltstack(&raw const old_stack, std::ptr::null_mut());
            }
            let seen = program.snapshot("signal");
            #[cfg(target_arch = "x86_64")]
            assert!(seen.stack(&["on_signal", "interrupted", "in_turn"]), "{flags}: {seen}");
            assert!(seen.names("on_signal"), "{seen}");
        }
    });
}

extern "C" fn thread_start(work: *mut libc::c_void) -> *mut libc::c_void {
    allocate_here();
    work
}

#[test]
fn from_a_threads_first_frame_and_a_forks_parent() {
    in_turn(|program| {
        // SAFETY: the thread runs a function that takes and gives back its argument, and is waited for; the child of the fork
        // calls what is allowed after a fork only, and ends at once.
        unsafe {
            let mut thread = std::mem::zeroed();
            assert_eq!(
                libc::pthread_create(&raw mut thread, std::ptr::null(), thread_start, std::ptr::null_mut()),
                0
            );
            libc::pthread_join(thread, std::ptr::null_mut());
            let child = libc::fork();
            if child == 0 {
                let refused = program.allocator.allocate(crate::program::request(1, None)).is_err()
                    && program.allocator.write_snapshot(&path("child.pickle")).is_err();
                libc::_exit(i32::from(!refused));
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            assert_eq!(status, 0, "a child is refused");
        }
        let seen = program.snapshot("thread");
        assert!(seen.stack(&["allocate_here", "thread_start"]), "{seen}");
    });
}

#[inline(never)]
fn deep(depth: u32, program: &Program) -> u64 {
    match depth {
        0 => program.get(1 << 20, None),
        _ => std::hint::black_box(deep(depth - 1, program)),
    }
}

#[test]
fn contexts_decide_what_has_a_stack() {
    for (options, events, blocks) in [
        ("all,stacks=native", true, true),
        ("all,stacks=native,context=alloc", true, true),
        ("all,stacks=native,context=state", false, true),
        ("state,stacks=native", false, true),
        ("all,stacks=native,context=none", false, false),
        ("all", false, false),
    ] {
        let program = Program::new("");
        program.allocator.history(options).unwrap();
        let address = deep(300, &program);
        let snapshot = program.allocator.snapshot().unwrap();
        let pieces = snapshot
            .devices
            .iter()
            .flat_map(|device| &device.segments)
            .flat_map(|segment| &segment.pieces);
        assert_eq!(
            pieces.filter(|piece| piece.stack != 0).count() == 1,
            blocks,
            "{options}"
        );
        assert_eq!(
            snapshot.history.events.iter().any(|event| event.stack != 0),
            events,
            "{options}"
        );
        program.give(address, None);
    }
}

/// The host's page size: /proc counts in pages.
fn page_size() -> u64 {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// A thousand snapshots with stacks leave nothing behind, and neither do threads that come and go.
#[test]
fn a_thousand_snapshots_leak_nothing() {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * page_size()
    };
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let program = Program::new("history=all,stacks=native,max_entries=200");
    let file = path("again.pickle");
    let round = |count: u32| {
        for of in 0..count {
            let address = deep(of % 3, &program);
            program.give(address, None);
            program.allocator.write_snapshot(&file).unwrap();
            if of % 50 == 0 {
                let (allocator, driver) = (&program.allocator, &program.driver);
                let context = program.application.context();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        driver.context_push(context).unwrap();
                        let address = allocator.allocate(crate::program::request(512, None)).unwrap();
                        allocator.deallocate(address, None).unwrap();
                        driver.context_pop().unwrap();
                    });
                });
            }
        }
    };
    round(100);
    // Other tests run beside this one, and some of what is there is theirs. What a snapshot leaks grows each time.
    let grows = || {
        let before = (resident(), mappings());
        round(1000);
        let after = (resident(), mappings());
        println!("{before:?} {after:?}");
        after.0 >= before.0 + (64 << 20)
    };
    assert!(!(0..3).all(|_| grows()), "each thousand takes 64 MiB more");
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(descriptors < 200, "{descriptors}");
}

/// An application that has been switched off is not in the way of its own end.
#[test]
fn taking_stacks_begins_and_ends_while_threads_allocate() {
    let program = Program::new("");
    let over = AtomicBool::new(false);
    let context = program.application.context();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (allocator, driver, over) = (&program.allocator, &program.driver, &over);
            let stream = program.stream();
            scope.spawn(move || {
                driver.context_push(context).unwrap();
                while !over.load(Ordering::Relaxed) {
                    let request = crate::program::request(4096, Some(stream));
                    let address = allocator.allocate(request).unwrap();
                    allocator.deallocate(address, Some(stream)).unwrap();
                }
                driver.context_pop().unwrap();
            });
        }
        for round in 0..200 {
            let options = [
                "all,stacks=native",
                "off",
                "state,stacks=all",
                "all,stacks=python,max_entries=50",
            ][round % 4];
            program.allocator.history(options).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        over.store(true, Ordering::Relaxed);
    });
    program.allocator.validate().unwrap();
}
