//! Vector clocks: for each queue, how many of its operations are known to precede a point.

/// (queue, number of its operations): everything in that queue up to and including that operation.
pub(super) type Position = (u32, u64);

/// A sorted list of (queue, preceding operations of it). Queues that are not listed count 0.
#[derive(Debug, Clone, Default)]
pub(super) struct VectorClock(Vec<Position>);

impl VectorClock {
    pub(super) fn get(&self, queue: u32) -> u64 {
        match self.0.binary_search_by_key(&queue, |entry| entry.0) {
            Ok(at) => self.0[at].1,
            Err(_) => 0,
        }
    }

    pub(super) fn covers(&self, position: Position) -> bool {
        self.get(position.0) >= position.1
    }

    pub(super) fn raise(&mut self, queue: u32, count: u64) {
        match self.0.binary_search_by_key(&queue, |entry| entry.0) {
            Ok(at) => self.0[at].1 = self.0[at].1.max(count),
            Err(at) => self.0.insert(at, (queue, count)),
        }
    }

    pub(super) fn merge(&mut self, other: &VectorClock) {
        for &(queue, count) in &other.0 {
            self.raise(queue, count);
        }
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&Position) -> bool) {
        self.0.retain(keep);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn entries(&self) -> &[Position] {
        &self.0
    }
}
