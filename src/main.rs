//! Parse, run the command, map its error to an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir::cli::run(std::env::args_os())
}
