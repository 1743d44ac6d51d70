//! RMM's pool and arena, from the headers in its wheel. They are compiled with the system's C++ compiler against a
//! CUDA runtime that does nothing (`rmm/`), and loaded into this process.

use std::ffi::{CStr, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::pools::Pool;
use crate::tools;
use crate::tools::wheel;

/// The wheels: RMM with most of what its headers need, and the CUDA runtime with the rest.
const RMM: (&str, &str) = ("librmm-cu12", "24.12.1");
const RUNTIME: (&str, &str) = ("nvidia-cuda-runtime-cu12", "12.5.82");

/// The flags of RMM's release build, without its log.
const FLAGS: [&str; 9] = [
    "-O3",
    "-DNDEBUG",
    "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE",
    "-DSPDLOG_FMT_EXTERNAL",
    "-DFMT_HEADER_ONLY",
    "-DSPDLOG_ACTIVE_LEVEL=SPDLOG_LEVEL_OFF",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
];

/// The version of RMM that is compared.
pub const NAME: &str = "RMM 24.12.1";

/// RMM's functions, as `rmm/pools.cpp` declares them.
pub struct Rmm {
    make: unsafe extern "C" fn(bool, usize) -> *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
    resource: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    allocate: unsafe extern "C" fn(*mut c_void, usize, *mut c_void) -> *mut c_void,
    deallocate: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut c_void) -> bool,
    make_on: unsafe extern "C" fn(*const Device, usize) -> *mut c_void,
    destroy_on: unsafe extern "C" fn(*mut c_void),
}

/// A device that a pool uses, as `rmm/device.h` declares it. Events are numbers of the pool's own.
#[repr(C)]
pub struct Device {
    pub data: *const c_void,
    pub allocate: unsafe extern "C" fn(*const c_void, usize) -> *mut c_void,
    pub deallocate: unsafe extern "C" fn(*const c_void, *mut c_void),
    pub event_record: unsafe extern "C" fn(*const c_void, usize, usize),
    pub stream_wait_event: unsafe extern "C" fn(*const c_void, usize, usize),
    pub event_synchronize: unsafe extern "C" fn(*const c_void, usize),
    pub stream_synchronize: unsafe extern "C" fn(*const c_void, usize),
}

impl Rmm {
    /// Loads it. If it was not built yet and `build` is set, fetches and compiles it.
    pub fn open(build: bool) -> Result<Rmm, String> {
        let library = library()?;
        if !library.exists() {
            if !build {
                return Err("not built yet: `cargo bench --bench compare` fetches and compiles it".into());
            }
            compile(&library)?;
        }
        load(&library)
    }

    /// A pool, or an arena, of that many bytes.
    pub fn pool(&self, arena: bool, bytes: u64) -> Option<RmmPool<'_>> {
        // SAFETY: a plain call, whose result `made` checks.
        let both = unsafe { (self.make)(arena, bytes as usize) };
        self.made(both, self.destroy)
    }

    /// A pool on a device that begins with so many bytes and grows. There is one at a time.
    pub fn pool_on<'a>(&'a self, device: &'a Device, bytes: u64) -> Option<RmmPool<'a>> {
        // SAFETY: the device outlives the pool. `made` checks the result.
        let both = unsafe { (self.make_on)(device, bytes as usize) };
        self.made(both, self.destroy_on)
    }

    /// What was made, unless it is null, and how it is destroyed.
    fn made(&self, both: *mut c_void, destroy: unsafe extern "C" fn(*mut c_void)) -> Option<RmmPool<'_>> {
        if both.is_null() {
            return None;
        }
        // SAFETY: a call above created `both`.
        let resource = unsafe { (self.resource)(both) };
        Some(RmmPool {
            rmm: self,
            both,
            resource,
            destroy,
        })
    }
}

fn sources() -> PathBuf {
    tools::root().join("benches/compare/rmm")
}

/// The path of the compiled library. Its name depends on all of its sources.
fn library() -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    (RMM, RUNTIME, FLAGS).hash(&mut hasher);
    for file in [
        "pools.cpp",
        "cudart.cpp",
        "device.h",
        "cuda_runtime.h",
        "crt/host_defines.h",
    ] {
        let path = sources().join(file);
        let text = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        text.hash(&mut hasher);
    }
    let name = format!("librmm-{:016x}.so", hasher.finish());
    Ok(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
}

fn compile(library: &Path) -> Result<(), String> {
    let rmm = wheel::fetch_unasked(RMM.0, RMM.1)?.join("librmm/include");
    let runtime = wheel::fetch_unasked(RUNTIME.0, RUNTIME.1)?.join("nvidia/cuda_runtime/include");
    // Compiled to a temporary file and renamed, so other processes never load a partial file.
    let partial = library.with_extension(format!("partial-{}", std::process::id()));
    let mut compile = tools::cxx();
    compile.args(FLAGS);
    let (rapids, cuda) = (rmm.join("rapids"), rmm.join("rapids/libcudacxx"));
    for folder in [&sources(), &rmm, &cuda, &rapids, &runtime] {
        compile.arg("-isystem").arg(folder);
    }
    compile.args(["pools.cpp", "cudart.cpp"].map(|file| sources().join(file)));
    compile.arg("-o").arg(&partial);
    let output = compile.output().map_err(|error| format!("the C++ compiler: {error}"))?;
    if !output.status.success() {
        return Err(format!("RMM's headers: {}", String::from_utf8_lossy(&output.stderr)));
    }
    std::fs::rename(&partial, library).map_err(|error| error.to_string())
}

fn load(library: &Path) -> Result<Rmm, String> {
    let mut name = library.as_os_str().as_bytes().to_vec();
    name.push(0);
    let name = CStr::from_bytes_with_nul(&name).map_err(|error| error.to_string())?;
    // SAFETY: a terminated name of a library without constructors.
    let opened = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if opened.is_null() {
        return Err(format!("{} cannot be loaded", library.display()));
    }
    let find = |name: &CStr| {
        // SAFETY: a library that is never closed, and a terminated name.
        let found = unsafe { libc::dlsym(opened, name.as_ptr()) };
        match found.is_null() {
            true => Err(format!("{name:?} is not in {}", library.display())),
            false => Ok(found),
        }
    };
    // SAFETY: each has the type that rmm/pools.cpp gives it.
    unsafe {
        Ok(Rmm {
            make: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(bool, usize) -> *mut c_void>(find(
                c"rmm_make",
            )?),
            destroy: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(find(c"rmm_destroy")?),
            resource: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> *mut c_void>(find(
                c"rmm_resource",
            )?),
            allocate: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut c_void, usize, *mut c_void) -> *mut c_void,
            >(find(c"rmm_allocate")?),
            deallocate: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut c_void) -> bool,
            >(find(c"rmm_deallocate")?),
            make_on: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const Device, usize) -> *mut c_void>(
                find(c"rmm_make_on")?,
            ),
            destroy_on: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(find(c"rmm_destroy_on")?),
        })
    }
}

/// A pool or an arena of RMM's.
pub struct RmmPool<'a> {
    rmm: &'a Rmm,
    both: *mut c_void,
    resource: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: RMM's pool and arena may be called from any thread.
unsafe impl Sync for RmmPool<'_> {}

impl Pool for RmmPool<'_> {
    fn allocate(&self, size: u64, stream: usize) -> usize {
        // SAFETY: the resource lives as long as `self`, and uses the stream only as a number.
        unsafe { (self.rmm.allocate)(self.resource, size as usize, stream as *mut c_void) as usize }
    }

    fn deallocate(&self, block: usize, size: u64, stream: usize) -> bool {
        // SAFETY: as above; the block came from it with that size, and is freed once.
        unsafe {
            (self.rmm.deallocate)(
                self.resource,
                block as *mut c_void,
                size as usize,
                stream as *mut c_void,
            )
        }
    }
}

impl Drop for RmmPool<'_> {
    fn drop(&mut self) {
        // SAFETY: it was created by the function that belongs to `destroy`, and is destroyed once.
        unsafe { (self.destroy)(self.both) }
    }
}
