//! The allocators that an application may register for a stream (`acl_rt_allocator.h`): stored, and returned on
//! request.

use std::collections::HashMap;
use std::ffi::c_void;

use parking_lot::Mutex;

use super::{INVALID_PARAM, Result, functions, put, stream_here, wanted};

/// An `aclrtAllocatorDesc`: five pointers, as they were set.
#[derive(Debug, Clone, Copy, Default)]
struct Description {
    number: usize,
    object: usize,
    allocate: usize,
    free: usize,
    advise: usize,
    address: usize,
}

type Descriptions = HashMap<usize, Description>;

static DESCRIPTIONS: Mutex<Option<Descriptions>> = Mutex::new(None);
static NUMBERS: Mutex<usize> = Mutex::new(0);
/// By stream.
static REGISTERED: Mutex<Option<Descriptions>> = Mutex::new(None);

/// The next machine has other streams.
pub(super) fn forget() {
    *REGISTERED.lock() = None;
}

fn change(description: usize, pointer: *const c_void, set: impl FnOnce(&mut Description, usize)) -> Result<()> {
    wanted(pointer)?;
    let mut all = DESCRIPTIONS.lock();
    let found = all.get_or_insert_default().get_mut(&description);
    set(found.ok_or(INVALID_PARAM)?, pointer as usize);
    Ok(())
}

/// Allocates memory with the allocator of `stream`, passes the block's address to `between`, and frees the block, as
/// dynamic execution does.
///
/// # Safety
///
/// The functions registered for the stream do what `acl_rt_allocator.h` says.
pub unsafe fn ask(stream: usize, size: usize, between: impl FnOnce(*mut c_void)) -> bool {
    let Some(known) = REGISTERED.lock().as_ref().and_then(|all| all.get(&stream).copied()) else {
        return false;
    };
    type Allocate = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
    type Free = unsafe extern "C" fn(*mut c_void, *mut c_void);
    type Address = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    // SAFETY: the pointers were registered as functions of these types, and none is null.
    unsafe {
        let allocate = std::mem::transmute::<usize, Allocate>(known.allocate);
        let free = std::mem::transmute::<usize, Free>(known.free);
        let address = std::mem::transmute::<usize, Address>(known.address);
        let object = known.object as *mut c_void;
        let block = allocate(object, size);
        if block.is_null() {
            return false;
        }
        between(address(block));
        free(object, block);
    }
    true
}

/// [`ask`] for tests that are not written in Rust; not a function of AscendCL. Returns the block's address, or null.
///
/// # Safety
///
/// As [`ask`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simascend_ask_allocator(stream: usize, size: usize) -> *mut c_void {
    let mut found = std::ptr::null_mut();
    // SAFETY: as above.
    unsafe { ask(stream, size, |address| found = address) };
    found
}

/// `aclrtAllocatorCreateDesc`: returns the description, not an error code.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtAllocatorCreateDesc() -> usize {
    let mut numbers = NUMBERS.lock();
    *numbers += 1;
    let number = *numbers;
    let description = Description {
        number,
        ..Description::default()
    };
    DESCRIPTIONS.lock().get_or_insert_default().insert(number, description);
    number
}

functions! {
    fn aclrtAllocatorDestroyDesc(description: usize) |_machine| {
        let gone = DESCRIPTIONS.lock().as_mut().and_then(|all| all.remove(&description));
        gone.map(drop).ok_or(INVALID_PARAM)
    }

    fn aclrtAllocatorSetObjToDesc(description: usize, object: *mut c_void) |_machine| {
        change(description, object, |of, pointer| of.object = pointer)
    }

    fn aclrtAllocatorSetAllocFuncToDesc(description: usize, function: *const c_void) |_machine| {
        change(description, function, |of, pointer| of.allocate = pointer)
    }

    fn aclrtAllocatorSetFreeFuncToDesc(description: usize, function: *const c_void) |_machine| {
        change(description, function, |of, pointer| of.free = pointer)
    }

    fn aclrtAllocatorSetAllocAdviseFuncToDesc(description: usize, function: *const c_void) |_machine| {
        change(description, function, |of, pointer| of.advise = pointer)
    }

    fn aclrtAllocatorSetGetAddrFromBlockFuncToDesc(description: usize, function: *const c_void) |_machine| {
        change(description, function, |of, pointer| of.address = pointer)
    }

    fn aclrtAllocatorRegister(stream: usize, description: usize) |machine| {
        if stream == 0 {
            return Err(INVALID_PARAM);
        }
        stream_here(machine, stream)?;
        let known = DESCRIPTIONS.lock().as_ref().and_then(|all| all.get(&description).copied());
        let known = known.ok_or(INVALID_PARAM)?;
        if [known.object, known.allocate, known.free, known.address].contains(&0) {
            return Err(INVALID_PARAM);
        }
        REGISTERED.lock().get_or_insert_default().insert(stream, known);
        Ok(())
    }

    fn aclrtAllocatorUnregister(stream: usize) |_machine| {
        if let Some(all) = REGISTERED.lock().as_mut() {
            all.remove(&stream);
        }
        if stream == 0 { Err(INVALID_PARAM) } else { Ok(()) }
    }

    fn aclrtAllocatorGetByStream(
        stream: usize, description: *mut usize, object: *mut usize, allocate: *mut usize, free: *mut usize,
        advise: *mut usize, address: *mut usize,
    ) |_machine| {
        wanted(description)?;
        let known = REGISTERED.lock().as_ref().and_then(|all| all.get(&stream).copied());
        let known = known.ok_or(INVALID_PARAM)?;
        let outputs = [
            (description, known.number), (object, known.object), (allocate, known.allocate), (free, known.free),
            (advise, known.advise), (address, known.address),
        ];
        for (to, value) in outputs {
            if !to.is_null() {
                // SAFETY: the caller's pointer, not null.
                unsafe { put(to, value) }?;
            }
        }
        Ok(())
    }
}
