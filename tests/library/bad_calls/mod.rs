//! Calls that should not have been made, each in a process of its own: over the simulated device (`sim`), over CUDA
//! through the simulated libcuda.so.1 (`cuda`), and through the second simulated driver's if it is available (`second`),
//! by the C functions. Each has a defined result and a logged reason. Nothing is written to stdout, nothing crashes, and
//! the process ends with status 0.

#[allow(dead_code)]
#[path = "../../support/application/mod.rs"]
mod application;

mod arguments;
mod devices;
mod environment;
mod pointers;
mod process;
mod streams;
mod without_driver;

use std::env;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use crate::common::{self, cudasim, simcuda};
use application::device::{Cuda, Device, Sim};
use application::interface::{self, Interface, Over, Way};
use trtalloc::driver::sim::{SimConfig, SimDriver};

const ROLE: &str = "TRTALLOC_TEST_ROLE";
const OUTPUT: &str = "TRTALLOC_TEST_OUTPUT";
const MIB: u64 = 1 << 20;

/// Where a case runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Sim,
    Cuda,
    /// The second simulated driver, where it is there.
    Second,
    /// With no driver to be found.
    Nowhere,
}

/// An application with device 0 current, and an allocator used through C.
struct World {
    device: Arc<dyn Device>,
    interface: Box<dyn Interface>,
}

impl World {
    fn new(place: Place, options: &str) -> World {
        let (device, over): (Arc<dyn Device>, Over) = match place {
            Place::Sim => {
                let driver = SimDriver::new(SimConfig {
                    memory: 1 << 30,
                    ..SimConfig::default()
                });
                (Arc::new(Sim(driver.clone())), Over::Driver(driver))
            }
            _ => (Arc::new(Cuda::new()), Over::Cuda),
        };
        device.enter(0);
        World {
            interface: interface::open(Way::C, &over, options, None),
            device,
        }
    }

    fn get(&self, size: u64) -> usize {
        let block = self.interface.allocate(size, 0, 0);
        assert_ne!(block, 0, "{}", self.interface.last_error());
        block
    }

    /// The allocator works as if nothing had happened.
    fn finish(&self) {
        let stream = self.device.stream();
        let block = self.interface.allocate_async(3 * MIB, 0, 0, stream);
        assert_ne!(block, 0, "{}", self.interface.last_error());
        self.device.write(stream, block, 3 * MIB, 1);
        assert!(self.interface.deallocate_async(block, stream));
        self.interface.inside().validate().unwrap();
        assert_eq!(self.interface.stats(0).allocated, 0);
        let (status, _) = self.interface.trim(0, 0);
        assert_eq!((status, self.interface.stats(0).reserved), (0, 0));
        self.interface.close();
    }
}

fn simulated_library() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built"))
}

/// Runs `body` in a process of its own, whose stderr must have each of `reasons`.
fn run(place: Place, name: &str, body: fn(Place), reasons: &[&str], variables: &[(&str, &str)]) {
    if env::var(ROLE).is_ok_and(|role| role == name) {
        let output = fs::File::create(env::var(OUTPUT).unwrap()).unwrap();
        // SAFETY: both descriptors are open; from here on stdout is the file.
        assert!(unsafe { libc::dup2(output.as_raw_fd(), 1) } >= 0);
        body(place);
        // SAFETY: as `exit` at the end of a program's main: handlers run, the test harness is left out.
        unsafe { libc::exit(0) };
    }
    let output =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bad-{}-{}", std::process::id(), name.replace(':', "-")));
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([
            &format!("bad_calls::{name}"),
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, name)
        .env(OUTPUT, &output)
        .env("TRTALLOC_LOG", "debug")
        .envs(variables.iter().copied());
    match place {
        Place::Cuda => {
            command
                .env("LD_LIBRARY_PATH", simulated_library())
                .env("SIMCUDA_MEMORY", (1u64 << 30).to_string());
        }
        // CUDA: cuDevicePrimaryCtxReset "explicitly destroys and cleans up all resources"; there it does nothing.
        Place::Second if name.ends_with("requests_after_a_context_reset_are_refused") => {
            common::unsupported("the second simulated driver resets no context");
        }
        Place::Second => cudasim::environment(&mut command, 13_020, 1, 1 << 30),
        Place::Nowhere => {
            command.env_remove("LD_LIBRARY_PATH");
        }
        Place::Sim => {}
    }
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{name}: {}\n{said}", ended.status);
    let written = fs::read(&output).unwrap_or_else(|error| panic!("{name} did not run: {error}\n{said}"));
    let _ = fs::remove_file(&output);
    assert!(
        written.is_empty(),
        "{name} on stdout: {}",
        String::from_utf8_lossy(&written)
    );
    assert!(
        !said.contains("panicked") && !said.contains("simcuda:"),
        "{name}:\n{said}"
    );
    for reason in reasons {
        assert!(said.contains(reason), "{name} does not say `{reason}`:\n{said}");
    }
}

/// A test over the simulated device, one over CUDA and one over the second simulated driver for each case.
macro_rules! cases {
    ($($file:ident { $($name:ident $reasons:expr;)* })*) => {
        cases!(@place sim Sim $($($file $name $reasons;)*)*);
        cases!(@place cuda Cuda $($($file $name $reasons;)*)*);
        cases!(@place second Second $($($file $name $reasons;)*)*);
    };
    (@place $module:ident $place:ident $($file:ident $name:ident $reasons:expr;)*) => {
        mod $module {
            use crate::bad_calls::*;

            $(#[test]
            fn $name() {
                let name = concat!(stringify!($module), "::", stringify!($name));
                run(Place::$place, name, $file::$name, &$reasons, &[]);
            })*
        }
    };
}

cases! {
    arguments {
        null_allocator_is_refused ["allocator is NULL"];
        size_0_returns_null [];
        size_2_to_the_63_is_refused ["9223372036854775808 bytes"];
        alignment_3_is_refused ["alignment 3 is not"];
        alignment_4_gib_is_refused ["alignment 4294967296 is not"];
        unknown_flags_are_ignored ["flags 0x6 are not known"];
        free_of_null_succeeds [];
        unreadable_options_are_refused ["option `limit`: cannot read `plenty`", "unknown option `limits`"];
    }
    pointers {
        foreign_pointers_are_refused ["is no block of this allocator"];
        interior_pointers_are_refused ["is no block of this allocator"];
        double_frees_are_refused ["freed before", "is no block of this allocator"];
        requests_after_destroy_are_refused ["the allocator was destroyed"];
    }
    devices {
        unknown_devices_are_refused ["device -2 of 1", "device 1 of 1"];
    }
    streams {
        frees_on_a_destroyed_stream_succeed [];
        requests_after_a_context_reset_are_refused ["the pool is dead"];
    }
    process {
        calls_in_a_forked_child_are_refused ["this process was forked"];
        calls_at_exit_have_an_answer ["the process is exiting"];
        calls_from_thread_local_destructors_have_an_answer ["is no block of this allocator"];
        blocks_of_ten_thousand_threads_can_be_freed [];
    }
}
