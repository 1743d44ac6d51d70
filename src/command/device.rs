//! The device that a subcommand uses, with an application's context on it.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use trtalloc::config::Config;
use trtalloc::driver::sim::{self, Machine};
use trtalloc::driver::{self, Driver, DriverChoice, Stream};
use trtalloc::error::{Error, Result};
use trtalloc::trace::application::Application;

use super::table::size;

/// What happens if the driver is `auto` and no GPU is found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// The subcommand fails.
    Fail,
    /// The subcommand uses the simulated device.
    Simulate,
}

/// A device, with an application's context that is current to this thread.
pub struct Device {
    driver: Arc<dyn Driver>,
    application: Application,
    description: String,
    memory: u64,
    granularity: u64,
    simulation: Option<Arc<Machine>>,
    checked: Cell<u64>,
}

/// Opens the driver that `config` names, for memory of a device.
pub fn open(config: &Config) -> Result<Arc<dyn Driver>> {
    let chosen = config.driver.descriptor();
    if chosen.external_only {
        let name = chosen.name;
        return Err(Error::InvalidArgument(format!(
            "--driver {name}: a device is needed here"
        )));
    }
    Ok(driver::open(config.driver, &config.driver_settings())?)
}

impl Device {
    /// Opens the device that `config` names. `fallback` applies if the driver is `auto` and no GPU is found.
    pub fn open(config: &Config, fallback: Fallback) -> Result<Device> {
        let answer = open(config).and_then(|found| match found.device_count()? {
            0 => Err(Error::Unsupported(format!("no {} device", found.name()))),
            _ => Ok(found),
        });
        let (driver, why) = match (answer, config.driver, fallback) {
            (Ok(found), ..) => (found, None),
            (Err(error), DriverChoice::Auto, Fallback::Simulate) => (
                open(&Config {
                    driver: DriverChoice::Named(&sim::DRIVER),
                    ..config.clone()
                })?,
                Some(error),
            ),
            (Err(error), DriverChoice::Auto, Fallback::Fail) => {
                return Err(Error::Unsupported(format!(
                    "{error}; --driver sim takes the simulated device"
                )));
            }
            (Err(error), ..) => return Err(error),
        };
        let index = config.device.unwrap_or(0);
        let application = Application::new(driver.clone(), index)?;
        let simulation = driver.tools().and_then(|tools| tools.simulation().cloned());
        let info = driver.device_info(index)?;
        let mut description = format!("{index}: {}, {}, driver {}", info.name, size(info.total), driver.name());
        if let Some(error) = why {
            description.push_str(&format!("; no GPU answers: {error}"));
        }
        Ok(Device {
            driver,
            application,
            description,
            memory: info.total,
            granularity: info.granularity.0.max(1),
            simulation,
            checked: Cell::new(0),
        })
    }

    /// Its driver.
    pub fn driver(&self) -> Arc<dyn Driver> {
        self.driver.clone()
    }

    /// The application on it.
    pub fn application(&self) -> &Application {
        &self.application
    }

    /// Its physical memory in bytes.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Rounds `bytes` up to the granularity of physical memory.
    pub fn round_to_handles(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.granularity).unwrap_or(u64::MAX)
    }

    /// Whether it is the simulated device.
    pub fn is_simulated(&self) -> bool {
        self.simulation.is_some()
    }

    /// The simulated device itself.
    pub fn simulation(&self) -> Option<&Arc<Machine>> {
        self.simulation.as_ref()
    }

    /// Switches the simulated device's order checker, which is on initially.
    pub fn check_order(&self, on: bool) {
        if let Some(simulation) = &self.simulation {
            simulation.checker().switch(on);
        }
    }

    /// Queues work on `stream` that uses `[address, address + bytes)`.
    pub fn work(&self, stream: Stream, address: u64, bytes: u64) -> trtalloc::driver::Result<()> {
        self.application.launch(stream, address, bytes)
    }

    /// Reports to the order checker, if there is one, that a block was just allocated.
    pub fn handed_out(&self, address: u64, bytes: u64, stream: Option<Stream>) {
        if let Some(simulation) = &self.simulation {
            self.checked.set(self.checked.get() + 1);
            simulation
                .checker()
                .hand_out(address, bytes, stream.map(|stream| stream.0));
        }
    }

    /// Reports to the order checker that a block is about to be freed.
    pub fn giving_back(&self, address: u64, stream: Option<Stream>) {
        if let Some(simulation) = &self.simulation {
            simulation.checker().give_back(address, stream.map(|stream| stream.0));
        }
    }

    /// Reports to the order checker that the block at `old` is now at `new` with `bytes`.
    pub fn resized(&self, old: u64, new: u64, bytes: u64) {
        if let Some(simulation) = &self.simulation {
            self.checked.set(self.checked.get() + 1);
            simulation.checker().resize(old, new, bytes);
        }
    }

    /// How many allocations were reported to the order checker.
    pub fn checked(&self) -> u64 {
        self.checked.get()
    }

    /// Violations that the simulated device found: allocations of memory that is still in use, with both histories,
    /// and memory unmapped under pending work.
    pub fn violations(&self) -> Vec<String> {
        let Some(simulation) = &self.simulation else {
            return Vec::new();
        };
        let mut seen = simulation.checker().violations();
        seen.extend(simulation.faults());
        seen
    }

    /// The byte at `address`; `None` where the host cannot read the device's memory.
    pub fn byte_at(&self, address: u64) -> Option<u8> {
        self.simulation.as_ref()?;
        // SAFETY: the caller holds the block. The simulated device's memory is host memory, and a fill changes it
        // when it is queued.
        Some(unsafe { std::ptr::read_volatile(std::ptr::with_exposed_provenance::<u8>(address as usize)) })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}
