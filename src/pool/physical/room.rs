//! How much more memory there may be: below the limit, beside the headroom, and on the device.

use super::*;

/// Reserved memory is near the limit if less than one part in this many of the limit is left.
const NEAR: u64 = 16;
/// A driver's answer how much memory is free is used for so long where it only decides how free memory is used.
const RECENT: Duration = Duration::from_millis(1);

impl PhysicalMemory {
    /// Bytes that may be created below the limit, and without taking what the device has to keep free for others.
    pub fn room_below_limit(&self) -> u64 {
        let below = match self.limit {
            0 => u64::MAX,
            limit => limit.saturating_sub(self.reserved),
        };
        below.min(self.room_beside_headroom())
    }

    /// Bytes that may be created below the limit and beside the headroom, if the device and the budget have them now.
    pub fn room(&self) -> u64 {
        let info = self.calls.query(|driver| driver.memory_info(self.device));
        let free = info.map_or(u64::MAX, |(free, _)| free);
        let budget = self.calls.shared_budget();
        let of_budget = budget.map_or(u64::MAX, |budget| budget.free().unwrap_or(0));
        self.room_below_limit().min(free).min(of_budget)
    }

    /// Bytes that the device has beyond the headroom now; none where the driver does not say.
    fn room_beside_headroom(&self) -> u64 {
        if self.headroom == 0 {
            return u64::MAX;
        }
        let info = self.calls.query(|driver| driver.memory_info(self.device));
        info.map_or(0, |(free, _)| free.saturating_sub(self.headroom))
    }

    /// Whether the pool can hardly get more memory: reserved memory is near the limit or the headroom, the driver refused
    /// more, or the memory is external. All free memory is used then, whatever that costs. What the device has beyond the
    /// headroom may be [`RECENT`] old.
    #[inline]
    pub fn is_short(&self) -> bool {
        let near = |room: u64, bound: u64| room < (bound / NEAR).max(self.page);
        let near_limit =
            self.limit != 0 && near(self.limit.saturating_sub(self.reserved), self.limit.max(self.headroom));
        let near_headroom = || self.headroom != 0 && near(self.recent_room(), self.limit.max(self.headroom));
        near_limit || self.driver_refused || self.is_external || near_headroom()
    }

    /// As [`PhysicalMemory::room_beside_headroom`], but the driver is asked only where its last answer is old, or where
    /// the pool holds another number of bytes than then.
    fn recent_room(&self) -> u64 {
        let now = Instant::now();
        match self.seen_room.get() {
            Some((since, reserved, room)) if reserved == self.reserved && now - since < RECENT => room,
            _ => {
                let room = self.room_beside_headroom();
                self.seen_room.set(Some((now, self.reserved, room)));
                room
            }
        }
    }
}
