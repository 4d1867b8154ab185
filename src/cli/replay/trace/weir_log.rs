//! Weir's own log in JSON: the lines of `LOG_DECISIONS` and of `LOG_REFUSALS`, one for each
//! descriptor, where they have the whole descriptor.

use prost::Message;
use serde::Deserialize;

use super::{TraceRow, time_of};
use crate::core::proto::rate_limit_descriptor::Entry;
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest};
use crate::observe::logged_values::LONGEST_TEXT;

/// How a line of the log begins.
pub(super) const BEGIN: &[u8] = b"{\"@timestamp\":";

/// Suffix of a text that is cut.
const CUT: &str = "...";

#[derive(Deserialize)]
struct LogLine {
    #[serde(rename = "@timestamp")]
    time: String,
    #[serde(rename = "@message")]
    message: String,
    domain: Option<String>,
    descriptor: Option<String>,
    hits: Option<i64>,
}

/// Reads lines of a log.
#[derive(Default)]
pub(super) struct WeirLog {
    /// The log has decisions, which include all refusals.
    has_decisions: bool,
    /// Refusals were read.
    has_refusals: bool,
}

impl WeirLog {
    /// Whether all requests of the log were refused.
    pub(super) const fn is_of_refusals(&self) -> bool {
        self.has_refusals && !self.has_decisions
    }

    /// The row of a line; `None` if it is about no descriptor.
    ///
    /// # Errors
    /// The line does not have all that is needed.
    pub(super) fn row(&mut self, line: &[u8], number: u64) -> Result<Option<TraceRow>, String> {
        let line: LogLine = serde_json::from_slice(line)
            .map_err(|error| format!("it is no line of a log: {error}"))?;
        let is_decision = line.message.starts_with("decision");
        self.has_decisions |= is_decision;
        let is_refusal = line.message == "refused" && !self.has_decisions;
        self.has_refusals |= is_refusal;
        let fields = line.domain.zip(line.descriptor).zip(line.hits);
        let fields = fields.filter(|_| is_decision || is_refusal);
        let Some(((domain, descriptor), hits)) = fields else {
            return Ok(None);
        };
        let request = RateLimitRequest {
            domain: whole(domain)?,
            descriptors: vec![RateLimitDescriptor {
                entries: entries(&descriptor)?,
                hits_addend: Some(hits.unsigned_abs()),
                is_negative_hits: hits < 0,
                ..RateLimitDescriptor::default()
            }],
            hits_addend: 0,
        };
        Ok(Some(TraceRow {
            at: time_of(&line.time)?,
            line: number,
            duration: None,
            message: request.encode_to_vec(),
        }))
    }
}

/// The text, if it was not cut.
fn whole(text: String) -> Result<String, String> {
    let is_cut = text.ends_with(CUT) && text.chars().count() == LONGEST_TEXT + CUT.len();
    match is_cut {
        true => Err(format!("a text in it is cut at {LONGEST_TEXT} characters")),
        false => Ok(text),
    }
}

/// The entries of a descriptor as logs show it: `key="value", key="value"`.
fn entries(text: &str) -> Result<Vec<Entry>, String> {
    let (mut entries, mut rest) = (Vec::new(), text);
    loop {
        let (key, after) = quoted(rest).unwrap_or_else(|| {
            let (key, after) = rest.split_at(rest.find(['=', ',', ' ']).unwrap_or(rest.len()));
            (key.to_owned(), after)
        });
        let value = after.strip_prefix('=').and_then(quoted);
        let (value, after) =
            value.ok_or("it shows no values, because LOG_SUBJECTS is not plain")?;
        entries.push(Entry {
            key: whole(key)?.into_bytes(),
            value: whole(value)?.into_bytes(),
        });
        if after.is_empty() {
            return Ok(entries);
        }
        let next = after.strip_prefix(", ");
        rest = next.ok_or("it does not show all entries of the descriptor")?;
    }
}

/// The quoted text at the begin, in Rust's notation, and the rest after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?.chars();
    let mut inside = String::new();
    loop {
        inside.push(match rest.next()? {
            '"' => return Some((inside, rest.as_str())),
            '\\' => match rest.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                '0' => '\0',
                'u' => {
                    let (digits, behind) = rest.as_str().strip_prefix('{')?.split_once('}')?;
                    rest = behind.chars();
                    char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
                }
                other => other,
            },
            other => other,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(message: &str, descriptor: &str) -> Vec<u8> {
        let line = serde_json::json!({
            "@timestamp": "1970-01-01T00:00:05.000000Z", "level": "debug", "@message": message,
            "domain": "d", "descriptor": descriptor, "hits": -2, "code": "OK",
        });
        line.to_string().into_bytes()
    }

    #[test]
    fn a_line_of_a_decision_is_its_request() {
        let strange = "a\"\\\n\u{202e}é, x=\"";
        let long = "é".repeat(LONGEST_TEXT);
        let descriptor = format!("user={strange:?}, {:?}={long:?}", "a b");
        let mut log = WeirLog::default();
        let row = log
            .row(&line("decision", &descriptor), 1)
            .expect("a row")
            .expect("one");
        let request = crate::service::rls::decode::decode(&row.message).expect("a request");
        let (descriptor, entries) = request.descriptors().next().expect("a descriptor");
        assert_eq!(request.hits(descriptor), -2);
        let texts = [("user", strange), ("a b", &long)]
            .map(|(key, value)| (key.as_bytes(), value.as_bytes()));
        assert_eq!(
            entries
                .iter()
                .map(|entry| (entry.key, entry.value))
                .collect::<Vec<_>>(),
            texts
        );
    }

    #[test]
    fn other_lines_are_passed_over_and_cut_ones_refused() {
        let mut log = WeirLog::default();
        let one = r#"user="a""#;
        for (message, is_row) in [
            ("limits loaded", false),
            ("refused", true),
            ("decision: no limit applies", true),
            ("refused", false),
        ] {
            let row = log.row(&line(message, one), 1).expect("a line");
            assert_eq!(row.is_some(), is_row, "{message}");
        }
        let cut = format!("user={:?}", "é".repeat(LONGEST_TEXT) + CUT);
        for (descriptor, what) in [
            (cut.as_str(), "is cut at 64"),
            ("user=5bdcc146bf60754e", "LOG_SUBJECTS"),
            ("user", "LOG_SUBJECTS"),
            (r#"user="a" and 3 more"#, "all entries"),
            (r#"user="a"#, "LOG_SUBJECTS"),
        ] {
            let error = log
                .row(&line("decision", descriptor), 1)
                .expect_err(descriptor);
            assert!(error.contains(what), "{error}");
        }
    }
}
