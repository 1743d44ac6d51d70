//! The drivers of this library by name, and opening the one that is chosen.

use std::sync::Arc;

use super::{Driver, DriverError, Result, cuda, none, sim};

/// Every driver, in the order in which messages list them. A new driver adds its line here; nothing else names it but its
/// `mod` line in `src/driver/mod.rs`.
pub static DRIVERS: &[&Descriptor] = &[
    // `auto` tries this one.
    &super::cuda::DRIVER,
    &super::ascend::DRIVER,
    &super::sim::DRIVER,
    &super::none::DRIVER,
];

/// What is known of a driver before it is open.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    /// The value of the option `driver`, and [`Driver::name`].
    pub name: &'static str,
    /// Opens the driver. It may find no device: [`Driver::device_count`] is then 0, or this fails.
    pub open: fn(&Settings) -> Result<Arc<dyn Driver>>,
    /// Whether the driver allocates no memory, so that it only serves a pool over external memory.
    pub external_only: bool,
    /// The memory of a device of a process that uses the driver already: of the device that is named, else of the current one,
    /// else of the device with the second number. It initializes nothing; none where the process does not use the driver.
    pub memory_in_use: fn(&Settings, Option<i32>, i32) -> Option<u64>,
    /// What to do about an error of `open` or of a device, for `trtalloc doctor`.
    pub advice: fn(&DriverError) -> &'static str,
    /// A file whose first line names the kernel module, for `trtalloc doctor`.
    pub kernel_module: Option<&'static str>,
}

impl Descriptor {
    /// A driver that allocates memory. Other properties are defaults, which the caller replaces.
    pub const fn new(name: &'static str, open: fn(&Settings) -> Result<Arc<dyn Driver>>) -> Descriptor {
        Descriptor {
            name,
            open,
            external_only: false,
            memory_in_use: |_, _, _| None,
            advice: |_| "Install the driver of this device, or select another one (driver=).",
            kernel_module: None,
        }
    }
}

/// Names are unique.
impl PartialEq for Descriptor {
    fn eq(&self, other: &Descriptor) -> bool {
        self.name == other.name
    }
}

impl Eq for Descriptor {}

/// Which driver to use: the value of the option `driver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriverChoice {
    /// cuda where a device is found; else none for a pool over external memory, and otherwise an error.
    #[default]
    Auto,
    /// This driver.
    #[doc(hidden)]
    Named(&'static Descriptor),
}

impl DriverChoice {
    const AUTO: &'static str = "auto";

    /// The choice of that name.
    pub fn from_name(name: &str) -> Option<DriverChoice> {
        if name == Self::AUTO {
            return Some(DriverChoice::Auto);
        }
        let named = DRIVERS.iter().find(|driver| driver.name == name);
        named.map(|driver| DriverChoice::Named(driver))
    }

    /// The names of all choices.
    pub fn names() -> impl Iterator<Item = &'static str> {
        std::iter::once(Self::AUTO).chain(DRIVERS.iter().map(|driver| driver.name))
    }

    /// The driver that is tried first.
    #[doc(hidden)]
    pub fn descriptor(self) -> &'static Descriptor {
        match self {
            DriverChoice::Auto => &cuda::DRIVER,
            DriverChoice::Named(driver) => driver,
        }
    }
}

/// What opening a driver depends on. Each driver reads what concerns it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Memory of the device comes from the library for media processing (`rule=ascend-media`).
    pub media: bool,
    /// The computer to simulate.
    pub sim: sim::SimConfig,
    /// Whether driver calls may still be made in this process. A driver that waits in a loop asks this.
    pub usable: fn() -> bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            media: false,
            sim: sim::SimConfig::default(),
            usable: || true,
        }
    }
}

/// Opens the driver that is chosen.
pub fn open(choice: DriverChoice, settings: &Settings) -> Result<Arc<dyn Driver>> {
    (choice.descriptor().open)(settings)
}

/// Opens the driver that is chosen, for a pool over external memory. With `auto`, a process that has no CUDA device at
/// all gets the driver `none`.
pub fn open_for_external(choice: DriverChoice, settings: &Settings) -> Result<Arc<dyn Driver>> {
    if choice != DriverChoice::Auto {
        return open(choice, settings);
    }
    match open(choice, settings) {
        Err(error) if cuda::CudaDriver::is_absent(&error) => {
            tracing::info!(%error, "no driver: a free says that every use of the memory is over");
            open(DriverChoice::Named(&none::DRIVER), settings)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_chooses_its_driver() {
        assert_eq!(DriverChoice::from_name("auto"), Some(DriverChoice::Auto));
        for driver in DRIVERS {
            let choice = DriverChoice::from_name(driver.name);
            assert_eq!(choice, Some(DriverChoice::Named(driver)));
            assert_eq!(choice.unwrap().descriptor(), *driver);
        }
        assert_eq!(DriverChoice::from_name("toy"), None);
        assert_eq!(DriverChoice::names().count(), DRIVERS.len() + 1);
    }

    #[test]
    fn open_drivers_have_the_names_of_their_descriptors() {
        for driver in [&sim::DRIVER, &none::DRIVER] {
            let open = open(DriverChoice::Named(driver), &Settings::default()).unwrap();
            assert_eq!(open.name(), driver.name);
        }
    }
}
