//! An allocator on the simulated device, and an application that calls it. Each bench uses a part of this.
#![allow(dead_code)]

use std::sync::Arc;

use trtalloc::allocator::Allocator;
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::ffi::ExportedAllocator;
use trtalloc::ffi::tensorrt::client::Client;
use trtalloc::trace::application::Application;

/// An allocator with the order checker off. The application's context is current to the thread that created it.
pub struct Rig {
    pub driver: Arc<SimDriver>,
    pub application: Application,
    pub allocator: Arc<Allocator>,
    pub exported: &'static ExportedAllocator,
    pub client: Client,
    pub stream: Stream,
}

impl Rig {
    pub fn new(options: &str) -> Rig {
        let driver = SimDriver::new(SimConfig {
            checker: false,
            ..SimConfig::default()
        });
        let application = Application::new(driver.clone(), 0).unwrap();
        let allocator = Allocator::with_driver(driver.clone(), Config::parse(options).unwrap()).unwrap();
        let exported = ExportedAllocator::new(allocator.clone());
        Rig {
            stream: application.create_stream().unwrap(),
            client: Client::new(exported).unwrap(),
            driver,
            application,
            allocator,
            exported,
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.allocator.close();
    }
}
