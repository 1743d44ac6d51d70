//! Runs the program: forwards signals, stops and continues with it as a job of the shell, and ends as it ends.

use std::io;
use std::mem::zeroed;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, pid_t, sigset_t};

/// How a program ended.
pub enum End {
    Status(u8),
    Signal(c_int),
}

/// The signals that are forwarded to the program. `SIGCHLD` is missing, since the program itself causes it here, and
/// so are signals that cannot be waited for.
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

/// The action for `SIGPIPE` with which this process was started. Rust's runtime overwrites it, and the program must
/// inherit the original one.
static SIGPIPE: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

/// Which of the descriptors 0 to 2 were closed at the start, a bit for each. Rust's runtime opens /dev/null for them.
static CLOSED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn save_initial_state() {
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

// SAFETY: the loader calls the functions in this section before `main`; the function uses nothing that is set up
// later.
#[unsafe(link_section = ".init_array")]
#[used]
static SAVE_INITIAL_STATE: extern "C" fn() = save_initial_state;

/// Whether a descriptor from 0 to 2 was closed when this command was started.
pub fn was_closed(descriptor: c_int) -> bool {
    CLOSED.load(Ordering::Relaxed) & 1 << descriptor != 0
}

/// Starts the program, calls `started`, and waits until the program has ended. Fails only where it cannot be started. The
/// threads that `started` begins have the signals blocked that are waited for here.
pub fn run(command: &mut Command, started: impl FnOnce()) -> io::Result<End> {
    // SAFETY: plain data, filled in by the calls.
    let (mut waited, mut before): (sigset_t, sigset_t) = unsafe { (zeroed(), zeroed()) };
    // SAFETY: sets on this stack frame.
    unsafe {
        libc::sigemptyset(&mut waited);
        for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
            libc::sigaddset(&mut waited, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &waited, &mut before);
    }
    // While `SIGCHLD` is ignored, the kernel does not report a child's end.
    // SAFETY: the default action is no function.
    let sigchld = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let (sigpipe, closed) = (SIGPIPE.load(Ordering::Relaxed), CLOSED.load(Ordering::Relaxed));
    // SAFETY: the closure makes only calls that are allowed between fork and exec.
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
    started();
    loop {
        // SAFETY: plain data, filled in by the call.
        let mut info: libc::siginfo_t = unsafe { zeroed() };
        // SAFETY: both are on this stack frame.
        let signal = unsafe { libc::sigwaitinfo(&waited, &mut info) };
        if signal == libc::SIGCHLD {
            if let Some(end) = look(child) {
                return Ok(end);
            }
        } else if signal > 0 && is_forwarded(&info, child) {
            // SAFETY: the child was not waited for yet, so the number is still its own.
            unsafe { libc::kill(child, signal) };
        }
    }
}

/// Whether to forward a signal. The terminal sends its signals to the program too, and the program gets what it sends
/// to its own group.
fn is_forwarded(info: &libc::siginfo_t, child: pid_t) -> bool {
    match info.si_code {
        // A timer that was set before this process executed the command. A timer that was set before this command
        // became what it is.
        libc::SI_KERNEL => info.si_signo == libc::SIGALRM,
        // SAFETY: signals with these codes have a sender.
        libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL => child != unsafe { info.si_pid() },
        code => code < 0,
    }
}

/// The child's end, if it has ended. One signal may stand for several changes.
fn look(child: pid_t) -> Option<End> {
    loop {
        let mut status = 0;
        // SAFETY: writes to this stack frame.
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
            // The shell waits for this process. The child continues when this process does.
            // SAFETY: these only send signals.
            unsafe {
                libc::raise(libc::SIGSTOP);
                libc::kill(child, libc::SIGCONT);
            }
        }
    }
}

/// Ends as the program did, so that the parent sees the same status. Leaves no core file, since the program left its
/// own.
pub fn end_likewise(signal: c_int) -> ExitCode {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain data on this stack frame; the last call does not return unless the signal is harmless.
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
