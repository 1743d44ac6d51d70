//! The command `trtalloc`; see `src/command/`.

#[path = "../command/mod.rs"]
mod command;

fn main() -> std::process::ExitCode {
    command::main()
}
