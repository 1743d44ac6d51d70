//! Drivers and devices. Each finding is the result of a call that the pool would make.

use trtalloc::config::{Config, DriverChoice};
use trtalloc::driver::ascend::AscendDriver;
use trtalloc::driver::cuda::CudaDriver;
use trtalloc::driver::{Context, Driver, DriverError, Failure, HandleKind, Result};

use super::report::Report;
use crate::command::device;
use crate::command::table::size;

/// Reports CUDA's driver and its devices. Returns whether there is a device to allocate on.
pub fn cuda(report: &mut Report) -> bool {
    if let Ok(text) = std::fs::read_to_string("/proc/driver/nvidia/version") {
        report.found("kernel module", text.lines().next().unwrap_or_default());
    }
    match CudaDriver::open() {
        Ok(driver) => {
            let version = driver.version();
            let name = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
            let usable = describe("cuda", &name, &*driver, report);
            let features = driver.features();
            if !features.context_events || !features.stream_ids {
                report.advice(
                    "A driver of CUDA 12.5 or later need not wait where memory is freed without a stream, and recognises \
                     a new stream at the handle of a destroyed one.",
                );
            }
            usable
        }
        Err(error) => {
            report.found("cuda", &format!("no: {error}"));
            report.advice(advice(&error));
            false
        }
    }
}

/// Reports the simulated device.
pub fn sim(report: &mut Report) -> bool {
    let simulated = device::open(&Config {
        driver: DriverChoice::Sim,
        ..Config::from_environment()
    });
    match simulated {
        Ok(opened) => describe("sim", "simulated, for trials without a GPU", &*opened.driver, report),
        Err(error) => {
            report.found("sim", &format!("no: {error}"));
            false
        }
    }
}

/// Reports AscendCL and its devices.
pub fn ascend(report: &mut Report) -> bool {
    match AscendDriver::open(false) {
        Ok(driver) => describe("ascend", "AscendCL; never run on such a device", &*driver, report),
        Err(error) => {
            report.found("ascend", &format!("no: {error}"));
            report.advice(match error.failure {
                Failure::Missing if error.call == "libascendcl.so" => {
                    "Only where there is an Ascend device: run CANN's set_env.sh, so that its libraries are found."
                }
                Failure::Missing => "CANN is too old for this driver, which needs that function.",
                _ => "Ask npu-smi info what is wrong.",
            });
            false
        }
    }
}

/// Advice for a driver that does not open.
fn advice(error: &DriverError) -> &'static str {
    match (error.failure, error.call, error.code) {
        (Failure::Missing, "libcuda.so.1", _) => {
            "Install NVIDIA's driver. In a container, start it with the GPU: docker run --gpus all. Until then driver=sim \
             takes the simulated device."
        }
        (Failure::Missing, ..) => "The driver is too old: install one of CUDA 11 or later.",
        (_, _, 34) => "This libcuda.so.1 is the toolkit's stub: take its folder out of LD_LIBRARY_PATH.",
        (_, _, 100) => {
            "The driver sees no GPU: is CUDA_VISIBLE_DEVICES set to something else, or the container started without --gpus?"
        }
        (_, _, 802) => "The system is not ready: is nvidia-fabricmanager running?",
        (_, _, 803 | 804) => "The kernel module and libcuda.so.1 are of different versions: reboot, or reinstall them.",
        _ => "Ask nvidia-smi, and the kernel's log (dmesg | grep NVRM), what is wrong.",
    }
}

/// Reports what an open driver supports. Returns whether there is a device to allocate on.
fn describe(name: &str, words: &str, driver: &dyn Driver, report: &mut Report) -> bool {
    let count = match driver.device_count() {
        Ok(0) => {
            report.found(name, &format!("{words}; no devices"));
            report.advice("Is CUDA_VISIBLE_DEVICES set to something else?");
            return false;
        }
        Ok(count) => count,
        Err(error) => {
            report.found(name, &format!("{words}; no devices: {error}"));
            report.advice(advice(&error));
            return false;
        }
    };
    report.found(name, &format!("yes: {words}; devices: {count}"));
    let mut usable = false;
    for index in 0..count as i32 {
        usable |= device_found(driver, index, count as i32, report);
    }
    let features = driver.features();
    let mut has = |what: &str, there: bool, yes: &str, no: &str| {
        report.found(what, if there { yes } else { no });
    };
    has(
        "  stream ids",
        features.stream_ids,
        "yes: a new stream at the handle of a destroyed one is recognised",
        "no: frees without a stream, or on a stream that may be destroyed, need a wait",
    );
    has(
        "  context events",
        features.context_events,
        "yes: frees without a stream complete in the background",
        "no: frees without a stream need a wait when their memory is needed",
    );
    has(
        "  graph owners",
        features.user_objects,
        "yes: memory of a CUDA graph is reused once the graph is destroyed",
        "no: memory of a CUDA graph is never reused by others",
    );
    usable
}

/// Reports a device. Returns whether the driver answers for it.
fn device_found(driver: &dyn Driver, index: i32, count: i32, report: &mut Report) -> bool {
    let what = format!("  device {index}");
    let info = match driver.device_info(index) {
        Ok(info) => info,
        Err(error) => {
            report.found(&what, &format!("no: {error}"));
            report.advice(advice(&error));
            return false;
        }
    };
    let free = match driver.memory_info(index) {
        Ok((free, _)) => format!(", {} free", size(free)),
        Err(_) => String::new(),
    };
    report.found(&what, &format!("{}, {}{free}", info.name, size(info.total)));
    let (smallest, recommended) = info.granularity;
    let trial = |kind, devices: &[i32]| in_context(driver, index, |_| map_one(driver, index, smallest, kind, devices));
    let plain = match smallest {
        0 => Err("the driver has none".to_owned()),
        _ => trial(HandleKind::default(), &[index]).map_err(|error| error.to_string()),
    };
    if let Err(reason) = plain {
        report.found("    virtual memory", &format!("no: {reason}; backing=malloc is used"));
        report.advice(
            "Memory then comes from the driver's malloc: growing a block may copy it, and scattered free memory cannot be \
             joined. A newer driver, or a virtual machine that passes the whole GPU through, supports it.",
        );
        return true;
    }
    report.found(
        "    virtual memory",
        &format!(
            "works by trial, handles of {}, {} recommended",
            size(smallest),
            size(recommended)
        ),
    );
    // The rest concerns other devices, processes and cards, which only CUDA offers.
    if driver.name() == "cuda" {
        sharing(driver, index, count, smallest, report);
    }
    true
}

/// Reports what virtual memory allows other devices, other processes and network cards.
fn sharing(driver: &dyn Driver, index: i32, count: i32, bytes: u64, report: &mut Report) {
    let trial = |kind, devices: &[i32]| in_context(driver, index, |_| map_one(driver, index, bytes, kind, devices));
    let others: Vec<i32> = (0..count).filter(|other| *other != index).collect();
    if others.is_empty() {
        report.found("    other devices", "none here");
    } else {
        let (yes, no): (Vec<_>, Vec<_>) = others
            .iter()
            .partition(|other| trial(HandleKind::default(), &[index, **other]).is_ok());
        report.found(
            "    other devices",
            &format!("can get access: {}; cannot: {}", list(&yes), list(&no)),
        );
        if !yes.is_empty() {
            report.advice(
                "cudaDeviceEnablePeerAccess has no effect on this memory: set peers=auto, or name the devices.",
            );
        }
    }
    let kinds = [
        (
            "share=fd",
            HandleKind {
                share_fd: true,
                ..HandleKind::default()
            },
        ),
        (
            "share=fabric",
            HandleKind {
                share_fabric: true,
                ..HandleKind::default()
            },
        ),
    ];
    let works: Vec<&str> = kinds
        .iter()
        .filter(|(_, kind)| trial(*kind, &[index]).is_ok())
        .map(|(name, _)| *name)
        .collect();
    match works.is_empty() {
        true => {
            report.found(
                "    other processes",
                "no: cudaIpcGetMemHandle does not take this memory, and it cannot be exported",
            );
            report.advice("Where memory is passed to another process: set backing=malloc.");
        }
        false => {
            report.found(
                "    other processes",
                &format!(
                    "cudaIpcGetMemHandle does not take this memory; works by trial: {}",
                    works.join(", ")
                ),
            );
            report.advice("Only where memory is passed to another process: set one of these, or backing=malloc.");
        }
    }
    let rdma = HandleKind {
        rdma: true,
        ..HandleKind::default()
    };
    match trial(rdma, &[index]) {
        Ok(()) => {
            report.found("    RDMA", "works by trial with rdma=1");
            report.advice("Only where a network or storage card reads this memory: set rdma=1.");
        }
        Err(error) => {
            report.found("    RDMA", &format!("no: {error}"));
            report.advice("Where a network or storage card reads this memory: set backing=malloc.");
        }
    }
}

fn list(devices: &[&i32]) -> String {
    match devices.is_empty() {
        true => "none".to_owned(),
        false => devices
            .iter()
            .map(|device| device.to_string())
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Runs `body` with the device's primary context current.
fn in_context(driver: &dyn Driver, device: i32, body: impl FnOnce(Context) -> Result<()>) -> Result<()> {
    let context = driver.primary_retain(device)?;
    let result = driver.context_push(context).and_then(|()| {
        let result = body(context);
        driver.context_pop().and(result)
    });
    driver.primary_release(device).and(result)
}

/// Maps one handle with access for `devices`, then unmaps and releases it.
fn map_one(driver: &dyn Driver, device: i32, bytes: u64, kind: HandleKind, devices: &[i32]) -> Result<()> {
    let address = driver.reserve(bytes, 0)?;
    let result = driver.create(device, bytes, kind).and_then(|handle| {
        let result = driver.map(address, bytes, handle).and_then(|()| {
            let result = driver.set_access(address, bytes, devices);
            driver.unmap(address, bytes).and(result)
        });
        driver.release(handle).and(result)
    });
    driver.unreserve(address, bytes).and(result)
}
