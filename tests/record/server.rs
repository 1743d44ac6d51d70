//! A server's life: engines, requests on two streams, and two that are refused.

use trtalloc::driver::Stream;
use trtalloc::tags;

use crate::program::Program;

const MIB: u64 = 1 << 20;

/// Frames of its own, so that there are stacks to tell apart.
#[inline(never)]
fn load_engine(program: &Program, name: &str, layers: u64) -> Vec<u64> {
    tags::set(Some(name)).unwrap();
    let weights = (1..=layers)
        .map(|layer| program.get(layer * 1536 * 1024 + 512 * layer, None))
        .collect();
    tags::set(None).unwrap();
    weights
}

#[inline(never)]
fn serve(program: &Program, stream: Stream, request: u64, kept: &mut Vec<u64>) {
    tags::set(Some("requests")).unwrap();
    let stream = Some(stream);
    let scratch = activations(program, stream, request);
    let output = program.get((1 + request % 7) * 300_000, stream);
    kept.push(output);
    scratch.into_iter().for_each(|block| program.give(block, stream));
    if kept.len() > 40 {
        program.give(kept.remove((request * 13 % 40) as usize), stream);
    }
    tags::set(None).unwrap();
}

#[inline(never)]
fn activations(program: &Program, stream: Option<Stream>, request: u64) -> Vec<u64> {
    (0..4)
        .map(|layer| program.get((1 + (request * 31 + layer * 17) % 23) * 512 * 1024, stream))
        .collect()
}

/// A server that loads two engines, serves, and is refused what it asks for in the end.
pub fn server(options: &str, requests: u64) -> Program {
    let program = Program::new(&format!("history=all,limit=384MiB,wait_ms=0,{options}"));
    let streams = [program.stream(), program.stream()];
    load_engine(&program, "detector", 9);
    load_engine(&program, "classifier", 6);
    let mut kept = [Vec::new(), Vec::new()];
    for request in 0..requests {
        let at = (request % 2) as usize;
        serve(&program, streams[at], request, &mut kept[at]);
    }
    for (at, stream) in streams.into_iter().enumerate() {
        // What is used on two streams is pending until both are done.
        let Some(shared) = kept[at].pop() else { continue };
        program.allocator.record_stream(shared, streams[1 - at]).unwrap();
        program.application.launch(streams[1 - at], shared, 512).unwrap();
        program.give(shared, Some(stream));
    }
    assert!(
        program
            .allocator
            .allocate(crate::program::request(300 * MIB, Some(streams[0])))
            .is_err()
    );
    assert!(
        program
            .allocator
            .allocate(crate::program::request(800 * MIB, Some(streams[0])))
            .is_err()
    );
    program
}
