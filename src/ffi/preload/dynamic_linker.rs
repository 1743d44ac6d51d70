//! Queries of the dynamic linker that bypass this library's own `dlsym`.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    fn dlvsym(library: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
    fn dlinfo(library: *mut c_void, request: c_int, out: *mut c_void) -> c_int;
    fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

/// `RTLD_DL_LINKMAP` of dlfcn.h.
const LINK_MAP: c_int = 2;

/// `RTLD_DI_SERINFO` and `RTLD_DI_SERINFOSIZE`.
const SEARCH: c_int = 4;
const SEARCH_SIZE: c_int = 5;

/// `Dl_serpath`, and `Dl_serinfo`, whose last member is an array of it.
#[repr(C)]
struct SearchPath {
    name: *const c_char,
    flags: c_uint,
}

#[repr(C)]
struct SearchInfo {
    bytes: usize,
    count: c_uint,
    paths: [SearchPath; 0],
}

/// The public beginning of glibc's `struct link_map` (link.h).
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const c_char,
}

/// `dlsym`.
pub type DlSym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The versions of glibc's `dlsym`: since 2.34 in libc, before in libdl.
const VERSIONS: &[&CStr] = if cfg!(target_arch = "x86_64") {
    &[c"GLIBC_2.34", c"GLIBC_2.2.5"]
} else {
    &[c"GLIBC_2.34", c"GLIBC_2.17"]
};

/// The `dlsym` that comes after this library's.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

unsafe extern "C" fn finds_nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
    null_mut()
}

/// The `dlsym` that the program would have without this library: libc's, or that of another library that interposes
/// it.
pub fn next() -> DlSym {
    let mut next = NEXT.load(Ordering::Relaxed);
    if next.is_null() {
        next = find_next();
        // Threads that race here find the same function.
        NEXT.store(next, Ordering::Relaxed);
    }
    // SAFETY: dlsym of a library that stays loaded, or the function above.
    unsafe { std::mem::transmute::<*mut c_void, DlSym>(next) }
}

/// Allocates nothing, since the program's own malloc may be looking for the real one.
#[cold]
fn find_next() -> *mut c_void {
    let real = VERSIONS.iter().find_map(|version| {
        // SAFETY: terminated names. The version is needed since the plain name would lead back here.
        found(unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) })
    });
    let Some(real) = real else {
        return finds_nothing as DlSym as *mut c_void;
    };
    // Looking up by version skips other interposing libraries, whose dlsym has no such version.
    // SAFETY: libc's dlsym, given a terminated name.
    let next = unsafe { std::mem::transmute::<*mut c_void, DlSym>(real.as_ptr())(libc::RTLD_NEXT, c"dlsym".as_ptr()) };
    match next.is_null() || object_of(next as usize) == object_of(own_address()) {
        true => real.as_ptr(),
        false => next,
    }
}

/// Looks up a name in `library`, a handle, or `RTLD_NEXT` as seen from this library.
///
/// # Safety
/// `library` is an open handle or `RTLD_NEXT`.
pub unsafe fn look_up(library: *mut c_void, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: as this function requires.
    found(unsafe { next()(library, name.as_ptr()) })
}

/// Converts the linker's result. For null it clears the error, so that the program's next `dlerror` does not return
/// it.
fn found(answer: *mut c_void) -> Option<NonNull<c_void>> {
    if answer.is_null() {
        // SAFETY: takes no arguments; the text that it returns is not used.
        let _ = unsafe { libc::dlerror() };
    }
    NonNull::new(answer)
}

/// A loaded object: a library, or the program.
pub struct LoadedObject {
    map: NonNull<LinkMap>,
    /// The path at which the loader found it; empty for the program.
    path: CString,
}

/// The loader's entry of the object that contains this address.
fn object_of(address: usize) -> Option<NonNull<LinkMap>> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let mut map = null_mut();
    // SAFETY: both outputs are writable; the address is only compared.
    let found = unsafe { dladdr1(address as *const c_void, info.as_mut_ptr(), &mut map, LINK_MAP) };
    NonNull::new(map.cast::<LinkMap>()).filter(|_| found != 0)
}

impl LoadedObject {
    /// The object that contains this address.
    pub fn of(address: usize) -> Option<LoadedObject> {
        let map = object_of(address)?;
        // SAFETY: the loader's entry of a loaded object: its code is running, or its symbol was just found.
        let name = unsafe { map.as_ref() }.name;
        let path = match name.is_null() {
            true => CString::default(),
            // SAFETY: the loader's own terminated text.
            false => unsafe { CStr::from_ptr(name) }.to_owned(),
        };
        Some(LoadedObject { map, path })
    }

    /// Whether it contains this code.
    pub fn is_own(&self) -> bool {
        self.has(own_address())
    }

    /// Whether it contains an address.
    pub fn has(&self, address: usize) -> bool {
        object_of(address) == Some(self.map)
    }

    /// Whether the loader found it at that path.
    pub fn path_is(&self, path: &CStr) -> bool {
        self.path.as_c_str() == path
    }

    /// Its path for messages.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.as_bytes()))
    }

    /// Opens it, which keeps it loaded. `None` for the program.
    pub fn open(&self) -> Option<Library> {
        Library::open(&self.path)
    }
}

/// Whether a loaded object exports a function at exactly this address.
pub fn is_function(address: usize) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the output is writable, and initialized where the result is not 0; the address is only compared.
    unsafe {
        libc::dladdr(address as *const c_void, info.as_mut_ptr()) != 0
            && info.assume_init().dli_saddr as usize == address
    }
}

/// A library that is loaded already, and stays loaded until this is dropped.
pub struct Library(NonNull<c_void>);

impl Library {
    /// `None` where no library of that path is loaded.
    pub fn open(path: &CStr) -> Option<Library> {
        if path.is_empty() {
            return None;
        }
        // SAFETY: a terminated name; nothing is loaded, so no code runs.
        found(unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }).map(Library)
    }

    /// The program, with all libraries that it needs.
    pub fn program() -> Option<Library> {
        // SAFETY: null is the program.
        found(unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY) }).map(Library)
    }

    /// The folders in which the loader searches for this library's dependencies.
    pub fn folders(&self) -> Vec<PathBuf> {
        let mut head = SearchInfo {
            bytes: 0,
            count: 0,
            paths: [],
        };
        // SAFETY: an open handle, and space for the two numbers that this request writes.
        if unsafe { dlinfo(self.0.as_ptr(), SEARCH_SIZE, (&raw mut head).cast()) } != 0 {
            return Vec::new();
        }
        let mut room = vec![0_u64; head.bytes.div_ceil(size_of::<u64>())];
        let info = room.as_mut_ptr().cast::<SearchInfo>();
        // SAFETY: `room` has the number of bytes that the first request returned, aligned for the head, which is
        // written first. The loader writes paths and their texts into it.
        unsafe {
            info.write(head);
            if dlinfo(self.0.as_ptr(), SEARCH, info.cast()) != 0 {
                return Vec::new();
            }
            let paths = (&raw const (*info).paths).cast::<SearchPath>();
            let text = |i: usize| CStr::from_ptr((*paths.add(i)).name).to_bytes();
            (0..(*info).count as usize)
                .map(|i| PathBuf::from(OsStr::from_bytes(text(i))))
                .collect()
        }
    }

    /// Looks up a name in it and in what it needs.
    pub fn look_up(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: an open handle.
        unsafe { look_up(self.0.as_ptr(), name) }
    }
}

/// Loads a library permanently and with global symbols, as if the program needed it.
pub fn load(path: &Path) -> Option<Library> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a terminated name. The library's constructors run.
    found(unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL | libc::RTLD_NODELETE) }).map(Library)
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        let _ = unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// The paths of all loaded libraries without the program, in the order of loading.
pub fn loaded() -> Vec<CString> {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, all: *mut c_void) -> c_int {
        // SAFETY: the loader's entry, and the vector below, which no other code uses meanwhile.
        let (name, all) = unsafe { ((*info).dlpi_name, &mut *all.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: the loader's own terminated text.
            let name = unsafe { CStr::from_ptr(name) };
            if !name.is_empty() {
                all.push(name.to_owned());
            }
        }
        0
    }
    let mut all = Vec::<CString>::new();
    // SAFETY: `add` has the type that dl_iterate_phdr calls, and the vector outlives the call.
    let _ = unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut all).cast()) };
    all
}

fn own_address() -> usize {
    find_next as fn() -> *mut c_void as usize
}

/// The file that this code was loaded from; `None` in a program that is linked with it statically.
pub fn own_path() -> Option<PathBuf> {
    let own = LoadedObject::of(own_address())?;
    (!own.path.is_empty()).then(|| own.path().to_owned())
}
