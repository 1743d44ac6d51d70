//! The place and the interface of a case.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use trtalloc::driver::Driver;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::pool::rounding::RoundingRule;

use super::{DEVICES, World, memory};
use crate::device::{Cuda, Device, Sim};
use crate::interface::{self, Over, Way};
use crate::over::open;
use crate::standin::process::{Installed, exclusive};

/// The place and the interface of a case.
pub struct Setup {
    way: Way,
    over: Over,
    device: Arc<dyn Device>,
    /// While this lives, AscendCL's functions act on this machine.
    installed: Option<Installed>,
}

impl Setup {
    pub fn ascend(way: Way) -> Setup {
        let simulated = SimDriver::new(SimConfig {
            devices: DEVICES,
            memory: memory(),
            ..SimConfig::default()
        });
        let installed = exclusive(simulated.machine().clone());
        let driver = open(false).expect("the stand-in has every function");
        // AscendCL does not say that the captures of the processes before have ended.
        driver.running_captures().forget();
        Setup {
            way,
            over: Over::Driver(driver),
            device: Arc::new(Sim(simulated)),
            installed: Some(installed),
        }
    }

    pub fn sim(way: Way, version: u32) -> Setup {
        let driver = SimDriver::new(SimConfig {
            devices: DEVICES,
            memory: memory(),
            version,
            ..SimConfig::default()
        });
        Setup {
            way,
            over: Over::Driver(driver.clone()),
            device: Arc::new(Sim(driver)),
            installed: None,
        }
    }

    pub fn cuda(way: Way) -> Setup {
        Setup {
            way,
            over: Over::Cuda,
            device: Arc::new(Cuda::new()),
            installed: None,
        }
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Makes device 0 current to this thread, and makes an allocator with `options`.
    pub fn world(&self, options: &str) -> World {
        self.device.enter(0);
        self.outside(options)
    }

    /// As [`Setup::world`], without a current context.
    pub fn outside(&self, options: &str) -> World {
        self.make(options, None, RoundingRule::CUDA)
    }

    /// Makes an allocator over external memory.
    pub fn over(&self, base: usize, bytes: u64, options: &str, rule: RoundingRule) -> World {
        self.make(options, Some((base as u64, bytes)), rule)
    }

    /// Makes an allocator with a rounding rule of its own over the driver's memory.
    pub fn by_rule(&self, options: &str, rule: RoundingRule) -> World {
        self.device.enter(0);
        self.make(options, None, rule)
    }

    fn make(&self, options: &str, external: Option<(u64, u64)>, rule: RoundingRule) -> World {
        // AscendCL's allocations may begin where a block by CUDA's rule may not.
        if self.installed.is_some() && options.contains("passthrough=1") {
            let (options, ascend) = (
                options.replace("passthrough=1", "passthrough=1,rule=ascend"),
                RoundingRule::ascend(32, 64),
            );
            return self.made(&options, external, ascend);
        }
        self.made(options, external, rule)
    }

    fn made(&self, options: &str, external: Option<(u64, u64)>, rule: RoundingRule) -> World {
        World {
            device: self.device.clone(),
            interface: interface::open(self.way, &self.over, options, external),
            rule,
            external: external.is_some(),
            checked: !options.contains("streams=trusted"),
            pinned: options.contains("kind=pinned"),
            patient: !options.contains("wait_ms=0"),
            captured: AtomicBool::new(false),
            copies: options.contains("backing=malloc") || options.contains("passthrough=1"),
            books: Mutex::default(),
        }
    }
}
