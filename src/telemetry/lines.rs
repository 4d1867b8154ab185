//! The two formats of a log line.

use std::borrow::Cow;
use std::fmt::{self, Write};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// `2026-01-31T12:00:00.000000Z  INFO message key=value`.
pub(super) struct Text {
    /// Whether the level is coloured.
    pub colours: bool,
}

/// `{"@timestamp":"2026-01-31T12:00:00.000000Z","level":"info","@message":"...","key":"value"}`.
pub(super) struct Json;

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N> for Text {
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = *event.metadata().level();
        SystemTime.format_time(&mut line)?;
        match colour(level).filter(|_| self.colours) {
            Some(colour) => write!(line, " \x1b[{colour}m{level:>5}\x1b[0m")?,
            None => write!(line, " {level:>5}")?,
        }
        let mut fields = TextFields::default();
        event.record(&mut fields);
        writeln!(line, " {}{}", fields.message, fields.others)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N> for Json {
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = JsonFields::default();
        event.record(&mut fields);
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        // Written field by field, so that the keys of every line come first.
        write!(line, "{{\"@timestamp\":{},\"level\":{}", Value::from(time), Value::from(level))?;
        write!(line, ",\"@message\":{}", Value::from(fields.message))?;
        for (name, value) in fields.others {
            write!(line, ",{}:{value}", Value::from(name))?;
        }
        writeln!(line, "}}")
    }
}

/// A line as [`Json`] writes it, without a newline.
pub(super) fn json_error(message: &str, problems: &[String]) -> String {
    let mut time = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let problems = if problems.is_empty() { String::new() } else { format!(",\"problems\":{}", Value::from(problems)) };
    format!("{{\"@timestamp\":{},\"level\":\"error\",\"@message\":{}{problems}}}", Value::from(time), Value::from(message))
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

#[derive(Default)]
struct TextFields {
    message: String,
    others: String,
}

impl TextFields {
    fn add(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = printable(value).into_owned();
            return;
        }
        let shown = printable(value);
        let quoted = shown.is_empty() || shown.contains([' ', '"', '=']);
        // Writing to a string does not fail.
        let _ = if quoted {
            write!(self.others, " {}=\"{}\"", field.name(), shown.replace('"', "\\\""))
        } else {
            write!(self.others, " {}={shown}", field.name())
        };
    }
}

impl Visit for TextFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

/// Escapes control characters, and those that change the direction of text, which can make a line look like another one.
fn printable(text: &str) -> Cow<'_, str> {
    let hidden = |char: char| char.is_control() || matches!(char, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        if hidden(char) { shown.extend(char.escape_default()) } else { shown.push(char) }
    }
    shown.into()
}

#[derive(Default)]
struct JsonFields {
    message: String,
    others: Vec<(String, Value)>,
}

impl JsonFields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            // A field must not replace one of the three keys of every line.
            (name @ ("@timestamp" | "@message" | "level"), value) => self.others.push((format!("field.{name}"), value)),
            (name, value) => self.others.push((name.to_owned(), value)),
        }
    }
}

impl Visit for JsonFields {
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
        self.add(field, serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

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

    fn written<E>(format: E, log: impl FnOnce()) -> String
    where
        E: for<'a> FormatEvent<tracing_subscriber::Registry, tracing_subscriber::fmt::format::DefaultFields> + Send + Sync + 'static,
    {
        let sink = Sink::default();
        let lines = layer().event_format(format).with_writer(sink.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), log);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn after_time(line: &str) -> &str {
        let (time, rest) = line.split_at("2026-01-31T12:00:00.000000Z".len());
        assert!(time.starts_with("20") && time.contains('T') && time.ends_with('Z'), "{time}");
        rest
    }

    #[test]
    fn a_line_of_text_is_one_line() {
        let line = written(Text { colours: false }, || {
            tracing::warn!(file = "a b\".yaml", line = 3, empty = "", raw = %"x\ny\u{1b}[2J", "bad\r\n\u{202e}news");
        });
        assert_eq!(after_time(&line), "  WARN bad\\r\\n\\u{202e}news file=\"a b\\\".yaml\" line=3 empty=\"\" raw=x\\ny\\u{1b}[2J\n");
    }

    #[test]
    fn an_error_without_a_log_is_the_same_json() {
        for problems in [Vec::new(), vec!["a\"\n".to_owned(), "b".to_owned()]] {
            let line = json_error("it\n\"fails\"", &problems);
            assert!(!line.contains('\n') && line.starts_with("{\"@timestamp\":\"20"), "{line}");
            let value: Value = serde_json::from_str(&line).unwrap();
            assert_eq!((&value["level"], &value["@message"]), (&Value::from("error"), &Value::from("it\n\"fails\"")));
            assert_eq!(value.get("problems").cloned(), (!problems.is_empty()).then(|| Value::from(problems)));
        }
    }

    #[test]
    fn colours_are_for_terminals() {
        let line = written(Text { colours: true }, || tracing::error!("x"));
        assert_eq!(after_time(&line), " \u{1b}[31mERROR\u{1b}[0m x\n");
    }

    #[test]
    fn a_line_of_json_is_one_flat_object() {
        let line = written(Json, || {
            tracing::info!(count = 7_u64, below = -1_i64, ratio = 0.5, nan = f64::NAN, ok = true, level = "forged", text = %"a\"\n", "hello\n");
        });
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.starts_with("{\"@timestamp\":\"20"), "{line}");
        let value: Value = serde_json::from_str(&line).unwrap();
        after_time(value["@timestamp"].as_str().unwrap());
        let expected = serde_json::json!({
            "@timestamp": value["@timestamp"], "level": "info", "@message": "hello\n", "count": 7, "below": -1, "ratio": 0.5, "nan": "NaN",
            "ok": true, "field.level": "forged", "text": "a\"\n",
        });
        assert_eq!(value, expected);
    }
}
