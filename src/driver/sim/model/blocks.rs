//! The checker's record of blocks: handed out, given back, resized.

use super::checker::{Taker, name};
use super::checker_state::CheckedBlock;
use super::ranges::{Past, Use};
use super::state::MachineState;
use super::vector_clock::Position;

impl MachineState {
    fn taker(&self, slot: Option<u32>) -> Taker {
        let queue = slot.map_or(u32::MAX, |slot| self.queue_of(slot));
        Taker {
            slot,
            queue,
            stream_id: self.queues.get(queue).map_or(0, |q| q.stream_id),
        }
    }

    fn physical_ranges(&self, address: u64, size: u64) -> (bool, Vec<(u64, u64, u32)>) {
        let mut found = Vec::new();
        let whole = self
            .memory
            .physical(address, size, |start, length, alias| found.push((start, length, alias)));
        (whole, found)
    }

    fn device_of(&self, address: u64) -> Option<u32> {
        let (start, mapping) = self.memory.mappings.range(..=address).next_back()?;
        (address - start < mapping.size).then_some(mapping.device)
    }

    pub(super) fn hand_out(&mut self, address: u64, size: u64, slot: Option<u32>) {
        let taker = self.taker(slot);
        let now = self.tables.now();
        let what = format!(
            "{address:#x} + {size:#x} handed out on {} at {now}",
            name(taker.stream_id)
        );
        let (whole, ranges) = self.physical_ranges(address, size);
        let device = self.device_of(address);
        let reachable = device.is_none_or(|device| {
            self.memory
                .usable(address, size, super::access::Access::Device(device))
                .is_ok()
        });
        if !whole || !reachable {
            self.checker.violation(format!("{what} is not all mapped with access"));
        }
        self.check_allocation(&what, address, size);
        self.checker.serials += 1;
        let serial = self.checker.serials;
        let past = Past {
            serial,
            address,
            size,
            out_on: taker.stream_id,
            out_at: now,
            ..Past::default()
        };
        let mut first = None;
        if slot.is_some_and(|slot| self.streams[slot as usize].capture.is_some()) {
            first = Some(self.queues.submit_virtual(taker.queue, None, false));
        }
        for (start, length, alias) in ranges {
            self.check_range(taker, &what, start, length, None);
            let MachineState { checker, queues, .. } = self;
            // Uses that come before the taker's work stay recorded: its block may later be freed on a stream that they
            // do not precede.
            checker.ranges.cover(start, start + length, |_, segment| {
                segment.owner = serial;
                segment.past = past;
                segment.uses.retain(|last| !queues.observed(last.position));
                if let Some(position) = first {
                    let what = "hand-out";
                    segment.used(
                        queues,
                        Use {
                            position,
                            alias,
                            what,
                            at: now,
                            by: serial,
                        },
                    );
                }
            });
            checker.ranges.merge(start, start + length);
        }
        let block = CheckedBlock {
            serial,
            address,
            size,
            on: taker.stream_id,
            at: now,
            device,
            resize: 0,
        };
        self.checker.blocks.insert(address, block);
    }

    /// Checks that a block lies in one allocation of the driver. Allocations may be adjacent.
    fn check_allocation(&mut self, what: &str, address: u64, size: u64) {
        if self.memory.leaves_its_allocation(address, size) {
            self.checker
                .violation(format!("{what} reaches beyond one allocation of the driver"));
        }
    }

    /// The ends of all streams that may still use a device's memory.
    fn tails(&self, device: Option<u32>) -> Vec<Position> {
        let mut tails = Vec::new();
        for context in self
            .contexts
            .iter()
            .filter(|context| device.is_none_or(|device| device == context.device))
        {
            let all = context.queues.iter().map(|&queue| self.queues.tail(queue));
            tails.extend(all.filter(|&tail| !self.queues.observed(tail)));
        }
        tails
    }

    pub(super) fn last_uses(&mut self, block: &CheckedBlock, slot: Option<u32>) -> Vec<Position> {
        match slot {
            None => self.tails(block.device),
            Some(slot) => match self.streams[slot as usize].capture {
                Some((_, queue)) => vec![self.queues.submit_virtual(queue, None, false)],
                None => vec![self.queues.tail(self.streams[slot as usize].queue)],
            },
        }
    }

    pub(super) fn give_back(&mut self, address: u64, slot: Option<u32>) {
        let Some(block) = self.checker.blocks.remove(&address) else {
            let now = self.tables.now();
            return self
                .checker
                .violation(format!("{address:#x} given back at {now} is not handed out"));
        };
        let uses = self.last_uses(&block, slot);
        let on = self.taker(slot).stream_id;
        let (_, ranges) = self.physical_ranges(block.address, block.size);
        self.leave(&block, &ranges, &uses, on);
    }

    /// Ends a block's ownership of those of `ranges` that it still has.
    fn leave(&mut self, block: &CheckedBlock, ranges: &[(u64, u64, u32)], uses: &[Position], on: u64) {
        let MachineState {
            checker,
            queues,
            tables,
            ..
        } = self;
        let at = tables.now();
        for &(start, length, alias) in ranges {
            checker.ranges.within(start, start + length, |_, segment| {
                if segment.owner != block.serial {
                    return;
                }
                segment.owner = 0;
                segment.past.back_on = on;
                segment.past.back_at = at;
                segment.past.resize = block.resize;
                for &position in uses {
                    segment.used(
                        queues,
                        Use {
                            position,
                            alias,
                            what: "give-back",
                            at,
                            by: block.serial,
                        },
                    );
                }
            });
            checker.ranges.merge(start, start + length);
        }
    }

    /// The bytes that a resized block loses keep their recorded uses: a resize declares nothing about streams.
    pub(super) fn begin_resize(&mut self, old: u64) -> Option<CheckedBlock> {
        let Some(mut block) = self.checker.blocks.remove(&old) else {
            let now = self.tables.now();
            self.checker
                .violation(format!("{old:#x} resized at {now} is not handed out"));
            return None;
        };
        self.checker.resizes += 1;
        block.resize = self.checker.resizes;
        let (_, before) = self.physical_ranges(block.address, block.size);
        self.leave(&block, &before, &[], 0);
        Some(block)
    }

    pub(super) fn end_resize(&mut self, block: CheckedBlock, new: u64, size: u64) {
        let now = self.tables.now();
        let taker = Taker {
            slot: None,
            queue: u32::MAX,
            stream_id: 0,
        };
        let what = format!(
            "{:#x} + {:#x} resized to {new:#x} + {size:#x} at {now}",
            block.address, block.size
        );
        let (whole, after) = self.physical_ranges(new, size);
        if !whole {
            self.checker.violation(format!("{what} is not all mapped"));
        }
        self.check_allocation(&what, new, size);
        let past = Past {
            serial: block.serial,
            address: new,
            size,
            out_on: block.on,
            out_at: block.at,
            ..Past::default()
        };
        for (start, length, _) in after {
            self.check_range(taker, &what, start, length, Some(&block));
            self.checker.ranges.cover(start, start + length, |_, segment| {
                segment.owner = block.serial;
                segment.past = past;
            });
        }
        self.checker.blocks.insert(
            new,
            CheckedBlock {
                address: new,
                size,
                ..block
            },
        );
    }
}
