//! The options that concern a pool.

use std::sync::Arc;
use std::time::Duration;

use crate::driver::HandleKind;
use crate::pool::rounding::RoundingRule;
use crate::support::config::ReleaseThreshold;
use crate::support::shared_budget::SharedBudget;

/// The options that concern a pool.
#[derive(Debug, Clone)]
pub struct Options {
    /// The rounding rule.
    pub rule: RoundingRule,
    /// The limit of reserved memory, in bytes; 0 means none.
    pub limit: u64,
    /// Bytes of the device's memory that stay free for others.
    pub headroom: u64,
    /// Bytes that the pool holds from its first use on.
    pub reserve: u64,
    /// What the pool holds together with other processes. Pinned memory has no such budget.
    pub shared_budget: Option<Arc<SharedBudget>>,
    /// How much free memory stays reserved.
    pub release_threshold: ReleaseThreshold,
    /// Idle memory goes back to the driver once it was free for so long; zero means never.
    pub decay: Duration,
    /// The longest wait for pending memory before a request is refused.
    pub wait: Duration,
    /// Each request is one allocation from the driver.
    pub passthrough: bool,
    /// Each block is followed by an unmapped page.
    pub guard: bool,
    /// The byte that fills new and freed memory.
    pub fill: Option<u8>,
    /// The memory is pinned host memory. The host may use a block as soon as it is returned, whatever the stream.
    pub pinned: bool,
    /// The properties of the physical memory.
    pub kind: HandleKind,
    /// Other devices that may access the memory; not the pool's own.
    pub peers: Vec<i32>,
    /// Whether each peer must be able to access the memory; otherwise only the peers that can get access.
    pub peers_must: bool,
}
