//! A kernel of a context that never calls the pool uses a block, which is freed without a stream.

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::cuda::CudaDriver;

use super::machine::Machine;

const MIB: u64 = 1 << 20;
/// In simulated nanoseconds: longer than any request waits.
const KERNEL: u64 = 1 << 40;

/// Options, and the driver's versions: with events for contexts, and without.
pub const CASES: [(&str, u32); 4] = [
    ("peers=0:1", 13_020),
    ("peers=0:1", 12_040),
    ("kind=pinned", 13_020),
    ("kind=pinned", 12_040),
];

/// No request gets the block before the kernel has ended, and then one does.
pub fn free_waits_for_the_other_device(options: &str) -> String {
    let machine = Machine::open().expect("libcuda.so.1 is cudasim");
    let config = Config::parse(&format!("decay_ms=0,limit=8MiB,wait_ms=1,{options}")).unwrap();
    let allocator = Allocator::with_driver(CudaDriver::open().unwrap(), config).unwrap();
    let [near, far] = [0, 1].map(|device| machine.primary_retain(device).unwrap());
    machine.context_push(near).unwrap();
    let request = Request {
        size: MIB,
        alignment: 0,
        flags: 0,
        stream: None,
        device: None,
    };
    let fill = || -> Vec<u64> { std::iter::from_fn(|| allocator.allocate(request).ok()).collect() };
    let block = allocator.allocate(request).unwrap();
    machine.context_push(far).unwrap();
    let stream = machine.stream_create(true).unwrap();
    machine.launch(stream, KERNEL, &[(block, MIB)]).unwrap();
    machine.context_pop().unwrap();
    allocator.deallocate(block, None).unwrap();
    let taken = fill();
    assert!(!taken.is_empty() && !taken.contains(&block), "{taken:x?}");
    machine.advance(KERNEL);
    // Without context events, a thread synchronizes, and each try waits for it no longer than a request may.
    let more = (0..1000).map(|_| fill()).find(|more| more.contains(&block));
    let more = more.expect("the kernel has ended");
    let count = taken.len() + more.len();
    for block in taken.into_iter().chain(more) {
        allocator.deallocate(block, None).unwrap();
    }
    format!("{count} blocks")
}
