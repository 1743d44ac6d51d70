//! Ascend devices through AscendCL's libascendcl.so, which is opened at run time: the crate builds and loads without
//! it.
//!
//! Written from public signatures, from CANN's sources (hicann/runtime) and from torch_npu. **Nothing here was run on
//! an Ascend device**: the tests run it over a stand-in for AscendCL.
//!
//! `functions` looks up AscendCL's functions, `calls` has the trait's methods, `failure` maps errors, `threads` chooses
//! the context and the thread of a call, `mapping` has the differences in virtual memory, `media` allocates media
//! memory, `tools` has an application's calls.
//!
//! The differences from CUDA, and how the driver handles them:
//!
//! * **A thread's context cannot be taken away.** The driver never sets or changes the context of an application's
//!   thread: see `threads`. The driver calls `aclInit` once, and accepts that the application called it before.
//!   `aclFinalize` is left to the application.
//! * **A stream belongs to the calling thread's context.** AscendCL refuses other streams, and does not report a
//!   stream's context. Its stream ids are the hardware's and are reused, and there are no events for a whole context.
//!   So this driver offers what CUDA 11.2 offers, and the pool treats it like that.
//! * **`aclrtSynchronizeDevice` waits for existing streams only.** A stream has to be synchronized before it is
//!   destroyed, which AscendCL requires anyway.
//! * **Captures** (`aclmdlRICapture…`): a model is captured into once, so its handle identifies the capture. When a new
//!   model has the same handle, the old one was destroyed. The default stream cannot be captured. AscendCL does not
//!   notify when a model is destroyed, so memory that was allocated in a capture stays allocated for the process's
//!   life. AscendCL refuses to wait while a stream of the context captures, and that ends no capture.
//! * **`aclrtFree` does not wait.** The pool frees only memory whose work has completed.
//! * **Peer access and exported handles** are not supported.

/// Calls a function of AscendCL and returns its result.
macro_rules! code {
    ($acl:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        // SAFETY: the function's type is the documented one of its name. Pointers passed are null where that is
        // allowed, or lead to locals that outlive the call. Handles come from the trait's caller, which guarantees that
        // they are valid.
        unsafe { ($acl.functions.$function)($($argument),*) }
    };
}

/// Calls a function of AscendCL. An error names the function.
macro_rules! call {
    ($acl:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        check(stringify!($function), code!($acl, $function($($argument),*)))
    };
}

mod arguments;
mod calls;
mod failure;
mod functions;
mod mapping;
mod media;
mod threads;
mod tools;

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use self::failure::check;
use self::functions::{Acl, LIBRARY};
use self::mapping::Mapped;
use self::media::Media;
use self::threads::{Place, Worker};
use super::{Context, Descriptor, DriverError, Failure, Result, Settings};

/// `ACL_ERROR_REPEAT_INITIALIZE`: the application has initialized AscendCL already, as it should.
const REPEATED_INIT: i32 = 100_002;

/// `driver=ascend`.
pub static DRIVER: Descriptor = Descriptor {
    advice: tools::advice,
    ..Descriptor::new("ascend", |settings| Ok(AscendDriver::open(settings)?))
};

/// The driver of Ascend devices. Opening it initializes AscendCL and binds no device.
pub struct AscendDriver {
    acl: Arc<Acl>,
    /// The functions for media memory, in a driver of media memory.
    media: Option<Media>,
    worker: Worker,
    /// Retained device contexts, one entry for each retain.
    retained: Mutex<Vec<(i32, Context)>>,
    mapped: Mapped,
    count: OnceLock<u32>,
    /// [`Settings::usable`].
    usable: fn() -> bool,
}

impl AscendDriver {
    /// Opens libascendcl.so, looks its functions up and initializes it (`aclInit`). With `settings.media`, memory comes
    /// from `acldvppMalloc` of libacl_dvpp.so or, where that is missing, from `hi_mpi_dvpp_malloc` of
    /// libacl_dvpp_mpi.so, and there is no virtual memory. No device is opened.
    ///
    /// # Errors
    ///
    /// [`Failure::Missing`] names the missing library or function. Other errors are those of `aclInit`.
    pub fn open(settings: &Settings) -> Result<Arc<AscendDriver>> {
        let acl = Acl::open()?;
        let media = if settings.media { Some(Media::open()?) } else { None };
        AscendDriver::initialize(acl, media, settings.usable)
    }

    /// As [`AscendDriver::open`], in a process that may always make calls, with functions that `find` looks up by name:
    /// AscendCL's, and the media libraries' where the second is true.
    ///
    /// # Safety
    ///
    /// `find` returns the documented functions of these names. They stay valid.
    ///
    /// # Errors
    ///
    /// As [`AscendDriver::open`].
    pub unsafe fn over(
        find: &dyn Fn(&CStr, bool) -> Option<NonNull<c_void>>,
        media: bool,
    ) -> Result<Arc<AscendDriver>> {
        // SAFETY: the caller meets the same requirement.
        let (acl, media) = unsafe {
            let media = if media {
                Some(Media::load(&|name| find(name, true))?)
            } else {
                None
            };
            (Acl::load(&|name| find(name, false))?, media)
        };
        AscendDriver::initialize(acl, media, || true)
    }

    fn initialize(acl: Acl, media: Option<Media>, usable: fn() -> bool) -> Result<Arc<AscendDriver>> {
        match code!(acl, aclInit(std::ptr::null())) {
            REPEATED_INIT => {}
            code => check("aclInit", code)?,
        }
        Ok(Arc::new(AscendDriver {
            acl: Arc::new(acl),
            media,
            worker: Worker::default(),
            retained: Mutex::default(),
            mapped: Mapped::default(),
            count: OnceLock::new(),
            usable,
        }))
    }

    /// The chip's name (`aclrtGetSocName`), if AscendCL has one.
    pub fn soc_name(&self) -> Option<String> {
        self.acl.soc_name()
    }

    /// Makes a call that needs the current context as the pool sees it.
    fn in_current_context<T: Send + 'static>(&self, job: impl FnOnce(&Acl) -> Result<T> + Send + 'static) -> Result<T> {
        match threads::place(&self.acl)? {
            Place::Caller => job(&self.acl),
            Place::Driver(context) => self.worker.run(&self.acl, Some(context), job),
            Place::NoContext => Err(DriverError {
                call: "aclrtGetCurrentContext",
                code: failure::CONTEXT_NULL as u32,
                failure: Failure::NoContext,
            }),
        }
    }

    /// Makes a call that needs a context, of any kind.
    fn in_any_context<T: Send + 'static>(&self, job: impl FnOnce(&Acl) -> Result<T> + Send + 'static) -> Result<T> {
        match threads::place(&self.acl)? {
            Place::Caller => job(&self.acl),
            Place::Driver(context) => self.worker.run(&self.acl, Some(context), job),
            Place::NoContext => {
                let any = self.retained.lock().last().map(|(_, context)| *context);
                self.worker.run(&self.acl, any, job)
            }
        }
    }
}

impl std::fmt::Debug for AscendDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AscendDriver")
            .field("library", &LIBRARY)
            .field("media", &self.media.is_some())
            .finish_non_exhaustive()
    }
}
