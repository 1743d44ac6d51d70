//! Frames of the Python interpreter, where the process has one.
//!
//! Its functions are found by name at run time. They are called only on a thread that holds the interpreter's lock,
//! so no object is freed meanwhile. A code object that occurs in an interned stack is kept alive, so that its address
//! identifies it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;

use super::intern::Frame;
use super::modules;

type Object = *mut c_void;

/// A frame as it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::history::stack) struct Running {
    /// The code object.
    pub(in crate::history::stack) code: usize,
    /// The instruction, or the line where [`Api::instruction`] is missing.
    pub(in crate::history::stack) place: i32,
}

impl Running {
    pub(in crate::history::stack) const NONE: Running = Running { code: 0, place: 0 };
}

/// A frame with its name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PythonFrame {
    pub(crate) name: String,
    pub(crate) filename: String,
    pub(crate) line: u32,
}

/// The interpreter's functions that are used. All interpreters from 3.9 on have them.
struct Api {
    initialized: unsafe extern "C" fn() -> c_int,
    holds_lock: unsafe extern "C" fn() -> c_int,
    this_thread: unsafe extern "C" fn() -> *mut c_void,
    frame: unsafe extern "C" fn() -> Object,
    back: unsafe extern "C" fn(Object) -> Object,
    code: unsafe extern "C" fn(Object) -> Object,
    line: unsafe extern "C" fn(Object) -> c_int,
    /// Since 3.11.
    instruction: Option<unsafe extern "C" fn(Object) -> c_int>,
    line_of: unsafe extern "C" fn(Object, c_int) -> c_int,
    attribute: unsafe extern "C" fn(Object, *const c_char) -> Object,
    text: unsafe extern "C" fn(Object) -> *const c_char,
    forget_error: unsafe extern "C" fn(),
    fetch_error: unsafe extern "C" fn(*mut Object, *mut Object, *mut Object),
    restore_error: unsafe extern "C" fn(Object, Object, Object),
    keep: unsafe extern "C" fn(Object),
    drop: unsafe extern "C" fn(Object),
}

static API: AtomicPtr<Api> = AtomicPtr::new(null_mut());
static FRAMES: Mutex<PythonFrames> = Mutex::new(PythonFrames {
    known: Vec::new(),
    by_place: std::collections::BTreeMap::new(),
});

struct PythonFrames {
    known: Vec<PythonFrame>,
    by_place: std::collections::BTreeMap<(usize, i32), u32>,
}

/// Looks for an interpreter in the process.
pub(in crate::history::stack) fn find() {
    if !API.load(Ordering::Acquire).is_null() {
        return;
    }
    let libraries = modules::paths()
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("libpython"));
    let opened = libraries.filter_map(|path| {
        let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).ok()?;
        // SAFETY: a C string; nothing is loaded that is not loaded already.
        NonNull::new(unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) })
    });
    let everywhere = std::iter::once(libc::RTLD_DEFAULT);
    if let Some(api) = everywhere.chain(opened.map(NonNull::as_ptr)).find_map(api) {
        API.store(Box::into_raw(Box::new(api)), Ordering::Release);
    }
}

// Each function's type is that of its field.
#[allow(clippy::missing_transmute_annotations)]
fn api(library: *mut c_void) -> Option<Api> {
    let symbol = |name: &CStr| {
        // SAFETY: the handle is valid or the default one, and the name a C string.
        NonNull::new(unsafe { libc::dlsym(library, name.as_ptr()) })
    };
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the interpreter's function of that name has had this signature since 3.9.
            unsafe { std::mem::transmute::<NonNull<c_void>, _>(symbol($name)?) }
        };
    }
    Some(Api {
        initialized: function!(c"Py_IsInitialized"),
        holds_lock: function!(c"PyGILState_Check"),
        this_thread: function!(c"PyGILState_GetThisThreadState"),
        frame: function!(c"PyEval_GetFrame"),
        back: function!(c"PyFrame_GetBack"),
        code: function!(c"PyFrame_GetCode"),
        line: function!(c"PyFrame_GetLineNumber"),
        // SAFETY: as above, since 3.11.
        instruction: symbol(c"PyFrame_GetLasti")
            .map(|found| unsafe { std::mem::transmute::<NonNull<c_void>, _>(found) }),
        line_of: function!(c"PyCode_Addr2Line"),
        attribute: function!(c"PyObject_GetAttrString"),
        text: function!(c"PyUnicode_AsUTF8"),
        forget_error: function!(c"PyErr_Clear"),
        fetch_error: function!(c"PyErr_Fetch"),
        restore_error: function!(c"PyErr_Restore"),
        keep: function!(c"Py_IncRef"),
        drop: function!(c"Py_DecRef"),
    })
}

/// The interpreter, if this thread holds its lock.
fn held() -> Option<&'static Api> {
    // SAFETY: null, or an `Api` that is never freed.
    let api = unsafe { API.load(Ordering::Acquire).as_ref() }?;
    // SAFETY: these may be called on any thread, also without the lock.
    let held = unsafe { (api.initialized)() != 0 && !(api.this_thread)().is_null() && (api.holds_lock)() == 1 };
    held.then_some(api)
}

/// Takes the frames that run on this thread, innermost first; returns their number.
pub(in crate::history::stack) fn take(frames: &mut [Running]) -> usize {
    let Some(api) = held() else { return 0 };
    let mut count = 0;
    // SAFETY: this thread holds the interpreter's lock. The first frame is borrowed and gets a reference of its own.
    // What `back` and `code` return is a new reference, which is dropped after the last use. A frame keeps the code
    // that it runs alive.
    unsafe {
        let mut frame = (api.frame)();
        if !frame.is_null() {
            (api.keep)(frame);
        }
        while !frame.is_null() {
            if count < frames.len() {
                let code = (api.code)(frame);
                let place = match api.instruction {
                    Some(instruction) => instruction(frame),
                    None => (api.line)(frame),
                };
                frames[count] = Running {
                    code: code as usize,
                    place,
                };
                count += 1;
                (api.drop)(code);
            }
            let back = if count < frames.len() {
                (api.back)(frame)
            } else {
                null_mut()
            };
            (api.drop)(frame);
            frame = back;
        }
    }
    count
}

/// Names a frame that was just taken on this thread, and keeps its code object alive.
#[cold]
pub(in crate::history::stack) fn keep(running: Running) -> Frame {
    let place = (running.code, running.place);
    if let Some(known) = FRAMES.lock().by_place.get(&place) {
        return Frame::Python(*known);
    }
    // The lock on FRAMES is not held here, since looking up a name runs Python.
    let frame = held().map(|api| named(api, running)).unwrap_or_default();
    let mut frames = FRAMES.lock();
    let next = frames.known.len() as u32;
    let number = *frames.by_place.entry(place).or_insert(next);
    if number == next {
        frames.known.push(frame);
    }
    Frame::Python(number)
}

fn named(api: &Api, running: Running) -> PythonFrame {
    let code = running.code as Object;
    // SAFETY: this thread holds the interpreter's lock, and the code object runs on it. An error that is being raised
    // is fetched and restored.
    unsafe {
        let (mut kind, mut value, mut trace) = (null_mut(), null_mut(), null_mut());
        (api.fetch_error)(&raw mut kind, &raw mut value, &raw mut trace);
        (api.keep)(code);
        let name = text(api, code, c"co_qualname").or_else(|| text(api, code, c"co_name"));
        let line = match api.instruction {
            Some(_) => (api.line_of)(code, running.place),
            None => running.place,
        };
        let frame = PythonFrame {
            name: name.unwrap_or_default(),
            filename: text(api, code, c"co_filename").unwrap_or_default(),
            line: line.max(0) as u32,
        };
        (api.forget_error)();
        (api.restore_error)(kind, value, trace);
        frame
    }
}

/// # Safety
/// This thread holds the interpreter's lock, and `object` is one of its objects.
unsafe fn text(api: &Api, object: Object, name: &CStr) -> Option<String> {
    // SAFETY: as this function requires. The attribute is a new reference; its text is copied before the reference is
    // dropped.
    unsafe {
        let attribute = (api.attribute)(object, name.as_ptr());
        if attribute.is_null() {
            (api.forget_error)();
            return None;
        }
        let text = (api.text)(attribute);
        let copy = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
        (api.drop)(attribute);
        copy
    }
}

/// The frame that [`keep`] gave this number.
pub(crate) fn frame(number: u32) -> PythonFrame {
    FRAMES.lock().known.get(number as usize).cloned().unwrap_or_default()
}
