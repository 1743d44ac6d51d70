//! The driver's memory functions, implemented with `memory`.

use super::Machine;
use super::access::Access;
use super::code::*;
use super::functions::Call;
use super::memory::MappingSource;
use super::state::MachineState;

/// What lies at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Where the mapping or allocation begins.
    pub base: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The device that the memory belongs to.
    pub device: i32,
    /// The physical handle; 0 for `malloc` memory.
    pub handle: u64,
}

impl MachineState {
    /// Frees the `malloc` memory of a destroyed context.
    pub(super) fn drop_context_memory(&mut self, context: usize, id: u64) {
        for (address, mapping) in self.memory.allocations_of(context, id) {
            self.memory.free(address);
            self.forget_memory(mapping.offset, mapping.size);
        }
    }

    /// Frees the physical memory of a device that is reset, also where it is mapped.
    pub(super) fn drop_device_handles(&mut self, device: u32) {
        let mapped: Vec<_> = self
            .memory
            .mappings
            .iter()
            .filter(|(_, mapping)| mapping.device == device && matches!(mapping.source, MappingSource::Handle(_)))
            .map(|(&address, &mapping)| (address, mapping))
            .collect();
        let mut gone = self.memory.unmap(&mapped).unwrap_or_default();
        let handles: Vec<u64> = self
            .memory
            .handles
            .iter()
            .filter(|(_, handle)| handle.device == device)
            .map(|(&n, _)| n)
            .collect();
        for handle in handles {
            gone.extend(self.memory.release(handle).ok().flatten());
        }
        for (offset, size) in gone {
            self.forget_memory(offset, size);
        }
    }

    fn refuse_unsafe_vmm(&mut self, thread: &super::ThreadState) -> Result<()> {
        if self.vmm_unsafe {
            self.refuse_unsafe(thread)
        } else {
            Ok(())
        }
    }
}

impl Machine {
    fn vmm(&self) -> Result<()> {
        if self.config.virtual_memory {
            Ok(())
        } else {
            Err(NOT_SUPPORTED)
        }
    }

    /// `cuDeviceGetCount`.
    pub fn device_count(&self) -> Result<u32> {
        let thread = self.query(Call::DeviceGetCount)?;
        self.may_identify(thread, None)?;
        Ok(self.config.devices)
    }

    /// `cuDeviceTotalMem`: bytes.
    pub fn device_total(&self, device: i32) -> Result<u64> {
        let thread = self.query(Call::DeviceInfo)?;
        self.may_identify(thread, None)?;
        self.device(device)?;
        Ok(self.config.memory)
    }

    /// `cuMemGetInfo`: (free, total) bytes.
    pub fn memory_info(&self, device: i32) -> Result<(u64, u64)> {
        let (_, state) = self.enter(Call::MemGetInfo)?;
        Ok(state.memory.info(self.device(device)?))
    }

    /// How many bytes of a device are allocated here. Not a driver call.
    pub fn memory_used(&self, device: i32) -> Result<u64> {
        let device = self.device(device)?;
        Ok(self.state.lock().memory.used(device))
    }

    /// Sets how many bytes of a device other processes hold, at most what is free. Returns how many. Not a driver call.
    pub fn others_hold(&self, device: i32, bytes: u64) -> Result<u64> {
        let device = self.device(device)?;
        Ok(self.state.lock().memory.others_hold(device, bytes))
    }

    /// Returns the addresses that `malloc` memory and pinned memory had to the host, where all of it is freed. An allocator
    /// behind a C handle keeps its machine for the process's life. Not a driver call.
    pub fn return_addresses(&self) {
        self.state.lock().memory.return_addresses();
    }

    /// `cuMemAddressReserve`, without a requested address.
    pub fn memory_reserve(&self, size: u64, alignment: u64) -> Result<u64> {
        let (thread, mut state) = self.enter(Call::MemAddressReserve)?;
        self.vmm()?;
        state.refuse_unsafe_vmm(thread)?;
        state.memory.reserve(size, alignment)
    }

    /// `cuMemAddressFree`: whole reservations only, nothing mapped. CUDA's documentation does not promise that it refuses a
    /// reservation with mappings, so that is a fault, too.
    pub fn memory_unreserve(&self, address: u64, size: u64) -> Result<()> {
        super::refuse_under_lock(Call::MemAddressFree);
        let (thread, mut state) = self.enter(Call::MemAddressFree)?;
        self.vmm()?;
        state.refuse_unsafe_vmm(thread)?;
        if state.memory.is_mapped_within(address, size) {
            state.fault(format!("the reservation {address:#x} was freed with mappings in it"));
        }
        state.memory.unreserve(address, size)
    }

    /// As [`Machine::memory_unreserve`] of the whole reservation that begins at `address`, for drivers that take no size. Such
    /// a driver gives addresses back in which nothing was ever mapped while it reserves others, so it may hold a lock.
    pub fn memory_unreserve_at(&self, address: u64) -> Result<()> {
        let (thread, mut state) = self.enter(Call::MemAddressFree)?;
        self.vmm()?;
        state.refuse_unsafe_vmm(thread)?;
        let size = *state.memory.reservations.get(&address).ok_or(INVALID_VALUE)?;
        state.memory.unreserve(address, size)
    }

    /// `cuMemCreate`: a physical handle.
    pub fn memory_create(&self, device: i32, size: u64) -> Result<u64> {
        let (thread, mut state) = self.enter(Call::MemCreate)?;
        self.vmm()?;
        let device = self.device(device)?;
        state.refuse_unsafe_vmm(thread)?;
        state.memory.create(device as u32, size)
    }

    /// `cuMemRelease`: the memory is freed once it is not mapped any more.
    pub fn memory_release(&self, handle: u64) -> Result<()> {
        let (thread, mut state) = self.enter(Call::MemRelease)?;
        self.vmm()?;
        state.refuse_unsafe_vmm(thread)?;
        if let Some((offset, size)) = state.memory.release(handle)? {
            state.forget_memory(offset, size);
        }
        Ok(())
    }

    /// `cuMemMap`.
    pub fn memory_map(&self, address: u64, size: u64, offset: u64, handle: u64) -> Result<()> {
        let (thread, mut state) = self.enter(Call::MemMap)?;
        self.vmm()?;
        state.refuse_unsafe_vmm(thread)?;
        state.memory.map(address, size, offset, handle)
    }

    /// `cuMemUnmap`: one or several adjacent whole mappings. Does not wait. Pending work on the range is a fault, and
    /// so is a block that is handed out there.
    pub fn memory_unmap(&self, address: u64, size: u64) -> Result<()> {
        let (thread, mut state) = self.enter(Call::MemUnmap)?;
        self.vmm()?;
        state.refuse_unsafe_vmm(thread)?;
        let found = state.memory.whole(address, size)?;
        for (start, mapping) in &found {
            state.check_unmap("cuMemUnmap", *start, mapping);
        }
        for (offset, size) in state.memory.unmap(&found)? {
            state.forget_memory(offset, size);
        }
        Ok(())
    }

    /// `cuMemSetAccess` over whole mappings: allows `devices` to read and write, or forbids all access.
    pub fn memory_set_access(&self, address: u64, size: u64, devices: &[i32], allow: bool) -> Result<()> {
        let (thread, mut state) = self.enter(Call::MemSetAccess)?;
        self.vmm()?;
        state.refuse_unsafe_vmm(thread)?;
        state.memory.set_access(address, size, devices, allow)
    }

    /// `cuMemAlloc` in the current context.
    pub fn memory_malloc(&self, size: u64) -> Result<u64> {
        let (thread, mut state) = self.enter(Call::MemAlloc)?;
        let context = state.current(thread)?;
        state.refuse_unsafe(thread)?;
        let (device, id) = (state.contexts[context].device, state.contexts[context].id);
        state.memory.malloc(device, size, context, id)
    }

    /// `cuMemFree`: waits for all work of the allocation's context.
    pub fn memory_free(&self, address: u64) -> Result<()> {
        let (thread, mut state) = self.enter(Call::MemFree)?;
        state.current(thread)?;
        state.refuse_unsafe(thread)?;
        let MappingSource::Malloc { context, .. } = state.memory.allocation(address)?.source else {
            return Err(INVALID_VALUE);
        };
        let queues = state.contexts[context].queues.clone();
        let tails: Vec<_> = queues.iter().map(|&queue| state.queues.tail(queue)).collect();
        self.finish(&mut state, &tails);
        for queue in queues {
            state.observe_tail(queue);
        }
        // The wait released the lock, so what was found before may have changed.
        let mapping = state.memory.allocation(address)?;
        state.check_unmap("cuMemFree", address, &mapping);
        state.memory.free(address);
        state.forget_memory(mapping.offset, mapping.size);
        self.run_due_destructors(&mut state);
        Ok(())
    }

    /// Frees memory of [`Machine::memory_malloc`] without waiting, as `aclrtFree` does. Pending work on it is a fault.
    /// Counts as `cuMemFree`.
    pub fn memory_free_at_once(&self, address: u64) -> Result<()> {
        let (thread, mut state) = self.enter(Call::MemFree)?;
        state.refuse_unsafe(thread)?;
        let mapping = state.memory.allocation(address)?;
        state.check_unmap("aclrtFree", address, &mapping);
        state.memory.free(address);
        state.forget_memory(mapping.offset, mapping.size);
        Ok(())
    }

    /// `cuMemHostAlloc`.
    pub fn memory_host_malloc(&self, size: u64) -> Result<u64> {
        let (thread, mut state) = self.enter(Call::MemHostAlloc)?;
        state.current(thread)?;
        state.refuse_unsafe(thread)?;
        state.memory.pin(size)
    }

    /// `cuMemFreeHost`. Does not wait, because CUDA's documentation mentions no wait. Pending work on the memory is a
    /// fault.
    pub fn memory_host_free(&self, address: u64) -> Result<()> {
        let (thread, mut state) = self.enter(Call::MemFreeHost)?;
        state.current(thread)?;
        state.refuse_unsafe(thread)?;
        let mapping = state.memory.pinned_at(address)?;
        state.check_unmap("cuMemFreeHost", address, &mapping);
        state.memory.unpin(address);
        state.forget_memory(mapping.offset, mapping.size);
        Ok(())
    }

    /// How many reservations, physical handles, and mappings or allocations there are. Not a driver call.
    pub fn memory_held(&self) -> [usize; 3] {
        let state = self.state.lock();
        let memory = &state.memory;
        [memory.reservations(), memory.handles.len(), memory.mappings.len()]
    }

    /// What is mapped or allocated at `address`. Not a driver call.
    pub fn memory_at(&self, address: u64) -> Option<MemoryInfo> {
        let state = self.state.lock();
        let (&base, mapping) = state.memory.mappings.range(..=address).next_back()?;
        let handle = match mapping.source {
            MappingSource::Handle(handle) => handle,
            MappingSource::Malloc { .. } => 0,
        };
        let info = MemoryInfo {
            base,
            size: mapping.size,
            device: mapping.device as i32,
            handle,
        };
        (address - base < mapping.size).then_some(info)
    }

    /// Reads device memory as the host sees it now. This is not a driver call and does not count as a use.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` where not all of it is mapped with access.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let state = self.state.lock();
        state
            .memory
            .usable(address, bytes.len() as u64, Access::Host)
            .map_err(|_| INVALID_VALUE)?;
        // SAFETY: the range is mapped and readable, and stays so while the lock is held; `bytes` does not overlap it.
        unsafe { std::ptr::copy(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Writes device memory at once. Otherwise as [`Machine::read`].
    ///
    /// # Errors
    /// As [`Machine::read`].
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let state = self.state.lock();
        state
            .memory
            .usable(address, bytes.len() as u64, Access::Host)
            .map_err(|_| INVALID_VALUE)?;
        // SAFETY: the range is mapped and writable, and stays so while the lock is held.
        unsafe { std::ptr::copy(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        Ok(())
    }
}
