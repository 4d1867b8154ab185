//! `weir serve`: the service.

use std::process::ExitCode;

use super::print;
use crate::app;
use crate::settings::{Flags, Settings};

pub(super) fn run(flags: Flags) -> anyhow::Result<ExitCode> {
    match app::serve(Settings::try_new(flags)?) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // One line per problem, in the format of compilers.
        Err(app::StartError::Limits(problems)) => {
            for problem in &problems {
                print::error(problem);
            }
            anyhow::bail!("the limit files cannot be used; `weir check` checks them without a start")
        }
        Err(error) => Err(error.into()),
    }
}
