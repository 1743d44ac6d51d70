//! Blocks that several owners share, and how they are lent by DLPack (dmlc.github.io/dlpack) and by the capsules of Python's array
//! API. The last owner frees the block. Nothing here runs Python code, so a consumer may let go on any thread, with an exception
//! pending, and after the interpreter has ended.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::arguments::{number, ordinal, pointer};
use crate::allocator::{Allocator, Request};
use crate::driver::{Driver, Stream};
use crate::ffi::ExportedAllocator;
use crate::ffi::call;
use crate::support::config::Kind;
use crate::support::error::{Error, Result};
use crate::support::process;

mod order;
mod tensor;

use order::{Meaning, order};
use tensor::{Managed, UNVERSIONED_NAME, VERSIONED_NAME, Versioned, delete, lend};

/// A block of trtalloc_default() that several owners share. A pointer to it is one owner.
pub struct trtalloc_dlpack_block {
    allocator: &'static Allocator,
    memory: Mutex<Memory>,
    alignment: u64,
    /// The stream that the block was allocated on.
    stream: Option<Stream>,
    /// Which stream that handle meant then.
    meaning: Meaning,
    /// The block may be in use on streams that are not known, or its own stream may not exist any more.
    unordered: AtomicBool,
    device: i32,
    device_type: i32,
}

#[derive(Clone, Copy)]
struct Memory {
    address: u64,
    bytes: u64,
}

/// What a shared block is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct trtalloc_dlpack_info {
    /// Its address.
    pub memory: *mut c_void,
    /// Bytes, as they were requested.
    pub bytes: u64,
    /// How many owners it has.
    pub owners: u64,
    /// DLPack's type of the device: 2 for CUDA memory, 3 for pinned host memory.
    pub device_type: i32,
    /// DLPack's number of the device: 0 for pinned host memory.
    pub device: i32,
}

/// The addresses of a Python interpreter's functions for capsules.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trtalloc_dlpack_python {
    /// PyCapsule_New.
    pub capsule_new: *mut c_void,
    /// PyCapsule_IsValid.
    pub capsule_is_valid: *mut c_void,
    /// PyCapsule_GetPointer.
    pub capsule_get_pointer: *mut c_void,
}

type Destructor = extern "C" fn(*mut c_void);
type CapsuleNew = extern "C" fn(*mut c_void, *const c_char, Option<Destructor>) -> *mut c_void;
type CapsuleIsValid = extern "C" fn(*mut c_void, *const c_char) -> c_int;
type CapsuleGetPointer = extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The same as functions.
#[derive(Clone, Copy)]
struct Python {
    capsule_new: CapsuleNew,
    capsule_is_valid: CapsuleIsValid,
    capsule_get_pointer: CapsuleGetPointer,
}

/// kDLCUDA and kDLCUDAHost of DLPack.
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;

/// DLPack's type of what `driver` allocates. The simulated device counts as CUDA's.
fn device_type(driver: &dyn Driver, host: bool) -> Result<i32> {
    match driver.name() {
        "cuda" | "sim" if host => Ok(CUDA_HOST),
        "cuda" | "sim" => Ok(CUDA),
        other => Err(Error::Unsupported(format!(
            "DLPack lends memory of CUDA here, and the driver is {other}"
        ))),
    }
}

/// The stream that stands for none, as in Python's array API.
const NO_STREAM: usize = usize::MAX;

impl trtalloc_dlpack_block {
    fn allocate(exported: &'static ExportedAllocator, request: Request) -> Result<Arc<trtalloc_dlpack_block>> {
        if request.size == 0 {
            return Err(Error::InvalidArgument("size is 0".into()));
        }
        let allocator = exported.allocator()?;
        let host = allocator.config().kind == Kind::Pinned;
        let device_type = device_type(&**allocator.driver(), host)?;
        let address = allocator.allocate(request)?;
        let device = allocator.device_of_block(address).unwrap_or(0);
        let meaning = request.stream.map_or(Meaning::Stream, |stream| {
            Meaning::here(&**allocator.driver(), device, stream)
        });
        Ok(Arc::new(trtalloc_dlpack_block {
            allocator,
            memory: Mutex::new(Memory {
                address,
                bytes: request.size,
            }),
            alignment: request.alignment,
            stream: request.stream,
            meaning,
            unordered: AtomicBool::new(false),
            device,
            device_type,
        }))
    }

    /// DLPack's number of the device.
    fn dlpack_device(&self) -> i32 {
        if self.device_type == CUDA_HOST { 0 } else { self.device }
    }

    /// Resizes the block, which has one owner.
    fn reallocate(self: &Arc<Self>, bytes: u64) -> Result<()> {
        let mut memory = self.memory.lock();
        if Arc::strong_count(self) > 1 {
            return Err(Error::Unsupported(
                "the block is shared, so its address cannot change".into(),
            ));
        }
        memory.address = self.allocator.reallocate(memory.address, self.alignment, bytes)?;
        memory.bytes = bytes;
        Ok(())
    }

    /// Orders work queued on `consumer` from now on behind what is queued on the block's own stream, and declares that the
    /// block is used there.
    fn use_on(&self, consumer: Option<Stream>) -> Result<()> {
        // Without a stream of its own, the free waits for every stream.
        let Some(own) = self.stream else { return Ok(()) };
        let Some(consumer) = consumer else {
            self.unordered.store(true, Ordering::Relaxed);
            return Ok(());
        };
        process::usable()?;
        let driver = &**self.allocator.driver();
        let is_one = own == consumer || own.is_default();
        if is_one && self.meaning.is(Meaning::here(driver, self.device, consumer)) {
            return Ok(());
        }
        if driver.knows_work() {
            order(driver, self.device, (own, self.meaning), consumer)?;
        }
        let address = self.memory.lock().address;
        if self.allocator.record_stream(address, consumer).is_err() {
            // The free then waits for every stream.
            self.unordered.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the handle of the block's own stream means that stream also here and now.
    fn means_it_here(&self, stream: Stream) -> bool {
        // While the process exits, and in a forked child, the free makes no call of the driver.
        let here = || Meaning::here(&**self.allocator.driver(), self.device, stream);
        process::usable().is_err() || self.meaning.is(here())
    }
}

impl Drop for trtalloc_dlpack_block {
    fn drop(&mut self) {
        let address = self.memory.get_mut().address;
        let ordered = !*self.unordered.get_mut();
        call::guarded("trtalloc_dlpack_release", (), || {
            let stream = self.stream.filter(|stream| ordered && self.means_it_here(*stream));
            self.allocator
                .deallocate(address, stream)
                .or_else(|error| match stream {
                    // The stream was destroyed.
                    Some(_) => self.allocator.deallocate(address, None),
                    None => Err(error),
                })
        });
    }
}

/// Allocates `size` bytes or more, as trtalloc_allocate_on does with trtalloc_default(), as a block that owners share. The
/// caller is its first owner. `stream` (void*)-1: no stream, as trtalloc_allocate. Returns NULL if the request cannot be
/// satisfied, and for memory that is not CUDA's.
#[unsafe(no_mangle)]
pub extern "C" fn trtalloc_dlpack_allocate(
    size: u64,
    alignment: u64,
    flags: u32,
    device: i32,
    stream: *mut c_void,
) -> *mut trtalloc_dlpack_block {
    let request = Request {
        size,
        alignment,
        flags,
        stream: stream_of(stream),
        device: ordinal(device),
    };
    call::guarded("trtalloc_dlpack_allocate", null_mut(), || {
        let block = trtalloc_dlpack_block::allocate(ExportedAllocator::process(), request)?;
        Ok(Arc::into_raw(block).cast_mut())
    })
}

/// Writes the block's address, size, device and number of owners to `*out`. Returns false on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_dlpack_get(
    block: *mut trtalloc_dlpack_block,
    out: *mut trtalloc_dlpack_info,
) -> bool {
    call::guarded("trtalloc_dlpack_get", false, || {
        // SAFETY: the caller is an owner of the block. Another count would make a resize fail on another thread.
        let block = unsafe { borrowed(block) }?;
        // SAFETY: the caller's `out` is null or writable.
        let Some(out) = (unsafe { out.as_mut() }) else {
            return Err(Error::InvalidArgument("out is NULL".into()));
        };
        let memory = *block.memory.lock();
        *out = trtalloc_dlpack_info {
            memory: pointer(memory.address as usize),
            bytes: memory.bytes,
            owners: Arc::strong_count(&block) as u64,
            device_type: block.device_type,
            device: block.dlpack_device(),
        };
        Ok(true)
    })
}

/// Makes a block larger or smaller that was allocated with TRTALLOC_RESIZABLE, as trtalloc_reallocate does. Fails if the
/// block has another owner. Returns false on failure; the block is then unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_dlpack_reallocate(block: *mut trtalloc_dlpack_block, new_size: u64) -> bool {
    call::guarded("trtalloc_dlpack_reallocate", false, || {
        // SAFETY: the caller is an owner of the block.
        let block = unsafe { borrowed(block) }?;
        block.reallocate(new_size).map(|()| true)
    })
}

/// Removes an owner; the last one frees the block. It is freed on the stream on which it was allocated, after the work
/// queued so far there and on the streams to which it was exported. Otherwise, and if `ordered` was false in any of these
/// calls, it is freed as trtalloc_deallocate does; so it is where its stream is the default stream of another thread or context
/// than the caller's. Pass false if the block was used on further streams, or if its stream is destroyed before the last owner
/// is removed. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_dlpack_release(block: *mut trtalloc_dlpack_block, ordered: bool) {
    call::guarded("trtalloc_dlpack_release", (), || {
        if !block.is_null() {
            // SAFETY: the caller is an owner of the block, and is none from now on.
            let block = unsafe { Arc::from_raw(block) };
            if !ordered {
                block.unordered.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    });
}

/// Returns a new owner of the block as a DLManagedTensorVersioned* (`versioned`, of DLPack 1.0) or as a DLManagedTensor*, whose
/// deleter removes the owner. The tensor has the element type of DLPack's `code` and `bits`, and `rank` extents, from the block's
/// beginning. `stream` is the consumer's: its work from now on waits for what is queued on the block's own stream, and
/// the free waits for it. (void*)-1: the consumer orders its work itself, on streams that it does not name. If the block's stream
/// is the default stream of another thread, which no call on this thread can name, the consumer waits for all work that is queued
/// in the context; that is refused before CUDA 12.5, and once a capture is known. Returns NULL on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_dlpack_export(
    block: *mut trtalloc_dlpack_block,
    code: u8,
    bits: u8,
    extents: *const i64,
    rank: i32,
    stream: *mut c_void,
    versioned: bool,
) -> *mut c_void {
    call::guarded("trtalloc_dlpack_export", null_mut(), || {
        // SAFETY: the caller is an owner of the block.
        let block = unsafe { owned(block) }?;
        let extents = match (extents.is_null(), usize::try_from(rank)) {
            (_, Ok(0)) => &[],
            // SAFETY: the caller's extents are `rank` numbers.
            (false, Ok(rank)) => unsafe { std::slice::from_raw_parts(extents, rank) },
            _ => return Err(Error::InvalidArgument(format!("{rank} extents"))),
        };
        let elements = extents
            .iter()
            .try_fold(1_u64, |bytes, extent| bytes.checked_mul(u64::try_from(*extent).ok()?));
        let needed = elements.and_then(|count| count.checked_mul(u64::from(bits.div_ceil(8))));
        let bytes = block.memory.lock().bytes;
        if needed.is_none_or(|needed| needed > bytes) {
            return Err(Error::InvalidArgument(format!(
                "{extents:?} of {bits} bits are more than the block's {bytes} bytes"
            )));
        }
        block.use_on(stream_of(stream))?;
        Ok(match versioned {
            true => lend::<Versioned>(&block, (code, bits), extents).cast(),
            false => lend::<Managed>(&block, (code, bits), extents).cast(),
        })
    })
}

static PYTHON: OnceLock<Python> = OnceLock::new();

/// The functions; none where an address is NULL.
///
/// # Safety
/// The addresses are those of the functions.
unsafe fn functions(python: &trtalloc_dlpack_python) -> Option<Python> {
    let addresses = [python.capsule_new, python.capsule_is_valid, python.capsule_get_pointer];
    if addresses.contains(&null_mut()) {
        return None;
    }
    // SAFETY: as this function demands; these are the functions' types in every version of Python.
    unsafe {
        Some(Python {
            capsule_new: std::mem::transmute::<*mut c_void, CapsuleNew>(python.capsule_new),
            capsule_is_valid: std::mem::transmute::<*mut c_void, CapsuleIsValid>(python.capsule_is_valid),
            capsule_get_pointer: std::mem::transmute::<*mut c_void, CapsuleGetPointer>(python.capsule_get_pointer),
        })
    }
}

/// Returns a new Python capsule (a PyObject*) of what trtalloc_dlpack_export returned, as a `__dlpack__` method must: a
/// consumer takes the tensor and renames the capsule, or the capsule calls the tensor's deleter when it is destroyed.
/// The caller holds the interpreter's lock. NULL if an address is NULL, and, with the interpreter's error set, if it has
/// no memory; the tensor is then deleted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trtalloc_dlpack_capsule(
    python: *const trtalloc_dlpack_python,
    tensor: *mut c_void,
    versioned: bool,
) -> *mut c_void {
    // SAFETY: the caller's table is null, or has the addresses of the functions.
    let python = unsafe { python.as_ref().and_then(|python| functions(python)) };
    // A forked child might wait for a thread of its parent that was the first to set them.
    let python = call::guarded("trtalloc_dlpack_capsule", None, || Ok(python));
    let Some(python) = python else {
        // SAFETY: the caller's tensor is NULL or of that form, and no capsule has it.
        unsafe { delete_untaken(tensor, versioned) };
        return null_mut();
    };
    let python = PYTHON.get_or_init(|| python);
    let name = if versioned { VERSIONED_NAME } else { UNVERSIONED_NAME };
    let capsule = (python.capsule_new)(tensor, name.as_ptr(), Some(drop_capsule));
    if capsule.is_null() {
        // SAFETY: the caller's tensor is of that form and no capsule has it.
        unsafe { delete_untaken(tensor, versioned) };
    }
    capsule
}

/// The destructor of a capsule. It must not disturb a pending exception, so it runs no Python code.
extern "C" fn drop_capsule(capsule: *mut c_void) {
    let Some(python) = PYTHON.get() else { return };
    for versioned in [false, true] {
        let name = if versioned { VERSIONED_NAME } else { UNVERSIONED_NAME };
        // A capsule with another name was consumed.
        if (python.capsule_is_valid)(capsule, name.as_ptr()) != 0 {
            // SAFETY: the capsule has its name, so no consumer has taken the tensor.
            unsafe { delete_untaken((python.capsule_get_pointer)(capsule, name.as_ptr()), versioned) };
        }
    }
}

/// # Safety
/// `tensor` is null or of that form, and nothing else owns it.
unsafe fn delete_untaken(tensor: *mut c_void, versioned: bool) {
    match versioned {
        true => delete(tensor.cast::<Versioned>()),
        false => delete(tensor.cast::<Managed>()),
    }
}

fn stream_of(stream: *mut c_void) -> Option<Stream> {
    let stream = number(stream);
    (stream != NO_STREAM).then_some(Stream(stream))
}

fn non_null(block: *mut trtalloc_dlpack_block) -> Result<*const trtalloc_dlpack_block> {
    match block.is_null() {
        true => Err(Error::InvalidArgument("block is NULL".into())),
        false => Ok(block),
    }
}

/// The caller's own count of the block, which stays the caller's.
///
/// # Safety
/// `block` is null, or the caller is an owner of it and stays one while the result is used.
unsafe fn borrowed(block: *mut trtalloc_dlpack_block) -> Result<ManuallyDrop<Arc<trtalloc_dlpack_block>>> {
    let block = non_null(block)?;
    // SAFETY: as this function demands. The count is never dropped.
    Ok(ManuallyDrop::new(unsafe { Arc::from_raw(block) }))
}

/// One more owner of the block, for the time of a call.
///
/// # Safety
/// `block` is null, or the caller is an owner of it.
unsafe fn owned(block: *mut trtalloc_dlpack_block) -> Result<Arc<trtalloc_dlpack_block>> {
    let block = non_null(block)?;
    // SAFETY: as this function demands.
    unsafe {
        Arc::increment_strong_count(block);
        Ok(Arc::from_raw(block))
    }
}

#[cfg(test)]
mod tests;
