//! Steady states: a few calls that are repeated as TensorRT makes them. For the command's figures and `benches/`.

use crate::allocator::{Allocator, Request};
use crate::driver::Stream;
use crate::ffi::tensorrt::client::Client;
use crate::support::error::Result;

/// Calls `allocateAsync` for `size` bytes and `deallocateAsync`; returns whether both succeeded.
#[inline]
pub fn pair(client: Client, size: u64, stream: Stream) -> bool {
    match client.allocate_async(size, 0, 0, stream.0) {
        0 => false,
        block => client.deallocate_async(block, stream.0),
    }
}

/// A stream with many free holes between live blocks, which keep the holes from being merged.
///
/// No hole has the size that [`Holes::miss`] requests. It never requests the same size twice in a row, so the block
/// that it freed last does not fit either.
pub struct Holes {
    stream: Stream,
    between: Vec<u64>,
    odd: bool,
}

impl Holes {
    /// Makes `count` holes of 1 to 64 KiB in the memory that `stream` has freed.
    pub fn make(allocator: &Allocator, stream: Stream, count: usize) -> Result<Holes> {
        let allocate = |size| {
            allocator.allocate(Request {
                size,
                alignment: 0,
                flags: 0,
                stream: Some(stream),
                device: None,
            })
        };
        let (mut between, mut holes) = (vec![allocate(512)?], Vec::new());
        for number in 0..count as u64 {
            // 7,919 is odd, so every size occurs; the second hole has 48 KiB, which is enough for a miss.
            holes.push(allocate((1 + number * 7_919 % 64) << 10)?);
            between.push(allocate(512)?);
        }
        for hole in holes {
            allocator.deallocate(hole, Some(stream))?;
        }
        Ok(Holes {
            stream,
            between,
            odd: false,
        })
    }

    /// Makes a request that no hole fits exactly, and frees the block; returns whether both succeeded.
    #[inline]
    pub fn miss(&mut self, client: Client) -> bool {
        self.odd = !self.odd;
        let size = if self.odd { 31 << 9 } else { 41 << 9 };
        pair(client, size, self.stream)
    }

    /// Frees the blocks between the holes.
    pub fn end(self, allocator: &Allocator) -> Result<()> {
        let mut between = self.between.into_iter();
        between.try_for_each(|block| allocator.deallocate(block, Some(self.stream)))
    }
}
