//! The binary `weir`; all of it is in the library, so that tests can use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir::cli::run(std::env::args_os())
}
