//! `weir serve`: the service.

use std::process::ExitCode;

use super::UnusableLimits;
use crate::app;
use crate::settings::{Flags, Settings};

pub(super) fn run(flags: Flags) -> anyhow::Result<ExitCode> {
    match app::serve(Settings::try_new(flags)?) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(app::StartError::Limits(problems)) => Err(UnusableLimits(problems).into()),
        Err(error) => Err(error.into()),
    }
}
