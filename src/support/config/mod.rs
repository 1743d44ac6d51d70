//! Options: `key=value,key=value`, and the environment's `TRTALLOC_KEY` for keys that the options do not name.
//!
//! Keys and values are case-insensitive except for paths and the name of a budget. Blanks around them and empty items are ignored. If a key is
//! given twice, the last value counts. A value cannot contain a comma. Sizes are bytes, or have a unit: K, M, G, T or
//! KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB are powers of 1000. Lists (`peers=0:2:3`) are joined by
//! colons, since commas separate the pairs.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::driver::sim::{Latencies, SimConfig};
use crate::driver::{DriverChoice, Settings};
use crate::support::error::{Error, Result};
use crate::support::process;
use crate::support::shared_budget::ShareBudget;

mod environment;
pub mod history;
mod value;

pub use environment::MemoryFrom;
#[doc(hidden)]
pub use environment::{NAMED, nearest, nearest_option, unknown_variables, variable_of};
#[doc(hidden)]
pub use value::{MAX_SIM_MEMORY, SNAPSHOT_SUFFIXES};

/// How memory is obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backing {
    /// Virtual memory where a trial of one page succeeds, else malloc.
    #[default]
    Auto,
    /// Virtual memory.
    Vmm,
    /// cuMemAlloc segments.
    Malloc,
}

/// An amount of memory: a limit on reserved memory, what stays free for others, or what the pool holds from its first use
/// on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Limit {
    /// No limit.
    #[default]
    None,
    /// Bytes.
    Bytes(u64),
    /// Percent of the device's total memory.
    Percent(f64),
}

impl Limit {
    /// The bytes of a device with `total` bytes of memory; 0 for none, and for a percentage at least 1.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Limit::None => 0,
            Limit::Bytes(bytes) => bytes,
            Limit::Percent(percent) => ((total as f64 * percent / 100.0) as u64).max(1),
        }
    }
}

/// What stays reserved when memory becomes free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReleaseThreshold {
    /// A free of 32 MiB or more without a stream is released to the driver after it has completed; the rest stays.
    #[default]
    Auto,
    /// Everything stays.
    All,
    /// This many bytes stay.
    Bytes(u64),
}

/// The devices, other than the pool's own, that may access its memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Peers {
    /// None.
    #[default]
    None,
    /// All devices that can.
    Auto,
    /// These devices.
    List(Vec<i32>),
}

/// How handles may be exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Share {
    /// They cannot be exported.
    #[default]
    None,
    /// POSIX file descriptor.
    Fd,
    /// Fabric handle.
    Fabric,
}

/// Device or pinned host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Device memory.
    #[default]
    Device,
    /// Pinned host memory.
    Pinned,
}

/// The rule by which sizes and alignments are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// CUDA: {1, 0, 512}.
    #[default]
    Cuda,
    /// Ascend device memory.
    Ascend,
    /// Ascend media memory.
    AscendMedia,
    /// Ascend pinned host memory.
    AscendHost,
}

/// Which messages are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// Errors.
    Error,
    /// Warnings too.
    #[default]
    Warn,
    /// Decisions too.
    Info,
    /// Slow paths too.
    Debug,
    /// Everything.
    Trace,
}

/// All options, with their defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `driver`: which driver to open.
    pub driver: DriverChoice,
    /// `device`: `None` is the current one.
    pub device: Option<i32>,
    /// `limit` on the memory that each pool reserves.
    pub limit: Limit,
    /// `headroom`: how much of the device's memory stays free for others.
    pub headroom: Limit,
    /// `reserve`: how much memory each pool holds from its first use on.
    pub reserve: Limit,
    /// `share_budget`: the most that the processes with one name hold of a device together.
    pub share_budget: Option<ShareBudget>,
    /// `backing`: how memory is obtained from the driver.
    pub backing: Backing,
    /// `release_threshold`: how much memory stays reserved when it becomes free.
    pub release_threshold: ReleaseThreshold,
    /// `decay_ms`: after how long, in milliseconds, free memory goes back to the driver; 0 means never.
    pub decay_ms: u64,
    /// `streams=trusted`: streams outlive the allocator and never capture.
    pub streams_trusted: bool,
    /// `captures`: the process captures streams, maybe where the allocator does not see it.
    pub captures: bool,
    /// `peers`: the other devices that may access the memory.
    pub peers: Peers,
    /// `share`: how handles may be exported to other processes.
    pub share: Share,
    /// `rdma`: whether network and storage cards may access the memory.
    pub rdma: bool,
    /// `kind` of memory: of the device, or pinned host memory.
    pub kind: Kind,
    /// `rule` by which sizes and alignments are rounded. On an Ascend device, `cuda` means `ascend`.
    pub rule: Rule,
    /// `pad`: bytes after each Ascend segment.
    pub pad: u64,
    /// `wait_ms`: the maximum wait, in milliseconds, before a request is refused.
    pub wait_ms: u64,
    /// `retry_ms`: how long, in milliseconds, a request that cannot be met waits for other threads to free blocks.
    pub retry_ms: u64,
    /// `history`, `context`, `stacks`, `max_entries`, as text. See [`Config::history`].
    pub record: Vec<(String, String)>,
    /// `snapshot_on_oom`: where a snapshot is written at the first refusal. See [`Config::snapshot_path`].
    pub snapshot_on_oom: Option<PathBuf>,
    /// `snapshot_at_exit`: where one is written at the end.
    pub snapshot_at_exit: Option<PathBuf>,
    /// `stats`: a summary on stderr at exit.
    pub stats: bool,
    /// `control`: `trtalloc ctl` may look into this process and steer it.
    pub control: bool,
    /// `log`: one level for the process. The last one given counts.
    pub log: LogLevel,
    /// `passthrough`: every request is an allocation from the driver, without a pool.
    pub passthrough: bool,
    /// `guard`: an unmapped page follows each block, so that an access beyond the block faults.
    pub guard: bool,
    /// `fill`: the byte with which new memory is filled, and memory that is freed on a stream.
    pub fill: Option<u8>,
    /// `inject`: the interposed names attach the allocator, also where the library is not preloaded.
    pub inject: bool,
    /// `disable`: the interposed names never attach the allocator.
    pub disable: bool,
    /// `sim_memory`: bytes of memory of each simulated device.
    pub sim_memory: u64,
    /// `sim_devices`: how many devices are simulated.
    pub sim_devices: u32,
    /// `sim_driver`: the simulated driver's version, 1000 × major + 10 × minor.
    pub sim_driver: u32,
    /// `sim_shared`: the file by which processes share the memory of their simulated devices.
    pub sim_shared: Option<PathBuf>,
    /// `sim_latency`: how long the calls of the simulated driver take.
    pub sim_latency: Latencies,
    /// `sim_integrated`: whether the simulated GPU shares the host's memory, and what the host's programs use of it.
    pub sim_integrated: Option<u64>,
    /// Limits from the environment that could not be read, with the reason: see [`Config::bounds_hold`].
    pub unread_bounds: Vec<(&'static str, String)>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            driver: DriverChoice::default(),
            device: None,
            limit: Limit::default(),
            headroom: Limit::default(),
            reserve: Limit::default(),
            share_budget: None,
            backing: Backing::default(),
            release_threshold: ReleaseThreshold::default(),
            decay_ms: 10_000,
            streams_trusted: false,
            captures: false,
            peers: Peers::default(),
            share: Share::default(),
            rdma: false,
            kind: Kind::default(),
            rule: Rule::default(),
            pad: 32,
            wait_ms: 2000,
            retry_ms: 0,
            record: Vec::new(),
            snapshot_on_oom: None,
            snapshot_at_exit: None,
            stats: false,
            control: false,
            log: LogLevel::default(),
            passthrough: false,
            guard: false,
            fill: None,
            inject: false,
            disable: false,
            sim_memory: 24 << 30,
            sim_devices: 1,
            sim_driver: 12_090,
            sim_shared: None,
            sim_latency: Latencies::Short,
            sim_integrated: None,
            unread_bounds: Vec::new(),
        }
    }
}

/// All keys, in the order of the documentation.
pub const KEYS: &[&str] = &[
    "driver",
    "device",
    "limit",
    "headroom",
    "reserve",
    "share_budget",
    "backing",
    "release_threshold",
    "decay_ms",
    "streams",
    "captures",
    "peers",
    "share",
    "rdma",
    "kind",
    "rule",
    "pad",
    "wait_ms",
    "retry_ms",
    "history",
    "context",
    "stacks",
    "max_entries",
    "snapshot_on_oom",
    "snapshot_at_exit",
    "stats",
    "control",
    "log",
    "passthrough",
    "guard",
    "fill",
    "inject",
    "disable",
    "sim_memory",
    "sim_devices",
    "sim_driver",
    "sim_latency",
    "sim_integrated",
    "sim_shared",
];

impl Config {
    /// Parses `key=value,key=value`; the environment is not read. The error names the first item that cannot be read.
    pub fn parse(options: &str) -> Result<Config> {
        let mut config = Config::default();
        config.set_all(options)?;
        Ok(config)
    }

    /// Whether the options name `key`.
    #[doc(hidden)]
    pub fn names(options: &str, key: &str) -> bool {
        let keys = options.split(',').filter_map(|item| Some(item.split_once('=')?.0));
        keys.map(str::trim).any(|named| named.eq_ignore_ascii_case(key))
    }

    /// Sets the options of `key=value,key=value`. The error names the first item that cannot be read.
    fn set_all(&mut self, options: &str) -> Result<()> {
        for item in options.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let Some((key, value)) = item.split_once('=') else {
                return Err(Error::InvalidArgument(format!("option `{item}` is not key=value")));
            };
            self.set(key, value)?;
        }
        Ok(())
    }

    /// Sets one option; on an error nothing changes.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let key = key.trim().to_ascii_lowercase();
        let value = value.trim();
        if !KEYS.contains(&key.as_str()) {
            let nearest = nearest(&key, KEYS);
            return Err(Error::InvalidArgument(format!(
                "unknown option `{key}`: the nearest is `{nearest}`"
            )));
        }
        self.assign(&key, value).ok_or_else(|| {
            Error::InvalidArgument(format!(
                "option `{key}`: cannot read `{value}`{}",
                value::expected(&key)
            ))
        })?;
        self.unread_bounds.retain(|(unread, _)| *unread != key);
        Ok(())
    }

    /// Assigns the value to a key of [`KEYS`]; `None` where the value is invalid.
    fn assign(&mut self, key: &str, text: &str) -> Option<()> {
        let lower = text.to_ascii_lowercase();
        let word = lower.as_str();
        match key {
            "driver" => self.driver = DriverChoice::from_name(word)?,
            "device" => {
                self.device = match word {
                    "-1" | "current" => None,
                    _ => Some(value::device(word)?),
                }
            }
            "limit" => self.limit = value::limit(word)?,
            "headroom" => self.headroom = value::limit(word)?,
            "reserve" => self.reserve = value::limit(word)?,
            "share_budget" => self.share_budget = value::share_budget(text)?,
            "backing" => {
                self.backing = match word {
                    "auto" => Backing::Auto,
                    "vmm" => Backing::Vmm,
                    "malloc" => Backing::Malloc,
                    _ => return None,
                }
            }
            "release_threshold" => {
                self.release_threshold = match word {
                    "auto" => ReleaseThreshold::Auto,
                    "all" => ReleaseThreshold::All,
                    _ => ReleaseThreshold::Bytes(value::size(word)?),
                }
            }
            "decay_ms" => self.decay_ms = value::number(word)?,
            "streams" => {
                self.streams_trusted = match word {
                    "checked" => false,
                    "trusted" => true,
                    _ => return None,
                }
            }
            "captures" => self.captures = value::boolean(word)?,
            "peers" => self.peers = value::peers(word)?,
            "share" => {
                self.share = match word {
                    "none" => Share::None,
                    "fd" => Share::Fd,
                    "fabric" => Share::Fabric,
                    _ => return None,
                }
            }
            "rdma" => self.rdma = value::boolean(word)?,
            "kind" => {
                self.kind = match word {
                    "device" => Kind::Device,
                    "pinned" => Kind::Pinned,
                    _ => return None,
                }
            }
            "rule" => {
                self.rule = match word {
                    "cuda" => Rule::Cuda,
                    "ascend" => Rule::Ascend,
                    "ascend-media" => Rule::AscendMedia,
                    "ascend-host" => Rule::AscendHost,
                    _ => return None,
                }
            }
            "pad" => self.pad = value::number(word).filter(|pad| [0, 16, 32].contains(pad))?,
            "wait_ms" => self.wait_ms = value::number(word)?,
            "retry_ms" => self.retry_ms = value::number(word)?,
            "history" => self.set_record(key, value::one_of(word, &["off", "state", "all"])?),
            "context" => self.set_record(key, value::one_of(word, &["none", "state", "alloc", "all"])?),
            "stacks" => self.set_record(key, value::one_of(word, &["none", "native", "python", "all"])?),
            "max_entries" => self.set_record(key, value::entries(word).map(|_| word)?),
            "snapshot_on_oom" | "snapshot_at_exit" => self.set_path(key, OsStr::new(text))?,
            "stats" => self.stats = value::boolean(word)?,
            "control" => self.control = value::boolean(word)?,
            "log" => self.log = value::log_level(word)?,
            "passthrough" => self.passthrough = value::boolean(word)?,
            "guard" => self.guard = value::boolean(word)?,
            "fill" => self.fill = value::fill(word)?,
            "inject" => self.inject = value::boolean(word)?,
            "disable" => self.disable = value::boolean(word)?,
            "sim_memory" => {
                self.sim_memory = value::size(word).filter(|bytes| (1..=value::MAX_SIM_MEMORY).contains(bytes))?
            }
            "sim_devices" => {
                self.sim_devices = value::number(word)
                    .and_then(|n| u32::try_from(n).ok())
                    .filter(|n| *n > 0)?
            }
            "sim_driver" => self.sim_driver = value::driver_version(word)?,
            "sim_latency" => {
                self.sim_latency = match word {
                    "short" => Latencies::Short,
                    "a100" => Latencies::A100,
                    _ => return None,
                }
            }
            "sim_integrated" => self.sim_integrated = value::integrated(word)?,
            "sim_shared" => self.sim_shared = Some(Some(text).filter(|path| path.starts_with('/'))?.into()),
            _ => return None,
        }
        Some(())
    }

    /// What opening a driver depends on, for pools of the device's memory.
    #[doc(hidden)]
    pub fn driver_settings(&self) -> Settings {
        Settings {
            // Pinned memory does not come from the library for media processing.
            media: self.rule == Rule::AscendMedia && self.kind == Kind::Device,
            sim: SimConfig {
                devices: self.sim_devices,
                memory: self.sim_memory,
                version: self.sim_driver,
                latencies: self.sim_latency,
                shared: self.sim_shared.clone(),
                integrated: self.sim_integrated,
                ..SimConfig::default()
            },
            usable: || process::usable().is_ok(),
        }
    }

    /// The memory of a device that the process uses already, before the driver is opened: see
    /// [`Descriptor::memory_in_use`](crate::driver::Descriptor::memory_in_use).
    #[doc(hidden)]
    pub fn memory_in_use(&self, device: Option<i32>) -> Option<u64> {
        process::usable().ok()?;
        (self.driver.descriptor().memory_in_use)(&self.driver_settings(), device, self.device.unwrap_or(0))
    }

    /// The options of the recording that begins with the allocator.
    pub fn history(&self) -> Result<history::RecordingOptions> {
        let mut options = history::RecordingOptions::default();
        for (key, value) in &self.record {
            options.set(key, value)?;
        }
        Ok(options)
    }

    /// The path of `snapshot_on_oom` or `snapshot_at_exit`, for this process: `%p` in it is the process id.
    pub fn snapshot_path(&self, key: &str) -> Option<PathBuf> {
        let path = match key {
            "snapshot_on_oom" => self.snapshot_on_oom.as_ref(),
            _ => self.snapshot_at_exit.as_ref(),
        };
        Some(value::with_process(path?, std::process::id()))
    }

    /// Sets an option whose value is a path of any bytes; `None` where it is no such option, or the path is invalid.
    fn set_path(&mut self, key: &str, path: &OsStr) -> Option<()> {
        let option = match key {
            "snapshot_on_oom" => &mut self.snapshot_on_oom,
            "snapshot_at_exit" => &mut self.snapshot_at_exit,
            _ => return None,
        };
        *option = Some(value::snapshot(path)?.to_owned());
        Some(())
    }

    /// Stores a recording option as text; replaces an earlier value.
    fn set_record(&mut self, key: &str, text: &str) {
        self.record.retain(|(earlier, _)| earlier != key);
        self.record.push((key.to_owned(), text.to_owned()));
    }
}

#[cfg(test)]
mod tests;
