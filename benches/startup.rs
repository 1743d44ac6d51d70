//! The library's cost for a program into which it is preloaded and that never uses TensorRT: for the start of a
//! process, and for each dlsym.
//!
//!     cargo bench --bench startup

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

// Links the library, whose dlsym this program then uses.
use trtalloc as _;

unsafe extern "C" {
    fn dlvsym(library: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

type DlSym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The time from start to end of a program that does nothing.
fn start(preload: Option<&PathBuf>) -> Duration {
    let mut command = Command::new("/bin/true");
    command.stdin(Stdio::null()).env_remove("LD_PRELOAD");
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let begun = Instant::now();
    assert!(command.status().expect("/bin/true").success());
    begun.elapsed()
}

/// Nanoseconds for each look-up of `name`.
fn look_up(dlsym: DlSym, name: &CStr, times: u32) -> f64 {
    let rounds = (0..9).map(|_| {
        let begun = Instant::now();
        for _ in 0..times {
            // SAFETY: dlsym, with its default handle and a terminated name.
            std::hint::black_box(unsafe { dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
        }
        begun.elapsed()
    });
    median(rounds.collect()).as_nanos() as f64 / f64::from(times)
}

fn main() {
    // As a test (`cargo test --benches`), a few runs are enough.
    let (processes, times) = match std::env::args().any(|argument| argument == "--bench") {
        true => (401, 100_000),
        false => (3, 100),
    };
    let folder = std::env::current_exe()
        .expect("this program")
        .parent()
        .expect("its folder")
        .to_owned();
    let library = folder.join("libtrtalloc.so");
    assert!(library.exists(), "no {}", library.display());

    // Alternating, so that other load on the machine affects both.
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..processes {
        without.push(start(None));
        with.push(start(Some(&library)));
    }
    let (with, without) = (median(with), median(without));
    println!(
        "/bin/true, median of {processes} processes: {:.0} us",
        without.as_secs_f64() * 1e6
    );
    println!("the same with LD_PRELOAD:          {:.0} us", with.as_secs_f64() * 1e6);
    println!(
        "difference:                        {:.0} us",
        (with.as_secs_f64() - without.as_secs_f64()) * 1e6
    );

    let versions = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"];
    let real = versions.iter().find_map(|version| {
        // SAFETY: terminated names.
        let found = unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        // SAFETY: libc's dlsym.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, DlSym>(found) })
    });
    let real = real.expect("libc has dlsym");
    let ours = libc::dlsym as DlSym;
    assert!(ours as usize != real as usize, "dlsym is not the crate's");
    for name in [c"malloc", c"no_library_has_this", c"createInferRuntime_INTERNAL"] {
        let (real, ours) = (look_up(real, name, times), look_up(ours, name, times));
        println!("dlsym of {name:?}: {real:.0} ns, through trtalloc {ours:.0} ns");
    }
}
