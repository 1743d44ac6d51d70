//! Steady states: the same few calls over and over, the way TensorRT makes them. For the command's figures and `benches/`.

use crate::allocator::{Allocator, Request};
use crate::bridge::client::Client;
use crate::driver::Stream;
use crate::error::Result;

/// `allocateAsync` of `size` bytes and its `deallocateAsync`; whether both succeeded.
#[inline]
pub fn pair(client: Client, size: u64, stream: Stream) -> bool {
    match client.allocate_async(size, 0, 0, stream.0) {
        0 => false,
        block => client.deallocate_async(block, stream.0),
    }
}

/// A stream that has freed many pieces between pieces that live on, so that none of them became one.
///
/// None has the size that [`Holes::miss`] asks for, and it never asks for the same size twice in a row: what it gave back
/// the last time is no answer either.
pub struct Holes {
    stream: Stream,
    between: Vec<u64>,
    odd: bool,
}

impl Holes {
    /// Makes `count` holes of 1 to 64 KiB in what `stream` has freed.
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
            // 7,919 is odd, so that every size comes; the second hole is of 48 KiB, large enough for a miss.
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

    /// A request that no freed piece fits exactly, and its free; whether both succeeded.
    #[inline]
    pub fn miss(&mut self, client: Client) -> bool {
        self.odd = !self.odd;
        let size = if self.odd { 31 << 9 } else { 41 << 9 };
        pair(client, size, self.stream)
    }

    /// Gives back what lies between the holes.
    pub fn end(self, allocator: &Allocator) -> Result<()> {
        let mut between = self.between.into_iter();
        between.try_for_each(|block| allocator.deallocate(block, Some(self.stream)))
    }
}
