//! The same tests over every driver and every interface: what RMM's own tests require of an allocator, what TensorRT's
//! interface requires, and what the options promise.
//!
//! Each case runs through Rust, C and the C++ virtual functions, at these places: over the simulated device in this
//! process (`sim`); over CUDA through the simulated libcuda.so.1 in a process of its own (`cuda`); likewise through the
//! second simulated driver if it is available (`second`, see tests/stress/second); and over the installed GPU if there
//! is one (`gpu`). Over simulated drivers of older versions, which lack functions, cases run only through the C++
//! virtual functions. A case that cannot run here, or that a place does not support, is reported as ignored with the
//! reason. `TRTALLOC_TEST_DRIVER=sim` or `=cuda` restricts the run to `sim` or to `gpu`; these need neither cargo nor
//! another file.
//!
//! `application` has the application's side and the interfaces, `world` what connects both and checks the statistics, and
//! `cases` the requirements.

#[macro_use]
extern crate trial;

use trtalloc::driver::sim::model;

#[path = "../support/application/mod.rs"]
mod application;
#[path = "../support/ascendcl/mod.rs"]
mod ascendcl;
#[path = "../support/common/mod.rs"]
mod common;

mod cases;
mod world;

use application::{device, interface};
use ascendcl::{over, standin};
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
    ("limits::threshold_0_keeps_nothing", 12_050),
    ("limits::threshold_keeps_that_many_bytes", 12_050),
    ("limits::threshold_all_keeps_everything", 12_050),
    ("limits::large_blocks_are_released", 12_050),
    (
        "graphs::blocks_without_a_stream_hold_little_more_than_is_needed",
        12_050,
    ),
    ("bounds::streams_for_one_request_each_leave_little_memory", 12_050),
    ("bounds::streams_that_stop_requesting_leave_little_memory", 12_050),
    ("bounds::threads_for_one_request_each_leave_little_memory", 12_050),
    ("bounds::outputs_that_a_consumer_frees_leave_little_memory", 12_050),
    (
        "bounds::outputs_that_are_freed_without_a_stream_leave_little_memory",
        12_050,
    ),
    ("bounds::declared_blocks_leave_little_memory", 12_050),
    ("sharing::declared_block_is_reused_behind_its_streams", 12_000),
    ("streams::stream_reuses_what_it_freed_without_a_driver_call", 12_000),
    ("streams::pending_work_costs_no_memory_call", 12_000),
    ("streams::block_of_another_stream_goes_home", 12_000),
];

/// Cases that need what AscendCL does not report: the device of a stream that is not of the calling thread's context.
const NOT_ON_ASCEND: &[&str] = &["requests::each_device_has_its_pool"];

/// Cases that need what the second simulated driver does not do, though CUDA does. Its graphs compute nothing, so none
/// writes to memory. A captured launch is only a length of work there, while CUDA's child graph has references of its
/// own to the objects that the launched graph keeps (CUDA's Programming Guide, user objects).
const NOT_ON_SECOND: &[&str] = &[
    "resizing::graph_keeps_the_old_address",
    "graphs::child_graph_keeps_its_memory",
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
                .env("SIMCUDA_MEMORY", world::memory().to_string());
        }),
        Place::Second(version) => in_child(name, |command| {
            cudasim::environment(command, version, world::DEVICES, world::memory())
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
    requests { random_sizes_on_four_threads_keep_their_contents, default_streams_reuse_their_memory, each_device_has_its_pool }
    streams {
        other_stream_takes_freed_memory_behind_its_event, allocations_and_frees_with_and_without_streams_mix, memory_of_a_destroyed_stream_is_reclaimed,
        reused_stream_handle_waits_for_the_earlier_stream, memory_of_a_released_stream_serves_others, block_used_on_other_streams_waits_for_them,
        addresses_are_reused_on_many_threads, blocks_keep_their_contents,
        request_without_a_stream_waits_for_the_work, free_without_a_stream_waits_for_the_work
    }
    limits { growth_stops_at_the_limit, trim_releases_free_memory }
    resizing { move_keeps_the_bytes }
    graphs { captured_memory_belongs_to_the_graph, capture_reuses_its_own_memory, frees_without_a_stream_do_not_end_a_capture }
}

suite! {
    requests {
        request_for_zero_bytes_is_refused,
        sizes_from_4_bytes_to_1_gib_are_served,
        every_alignment_is_kept,
        bad_alignments_are_refused,
        request_for_a_pebibyte_is_refused,
        live_blocks_do_not_overlap,
        random_sizes_on_four_threads_keep_their_contents,
        null_may_be_freed,
        unknown_addresses_are_refused,
        second_free_is_refused,
        requests_work_without_a_context_and_leave_none,
        default_streams_reuse_their_memory,
        each_device_has_its_pool,
        sizes_beyond_any_device_are_refused,
    }
    streams {
        consumer_on_the_same_stream_reuses_at_once,
        consumer_on_another_stream_waits_for_the_producer,
        stream_reuses_what_it_freed_without_a_driver_call,
        pending_work_costs_no_memory_call,
        block_of_another_stream_goes_home,
        other_stream_takes_freed_memory_behind_its_event,
        request_without_a_stream_waits_for_the_work,
        free_without_a_stream_waits_for_the_work,
        allocations_and_frees_with_and_without_streams_mix,
        memory_of_a_destroyed_stream_is_reclaimed,
        reused_stream_handle_waits_for_the_earlier_stream,
        memory_of_a_released_stream_serves_others,
        block_used_on_other_streams_waits_for_them,
        addresses_are_reused_on_many_threads,
        blocks_keep_their_contents,
    }
    sharing {
        declared_block_is_reused_behind_its_streams,
        block_declared_for_the_default_stream_without_a_context_is_reused,
        declared_block_waits_for_its_streams,
        declared_block_waits_for_a_destroyed_stream,
        frees_of_a_stream_that_never_allocates_are_reclaimed,
        two_streams_share_memory_under_a_limit,
    }
    bounds {
        streams_for_one_request_each_leave_little_memory,
        streams_that_stop_requesting_leave_little_memory,
        threads_for_one_request_each_leave_little_memory,
        outputs_that_a_consumer_frees_leave_little_memory,
        outputs_that_are_freed_without_a_stream_leave_little_memory,
        declared_blocks_leave_little_memory,
    }
    limits {
        headroom_stays_free,
        passthrough_counts_what_the_driver_takes,
        idle_memory_decays,
        reserve_is_held_until_the_end,
        growth_stops_at_the_limit,
        limit_holds_when_the_driver_fails,
        limit_set_later_releases_free_memory,
        pending_memory_counts_towards_the_limit,
        trim_releases_free_memory,
        peaks_are_exact_and_can_be_reset,
        threshold_0_keeps_nothing,
        threshold_keeps_that_many_bytes,
        threshold_all_keeps_everything,
        large_blocks_are_released,
        close_releases_everything,
        memory_that_work_uses_at_the_close_goes_back_later,
    }
    resizing {
        growth_in_place_copies_nothing,
        move_keeps_the_bytes,
        shrink_keeps_the_address,
        small_growth_makes_few_driver_calls,
        failed_resize_leaves_the_block,
        only_resizable_blocks_are_resized,
        resize_with_work_pending_keeps_the_bytes,
        growth_waits_for_the_work_on_the_block_before,
        random_resizes_keep_every_byte,
        random_resizes_by_copies_keep_every_byte,
        copy_waits_for_the_work,
        copy_does_not_end_a_capture,
        graph_keeps_the_old_address,
        shrink_releases_whole_handles,
        repeated_resizes_make_no_mapping,
        small_block_is_served_where_no_page_is_free,
        resize_with_another_alignment_is_refused,
        resize_and_free_at_once_take_turns,
    }
    options {
        backing_malloc_serves_requests,
        passthrough_calls_the_driver_for_each_request,
        guard_leaves_a_page_unmapped,
        fill_overwrites_new_and_freed_memory,
        trusted_streams_are_not_queried,
        pinned_memory_serves_requests,
        pinned_memory_waits_for_the_stream_that_used_it,
        pinned_memory_of_a_graph_is_used_once,
    }
    external {
        external_memory_serves_requests,
        six_thousand_external_bytes_serve_requests,
        external_memory_follows_ascends_rule,
        external_memory_follows_ascends_media_rule,
        external_memory_may_start_anywhere,
        external_memory_has_one_pool_for_all_devices,
        stream_of_another_device_gets_external_memory,
        pools_follow_ascends_rule,
    }
    rmm {
        most_of_the_device_can_be_allocated,
        threads_share_one_stream,
        consumer_on_a_default_stream_reuses_what_it_frees,
        destroyed_streams_lose_no_memory,
    }
    graphs {
        captured_memory_belongs_to_the_graph,
        capture_reuses_its_own_memory,
        memory_from_before_a_capture_is_usable_in_its_graph,
        dropped_graph_returns_its_memory,
        frees_without_a_stream_do_not_end_a_capture,
        engines_that_come_and_go_end_no_capture,
        engines_that_come_and_go_end_no_declared_capture,
        small_blocks_without_a_stream_end_no_capture,
        small_blocks_without_a_stream_end_no_declared_capture,
        request_at_the_limit_ends_no_capture_that_is_seen,
        memory_freed_beside_a_capture_comes_back,
        blocks_without_a_stream_hold_little_more_than_is_needed,
        replayed_graph_keeps_its_memory_while_the_pool_is_busy,
        captures_at_once_do_not_share_memory,
        failed_capture_returns_its_memory,
        child_graph_keeps_its_memory,
    }
    unseen_captures {
        context_events_end_one_capture_that_is_not_seen,
        context_events_end_no_declared_capture_that_is_not_seen,
    }
}

/// A renamed case would run where it cannot.
#[test]
fn cases_that_cannot_run_everywhere_exist() {
    let needs = NEEDS.iter().map(|(case, _)| case);
    for listed in needs.chain(NOT_ON_ASCEND).chain(NOT_ON_SECOND) {
        let case = listed.split("::").last().unwrap();
        let lines = include_str!("main.rs").lines().map(str::trim);
        let count = lines.filter(|line| line.trim_end_matches(',') == case).count();
        assert_eq!(count, 1, "{listed}");
    }
}
