//! One line a message on stderr.
