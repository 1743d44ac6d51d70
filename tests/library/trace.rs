//! Traces: reading and writing, the peak, the generators, and replay on an allocator that can do nothing wrong.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{Read, Write};

use proptest::prelude::*;
use trtalloc::driver::Stream;
use trtalloc::error::{Error, Result};
use trtalloc::stats::Stats;
use trtalloc::trace::generate::{NAMES, generate};
use trtalloc::trace::replay::{ReplayTarget, replay};
use trtalloc::trace::serve::{Load, Pace};
use trtalloc::trace::{GRANULE, OpKind, Trace, csv};

fn read(text: &str) -> Result<Trace> {
    csv::read(text.as_bytes())
}

fn refusal(text: &str) -> String {
    match read(text) {
        Ok(trace) => panic!("read {trace:?}"),
        Err(error) => error.to_string(),
    }
}

fn text_of(trace: &Trace) -> String {
    let mut text = Vec::new();
    csv::write(trace, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn columns_are_found_by_name_and_others_skipped() {
    let trace =
        read("time,bytes,stream,id,op\r\n1.5,100,7,0x2,alloc\r\n\r\n2.5,200,,2,realloc\n3.5,,9,2,free").unwrap();
    let rows: Vec<_> = trace.ops().iter().map(|op| (op.kind, op.bytes, op.stream)).collect();
    assert_eq!(
        rows,
        [
            (OpKind::Alloc { resizable: true }, 100, Some(0)),
            (OpKind::Realloc, 200, None),
            (OpKind::Free, 200, Some(1))
        ]
    );
    assert_eq!(trace.streams(), [7, 9]);
    assert_eq!(trace.blocks(), 1);
}

#[test]
fn without_a_stream_column_all_is_on_one_stream() {
    let trace = read("op,id,bytes\nalloc,0,1\nalloc,1,1\nfree,0,1\n").unwrap();
    assert!(trace.ops().iter().all(|op| op.stream == Some(0)));
    assert_eq!(trace.streams().len(), 1);
    assert_eq!(trace.leftovers().collect::<Vec<_>>(), [(1, Some(0))]);
}

#[test]
fn gzip_is_known_by_its_first_bytes() {
    let plain = text_of(&generate("varying", 3).unwrap());
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(plain.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    assert_eq!(csv::read(&packed[..]).unwrap(), read(&plain).unwrap());
    let error = csv::read(&packed[..packed.len() / 2]).unwrap_err();
    assert!(
        matches!(&error, Error::Io(text) if text.starts_with("line ")),
        "{error}"
    );
}

#[test]
fn errors_name_the_line_and_what_is_wrong() {
    let cases = [
        ("", "line 1: no header"),
        ("op,id\n", "line 1: the header \"op,id\" has no column \"bytes\""),
        ("op,id,bytes,id\n", "line 1: column \"id\" occurs twice"),
        ("op,id,bytes\nalloc,1\n", "line 2: 2 columns, the header has 3"),
        ("op,id,bytes\nalloc,1,2,3\n", "line 2: 4 columns, the header has 3"),
        (
            "op,id,bytes\n\nalloc,1,10\nalloc,1,10\n",
            "line 4: alloc of id 1, which is still live",
        ),
        ("op,id,bytes\nfree,1,10\n", "line 2: free of id 1, which is not live"),
        (
            "op,id,bytes\nalloc,1,1\nfree,1,1\nfree,1,1\n",
            "line 4: free of id 1, which is not live",
        ),
        (
            "op,id,bytes\nrealloc,1,10\n",
            "line 2: realloc of id 1, which is not live",
        ),
        ("op,id,bytes\nalloc,1,0\n", "line 2: 0 bytes cannot be allocated"),
        ("op,id,bytes\nalloc,1,\n", "line 2: bytes \"\""),
        ("op,id,bytes\nalloc,x,1\n", "line 2: id \"x\""),
        ("op,id,bytes\nalloc,1,-5\n", "line 2: bytes \"-5\""),
        (
            "op,id,bytes\nalloc,1,99999999999999999999\n",
            "line 2: bytes \"99999999999999999999\"",
        ),
        ("op,id,bytes,stream\nalloc,1,1,a\n", "line 2: stream \"a\""),
        (
            "op,id,bytes\nmalloc,1,1\n",
            "line 2: op \"malloc\"; expected alloc, free or realloc",
        ),
    ];
    for (text, expected) in cases {
        let said = refusal(text);
        assert!(said.contains(expected), "{text:?} gave {said:?}, not {expected:?}");
    }
    // A file of zeros, compressed or not, has one line that does not end, and the message has little of it.
    for begin in ["", "op,id,bytes\nalloc,1,"] {
        let endless = begin.as_bytes().chain(std::io::repeat(b'0'));
        let said = csv::read(std::io::BufReader::new(endless)).unwrap_err().to_string();
        let line = 1 + begin.lines().count().saturating_sub(1);
        assert!(
            said.ends_with(&format!("line {line}: longer than 65536 bytes")),
            "{said}"
        );
    }
    let said = refusal(&format!("{}\n", "h".repeat(60_000)));
    assert!(said.contains("has no column \"op\"") && said.len() < 400, "{said}");
    assert!(
        csv::read(&b"op,id,bytes\nalloc,\xff,1\n"[..])
            .unwrap_err()
            .to_string()
            .contains("line 2: not UTF-8")
    );
}

#[test]
fn a_written_trace_reads_as_the_same_trace() {
    for (name, _) in NAMES {
        let trace = generate(name, 11).unwrap();
        assert_eq!(read(&text_of(&trace)).unwrap(), trace, "{name}");
    }
    let threads = "op,id,bytes,stream,thread\nalloc,0,5,3,9\nalloc,1,6,,4\nrealloc,0,7,3,9\nfree,0,7,8,4\n";
    assert_eq!(text_of(&read(threads).unwrap()), threads);
    // An unknown thread, and a resize without a stream.
    let times =
        "op,id,bytes,stream,thread,time_us\nalloc,0,5,3,9,0\nalloc,1,6,,,7\nrealloc,0,7,,9,7\nfree,0,7,8,,900\n";
    assert_eq!(text_of(&read(times).unwrap()), times);
}

#[test]
fn times_begin_with_the_first_row_and_never_decrease() {
    let rows = |text: &str| read(&format!("op,id,bytes,time_us\n{text}"));
    let trace = rows("alloc,0,5,1000000\nalloc,1,5,\nfree,0,0,1000250\nfree,1,0,\n").unwrap();
    let times: Vec<u64> = trace.ops().iter().map(|op| op.time).collect();
    assert_eq!((times, trace.length()), (vec![0, 0, 250, 250], 250));
    assert!(trace.has_times());
    assert!(!read("op,id,bytes\nalloc,0,5\n").unwrap().has_times());
    let backwards = rows("alloc,0,5,70\nfree,0,0,90\nalloc,0,5,80\n")
        .unwrap_err()
        .to_string();
    assert!(
        backwards.contains("line 4: time_us 80 is before 90, that of a row above"),
        "{backwards}"
    );
    let before_all = rows("alloc,0,5,70\nfree,0,0,60\n").unwrap_err().to_string();
    assert!(
        before_all.contains("line 3: time_us 60 is before 70, that of a row above"),
        "{before_all}"
    );
    let words = rows("alloc,0,5,noon\n").unwrap_err().to_string();
    assert!(words.contains("line 2: time_us \"noon\""), "{words}");
}

/// A trace that an older version reads: it ignores the columns that it does not know.
#[test]
fn a_trace_with_times_has_the_columns_of_one_without() {
    let with = read("op,id,bytes,stream,thread,time_us\nalloc,0,5,3,9,0\nfree,0,5,3,9,8\n").unwrap();
    let text = text_of(&with);
    let without: String = text
        .lines()
        .map(|line| line.rsplit_once(',').unwrap().0.to_owned() + "\n")
        .collect();
    let old = read(&without).unwrap();
    assert_eq!(
        (old.streams(), old.threads(), old.has_times()),
        (&[3][..], &[9][..], false)
    );
    let ops = |trace: &Trace| -> Vec<_> {
        trace
            .ops()
            .iter()
            .map(|op| (op.kind, op.bytes, op.stream, op.thread))
            .collect()
    };
    assert_eq!(ops(&old), ops(&with));
}

/// Half a million rows with as many streams and threads as a trace can have are read, and become a load, in seconds.
#[test]
fn large_traces_are_read_in_time_that_grows_with_their_rows() {
    let mut text = String::from("op,id,bytes,stream,thread,time_us\n");
    for row in 0..250_000u64 {
        let (stream, thread) = (row % 65_000, row * 7 % 65_000);
        text += &format!("alloc,{row},4096,{stream},{thread},{}\n", row * 2);
        text += &format!("free,{row},4096,{stream},{thread},{}\n", row * 2 + 1);
    }
    let begun = std::time::Instant::now();
    let trace = read(&text).unwrap();
    let pace = Pace {
        speed: 1.0,
        work: None,
        ahead: 2,
        passes: 3,
    };
    let load = Load::new(&trace, pace);
    let took = begun.elapsed();
    assert_eq!(
        (load.requests(), load.streams(), trace.threads().len()),
        (250_000, 65_000, 65_000)
    );
    assert!(took.as_secs() < 20, "{took:?}");
}

#[test]
fn a_seed_always_makes_the_same_trace() {
    for (name, _) in NAMES {
        let trace = generate(name, 1).unwrap();
        assert_eq!(trace, generate(name, 1).unwrap(), "{name}");
        assert_ne!(trace, generate(name, 2).unwrap(), "{name}");
    }
    assert!(generate("nothing", 1).is_none());
    // The numbers themselves are fixed, on every machine: FNV-1a over the rows as text.
    let hashes: Vec<u64> = NAMES
        .iter()
        .map(|(name, _)| fnv(&text_of(&generate(name, 1).unwrap())))
        .collect();
    assert_eq!(
        hashes,
        [
            6538634000264986445,
            2273960643572356507,
            8279310106577977670,
            15560318132111677276,
            1842161207654263134
        ]
    );
}

fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn generated_traces_are_large_enough_to_mean_something() {
    for (name, _) in NAMES {
        let trace = generate(name, 1).unwrap();
        let (rows, peak) = (trace.ops().len(), trace.peak());
        println!(
            "{name}: {rows} rows, {} blocks, peak {} MiB",
            trace.blocks(),
            peak >> 20
        );
        assert!((20_000..=100_000).contains(&rows), "{name} has {rows} rows");
        let most = if name == "large" { 8 << 30 } else { 4 << 30 };
        assert!((256 << 20..=most).contains(&peak), "{name} has a peak of {peak}");
        assert_eq!(trace.leftovers().count(), 0, "{name}");
    }
    assert_eq!(generate("streams", 1).unwrap().streams().len(), 4);
    assert!(
        generate("growing", 1)
            .unwrap()
            .ops()
            .iter()
            .any(|op| op.kind == OpKind::Realloc)
    );
}

/// Hands out addresses that never come again, up to a limit, and remembers which are out.
#[derive(Default)]
struct Naive {
    limit: u64,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    out: HashMap<u64, (u64, bool)>,
    in_use: u64,
    peak: u64,
    calls: u64,
}

impl Naive {
    fn with_limit(limit: u64) -> Naive {
        Naive {
            limit,
            ..Naive::default()
        }
    }
}

fn rounded(size: u64) -> u64 {
    size.div_ceil(GRANULE) * GRANULE
}

impl ReplayTarget for Naive {
    fn allocate(&self, size: u64, resizable: bool, _: Option<Stream>) -> Result<u64> {
        let mut state = self.state.borrow_mut();
        state.calls += 1;
        if state.in_use + rounded(size) > self.limit {
            return Err(Error::OutOfMemory("the cap".into()));
        }
        state.next += 1;
        let address = state.next << 20;
        state.out.insert(address, (size, resizable));
        state.in_use += rounded(size);
        state.peak = state.peak.max(state.in_use);
        Ok(address)
    }

    fn reallocate(&self, address: u64, size: u64) -> Result<u64> {
        let mut state = self.state.borrow_mut();
        state.calls += 1;
        let (old, resizable) = state.out[&address];
        assert!(resizable, "a block that is resized was not asked for as resizable");
        if state.in_use - rounded(old) + rounded(size) > self.limit {
            return Err(Error::OutOfMemory("the cap".into()));
        }
        state.in_use = state.in_use - rounded(old) + rounded(size);
        state.peak = state.peak.max(state.in_use);
        state.out.insert(address, (size, true));
        Ok(address)
    }

    fn deallocate(&self, address: u64, _: Option<Stream>) -> Result<()> {
        let mut state = self.state.borrow_mut();
        state.calls += 1;
        let (size, _) = state.out.remove(&address).expect("freed what is not out");
        state.in_use -= rounded(size);
        Ok(())
    }

    fn stats(&self) -> Result<Stats> {
        let state = self.state.borrow();
        Ok(Stats {
            reserved: state.in_use,
            reserved_peak: state.peak,
            ..Stats::default()
        })
    }

    fn reset_peaks(&self) -> Result<()> {
        let mut state = self.state.borrow_mut();
        state.peak = state.in_use;
        Ok(())
    }
}

const STREAMS: [Stream; 4] = [Stream(10), Stream(11), Stream(12), Stream(13)];

#[test]
fn replay_makes_every_call_and_the_peak_is_the_naive_one() {
    for (name, _) in NAMES {
        let trace = generate(name, 5).unwrap();
        let memory = Naive::with_limit(u64::MAX);
        for _ in 0..2 {
            let pass = replay(&trace, &memory, &STREAMS, &mut ()).unwrap();
            assert_eq!(pass.ops, trace.ops().len() as u64);
            assert_eq!((pass.failures, pass.reserved), (0, 0));
            assert_eq!(pass.peak, trace.peak());
            assert_eq!(pass.peak, pass.reserved_peak, "{name}");
            assert_eq!(pass.ratio(), 1.0);
        }
        assert_eq!(memory.state.borrow().calls, 2 * trace.ops().len() as u64);
    }
}

#[test]
fn refusals_are_counted_and_survived() {
    for (name, _) in NAMES {
        let trace = generate(name, 5).unwrap();
        let memory = Naive::with_limit(trace.peak() / 2);
        let pass = replay(&trace, &memory, &STREAMS, &mut ()).unwrap();
        assert!(pass.failures > 0, "{name}");
        assert!(pass.first_failure.as_ref().is_some_and(|text| text.contains("the cap")));
        assert_eq!(pass.peak, pass.reserved_peak, "{name}");
        assert!(pass.ops < trace.ops().len() as u64);
        assert!(memory.state.borrow().out.is_empty());
    }
}

#[test]
fn blocks_left_by_a_trace_are_freed() {
    let trace = read("op,id,bytes\nalloc,0,600\nalloc,1,100\nrealloc,1,3000\n").unwrap();
    let memory = Naive::with_limit(u64::MAX);
    let pass = replay(&trace, &memory, &STREAMS, &mut ()).unwrap();
    assert_eq!((pass.ops, pass.peak), (3, 1024 + 3072));
    assert!(memory.state.borrow().out.is_empty());
    assert!(
        replay(&trace, &memory, &[], &mut ()).is_err(),
        "there is no stream to run it on"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_trace_survives_writing_and_any_refusals(
        steps in prop::collection::vec((0u8..3, any::<u8>(), 1u64..1 << 30, prop::option::of(0u64..5)), 0..200),
        callers in prop::collection::vec((prop::option::of(0u64..9), 0u64..1 << 40), 0..200),
        limit in 0u64..1 << 32,
    ) {
        let mut trace = Trace::new();
        let mut live = Vec::new();
        let mut callers = callers.into_iter();
        let mut now = 0;
        for (kind, which, bytes, stream) in steps {
            if kind != 0 && live.is_empty() {
                continue;
            }
            if let Some((thread, later)) = callers.next() {
                prop_assert!(trace.set_thread(thread));
                now += if trace.ops().is_empty() { 0 } else { later };
                prop_assert!(trace.set_time(now));
            }
            let stream = stream.and_then(|label| trace.stream(label));
            match kind {
                0 => live.push(trace.alloc(bytes, stream)),
                1 => trace.free(live.swap_remove(which as usize % live.len()), stream),
                _ => trace.realloc(&live[which as usize % live.len()], bytes, stream),
            }
        }
        let streams: Vec<Stream> = (10..15).map(Stream).collect();
        let memory = Naive::with_limit(limit);
        let pass = replay(&trace, &memory, &streams, &mut ()).unwrap();
        prop_assert_eq!(pass.peak, pass.reserved_peak);
        prop_assert!(memory.state.borrow().out.is_empty());
        let again = read(&text_of(&trace)).unwrap();
        prop_assert_eq!(again.ops(), trace.ops());
        prop_assert_eq!(again.peak(), trace.peak());
    }
}
