//! NVTX memory annotations. If NVTX would load a tool, as compute-sanitizer, the tool is notified of the pool's
//! memory as a heap, and of each block as a region of it, with the requested size. Without a tool, nothing is called.
//!
//! Layouts and numbers are those of nvToolsExtMem.h (compatibility id 0x0102) and nvtxDetail/nvtxExtTypes.h of NVTX
//! 3. NVTX is header-only: a library has its own copy of it, and finds the tool through `NVTX_INJECTION64_PATH`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use crate::support::process;

/// `NVTX_EXT_MODULEID_MEM`, `NVTX_EXT_COMPATID_MEM`, `NVTX_VERSION`.
const MODULE: u16 = 1;
const COMPATIBLE: u16 = 0x0102;
const VERSION: u16 = 3;
/// Indices of functions: `NVTX3EXT_CBID_`.
const HEAP_REGISTER: usize = 0;
const HEAP_UNREGISTER: usize = 1;
const REGIONS_REGISTER: usize = 3;
const REGIONS_UNREGISTER: usize = 5;
const SLOTS: usize = 63;

/// `NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR`, `NVTX_MEM_TYPE_VIRTUAL_ADDRESS`, `NVTX_MEM_REGION_REF_TYPE_POINTER`,
/// `NVTX_MESSAGE_TYPE_ASCII`.
const SUB_ALLOCATOR: u32 = 1;
const VIRTUAL_ADDRESS: u32 = 1;
const POINTER: u32 = 1;
const ASCII: u32 = 1;

#[repr(C)]
struct ModuleSegment {
    id: usize,
    slots: usize,
    functions: *mut isize,
}

#[repr(C)]
struct ModuleInfo {
    version: u16,
    size: u16,
    module: u16,
    compatible: u16,
    segments: usize,
    segment: *mut ModuleSegment,
    export: *const c_void,
    info: *const c_void,
}

#[repr(C)]
struct VirtualRange {
    size: usize,
    address: *const c_void,
}

#[repr(C)]
struct HeapDescription {
    compatible: u16,
    size: u16,
    reserved: u32,
    usage: u32,
    kind: u32,
    range_size: usize,
    range: *const VirtualRange,
    category: u32,
    message_type: u32,
    message: *const c_char,
}

#[repr(C)]
struct Regions {
    compatible: u16,
    size: u16,
    kind: u32,
    heap: *mut c_void,
    count: usize,
    element: usize,
    elements: *const VirtualRange,
    handles: *mut *mut c_void,
}

#[repr(C)]
struct Unregistered {
    compatible: u16,
    size: u16,
    kind: u32,
    count: usize,
    element: usize,
    elements: *const *const c_void,
}

/// A tool's functions; `None` where the tool ignores that call.
struct Tool {
    heap_register: Option<unsafe extern "C" fn(*mut c_void, *const HeapDescription) -> *mut c_void>,
    heap_unregister: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    register: Option<unsafe extern "C" fn(*mut c_void, *const Regions)>,
    unregister: Option<unsafe extern "C" fn(*mut c_void, *const Unregistered)>,
}

/// A tool's handle for a heap; 0 where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeapHandle(usize);

static TOOL: OnceLock<Option<Tool>> = OnceLock::new();

/// Loads the tool if there is one. Repeated calls are cheap. With a tool, every call takes the instrumented path.
pub fn attach() {
    if TOOL.get_or_init(load).is_some() {
        process::note_tool();
    }
}

fn tool() -> Option<&'static Tool> {
    TOOL.get()?.as_ref()
}

fn load() -> Option<Tool> {
    use std::os::unix::ffi::OsStrExt;
    // With another user's rights, no library that the environment names may run.
    let path = std::env::var_os("NVTX_INJECTION64_PATH").filter(|_| !crate::support::process::has_gained_rights())?;
    let path = CString::new(path.as_bytes()).ok()?;
    let initialize = symbol(&path, c"InitializeInjectionNvtxExtension")?;
    // SAFETY: NVTX's convention gives the exported function of that name this type.
    let initialize: unsafe extern "C" fn(*mut ModuleInfo) -> c_int = unsafe { std::mem::transmute(initialize) };
    // The tool may keep a pointer to them, so they are never freed.
    let functions: &'static mut [isize; SLOTS] = Box::leak(Box::new([0; SLOTS]));
    let mut segment = ModuleSegment {
        id: 1,
        slots: SLOTS,
        functions: functions.as_mut_ptr(),
    };
    let mut module = ModuleInfo {
        version: VERSION,
        size: size_of::<ModuleInfo>() as u16,
        module: MODULE,
        compatible: COMPATIBLE,
        segments: 1,
        segment: &mut segment,
        export: null(),
        info: null(),
    };
    // SAFETY: the structures are as the tool expects them, and writable.
    if unsafe { initialize(&mut module) } == 0 {
        return None;
    }
    // 0 or -1 marks a function that the tool does not have.
    let slot = |at: usize| Some(functions[at]).filter(|function| *function != 0 && *function != -1);
    // SAFETY: a tool that fills a slot puts a function of the slot's type there.
    unsafe {
        Some(Tool {
            heap_register: slot(HEAP_REGISTER).map(|at| std::mem::transmute(at)),
            heap_unregister: slot(HEAP_UNREGISTER).map(|at| std::mem::transmute(at)),
            register: slot(REGIONS_REGISTER).map(|at| std::mem::transmute(at)),
            unregister: slot(REGIONS_UNREGISTER).map(|at| std::mem::transmute(at)),
        })
    }
}

/// Loads the tool's library, which stays loaded until the process ends, and looks up a symbol.
fn symbol(library: &CStr, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: C strings; loading the tool that the environment names is what NVTX does.
    let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return None;
    }
    // SAFETY: a handle from dlopen and a C string.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

fn pointer(address: u64) -> *const c_void {
    std::ptr::without_provenance(address as usize)
}

/// Notifies the tool of a range in which the pool allocates.
pub fn heap(address: u64, bytes: u64) -> HeapHandle {
    let Some(register) = tool().and_then(|tool| tool.heap_register) else {
        return HeapHandle::default();
    };
    let range = VirtualRange {
        size: bytes as usize,
        address: pointer(address),
    };
    let description = HeapDescription {
        compatible: COMPATIBLE,
        size: size_of::<HeapDescription>() as u16,
        reserved: 0,
        usage: SUB_ALLOCATOR,
        kind: VIRTUAL_ADDRESS,
        range_size: size_of::<VirtualRange>(),
        range: &range,
        category: 0,
        message_type: ASCII,
        message: c"trtalloc".as_ptr(),
    };
    // SAFETY: the tool's function of that type, which reads only during the call. A null domain is NVTX's default
    // domain.
    HeapHandle(unsafe { register(null_mut(), &description) }.expose_provenance())
}

/// Notifies the tool that the range is no longer used.
pub fn heap_gone(heap: HeapHandle) {
    if let (Some(unregister), true) = (tool().and_then(|tool| tool.heap_unregister), heap.0 != 0) {
        // SAFETY: the tool's function, and a handle that it returned.
        unsafe { unregister(null_mut(), std::ptr::with_exposed_provenance_mut(heap.0)) }
    }
}

/// Notifies the tool of an allocation of so many requested bytes.
pub fn allocated(heap: HeapHandle, address: u64, bytes: u64) {
    let Some(register) = tool().and_then(|tool| tool.register).filter(|_| heap.0 != 0) else {
        return;
    };
    let range = VirtualRange {
        size: bytes as usize,
        address: pointer(address),
    };
    let regions = Regions {
        compatible: COMPATIBLE,
        size: size_of::<Regions>() as u16,
        kind: VIRTUAL_ADDRESS,
        heap: std::ptr::with_exposed_provenance_mut(heap.0),
        count: 1,
        element: size_of::<VirtualRange>(),
        elements: &range,
        handles: null_mut(),
    };
    // SAFETY: the tool's function of that type, which reads only during the call.
    unsafe { register(null_mut(), &regions) }
}

/// Notifies the tool of a free.
pub fn freed(heap: HeapHandle, address: u64) {
    let Some(unregister) = tool().and_then(|tool| tool.unregister).filter(|_| heap.0 != 0) else {
        return;
    };
    let block = pointer(address);
    let regions = Unregistered {
        compatible: COMPATIBLE,
        size: size_of::<Unregistered>() as u16,
        kind: POINTER,
        count: 1,
        element: size_of::<*const c_void>(),
        elements: &block,
    };
    // SAFETY: as above.
    unsafe { unregister(null_mut(), &regions) }
}
