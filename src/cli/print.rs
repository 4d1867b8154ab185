//! Writing to stdout and stderr, either of which may be closed, full, or read only for a line by `head`.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Context;

/// Writes `text` to stdout as it is; false: nobody reads any more, so that further words are for nothing.
///
/// # Errors
/// It cannot be written, for another reason than that nobody reads it.
pub(super) fn out(text: impl Display) -> anyhow::Result<bool> {
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("stdout cannot be written"),
    }
}

/// Writes a line to stderr. When that fails too, nobody is left to tell.
pub(super) fn error(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
