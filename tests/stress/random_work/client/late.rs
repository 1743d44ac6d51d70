//! Frees that name a stream which was destroyed: the stream that the block was allocated on. docs/internals/reclamation.md allows that
//! ("Streams that free") where the driver has ids of streams, and no fill is queued. Where memory was short, the free of a block
//! that was allocated lately names its stream to the driver, so there must be enough.

use super::super::world::done;
use super::Client;

/// When blocks of a stream are freed on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lateness {
    /// Before its end.
    None,
    /// Right after its end, while its work is pending: its handle is no other stream's yet.
    AtOnce,
    /// At any time after its end. Its work has completed, so it does not matter whose the handle is by then.
    AnyTime,
}

impl Client<'_> {
    /// Decides that for a stream that is about to be destroyed.
    pub(super) fn lateness(&mut self, dying: usize) -> Lateness {
        let world = self.world;
        let ids = world.allocator.driver().features().stream_ids;
        if !world.spares_captures || !ids || !self.rarely(2) || !self.has_room() {
            return Lateness::None;
        }
        if world.alone && self.random.one_in(2) {
            return Lateness::AtOnce;
        }
        match done(world.app(|machine| machine.stream_synchronize(dying))) {
            true => Lateness::AnyTime,
            false => Lateness::None,
        }
    }

    /// The owner of a block has ended its uses. The free itself comes after the stream's end.
    pub(super) fn give_back_late(&mut self, address: u64, dying: usize) {
        self.world.machine.checker().give_back(address, Some(dying));
        self.late.push((address, dying));
    }

    pub(super) fn free_late(&mut self) {
        if let Some((address, stream)) = self.late.pop() {
            let named = self.has_room().then_some(stream);
            self.world.put_known(&self.world.allocator, address, named);
        }
    }

    /// Whether memory was never short, and is not nearly so: graphs and other allocators may fill a device in a long round.
    fn has_room(&self) -> bool {
        let device = self.device();
        let (free, total) = self.world.app(|machine| machine.memory_info(device)).unwrap();
        let stats = self.world.ask(|allocator| allocator.stats(Some(device))).unwrap();
        stats.waits == 0 && stats.out_of_memory == 0 && stats.reserved_peak < total / 2 && free > total / 2
    }

    /// What else the client has on a stream that is about to be destroyed goes on with another one, which is behind it.
    pub(super) fn inherit(&mut self, dying: usize, heir: usize) {
        let far = self.far.iter_mut().map(|(_, _, stream)| stream);
        let own = self.own.iter_mut().flat_map(|own| &mut own.blocks);
        let own = own.map(|(_, _, stream)| stream);
        for stream in far.chain(own).filter(|stream| **stream == dying) {
            *stream = heir;
        }
    }
}
