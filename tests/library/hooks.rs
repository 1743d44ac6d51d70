//! The hooks of other frameworks, called as each framework calls them: by address out of libtrtalloc.so, on threads and
//! streams of a process whose CUDA driver is the simulated libcuda.so.1 (with `TRTALLOC_TEST_DRIVER=cuda` the real one).

use crate::common::{self, simcuda};

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cudarc::driver::sys;
use trtalloc::stats::Stats;

const CHILD: &str = "TRTALLOC_TEST_ROLE";

/// Whether this process is the child of that test; else starts it and demands that it passes.
fn in_child(test: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var(CHILD).is_ok_and(|role| role == test) {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([&format!("hooks::{test}"), "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, test).env("TRTALLOC_DRIVER", "cuda");
    if std::env::var("TRTALLOC_TEST_DRIVER").as_deref() != Ok("cuda") {
        let folder = simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built");
        command.env("LD_LIBRARY_PATH", folder);
    }
    let output = common::run(command.envs(variables.iter().copied()));
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("1 passed"), "{test}: {out}");
    false
}

type Torch = unsafe extern "C-unwind" fn(usize, c_int, *mut c_void) -> *mut c_void;

/// What the frameworks have: addresses.
#[derive(Clone, Copy)]
struct Hooks {
    torch_malloc: Torch,
    torch_malloc_or_throw: Torch,
    torch_free: unsafe extern "C" fn(*mut c_void, usize, c_int, *mut c_void),
    torch_record_stream: unsafe extern "C" fn(*mut c_void, *mut c_void),
    torch_init: unsafe extern "C" fn(c_int),
    torch_reset: unsafe extern "C" fn(),
    torch_memory_fraction: unsafe extern "C" fn(f64, c_int),
    ort_alloc: unsafe extern "C" fn(usize) -> *mut c_void,
    ort_free: unsafe extern "C" fn(*mut c_void),
    ort_empty_cache: unsafe extern "C" fn(),
    cupy_malloc: unsafe extern "C" fn(*mut c_void, usize, c_int) -> *mut c_void,
    cupy_free: unsafe extern "C" fn(*mut c_void, *mut c_void, c_int),
    default: unsafe extern "C" fn() -> *mut c_void,
    stats_get: unsafe extern "C" fn(*mut c_void, i32, *mut Stats, usize) -> i32,
    last_error: unsafe extern "C" fn() -> *const c_char,
}

/// A function of the library by its name, as ctypes and dlsym find it.
///
/// # Safety
/// `T` is that function's type.
unsafe fn function<T: Copy>(library: *mut c_void, name: &str) -> T {
    let name = CString::new(name).unwrap();
    // SAFETY: a handle from dlopen and a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?}");
    assert_eq!(size_of::<T>(), size_of::<*mut c_void>());
    // SAFETY: as this function demands.
    unsafe { std::mem::transmute_copy(&address) }
}

impl Hooks {
    fn load() -> Hooks {
        let path = common::library_dir().join("libtrtalloc.so");
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a C string; the library's constructors are Rust's own.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?}");
        // SAFETY: the types are those of trtalloc.h.
        unsafe {
            Hooks {
                torch_malloc: function(library, "trtalloc_torch_malloc"),
                torch_malloc_or_throw: function(library, "trtalloc_torch_malloc_or_throw"),
                torch_free: function(library, "trtalloc_torch_free"),
                torch_record_stream: function(library, "trtalloc_torch_record_stream"),
                torch_init: function(library, "trtalloc_torch_init"),
                torch_reset: function(library, "trtalloc_torch_reset"),
                torch_memory_fraction: function(library, "trtalloc_torch_memory_fraction"),
                ort_alloc: function(library, "trtalloc_ort_alloc"),
                ort_free: function(library, "trtalloc_ort_free"),
                ort_empty_cache: function(library, "trtalloc_ort_empty_cache"),
                cupy_malloc: function(library, "trtalloc_cupy_malloc"),
                cupy_free: function(library, "trtalloc_cupy_free"),
                default: function(library, "trtalloc_default"),
                stats_get: function(library, "trtalloc_stats_get"),
                last_error: function(library, "trtalloc_last_error"),
            }
        }
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        // SAFETY: the struct of that name, with its size.
        let status = unsafe { (self.stats_get)((self.default)(), 0, &mut stats, size_of::<Stats>()) };
        assert_eq!(status, 0, "{}", self.last());
        stats
    }

    fn last(&self) -> String {
        // SAFETY: a C string, valid until this thread's next call.
        unsafe { CStr::from_ptr((self.last_error)()) }
            .to_string_lossy()
            .into_owned()
    }
}

fn ok(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

/// Makes device 0's primary context current, as every CUDA program has it.
fn enter() {
    // SAFETY: locals to write to, and a context that the driver gave.
    unsafe {
        ok(sys::cuInit(0));
        let mut context = null_mut();
        ok(sys::cuDevicePrimaryCtxRetain(&mut context, 0));
        ok(sys::cuCtxSetCurrent(context));
    }
}

fn new_stream() -> *mut c_void {
    let mut stream: sys::CUstream = null_mut();
    // SAFETY: a local to write to.
    ok(unsafe { sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32) });
    stream.cast()
}

fn wait_for(stream: *mut c_void) {
    // SAFETY: a living stream.
    ok(unsafe { sys::cuStreamSynchronize(stream.cast()) });
}

/// Work on a stream that runs until it is let go.
struct Work(&'static AtomicBool);

impl Work {
    fn on(stream: *mut c_void) -> Work {
        unsafe extern "C" fn run(data: *mut c_void) {
            // SAFETY: the leaked flag below.
            let done = unsafe { &*data.cast::<AtomicBool>() };
            while !done.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let done: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let data = std::ptr::from_ref(done).cast_mut().cast();
        // SAFETY: a living stream, and data that lives for ever.
        ok(unsafe { sys::cuLaunchHostFunc(stream.cast(), Some(run), data) });
        Work(done)
    }

    fn end(self) {
        self.0.store(true, Ordering::Release);
    }
}

const MIB: usize = 1 << 20;

/// PyTorch frees a tensor of a thread's default stream (torch.cuda.ExternalStream(2)) on any thread, with the same handle.
#[test]
fn pytorch_frees_another_threads_stream() {
    if !in_child("pytorch_frees_another_threads_stream", &[]) {
        return;
    }
    enter();
    let hooks = Hooks::load();
    let per_thread = std::ptr::without_provenance_mut::<c_void>(2);
    // SAFETY: addresses that the hooks gave, each given back once.
    unsafe {
        let tensor = (hooks.torch_malloc)(3 * MIB, 0, per_thread);
        assert!(!tensor.is_null());
        let work = Work::on(per_thread);
        let tensor = tensor as usize;
        let of_other_thread = std::thread::spawn(move || {
            enter();
            let per_thread = std::ptr::without_provenance_mut::<c_void>(2);
            // With much memory of its own, a stream may have at once what is freed on it.
            assert!(!(hooks.torch_malloc)(100 * MIB, 0, per_thread).is_null());
            (hooks.torch_free)(std::ptr::with_exposed_provenance_mut(tensor), 3 * MIB, 0, per_thread);
            (hooks.torch_malloc)(3 * MIB, 0, per_thread) as usize
        });
        assert_ne!(of_other_thread.join().unwrap(), tensor);
        work.end();
    }
}

#[test]
fn pytorch() {
    if !in_child("pytorch", &[]) {
        return;
    }
    enter();
    let hooks = Hooks::load();
    let (one, other) = (new_stream(), new_stream());
    // SAFETY: addresses that the hooks gave, each given back once, and living streams; throughout.
    unsafe {
        // As CUDAPluggableAllocator does when it is made, before CUDA starts, and when CUDA has started.
        (hooks.torch_init)(0);
        (hooks.torch_init)(1);
        (hooks.torch_reset)();
        // A tensor without elements.
        assert!((hooks.torch_malloc)(0, 0, one).is_null());
        assert!((hooks.torch_malloc_or_throw)(0, 0, one).is_null());
        (hooks.torch_free)(null_mut(), 0, 0, one);
        (hooks.torch_record_stream)(null_mut(), one);

        // What a stream freed is its own at once, though its work is pending, and no other stream's.
        let tensor = (hooks.torch_malloc_or_throw)(5 * MIB, 0, one);
        let work = Work::on(one);
        (hooks.torch_free)(tensor, 5 * MIB, 0, one);
        assert_eq!((hooks.torch_malloc)(5 * MIB, 0, one), tensor);
        (hooks.torch_free)(tensor, 5 * MIB, 0, one);
        let foreign = (hooks.torch_malloc)(5 * MIB, 0, other);
        assert!(!foreign.is_null());
        assert_ne!(foreign, tensor);
        (hooks.torch_free)(foreign, 5 * MIB, 0, other);
        work.end();

        // A tensor that was declared with record_stream is not reused before that stream's work is done too.
        let tensor = (hooks.torch_malloc)(5 * MIB, 0, one);
        let work = Work::on(other);
        (hooks.torch_record_stream)(tensor, other);
        (hooks.torch_free)(tensor, 5 * MIB, 0, one);
        let next = (hooks.torch_malloc)(5 * MIB, 0, one);
        assert_ne!(next, tensor, "{}", hooks.last());
        (hooks.torch_free)(next, 5 * MIB, 0, one);
        work.end();
        wait_for(other);

        // empty_cache.
        assert_eq!(hooks.stats().allocated, 0);
        assert!(hooks.stats().reserved > 0);
        (hooks.torch_reset)();
        assert_eq!(hooks.stats().reserved, 0);

        // set_per_process_memory_fraction, and a request that is beyond it.
        (hooks.torch_memory_fraction)(2.0, 0);
        assert!(hooks.last().contains("fraction"), "{}", hooks.last());
        (hooks.torch_memory_fraction)(f64::NAN, 0);
        (hooks.torch_memory_fraction)(0.5, 63);
        assert!(hooks.last().contains("device 63"), "{}", hooks.last());
        assert_eq!(hooks.stats().limit, 0);
        let mut total = 0;
        ok(sys::cuDeviceTotalMem_v2(&mut total, 0));
        (hooks.torch_memory_fraction)(1.0 / 64.0, 0);
        assert_eq!(hooks.stats().limit, total as u64 / 64);
        assert!((hooks.torch_malloc)(total / 60, 0, one).is_null());
        assert!(hooks.last().starts_with("out of memory"), "{}", hooks.last());
        // A device that is not there.
        assert!((hooks.torch_malloc)(MIB, 63, one).is_null());
    }
}

#[test]
fn onnx_runtime_and_cupy() {
    if !in_child("onnx_runtime_and_cupy", &[]) {
        return;
    }
    enter();
    let hooks = Hooks::load();
    let stream = new_stream();
    // SAFETY: as in `pytorch`.
    unsafe {
        (hooks.ort_empty_cache)();
        assert!((hooks.ort_alloc)(0).is_null());
        (hooks.ort_free)(null_mut());
        // Neither says on which stream it uses the memory: what it frees waits for everything that is queued.
        let alloc = |cupy: bool| match cupy {
            true => (hooks.cupy_malloc)(null_mut(), 3 * MIB, 0),
            false => (hooks.ort_alloc)(3 * MIB),
        };
        for cupy in [false, true] {
            let arena = alloc(cupy);
            assert!(!arena.is_null(), "{}", hooks.last());
            let work = Work::on(stream);
            match cupy {
                true => (hooks.cupy_free)(null_mut(), arena, 0),
                false => (hooks.ort_free)(arena),
            }
            let (next, torch) = (alloc(cupy), (hooks.torch_malloc)(3 * MIB, 0, new_stream()));
            assert_ne!(next, arena);
            assert_ne!(torch, arena);
            work.end();
            wait_for(stream);
            (hooks.ort_free)(next);
            (hooks.ort_free)(torch);
        }
        (hooks.ort_empty_cache)();
        assert_eq!((hooks.stats().allocated, hooks.stats().reserved), (0, 0));
        // Twice, and foreign: refused with a reason, and nothing happens.
        let memory = (hooks.ort_alloc)(MIB);
        (hooks.ort_free)(memory);
        (hooks.ort_free)(memory);
        assert!(hooks.last().contains("invalid argument"), "{}", hooks.last());
        (hooks.cupy_free)(null_mut(), (&raw const hooks).cast_mut().cast(), 0);
        assert!(hooks.last().contains("no block"), "{}", hooks.last());
        assert!((hooks.cupy_malloc)(null_mut(), MIB, 63).is_null());
    }
}

/// All live blocks of all threads, by address. Two blocks that overlap are found at once.
#[derive(Default)]
struct Live(Mutex<BTreeMap<usize, usize>>);

impl Live {
    fn add(&self, at: usize, bytes: usize) {
        let mut live = self.0.lock().unwrap();
        let before = live.range(..at + bytes).next_back();
        assert!(
            before.is_none_or(|(start, bytes)| start + bytes <= at),
            "two owners of {at:#x}"
        );
        live.insert(at, bytes);
    }

    fn remove(&self, at: usize) {
        self.0.lock().unwrap().remove(&at).unwrap();
    }
}

#[test]
fn four_frameworks_on_four_threads_share_a_limit() {
    const LIMIT: u64 = 256 << 20;
    if !in_child(
        "four_frameworks_on_four_threads_share_a_limit",
        &[("TRTALLOC_LIMIT", "256MiB"), ("TRTALLOC_WAIT_MS", "20")],
    ) {
        return;
    }
    enter();
    let hooks = Hooks::load();
    let live = Live::default();
    let worker = |which: u64| {
        enter();
        let stream = new_stream();
        let mut random = which * 77 + 5;
        let mut held: Vec<(usize, usize)> = Vec::new();
        let mut met = 0;
        for _ in 0..3_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let draw = (random >> 33) as usize;
            if !draw.is_multiple_of(3) && held.len() < 40 {
                let bytes = 1 + draw % (4 * MIB);
                // SAFETY: living streams; what is given is kept in `held`.
                let memory = unsafe {
                    match which {
                        0 | 1 => (hooks.torch_malloc)(bytes, 0, stream),
                        2 => (hooks.ort_alloc)(bytes),
                        _ => (hooks.cupy_malloc)(null_mut(), bytes, 0),
                    }
                } as usize;
                if memory != 0 {
                    live.add(memory, bytes);
                    held.push((memory, bytes));
                    met += 1;
                }
            } else if !held.is_empty() {
                let (memory, bytes) = held.swap_remove(draw % held.len());
                live.remove(memory);
                // SAFETY: held once, so given back once.
                unsafe {
                    match which {
                        0 | 1 => (hooks.torch_free)(memory as *mut c_void, bytes, 0, stream),
                        2 => (hooks.ort_free)(memory as *mut c_void),
                        _ => (hooks.cupy_free)(null_mut(), memory as *mut c_void, 0),
                    }
                }
            }
        }
        for (memory, bytes) in held {
            live.remove(memory);
            // SAFETY: as above. A framework's memory may come back by another way than it went.
            unsafe { (hooks.torch_free)(memory as *mut c_void, bytes, 0, stream) };
        }
        assert!(met > 500, "{met} requests of worker {which} were met");
    };
    std::thread::scope(|scope| {
        for which in 0..4 {
            scope.spawn(move || worker(which));
        }
    });
    let stats = hooks.stats();
    assert_eq!(stats.allocated, 0);
    assert!(stats.reserved_peak <= LIMIT && stats.limit == LIMIT, "{stats:?}");
    // SAFETY: takes nothing.
    unsafe { (hooks.torch_reset)() };
    assert_eq!(hooks.stats().reserved, 0);
}

/// A C++ program with PyTorch's part: it makes a tensor of whatever the hook gives, and catches what it throws.
fn throws(name: &str, options: &[&str], has_c10: bool, expects_c10: bool) {
    let dir = common::scratch(name);
    let compile = |library: Option<(&str, &[&str])>| {
        let mut compile = common::cxx();
        compile.args(options);
        match library {
            Some((file, more)) => {
                compile
                    .args(["-shared", "-fPIC", &format!("-Wl,-soname,{file}")])
                    .args(more);
                compile.arg(common::root().join("tests/support/cpp/c10.cpp"));
                compile.arg("-o").arg(dir.join(file));
            }
            None => {
                compile.arg(common::root().join("tests/support/cpp/torch_hook.cpp"));
                compile.arg("-o").arg(dir.join("program")).args(["-ldl", "-pthread"]);
                compile.args(expects_c10.then_some("-DC10"));
            }
        }
        if has_c10 && library.is_none_or(|(file, _)| file != "libc10.so") {
            compile.arg(format!("-Wl,-rpath,{}", dir.display())).arg("-L").arg(&dir);
            compile.args(["-Wl,--no-as-needed", "-l:libc10.so"]);
            compile.args(library.is_none().then_some("-l:libc10_cuda.so"));
        }
        common::run(&mut compile);
    };
    if has_c10 {
        compile(Some(("libc10.so", &[])));
        compile(Some(("libc10_cuda.so", &["-DC10_CUDA"])));
    }
    compile(None);
    let mut command = std::process::Command::new(dir.join("program"));
    command.arg(common::library_dir().join("libtrtalloc.so"));
    command.env("TRTALLOC_DRIVER", "sim").env("TRTALLOC_LIMIT", "64MiB");
    common::run(&mut command);
    // The same where the library is there before the program's own C++ runtime.
    command.env("LD_PRELOAD", common::library_dir().join("libtrtalloc.so"));
    common::run(&mut command);
}

#[test]
fn a_request_that_cannot_be_met_is_an_exception_where_the_framework_looks_at_nothing_else() {
    throws("torch_hook", &[], false, false);
}

/// The shapes of the class in PyTorch 2.0 to 2.6, 2.8 to 2.11, and 2.15.
#[test]
fn a_request_that_cannot_be_met_is_pytorchs_own_out_of_memory_error() {
    throws("torch_hook_old_string", &["-D_GLIBCXX_USE_CXX11_ABI=0"], true, true);
    throws("torch_hook_base", &[], true, true);
    throws("torch_hook_exported", &["-DC10_EXPORTED"], true, true);
}

#[test]
fn a_libc10_that_is_not_known_leaves_the_exception_as_it_is_without_one() {
    throws("torch_hook_unknown", &["-DC10_UNKNOWN"], true, false);
}
