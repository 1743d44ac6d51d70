//! The first and the last bytes of the caller's memory, and memory that is too small.

use trtalloc::ffi::c::trtalloc_status;

use super::pool::{HostMemory, PAGE, Pool};

/// Options, the distance between pieces of 1000 bytes, the smallest piece, and the alignment of pieces.
const RULES: &[(&str, u64, u64, usize)] = &[
    ("driver=none,rule=ascend", 1088, 64, 64),
    ("driver=none,rule=ascend,pad=16", 1088, 64, 64),
    ("driver=none,rule=ascend,pad=0", 1024, 64, 64),
    ("driver=none,rule=ascend-media", 1152, 128, 128),
    ("driver=none,rule=ascend-host", 1088, 64, 64),
    ("driver=none,rule=cuda", 1024, 512, 512),
];

#[test]
fn pool_of_exactly_one_piece_works() {
    for &(options, stride, _, start) in RULES {
        let memory = HostMemory::new(4 * PAGE);
        // At a start; one byte after a start, which loses the bytes up to the next; and one byte before a start.
        for (shift, lost) in [(start, 0), (start + 1, start - 1), (3 * start - 1, 1)] {
            let base = memory.address() + shift;
            let pool = Pool::over(base, stride + lost as u64, options).unwrap();
            let block = pool.get(1000, 0);
            assert_eq!(block, base + lost, "{options} +{shift}");
            assert_eq!(pool.get(1, 0), 0, "{options} +{shift}: all of it is out");
            assert_eq!(pool.stats().reserved, stride);
            assert!(pool.put(block));
            assert_eq!(pool.get(1000, 0), block, "{options} +{shift}");
            // With one byte less, at either end, one piece less fits.
            let pool = Pool::over(base, stride + lost as u64 - 1, options).unwrap();
            assert_eq!(pool.get(1000, 0), 0, "{options} +{shift}");
            assert_eq!(pool.stats().out_of_memory, 1);
            let less = 1000 - start as u64;
            assert!(
                less == 488 || pool.get(less, 0) != 0,
                "{options} +{shift}: the remaining memory can be allocated"
            );
        }
    }
}

#[test]
fn memory_below_one_piece_is_refused() {
    for &(options, _, least, start) in RULES {
        let memory = HostMemory::new(PAGE);
        let base = memory.address();
        let refused = |base: usize, bytes: u64| {
            let Err((status, why)) = Pool::over(base, bytes, options) else {
                panic!("{options}: {bytes} bytes at {base:#x} were taken")
            };
            assert_eq!(status, trtalloc_status::InvalidArgument);
            why
        };
        let why = refused(base, least - 1);
        assert!(why.contains(&format!("takes {least} bytes")), "{why}");
        refused(base + 1, least);
        refused(base + 1, least + start as u64 - 2);
        assert!(Pool::over(base + 1, least + start as u64 - 1, options).is_ok());
        assert!(Pool::over(base, least, options).is_ok());
    }
}

#[test]
fn invalid_memory_is_refused() {
    for (base, bytes, says) in [
        (0, 1 << 20, "nothing is there"),
        (PAGE, 0, "nothing is there"),
        (PAGE, u64::MAX, "beyond the last address"),
        (usize::MAX - 10, 5, "beyond the last address"),
        (usize::MAX - 4095, 4096, "beyond the last address"),
        (PAGE, 1 << 60, "more than 4 TiB"),
        (PAGE, (4 << 40) + 1, "more than 4 TiB"),
    ] {
        let (status, why) = Pool::over(base, bytes, "driver=none,rule=ascend").err().unwrap();
        assert_eq!(status, trtalloc_status::InvalidArgument, "{base:#x}+{bytes:#x}");
        assert!(why.contains(says), "{base:#x}+{bytes:#x}: {why}");
    }
    let memory = HostMemory::new(PAGE);
    for (options, says) in [
        ("passthrough=1", "passthrough=1 with memory of the caller's"),
        ("guard=1", "guard=1 with memory of the caller's"),
        ("fill=0", "fill with no driver"),
        ("limit=50%", "a limit in percent with no driver"),
    ] {
        let (status, why) = Pool::over(memory.address(), 4096, &format!("driver=none,{options}"))
            .err()
            .unwrap();
        assert_eq!(status, trtalloc_status::Unsupported, "{options}");
        assert!(why.contains(says), "{options}: {why}");
    }
    let (status, _) = Pool::over(memory.address(), 4096, "driver=none,device=1")
        .err()
        .unwrap();
    assert_eq!(status, trtalloc_status::InvalidArgument);
}

/// The larger of the request's alignment and the rule's applies, to addresses and not to distances from the base.
#[test]
fn larger_of_both_alignments_applies() {
    let memory = HostMemory::new(8 << 20);
    for &(options, _, _, start) in RULES {
        for shift in [0, 1, 100, 4000] {
            let pool = Pool::over(memory.address() + shift, (8 << 20) - shift as u64, options).unwrap();
            for power in 0..=21 {
                let block = pool.get(1000, 1 << power);
                assert!(
                    block != 0 && block.is_multiple_of(start.max(1 << power)),
                    "{options} +{shift}: 2^{power}"
                );
                assert!(pool.put(block));
            }
            assert_eq!(pool.get(1000, 1 << 22), 0);
            assert_eq!(pool.get(1000, 48), 0);
        }
    }
}

/// A block of one pool is memory like any other.
#[test]
fn pool_over_a_block_of_another_pool_works() {
    let memory = HostMemory::new(16 * PAGE);
    let outer = Pool::over(memory.address(), 16 * PAGE as u64, "driver=none,rule=ascend").unwrap();
    let block = outer.get(4000, 0);
    // ALIGN_UP[4000, 32] + 32: all bytes that its owner may use.
    let inner = Pool::over(block, 4032, "driver=none,rule=ascend-media").unwrap();
    let pieces: Vec<usize> = std::iter::repeat_with(|| inner.get(1000, 0))
        .take_while(|piece| *piece != 0)
        .collect();
    assert!((2..=3).contains(&pieces.len()), "{pieces:?}");
    let others: Vec<usize> = (0..4).map(|_| outer.get(1000, 0)).collect();
    for piece in &pieces {
        assert!(*piece >= block && piece + 1056 <= block + 4032);
        assert!(
            others
                .iter()
                .all(|other| other + 1056 <= *piece || piece + 1056 <= *other)
        );
    }
    assert!(pieces.into_iter().all(|piece| inner.put(piece)));
    assert!(outer.put(block));
}
