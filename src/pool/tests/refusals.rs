//! No request is refused that a trim makes possible: what is free counts, whoever freed it and wherever it lies.

use super::{Bench, MIB, RESIZABLE};

#[test]
fn own_idle_segments_make_room_for_a_larger_one() {
    for (options, live, freed, wanted) in [
        ("limit=100MiB", 27, 35, 38),
        // The reserve is one segment, and the stream's own once it was used.
        ("limit=64MiB,reserve=31MiB", 0, 28, 33),
    ] {
        for backing in ["malloc", "vmm"] {
            let bench = Bench::new(&format!("{options},backing={backing},wait_ms=0"));
            let stream = Some(bench.stream());
            let kept = (live > 0).then(|| bench.get(live * MIB, stream));
            let block = bench.get(freed * MIB, stream);
            bench.put(block, stream);
            let block = bench.request(wanted * MIB, 0, stream);
            bench.put(
                block.unwrap_or_else(|why| panic!("{options}, {backing}: {why}")),
                stream,
            );
            kept.into_iter().for_each(|block| bench.put(block, stream));
            bench.machine.advance(1 << 40);
            end(bench);
        }
    }
}

/// All blocks were freed. The reserve goes back with the allocator.
fn end(bench: Bench) {
    bench.allocator.close();
    assert_eq!(bench.wrong(), Vec::<String>::new());
    let (free, total) = bench.app(|machine| machine.memory_info(0)).unwrap();
    assert_eq!(free, total, "memory is left");
}

/// Two whole handles are free, and the limit allows none behind them. Behind the free half of a handle in use, they suffice.
#[test]
fn free_part_of_a_used_handle_counts() {
    let bench = Bench::new("limit=6MiB,wait_ms=0");
    let (first, second) = (Some(bench.stream()), Some(bench.stream()));
    let half = bench.get(MIB, first);
    let block = bench.get(4 * MIB, second);
    bench.put(block, second);
    let block = bench.get(5 * MIB, first);
    [half, block].into_iter().for_each(|block| bench.put(block, first));
    bench.finish();
}

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

/// The streams need more than the device has, one after the other. So the pool asks the driver for what a request lacks.
#[test]
fn cached_ranges_make_room_where_all_memory_is_the_reserve() {
    let bench = Bench::new("reserve=64MiB,wait_ms=0");
    bench.machine.others_hold(0, (1 << 30) - 64 * MIB).unwrap();
    let streams = [(); 3].map(|()| Some(bench.stream()));
    for stream in streams {
        let block = bench.get(45 * MIB, stream);
        bench.put(block, stream);
    }
    let kept = bench.get(10 * MIB, None);
    let blocks = [(); 2].map(|()| bench.request(20 * MIB, RESIZABLE, streams[0]).unwrap());
    blocks.into_iter().for_each(|block| bench.put(block, streams[0]));
    let block = bench.get(45 * MIB, None);
    [kept, block].into_iter().for_each(|block| bench.put(block, None));
    bench.machine.others_hold(0, 0).unwrap();
    bench.machine.advance(1 << 40);
    end(bench);
}

/// A refused request returns no segment to the driver that it could not have replaced.
#[test]
fn request_that_cannot_be_met_costs_no_segment() {
    let bench = Bench::new("limit=100MiB,backing=malloc,wait_ms=0");
    let stream = Some(bench.stream());
    let blocks = [stream, None].map(|stream| (bench.get(30 * MIB, stream), stream));
    blocks.into_iter().for_each(|(block, stream)| bench.put(block, stream));
    let before = bench.allocator.stats(Some(0)).unwrap().reserved;
    for stream in [stream, None] {
        assert!(bench.request(101 * MIB, 0, stream).is_err());
        assert_eq!(bench.allocator.stats(Some(0)).unwrap().reserved, before);
    }
    bench.finish();
}
