//! Output tensors whose size is known only after they are computed, for `nvinfer1::IOutputAllocator`.
//!
//! TensorRT requests the size inside an enqueue, and the memory stays the tensor's until the next enqueue. A tensor
//! of 2 MiB or more has a resizable block, which grows in place. Growing need not keep the contents. An output that
//! shrinks keeps its memory.

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::{Mutex, RwLock};

use crate::allocator::{Allocator, RESIZABLE, Request};
use crate::driver::Stream;
use crate::ffi::ExportedAllocator;
use crate::support::error::{Error, Result};

/// The size from which a tensor gets a resizable block. A smaller tensor gets a block of the next power of two, since a
/// resizable block takes at least one handle of physical memory.
const PAGE: u64 = 2 << 20;
/// The minimum size of a block.
const MIN_BLOCK: u64 = 512;

/// One tensor's memory, and its size and shape as TensorRT last reported them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tensor {
    /// Its address; 0: no memory yet.
    pub memory: u64,
    /// Bytes of the tensor.
    pub bytes: u64,
    /// Bytes of its memory.
    pub capacity: u64,
    /// Its extents, from `notifyShape`; at most 8.
    pub extents: Vec<i64>,
    resizable: bool,
    /// Whether a request resizes its block. Until that has ended no other call gets the block, so `memory` is 0.
    growing: bool,
}

/// The outputs of one execution context. It can be used from any thread and is never freed.
pub struct Output {
    exported: &'static ExportedAllocator,
    tensors: Mutex<HashMap<Box<[u8]>, Tensor>>,
}

/// All output allocators by the addresses of their adapters. The map keeps each of them reachable for leak checkers.
static ALL: LazyLock<RwLock<HashMap<usize, &'static Output>>> = LazyLock::new(RwLock::default);

impl Output {
    /// A new output allocator without tensors.
    pub(crate) fn new(exported: &'static ExportedAllocator) -> &'static Output {
        Box::leak(Box::new(Output {
            exported,
            tensors: Mutex::default(),
        }))
    }

    /// Registers the adapter, so that [`Output::of`] finds this object by it.
    pub(crate) fn register(&'static self, adapter: usize) {
        ALL.write().insert(adapter, self);
    }

    /// The output allocator with that adapter.
    pub fn of(adapter: usize) -> Result<&'static Output> {
        let found = ALL.read().get(&adapter).copied();
        found.ok_or_else(|| Error::InvalidArgument(format!("{adapter:#x} is no output allocator of this library")))
    }

    /// Returns memory for `size` bytes of a tensor. On an error the tensor keeps its memory. The request may wait for
    /// memory, and its out-of-memory handler may release outputs, so no lock is held meanwhile.
    pub(crate) fn reallocate(&self, name: &[u8], size: u64, alignment: u64, stream: Option<Stream>) -> Result<usize> {
        if size == 0 || (alignment & alignment.wrapping_sub(1)) != 0 {
            return Err(Error::InvalidArgument(format!("{size} bytes, alignment {alignment}")));
        }
        let allocator = self.exported.allocator()?;
        let growing = {
            let mut tensors = self.tensors.lock();
            let tensor = tensors.entry(name.into()).or_default();
            let aligned = |address: u64| address.is_multiple_of(alignment.max(1));
            let enough = tensor.memory != 0 && aligned(tensor.memory);
            if enough && size <= tensor.capacity {
                tensor.bytes = size;
                return Ok(tensor.memory as usize);
            }
            tensor.growing = enough && tensor.resizable;
            // A block that moves leaves an address that may be another block's: no other call may free it.
            tensor.growing.then(|| std::mem::take(&mut tensor.memory))
        };
        if let Some(old) = growing {
            match allocator.reallocate(old, alignment, size) {
                Ok(memory) => return Ok(self.replace(allocator, name, (memory, size, size, true))),
                Err(_) => self.put_back(allocator, name, old),
            }
        }
        let resizable = size >= PAGE;
        let capacity = if resizable {
            size
        } else {
            size.next_power_of_two().max(MIN_BLOCK)
        };
        let memory = allocator.allocate(Request {
            size: capacity,
            alignment,
            flags: if resizable { RESIZABLE } else { 0 },
            stream,
            device: None,
        })?;
        Ok(self.replace(allocator, name, (memory, size, capacity, resizable)))
    }

    /// Gives a tensor a block, with the tensor's bytes and the block's, and frees the block that it had. Returns the address.
    fn replace(
        &self,
        allocator: &Allocator,
        name: &[u8],
        (memory, bytes, capacity, resizable): (u64, u64, u64, bool),
    ) -> usize {
        let old = {
            let mut tensors = self.tensors.lock();
            let tensor = tensors.entry(name.into()).or_default();
            (tensor.bytes, tensor.capacity, tensor.resizable) = (bytes, capacity, resizable);
            tensor.growing = false;
            std::mem::replace(&mut tensor.memory, memory)
        };
        free(allocator, old);
        memory as usize
    }

    /// Gives a tensor the block back that could not be resized. If the tensor was released meanwhile, the block is freed.
    fn put_back(&self, allocator: &Allocator, name: &[u8], memory: u64) {
        if let Some(tensor) = self.tensors.lock().get_mut(name).filter(|tensor| tensor.growing) {
            (tensor.memory, tensor.growing) = (memory, false);
            return;
        }
        free(allocator, memory);
    }

    pub(crate) fn set_shape(&self, name: &[u8], extents: &[i64]) {
        self.tensors.lock().entry(name.into()).or_default().extents = extents.to_vec();
    }

    /// The tensor's memory, size and shape.
    pub fn get(&self, name: &[u8]) -> Result<Tensor> {
        let tensors = self.tensors.lock();
        let settled = tensors.get(name).filter(|tensor| !tensor.growing);
        settled.cloned().ok_or_else(|| unknown(name))
    }

    /// Like [`Output::get`], but the memory becomes the caller's, and the next enqueue gets other memory.
    pub fn take(&self, name: &[u8]) -> Result<Tensor> {
        let mut tensors = self.tensors.lock();
        let settled = tensors.get(name).is_some_and(|tensor| !tensor.growing);
        let taken = settled.then(|| tensors.remove(name)).flatten();
        taken.ok_or_else(|| unknown(name))
    }

    /// Frees the memory of one tensor, or of all, as cudaFree would. What a request resizes at this moment is freed only if
    /// that fails.
    pub fn release(&self, name: Option<&[u8]>) -> Result<()> {
        let released: Vec<Tensor> = {
            let mut tensors = self.tensors.lock();
            match name {
                Some(name) => tensors.remove(name).into_iter().collect(),
                None => tensors.drain().map(|(_, tensor)| tensor).collect(),
            }
        };
        let Some(allocator) = self.exported.existing() else {
            return Ok(());
        };
        let mut outcome = Ok(());
        for tensor in released {
            outcome = outcome.and(allocator.deallocate(tensor.memory, None));
        }
        outcome
    }
}

/// Frees a tensor's block; work on any stream may still read it. Address 0 is none.
fn free(allocator: &Allocator, memory: u64) {
    if let Err(error) = allocator.deallocate(memory, None) {
        tracing::warn!(%error, "an output's memory could not be freed");
    }
}

fn unknown(name: &[u8]) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::InvalidArgument(format!("no output {name:?} was requested yet"))
}
