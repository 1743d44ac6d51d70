//! The order checker: finds memory that is handed out before its earlier uses have ended.
//!
//! It uses vector clocks. A use of a byte by operation k of stream s precedes the next work of stream t if t is s, if
//! events or the legacy stream order (s, k) before that work, or if the host has *observed* that (s, k) completed.
//! Simulated time alone is not enough. Bytes are physical: two mappings of one handle are the same bytes. Work in a
//! capture precedes no work outside it until the graph and its executables are destroyed. A launch of an executable is
//! a use like any other.

use super::number_map::NumberMap;
use super::ranges::TrackedRanges;

#[derive(Debug, Clone, Copy)]
pub(super) struct CheckedBlock {
    pub(super) serial: u64,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) on: u64,
    pub(super) at: u64,
    pub(super) device: Option<u32>,
    /// Its last resize; 0: none.
    pub(super) resize: u64,
}

#[derive(Debug)]
pub(super) struct CheckerState {
    pub(super) on: bool,
    pub(super) ranges: TrackedRanges,
    pub(super) blocks: NumberMap<u64, CheckedBlock>,
    pub(super) serials: u64,
    pub(super) resizes: u64,
    pub(super) violations: Vec<String>,
}

impl CheckerState {
    pub(super) fn new(on: bool) -> CheckerState {
        CheckerState {
            on,
            ranges: TrackedRanges::default(),
            blocks: NumberMap::default(),
            serials: 0,
            resizes: 0,
            violations: Vec::new(),
        }
    }

    pub(super) fn violation(&mut self, what: String) {
        if self.violations.len() < 1000 {
            self.violations.push(what);
        }
    }
}
