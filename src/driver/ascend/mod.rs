//! Ascend devices through AscendCL's libascendcl.so, which is opened at run time: the crate builds and loads without it.
//!
//! Written from public signatures, from CANN's sources (hicann/runtime) and from torch_npu. **Nothing here was run on an Ascend
//! device**: the tests run it over a stand-in for AscendCL.
//!
//! `functions` finds AscendCL's functions, `calls` has the trait's methods, `failure` says what an error means to the pool,
//! `threads` in which context a call is made, `mapping` what differs in virtual memory, `media` where media memory comes from.
//!
//! What differs from CUDA, and what is made of it:
//!
//! * **Contexts are a thread's, and cannot be taken away.** No thread of the application's ever gets one, or another one: see
//!   `threads`. `aclInit` is called once, and that it was called before is fine; `aclFinalize` is the application's.
//! * **A stream is of the calling thread's context**: AscendCL refuses others, and does not tell whose a stream is. Its ids are
//!   the hardware's and come back, and there are no events for a whole context. So this driver offers what CUDA 11.2 does,
//!   and the pool treats it so.
//! * **`aclrtSynchronizeDevice` waits for the streams that are there.** A stream has to be synchronized before it is destroyed,
//!   which AscendCL demands anyway.
//! * **Captures** (`aclmdlRICapture…`): a model is captured into once, so its handle names the capture; when the handle comes
//!   back, the model is gone. The default stream cannot be captured. Nobody tells when a model is gone, so memory that was
//!   allocated in a capture stays what it is for the process's life. Waiting is refused while a stream of the context
//!   captures, and ends no capture.
//! * **`aclrtFree` waits for nothing**, and the pool frees what has completed only.
//! * **Peers and exported handles** are not offered.

/// Calls one of AscendCL's functions; gives its result.
macro_rules! code {
    ($acl:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        // SAFETY: the function's type is the documented one of its name. Pointers passed are null where that is allowed, or
        // lead to locals that outlive the call. Handles come from the trait's caller, who answers for them.
        unsafe { ($acl.functions.$function)($($argument),*) }
    };
}

/// Calls one of AscendCL's functions; an error carries its name.
macro_rules! call {
    ($acl:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        check(stringify!($function), code!($acl, $function($($argument),*)))
    };
}

mod calls;
mod failure;
mod functions;
mod mapping;
mod media;
mod threads;

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use self::failure::check;
use self::functions::{Acl, LIBRARY};
use self::mapping::Mapped;
use self::media::Media;
use self::threads::{Beside, Place};
use super::{Context, DriverError, Failure, Result, Stream};

/// `ACL_ERROR_REPEAT_INITIALIZE`: somebody did it before, as the application should.
const REPEATED_INIT: i32 = 100_002;

/// The driver of Ascend devices. Opening it initializes AscendCL and binds no device.
pub struct AscendDriver {
    acl: Arc<Acl>,
    /// Where media memory comes from, in a driver of media memory.
    media: Option<Media>,
    beside: Beside,
    /// Devices whose own context was retained, as often as it was.
    retained: Mutex<Vec<(i32, Context)>>,
    mapped: Mapped,
    count: OnceLock<u32>,
}

impl AscendDriver {
    /// Opens libascendcl.so, looks its functions up and initializes it (`aclInit`). With `media`, memory is what
    /// `acldvppMalloc` of libacl_dvpp.so gives or, where that is not there, `hi_mpi_dvpp_malloc` of libacl_dvpp_mpi.so, and
    /// there is no virtual memory. No device is opened.
    ///
    /// # Errors
    /// [`Failure::Missing`] names the library, or the function it should have had; otherwise what `aclInit` says.
    pub fn open(media: bool) -> Result<Arc<AscendDriver>> {
        let media = if media { Some(Media::open()?) } else { None };
        AscendDriver::initialize(Acl::open()?, media)
    }

    /// As [`AscendDriver::open`] over functions that `find` knows by their names: of AscendCL, and of the media libraries
    /// where the second is true.
    ///
    /// # Safety
    /// They are the documented functions of these names, and stay.
    ///
    /// # Errors
    /// As [`AscendDriver::open`].
    pub unsafe fn over(
        find: &dyn Fn(&CStr, bool) -> Option<NonNull<c_void>>,
        media: bool,
    ) -> Result<Arc<AscendDriver>> {
        // SAFETY: the caller's promise.
        let (acl, media) = unsafe {
            let media = if media {
                Some(Media::load(&|name| find(name, true))?)
            } else {
                None
            };
            (Acl::load(&|name| find(name, false))?, media)
        };
        AscendDriver::initialize(acl, media)
    }

    fn initialize(acl: Acl, media: Option<Media>) -> Result<Arc<AscendDriver>> {
        match code!(acl, aclInit(std::ptr::null())) {
            REPEATED_INIT => {}
            code => check("aclInit", code)?,
        }
        Ok(Arc::new(AscendDriver {
            acl: Arc::new(acl),
            media,
            beside: Beside::default(),
            retained: Mutex::default(),
            mapped: Mapped::default(),
            count: OnceLock::new(),
        }))
    }

    /// What the chip calls itself (`aclrtGetSocName`), where it does.
    pub fn soc_name(&self) -> Option<String> {
        self.acl.soc_name()
    }

    /// A new stream of the context that is current as [`Driver`](super::Driver) sees it (`aclrtCreateStream`): for an
    /// application whose context was pushed.
    ///
    /// # Errors
    /// What AscendCL says; [`Failure::NoContext`] where there is none.
    pub fn create_stream(&self) -> Result<Stream> {
        self.here(|acl| {
            let mut stream = 0usize;
            call!(acl, aclrtCreateStream(&mut stream))?;
            Ok(Stream(stream))
        })
    }

    /// Destroys a stream of that context, whose work has to be over (`aclrtDestroyStream`).
    ///
    /// # Errors
    /// As [`AscendDriver::create_stream`].
    pub fn destroy_stream(&self, stream: Stream) -> Result<()> {
        self.here(move |acl| call!(acl, aclrtDestroyStream(stream.0)))
    }

    /// Makes a call that needs the context which is current as the pool sees it.
    fn here<T: Send + 'static>(&self, job: impl FnOnce(&Acl) -> Result<T> + Send + 'static) -> Result<T> {
        match threads::place(&self.acl)? {
            Place::Here => job(&self.acl),
            Place::Beside(context) => self.beside.run(&self.acl, Some(context), job),
            Place::Nowhere => Err(DriverError {
                call: "aclrtGetCurrentContext",
                code: failure::CONTEXT_NULL as u32,
                failure: Failure::NoContext,
            }),
        }
    }

    /// Makes a call that needs some context and does not care which.
    fn anywhere<T: Send + 'static>(&self, job: impl FnOnce(&Acl) -> Result<T> + Send + 'static) -> Result<T> {
        match threads::place(&self.acl)? {
            Place::Here => job(&self.acl),
            Place::Beside(context) => self.beside.run(&self.acl, Some(context), job),
            Place::Nowhere => {
                let any = self.retained.lock().last().map(|(_, context)| *context);
                self.beside.run(&self.acl, any, job)
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
