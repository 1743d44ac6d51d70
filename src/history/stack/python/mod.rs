//! Frames of the Python interpreter, where the process has one.
//!
//! Its functions are found by name at run time. A thread that holds the interpreter's lock calls them, so no object is
//! freed meanwhile, and the code objects that it met lately are kept alive. A thread without the lock never waits for it: the
//! thread may hold a lock of TensorRT's that the lock's owner waits for, and while the interpreter ends, a thread that asks for
//! its lock is ended. It reads its own frames from memory ([`chain`]), with the interpreter's layout ([`layout`]), once
//! [`confirm`] has compared that layout with what the functions say. Where frames cannot be had, the stack says why
//! ([`Missing`]).
//!
//! Without the lock, these functions of the interpreter are called: `Py_IsInitialized`, `Py_IsFinalizing`,
//! `PyGILState_GetThisThreadState`, `PyGILState_Check`, `PyThreadState_GetUnchecked`, `PyInterpreterState_Main` and
//! `PyInterpreterState_Head`. They take no lock and load variables of the interpreter's library and of this thread, which
//! stay mapped. The state of this thread is a value of its own (`pthread_getspecific`); only what it points to may be
//! freed. `Py_AddPendingCall` takes a lock that is held for a few instructions at a time; it is called once.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::num::NonZero;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::frame::{Frame, Missing, Running};
use super::modules;

mod chain;
mod codes;
mod confirm;
mod layout;
mod lines;
mod memory;
mod objects;

use confirm::Verdict;

type Object = *mut c_void;

/// What [`take`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::history::stack) enum Taken {
    /// So many frames; 0 where Python does not run on this thread.
    Frames(usize),
    /// So many frames that count once the layout is confirmed.
    Unconfirmed(usize),
    Missing(Missing),
}

/// What a thread needs to read its frames.
#[derive(Default)]
pub(in crate::history::stack) struct Reader {
    memory: memory::Memory,
    codes: codes::Cache,
}

/// A frame with its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct PythonFrame {
    pub(crate) name: String,
    pub(crate) filename: String,
    pub(crate) line: u32,
}

/// The interpreter's functions that are used. All interpreters from 3.9 on have them.
struct Api {
    initialized: unsafe extern "C" fn() -> c_int,
    ending: Option<unsafe extern "C" fn() -> c_int>,
    holds_lock: unsafe extern "C" fn() -> c_int,
    this_thread: unsafe extern "C" fn() -> *mut c_void,
    /// The state of the thread that holds the lock; since 3.12, of this thread where it holds its interpreter's lock.
    current: unsafe extern "C" fn() -> *mut c_void,
    /// Whether `current` is of this thread.
    is_current_of_thread: bool,
    main_interpreter: unsafe extern "C" fn() -> *mut c_void,
    newest_interpreter: unsafe extern "C" fn() -> *mut c_void,
    call_later: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int,
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
    /// The address of `PyCode_Type`.
    code_type: u64,
    layout: Result<layout::Layout, Missing>,
}

static API: AtomicPtr<Api> = AtomicPtr::new(null_mut());
static FRAMES: Mutex<PythonFrames> = Mutex::new(PythonFrames {
    known: Vec::new(),
    numbers: BTreeMap::new(),
    by_place: BTreeMap::new(),
    bytes: 0,
});

/// All frames that were named. Equal ones have one number, whichever code object they are of.
struct PythonFrames {
    known: Vec<Arc<PythonFrame>>,
    numbers: BTreeMap<Arc<PythonFrame>, u32>,
    /// The numbers of frames that were taken lately.
    by_place: BTreeMap<(u32, i64), u32>,
    /// Bytes of all names.
    bytes: usize,
}

impl PythonFrames {
    const MAX: usize = 1 << 20;
    const MAX_PLACES: usize = 1 << 18;
    const MAX_BYTES: usize = 128 << 20;

    /// The number of a frame; none where there are too many.
    fn number(&mut self, place: (u32, i64), frame: PythonFrame) -> Option<u32> {
        let number = match self.numbers.get(&frame) {
            Some(number) => *number,
            None => {
                let bytes = self.bytes + frame.name.len() + frame.filename.len();
                if self.known.len() >= PythonFrames::MAX || bytes > PythonFrames::MAX_BYTES {
                    return None;
                }
                self.bytes = bytes;
                let (number, frame) = (self.known.len() as u32, Arc::new(frame));
                self.known.push(frame.clone());
                self.numbers.insert(frame, number);
                number
            }
        };
        if self.by_place.len() >= PythonFrames::MAX_PLACES {
            self.by_place.clear();
        }
        self.by_place.insert(place, number);
        Some(number)
    }
}

/// Whether the process ever had several interpreters. Then a reference that is held may be of another one, whose lock this
/// thread does not hold, so all stay.
static SEVERAL: AtomicBool = AtomicBool::new(false);

/// The version of the list of libraries when an interpreter was looked for the last time.
static SEARCHED: AtomicU64 = AtomicU64::new(0);

/// Looks for an interpreter in the process, and has its layout confirmed.
pub(in crate::history::stack) fn find() {
    search();
    if let Some(api) = loaded() {
        confirm::begin(api);
    }
}

/// The interpreter, if it was found.
fn loaded() -> Option<&'static Api> {
    // SAFETY: null, or an `Api` that is never freed.
    unsafe { API.load(Ordering::Acquire).as_ref() }
}

/// The interpreter, also if it was loaded since the last search.
fn loaded_by_now() -> Option<&'static Api> {
    if let Some(api) = loaded() {
        return Some(api);
    }
    modules::refresh_if_changed();
    if modules::version() != SEARCHED.load(Ordering::Relaxed) {
        search();
    }
    loaded()
}

#[cold]
fn search() {
    if loaded().is_some() {
        return;
    }
    SEARCHED.store(modules::version(), Ordering::Relaxed);
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
    let current = symbol(c"PyThreadState_GetUnchecked").or_else(|| symbol(c"_PyThreadState_UncheckedGet"));
    let ending = symbol(c"Py_IsFinalizing").or_else(|| symbol(c"_Py_IsFinalizing"));
    // The function of that name returns a string that is never freed.
    let version: unsafe extern "C" fn() -> *const c_char = function!(c"Py_GetVersion");
    // SAFETY: it may be called on any thread, and returns a C string.
    let version = unsafe { CStr::from_ptr(version()) }.to_string_lossy().into_owned();
    let minor = version.strip_prefix("3.")?;
    let minor = minor.split(|letter: char| !letter.is_ascii_digit()).next()?;
    let runtime = symbol(c"_PyRuntime").map_or(0, |found| found.as_ptr() as u64);
    Some(Api {
        initialized: function!(c"Py_IsInitialized"),
        // SAFETY: as `function` says; the name began with an underscore before 3.13.
        ending: ending.map(|found| unsafe { std::mem::transmute::<NonNull<c_void>, _>(found) }),
        // SAFETY: likewise.
        current: unsafe { std::mem::transmute::<NonNull<c_void>, _>(current?) },
        is_current_of_thread: minor.parse().is_ok_and(|minor: u32| minor >= 12),
        main_interpreter: function!(c"PyInterpreterState_Main"),
        newest_interpreter: function!(c"PyInterpreterState_Head"),
        call_later: function!(c"Py_AddPendingCall"),
        code_type: symbol(c"PyCode_Type")?.as_ptr() as u64,
        layout: layout::of(&version, runtime),
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

impl Api {
    /// The state of this thread where it is one of Python's; null where it is not.
    fn state(&self) -> *mut c_void {
        // SAFETY: may be called on any thread, also without the lock.
        unsafe { (self.this_thread)() }
    }

    /// Whether the interpreter is there and not ending.
    fn is_running(&self) -> bool {
        // SAFETY: may be called on any thread, also without the lock.
        unsafe { (self.initialized)() != 0 && self.ending.is_none_or(|ending| ending() == 0) }
    }

    /// Whether the process has one interpreter now. Each new one becomes the first of the list.
    fn is_alone(&self) -> bool {
        // SAFETY: these may be called on any thread, also without the lock.
        let (main, newest) = unsafe { ((self.main_interpreter)(), (self.newest_interpreter)()) };
        !main.is_null() && main == newest
    }

    fn note_interpreters(&self) {
        if !self.is_alone() {
            SEVERAL.store(true, Ordering::Relaxed);
        }
    }

    /// Whether this thread holds the interpreter's lock.
    fn is_held(&self) -> bool {
        // SAFETY: may be called on any thread, also without the lock.
        let (held, current) = unsafe { ((self.holds_lock)() == 1, (self.current)()) };
        // `PyGILState_Check` says yes on every thread once the process had a second interpreter.
        held && !current.is_null() && (self.is_current_of_thread || current == self.state())
    }
}

/// The interpreter, if this thread holds its lock.
fn held() -> Option<&'static Api> {
    loaded().filter(|api| !api.state().is_null() && api.is_running() && api.is_held())
}

/// Takes the frames that run on this thread, innermost first. `on_its_stack` says that the thread runs on its own stack,
/// and not on one for signal handlers: a handler may have interrupted the interpreter anywhere, so that its functions
/// must not be called.
pub(in crate::history::stack) fn take(
    reader: &mut Option<Box<Reader>>,
    frames: &mut [Running],
    on_its_stack: bool,
) -> Taken {
    let Some(api) = loaded_by_now() else {
        return Taken::Frames(0);
    };
    let Some(state) = NonZero::new(api.state() as u64) else {
        // A thread of Python's has no state any more once the interpreter has ended.
        let ended = reader.is_some() && !api.is_running();
        return if ended {
            Taken::Missing(Missing::Ending)
        } else {
            Taken::Frames(0)
        };
    };
    if !api.is_running() {
        return Taken::Missing(Missing::Ending);
    }
    let reader = reader.get_or_insert_default();
    if on_its_stack && api.is_held() {
        let count = call(api, reader, frames);
        confirm::once(api, reader);
        return Taken::Frames(count);
    }
    if confirm::verdict() == Verdict::Different {
        return Taken::Missing(Missing::Different);
    }
    let taken = read(api, state, reader, frames);
    // What the interpreter frees at its end may have been read as if it were a chain.
    if !api.is_running() {
        return Taken::Missing(Missing::Ending);
    }
    match (taken, confirm::verdict()) {
        (Ok(0), _) => Taken::Frames(0),
        (Err(missing), _) => Taken::Missing(missing),
        (Ok(count), Verdict::Same) => Taken::Frames(count),
        (Ok(_), Verdict::Different) => Taken::Missing(Missing::Different),
        (Ok(count), Verdict::Open) => {
            confirm::ask(api);
            Taken::Unconfirmed(count)
        }
    }
}

/// Reads the frames of this thread from memory; returns their number.
fn read(api: &Api, state: NonZero<u64>, reader: &mut Reader, frames: &mut [Running]) -> Result<usize, Missing> {
    let layout = api.layout.as_ref().map_err(|missing| *missing)?;
    // SAFETY: these may be called on any thread, also without the lock.
    let (main, newest) = unsafe { ((api.main_interpreter)(), (api.newest_interpreter)()) };
    // Each new interpreter becomes the first of the list. With several, the state found may not be the one in use.
    if main.is_null() || main != newest {
        return Err(Missing::Interpreters);
    }
    let owner = chain::Owner {
        state,
        interpreter: main as u64,
        code_type: api.code_type,
    };
    chain::read(layout, owner, &mut reader.memory, &mut reader.codes, frames)
}

/// Takes the frames of this thread, which holds the interpreter's lock; returns their number.
fn call(api: &Api, reader: &mut Reader, frames: &mut [Running]) -> usize {
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
                    Some(instruction) => i64::from(instruction(frame)),
                    None => Running::LINE | i64::from((api.line)(frame).max(0)),
                };
                let keep = |code| {
                    api.note_interpreters();
                    // SAFETY: the code object is alive.
                    (api.keep)(code)
                };
                let release = |code| {
                    if !SEVERAL.load(Ordering::Relaxed) {
                        // SAFETY: the reference is one that `keep` took, in this interpreter. What this may run takes no stack,
                        // since this thread is taking one.
                        (api.drop)(code)
                    }
                };
                let number = reader.codes.held(code, keep, release);
                frames[count] = Running { code: number, place };
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

/// Names a frame that was just taken on this thread; none where there are too many names.
#[cold]
pub(in crate::history::stack) fn keep(running: Running) -> Option<Frame> {
    let place = (running.code, running.place);
    if let Some(known) = FRAMES.lock().by_place.get(&place) {
        return Some(Frame::Python(*known));
    }
    // The lock on FRAMES is not held here, since looking up a name runs Python.
    let frame = match codes::held_address(running.code).zip(held()) {
        Some((code, api)) => named(api, code as Object, running),
        None => codes::named(running),
    };
    FRAMES.lock().number(place, frame).map(Frame::Python)
}

/// Whether frames that were read before the layout was confirmed count by now; why not, where they do not.
pub(in crate::history::stack) fn confirmed() -> Result<(), Missing> {
    match confirm::verdict() {
        Verdict::Same => Ok(()),
        Verdict::Different => Err(Missing::Different),
        Verdict::Open => Err(Missing::Unconfirmed),
    }
}

/// Names a place in a code object that is held.
fn named(api: &Api, code: Object, running: Running) -> PythonFrame {
    // SAFETY: this thread holds the interpreter's lock, and a reference to the code object is held. An error that is
    // being raised is fetched and restored.
    unsafe {
        let (mut kind, mut value, mut trace) = (null_mut(), null_mut(), null_mut());
        (api.fetch_error)(&raw mut kind, &raw mut value, &raw mut trace);
        let name = text(api, code, c"co_qualname").or_else(|| text(api, code, c"co_name"));
        let line = match running.line() {
            Some(line) => line,
            None => i64::from((api.line_of)(code, running.place as c_int)),
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
    let frame = FRAMES.lock().known.get(number as usize).cloned();
    frame.map_or_else(PythonFrame::default, |frame| PythonFrame::clone(&frame))
}
