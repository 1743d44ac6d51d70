//! `reserve`: what the pool holds from its first use on.

use super::{Bench, MIB, RESIZABLE};

const RESERVE: u64 = 256 * MIB;

/// Bytes reserved on a device of 1 GiB.
fn held(bench: &Bench) -> u64 {
    bench.allocator.stats(Some(0)).unwrap().reserved
}

/// All blocks were freed: the reserve goes back with the allocator.
fn end(bench: &Bench) {
    bench.machine.advance(1 << 40);
    bench.allocator.validate().unwrap();
    bench.allocator.close();
    let (free, total) = bench.app(|machine| machine.memory_info(0)).unwrap();
    assert_eq!(free, total, "memory is left");
    assert_eq!(bench.wrong(), Vec::<String>::new());
}

#[test]
fn first_use_obtains_the_reserve_and_only_the_end_returns_it() {
    for options in [
        "reserve=256MiB",
        "reserve=25%",
        "reserve=256MiB,backing=malloc",
        "reserve=256MiB,release_threshold=0",
        "reserve=256MiB,release_threshold=all",
    ] {
        for (flags, on_stream) in [(0, true), (0, false), (RESIZABLE, true), (RESIZABLE, false)] {
            let bench = Bench::new(options);
            let stream = Some(bench.stream()).filter(|_| on_stream);
            assert_eq!(held(&bench), 0, "{options}");
            let first = bench.request(MIB, flags, stream).unwrap();
            assert!(held(&bench) >= RESERVE, "{options}: {}", held(&bench));
            assert!(held(&bench) <= RESERVE + 4 * MIB, "{options}: {}", held(&bench));
            // Beyond the reserve, and back.
            let mut blocks: Vec<u64> = (0..40)
                .map(|_| bench.request(10 * MIB, flags, stream).unwrap())
                .collect();
            assert!(held(&bench) >= 400 * MIB, "{options}");
            blocks.push(first);
            blocks.into_iter().for_each(|block| bench.put(block, stream));
            bench.machine.advance(1 << 40);
            bench.allocator.trim(Some(0), 0).unwrap();
            assert!(held(&bench) >= RESERVE, "{options}, {flags}: {}", held(&bench));
            assert!(
                held(&bench) < RESERVE + 64 * MIB,
                "{options}, {flags}: {}",
                held(&bench)
            );
            bench.allocator.set_limit(Some(0), 300 * MIB).unwrap();
            assert!(held(&bench) >= RESERVE, "{options}");
            // A limit below the reserve is a limit.
            bench.allocator.set_limit(Some(0), 100 * MIB).unwrap();
            assert!(held(&bench) <= 100 * MIB, "{options}: {}", held(&bench));
            end(&bench);
        }
    }
}

#[test]
fn arenas_grow_from_the_reserve_without_new_memory() {
    for on_stream in [true, false] {
        let bench = Bench::new("reserve=512MiB");
        let streams: Vec<usize> = (0..4).map(|_| bench.stream()).collect();
        let mut blocks = vec![(bench.get(512, None), None)];
        let before = held(&bench);
        let free = || bench.app(|machine| machine.memory_info(0)).unwrap().0;
        let calls = || {
            [
                "cuMemCreate",
                "cuMemMap",
                "cuMemSetAccess",
                "cuMemUnmap",
                "cuMemRelease",
            ]
            .map(|call| bench.machine.count(call))
        };
        let (left, made) = (free(), calls());
        for round in 0..8 {
            for stream in &streams {
                let stream = Some(*stream).filter(|_| on_stream);
                for size in [512, 100 << 10, MIB, (3 + round) * MIB] {
                    blocks.push((bench.get(size, stream), stream));
                }
            }
        }
        assert_eq!((held(&bench), free()), (before, left), "on streams: {on_stream}");
        let [created, mapped, accesses, unmapped, released] = calls();
        assert_eq!(
            [created, unmapped, released],
            [made[0], made[3], made[4]],
            "on streams: {on_stream}"
        );
        // Each handle is mapped once.
        assert!(
            mapped - made[1] <= 64 && accesses - made[2] <= 64,
            "on streams: {on_stream}"
        );
        blocks.into_iter().for_each(|(block, stream)| bench.put(block, stream));
        end(&bench);
    }
}

/// The request is served, and what is held beyond the first attempt stays up to the reserve.
#[test]
fn driver_with_less_gives_what_it_has() {
    for options in ["reserve=512MiB,wait_ms=0", "reserve=512MiB,backing=malloc,wait_ms=0"] {
        let bench = Bench::new(options);
        let theirs = bench.app(|machine| machine.memory_malloc(900 * MIB)).unwrap();
        let stream = Some(bench.stream());
        let block = bench.request(24 * MIB, 0, stream).unwrap();
        assert!(
            (100 * MIB..=124 * MIB).contains(&held(&bench)),
            "{options}: {}",
            held(&bench)
        );
        bench.app(|machine| machine.memory_free(theirs)).unwrap();
        let more = bench.request(200 * MIB, 0, stream).unwrap();
        let most = held(&bench);
        assert!(most < 512 * MIB, "{options}: {most}");
        [block, more].into_iter().for_each(|block| bench.put(block, stream));
        bench.machine.advance(1 << 40);
        bench.allocator.trim(Some(0), 0).unwrap();
        assert_eq!(held(&bench), most, "{options}");
        end(&bench);
    }
}

/// What is held does not fit every request, and is exchanged. A request that cannot be met costs nothing.
#[test]
fn reserve_is_exchanged_only_for_what_can_be_met() {
    for options in ["reserve=900MiB,wait_ms=0", "reserve=900MiB,limit=900MiB,wait_ms=0"] {
        let bench = Bench::new(options);
        let stream = Some(bench.stream());
        let first = bench.get(MIB, stream);
        let before = held(&bench);
        assert!(bench.request(1023 * MIB + 512, 0, stream).is_err());
        assert!(bench.request(1023 * MIB + 512, 0, None).is_err());
        assert_eq!(held(&bench), before, "{options}");
        let rest = bench.request(880 * MIB, 0, stream).unwrap();
        for block in [first, rest] {
            bench.put(block, stream);
        }
        bench.machine.advance(1 << 40);
        let large = bench.request(890 * MIB, RESIZABLE, None).unwrap();
        bench.put(large, None);
        end(&bench);
    }
}

#[test]
fn limit_headroom_and_passthrough_come_first() {
    for (options, most) in [
        ("reserve=512MiB,limit=100MiB", 100 * MIB),
        ("reserve=512MiB,limit=100MiB,backing=malloc", 100 * MIB),
        ("reserve=1GiB,headroom=900MiB", 124 * MIB),
        ("reserve=512MiB,passthrough=1", 4 * MIB),
    ] {
        let bench = Bench::new(options);
        let block = bench.get(MIB, None);
        assert!(
            held(&bench) <= most && held(&bench) + 4 * MIB >= most,
            "{options}: {}",
            held(&bench)
        );
        bench.put(block, None);
        end(&bench);
    }
}
