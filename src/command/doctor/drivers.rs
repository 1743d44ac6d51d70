//! Drivers and devices. Each finding is the result of a call that the pool would make.

use trtalloc::driver::{Context, Descriptor, Driver, HandleKind, Result, Settings};

use super::findings::Findings;
use crate::command::table::size;

/// Reports a driver and its devices. Returns whether there is a device to allocate on.
pub fn driver(driver: &Descriptor, settings: &Settings, findings: &mut Findings) -> bool {
    let text = driver.kernel_module.and_then(|file| std::fs::read_to_string(file).ok());
    if let Some(text) = text {
        findings.found("kernel module", text.lines().next().unwrap_or_default());
    }
    match (driver.open)(settings) {
        Ok(open) => describe(driver, &*open, findings),
        Err(error) => {
            findings.found(driver.name, &format!("no: {error}"));
            findings.advice((driver.advice)(&error));
            false
        }
    }
}

/// Reports what an open driver supports. Returns whether there is a device to allocate on.
fn describe(descriptor: &Descriptor, driver: &dyn Driver, findings: &mut Findings) -> bool {
    let (name, advice) = (descriptor.name, descriptor.advice);
    let tools = driver.tools();
    let words = tools.map_or_else(|| name.to_owned(), |tools| tools.description());
    let count = match driver.device_count() {
        Ok(0) => {
            findings.found(name, &format!("{words}; no devices"));
            findings.advice("Is CUDA_VISIBLE_DEVICES set to something else?");
            return false;
        }
        Ok(count) => count,
        Err(error) => {
            findings.found(name, &format!("{words}; no devices: {error}"));
            findings.advice(advice(&error));
            return false;
        }
    };
    findings.found(name, &format!("yes: {words}; devices: {count}"));
    let mut usable = false;
    for index in 0..count as i32 {
        usable |= device_found(descriptor, driver, index, count as i32, findings);
    }
    let features = driver.features();
    let mut has = |what: &str, there: bool, yes: &str, no: &str| {
        findings.found(what, if there { yes } else { no });
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
    if let Some(text) = tools.and_then(|tools| tools.advice()) {
        findings.advice(text);
    }
    usable
}

/// Reports a device. Returns whether the driver answers for it.
fn device_found(descriptor: &Descriptor, driver: &dyn Driver, index: i32, count: i32, findings: &mut Findings) -> bool {
    let what = format!("  device {index}");
    let info = match driver.device_info(index) {
        Ok(info) => info,
        Err(error) => {
            findings.found(&what, &format!("no: {error}"));
            findings.advice((descriptor.advice)(&error));
            return false;
        }
    };
    let free = match driver.memory_info(index) {
        Ok((free, _)) => format!(", {} free", size(free)),
        Err(_) => String::new(),
    };
    findings.found(&what, &format!("{}, {}{free}", info.name, size(info.total)));
    let (smallest, recommended) = info.granularity;
    let trial = |kind, devices: &[i32]| in_context(driver, index, |_| map_one(driver, index, smallest, kind, devices));
    let plain = match smallest {
        0 => Err("the driver has none".to_owned()),
        _ => trial(HandleKind::default(), &[index]).map_err(|error| error.to_string()),
    };
    if let Err(reason) = plain {
        findings.found("    virtual memory", &format!("no: {reason}; backing=malloc is used"));
        findings.advice(
            "Memory then comes from the driver's malloc: growing a block may copy it, and scattered free memory cannot be \
             joined. A newer driver, or a virtual machine that passes the whole GPU through, supports it.",
        );
        return true;
    }
    findings.found(
        "    virtual memory",
        &format!(
            "works by trial, handles of {}, {} recommended",
            size(smallest),
            size(recommended)
        ),
    );
    if driver.tools().is_some_and(|tools| tools.shares_memory()) {
        sharing(driver, index, count, smallest, findings);
    }
    true
}

/// Reports what virtual memory allows other devices, other processes and network cards.
fn sharing(driver: &dyn Driver, index: i32, count: i32, bytes: u64, findings: &mut Findings) {
    let trial = |kind, devices: &[i32]| in_context(driver, index, |_| map_one(driver, index, bytes, kind, devices));
    let others: Vec<i32> = (0..count).filter(|other| *other != index).collect();
    if others.is_empty() {
        findings.found("    other devices", "none here");
    } else {
        let (yes, no): (Vec<_>, Vec<_>) = others
            .iter()
            .partition(|other| trial(HandleKind::default(), &[index, **other]).is_ok());
        findings.found(
            "    other devices",
            &format!("can get access: {}; cannot: {}", list(&yes), list(&no)),
        );
        if !yes.is_empty() {
            findings.advice(
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
            findings.found(
                "    other processes",
                "no: cudaIpcGetMemHandle does not take this memory, and it cannot be exported",
            );
            findings.advice("Where memory is passed to another process: set backing=malloc.");
        }
        false => {
            findings.found(
                "    other processes",
                &format!(
                    "cudaIpcGetMemHandle does not take this memory; works by trial: {}",
                    works.join(", ")
                ),
            );
            findings.advice("Only where memory is passed to another process: set one of these, or backing=malloc.");
        }
    }
    let rdma = HandleKind {
        rdma: true,
        ..HandleKind::default()
    };
    match trial(rdma, &[index]) {
        Ok(()) => {
            findings.found("    RDMA", "works by trial with rdma=1");
            findings.advice("Only where a network or storage card reads this memory: set rdma=1.");
        }
        Err(error) => {
            findings.found("    RDMA", &format!("no: {error}"));
            findings.advice("Where a network or storage card reads this memory: set backing=malloc.");
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
