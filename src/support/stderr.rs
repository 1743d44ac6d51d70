//! Lines on stderr. It works while thread-locals are being destroyed and in a process that has closed its stderr.

/// Writes one line in one call. Text that cannot be written is lost.
pub(crate) fn line(text: &str) {
    // A message is one line, even if it quotes text with line feeds.
    let line = text.replace('\n', " ") + "\n";
    // SAFETY: the sets and the time are on this stack frame, and the buffer is valid for its length. stderr may be
    // closed.
    unsafe {
        // If stderr is a closed pipe, SIGPIPE must not end the program, which may never write there itself.
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
