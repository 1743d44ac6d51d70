//! The driver of a pool with `share_budget`: memory of the device is locked in the budget before the driver is asked for it.
//!
//! Where the budget has too little, or cannot be locked, the answer is "out of memory", and the driver is not called. What
//! was locked is unlocked once the driver has confirmed that the memory is free: a handle once it is released and nowhere
//! mapped any more. Pinned host memory is no memory of the device, and is not counted.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;

use crate::driver::{
    Capture, CaptureInfo, CaptureMode, Context, DeviceInfo, Driver, DriverError, Event, Failure, Features, Graph,
    Handle, HandleKind, Result, RunningCaptures, Stream, Tools, UserObjectDestructor,
};
use crate::support::shared_budget::{Held, SharedBudget};

/// The call that an error of the budget names.
const CALL: &str = "share_budget";

/// Whether the budget refused the memory, not the driver.
pub fn is_of_budget(error: &DriverError) -> bool {
    error.call == CALL
}

/// A driver whose memory counts for a budget.
pub struct BudgetedDriver {
    driver: Arc<dyn Driver>,
    budget: Arc<SharedBudget>,
    memory: Mutex<Memory>,
}

/// What the driver has given.
#[derive(Default)]
struct Memory {
    numbers: u64,
    /// Physical memory by a number of its own: the driver may give a released handle's number again.
    physical: HashMap<u64, Physical>,
    /// The numbers of handles that were not released.
    handles: HashMap<Handle, u64>,
    /// The number and the size of what is mapped at an address.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// Memory of the driver's malloc.
    segments: HashMap<u64, Held>,
}

struct Physical {
    held: Held,
    mappings: u32,
    released: bool,
}

impl Memory {
    /// Takes physical memory out that is released and nowhere mapped.
    fn gone(&mut self, number: u64) -> Option<Held> {
        let physical = self.physical.get(&number)?;
        if !physical.released || physical.mappings > 0 {
            return None;
        }
        self.physical.remove(&number).map(|physical| physical.held)
    }
}

impl BudgetedDriver {
    /// Nothing is obtained yet.
    pub fn new(driver: Arc<dyn Driver>, budget: Arc<SharedBudget>) -> BudgetedDriver {
        BudgetedDriver {
            driver,
            budget,
            memory: Mutex::default(),
        }
    }

    /// Locks memory and obtains it.
    fn obtain<T>(&self, size: u64, call: impl FnOnce() -> Result<T>) -> Result<(T, Held)> {
        let locked = self.budget.lock(size);
        let held = locked.map_err(|refusal| {
            tracing::debug!(budget = %self.budget.option(), ?refusal, size, "no memory within share_budget");
            DriverError::refused(CALL, Failure::OutOfMemory)
        })?;
        match call() {
            Ok(obtained) => Ok((obtained, held)),
            Err(error) => {
                self.budget.unlock(held);
                Err(error)
            }
        }
    }
}

/// Methods that only call the driver's own.
macro_rules! forward {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        $(
            #[inline]
            fn $name(&self $(, $argument: $type)*) $(-> $result)? {
                self.driver.$name($($argument),*)
            }
        )*
    };
}

impl Driver for BudgetedDriver {
    forward! {
        fn name(&self) -> &'static str;
        fn features(&self) -> Features;
        fn knows_work(&self) -> bool;
        fn spaces_blocks(&self) -> bool;
        fn tools(&self) -> Option<&dyn Tools>;
        fn device_count(&self) -> Result<u32>;
        fn device_info(&self, device: i32) -> Result<DeviceInfo>;
        fn granularity(&self, device: i32, kind: HandleKind) -> Result<(u64, u64)>;
        fn device_uuid(&self, device: i32) -> Result<[u8; 16]>;
        fn memory_info(&self, device: i32) -> Result<(u64, u64)>;
        fn current_context(&self) -> Result<Option<Context>>;
        fn current_device(&self) -> Result<Option<i32>>;
        fn primary_retain(&self, device: i32) -> Result<Context>;
        fn primary_release(&self, device: i32) -> Result<()>;
        fn primary_active(&self, device: i32) -> Result<bool>;
        fn context_id(&self, context: Context) -> Result<u64>;
        fn context_push(&self, context: Context) -> Result<()>;
        fn context_pop(&self) -> Result<()>;
        fn context_record_event(&self, context: Context, event: Event) -> Result<()>;
        fn context_synchronize(&self) -> Result<()>;
        fn stream_id(&self, stream: Stream) -> Result<u64>;
        fn stream_context(&self, stream: Stream) -> Result<Context>;
        fn is_of_green_context(&self, stream: Stream) -> Result<bool>;
        fn covering_context(&self, current: Context) -> Result<Context>;
        fn context_of(&self, stream: Stream) -> Result<Context>;
        fn stream_capture(&self, stream: Stream) -> Result<Capture>;
        fn look_for_capture(&self, stream: Stream) -> Result<Capture>;
        fn note_capture(&self);
        fn capture_known(&self) -> &AtomicBool;
        fn running_captures(&self) -> &RunningCaptures;
        fn stream_capture_info(&self, stream: Stream) -> Result<Option<CaptureInfo>>;
        fn stream_wait_event(&self, stream: Stream, event: Event) -> Result<()>;
        fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode>;
        fn event_create(&self) -> Result<Event>;
        fn event_destroy(&self, event: Event) -> Result<()>;
        fn event_record(&self, event: Event, stream: Stream) -> Result<()>;
        fn event_query(&self, event: Event) -> Result<bool>;
        fn event_wait(&self, event: Event, limit: Duration) -> Result<bool>;
        fn reserve(&self, size: u64, alignment: u64) -> Result<u64>;
        fn unreserve(&self, address: u64, size: u64) -> Result<()>;
        fn set_access(&self, address: u64, size: u64, devices: &[i32]) -> Result<()>;
        fn host_malloc(&self, size: u64) -> Result<u64>;
        fn host_free(&self, address: u64) -> Result<()>;
        fn copy_async(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<()>;
        fn fill_async(&self, address: u64, byte: u8, bytes: u64, stream: Stream) -> Result<()>;
    }

    fn create(&self, device: i32, size: u64, kind: HandleKind) -> Result<Handle> {
        let (handle, held) = self.obtain(size, || self.driver.create(device, size, kind))?;
        let mut memory = self.memory.lock();
        memory.numbers += 1;
        let number = memory.numbers;
        let physical = Physical {
            held,
            mappings: 0,
            released: false,
        };
        memory.physical.insert(number, physical);
        memory.handles.insert(handle, number);
        Ok(handle)
    }

    fn release(&self, handle: Handle) -> Result<()> {
        // The handle leaves before the call, since another thread may get its number right after it.
        let number = self.memory.lock().handles.remove(&handle);
        let outcome = self.driver.release(handle);
        let Some(number) = number else { return outcome };
        let mut memory = self.memory.lock();
        if outcome.is_err() {
            memory.handles.insert(handle, number);
            return outcome;
        }
        if let Some(physical) = memory.physical.get_mut(&number) {
            physical.released = true;
        }
        let gone = memory.gone(number);
        drop(memory);
        gone.into_iter().for_each(|held| self.budget.unlock(held));
        outcome
    }

    fn map(&self, address: u64, size: u64, handle: Handle) -> Result<()> {
        self.driver.map(address, size, handle)?;
        let mut memory = self.memory.lock();
        if let Some(number) = memory.handles.get(&handle).copied()
            && let Some(physical) = memory.physical.get_mut(&number)
        {
            physical.mappings += 1;
            memory.mapped.insert(address, (number, size));
        }
        Ok(())
    }

    fn unmap(&self, address: u64, size: u64) -> Result<()> {
        // As in `release`: what is mapped there next is another mapping.
        let mut mappings = Vec::new();
        let mut memory = self.memory.lock();
        while let Some((at, mapped)) = memory.mapped.range(address..address.saturating_add(size)).next() {
            let (at, mapped) = (*at, *mapped);
            memory.mapped.remove(&at);
            mappings.push((at, mapped));
        }
        drop(memory);
        let outcome = self.driver.unmap(address, size);
        let mut memory = self.memory.lock();
        if outcome.is_err() {
            memory.mapped.extend(mappings);
            return outcome;
        }
        let mut gone = Vec::new();
        for (_, (number, _)) in mappings {
            if let Some(physical) = memory.physical.get_mut(&number) {
                physical.mappings -= 1;
            }
            gone.extend(memory.gone(number));
        }
        drop(memory);
        gone.into_iter().for_each(|held| self.budget.unlock(held));
        outcome
    }

    fn malloc(&self, size: u64) -> Result<u64> {
        let (address, held) = self.obtain(size, || self.driver.malloc(size))?;
        self.memory.lock().segments.insert(address, held);
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        let held = self.memory.lock().segments.remove(&address);
        let outcome = self.driver.free(address);
        match (held, &outcome) {
            (Some(held), Ok(())) => self.budget.unlock(held),
            (Some(held), Err(_)) => _ = self.memory.lock().segments.insert(address, held),
            (None, _) => {}
        }
        outcome
    }

    unsafe fn retain_user_object(
        &self,
        graph: Graph,
        destructor: UserObjectDestructor,
        data: *mut c_void,
    ) -> Result<()> {
        // SAFETY: the caller meets the same requirement.
        unsafe { self.driver.retain_user_object(graph, destructor, data) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{SimConfig, SimDriver};
    use crate::support::shared_budget::{ShareBudget, UNIT};

    /// A method that is left out would be the trait's own instead of the driver's.
    #[test]
    fn every_method_reaches_the_driver() {
        let methods = |text: &str| -> Vec<String> {
            let names = text.split("fn ").skip(1);
            let names = names.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned()));
            names
                .filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
                .collect()
        };
        let of_trait = include_str!("../driver/mod.rs")
            .split_once("pub trait Driver")
            .unwrap()
            .1;
        let own = include_str!("budgeted_driver.rs")
            .split_once("impl Driver for")
            .unwrap()
            .1;
        let own = methods(own.split_once("#[cfg(test)]").unwrap().0);
        let wanted = methods(of_trait);
        assert!(wanted.len() > 40, "{wanted:?}");
        let missing: Vec<_> = wanted.iter().filter(|name| !own.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    fn driver(units: u64) -> (Arc<SharedBudget>, BudgetedDriver) {
        let option = ShareBudget {
            directory: Some(std::env::temp_dir()),
            name: format!("wrapped-{}-{}", std::process::id(), units),
            bytes: units * UNIT,
        };
        let sim = SimDriver::new(SimConfig::default());
        let primary = sim.primary_retain(0).unwrap();
        sim.context_push(primary).unwrap();
        let budget = SharedBudget::open(&option, sim.device_uuid(0).unwrap()).unwrap();
        (budget.clone(), BudgetedDriver::new(sim, budget))
    }

    #[test]
    fn memory_is_unlocked_once_it_is_released_and_mapped_nowhere() {
        let (budget, driver) = driver(4);
        let base = driver.reserve(8 * UNIT, UNIT).unwrap();
        let held = || budget.held() / UNIT;
        let handle = driver.create(0, 2 * UNIT, HandleKind::default()).unwrap();
        driver.map(base, 2 * UNIT, handle).unwrap();
        driver.map(base + 2 * UNIT, 2 * UNIT, handle).unwrap();
        driver.release(handle).unwrap();
        assert_eq!(held(), 2, "mapped twice");
        driver.unmap(base, 2 * UNIT).unwrap();
        assert_eq!(held(), 2, "mapped once");
        // Half a mapping is refused, and counts as before.
        assert!(driver.unmap(base + 2 * UNIT, UNIT).is_err());
        assert!(driver.release(handle).is_err(), "a second time");
        assert_eq!(held(), 2);
        driver.unmap(base + 2 * UNIT, 2 * UNIT).unwrap();
        assert_eq!(held(), 0);
        let handle = driver.create(0, 4 * UNIT, HandleKind::default()).unwrap();
        let error = driver.malloc(1).unwrap_err();
        assert!(is_of_budget(&error) && error.failure == Failure::OutOfMemory);
        driver.release(handle).unwrap();
        let segment = driver.malloc(3 * UNIT + 1).unwrap();
        assert_eq!(held(), 4);
        assert!(driver.free(segment + 512).is_err());
        assert_eq!(held(), 4);
        driver.free(segment).unwrap();
        assert_eq!(held(), 0);
        assert!(driver.create(0, 1, HandleKind::default()).is_err());
        assert_eq!(held(), 0, "the driver refused");
        let pinned = driver.host_malloc(64 * UNIT).unwrap();
        assert_eq!(held(), 0, "no memory of the device");
        driver.host_free(pinned).unwrap();
    }
}
