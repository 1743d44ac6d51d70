//! No request is refused that a trim makes possible: what is free counts, whoever freed it and wherever it lies.

use super::{Bench, MIB, RESIZABLE};

/// The device has a part of what a block lacks, and the pool has the rest in handles that do not fit.
#[test]
fn growth_on_a_full_device_gets_what_the_pool_has_free() {
    let bench = Bench::new("wait_ms=0");
    bench.machine.others_hold(0, (1 << 30) - 64 * MIB).unwrap();
    let stream = Some(bench.stream());
    let block = bench.request(2 * MIB, RESIZABLE, stream).unwrap();
    let freed = bench.get(30 * MIB, stream);
    bench.put(freed, stream);
    let block = bench.resize(block, 2 * MIB, 50 * MIB).unwrap();
    bench.put(block, stream);
    bench.machine.others_hold(0, 0).unwrap();
    bench.finish();
}
