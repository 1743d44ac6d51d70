//! Work of contexts that never use the pool, on memory that was freed without a stream.

use std::time::Duration;

use super::{Bench, MIB};
use crate::allocator::Allocator;
use crate::driver::sim::{SimConfig, SimDriver};
use crate::support::config::Config;

const VERSIONS: [u32; 4] = [11_020, 11_080, 12_040, 12_090];

/// A kernel of a context that never calls the pool uses a block. The block is freed without a stream, in the context that
/// is current. No request gets it before the kernel has ended, and then one does.
fn free_waits_for_kernel_in(bench: Bench, context: usize, what: &str) -> Bench {
    let block = bench.get(MIB, None);
    let kernel = bench.app(|machine| {
        machine.context_push(context).unwrap();
        let stream = machine.stream_create(true).unwrap();
        let kernel = machine.launch_persistent(stream, &[(block, MIB)]).unwrap();
        machine.context_pop().unwrap();
        kernel
    });
    bench.put(block, None);
    let fill = || -> Vec<u64> { std::iter::from_fn(|| bench.request(MIB, 0, None).ok()).collect() };
    let taken = fill();
    assert!(!taken.is_empty() && !taken.contains(&block), "{what}");
    assert!(bench.machine.release_persistent(kernel));
    bench.app(|machine| {
        machine.context_push(context).unwrap();
        machine.context_synchronize().unwrap();
        machine.context_pop().unwrap();
    });
    // Without context events, a thread synchronizes, and each try waits for it no longer than a request may.
    let again = |_| {
        std::thread::sleep(Duration::from_millis(1));
        fill()
    };
    let more = (0..1000).map(again).find(|more| more.contains(&block));
    let more = more.expect(what);
    taken.into_iter().chain(more).for_each(|block| bench.put(block, None));
    bench
}

fn devices(count: u32, version: u32) -> SimConfig {
    SimConfig {
        devices: count,
        version,
        ..SimConfig::default()
    }
}

#[test]
fn memory_of_a_peer_waits_for_the_peers_work() {
    for version in VERSIONS {
        for peers in ["peers=0:1", "peers=auto"] {
            let bench = Bench::on(devices(2, version), &format!("limit=8MiB,wait_ms=1,{peers}"));
            let far = bench.app(|machine| machine.primary_retain(1)).unwrap();
            free_waits_for_kernel_in(bench, far, &format!("{peers} {version}")).finish();
        }
    }
}

/// Pinned memory can be used by every device.
#[test]
fn pinned_memory_waits_for_the_work_of_every_device() {
    for version in VERSIONS {
        let bench = Bench::on(devices(3, version), "kind=pinned,limit=8MiB,wait_ms=1");
        let far = bench.app(|machine| machine.primary_retain(2)).unwrap();
        free_waits_for_kernel_in(bench, far, &format!("{version}")).finish();
    }
}

/// The pool's own context is a context of the application, and the CUDA runtime is used later.
#[test]
fn memory_waits_for_the_work_of_a_primary_context_that_comes_later() {
    for (version, external) in VERSIONS
        .into_iter()
        .flat_map(|version| [(version, false), (version, true)])
    {
        let driver = SimDriver::new(devices(1, version));
        let machine = driver.machine().clone();
        machine.context_create(0).unwrap();
        let config = Config::parse("decay_ms=0,limit=8MiB,wait_ms=1").unwrap();
        let allocator = match external {
            false => Allocator::with_driver(driver, config),
            // Every context can use it.
            true => Allocator::over_with_driver(driver, machine.memory_host_malloc(8 * MIB).unwrap(), 8 * MIB, config),
        };
        let bench = Bench {
            machine,
            allocator: allocator.unwrap(),
        };
        let first = bench.get(MIB, None);
        bench.put(first, None);
        let primary = bench.app(|machine| machine.primary_retain(0)).unwrap();
        let bench = free_waits_for_kernel_in(bench, primary, &format!("{version}, external: {external}"));
        if external {
            bench.allocator.close();
            assert_eq!(bench.wrong(), Vec::<String>::new());
        } else {
            bench.finish();
        }
    }
}
