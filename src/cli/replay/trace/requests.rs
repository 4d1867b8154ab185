//! A request as JSON, as `POST /json` takes it, with a `time` and perhaps a `duration`.
//!
//! Usual requests are read by types of their own, which takes a tenth of the time of the reader of
//! `/json`. What these do not know is left to that one, and so are all errors.

use std::borrow::Cow;

use prost::Message;
use serde::Deserialize;
use serde_json::Value;

use super::{TraceRow, duration_of, time_of};
use crate::core::proto::rate_limit_descriptor::Entry;
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest};
use crate::service::pages::json;

/// A usual request. No field may be one that `/json` reads in another way.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Usual<'l> {
    #[serde(borrow)]
    time: Time<'l>,
    #[serde(borrow)]
    domain: Cow<'l, str>,
    #[serde(borrow)]
    descriptors: Vec<UsualDescriptor<'l>>,
    #[serde(default, rename = "hitsAddend")]
    hits_addend: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsualDescriptor<'l> {
    #[serde(borrow)]
    entries: Vec<UsualEntry<'l>>,
    #[serde(rename = "hitsAddend")]
    hits_addend: Option<u64>,
    #[serde(default, rename = "isNegativeHits")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsualEntry<'l> {
    #[serde(borrow)]
    key: Cow<'l, str>,
    #[serde(borrow)]
    value: Cow<'l, str>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Time<'l> {
    Seconds(f64),
    #[serde(borrow)]
    Text(Cow<'l, str>),
}

impl UsualDescriptor<'_> {
    fn message(self) -> RateLimitDescriptor {
        let entry = |entry: UsualEntry<'_>| Entry {
            key: entry.key.into_owned().into_bytes(),
            value: entry.value.into_owned().into_bytes(),
        };
        RateLimitDescriptor {
            entries: self.entries.into_iter().map(entry).collect(),
            hits_addend: self.hits_addend,
            is_negative_hits: self.is_negative_hits,
            ..RateLimitDescriptor::default()
        }
    }
}

/// The row of a line.
///
/// # Errors
/// What is wrong with it.
pub(super) fn row(line: &[u8], number: u64) -> Result<TraceRow, String> {
    let Ok(usual) = serde_json::from_slice::<Usual<'_>>(line) else {
        return unusual(line, number);
    };
    let at = match usual.time {
        Time::Seconds(seconds) => super::instant(seconds)?,
        Time::Text(text) => time_of(&text)?,
    };
    let descriptors = usual.descriptors.into_iter();
    let message = RateLimitRequest {
        domain: usual.domain.into_owned(),
        descriptors: descriptors.map(UsualDescriptor::message).collect(),
        hits_addend: usual.hits_addend,
    };
    Ok(TraceRow {
        at,
        line: number,
        duration: None,
        message: message.encode_to_vec(),
    })
}

/// The same by the reader of `/json`.
fn unusual(line: &[u8], number: u64) -> Result<TraceRow, String> {
    let mut line: serde_json::Map<String, Value> =
        serde_json::from_slice(line).map_err(|error| format!("it is no JSON object: {error}"))?;
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let time = line.remove("time").ok_or("it has no `time`")?;
    let duration = line.remove("duration").map(text);
    let request = json::request(Value::Object(line).to_string().as_bytes());
    // The position is one in a text that the reader does not see.
    let request = request.map_err(|error| {
        let what = error.split(" at line 1 column ").next();
        what.unwrap_or(&error).to_owned()
    })?;
    Ok(TraceRow {
        at: time_of(&text(time))?,
        line: number,
        duration: duration.as_deref().map(duration_of).transpose()?,
        message: request.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Span;

    /// Whatever the short way reads, the reader of `/json` reads alike.
    #[test]
    fn usual_requests_are_read_as_json_reads_them() {
        let one = r#""descriptors": [{"entries": [{"key": "k", "value": "ü\n\"<"}]}]"#;
        for line in [
            format!(r#"{{"time": 5, "domain": "d", {one}}}"#),
            format!(r#"{{"time": 5.25, "domain": "d", {one}, "hitsAddend": 7}}"#),
            format!(r#"{{"time": "1970-01-01T00:00:05.5Z", "domain": "\u0064", {one}}}"#),
            r#"{"time":"5.5","domain":"d","descriptors":[{"entries":[{"key":"a","value":""},{"key":"b","value":"c"}],
                "hitsAddend":18446744073709551615,"isNegativeHits":true},{"entries":[]}]}"#
                .to_owned(),
            r#"{"time": 1, "domain": "", "descriptors": []}"#.to_owned(),
        ] {
            let usual: Result<Usual<'_>, _> = serde_json::from_str(&line);
            assert!(usual.is_ok(), "the short way reads {line}");
            let row = row(line.as_bytes(), 1).expect("a row");
            assert_eq!(Ok(row), unusual(line.as_bytes(), 1), "{line}");
        }
    }

    #[test]
    fn everything_that_json_takes_is_read() {
        let line = r#"{"time": 1, "duration": "250ms", "domain": "d", "hits_addend": "3", "descriptors":
            [{"entries": [{"key": "k"}], "limit": {"requestsPerUnit": 5, "unit": "MINUTE"}, "hitsAddend": null}]}"#;
        let row = row(line.as_bytes(), 1).expect("a row");
        let request = crate::service::rls::decode::decode(&row.message).expect("a request");
        assert_eq!((request.hits_addend, request.len()), (3, 1));
        assert_eq!(row.duration, Some(Span::from_micros(250_000)));
        for (line, what) in [
            ("[1]", "it is no JSON object"),
            ("{", "it is no JSON object"),
            (r#"{"domain": "d"}"#, "no `time`"),
            (r#"{"time": -1, "domain": "d"}"#, "no time"),
            (r#"{"time": 1e300, "domain": "d"}"#, "no time"),
            (r#"{"time": "yesterday", "domain": "d"}"#, "no time"),
            (r#"{"time": 1, "domian": "d"}"#, "domian"),
            (
                r#"{"time": 1, "duration": "5 x", "domain": "d"}"#,
                "no duration",
            ),
        ] {
            let error = self::row(line.as_bytes(), 1).expect_err(line);
            assert!(
                error.contains(what) && !error.contains("column 9"),
                "{error}"
            );
        }
    }
}
