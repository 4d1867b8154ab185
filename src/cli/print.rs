//! Output to stdout and stderr, either of which may be closed, full, or a pipe whose reader has ended.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Context;
use serde::Serialize;

/// Who reads the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A value as JSON on one line.
///
/// # Errors
/// A map whose keys are not text.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string(value).context("the output cannot be written as JSON")? + "\n")
}

/// Writes `text` to stdout as it is. False: the reader of the pipe has ended, so that further output is useless.
///
/// # Errors
/// Any other error of stdout.
pub(super) fn out(text: impl Display) -> anyhow::Result<bool> {
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("stdout cannot be written"),
    }
}

/// Writes a line to stderr. An error is ignored: it could not be printed either.
pub(super) fn error(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
