//! The manual's table, row by row: the memory that each call returns, and the rules for pieces carved from it.

use super::pool::{HostMemory, Pool, last_error};

/// The memory that one call returns, and what pieces carved from it must meet.
struct Row {
    /// The call that allocates the large block.
    call: &'static str,
    /// The rule for it.
    rule: &'static str,
    /// The guaranteed alignment of the block's address.
    given: usize,
    /// Bytes behind each piece, on this chip.
    pad: u64,
    /// The required alignment of each piece.
    start: usize,
    /// For each piece: the requested bytes, the bytes that its owner may use, and the distance to the next piece.
    pieces: &'static [(u64, u64, u64)],
}

// ALIGN_UP[len, 32] + 32 bytes, rounded up to a multiple of 64 or 128. Computed by hand, like the manual's example:
// 1000 → 1024 → 1056 → 1088 at 64 and 1152 at 128.
const AT_64: &[(u64, u64, u64)] = &[
    (1, 64, 64),
    (31, 64, 64),
    (32, 64, 64),
    (33, 96, 128),
    (64, 96, 128),
    (1000, 1056, 1088),
    (1024, 1056, 1088),
    (1025, 1088, 1088),
    (4095, 4128, 4160),
    (100_000, 100_032, 100_032),
];
const AT_128: &[(u64, u64, u64)] = &[
    (1, 64, 128),
    (32, 64, 128),
    (33, 96, 128),
    (96, 128, 128),
    (97, 160, 256),
    (1000, 1056, 1152),
    (1025, 1088, 1152),
    (4095, 4128, 4224),
    (100_000, 100_032, 100_096),
];
// Chips whose compiler pads by 16 bytes, or not at all.
const AT_64_PAD_16: &[(u64, u64, u64)] = &[
    (1, 48, 64),
    (33, 80, 128),
    (1000, 1040, 1088),
    (1025, 1072, 1088),
    (4095, 4112, 4160),
];
const AT_64_PAD_0: &[(u64, u64, u64)] = &[
    (1, 32, 64),
    (33, 64, 64),
    (1000, 1024, 1024),
    (1025, 1056, 1088),
    (4095, 4096, 4096),
];
const AT_128_PAD_16: &[(u64, u64, u64)] = &[(1, 48, 128), (33, 80, 128), (1000, 1040, 1152), (4095, 4112, 4224)];
const AT_128_PAD_0: &[(u64, u64, u64)] = &[
    (1, 32, 128),
    (33, 64, 128),
    (1000, 1024, 1024),
    (1025, 1056, 1152),
    (4095, 4096, 4096),
];

const fn row(call: &'static str, rule: &'static str, given: usize, start: usize) -> Row {
    Row {
        call,
        rule,
        given,
        pad: 32,
        start,
        pieces: if start == 64 { AT_64 } else { AT_128 },
    }
}

const fn padded(rule: &'static str, start: usize, pad: u64, pieces: &'static [(u64, u64, u64)]) -> Row {
    Row {
        call: "on a chip with another pad",
        rule,
        given: start,
        pad,
        start,
        pieces,
    }
}

const TABLE: &[Row] = &[
    row("aclrtMalloc", "ascend", 64, 64),
    // It adds no 32 bytes, and its alignment is not documented: the pieces keep their own 32 bytes and their own
    // alignment.
    row("aclrtMallocAlign32", "ascend", 32, 64),
    row("aclrtMallocCached", "ascend", 64, 64),
    row("acldvppMalloc", "ascend-media", 128, 128),
    row("hi_mpi_dvpp_malloc", "ascend-media", 128, 128),
    row("aclrtMallocHost", "ascend-host", 64, 64),
    // The manual advises 128 where memory of several calls is carved in the same way.
    row("several of them", "ascend-media", 32, 128),
    padded("ascend", 64, 16, AT_64_PAD_16),
    padded("ascend", 64, 0, AT_64_PAD_0),
    padded("ascend-host", 64, 16, AT_64_PAD_16),
    padded("ascend-media", 128, 16, AT_128_PAD_16),
    padded("ascend-media", 128, 0, AT_128_PAD_0),
];

#[test]
fn pieces_follow_the_manuals_table() {
    let room = 1 << 20;
    for row in TABLE {
        // Exactly the guaranteed alignment, and addresses that no call returns.
        for shift in [0, row.given, 3 * row.given, 1, 33, 63, 127] {
            let memory = HostMemory::new(room);
            let (base, bytes) = (memory.address() + shift, room - shift - 77);
            let options = format!("driver=none,rule={},pad={}", row.rule, row.pad);
            let what = format!("{} by {options} at +{shift}", row.call);
            let pool = Pool::over(base, bytes as u64, &options).unwrap_or_else(|(_, why)| panic!("{what}: {why}"));
            let (mut asked, mut carved) = (0, 0);
            for &(length, extent, stride) in row.pieces {
                let blocks = [pool.get(length, 0), pool.get(length, 0)];
                let (first, second) = (blocks[0].min(blocks[1]), blocks[0].max(blocks[1]));
                assert!(first != 0, "{what}: {length}: {}", last_error());
                assert!(
                    first.is_multiple_of(row.start) && second.is_multiple_of(row.start),
                    "{what}: {length}"
                );
                assert_eq!((second - first) as u64, stride, "{what}: {length}");
                assert!(
                    first >= base && second + extent as usize <= base + bytes,
                    "{what}: {length}"
                );
                (asked, carved) = (asked + 2 * length, carved + 2 * stride);
                let stats = pool.stats();
                assert_eq!((stats.requested, stats.allocated), (asked, carved), "{what}: {length}");
                // Both owners write all of their bytes.
                memory.fill(second, extent, 2);
                memory.fill(first, extent, 1);
                assert!(
                    memory.is(second, extent, 2) && memory.is(first, extent, 1),
                    "{what}: {length}"
                );
            }
            assert_eq!(pool.stats().reserved % row.start as u64, 0);
        }
    }
}
