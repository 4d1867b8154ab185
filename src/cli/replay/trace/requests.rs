//! A request as JSON, as `POST /json` takes it, with a `time` and perhaps a `duration`.

use serde_json::Value;

use super::{TraceRow, duration_of, time_of};
use crate::cli::print;
use crate::service::pages::json;

/// The row of a line.
///
/// # Errors
/// What is wrong with it.
pub(super) fn row(line: &[u8], number: u64) -> Result<TraceRow, String> {
    let mut line: serde_json::Map<String, Value> =
        serde_json::from_slice(line).map_err(|error| format!("it is no JSON object: {error}"))?;
    let time = line.remove("time").ok_or("it has no `time`")?;
    let duration = line.remove("duration").as_ref().map(print::plain);
    let request = json::request(Value::Object(line).to_string().as_bytes());
    // The position is one in a text that the reader does not see.
    let request = request.map_err(|error| {
        let what = error.split(" at line 1 column ").next();
        what.unwrap_or(&error).to_owned()
    })?;
    Ok(TraceRow {
        at: time_of(&print::plain(&time))?,
        line: number,
        duration: duration.as_deref().map(duration_of).transpose()?,
        message: request.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Span;

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
