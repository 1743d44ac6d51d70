//! Throws C++ exceptions, for PyTorch, which does not check for null. The C++ runtime that the process has loaded
//! throws them. In a process with PyTorch they have the class that PyTorch translates to `torch.OutOfMemoryError`.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

/// Throws `std::runtime_error` with this text. Returns if the process has no libstdc++.
pub(in crate::ffi::c) fn runtime_error(text: &CStr) {
    /// `std::__throw_runtime_error(char const*)`, which copies the text.
    type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;
    let Some(throw) =
        Library::loaded(c"libstdc++.so.6").and_then(|runtime| runtime.symbol(c"_ZSt21__throw_runtime_errorPKc"))
    else {
        return;
    };
    // SAFETY: libstdc++'s function of that name has this type, and has been part of its ABI since GCC 3.4.
    let throw = unsafe { std::mem::transmute::<*mut c_void, Throw>(throw) };
    // SAFETY: a C string, which is dropped as the exception passes.
    unsafe { throw(text.as_ptr()) }
}

/// Throws `c10::OutOfMemoryError` with this text. Returns if the process has no libc10, or none with a known
/// constructor.
pub(in crate::ffi::c) fn torch_out_of_memory(text: &CStr) {
    static FOUND: OnceLock<Torch> = OnceLock::new();
    // PyTorch may be loaded after this library, so only a successful search is remembered.
    let torch = FOUND
        .get()
        .or_else(|| Torch::find().map(|torch| FOUND.get_or_init(|| torch)));
    if let Some(torch) = torch {
        torch.throw(text);
    }
}

/// A library that the process has loaded. This library's own C++ runtime is linked in and hidden, so it is never found
/// here.
#[derive(Clone, Copy)]
struct Library(*mut c_void);

impl Library {
    fn loaded(name: &CStr) -> Option<Library> {
        // SAFETY: a C string; with NOLOAD nothing is loaded and no foreign code runs.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        // The handle is never closed, so the library stays loaded.
        (!library.is_null()).then_some(Library(library))
    }

    fn symbol(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: a handle from dlopen and a C string.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }
}

/// `c10::SourceLocation`: larger than two registers, so it is passed by value in memory.
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// Memory for a C++ object whose size is not known here: several times the size in any version.
#[repr(C, align(16))]
struct Space<const BYTES: usize>([u8; BYTES]);

/// `std::string` of both of libstdc++'s ABIs has 32 bytes at most.
type Text = Space<64>;

/// `c10::OutOfMemoryError` takes a small part of this in every version so far: two strings, a vector and a few words.
const ERROR_SPACE: usize = 1024;

/// `__cxa_allocate_exception`.
type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
/// `__cxa_free_exception`.
type Free = unsafe extern "C" fn(*mut c_void);
/// `__cxa_throw`, with the object, its `std::type_info` and its destructor.
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, unsafe extern "C" fn(*mut c_void)) -> !;
/// `std::string::string(char const*, std::allocator<char> const&)`.
type MakeText = unsafe extern "C-unwind" fn(*mut Text, *const c_char, *const u8);
/// `std::string::~string()`.
type DropText = unsafe extern "C" fn(*mut Text);
/// `c10::Error::Error(SourceLocation, std::string)`. The string is passed by its address, and the caller destroys it.
type MakeError = unsafe extern "C-unwind" fn(*mut c_void, SourceLocation, *mut Text);

/// The mangled names for one of libstdc++'s two ABIs of `std::string`. A PyTorch uses one of them (the old one up to
/// 2.6).
struct MangledNames {
    make_text: &'static CStr,
    drop_text: &'static CStr,
    /// `c10::OutOfMemoryError::OutOfMemoryError`, which PyTorch 2.15 exports.
    out_of_memory: &'static CStr,
    /// `c10::Error::Error`, the constructor of its base class, which every PyTorch exports. The class adds only its
    /// table of virtual functions to its base.
    error: &'static CStr,
}

const ABIS: [MangledNames; 2] = [
    MangledNames {
        make_text: c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_",
        drop_text: c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev",
        out_of_memory:
            c"_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        error: c"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    },
    MangledNames {
        make_text: c"_ZNSsC1EPKcRKSaIcE",
        drop_text: c"_ZNSsD1Ev",
        out_of_memory: c"_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationESs",
        error: c"_ZN3c105ErrorC2ENS_14SourceLocationESs",
    },
];

/// The functions of libstdc++ and libc10 that are needed to throw the exception.
struct Torch {
    allocate: Allocate,
    free: Free,
    throw: Throw,
    make_text: MakeText,
    drop_text: DropText,
    make_error: MakeError,
    /// The class's table of virtual functions, where the constructor is its base's.
    table: Option<usize>,
}

impl Torch {
    /// Looks the functions up in the libraries that are loaded now.
    fn find() -> Option<Torch> {
        let runtime = Library::loaded(c"libstdc++.so.6")?;
        let c10 = Library::loaded(c"libc10.so")?;
        ABIS.iter().find_map(|names| Torch::of(runtime, c10, names))
    }

    fn of(runtime: Library, c10: Library, names: &MangledNames) -> Option<Torch> {
        let (constructor, table) = match c10.symbol(names.out_of_memory) {
            Some(constructor) => (constructor, None),
            None => {
                let constructor = c10.symbol(names.error)?;
                // Where the class is only declared in a header, the libraries that throw it have its table.
                let table = [c"libc10_cuda.so", c"libtorch_python.so"]
                    .into_iter()
                    .filter_map(Library::loaded)
                    .find_map(|library| library.symbol(c"_ZTVN3c1016OutOfMemoryErrorE"))?;
                (constructor, Some(table.expose_provenance()))
            }
        };
        // SAFETY: each name determines its function's type: libstdc++'s functions are part of its ABI, and a mangled name
        // contains the parameters.
        unsafe {
            Some(Torch {
                allocate: std::mem::transmute::<*mut c_void, Allocate>(runtime.symbol(c"__cxa_allocate_exception")?),
                free: std::mem::transmute::<*mut c_void, Free>(runtime.symbol(c"__cxa_free_exception")?),
                throw: std::mem::transmute::<*mut c_void, Throw>(runtime.symbol(c"__cxa_throw")?),
                make_text: std::mem::transmute::<*mut c_void, MakeText>(runtime.symbol(names.make_text)?),
                drop_text: std::mem::transmute::<*mut c_void, DropText>(runtime.symbol(names.drop_text)?),
                make_error: std::mem::transmute::<*mut c_void, MakeError>(constructor),
                table,
            })
        }
    }

    fn throw(&self, text: &CStr) {
        let at = SourceLocation {
            function: c"trtalloc_torch_malloc_or_throw".as_ptr(),
            file: c"trtalloc".as_ptr(),
            line: 0,
        };
        let mut message = Space([0; 64]);
        // SAFETY: `message` has space for the string, and the runtime allocates the object. Each is constructed once, before
        // it is used. An exception of a constructor passes through, as it would in C++.
        unsafe {
            let object = (self.allocate)(ERROR_SPACE);
            object.write_bytes(0, ERROR_SPACE);
            (self.make_text)(&mut message, text.as_ptr(), &0);
            (self.make_error)(object, at, &mut message);
            (self.drop_text)(&mut message);
            if let Some(table) = self.table {
                // The functions follow the first two words of the table.
                *object.cast::<*const c_void>() = std::ptr::with_exposed_provenance(table + 2 * size_of::<usize>());
            }
            match type_of(object) {
                Some(class) => (self.throw)(object, class, destroy),
                None => {
                    destroy(object);
                    (self.free)(object);
                }
            }
        }
    }
}

/// The `std::type_info` of an object with virtual functions. `None` unless its class is `c10::OutOfMemoryError`.
///
/// # Safety
/// `object` has virtual functions as in the Itanium C++ ABI, which Linux uses.
unsafe fn type_of(object: *const c_void) -> Option<*const c_void> {
    // SAFETY: the first word of the object leads to its functions, the word before them to its type, and the second word of
    // that to its name.
    unsafe {
        let functions = *object.cast::<*const *const c_void>();
        let class = *functions.sub(1);
        let name = *class.cast::<*const c_char>().add(1);
        (CStr::from_ptr(name) == c"N3c1016OutOfMemoryErrorE").then_some(class)
    }
}

/// Calls the object's own destructor: the first of the virtual functions that `std::exception` declares.
///
/// # Safety
/// The class of `object` derives from `std::exception` alone, as in the Itanium C++ ABI. The object is not used again.
unsafe extern "C" fn destroy(object: *mut c_void) {
    // SAFETY: as this function demands.
    unsafe {
        let functions = *object.cast::<*const unsafe extern "C" fn(*mut c_void)>();
        (*functions)(object);
    }
}
