//! Lines on stderr. It works while thread-locals are being destroyed and in a process that has closed its stderr.

/// Writes one line in one call; what cannot be written is lost.
pub(crate) fn line(text: &str) {
    // A message is one line, whatever is quoted in it.
    let line = text.replace('\n', " ") + "\n";
    // SAFETY: sets and a time of this frame, and a buffer that is valid for its length; stderr need not be open.
    unsafe {
        // A reader that has gone is no reason for the program to end, which may never write there itself.
        let (mut pipe, mut before) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        let held = libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before) == 0;
        let written = libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        if held && libc::sigismember(&before, libc::SIGPIPE) == 0 {
            if written < 0 {
                libc::sigtimedwait(&pipe, std::ptr::null_mut(), &std::mem::zeroed());
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
    }
}
