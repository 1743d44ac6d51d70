//! The pool's own fault sweep over AscendCL: each driver call of a sequence that uses everything fails in turn.

use std::sync::Arc;

use trtalloc::allocator::{Allocator, RESIZABLE};
use trtalloc::config::Config;
use trtalloc::driver::Driver;
use trtalloc::driver::sim::model::Machine;
use trtalloc::driver::sim::{SimConfig, SimDriver};

use crate::over::open;
use crate::standin::process::{Installed, exclusive};

#[path = "../../../src/pool/tests/application.rs"]
mod application;
#[path = "../../../src/pool/tests/faults.rs"]
mod faults;

const MIB: u64 = 1 << 20;

/// An allocator on a machine of its own, with its application. The checker sees all hand-outs and frees.
struct Bench {
    machine: Arc<Machine>,
    allocator: Arc<Allocator>,
    _installed: Installed,
}

impl Bench {
    /// The number of polls depends on the time that passes.
    const REPEATS: bool = false;
    /// Memory of libacl_dvpp.so.
    const MORE: &[&str] = &["limit=192MiB,wait_ms=100,rule=ascend-media"];

    /// A device of 1 GiB. This thread enters device 0's own context.
    fn on(config: SimConfig, options: &str) -> Bench {
        let machine = SimDriver::new(SimConfig {
            memory: 1 << 30,
            version: SimConfig::default().version,
            ..config
        })
        .machine()
        .clone();
        let installed = exclusive(machine.clone());
        let driver = open(options.contains("ascend-media")).unwrap();
        driver.running_captures().forget();
        machine.context_push(machine.primary_retain(0).unwrap()).unwrap();
        // AscendCL's memory is less aligned than CUDA's.
        let rule = if options.contains("passthrough") {
            ",rule=ascend"
        } else {
            ""
        };
        // Time is real here, and waits are few and short.
        let options = options.replace("wait_ms=100", "wait_ms=10");
        let config = Config::parse(&format!("{options}{rule}")).unwrap();
        Bench {
            allocator: Allocator::with_driver(driver, config).unwrap(),
            machine,
            _installed: installed,
        }
    }
}
