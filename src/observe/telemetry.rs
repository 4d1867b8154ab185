//! Logs: their level, format and writer.
//!
//! Each event is one line on stderr, whatever its text: bytes of a client must not forge a line or
//! a field, or control a terminal. Audit lines are written at every level.

mod lines;

use std::io::IsTerminal;

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use lines::Lines;
pub use lines::json_error;

/// The target of audit lines, which they show: a collector of logs finds them by it.
pub const AUDIT: &str = "weir::audit";

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object per line, with the keys `@timestamp`, `level` and `@message`, and one key
    /// for each field.
    Json,
}

/// Why logs cannot be started.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The level is not one.
    #[error(
        "`{0}` is not a log level; write error, warn, info, debug or trace, or targets such as \
         `info,weir=debug`"
    )]
    Level(String),
    /// Logs were already started in this process.
    #[error("logs were started twice")]
    Twice,
}

/// The writer of the logs, a thread of its own: a stalled reader of stderr must not stall a
/// request. When the reader does not keep up, lines are dropped and counted. Dropping this value
/// writes the lines that are queued.
#[derive(Debug)]
pub struct Logs {
    _writer: WorkerGuard,
    dropped: ErrorCounter,
}

impl Logs {
    /// Reads the number of lines that were dropped so far.
    pub fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let dropped = self.dropped.clone();
        move || dropped.dropped_lines() as u64
    }
}

/// Lines that wait for the reader of stderr at most.
const MAX_QUEUED_LINES: usize = 8_192;

/// Starts the logs of the process. `level` is a level in any letter case (also
/// envoyproxy/ratelimit's: warning, fatal, panic), or a list of targets with levels; empty means
/// info.
///
/// # Errors
/// [`Error`].
pub fn init(level: &str, format: Format) -> Result<Logs, Error> {
    let filter = filter(level)?;
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(MAX_QUEUED_LINES)
        .finish(std::io::stderr());
    let logs_of_process = Logs {
        _writer: guard,
        dropped: writer.error_counter(),
    };
    // An error of writing would be printed to stderr, which panics when stderr is closed.
    let lines = layer().with_writer(writer).log_internal_errors(false);
    let logs = tracing_subscriber::registry().with(filter);
    let format = match format {
        Format::Text => Lines::Text {
            colours: std::io::stderr().is_terminal(),
        },
        Format::Json => Lines::Json,
    };
    let started = logs.with(lines.event_format(format)).try_init();
    started.map(|()| logs_of_process).map_err(|_| Error::Twice)
}

/// The filter of a level, which audit lines always pass. `debug` and `trace` alone apply to Weir's
/// own events: those of HTTP/2 and of the runtime would bury them.
///
/// # Errors
/// [`Error::Level`].
fn filter(level: &str) -> Result<EnvFilter, Error> {
    let invalid = || Error::Level(level.to_owned());
    let lower = level.trim().to_ascii_lowercase();
    let directives = match lower.as_str() {
        "" | "info" => "info",
        "warn" | "warning" => "warn",
        "error" | "fatal" | "panic" => "error",
        "off" => "off",
        "debug" => "info,weir=debug",
        "trace" => "info,weir=trace",
        // EnvFilter takes any other single word as a target, so that a misspelled level would turn
        // off all logs.
        targets if targets.contains(['=', ',']) => level.trim(),
        _ => return Err(invalid()),
    };
    let filter = EnvFilter::builder()
        .with_regex(false)
        .parse(directives)
        .map_err(|_| invalid())?;
    // The most specific directive decides, and one for the same target replaces it.
    Ok(filter.add_directive(format!("{AUDIT}=info").parse().map_err(|_| invalid())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_both_services_are_understood() {
        for (level, filtered) in [
            ("INFO", "weir::audit=info,info"),
            ("", "weir::audit=info,info"),
            (" Warning ", "weir::audit=info,warn"),
            ("panic", "weir::audit=info,error"),
            ("off", "weir::audit=info,off"),
            ("DEBUG", "weir::audit=info,weir=debug,info"),
            (
                "warn,weir::live=trace",
                "weir::audit=info,weir::live=trace,warn",
            ),
            ("weir=off,weir::audit=off", "weir::audit=info,weir=off"),
        ] {
            assert_eq!(
                filter(level).map(|filter| filter.to_string()),
                Ok(filtered.to_owned()),
                "{level}"
            );
        }
    }

    #[test]
    fn a_misspelled_level_is_refused() {
        for level in ["inof", "verbose", "weir=loud", "5=6=7"] {
            assert_eq!(filter(level).err(), Some(Error::Level(level.to_owned())));
        }
    }
}
