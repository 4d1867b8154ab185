//! Logs: their level, format and writer.
//!
//! Each event is one line on stderr, whatever its text: bytes of a client must not forge a line or
//! a field, or control a terminal. Lines of some targets are written at every level.
//!
//! In both formats of a log line, a parser reads back exactly the message and the fields of the
//! event, whatever their texts.

use std::fmt;
use std::io::IsTerminal;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// The target of audit lines. It is part of the line: log collectors filter by it.
pub const AUDIT: &str = "weir::audit";

/// The target of lines about used budgets, likewise.
pub const BUDGET: &str = "weir::budget";

/// The targets whose lines are written at every level, and which are part of their lines.
const ALWAYS: [&str; 2] = [AUDIT, BUDGET];

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Human-readable, in logfmt.
    Text,
    /// One JSON object per line, with the keys `@timestamp`, `level` and `@message`, and one key
    /// for each field.
    Json,
}

/// Errors of starting the logs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The level is invalid.
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

/// Maximum number of lines that wait for the reader of stderr.
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
    let colours = std::io::stderr().is_terminal();
    let format = lines.event_format(Lines { format, colours });
    let started = logs.with(format).try_init();
    started.map(|()| logs_of_process).map_err(|_| Error::Twice)
}

/// The filter of a level, which lines of [`ALWAYS`] pass. `debug` and `trace` alone apply to Weir's
/// own events: the events of HTTP/2 and of the runtime would bury them.
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
        // EnvFilter takes any other single word as a target: a misspelled level would turn off all
        // logs.
        targets if targets.contains(['=', ',']) => level.trim(),
        _ => return Err(invalid()),
    };
    let filter = EnvFilter::builder()
        .with_regex(false)
        .parse(directives)
        .map_err(|_| invalid())?;
    // The most specific directive decides, and one for the same target replaces it.
    ALWAYS.into_iter().try_fold(filter, |filter, target| {
        let directive = format!("{target}=info").parse().map_err(|_| invalid())?;
        Ok(filter.add_directive(directive))
    })
}

/// The form of events. Text is `2026-01-31T12:00:00.000000Z INFO message key=value`, in the
/// notation of logfmt; ambiguous values are in quotes, with the escapes of JSON. JSON is
/// `{"@timestamp":"2026-01-31T12:00:00.000000Z","level":"info","@message":"...","key":"value"}`.
struct Lines {
    format: Format,
    /// Levels have the colours of a terminal, in text.
    colours: bool,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static>
    FormatEvent<S, N> for Lines
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self.format {
            Format::Text => write_as_text(line, event, self.colours),
            Format::Json => write_as_json(line, event),
        }
    }
}

fn write_as_text(mut line: Writer<'_>, event: &Event<'_>, colours: bool) -> fmt::Result {
    let level = *event.metadata().level();
    SystemTime.format_time(&mut line)?;
    match colour(level).filter(|_| colours) {
        Some(colour) => write!(line, " \x1b[{colour}m{level:>5}\x1b[0m")?,
        None => write!(line, " {level:>5}")?,
    }
    let mut fields = EventFields::default();
    event.record(&mut fields);
    let is_special = |char: char| hidden(char) || matches!(char, '"' | '=' | '\\');
    let is_quoted = fields.message.contains(is_special);
    write!(line, " {}", text(fields.message, is_quoted))?;
    if let Some(target) = target_always(event) {
        write!(line, " target={target}")?;
    }
    for (name, value) in fields.others {
        let value = match value {
            Value::String(text) => text,
            // As Rust writes it: 5e-5.
            Value::Number(number) if number.is_f64() => {
                format!("{:?}", number.as_f64().unwrap_or_default())
            }
            value => value.to_string(),
        };
        let is_apart = |char: char| is_special(char) || char.is_whitespace();
        let is_quoted = value.is_empty() || value.contains(is_apart);
        write!(line, " {name}={}", text(value, is_quoted))?;
    }
    writeln!(line)
}

fn write_as_json(mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
    let mut fields = EventFields::default();
    event.record(&mut fields);
    let level = event.metadata().level().as_str().to_ascii_lowercase();
    // Written field by field, because these keys come first in every line.
    write!(line, "{}", json_start(&level, fields.message))?;
    if let Some(target) = target_always(event) {
        write!(line, ",\"target\":\"{target}\"")?;
    }
    for (name, value) in fields.others {
        // A field must not replace a key of the line itself.
        let is_key = matches!(name, "@timestamp" | "@message" | "level" | "target");
        let field = if is_key { "field." } else { "" };
        let name = Value::from(field.to_owned() + name);
        write!(line, ",{name}:{}", json_text(&value))?;
    }
    writeln!(line, "}}")
}

/// An error as one line of the log in JSON, without a newline, for errors before the log is started
/// or after it has ended. `problems` are its details.
pub fn json_error(message: &str, problems: &[String]) -> String {
    let mut line = json_start("error", message.to_owned());
    if !problems.is_empty() {
        line += &format!(",\"problems\":{}", json_text(&problems.into()));
    }
    line + "}"
}

/// The first keys of a line.
fn json_start(level: &str, message: String) -> String {
    let mut time = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let (time, message) = (Value::from(time), json_text(&message.into()));
    format!("{{\"@timestamp\":{time},\"level\":\"{level}\",\"@message\":{message}")
}

/// The target of an event, if it is one of [`ALWAYS`].
fn target_always(event: &Event<'_>) -> Option<&'static str> {
    let own = event.metadata().target();
    ALWAYS.into_iter().find(|target| *target == own)
}

/// The colour of a level, as the parameter of ECMA-48's SGR.
const fn colour(level: Level) -> Option<u8> {
    match level {
        Level::ERROR => Some(31),
        Level::WARN => Some(33),
        Level::INFO => Some(32),
        _ => None,
    }
}

/// Control characters, those that end lines or change the direction of text, which can make a line
/// look like another one, and U+FEFF, which YAML does not allow within a text.
fn hidden(char: char) -> bool {
    let is_mark = |point| matches!(point, 0x61c | 0x200e | 0x200f | 0xfeff);
    let is_format = |point| matches!(point, 0x2028..=0x202e | 0x2066..=0x2069);
    let point = u32::from(char);
    char.is_control() || is_mark(point) || is_format(point)
}

/// A text as it is, or in quotes as JSON.
fn text(text: String, is_quoted: bool) -> String {
    if is_quoted {
        json_text(&text.into())
    } else {
        text
    }
}

/// A value as JSON without [`hidden`] characters, of which serde_json escapes some. They are in
/// texts only, where an escape means the same.
pub(crate) fn json_text(value: &Value) -> String {
    let mut text = value.to_string();
    if text.contains(hidden) {
        let escaped = |char: char| match hidden(char) {
            true => format!("\\u{:04x}", u32::from(char)),
            false => char.into(),
        };
        text = text.chars().map(escaped).collect();
    }
    text
}

/// The message of an event, and its other fields.
#[derive(Default)]
struct EventFields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl EventFields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => self.others.push((name, value)),
        }
    }
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has neither infinity nor NaN.
        let number = serde_json::Number::from_f64(value);
        let number = number.map_or_else(|| value.to_string().into(), Value::Number);
        self.add(field, number);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_both_services_are_understood() {
        for (level, filtered) in [
            ("INFO", "weir::budget=info,weir::audit=info,info"),
            ("", "weir::budget=info,weir::audit=info,info"),
            (" Warning ", "weir::budget=info,weir::audit=info,warn"),
            ("panic", "weir::budget=info,weir::audit=info,error"),
            ("off", "weir::budget=info,weir::audit=info,off"),
            (
                "DEBUG",
                "weir::budget=info,weir::audit=info,weir=debug,info",
            ),
            (
                "warn,weir::live=trace",
                "weir::budget=info,weir::audit=info,weir::live=trace,warn",
            ),
            (
                "weir=off,weir::audit=off",
                "weir::budget=info,weir::audit=info,weir=off",
            ),
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

#[cfg(test)]
mod lines_tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;
    use tracing_subscriber::fmt::{MakeWriter, layer};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Sink {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    fn formatted<E>(format: E, log: impl FnOnce()) -> String
    where
        E: for<'a> FormatEvent<
                tracing_subscriber::Registry,
                tracing_subscriber::fmt::format::DefaultFields,
            > + Send
            + Sync
            + 'static,
    {
        let sink = Sink::default();
        let lines = layer().event_format(format).with_writer(sink.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), log);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn after_time(line: &str) -> &str {
        let (time, rest) = line.split_at("2026-01-31T12:00:00.000000Z".len());
        assert!(
            time.starts_with("20") && time.contains('T') && time.ends_with('Z'),
            "{time}"
        );
        rest
    }

    #[test]
    fn a_line_of_text_is_one_line() {
        let line = formatted(
            Lines {
                format: Format::Text,
                colours: false,
            },
            || {
                tracing::warn!(
                    file = "a b\".yaml",
                    line = 3,
                    empty = "",
                    raw = %"x\ny\u{1b}[2J",
                    "bad\r\n\u{202e}news"
                );
            },
        );
        let expected = "  WARN \"bad\\r\\n\\u202enews\" file=\"a b\\\".yaml\" line=3 empty=\"\" \
            raw=\"x\\ny\\u001b[2J\"\n";
        assert_eq!(after_time(&line), expected);
    }

    /// A reader of logfmt that is not ours: a text in quotes is JSON, any other ends at a space. A
    /// text alone is part of the message.
    fn read_back(line: &str) -> (String, Vec<(String, String)>) {
        fn text(rest: &mut &str, ends: &[char]) -> String {
            if rest.starts_with('"') {
                let mut quoted = serde_json::Deserializer::from_str(rest).into_iter::<String>();
                let text = quoted.next().expect("a text").expect("JSON");
                *rest = &rest[quoted.byte_offset()..];
                return text;
            }
            let (bare, behind) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
            *rest = behind;
            bare.to_owned()
        }
        let (mut words, mut fields, mut rest) = (Vec::new(), Vec::new(), line);
        while !rest.is_empty() {
            let word = text(&mut rest, &[' ', '=']);
            match rest.strip_prefix('=') {
                Some(behind) => {
                    rest = behind;
                    fields.push((word, text(&mut rest, &[' '])));
                }
                None => words.push(word),
            }
            rest = rest.strip_prefix(' ').unwrap_or(rest);
        }
        (words.join(" "), fields)
    }

    const SPECIAL: &[&str] = &[
        "\"",
        "\\",
        "=",
        " ",
        "\n",
        "\r",
        "\u{1b}[2J",
        "\u{9b}",
        "\u{7f}",
        "\u{61c}",
        "\u{200f}",
        "\u{2028}",
        "\u{202e}",
        "\u{a0}",
        "\\\" by=root",
    ];

    /// Line and paragraph separators, and what Unicode has to change the direction of text (UAX 9,
    /// section 2).
    const UNSEEN: &str = "\u{2028}\u{2029}\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\
        \u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";

    /// Any text, with more of what could end a line, a text or a field than chance gives.
    fn texts() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            any::<String>(),
            any::<char>().prop_map(String::from),
            prop::sample::select(SPECIAL).prop_map(str::to_owned),
        ];
        prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        #[test]
        fn no_text_forges_a_field_or_a_line(message in texts(), reason in texts(), by in texts()) {
            let log = || tracing::info!(target: AUDIT, reason, by = %by, "{message}");
            let (text, json) = (
                formatted(
                    Lines {
                        format: Format::Text,
                        colours: false,
                    },
                    log,
                ),
                formatted(
                    Lines {
                        format: Format::Json,
                        colours: false,
                    },
                    log,
                ),
            );
            for line in [&text, &json] {
                let is_unseen = |char: char| char.is_control() || UNSEEN.contains(char);
                prop_assert!(
                    line.ends_with('\n') && !line.trim_end_matches('\n').contains(is_unseen),
                    "{line:?}"
                );
                prop_assert_eq!(line.matches('\n').count(), 1);
            }
            let (said, fields) = read_back(
                after_time(&text)
                    .strip_prefix("  INFO ")
                    .expect(
                        "a \
                level",
                    )
                    .trim_end_matches('\n'),
            );
            let expected = [
                ("target", AUDIT),
                ("reason", reason.as_str()),
                ("by", by.as_str()),
            ];
            prop_assert_eq!(
                fields,
                expected.map(|(name, text)| (name.to_owned(), text.to_owned()))
            );
            prop_assert_eq!(&said, &message);
            let json: Value = serde_json::from_str(&json).expect("JSON");
            let shown = ["@message", "target", "reason", "by"]
                .map(|name| json[name].as_str().expect("a text"));
            prop_assert_eq!(
                shown,
                [message.as_str(), AUDIT, reason.as_str(), by.as_str()]
            );
        }
    }

    #[test]
    fn an_error_without_a_log_is_the_same_json() {
        for problems in [Vec::new(), vec!["a\"\n".to_owned(), "b".to_owned()]] {
            let line = json_error("it\n\"fails\"", &problems);
            assert!(
                !line.contains('\n') && line.starts_with("{\"@timestamp\":\"20"),
                "{line}"
            );
            let value: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(
                (&value["level"], &value["@message"]),
                (&Value::from("error"), &Value::from("it\n\"fails\""))
            );
            assert_eq!(
                value.get("problems").cloned(),
                (!problems.is_empty()).then(|| Value::from(problems))
            );
        }
    }

    #[test]
    fn colours_are_for_terminals() {
        let line = formatted(
            Lines {
                format: Format::Text,
                colours: true,
            },
            || tracing::error!("x"),
        );
        assert_eq!(after_time(&line), " \u{1b}[31mERROR\u{1b}[0m x\n");
    }

    #[test]
    fn a_line_of_json_is_one_flat_object() {
        let line = formatted(
            Lines {
                format: Format::Json,
                colours: false,
            },
            || {
                tracing::info!(
                    count = 7_u64,
                    below = -1_i64,
                    ratio = 0.5,
                    nan = f64::NAN,
                    ok = true,
                    level = "forged",
                    text = %"a\"\n",
                    "hello\n"
                );
            },
        );
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.starts_with("{\"@timestamp\":\"20"), "{line}");
        let value: Value = serde_json::from_str(&line).unwrap();
        after_time(value["@timestamp"].as_str().unwrap());
        let expected = serde_json::json!({
            "@timestamp": value["@timestamp"], "level": "info", "@message": "hello\n",
            "count": 7, "below": -1, "ratio": 0.5, "nan": "NaN", "ok": true,
            "field.level": "forged", "text": "a\"\n",
        });
        assert_eq!(value, expected);
    }
}
