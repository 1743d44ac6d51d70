//! An exported allocator under a name, such as a model's. Blocks that its adapters allocate count for the name,
//! whichever thread TensorRT calls from.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ffi::ExportedAllocator;
use crate::ffi::tensorrt::abi::AllocatorAbi;
use crate::support::tags::{self, Tag};

/// One name of an exported allocator. It is never freed: TensorRT may keep its adapters. The names of an allocator are a
/// list, so there are at most as many as tags, and a leak checker finds them.
pub struct NamedAllocator {
    pub(in crate::ffi) exported: &'static ExportedAllocator,
    pub(in crate::ffi) tag: Tag,
    adapters: [OnceLock<usize>; AllocatorAbi::COUNT],
    before: *mut NamedAllocator,
}

// SAFETY: `before` is written before other threads know the object, and what it points to is shared and never freed.
unsafe impl Sync for NamedAllocator {}
// SAFETY: as above.
unsafe impl Send for NamedAllocator {}

impl NamedAllocator {
    /// The adapter for that ABI, which `make` creates at the first call; 0 where `make` failed.
    pub(in crate::ffi) fn adapter(&self, abi: AllocatorAbi, make: impl FnOnce() -> usize) -> usize {
        *self.adapters[abi as usize].get_or_init(make)
    }
}

impl ExportedAllocator {
    /// This allocator under a name, of any bytes. `None` for an empty name, and where there is no tag for it: a process
    /// has a maximum number of tags. The first such name is logged.
    pub(in crate::ffi) fn named(&'static self, name: &[u8]) -> Option<&'static NamedAllocator> {
        let name = tags::readable(name);
        if name.is_empty() {
            return None;
        }
        match tags::intern(&name) {
            Ok(tag) => Some(self.with_tag(tag)),
            Err(error) => {
                static NOTED: AtomicBool = AtomicBool::new(false);
                if !NOTED.swap(true, Ordering::Relaxed) {
                    crate::support::log::init_from_environment();
                    tracing::warn!("`{name}` and further names are not counted: {error}");
                }
                None
            }
        }
    }

    /// Takes no lock, because a forked child may have a copy of one that no thread will release.
    fn with_tag(&'static self, tag: Tag) -> &'static NamedAllocator {
        let mut newest = self.names.load(Ordering::Acquire);
        if let Some(known) = find(newest, tag) {
            return known;
        }
        let mut named = Box::new(NamedAllocator {
            exported: self,
            tag,
            adapters: [const { OnceLock::new() }; AllocatorAbi::COUNT],
            before: ptr::null_mut(),
        });
        loop {
            named.before = newest;
            let new = Box::into_raw(named);
            match self
                .names
                .compare_exchange(newest, new, Ordering::AcqRel, Ordering::Acquire)
            {
                // SAFETY: in the list, whose objects are never freed.
                Ok(_) => return unsafe { &*new },
                Err(now) => newest = now,
            }
            // Another thread added a name, possibly this one.
            if let Some(known) = find(newest, tag) {
                // SAFETY: the object above, which is not in the list.
                drop(unsafe { Box::from_raw(new) });
                return known;
            }
            // SAFETY: as above.
            named = unsafe { Box::from_raw(new) };
        }
    }
}

/// The object of `tag` in the list that begins with `newest`.
fn find(newest: *mut NamedAllocator, tag: Tag) -> Option<&'static NamedAllocator> {
    // SAFETY: null or an object of the list, and these are never freed and never changed.
    let at = |at: *mut NamedAllocator| unsafe { at.as_ref() };
    std::iter::successors(at(newest), |named| at(named.before)).find(|named| named.tag == tag)
}
