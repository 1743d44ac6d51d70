//! Cached handles, which have no address, and how long what is cached has been idle.

use super::*;

impl PhysicalMemory {
    /// Bytes held that have no address.
    pub fn cached_bytes(&self) -> u64 {
        self.cached_handle_bytes
    }

    /// Takes a cached handle of that size.
    pub(super) fn take_cached(&mut self, size: u64) -> Option<Handle> {
        let handles = self.cached_handles.get_mut(&size)?;
        let handle = handles.pop()?;
        if handles.is_empty() {
            self.cached_handles.remove(&size);
        }
        self.cached_handle_bytes -= size;
        self.note_cached();
        Some(handle)
    }

    /// Caches a handle.
    pub(super) fn keep(&mut self, handle: Handle, size: u64) {
        self.cached_handles.entry(size).or_default().push(handle);
        self.cached_handle_bytes += size;
    }

    /// Takes this handle, if it is cached.
    pub(super) fn take_cached_handle(&mut self, handle: Handle, size: u64) -> Option<Handle> {
        let handles = self.cached_handles.get_mut(&size)?;
        let at = handles.iter().rposition(|cached| *cached == handle)?;
        let last = handles.len() - 1;
        handles.swap(at, last);
        self.take_cached(size)
    }

    /// Ends a window of time for what is cached.
    pub fn end_window(&mut self) {
        let cached = self.cached_bytes() + self.cached_range_bytes();
        self.idle_cached.end_window(cached);
    }

    /// Bytes that were cached throughout the last windows.
    pub fn idle_cached(&self) -> u64 {
        self.idle_cached
            .idle()
            .min(self.cached_bytes() + self.cached_range_bytes())
    }

    /// So many bytes were cached just now that were idle elsewhere.
    pub fn add_idle_cached(&mut self, bytes: u64) {
        self.idle_cached.add(bytes);
    }

    /// So many of the idle cached bytes go back.
    pub fn take_idle_cached(&mut self, bytes: u64) {
        self.idle_cached.take(bytes);
    }

    /// Something was taken from what is cached.
    pub(in crate::pool::physical) fn note_cached(&mut self) {
        let cached = self.cached_bytes() + self.cached_range_bytes();
        self.idle_cached.note(cached);
    }
}
