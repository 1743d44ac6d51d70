//! The device that a subcommand works on, and the application that works on it.

use std::fmt;
use std::sync::Arc;

use trtalloc::config::{Config, DriverChoice};
use trtalloc::driver::cuda::CudaDriver;
use trtalloc::driver::{Driver, Stream};
use trtalloc::error::{Error, Result};
use trtalloc::trace::application::{Application, CudaStreams, Streams};

use super::table::size;

/// What to do where the driver is to be found out and no GPU answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// It is an error.
    Fail,
    /// Take the simulated device.
    Simulate,
}

/// A device with its application, current to this thread.
pub struct Device {
    driver: Arc<dyn Driver>,
    application: Application,
    description: String,
    memory: u64,
    simulated: bool,
}

/// Opens the driver that `config` names, with the application's side of it.
pub fn driver(config: &Config) -> Result<(Arc<dyn Driver>, Box<dyn Streams>)> {
    match config.driver {
        DriverChoice::Auto | DriverChoice::Cuda => {
            let driver = CudaDriver::open()?;
            Ok((driver, Box::new(CudaStreams::open()?)))
        }
        DriverChoice::Sim => Err(Error::Unsupported("the simulated device".into())),
        DriverChoice::Ascend => Err(Error::Unsupported("driver=ascend comes with a later version".into())),
    }
}

impl Device {
    /// Opens the device that `config` names; where it leaves the driver open and no GPU answers, `otherwise` holds.
    pub fn open(config: &Config, otherwise: Otherwise) -> Result<Device> {
        let answer = driver(config).and_then(|found| match found.0.device_count()? {
            0 => Err(Error::Unsupported("no CUDA device".into())),
            _ => Ok(found),
        });
        let ((driver, streams), why) = match (answer, config.driver, otherwise) {
            (Ok(found), ..) => (found, None),
            (Err(error), DriverChoice::Auto, Otherwise::Simulate) => (
                driver(&Config {
                    driver: DriverChoice::Sim,
                    ..config.clone()
                })?,
                Some(error),
            ),
            (Err(error), DriverChoice::Auto, Otherwise::Fail) => {
                return Err(Error::Unsupported(format!(
                    "{error}; --driver sim takes the simulated device"
                )));
            }
            (Err(error), ..) => return Err(error),
        };
        let index = config.device.unwrap_or(0);
        let application = Application::new(driver.clone(), streams, index)?;
        let info = driver.device_info(index)?;
        let simulated = driver.name() == "sim";
        let mut description = format!("{index}: {}, {}, driver {}", info.name, size(info.total), driver.name());
        if simulated {
            description.push_str(" (simulated, no GPU takes part)");
        }
        if let Some(error) = why {
            description.push_str(&format!("; no GPU answers: {error}"));
        }
        Ok(Device {
            driver,
            application,
            description,
            memory: info.total,
            simulated,
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

    /// Whether it is the simulated one.
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Queues work on `stream` that uses `[address, address + bytes)`.
    pub fn work(&self, stream: Stream, address: u64, bytes: u64) -> trtalloc::driver::Result<()> {
        self.application.fill(stream, address, 0, bytes)
    }

    /// What the simulated device saw that a pool must never do, in words.
    pub fn violations(&self) -> Vec<String> {
        Vec::new()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}
