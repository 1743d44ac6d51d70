//! The clock that the simulated driver, the library and the test in this process live by, in place of the C library's. It
//! passes when it is looked at (`begin`), so that waiting costs nothing and with one thread a run repeats exactly; or it is real
//! time that can be set forward (`shift`), so that work of any length is over when a test says so.
//!
//! The names are the C library's. They are defined in the test's executable, which the dynamic linker asks first.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Nanoseconds since the clock began; 0: time is real.
static NOW: AtomicU64 = AtomicU64::new(0);
/// How far real time was set forward.
static SHIFT: AtomicU64 = AtomicU64::new(0);
/// What each look at the clock takes.
const LOOK: u64 = 50;
/// Pauses longer than this are given up where time is set forward.
const PAUSE: u64 = 1_000_000;

thread_local! {
    /// A thread for which no time passes: the one on which the driver runs host functions. It waits until others are so far.
    static PASSIVE: Cell<bool> = const { Cell::new(false) };
}

/// From now on time is simulated.
pub fn begin() {
    NOW.store(1_000_000_000, SeqCst);
}

pub fn advance(nanoseconds: u64) {
    NOW.fetch_add(nanoseconds, SeqCst);
}

/// Sets real time forward, where it is not so far yet.
pub fn shift(until: u64) {
    SHIFT.fetch_add((until + 1).saturating_sub(real()), SeqCst);
}

/// No time passes by what the calling thread does.
pub fn be_passive() {
    PASSIVE.set(true);
}

fn split(nanoseconds: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    }
}

fn join(time: libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Real time, as far forward as it was set.
fn real() -> u64 {
    let mut now = split(0);
    // SAFETY: a place to write to.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &mut now) };
    join(now) + SHIFT.load(SeqCst)
}

fn really_sleep(nanoseconds: u64) {
    let nothing = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: a time, and no place for the rest.
    unsafe { libc::syscall(libc::SYS_nanosleep, &split(nanoseconds), nothing) };
}

#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: libc::clockid_t, out: *mut libc::timespec) -> c_int {
    let now = match NOW.load(Relaxed) {
        _ if clock != libc::CLOCK_MONOTONIC => {
            // SAFETY: the arguments are the caller's, for the system call of that name.
            return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, out) as c_int };
        }
        0 => real(),
        now if PASSIVE.get() => now,
        _ => NOW.fetch_add(LOOK, Relaxed) + LOOK,
    };
    // SAFETY: the caller of clock_gettime gives a place to write to.
    unsafe { out.write(split(now)) };
    0
}

fn sleep(time: u64) -> c_int {
    if PASSIVE.get() {
        // Others' time passes meanwhile.
        really_sleep(20_000);
    } else if NOW.load(Relaxed) > 0 {
        advance(time);
        std::thread::yield_now();
    } else {
        let until = real() + time;
        while let Some(left) = until.checked_sub(real()).filter(|left| *left > 0) {
            really_sleep(left.min(PAUSE));
        }
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn nanosleep(request: *const libc::timespec, _rest: *mut libc::timespec) -> c_int {
    // SAFETY: the caller of nanosleep gives a time.
    sleep(join(unsafe { request.read() }))
}

#[unsafe(no_mangle)]
extern "C" fn clock_nanosleep(
    clock: libc::clockid_t,
    flags: c_int,
    request: *const libc::timespec,
    rest: *mut libc::timespec,
) -> c_int {
    // SAFETY: the caller gives a time.
    let request = unsafe { request.read() };
    let passed = match flags {
        0 => 0,
        _ => {
            let mut now = split(0);
            clock_gettime(clock, &mut now);
            join(now)
        }
    };
    let _ = rest;
    sleep(join(request).saturating_sub(passed))
}

/// The standard library's hash maps begin with these numbers: the same ones in each process, for a run to repeat.
#[unsafe(no_mangle)]
extern "C" fn getrandom(out: *mut u8, bytes: usize, _flags: u32) -> isize {
    // SAFETY: the caller of getrandom gives a place for so many bytes.
    unsafe { out.write_bytes(0x5a, bytes) };
    bytes as isize
}

/// The program's addresses are the same each time.
pub fn fix_addresses(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let fix = || {
        // SAFETY: a system call with numbers. Where it is refused, addresses vary.
        unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
        Ok(())
    };
    // SAFETY: the child makes one system call there.
    unsafe { command.pre_exec(fix) };
}
