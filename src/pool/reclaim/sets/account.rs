//! How many bytes wait, and for what.

use super::Wait;

/// Bytes of the pieces of all sets, by what they wait for. Every bound on what waits reads it.
///
/// What a stream's cache holds is not in it, nor free space that belongs to one stream: `FreeSpace` counts that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// For events that are not recorded yet.
    pub filed: u64,
    /// For context events.
    pub contexts: u64,
    /// For completion events of streams.
    pub streams: u64,
    /// For an event of their own.
    pub events: u64,
    /// For graphs.
    pub graphs: u64,
}

impl Account {
    /// The bytes that wait for that.
    pub fn of(&mut self, wait: &Wait) -> &mut u64 {
        match wait {
            Wait::Filed => &mut self.filed,
            Wait::Contexts(_) => &mut self.contexts,
            Wait::Streams(_) => &mut self.streams,
            Wait::Event(..) => &mut self.events,
            Wait::Graph(_) => &mut self.graphs,
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.filed + self.contexts + self.streams + self.events + self.graphs
    }
}
