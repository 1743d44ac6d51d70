//! `trtalloc doctor`: what is here, found out by trying it.

use std::ffi::CStr;

use trtalloc::config::{Config, DriverChoice};
use trtalloc::driver::{Driver, HandleKind};
use trtalloc::error::Result;

use super::device;
use super::table::{Table, size};
use super::{Done, say};

#[derive(clap::Args)]
pub struct Arguments {}

pub fn run(_: &Arguments) -> Result<Done> {
    let config = Config::from_environment();
    let mut table = Table::words(&["what", "found"]);
    let mut add = |what: &str, found: String| table.row(vec![what.to_string(), found]);
    for (name, choice) in [("cuda", DriverChoice::Cuda), ("sim", DriverChoice::Sim)] {
        match device::open(&Config {
            driver: choice,
            ..config.clone()
        }) {
            Ok(opened) => describe(name, &*opened.driver, &mut add),
            Err(error) => add(&format!("driver {name}"), format!("no: {error}")),
        }
    }
    add("driver ascend", "comes with a later version".into());
    for library in LIBRARIES {
        add(&library.to_string_lossy(), tensorrt(library));
    }
    add(
        "attached",
        "no: attaching to a program that is not changed comes with a later version".into(),
    );
    say(&table.text());
    Ok(Done::All)
}

fn describe(name: &str, driver: &dyn Driver, add: &mut impl FnMut(&str, String)) {
    let count = match driver.device_count() {
        Ok(count) => count,
        Err(error) => return add(&format!("driver {name}"), format!("no devices: {error}")),
    };
    let features = driver.features();
    let has = |name: &str, there: bool| format!(", {name} {}", if there { "yes" } else { "no" });
    add(
        &format!("driver {name}"),
        format!(
            "devices: {count}{}{}{}",
            has("stream ids", features.stream_ids),
            has("context events", features.context_events),
            has("user objects", features.user_objects)
        ),
    );
    for device in 0..count as i32 {
        let what = format!("  device {device}");
        match driver.device_info(device) {
            Ok(info) => {
                add(&what, format!("{}, {}", info.name, size(info.total)));
                let (smallest, recommended) = info.granularity;
                let said = if info.virtual_memory {
                    "said to be there"
                } else {
                    "said not to be there"
                };
                let found = match trial(driver, device, smallest) {
                    Ok(()) => format!(
                        "works by trial, handles of {}, {} recommended ({said})",
                        size(smallest),
                        size(recommended)
                    ),
                    Err(error) => format!("does not work: {error} ({said}); backing=malloc is used"),
                };
                add("  virtual memory", found);
            }
            Err(error) => add(&what, format!("{error}")),
        }
    }
}

/// Maps one handle and takes it away again.
fn trial(driver: &dyn Driver, device: i32, granularity: u64) -> trtalloc::driver::Result<()> {
    let context = driver.primary_retain(device)?;
    let result = driver.context_push(context).and_then(|()| {
        let result = map_one(driver, device, granularity);
        driver.context_pop().and(result)
    });
    driver.primary_release(device).and(result)
}

fn map_one(driver: &dyn Driver, device: i32, bytes: u64) -> trtalloc::driver::Result<()> {
    let address = driver.reserve(bytes, 0)?;
    let result = driver.create(device, bytes, HandleKind::default()).and_then(|handle| {
        let result = driver.map(address, bytes, handle).and_then(|()| {
            let result = driver.set_access(address, bytes, &[device]);
            driver.unmap(address, bytes).and(result)
        });
        driver.release(handle).and(result)
    });
    driver.unreserve(address, bytes).and(result)
}

/// Names under which TensorRT and TensorRT-RTX are installed.
const LIBRARIES: [&CStr; 7] = [
    c"libnvinfer.so.11",
    c"libnvinfer.so.10",
    c"libnvinfer.so.9",
    c"libnvinfer.so.8",
    c"libnvinfer_lean.so.11",
    c"libnvinfer_lean.so.10",
    c"libtensorrt_rtx.so.1",
];

/// Whether the loader finds that library, and which version it says it is.
fn tensorrt(library: &CStr) -> String {
    // SAFETY: a terminated name. What the library does as it loads is its own; it stays loaded until the command ends.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return "not found by the loader".into();
    }
    // SAFETY: an open library and a terminated name.
    let function = unsafe { libc::dlsym(handle, c"getInferLibVersion".as_ptr()) };
    if function.is_null() {
        return "found, says no version".into();
    }
    // SAFETY: TensorRT's documented function of this name takes nothing and returns a 32-bit integer.
    let version = unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> i32>(function)() };
    format!("found, version {version}")
}
