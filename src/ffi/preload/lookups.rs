//! Functions that a program finds with `dlsym` and calls by address.
//!
//! Each real function takes a slot in a small table, and the program gets the interposing function of that slot. So
//! two TensorRT libraries that one program opened each reach their own functions.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{Create, Kind, create, symbols};

/// The maximum number of functions of each kind, from libraries that are loaded at the same time.
const PLACES: usize = 16;

static RUNTIMES: [AtomicPtr<c_void>; PLACES] = [const { AtomicPtr::new(null_mut()) }; PLACES];
static BUILDERS: [AtomicPtr<c_void>; PLACES] = [const { AtomicPtr::new(null_mut()) }; PLACES];

unsafe extern "C-unwind" fn runtime<const PLACE: usize>(logger: *mut c_void, version: i32) -> *mut c_void {
    // SAFETY: the caller's arguments, for the function that it looked up.
    unsafe { create(Kind::Runtime, RUNTIMES[PLACE].load(Ordering::Acquire), logger, version) }
}

unsafe extern "C-unwind" fn builder<const PLACE: usize>(logger: *mut c_void, version: i32) -> *mut c_void {
    // SAFETY: as above.
    unsafe { create(Kind::Builder, BUILDERS[PLACE].load(Ordering::Acquire), logger, version) }
}

macro_rules! of_each_place {
    ($function:ident) => {
        of_each_place!($function: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($function:ident: $($place:literal)*) => {
        [$($function::<$place>),*]
    };
}

/// The function that calls `real` and attaches the allocator to what it creates. Where all slots are taken, logs a
/// warning and returns `real` itself.
pub fn in_front_of(kind: Kind, real: NonNull<c_void>) -> NonNull<c_void> {
    let (places, functions): (_, [Create; PLACES]) = match kind {
        Kind::Runtime => (&RUNTIMES, of_each_place!(runtime)),
        Kind::Builder => (&BUILDERS, of_each_place!(builder)),
    };
    match place_for(places, real.as_ptr()) {
        Some(place) => NonNull::new(functions[place] as *mut c_void).unwrap_or(real),
        None => {
            crate::support::log::init_from_environment();
            tracing::warn!("more than {PLACES} TensorRTs were opened: this one keeps its own allocator");
            real
        }
    }
}

fn place_for(places: &[AtomicPtr<c_void>; PLACES], real: *mut c_void) -> Option<usize> {
    let take = |place: &AtomicPtr<c_void>, from| match place.compare_exchange(
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
    let known = places
        .iter()
        .position(|place| place.load(Ordering::Relaxed) == real || take(place, null_mut()));
    // Otherwise reuse the slot of a library that was unloaded.
    known.or_else(|| {
        places.iter().position(|place| {
            let old = place.load(Ordering::Relaxed);
            !symbols::is_function(old as usize) && take(place, old)
        })
    })
}
