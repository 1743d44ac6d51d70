//! The same tests over every driver and every interface: what RMM's own tests require of an allocator, what TensorRT's
//! interface requires, and what the options promise.
//!
//! Each case runs through Rust, C and the C++ virtual functions, at these places: over the simulated device in this
//! process (`sim`); over CUDA through the simulated libcuda.so.1 in a process of its own (`cuda`); likewise through the
//! second simulated driver if it is available (`second`, see tests/second_driver); and over the installed GPU if there
//! is one (`gpu`). Over simulated drivers of older versions, which lack functions, cases run only through the C++
//! virtual functions. A case that cannot run here, or that a place does not support, is reported as ignored with the
//! reason. `TRTALLOC_TEST_DRIVER=sim` or `=cuda` restricts the run to `sim` or to `gpu`; these need neither cargo nor
//! another file.
//!
//! `interface` has the interfaces, `device` the application's side, `world` what connects both and checks the statistics,
//! and `cases` the requirements.

#[macro_use]
extern crate trial;

use trtalloc::driver::sim::model;

#[path = "../common/mod.rs"]
mod common;
#[path = "../ascend/over.rs"]
mod over;
#[path = "../ascend/standin/mod.rs"]
mod standin;

mod cases;
mod device;
mod interface;
mod world;

use common::{cudasim, simcuda};

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use interface::Way;
use world::Setup;

fn main() -> std::process::ExitCode {
    common::harness::main()
}

const ROLE: &str = "TRTALLOC_TEST_ROLE";

/// The newest simulated driver, and others without context events, then also without stream ids, then also without
/// graphs' destructors.
const NOW: u32 = 12_090;
const V12_4: u32 = 12_040;
const V11_8: u32 = 11_080;
const V11_2: u32 = 11_020;

/// Cases that need what older drivers cannot do, and the version they need. Without context events, what was freed
/// without a stream is pending until its memory is needed. Without stream ids, a stream has no cache, reuse is behind
/// an event, and a block of several streams waits for the context.
const NEEDS: &[(&str, u32)] = &[
    ("limits::keep_nothing", 12_050),
    ("limits::keep_some", 12_050),
    ("limits::keep_all", 12_050),
    ("limits::large_blocks_go_back", 12_050),
    ("sharing::a_shared_block_comes_back_behind_its_streams", 12_000),
    ("streams::a_stream_reuses_what_it_freed_without_a_driver_call", 12_000),
];

/// Cases that need what AscendCL does not report: the device of a stream that is not of the calling thread's context.
const NOT_ON_ASCEND: &[&str] = &["requests::several_devices"];

/// Cases that need what the second simulated driver does not do, though CUDA does. Its graphs compute nothing, so none
/// writes to memory. A captured launch is only a length of work there, while CUDA's child graph has references of its
/// own to the objects that the launched graph keeps (CUDA's Programming Guide, user objects).
const NOT_ON_SECOND: &[&str] = &[
    "resizing::a_graph_keeps_the_old_address",
    "graphs::a_graph_inside_a_graph",
];

/// The driver and device that a case runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The simulated device in this process, with a driver of that version.
    Sim(u32),
    /// The simulated libcuda.so.1 of that version.
    Cuda(u32),
    /// The second simulated driver's libcuda.so.1 of that version, if it is available.
    Second(u32),
    /// The installed driver.
    Gpu,
    /// The driver for Ascend devices over a stand-in for AscendCL, which has the functions of CUDA 11.2. Cases run one
    /// at a time, since a process has one AscendCL.
    Ascend,
}

/// The place that `TRTALLOC_TEST_DRIVER` selects; `None`: all of them.
fn wanted() -> Option<Place> {
    match env::var("TRTALLOC_TEST_DRIVER").as_deref() {
        Ok("sim") => Some(Place::Sim(NOW)),
        Ok("cuda") => Some(Place::Gpu),
        Ok("") | Err(_) => None,
        Ok(other) => panic!("TRTALLOC_TEST_DRIVER={other} is neither sim nor cuda"),
    }
}

/// Whether a GPU responds.
fn has_gpu() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        use trtalloc::driver::Driver;
        trtalloc::driver::cuda::CudaDriver::open()
            .is_ok_and(|driver| driver.device_count().is_ok_and(|count| count > 0))
    })
}

fn simulated_library() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| simcuda::directory().expect("the simulated libcuda.so.1 is there or can be built"))
}

fn run(place: Place, way: Way, name: &str, case: fn(&Setup)) {
    // Many cases cause refusals on purpose; TRTALLOC_LOG shows them.
    if env::var_os("TRTALLOC_LOG").is_none() {
        trtalloc::log::init(trtalloc::config::LogLevel::Off);
    }
    if env::var(ROLE).is_ok_and(|role| role == name) {
        return case(&Setup::cuda(way));
    }
    let of = |place: Place| matches!(place, Place::Sim(_));
    if wanted().is_some_and(|wanted| wanted != place && !(of(wanted) && of(place))) {
        common::unsupported("TRTALLOC_TEST_DRIVER wants another driver");
    }
    let version = match place {
        Place::Sim(version) | Place::Cuda(version) | Place::Second(version) => version,
        Place::Gpu => NOW,
        Place::Ascend => V11_2,
    };
    if let Some((_, needs)) = NEEDS
        .iter()
        .find(|(case, needs)| name.ends_with(case) && version < *needs)
    {
        common::unsupported(&format!(
            "needs a driver of CUDA {}.{}",
            needs / 1000,
            needs % 1000 / 10
        ));
    }
    if place == Place::Ascend && NOT_ON_ASCEND.iter().any(|case| name.ends_with(case)) {
        common::unsupported("AscendCL does not report what this needs");
    }
    if matches!(place, Place::Second(_)) && NOT_ON_SECOND.iter().any(|case| name.ends_with(case)) {
        common::unsupported("the second simulated driver does not do what this asks for");
    }
    match place {
        Place::Sim(version) => case(&Setup::sim(way, version)),
        Place::Cuda(version) => in_child(name, |command| {
            command
                .env("LD_LIBRARY_PATH", simulated_library())
                .env("SIMCUDA_VERSION", version.to_string())
                .env("SIMCUDA_DEVICES", world::DEVICES.to_string())
                .env("SIMCUDA_MEMORY", world::MEMORY.to_string());
        }),
        Place::Second(version) => in_child(name, |command| {
            cudasim::environment(command, version, world::DEVICES, world::MEMORY)
        }),
        Place::Gpu if has_gpu() => in_child(name, |_| {}),
        Place::Gpu if wanted().is_some() => panic!("no GPU answers"),
        Place::Gpu => common::unsupported("no GPU; on one: tests/gpu/pack, then TRTALLOC_TEST_DRIVER=cuda"),
        Place::Ascend => case(&Setup::ascend(way)),
    }
}

/// Runs the test of that name again, in a process whose driver `environment` selects.
fn in_child(name: &str, environment: impl FnOnce(&mut Command)) {
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, name);
    environment(&mut command);
    let output = command.output().expect("a child process starts");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{name}: {}\n{stdout}\n{stderr}",
        output.status
    );
    // The child prints a line if memory is taken away under pending work, or if work is out of bounds.
    assert!(
        !stderr.contains("simcuda:") && !stderr.contains("cudasim:"),
        "{name}:\n{stderr}"
    );
}

/// Generates a test for each case, place and interface. Older drivers need only one interface, and their libraries only
/// a few cases.
macro_rules! suite {
    ($($group:ident { $($case:ident),* $(,)? })*) => {
        suite!(@ways sim (Place::Sim(NOW)) $($group { $($case),* })*);
        suite!(@ways cuda (Place::Cuda(NOW)) $($group { $($case),* })*);
        suite!(@ways gpu (Place::Gpu) $($group { $($case),* })*);
        suite!(@ways second (Place::Second(NOW)) $($group { $($case),* })*);
        suite!(@place second_12_4 (Place::Second(V12_4)) $($group { $($case),* })*);
        suite!(@place second_11_8 (Place::Second(V11_8)) $($group { $($case),* })*);
        suite!(@place second_11_2 (Place::Second(V11_2)) $($group { $($case),* })*);
        suite!(@place sim_12_4 (Place::Sim(V12_4)) $($group { $($case),* })*);
        suite!(@place sim_11_8 (Place::Sim(V11_8)) $($group { $($case),* })*);
        suite!(@place sim_11_2 (Place::Sim(V11_2)) $($group { $($case),* })*);
        suite!(@place ascend (Place::Ascend) $($group { $($case),* })*);
    };
    (@libraries $($group:ident { $($case:ident),* $(,)? })*) => {
        suite!(@place cuda_12_4 (Place::Cuda(V12_4)) $($group { $($case),* })*);
        suite!(@place cuda_11_8 (Place::Cuda(V11_8)) $($group { $($case),* })*);
        suite!(@place cuda_11_2 (Place::Cuda(V11_2)) $($group { $($case),* })*);
    };
    (@ways $outer:ident $place:tt $($group:ident { $($case:ident),* })*) => {
        mod $outer {
            suite!(@way $outer $place rust Rust $($group { $($case),* })*);
            suite!(@way $outer $place c C $($group { $($case),* })*);
            suite!(@way $outer $place vtable Vtable $($group { $($case),* })*);
        }
    };
    (@place $outer:ident $place:tt $($group:ident { $($case:ident),* })*) => {
        mod $outer {
            suite!(@way $outer $place vtable Vtable $($group { $($case),* })*);
        }
    };
    (@way $outer:ident $place:tt $module:ident $way:ident $($group:ident { $($case:ident),* })*) => {
        mod $module {
            $(mod $group {
                use crate::*;

                $(#[test]
                fn $case() {
                    let name = concat!(
                        stringify!($outer), "::", stringify!($module), "::", stringify!($group), "::", stringify!($case)
                    );
                    run($place, Way::$way, name, cases::$group::$case);
                })*
            })*
        }
    };
}

suite! { @libraries
    requests { random_sizes_on_four_threads, default_streams, several_devices }
    streams {
        another_stream_waits_its_turn, mixed_ways_to_allocate_and_free, a_stream_dies_while_it_owns_freed_memory,
        a_handle_comes_back_with_work_pending, a_released_stream_serves_others, a_block_used_on_other_streams,
        addresses_come_back_on_many_threads, blocks_keep_their_own_contents,
        a_caller_without_a_stream_waits_for_the_work, freed_without_a_stream_waits_for_the_work
    }
    limits { growth_under_a_limit, trimming }
    resizing { moving_keeps_the_bytes }
    graphs { captured_memory_is_the_graphs, reuse_inside_a_capture, frees_without_a_stream_wait_for_a_capture }
}

suite! {
    requests {
        zero_bytes,
        from_4_bytes_to_1_gib,
        every_alignment,
        bad_alignments,
        a_pebibyte_fails_cleanly,
        two_live_blocks_differ,
        random_sizes_on_four_threads,
        null_is_taken_back,
        unknown_addresses_do_no_harm,
        freed_twice,
        no_context_is_needed_and_none_is_left,
        default_streams,
        several_devices,
        sizes_of_no_device,
    }
    streams {
        producer_and_consumer_on_one_stream,
        producer_and_consumer_on_two_streams,
        a_stream_reuses_what_it_freed_without_a_driver_call,
        another_stream_waits_its_turn,
        a_caller_without_a_stream_waits_for_the_work,
        freed_without_a_stream_waits_for_the_work,
        mixed_ways_to_allocate_and_free,
        a_stream_dies_while_it_owns_freed_memory,
        a_handle_comes_back_with_work_pending,
        a_released_stream_serves_others,
        a_block_used_on_other_streams,
        addresses_come_back_on_many_threads,
        blocks_keep_their_own_contents,
    }
    sharing {
        a_shared_block_comes_back_behind_its_streams,
        a_block_declared_for_the_default_stream_without_a_context_comes_back,
        a_shared_block_waits_for_its_streams,
        a_shared_block_outlives_the_stream_it_was_declared_for,
        a_consumer_that_never_allocates,
        two_streams_that_take_turns_under_a_cap,
    }
    limits {
        growth_under_a_limit,
        a_cap_is_rolled_back_when_the_driver_fails,
        a_limit_set_later,
        pending_memory_counts,
        trimming,
        peaks,
        keep_nothing,
        keep_some,
        keep_all,
        large_blocks_go_back,
        closing,
    }
    resizing {
        in_place,
        moving_keeps_the_bytes,
        shrinking,
        by_small_amounts,
        failure_leaves_the_block,
        only_what_was_asked_resizable,
        with_work_pending,
        byte_for_byte,
        byte_for_byte_by_copies,
        a_copy_waits_for_the_work,
        a_copy_ends_no_capture,
        a_graph_keeps_the_old_address,
        whole_handles_go_back,
        a_loop_needs_no_mapping,
        another_alignment,
        with_a_free_at_the_same_time,
    }
    options {
        malloc_backing,
        passthrough,
        guard,
        fill,
        trusted_streams,
        pinned,
        pinned_memory_waits_for_the_stream_that_used_it,
        pinned_memory_of_a_graph,
    }
    external {
        over_memory_of_the_caller,
        six_thousand_bytes,
        by_ascends_rule,
        by_ascends_media_rule,
        an_odd_base,
        one_pool_for_every_device,
        a_stream_of_another_device,
        pools_of_our_own_by_ascends_rule,
    }
    rmm {
        most_of_the_device,
        threads_on_one_stream,
        producer_and_consumer_on_default_streams,
        deleted_streams,
    }
    graphs {
        captured_memory_is_the_graphs,
        reuse_inside_a_capture,
        memory_allocated_before_a_capture,
        a_graph_dropped_before_it_is_made_executable,
        frees_without_a_stream_wait_for_a_capture,
        a_graph_is_replayed_while_the_pool_is_busy,
        several_captures_at_once,
        a_capture_that_fails,
        a_graph_inside_a_graph,
    }
}
