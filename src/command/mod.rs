mod table;
pub fn main() -> std::process::ExitCode { let _ = table::mib(1); let _=table::size(1); let _=table::Table::new; std::process::ExitCode::SUCCESS }
