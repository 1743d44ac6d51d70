//! An application on a simulated device.

use std::path::PathBuf;
use std::sync::Arc;

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::error::Result;
use trtalloc::trace::application::Application;

use crate::common;
use crate::viewer::{self, Seen};

pub struct Program {
    pub allocator: Arc<Allocator>,
    pub application: Application,
    pub driver: Arc<SimDriver>,
}

pub fn request(size: u64, stream: Option<Stream>) -> Request {
    Request {
        size,
        alignment: 0,
        flags: 0,
        stream,
        device: None,
    }
}

impl Program {
    pub fn new(options: &str) -> Program {
        Program::on(1, options)
    }

    /// On a computer of several devices, of which it uses the first.
    pub fn on(devices: u32, options: &str) -> Program {
        let driver = SimDriver::new(SimConfig {
            checker: false,
            devices,
            ..SimConfig::default()
        });
        Program {
            application: Application::new(driver.clone(), 0).unwrap(),
            allocator: Allocator::with_driver(driver.clone(), Config::parse(options).unwrap()).unwrap(),
            driver,
        }
    }

    pub fn stream(&self) -> Stream {
        self.application.create_stream().unwrap()
    }

    pub fn get(&self, size: u64, stream: Option<Stream>) -> u64 {
        self.allocator.allocate(request(size, stream)).unwrap()
    }

    pub fn get_resizable(&self, size: u64, stream: Option<Stream>) -> Result<u64> {
        self.allocator.allocate(Request {
            flags: RESIZABLE,
            ..request(size, stream)
        })
    }

    pub fn give(&self, address: u64, stream: Option<Stream>) {
        self.allocator.deallocate(address, stream).unwrap();
    }

    /// A snapshot as a viewer sees it, as a pickle and as JSON.
    pub fn snapshot(&self, name: &str) -> Seen {
        let (pickle, json) = (path(&format!("{name}.pickle")), path(&format!("{name}.json")));
        self.allocator.write_snapshot(&pickle).unwrap();
        self.allocator.write_snapshot(&json).unwrap();
        viewer::open(&json);
        let seen = viewer::open(&pickle);
        let reserved = self.allocator.stats(Some(0)).unwrap().reserved;
        assert!(seen.number("total") <= reserved, "{seen}");
        seen
    }
}

pub fn path(name: &str) -> PathBuf {
    let dir = common::root().join(env!("CARGO_TARGET_TMPDIR")).join("record");
    std::fs::create_dir_all(&dir).unwrap();
    dir.join(name)
}
