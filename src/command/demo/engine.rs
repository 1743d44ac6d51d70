//! Engines and their execution contexts, reduced to their use of memory.

use trtalloc::driver::Stream;
use trtalloc::error::Result;
use trtalloc::trace::random::Random;

use super::super::device::Device;
use super::caller::Caller;

const MIB: u64 = 1 << 20;
/// How many bytes at an output's end are set before it grows and compared afterwards.
const MARK: u64 = 64;

/// The memory needs of an engine.
pub struct Plan {
    pub name: &'static str,
    /// Weights in bytes: a few large blocks, allocated without a stream.
    weights: &'static [u64],
    /// Memory of each execution context, whatever its shape.
    scratch: u64,
    /// Bytes of one row of activations.
    row: u64,
    /// The width of each layer's output, in rows.
    layers: &'static [u64],
}

pub const DETECTOR: Plan = Plan {
    name: "detector",
    weights: &[256 * MIB, 128 * MIB, 96 * MIB],
    scratch: 24 * MIB,
    row: 48 << 10,
    layers: &[4, 4, 2, 2, 4, 1, 1, 2, 1, 1],
};

pub const ENCODER: Plan = Plan {
    name: "encoder",
    weights: &[384 * MIB, 256 * MIB],
    scratch: 16 * MIB,
    row: 12 << 10,
    layers: &[1, 3, 1, 4, 1, 3, 1, 4, 1, 3, 1, 4],
};

pub const GENERATOR: Plan = Plan {
    name: "generator",
    weights: &[640 * MIB, 512 * MIB, 48 * MIB],
    scratch: 32 * MIB,
    row: 16 << 10,
    layers: &[1, 3, 1, 4, 1, 3, 1, 4, 1, 3, 1, 4, 1, 3, 1, 4],
};

impl Plan {
    /// The bytes of all weights.
    pub fn weights(&self) -> u64 {
        self.weights.iter().sum()
    }
}

/// A loaded engine.
pub struct Engine {
    pub plan: &'static Plan,
    weights: Vec<usize>,
}

impl Engine {
    /// Loads an engine. If its weights do not fit, returns `None` and frees what it had allocated.
    pub fn load(plan: &'static Plan, caller: &mut Caller) -> Result<Option<Engine>> {
        trtalloc::tags::set(Some(plan.name))?;
        let mut weights = Vec::new();
        for &bytes in plan.weights {
            match caller.allocate(bytes) {
                Some(block) => weights.push(block),
                None => {
                    Engine { plan, weights }.unload(caller)?;
                    return Ok(None);
                }
            }
        }
        Ok(Some(Engine { plan, weights }))
    }

    /// Frees its weights.
    pub fn unload(self, caller: &mut Caller) -> Result<()> {
        self.weights.into_iter().try_for_each(|block| caller.deallocate(block))
    }
}

/// An execution context on a stream of its own.
pub struct Session {
    plan: &'static Plan,
    stream: Stream,
    scratch: usize,
}

impl Session {
    /// Creates the stream and allocates the scratch memory; `None` where that does not fit.
    pub fn open(plan: &'static Plan, caller: &mut Caller, device: &Device) -> Result<Option<Session>> {
        trtalloc::tags::set(Some(plan.name))?;
        let stream = device.application().create_stream()?;
        match caller.allocate_async(plan.scratch, stream) {
            Some(scratch) => Ok(Some(Session { plan, stream, scratch })),
            None => {
                device.application().destroy_stream(stream)?;
                Ok(None)
            }
        }
    }

    /// Frees the scratch memory and destroys the stream, without waiting for the work that is queued on it.
    pub fn close(self, caller: &mut Caller, device: &Device) -> Result<()> {
        caller.deallocate_async(self.scratch, self.stream)?;
        Ok(device.application().destroy_stream(self.stream)?)
    }

    /// The number of rows at which one layer's output is larger than `bytes`.
    pub fn rows_beyond(&self, bytes: u64) -> u64 {
        bytes / self.plan.row + 1
    }

    /// Runs one request of `rows` rows without waiting for its work. Returns whether all its memory could be
    /// allocated.
    pub fn infer(&self, rows: u64, random: &mut Random, caller: &mut Caller, device: &Device) -> Result<bool> {
        trtalloc::tags::set(Some(self.plan.name))?;
        device.work(self.stream, self.scratch as u64, self.plan.scratch)?;
        let mut held = Vec::new();
        let met = self.layers(rows, random, caller, device, &mut held)? && self.output(rows, caller, device)?;
        for block in held {
            caller.deallocate_async(block, self.stream)?;
        }
        Ok(met)
    }

    /// Runs the layers in order. Blocks that are not yet freed at the end, or when memory runs out, stay in `held`.
    fn layers(
        &self,
        rows: u64,
        random: &mut Random,
        caller: &mut Caller,
        device: &Device,
        held: &mut Vec<usize>,
    ) -> Result<bool> {
        for width in self.plan.layers {
            let bytes = rows * self.plan.row * width;
            let Some(output) = caller.allocate_async(bytes, self.stream) else {
                return Ok(false);
            };
            held.push(output);
            if random.percent(30) {
                let bytes = random.between(64 << 10, 4 * MIB);
                let Some(workspace) = caller.allocate_async(bytes, self.stream) else {
                    return Ok(false);
                };
                device.work(self.stream, workspace as u64, bytes)?;
                caller.deallocate_async(workspace, self.stream)?;
            }
            device.work(self.stream, output as u64, bytes)?;
            if held.len() > 1 {
                caller.deallocate_async(held.remove(0), self.stream)?;
            }
        }
        Ok(true)
    }

    /// Writes an output that twice turns out larger than its block.
    fn output(&self, rows: u64, caller: &mut Caller, device: &Device) -> Result<bool> {
        let full = rows * self.plan.row;
        let Some(mut block) = caller.allocate_resizable(full / 4, self.stream) else {
            return Ok(false);
        };
        let mut met = true;
        for (bytes, mark) in [(full / 2, 0x5a), (full, 0xa5)] {
            device.work(self.stream, block as u64, bytes / 2)?;
            device
                .application()
                .fill(self.stream, (block as u64 + bytes / 2) - MARK, mark, MARK)?;
            match caller.reallocate(block, bytes) {
                Some(grown) => block = grown,
                None => {
                    met = false;
                    break;
                }
            }
            caller.compare(block as u64 + bytes / 2 - 1, mark);
        }
        if met {
            device.work(self.stream, block as u64, full)?;
        }
        caller.deallocate_async(block, self.stream)?;
        Ok(met)
    }
}
