//! Creates allocators, and the pool of a device at its first use.

use super::*;
use crate::driver::{Failure, RelaxedMode};

impl Allocator {
    /// Reads `options`, and the environment for keys that these do not name, and opens the driver.
    pub fn create(options: &str) -> Result<Arc<Allocator>> {
        Self::from_config(Config::over_environment(options, MemoryFrom::Driver)?)
    }

    /// Opens the driver that `config` names.
    pub fn from_config(config: Config) -> Result<Arc<Allocator>> {
        config.bounds_hold()?;
        process::watch();
        process::usable()?;
        let chosen = config.driver.descriptor();
        if chosen.external_only {
            return Err(Error::InvalidArgument(format!(
                "option `driver`: `{}` is for memory that the caller brings (trtalloc_create_from)",
                chosen.name
            )));
        }
        let driver = Self::with_devices(driver::open(config.driver, &config.driver_settings())?)?;
        let config = Self::with_rule_of_driver(config, &*driver);
        Self::with_driver(driver, config)
    }

    /// Refuses a driver that finds no device.
    pub(super) fn with_devices(driver: Arc<dyn Driver>) -> Result<Arc<dyn Driver>> {
        match driver.device_count()? {
            0 => Err(Error::Unsupported(format!("driver={} knows no device", driver.name()))),
            _ => Ok(driver),
        }
    }

    /// The rounding rule of the device if the options request no other.
    pub(super) fn with_rule_of_driver(config: Config, driver: &dyn Driver) -> Config {
        match config.rule {
            Rule::Cuda if driver.spaces_blocks() => Config {
                rule: Rule::Ascend,
                ..config
            },
            _ => config,
        }
    }

    /// Makes an allocator over a driver that is already open, with exactly the options of `config`.
    #[doc(hidden)]
    pub fn with_driver(driver: Arc<dyn Driver>, config: Config) -> Result<Arc<Allocator>> {
        refuse_peers_of_malloc(&config)?;
        let memory = MemorySource::Driver(match config.kind {
            Kind::Device => config.backing,
            // Pinned memory comes from a function of the driver that selects the address.
            Kind::Pinned => Backing::Malloc,
        });
        Self::build(driver, config, memory, None)
    }

    /// `given` is the device of external memory.
    pub(super) fn build(
        driver: Arc<dyn Driver>,
        config: Config,
        memory: MemorySource,
        external_device: Option<i32>,
    ) -> Result<Arc<Allocator>> {
        config.bounds_hold()?;
        process::watch();
        crate::support::nvtx::attach();
        let pinned = config.kind == Kind::Pinned;
        if pinned {
            refuse_for_pinned(&config)?;
        }
        // Without knowledge of work, host memory would never be safe to write to.
        let trusted = config.streams_trusted && (driver.knows_work() || !pinned);
        if config.captures {
            driver.note_capture();
        }
        let recorder = Arc::new(Recorder::default());
        recorder.set(config.history()?)?;
        let allocator = Arc::new_cyclic(|this| Allocator {
            this: this.clone(),
            streams: driver.features().stream_ids || trusted,
            plain: !config.passthrough && !config.guard && config.fill.is_none() && !pinned,
            driver,
            rule: external::rounding_rule(&config),
            config,
            memory,
            external_device,
            caches: Arc::new(StreamCaches::default()),
            pools: (0..DEVICES).map(|_| OnceBox::new()).collect(),
            making: Mutex::new(Unbuilt::default()),
            closed: AtomicBool::new(false),
            recorder,
            #[cfg(not(loom))]
            looks: Arc::new(sharing::Looks(this.clone())),
            #[cfg(not(loom))]
            closing: Arc::new(closing::Closing::new(this.clone())),
            out_of_memory: out_of_memory::OutOfMemory::default(),
            write_at_exit: false.into(),
        });
        output_at_exit::register(&allocator);
        #[cfg(not(loom))]
        commands::register(&allocator);
        Ok(allocator)
    }

    /// The pool of a device; the first call makes it.
    pub(super) fn pool(&self, device: i32) -> Result<&Pool> {
        if let Some(pool) = self.existing_pool(device) {
            return Ok(pool);
        }
        // A capture may run, and the driver may count any call below among those that are unsafe then.
        let _relaxed = RelaxedMode::begin(&*self.driver);
        self.check_device(device)?;
        self.check_external_device(device)?;
        let mut unbuilt = self.making.lock();
        unbuilt.retry();
        let slot = self
            .pools
            .get(device as usize)
            .ok_or_else(|| Error::InvalidArgument(format!("device {device}")))?;
        slot.get_or_try_init(|| {
            let options = self.options(device)?;
            let pool = Box::new(
                Pool::new(
                    self.driver.clone(),
                    device,
                    self.memory,
                    options,
                    self.caches.clone(),
                    self.recorder.clone(),
                    &mut unbuilt,
                )
                .map_err(exhausted)?,
            );
            #[cfg(not(loom))]
            self.begin_help(&pool);
            #[cfg(not(loom))]
            self.begin_looking(&pool);
            Ok(pool)
        })
    }

    /// The initial limit of a device's pool; 0: none.
    pub(super) fn first_limit(&self, device: i32) -> Result<u64> {
        self.bytes(self.config.limit, device)
    }

    /// The headroom of a pool that does not exist yet.
    pub(super) fn first_headroom(&self, device: i32) -> Result<u64> {
        self.bytes(self.config.headroom, device)
    }

    /// The bytes that an amount means on a device; 0 for none.
    fn bytes(&self, amount: Limit, device: i32) -> Result<u64> {
        Ok(match amount {
            Limit::Percent(_) => amount.of(self.driver.device_info(device)?.total),
            amount => amount.of(0),
        })
    }

    fn options(&self, device: i32) -> Result<Options> {
        let config = &self.config;
        let mut peers = match &config.peers {
            Peers::None => Vec::new(),
            Peers::Auto => (0..self.driver.device_count()? as i32).collect(),
            Peers::List(list) => list.clone(),
        };
        peers.retain(|peer| *peer != device);
        Ok(Options {
            rule: self.rule,
            limit: self.first_limit(device)?,
            headroom: self.first_headroom(device)?,
            reserve: self.bytes(config.reserve, device)?,
            #[cfg(not(loom))]
            shared_budget: self.open_budget(device)?,
            #[cfg(loom)]
            shared_budget: None,
            release_threshold: config.release_threshold,
            decay: std::time::Duration::from_millis(config.decay_ms),
            wait: std::time::Duration::from_millis(config.wait_ms),
            passthrough: config.passthrough,
            guard: config.guard,
            fill: config.fill,
            pinned: config.kind == Kind::Pinned,
            kind: HandleKind {
                share_fd: config.share == Share::Fd,
                share_fabric: config.share == Share::Fabric,
                rdma: config.rdma,
            },
            peers,
            peers_must: matches!(config.peers, Peers::List(_)),
        })
    }
}

/// Memory that the driver lacks for a pool itself, or for its context, is as any memory that it lacks.
fn exhausted(error: Error) -> Error {
    match error {
        Error::Driver(cause) if cause.failure == Failure::OutOfMemory => Error::OutOfMemory(cause.to_string()),
        error => error,
    }
}

/// Refuses peers where memory comes from the driver's malloc, which gives no other device access.
fn refuse_peers_of_malloc(config: &Config) -> Result<()> {
    let why = match (&config.peers, config.backing, config.passthrough) {
        (Peers::List(_), _, true) => "passthrough=1",
        (Peers::List(_), Backing::Malloc, _) => "backing=malloc",
        _ => return Ok(()),
    };
    Err(Error::Unsupported(format!(
        "peers with {why}: the program itself gives devices access to such memory (cuCtxEnablePeerAccess)"
    )))
}

/// Refuses options that have no meaning for host memory.
fn refuse_for_pinned(config: &Config) -> Result<()> {
    let refused = [
        (config.backing == Backing::Vmm, "backing=vmm"),
        (config.guard, "guard=1"),
        (config.fill.is_some(), "fill"),
        (config.peers != Peers::None, "peers"),
        (config.share != Share::None, "share"),
        (config.rdma, "rdma=1"),
        (config.headroom != Limit::None, "headroom"),
        (config.share_budget.is_some(), "share_budget"),
        (
            matches!(config.reserve, Limit::Percent(_)),
            "a reserve in percent, which is of the device's memory,",
        ),
        (
            matches!(config.limit, Limit::Percent(_)),
            "a limit in percent, which is of the device's memory,",
        ),
    ];
    match refused.iter().find(|(set, _)| *set) {
        Some((_, option)) => Err(Error::Unsupported(format!("{option} with kind=pinned"))),
        None => Ok(()),
    }
}
