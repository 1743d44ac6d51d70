//! Other devices' access to the pool's memory: `peers`.

use super::{Bench, MIB};
use crate::allocator::Allocator;
use crate::driver::sim::{SimConfig, SimDriver};
use crate::support::config::Config;
use crate::support::error::Error;

fn two_devices() -> SimConfig {
    SimConfig {
        devices: 2,
        ..SimConfig::default()
    }
}

/// The pool's first request finds no memory. `end` ends that, and a kernel of device 1 can use the next request's block.
fn peer_has_access_later(bench: Bench, end: impl FnOnce(&Bench)) {
    let refused = bench.request(MIB, 0, None);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    end(&bench);
    let block = bench.get(MIB, None);
    bench.app(|machine| {
        let context = machine.primary_retain(1).unwrap();
        machine.context_push(context).unwrap();
        let stream = machine.stream_create(true).unwrap();
        machine.launch(stream, 1000, &[(block, MIB)]).unwrap();
        machine.stream_synchronize(stream).unwrap();
        machine.context_pop().unwrap();
    });
    bench.put(block, None);
    bench.finish();
}

/// A pool that is first used while other processes hold the whole device learns about its peers later.
#[test]
fn pool_that_was_made_on_a_full_device_gives_its_peers_access() {
    for peers in ["peers=0:1", "peers=1", "peers=auto"] {
        let bench = Bench::on(two_devices(), peers);
        bench.app(|machine| machine.others_hold(0, u64::MAX)).unwrap();
        peer_has_access_later(bench, |bench| {
            bench.app(|machine| machine.others_hold(0, 0)).unwrap();
        });
    }
}

/// Neither does a moment without memory for page tables turn a peer away for good.
#[test]
fn peer_that_could_have_no_access_for_lack_of_memory_is_tried_again() {
    for peers in ["peers=0:1", "peers=auto"] {
        let bench = Bench::on(two_devices(), peers);
        // The first is the device's own access.
        bench.machine.fail_nth(Some("cuMemSetAccess"), 2, 2);
        peer_has_access_later(bench, |_| {});
    }
}

/// A pool that cannot be made holds nothing: the application's release of the primary context ends it.
#[test]
fn pool_that_is_refused_leaves_the_primary_context_to_the_application() {
    let bench = Bench::on(two_devices(), "peers=0:7");
    for _ in 0..3 {
        assert!(bench.request(MIB, 0, None).is_err());
    }
    bench.app(|machine| {
        assert!(machine.primary_active(0).unwrap());
        machine.primary_release(0).unwrap();
        assert!(!machine.primary_active(0).unwrap());
        assert_eq!(machine.memory_held(), [0, 0, 0]);
    });
}

/// The driver's malloc gives no other device access. A kernel of that device would end with an error that no context
/// survives, so the request is refused instead.
#[test]
fn named_peers_are_refused_where_they_get_no_access() {
    let without = SimConfig {
        virtual_memory: false,
        ..two_devices()
    };
    let bench = Bench::on(without.clone(), "peers=0:1");
    let refused = bench.request(MIB, 0, None).unwrap_err();
    assert!(refused.to_string().contains("peers"), "{refused}");

    let bench = Bench::on(two_devices(), "peers=0:7");
    let refused = bench.request(MIB, 0, None).unwrap_err();
    assert!(refused.to_string().contains("peers"), "{refused}");

    for options in ["backing=malloc,peers=0:1", "passthrough=1,peers=1"] {
        let driver = SimDriver::new(two_devices());
        let refused = Allocator::with_driver(driver, Config::parse(options).unwrap());
        let refused = refused.err().expect("it is refused");
        assert!(refused.to_string().contains("peers"), "{refused}");
    }

    // Those that can get access are none.
    let bench = Bench::on(without, "peers=auto");
    let block = bench.get(MIB, None);
    bench.put(block, None);
    bench.finish();
}
