//! The command `trtalloc`; see `src/command`.

mod command;

fn main() -> std::process::ExitCode {
    command::main()
}
