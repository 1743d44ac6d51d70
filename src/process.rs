//! What the process is doing: exiting, or the child of a fork. Read before any lock.
