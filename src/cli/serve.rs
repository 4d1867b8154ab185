//! `weir serve`: the service.

use std::process::ExitCode;

use super::UnusableFiles;
use crate::process::app;
use crate::process::settings::{Flags, SettingSources, Settings};

/// Serves with `flags`. `ignored` are the names of arguments that were ignored, because the program
/// was started as `ratelimit`.
pub(super) fn run(
    flags: Flags,
    sources: &SettingSources,
    ignored: &[String],
) -> anyhow::Result<ExitCode> {
    let mut settings = Settings::try_new(flags, sources.clone())?;
    if !ignored.is_empty() {
        let line = "started as `ratelimit`, Weir ignores arguments that it does not know";
        let warning = format!("{line}: {}", ignored.join(", "));
        settings.warnings.push(warning);
    }
    match app::serve(settings) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(app::StartError::Limits(problems)) => Err(UnusableFiles::Limits(problems).into()),
        Err(error) => Err(error.into()),
    }
}
