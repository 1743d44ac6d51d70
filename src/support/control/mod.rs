//! The control socket, by which `trtalloc ctl` looks into a process and steers it.
//!
//! A process whose options have `control=1` serves a socket once it has its first memory. Only its own effective user and
//! root are answered. The helper thread serves one connection after the other. It waits for a client at most two seconds,
//! and a request is one message of at most 4 KiB. The server opens no file for a client and takes no descriptor from it:
//! what a request asks for is sent through the connection.
//!
//! `src/command/ctl` is the client. The part that runs the commands is `src/allocator/commands.rs`.

use std::io::Write;
use std::sync::OnceLock;

use crate::support::error::Result;
use crate::support::{helper_thread, process};

pub mod protocol;
mod server;
pub mod socket_file;

pub use protocol::Request;

/// Runs a request. What it writes is sent to the client; so is its error.
pub type Handler = fn(&Request, &mut dyn Write) -> Result<()>;

/// Serves the process's socket from now on. The first call counts. Where that is not possible, the log has the reason.
pub fn begin(handler: Handler) {
    static SERVER: OnceLock<Option<server::Server>> = OnceLock::new();
    if SERVER.get().is_some() || process::usable().is_err() {
        return;
    }
    let server = SERVER.get_or_init(|| {
        let server = server::Server::create(handler);
        server
            .inspect_err(|reason| tracing::info!("trtalloc ctl cannot reach this process: {reason}"))
            .ok()
    });
    if let Some(server) = server
        && server.starts()
        && !helper_thread::serve(server)
    {
        tracing::info!("trtalloc ctl cannot reach this process: no thread can be started");
        helper_thread::Source::end(server);
    }
}
