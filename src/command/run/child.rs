//! The program while it runs: signals go on to it, it stops and continues as a job of the shell's, and its end is ours.

use std::io;
use std::mem::zeroed;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, pid_t, sigset_t};

/// How a program came to its end.
pub enum End {
    Status(u8),
    Signal(c_int),
}

/// What others send this command is meant for the program. Not among them: what the program itself causes here (`SIGCHLD`),
/// and what nobody can wait for.
const FORWARDED: [c_int; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGTSTP,
];

/// What this process was told to do about `SIGPIPE` when it was started. Rust's start overwrites it, and a program that
/// inherits another answer dies where it would not, or the other way round.
static SIGPIPE: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

/// Which of the three usual descriptors were closed then, a bit for each: Rust's start opens /dev/null for them.
static CLOSED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note_the_start() {
    // SAFETY: plain data, written by the call; neither call changes anything.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) == 0 {
            SIGPIPE.store(action.sa_sigaction, Ordering::Relaxed);
        }
        let closed = (0..3).filter(|&descriptor| libc::fcntl(descriptor, libc::F_GETFD) < 0);
        CLOSED.store(closed.map(|descriptor| 1 << descriptor).sum(), Ordering::Relaxed);
    }
}

// SAFETY: the loader calls what lies here before `main`; the function needs nothing that is set up later.
#[unsafe(link_section = ".init_array")]
#[used]
static NOTE_THE_START: extern "C" fn() = note_the_start;

/// Starts the program and stays until it has ended. An error is one of starting it.
pub fn run(command: &mut Command) -> io::Result<End> {
    // SAFETY: plain data, filled in by the calls.
    let (mut waited, mut before): (sigset_t, sigset_t) = unsafe { (zeroed(), zeroed()) };
    // SAFETY: sets of this frame.
    unsafe {
        libc::sigemptyset(&mut waited);
        for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
            libc::sigaddset(&mut waited, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &waited, &mut before);
    }
    // Where it is ignored, nobody hears of a child's end.
    // SAFETY: the default is no function.
    let sigchld = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let (sigpipe, closed) = (SIGPIPE.load(Ordering::Relaxed), CLOSED.load(Ordering::Relaxed));
    // SAFETY: the closure only makes calls that are allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGCHLD, sigchld);
            libc::signal(libc::SIGPIPE, sigpipe);
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
            for descriptor in (0..3).filter(|descriptor| closed & 1 << descriptor != 0) {
                libc::close(descriptor);
            }
            Ok(())
        });
    }
    let child = command.spawn()?.id() as pid_t;
    loop {
        // SAFETY: plain data, filled in by the call.
        let mut told: libc::siginfo_t = unsafe { zeroed() };
        // SAFETY: both are of this frame.
        let signal = unsafe { libc::sigwaitinfo(&waited, &mut told) };
        if signal == libc::SIGCHLD {
            if let Some(end) = look(child) {
                return Ok(end);
            }
        } else if signal > 0 && is_meant_for_it(&told, child) {
            // SAFETY: the child was not waited for yet, so the number is its.
            unsafe { libc::kill(child, signal) };
        }
    }
}

/// Whether a signal is to be passed on. What the terminal sends, it sends to the program too; and what the program sends to its
/// group, it has.
fn is_meant_for_it(told: &libc::siginfo_t, child: pid_t) -> bool {
    match told.si_code {
        // A timer that was set before this command became what it is.
        libc::SI_KERNEL => told.si_signo == libc::SIGALRM,
        // SAFETY: these have a sender.
        libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL => child != unsafe { told.si_pid() },
        code => code < 0,
    }
}

/// What became of the child, if anything. Several changes may have made one signal.
fn look(child: pid_t) -> Option<End> {
    loop {
        let mut status = 0;
        // SAFETY: writes to this frame.
        let found = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG | libc::WUNTRACED) };
        if found != child {
            return None;
        }
        if libc::WIFEXITED(status) {
            return Some(End::Status(libc::WEXITSTATUS(status) as u8));
        }
        if libc::WIFSIGNALED(status) {
            return Some(End::Signal(libc::WTERMSIG(status)));
        }
        let job = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        if libc::WIFSTOPPED(status) && job.contains(&libc::WSTOPSIG(status)) {
            // The shell waits for this process; it goes on when that does.
            // SAFETY: these only send signals.
            unsafe {
                libc::raise(libc::SIGSTOP);
                libc::kill(child, libc::SIGCONT);
            }
        }
    }
}

/// Ends as the program did, so that who waits for this command sees the same. A core file is the program's to leave.
pub fn end_likewise(signal: c_int) -> ExitCode {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain data of this frame; the last call does not return, unless the signal is one that ends nothing.
    unsafe {
        let mut set: sigset_t = zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, null_mut());
        libc::raise(signal);
    }
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}
