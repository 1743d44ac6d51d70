//! Lines on stderr. It works while thread-locals are being destroyed and in a process that has closed its stderr.

use crate::support::process;

/// Writes one line in one call. Text that cannot be written is lost.
pub(crate) fn line(text: &str) {
    // A message is one line, even if it quotes text with line feeds.
    let line = text.replace('\n', " ") + "\n";
    // The program may never write there itself, and must not end where stderr is a closed pipe or a file that is too large.
    let written = process::without_write_signals(|| {
        // SAFETY: the buffer is valid for its length. stderr may be closed.
        match unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) } {
            0.. => Ok(()),
            _ => Err(()),
        }
    });
    // There is no other place for it.
    let _ = written;
}
