//! Pools over external memory: what that memory must be, which device it belongs to, and what holds without a driver.

use super::*;
use crate::driver::Settings;
use crate::pool::rounding::align_up;

/// The maximum size of external memory. It is more than any device has, and the tables of one pool are made for it.
const MAX: u64 = 4 << 40;

impl Allocator {
    /// Makes a pool over `[base, base + bytes)`, which the caller owns. The pool never touches it and never frees it. No
    /// driver is needed: with `driver=none`, and where `driver=auto` finds no device, a free says that all work that uses
    /// the block has completed.
    pub fn over(base: u64, bytes: u64, config: Config) -> Result<Arc<Allocator>> {
        config.bounds_hold()?;
        process::watch();
        process::usable()?;
        let settings = Settings {
            // The memory is there already.
            media: false,
            ..config.driver_settings()
        };
        let driver = Self::with_devices(driver::open_for_external(config.driver, &settings)?)?;
        let config = Self::with_rule_of_driver(config, &*driver);
        Self::over_with_driver(driver, base, bytes, config)
    }

    /// [`Allocator::over`] with a driver that is already open.
    #[doc(hidden)]
    pub fn over_with_driver(driver: Arc<dyn Driver>, base: u64, bytes: u64, config: Config) -> Result<Arc<Allocator>> {
        refuse_for_external(&config, &*driver)?;
        check(base, bytes, &rounding_rule(&config))?;
        let device = match config.device {
            Some(device) => device,
            None => driver.current_device()?.unwrap_or(0),
        };
        let count = driver.device_count()?;
        if device as usize >= DEVICES || device as u32 >= count {
            return Err(Error::InvalidArgument(format!("device {device} of {count}")));
        }
        Self::build(driver, config, MemorySource::External(base, bytes), Some(device))
    }

    /// The device whose pool serves a request: the one it names, else that of the external memory, else `streams_own`.
    #[inline]
    pub(super) fn device_for(&self, named: Option<i32>, streams_own: i32) -> i32 {
        named.or(self.external_device).unwrap_or(streams_own)
    }

    /// Refuses other devices than that of the external memory. One pool serves it for all: two would own each byte
    /// twice.
    pub(super) fn check_external_device(&self, device: i32) -> Result<()> {
        match self.external_device.filter(|own| *own != device) {
            Some(own) => Err(Error::InvalidArgument(format!(
                "device {device}: the memory is device {own}'s"
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a stream that cannot be queried, so that no memory counts as that stream's: without a driver, the handle
    /// may have come back as another stream.
    #[cold]
    pub(super) fn check_stream_is_known(&self, stream: Option<Stream>) -> Result<()> {
        if stream.is_none() || self.streams || self.driver.knows_work() {
            return Ok(());
        }
        Err(Error::Unsupported(
            "there is no driver to ask about streams: name one (driver=), promise that streams outlive the allocator \
             (streams=trusted), or allocate and free without a stream, once every use is over"
                .into(),
        ))
    }
}

/// The rounding rule that the options select.
pub(super) fn rounding_rule(config: &Config) -> RoundingRule {
    match config.rule {
        Rule::Cuda => RoundingRule::CUDA,
        Rule::Ascend | Rule::AscendHost => RoundingRule::ascend(config.pad, 64),
        Rule::AscendMedia => RoundingRule::ascend(config.pad, 128),
    }
}

/// Checks that the memory holds at least one block.
fn check(base: u64, bytes: u64, rule: &RoundingRule) -> Result<()> {
    let refused = |why: &str| {
        Err(Error::InvalidArgument(format!(
            "no memory at {base:#x}+{bytes:#x}: {why}"
        )))
    };
    if base == 0 || bytes == 0 {
        return refused("nothing is there");
    }
    let (Some(end), Some(start)) = (base.checked_add(bytes), align_up(base, rule.start)) else {
        return refused("it goes beyond the last address");
    };
    if bytes > MAX {
        return refused("more than 4 TiB");
    }
    let least = rule.stride(1).unwrap_or(u64::MAX);
    if end.saturating_sub(start) < least {
        return refused(&format!(
            "too small for a single byte, which takes {least} bytes from a multiple of {}",
            rule.start
        ));
    }
    Ok(())
}

/// Refuses options that have no meaning for memory of a fixed size, or without a driver.
fn refuse_for_external(config: &Config, driver: &dyn Driver) -> Result<()> {
    let (external, no_driver) = ("memory of the caller's", "no driver");
    let knows = driver.knows_work();
    let refused = [
        (config.passthrough, "passthrough=1", external),
        (config.guard, "guard=1", external),
        (config.headroom != Limit::None, "headroom", external),
        (config.share_budget.is_some(), "share_budget", external),
        (!knows && config.fill.is_some(), "fill", no_driver),
        (
            !knows && matches!(config.limit, Limit::Percent(_)),
            "a limit in percent",
            no_driver,
        ),
    ];
    match refused.iter().find(|(found, ..)| *found) {
        Some((_, option, with)) => Err(Error::Unsupported(format!("{option} with {with}"))),
        None => Ok(()),
    }
}
