//! Engines and their execution contexts, as far as memory sees them.

use trtalloc::driver::Stream;
use trtalloc::error::Result;
use trtalloc::trace::random::Random;

use super::super::device::Device;
use super::caller::Caller;

const MIB: u64 = 1 << 20;
/// So many bytes at an output's end are set before it grows, and looked at afterwards.
const MARK: u64 = 64;

/// What an engine needs.
pub struct Plan {
    pub name: &'static str,
    /// Weights in bytes: few large blocks, asked for without a stream.
    weights: &'static [u64],
    /// Memory of each execution context, whatever its shape.
    scratch: u64,
    /// Bytes of one row of activations.
    row: u64,
    /// How many rows' width each layer puts out.
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
    /// Loads it; none where its weights do not fit, and then it holds nothing.
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

    /// Gives its weights back.
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
    /// Makes the stream and takes the scratch memory; none where that does not fit.
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

    /// Gives the scratch memory back and destroys the stream, without waiting for the work that is queued on it.
    pub fn close(self, caller: &mut Caller, device: &Device) -> Result<()> {
        caller.deallocate_async(self.scratch, self.stream)?;
        Ok(device.application().destroy_stream(self.stream)?)
    }

    /// So many rows that one layer's output is larger than `bytes`.
    pub fn rows_beyond(&self, bytes: u64) -> u64 {
        bytes / self.plan.row + 1
    }

    /// One request of `rows` rows; whether all its memory was there. Returns without waiting for the work.
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

    /// The layers in order; what is not yet given back at the end, or when memory is out, stays in `held`.
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

    /// An output whose size turns out to be more than was thought, twice.
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
