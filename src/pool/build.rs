//! How a pool is built: its context, its address range, and its memory.

use std::sync::{Arc, OnceLock};

use crate::driver::{DeviceInfo, Driver, DriverError, Failure, HandleKind, Result};
use crate::history::Recorder;
use crate::pool::counters::{Counters, Counts};
use crate::pool::decay::Decay;
use crate::pool::dedicated::DedicatedTable;
use crate::pool::driver_calls::DriverCalls;
use crate::pool::free_space::FreeSpace;
use crate::pool::inspect::Marks;
use crate::pool::memory::Memory;
use crate::pool::physical::PhysicalMemory;
use crate::pool::physical::address_space::AddressSpace;
use crate::pool::physical::deferred_release::{DeferredRelease, Unbuilt};
use crate::pool::reclaim::{Contexts, OwnContext, Reclaimer};
use crate::pool::slow_path::growth_allowance::GrowthAllowance;
use crate::pool::slow_path::rise::Rise;
use crate::pool::stream_cache::StreamCaches;
use crate::pool::stream_cache::block::Blocks;
use crate::pool::stream_cache::list::CacheList;
use crate::pool::stream_cache::peak::InUse;
use crate::pool::tags::Tags;
use crate::pool::{Core, Options, Pool};
use crate::support::config::Backing;
use crate::support::error::{self, Error};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// The memory that a pool uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySource {
    /// The driver's, obtained as needed.
    Driver(Backing),
    /// External memory: address and bytes. The pool never reads, writes or frees it.
    External(u64, u64),
}

/// The granularity where the driver has no virtual memory.
const PAGE: u64 = 2 << 20;
/// The largest address range, which leaves address space for others: CUDA has 128 TiB.
const MAX_ADDRESS_RANGE: u64 = 4 << 40;

impl Pool {
    /// A pool for `device`. It retains the device's primary context unless the application made a context of its own. What the
    /// driver does not take back where the pool cannot be built goes to `unbuilt`.
    pub fn new(
        driver: Arc<dyn Driver>,
        device: i32,
        memory: MemorySource,
        options: Options,
        caches: Arc<StreamCaches>,
        recorder: Arc<Recorder>,
        unbuilt: &mut Unbuilt,
    ) -> error::Result<Pool> {
        let calls = Arc::new(match options.shared_budget.clone() {
            Some(budget) => DriverCalls::within(budget, driver),
            None => DriverCalls::new(driver, options.pinned),
        });
        let info = calls.query(|driver| driver.device_info(device))?;
        let devices = calls.query(|driver| driver.device_count())?;
        let mut own = OwnContext::find(&calls, device)?;
        let granule = options.rule.start.max(64);
        let mut access = vec![device];
        let entered = calls.enter(own.context).map_err(Error::Driver);
        let space = entered
            .and_then(|_entered| Self::address_range(&calls, &mut access, memory, &info, granule, &options, unbuilt))
            .inspect_err(|_| own.release(&calls, device));
        let (space, page) = space?;
        // Memory of the driver's malloc is freed with its context, and the pool can keep only the primary context
        // alive.
        let mallocs = options.passthrough || space.base().is_none();
        if mallocs && !own.primary && matches!(memory, MemorySource::Driver(_)) {
            own = OwnContext::primary(&calls, device).inspect_err(|_| {
                let left = DeferredRelease {
                    reservations: space.base().map(|base| (base, space.size)).into_iter().collect(),
                    ..DeferredRelease::default()
                };
                unbuilt.give_back(&calls, left);
            })?;
        }
        calls.set_own_context(own.context);
        if mallocs && matches!(memory, MemorySource::Driver(_)) && !options.pinned {
            warn_of_malloc(device, &options);
        }
        let devices = match memory {
            // What it is, and who else can use it, is not known.
            MemorySource::External(..) => vec![device],
            _ if options.pinned => (0..devices as i32).collect(),
            _ if space.base().is_some() => access.clone(),
            // Memory of the driver's malloc belongs to a context.
            _ => Vec::new(),
        };
        let addresses = Arc::new(space);
        let mut free_space = FreeSpace::new(addresses.size, granule, page);
        let mut physical = PhysicalMemory::new(
            calls.clone(),
            addresses.clone(),
            device,
            page,
            options.kind,
            access,
            recorder.clone(),
        );
        if let MemorySource::External(base, bytes) = memory {
            let start = base.next_multiple_of(granule);
            let size = (base + bytes).saturating_sub(start) / granule * granule;
            if size > 0 {
                physical.adopt(&mut free_space, start, start % PAGE, size);
            }
        }
        physical.limit = options.limit;
        physical.headroom = options.headroom;
        physical.device_memory = info.total;
        match memory {
            // It is held in any case.
            MemorySource::External(..) => {}
            MemorySource::Driver(_) if options.passthrough && options.reserve > 0 => {
                tracing::warn!(
                    device,
                    "passthrough=1 ignores reserve: each request is one allocation from the driver"
                );
            }
            MemorySource::Driver(_) => physical.reserve.bytes = options.reserve,
        }
        physical.is_external = matches!(memory, MemorySource::External(..));
        physical.note_peak();
        let forgotten = Arc::new(AtomicU64::new(0));
        let core = Core {
            memory: Memory {
                free_space,
                physical,
                counts: Counts::default(),
            },
            reclaimer: Reclaimer::new(Contexts::new(own, devices, forgotten.clone())),
            allowance: GrowthAllowance::default(),
            decay: Decay::default(),
            rise: Rise::default(),
            shortage_until: 0,
            closed: false,
        };
        Ok(Pool {
            device,
            options,
            calls,
            addresses,
            blocks: Blocks::default(),
            caches,
            counters: Counters::default(),
            in_use: InUse::default(),
            dirty: CacheList::default(),
            pressure_epoch: AtomicU64::new(0),
            shortages: AtomicU64::new(0),
            foreign_bytes_due: AtomicU64::new(0),
            forgotten,
            decaying: AtomicBool::new(false),
            start_decay: OnceLock::new(),
            looking: AtomicBool::new(false),
            start_looking: OnceLock::new(),
            dead: OnceLock::new(),
            core: Mutex::watched(core),
            dedicated: DedicatedTable::default(),
            recorder,
            marks: Marks::default(),
            tags: Tags::new(),
        })
    }

    fn address_range(
        calls: &Arc<DriverCalls>,
        access: &mut Vec<i32>,
        memory: MemorySource,
        info: &DeviceInfo,
        granule: u64,
        options: &Options,
        unbuilt: &mut Unbuilt,
    ) -> error::Result<(AddressSpace, u64)> {
        let room = info
            .total
            .saturating_mul(8)
            .next_power_of_two()
            .clamp(64 << 20, MAX_ADDRESS_RANGE);
        let backing = match memory {
            MemorySource::External(base, bytes) => {
                let size = (base % PAGE + bytes).next_multiple_of(PAGE) + PAGE;
                return Ok((AddressSpace::segments(size, granule), PAGE));
            }
            MemorySource::Driver(backing) => backing,
        };
        let granularity = match options.kind == HandleKind::default() {
            true => Ok(info.granularity),
            false => calls.query(|driver| driver.granularity(access[0], options.kind)),
        };
        // A kind that the driver does not know is refused when its first handle is created, which says why.
        let (minimum, recommended) = granularity.unwrap_or(info.granularity);
        let page = minimum.max(recommended);
        let reservation = match backing {
            Backing::Malloc => None,
            Backing::Vmm => Some(Self::reserve(calls, access, page, room, options, unbuilt)?),
            Backing::Auto => match Self::reserve(calls, access, page, room, options, unbuilt) {
                Ok(reservation) => Some(reservation),
                Err(error) if !may_do_without_peers(options, error) => return Err(no_peers(options, error)),
                Err(error) => {
                    tracing::info!(device = access[0], %error, "no virtual memory here: backing=malloc");
                    None
                }
            },
        };
        Ok(match reservation {
            Some((base, size)) => (AddressSpace::reserved(base, size, granule), page),
            None => (AddressSpace::segments(room, granule), PAGE),
        })
    }

    /// Reserves the address range, a smaller one where address space is short, and maps one page to prove that memory
    /// can be mapped.
    fn reserve(
        calls: &Arc<DriverCalls>,
        access: &mut Vec<i32>,
        page: u64,
        room: u64,
        options: &Options,
        unbuilt: &mut Unbuilt,
    ) -> Result<(u64, u64)> {
        if page == 0 {
            return Err(DriverError::refused(
                "cuMemGetAllocationGranularity",
                Failure::Unsupported,
            ));
        }
        let mut size = room.next_multiple_of(page);
        let base = loop {
            match calls.submit(|driver| driver.reserve(size, page.max(PAGE))) {
                Ok(base) => break base,
                Err(error) if size / 2 < 64 * page => return Err(error),
                // With less than the device's memory, a part of that memory cannot be used: small steps from there on.
                Err(_) => {
                    let next = if size > room / 8 { size / 2 } else { size / 8 * 7 };
                    size = next.next_multiple_of(page);
                }
            }
        };
        let mut left = DeferredRelease::default();
        let trial = Self::trial(calls, access, base, page, options, &mut left);
        let Err(error) = trial.and(left.give_back(calls)) else {
            return Ok((base, size));
        };
        left.reservations.push((base, size));
        unbuilt.give_back(calls, left);
        Err(error)
    }

    /// Maps one page, which `left` gets. Peers that can access it join `access`.
    fn trial(
        calls: &DriverCalls,
        access: &mut Vec<i32>,
        base: u64,
        page: u64,
        options: &Options,
        left: &mut DeferredRelease,
    ) -> Result<()> {
        let device = access[0];
        let handle = match calls.submit(|driver| driver.create(device, page, options.kind)) {
            // A full device is no evidence against virtual memory. But which peers can have access is only known after a try.
            Err(error) if error.failure == Failure::OutOfMemory && options.peers.is_empty() => return Ok(()),
            handle => handle?,
        };
        left.handles.push((handle, page));
        calls.submit(|driver| driver.map(base, page, handle))?;
        left.mappings.push((base, page));
        calls.submit(|driver| driver.set_access(base, page, &[device]))?;
        for peer in options.peers.iter().copied() {
            match calls.submit(|driver| driver.set_access(base, page, &[device, peer])) {
                Ok(()) => access.push(peer),
                Err(error) if options.peers_must || error.failure == Failure::OutOfMemory => return Err(error),
                Err(error) => tracing::info!(device, peer, %error, "a peer cannot touch this device's memory"),
            }
        }
        Ok(())
    }
}

/// Says which options have no effect on memory of the driver's malloc.
fn warn_of_malloc(device: i32, options: &Options) {
    let kind = &options.kind;
    for (is_set, option) in [
        (options.guard, "guard=1"),
        (kind.share_fd || kind.share_fabric, "share"),
    ] {
        if is_set {
            tracing::warn!(
                device,
                "{option} has no effect: this memory comes from the driver's malloc"
            );
        }
    }
}

/// Whether the driver's malloc, which gives no peer access, may serve instead of virtual memory after this error. An exhausted
/// device says nothing about its peers, so the next request tries again.
fn may_do_without_peers(options: &Options, error: DriverError) -> bool {
    options.peers.is_empty() || !options.peers_must && error.failure != Failure::OutOfMemory
}

/// The error of a pool whose peers have no access.
fn no_peers(options: &Options, error: DriverError) -> Error {
    match error.failure {
        Failure::OutOfMemory => Error::Driver(error),
        _ => Error::Unsupported(format!("peers={:?} cannot all have access: {error}", options.peers)),
    }
}
