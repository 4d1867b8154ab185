//! Logs: where they go, how much of them, and what a line looks like.
//!
//! One event is one line on stderr, whatever its text holds: a client's bytes must not be able to forge a line or to drive a terminal.

mod lines;

use std::io::IsTerminal;

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use lines::{Json, Text};

/// What a line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line, with the keys `@timestamp`, `level` and `@message`; fields stand beside them.
    Json,
}

/// Logs cannot be started.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The level is none.
    #[error("`{0}` is no log level; write error, warn, info, debug or trace, or targets such as `info,weir=debug`")]
    Level(String),
    /// Something in this process has started logs before.
    #[error("logs were started twice")]
    Twice,
}

/// The logs of a process, written by a thread of their own: a reader of stderr that stalls must not stall a request. When it does not keep
/// up, lines are dropped and counted. Dropping this writes what is left.
#[derive(Debug)]
pub struct Logs {
    _writer: WorkerGuard,
    dropped: ErrorCounter,
}

impl Logs {
    /// Lines that were dropped so far, for metrics.
    pub fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let dropped = self.dropped.clone();
        move || dropped.dropped_lines() as u64
    }
}

/// Lines that wait for the reader of stderr at most.
const MAX_WAITING: usize = 8_192;

/// Starts the logs of the process. `level` is a level in any letter case (also envoyproxy/ratelimit's: warning, fatal, panic), or a list of
/// targets with levels; empty means info.
///
/// # Errors
/// [`Error`].
pub fn init(level: &str, format: Format) -> Result<Logs, Error> {
    let filter = filter(level)?;
    let (writer, guard) = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(MAX_WAITING).finish(std::io::stderr());
    let logs_of_process = Logs { _writer: guard, dropped: writer.error_counter() };
    // An error while writing would go to stderr again, and printing there panics when it is closed.
    let lines = layer().with_writer(writer).log_internal_errors(false);
    let logs = tracing_subscriber::registry().with(filter);
    let started = match format {
        Format::Text => logs.with(lines.event_format(Text { colours: std::io::stderr().is_terminal() })).try_init(),
        Format::Json => logs.with(lines.event_format(Json)).try_init(),
    };
    started.map(|()| logs_of_process).map_err(|_| Error::Twice)
}

/// A bare level above info is Weir's own: what HTTP/2 and the runtime have to say at `debug` would bury it.
fn filter(level: &str) -> Result<EnvFilter, Error> {
    let wrong = || Error::Level(level.to_owned());
    let lower = level.trim().to_ascii_lowercase();
    let directives = match lower.as_str() {
        "" | "info" => "info",
        "warn" | "warning" => "warn",
        "error" | "fatal" | "panic" => "error",
        "off" => "off",
        "debug" => "info,weir=debug",
        "trace" => "info,weir=trace",
        // A single word would be taken for a target, and a misspelled level would turn all logs off.
        targets if targets.contains(['=', ',']) => level.trim(),
        _ => return Err(wrong()),
    };
    EnvFilter::builder().with_regex(false).parse(directives).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_both_services_are_understood() {
        for (level, filtered) in [
            ("INFO", "info"),
            ("", "info"),
            (" Warning ", "warn"),
            ("panic", "error"),
            ("off", "off"),
            ("DEBUG", "weir=debug,info"),
            ("warn,weir::live=trace", "weir::live=trace,warn"),
        ] {
            assert_eq!(filter(level).map(|filter| filter.to_string()), Ok(filtered.to_owned()), "{level}");
        }
    }

    #[test]
    fn a_misspelled_level_is_refused() {
        for level in ["inof", "verbose", "weir=loud", "5=6=7"] {
            assert_eq!(filter(level).err(), Some(Error::Level(level.to_owned())));
        }
    }
}
