//! `weir serve`: the service.

use std::process::ExitCode;

use super::print;
use crate::app;
use crate::settings::{Flags, Settings};

pub(super) fn run(flags: Flags) -> anyhow::Result<ExitCode> {
    match app::serve(Settings::try_new(flags)?) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // Problems of files stand on lines of their own, as a compiler prints them.
        Err(app::StartError::Limits(problems)) => {
            for problem in &problems {
                print::error(problem);
            }
            anyhow::bail!("the limits cannot be used; `weir check` checks them without starting")
        }
        Err(error) => Err(error.into()),
    }
}
