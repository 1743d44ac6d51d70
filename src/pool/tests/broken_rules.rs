//! The checker catches each rule that is broken on purpose. With the rule kept, the same work causes no violation.

use super::{Bench, MIB};
use crate::sync::breaking;

/// Runs `work` with every rule kept, and then with that rule broken; returns the violations of the second run.
fn noticed(rule: &'static str, options: &str, work: fn(&Bench)) -> Vec<String> {
    let cached = Bench::new(options);
    work(&cached);
    cached.finish();

    let bench = Bench::new(options);
    breaking(rule, || work(&bench));
    let wrong = bench.wrong();
    assert!(!wrong.is_empty(), "the order checker noticed nothing");
    wrong
}

#[test]
fn unordered_reuse_across_streams_is_noticed() {
    let wrong = noticed(
        "another stream's memory is taken behind its event",
        "limit=64MiB",
        |bench| {
            let (first, second) = (bench.stream(), bench.stream());
            bench.use_and_free(first, 32, MIB);
            // Memory is short, so the first stream records a completion event at its next request, and only for what it
            // freed so far.
            bench.use_and_free(second, 1, 48 * MIB);
            bench.use_and_free(first, 1, 2 * MIB);
            bench.use_and_free(first, 32, MIB);
            let block = bench.get(32 * MIB, Some(second));
            bench.launch(second, block, 32 * MIB);
            bench.put(block, Some(second));
        },
    );
    assert!(wrong[0].contains("not known to be over"), "{wrong:?}");
}

#[test]
fn reuse_in_the_cache_of_a_destroyed_stream_is_noticed() {
    let wrong = noticed("a stream is recognized by its id", "", |bench| {
        let dying = bench.stream();
        bench.use_and_free(dying, 4, 2 * MIB);
        bench.app(|machine| machine.stream_destroy(dying)).unwrap();
        let born = bench.stream();
        assert_eq!(born, dying, "the handle comes back");
        let block = bench.get(2 * MIB, Some(born));
        bench.put(block, Some(born));
    });
    assert!(wrong[0].contains("(destroyed)"), "{wrong:?}");
}

#[test]
fn early_unmap_is_noticed() {
    let wrong = noticed("what is in use is not unmapped", "", |bench| {
        let stream = bench.stream();
        bench.use_and_free(stream, 8, 4 * MIB);
        assert!(bench.allocator.trim(Some(0), 0).unwrap() >= 32 * MIB);
    });
    assert!(
        wrong.iter().all(|wrong| wrong.starts_with("cuMemUnmap of")),
        "{wrong:?}"
    );
}

#[test]
fn adjacent_ranges_of_two_owners_serve_one_request() {
    let wrong = noticed("what a stream freed stays its own", "", |bench| {
        let (first, second) = (bench.stream(), bench.stream());
        bench.use_and_free(first, 8, 4 * MIB);
        // This request misses, so what the stream freed is coalesced.
        let own = bench.get(6 * MIB, Some(first));
        let other = bench.get(10 * MIB, Some(second));
        bench.launch(second, other, 10 * MIB);
        bench.put(own, Some(first));
        bench.put(other, Some(second));
    });
    assert!(wrong[0].contains("not known to be over"), "{wrong:?}");
}
