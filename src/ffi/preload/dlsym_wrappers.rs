//! Wrappers of functions that a program looks up with `dlsym` and calls by address.
//!
//! Each function of TensorRT takes a slot in a small table, and the program gets the wrapper of that slot. So two
//! TensorRT libraries that one program opened each reach their own functions.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{Create, ObjectType, create, dynamic_linker};

/// The maximum number of functions of each kind, from libraries that are loaded at the same time.
const SLOTS: usize = 16;

static RUNTIMES: [AtomicPtr<c_void>; SLOTS] = [const { AtomicPtr::new(null_mut()) }; SLOTS];
static BUILDERS: [AtomicPtr<c_void>; SLOTS] = [const { AtomicPtr::new(null_mut()) }; SLOTS];

unsafe extern "C-unwind" fn runtime_for<const SLOT: usize>(
    logger: *mut c_void,
    version: i32,
    caller: usize,
) -> *mut c_void {
    let real = RUNTIMES[SLOT].load(Ordering::Acquire);
    // SAFETY: the caller's arguments, for the function that it looked up.
    unsafe { create(ObjectType::Runtime, real, logger, version, caller) }
}

unsafe extern "C-unwind" fn builder_for<const SLOT: usize>(
    logger: *mut c_void,
    version: i32,
    caller: usize,
) -> *mut c_void {
    let real = BUILDERS[SLOT].load(Ordering::Acquire);
    // SAFETY: as above.
    unsafe { create(ObjectType::Builder, real, logger, version, caller) }
}

/// Defines the function that a program calls. It passes its return address along, as those in `exports.rs` do.
macro_rules! passes_caller {
    ($name:ident, $to:ident, $($instruction:literal),*) => {
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name<const SLOT: usize>(logger: *mut c_void, version: i32) -> *mut c_void {
            std::arch::naked_asm!(".cfi_startproc", $($instruction),*, ".cfi_endproc", sym $to::<SLOT>)
        }
    };
}

#[cfg(target_arch = "x86_64")]
passes_caller!(runtime, runtime_for, "endbr64", "mov rdx, [rsp]", "jmp {}");
#[cfg(target_arch = "x86_64")]
passes_caller!(builder, builder_for, "endbr64", "mov rdx, [rsp]", "jmp {}");
#[cfg(target_arch = "aarch64")]
passes_caller!(runtime, runtime_for, "hint #34", "mov x2, x30", "b {}");
#[cfg(target_arch = "aarch64")]
passes_caller!(builder, builder_for, "hint #34", "mov x2, x30", "b {}");

/// Elsewhere nothing is injected.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C-unwind" fn runtime<const SLOT: usize>(logger: *mut c_void, version: i32) -> *mut c_void {
    // SAFETY: the caller's arguments.
    unsafe { runtime_for::<SLOT>(logger, version, 0) }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C-unwind" fn builder<const SLOT: usize>(logger: *mut c_void, version: i32) -> *mut c_void {
    // SAFETY: the caller's arguments.
    unsafe { builder_for::<SLOT>(logger, version, 0) }
}

macro_rules! of_each_slot {
    ($function:ident) => {
        of_each_slot!($function: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($function:ident: $($slot:literal)*) => {
        [$($function::<$slot>),*]
    };
}

/// The wrapper that calls `real` and attaches the allocator to the object that it creates. Where all slots are taken,
/// logs a warning and returns `real` itself.
pub fn in_front_of(kind: ObjectType, real: NonNull<c_void>) -> NonNull<c_void> {
    let (slots, functions): (_, [Create; SLOTS]) = match kind {
        ObjectType::Runtime => (&RUNTIMES, of_each_slot!(runtime)),
        ObjectType::Builder => (&BUILDERS, of_each_slot!(builder)),
    };
    match slot_for(slots, real.as_ptr()) {
        Some(slot) => NonNull::new(functions[slot] as *mut c_void).unwrap_or(real),
        None => {
            crate::support::log::init_from_environment();
            tracing::warn!("more than {SLOTS} TensorRTs were opened: this one keeps its own allocator");
            real
        }
    }
}

/// The slot of `real`, which it takes if it has none yet; `None` where all slots are taken.
fn slot_for(slots: &[AtomicPtr<c_void>; SLOTS], real: *mut c_void) -> Option<usize> {
    let take = |slot: &AtomicPtr<c_void>, from| match slot.compare_exchange(
        from,
        real,
        Ordering::Release,
        Ordering::Relaxed,
    ) {
        Ok(_) => true,
        // Another thread looked up the same function.
        Err(now) => now == real,
    };
    // Slots fill up from the first, so the slot of `real` comes before the first empty slot.
    let known = slots
        .iter()
        .position(|slot| slot.load(Ordering::Relaxed) == real || take(slot, null_mut()));
    // Otherwise reuse the slot of a library that was unloaded.
    known.or_else(|| {
        slots.iter().position(|slot| {
            let old = slot.load(Ordering::Relaxed);
            !dynamic_linker::is_function(old as usize) && take(slot, old)
        })
    })
}
