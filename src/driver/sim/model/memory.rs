//! Address space, physical handles, mappings and plain allocations, and the calls that are refused.

use std::collections::BTreeMap;

use super::MachineConfig;
use super::addresses::{Addresses, Chooser};
use super::arena::Arena;
use super::code::*;
use super::host_memory::{self, BackingFile, page};
use super::number_map::NumberMap;
use super::shared::SharedDevices;

/// Marks an address outside all device memory in place of a physical one.
pub(super) const FOREIGN: u64 = 1 << 63;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MappingSource {
    /// A mapping of a physical handle.
    Handle(u64),
    /// `malloc` memory, in the context of that index and id.
    Malloc { context: usize, id: u64, charged: u64 },
}

/// A range of addresses backed by physical memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mapping {
    pub(super) size: u64,
    /// The offset in the backing file, which stands for physical memory.
    pub(super) offset: u64,
    pub(super) device: u32,
    pub(super) source: MappingSource,
    /// Unique: distinguishes two mappings of the same memory.
    pub(super) alias: u32,
    /// A bit for each device that may access it.
    pub(super) access: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Physical {
    pub(super) size: u64,
    pub(super) offset: u64,
    pub(super) device: u32,
    released: bool,
    mappings: u32,
}

#[derive(Debug, Clone, Copy)]
struct DeviceMemory {
    total: u64,
    used: u64,
    /// Bytes that other processes hold, and on an integrated GPU what the host's programs use.
    others: u64,
}

impl DeviceMemory {
    fn free(&self) -> u64 {
        self.total - self.used - self.others
    }
}

#[derive(Debug)]
pub(super) struct MemoryState {
    backing: BackingFile,
    granularity: u64,
    /// Remaining address space.
    space: u64,
    /// Whether pinned memory comes out of the memory of device 0.
    integrated: bool,
    pub(super) contents: bool,
    devices: Vec<DeviceMemory>,
    /// What other processes hold as well.
    shared: Option<SharedDevices>,
    pub(super) reservations: BTreeMap<u64, u64>,
    pub(super) mappings: BTreeMap<u64, Mapping>,
    pub(super) handles: NumberMap<u64, Physical>,
    pub(super) pinned: BTreeMap<u64, u64>,
    /// Where `malloc` memory lies (`plain`), and pinned memory (`host`). Made at the first use.
    plain: Option<Arena>,
    host: Option<Arena>,
    addresses: Addresses,
    /// Where reservations lie.
    chooser: Chooser,
    numbers: u64,
    aliases: u32,
}

impl MemoryState {
    pub(super) fn new(config: &MachineConfig) -> MemoryState {
        let shared = config.shared.as_deref().map(SharedDevices::join);
        let device = DeviceMemory {
            // A file that cannot be used has no memory.
            total: if matches!(shared, Some(Err(_))) {
                0
            } else {
                config.memory
            },
            used: 0,
            others: config.integrated.unwrap_or(0).min(config.memory),
        };
        let shared = shared.and_then(|joined| joined.ok());
        MemoryState {
            backing: BackingFile::new(),
            granularity: config.granularity.next_power_of_two().max(page()),
            // Boards with an integrated GPU refuse reservations that are larger than their memory.
            space: match config.integrated {
                None => config.address_space,
                Some(host) => config.address_space.min(config.memory.saturating_sub(host)),
            },
            integrated: config.integrated.is_some(),
            contents: config.contents,
            devices: vec![device; config.devices as usize],
            shared,
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            handles: NumberMap::default(),
            pinned: BTreeMap::new(),
            plain: None,
            host: None,
            addresses: config.addresses,
            chooser: Chooser::new(config.addresses),
            numbers: 0,
            aliases: 0,
        }
    }

    fn rounded(&self, n: u64) -> bool {
        n.is_multiple_of(self.granularity)
    }

    pub(super) fn reservations(&self) -> usize {
        self.reservations.len()
    }

    /// (free, total) bytes.
    pub(super) fn info(&self, device: usize) -> (u64, u64) {
        let others = |of: &SharedDevices| of.held(device).saturating_sub(self.devices[device].used);
        let others = self.shared.as_ref().map_or(0, others);
        let device = &self.devices[device];
        (device.free().saturating_sub(others), device.total)
    }

    /// How many bytes this process has allocated.
    pub(super) fn used(&self, device: usize) -> u64 {
        self.devices[device].used
    }

    /// Sets how many bytes other processes hold, at most what is free. Returns how many.
    pub(super) fn others_hold(&mut self, device: usize, bytes: u64) -> u64 {
        let device = &mut self.devices[device];
        device.others = bytes.min(device.total - device.used);
        device.others
    }

    fn charge(&mut self, device: u32, size: u64) -> Result<()> {
        let number = device as usize;
        let device = &mut self.devices[number];
        let most = device.total - device.others;
        let shared = self.shared.as_ref();
        if size > device.free() || shared.is_some_and(|shared| !shared.charge(number, size, most)) {
            return Err(OUT_OF_MEMORY);
        }
        device.used += size;
        Ok(())
    }

    fn discharge(&mut self, device: u32, size: u64) {
        self.devices[device as usize].used -= size;
        if let Some(shared) = &self.shared {
            shared.discharge(device as usize, size);
        }
    }

    pub(super) fn reserve(&mut self, size: u64, alignment: u64) -> Result<u64> {
        if size == 0 || !self.rounded(size) || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(INVALID_VALUE);
        }
        let left = self.space.checked_sub(size).ok_or(OUT_OF_MEMORY)?;
        let alignment = alignment.max(self.granularity);
        let propose = self.chooser.propose(size, alignment, None);
        let address = propose.and_then(|propose| host_memory::reserve_at(propose, size).ok());
        let address = match address {
            Some(address) => address,
            None => host_memory::reserve(size, alignment).map_err(|_| OUT_OF_MEMORY)?,
        };
        self.chooser.record_placed(address, size);
        self.space = left;
        self.reservations.insert(address, size);
        Ok(address)
    }

    /// Whether something is mapped in this reservation.
    pub(super) fn is_mapped_within(&self, address: u64, size: u64) -> bool {
        self.reservations.get(&address) == Some(&size) && self.mappings.range(address..address + size).next().is_some()
    }

    pub(super) fn unreserve(&mut self, address: u64, size: u64) -> Result<()> {
        if self.reservations.get(&address) != Some(&size) {
            return Err(INVALID_VALUE);
        }
        if self.mappings.range(address..address + size).next().is_some() {
            return Err(INVALID_VALUE);
        }
        self.reservations.remove(&address);
        self.space += size;
        self.chooser.record_freed(address);
        host_memory::unreserve(address, size);
        Ok(())
    }

    pub(super) fn create(&mut self, device: u32, size: u64) -> Result<u64> {
        if size == 0 || !self.rounded(size) {
            return Err(INVALID_VALUE);
        }
        self.charge(device, size)?;
        let Ok(offset) = self.backing.take(size) else {
            self.discharge(device, size);
            return Err(OUT_OF_MEMORY);
        };
        self.numbers += 1;
        let physical = Physical {
            size,
            offset,
            device,
            released: false,
            mappings: 0,
        };
        self.handles.insert(self.numbers, physical);
        Ok(self.numbers)
    }

    /// If this frees the memory, returns its offset in the file and its size.
    pub(super) fn release(&mut self, handle: u64) -> Result<Option<(u64, u64)>> {
        let physical = self
            .handles
            .get_mut(&handle)
            .filter(|physical| !physical.released)
            .ok_or(INVALID_VALUE)?;
        physical.released = true;
        Ok(self.drop_unused(handle))
    }

    fn drop_unused(&mut self, handle: u64) -> Option<(u64, u64)> {
        let physical = *self.handles.get(&handle)?;
        if !physical.released || physical.mappings > 0 {
            return None;
        }
        self.handles.remove(&handle);
        self.discharge(physical.device, physical.size);
        self.backing.punch(physical.offset, physical.size);
        Some((physical.offset, physical.size))
    }

    pub(super) fn map(&mut self, address: u64, size: u64, offset: u64, handle: u64) -> Result<()> {
        let physical = *self
            .handles
            .get(&handle)
            .filter(|physical| !physical.released)
            .ok_or(INVALID_VALUE)?;
        let end = address.checked_add(size).ok_or(INVALID_VALUE)?;
        if offset != 0 || size != physical.size || !self.rounded(address) {
            return Err(INVALID_VALUE);
        }
        let inside = self.reservations.range(..=address).next_back();
        if inside.is_none_or(|(start, length)| start + length < end) {
            return Err(INVALID_VALUE);
        }
        let before = self.mappings.range(..end).next_back();
        if before.is_some_and(|(start, mapping)| start + mapping.size > address) {
            return Err(INVALID_VALUE);
        }
        let mapped = self.backing.map(address, size, physical.offset);
        mapped.map_err(|_| OUT_OF_MEMORY)?;
        if let Some(physical) = self.handles.get_mut(&handle) {
            physical.mappings += 1;
        }
        let source = MappingSource::Handle(handle);
        self.insert(address, size, physical.offset, physical.device, source, 0);
        Ok(())
    }

    fn insert(&mut self, address: u64, size: u64, offset: u64, device: u32, source: MappingSource, access: u64) {
        self.aliases = self.aliases.wrapping_add(1);
        let mapping = Mapping {
            size,
            offset,
            device,
            source,
            alias: self.aliases,
            access,
        };
        self.mappings.insert(address, mapping);
    }

    /// The whole mappings of handles that cover a range exactly. An error where there are none.
    pub(super) fn whole(&self, address: u64, size: u64) -> Result<Vec<(u64, Mapping)>> {
        let end = address.checked_add(size).filter(|_| size > 0).ok_or(INVALID_VALUE)?;
        let mut at = address;
        let mut found = Vec::new();
        for (&start, &mapping) in self.mappings.range(address..end) {
            if start != at || matches!(mapping.source, MappingSource::Malloc { .. }) {
                return Err(INVALID_VALUE);
            }
            at += mapping.size;
            found.push((start, mapping));
        }
        if at == end { Ok(found) } else { Err(INVALID_VALUE) }
    }

    /// Unmaps what [`MemoryState::whole`] found. Returns the memory that this frees.
    pub(super) fn unmap(&mut self, found: &[(u64, Mapping)]) -> Result<Vec<(u64, u64)>> {
        let mut gone = Vec::new();
        for &(address, mapping) in found {
            host_memory::unmap(address, mapping.size).map_err(|_| OUT_OF_MEMORY)?;
            self.mappings.remove(&address);
            if let MappingSource::Handle(handle) = mapping.source {
                if let Some(physical) = self.handles.get_mut(&handle) {
                    physical.mappings -= 1;
                }
                gone.extend(self.drop_unused(handle));
            }
        }
        Ok(gone)
    }

    pub(super) fn set_access(&mut self, address: u64, size: u64, devices: &[i32], allow: bool) -> Result<()> {
        let found = self.whole(address, size)?;
        let mut mask = 0;
        for &device in devices {
            let known = usize::try_from(device).ok().filter(|&d| d < self.devices.len());
            mask |= 1u64 << known.ok_or(INVALID_DEVICE)?;
        }
        if mask == 0 {
            return Err(INVALID_VALUE);
        }
        for (start, _) in found {
            let Some(mapping) = self.mappings.get_mut(&start) else {
                continue;
            };
            let access = if allow {
                mapping.access | mask
            } else {
                mapping.access & !mask
            };
            if (access == 0) != (mapping.access == 0) {
                host_memory::protect(start, mapping.size, access != 0).map_err(|_| OUT_OF_MEMORY)?;
            }
            mapping.access = access;
        }
        Ok(())
    }

    pub(super) fn malloc(&mut self, device: u32, size: u64, context: usize, id: u64) -> Result<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let charged = size.checked_next_multiple_of(512).ok_or(OUT_OF_MEMORY)?;
        self.charge(device, charged)?;
        let Some((address, offset)) = self.plain_arena().and_then(|arena| arena.take(size)) else {
            self.discharge(device, charged);
            return Err(OUT_OF_MEMORY);
        };
        let source = MappingSource::Malloc { context, id, charged };
        self.insert(address, size, offset, device, source, 1 << device);
        Ok(address)
    }

    fn plain_arena(&mut self) -> Option<&mut Arena> {
        if self.plain.is_none() {
            let total = self
                .devices
                .iter()
                .map(|device| device.total)
                .fold(0, u64::saturating_add);
            self.plain = Arena::new(self.addresses, total, Some(&mut self.backing));
        }
        self.plain.as_mut()
    }

    /// The allocation that begins at `address`.
    pub(super) fn allocation(&self, address: u64) -> Result<Mapping> {
        let mapping = self.mappings.get(&address).ok_or(INVALID_VALUE)?;
        match mapping.source {
            MappingSource::Malloc { .. } => Ok(*mapping),
            MappingSource::Handle(_) => Err(INVALID_VALUE),
        }
    }

    pub(super) fn free(&mut self, address: u64) {
        if let Some(mapping) = self.mappings.remove(&address)
            && let MappingSource::Malloc { charged, .. } = mapping.source
        {
            if let Some(arena) = &mut self.plain {
                arena.give(address, mapping.size);
            }
            self.discharge(mapping.device, charged);
        }
    }

    pub(super) fn pin(&mut self, size: u64) -> Result<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let charged = self.charged_for_pinned(size);
        self.charge(0, charged)?;
        if self.host.is_none() {
            self.host = Arena::new(self.addresses, 0, None);
        }
        let taken = self.host.as_mut().and_then(|arena| arena.take(size));
        let Some((address, _)) = taken else {
            self.discharge(0, charged);
            return Err(OUT_OF_MEMORY);
        };
        self.pinned.insert(address, size);
        Ok(address)
    }

    /// Returns the addresses for `malloc` memory and for pinned memory to the host, where no piece is left.
    pub(super) fn return_addresses(&mut self) {
        self.plain.take_if(|arena| arena.is_empty());
        self.host.take_if(|arena| arena.is_empty());
    }

    /// What a piece of pinned memory takes from device 0.
    fn charged_for_pinned(&self, size: u64) -> u64 {
        if self.integrated {
            size.next_multiple_of(page())
        } else {
            0
        }
    }

    /// Pinned memory as the checker sees it: its own physical memory, with one alias.
    pub(super) fn pinned_at(&self, address: u64) -> Result<Mapping> {
        let size = *self.pinned.get(&address).ok_or(INVALID_VALUE)?;
        Ok(Mapping {
            size,
            offset: address | FOREIGN,
            device: 0,
            source: MappingSource::Handle(0),
            alias: 0,
            access: u64::MAX,
        })
    }

    pub(super) fn unpin(&mut self, address: u64) {
        if let Some(size) = self.pinned.remove(&address)
            && let Some(arena) = &mut self.host
        {
            arena.give(address, size);
            self.discharge(0, self.charged_for_pinned(size));
        }
    }

    /// Whether a range crosses the end of one allocation of the driver into the next.
    pub(super) fn leaves_its_allocation(&self, address: u64, bytes: u64) -> bool {
        let (mut parts, mut malloc) = (0, false);
        self.pieces(address, bytes, |_, _, mapping| {
            parts += 1;
            malloc |= matches!(mapping.source, MappingSource::Malloc { .. });
        });
        let pinned = self.pinned.range(..=address).next_back();
        let in_pinned = pinned.is_some_and(|(start, size)| address - start < *size);
        parts > 1 && malloc || in_pinned && !self.is_pinned(address, bytes)
    }

    /// All allocations of a context.
    pub(super) fn allocations_of(&self, context: usize, id: u64) -> Vec<(u64, Mapping)> {
        let of = |source: MappingSource| matches!(source, MappingSource::Malloc { context: c, id: i, .. } if c == context && i == id);
        self.mappings
            .iter()
            .filter(|(_, mapping)| of(mapping.source))
            .map(|(&at, &mapping)| (at, mapping))
            .collect()
    }
}

impl Drop for MemoryState {
    fn drop(&mut self) {
        for (&address, &size) in &self.reservations {
            host_memory::unreserve(address, size);
        }
    }
}
