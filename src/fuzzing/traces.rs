//! Traces of `weir replay`: no line is lost, rows come in the order of time, JSON means what
//! `/json` reads in it, and what is written in one of the forms is read from it.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use serde_json::Value;

use super::Input;
use crate::cli::replay::trace::{Trace, TraceRow};
use crate::cli::workload::{Fields, Requests, Templates};
use crate::core::proto::RateLimitRequest;
use crate::core::proto::rate_limit_descriptor::Entry;
use crate::core::time::{Micros, Span};
use crate::service::pages::json;

/// What Envoy would send of a record.
const TEMPLATES: [&str; 2] = ["agent={user_agent}", "path={path},agent={user_agent}"];

/// How far out of order rows may be.
const WINDOW: Span = Span::from_secs(60);

/// The first bytes of gzip, whose lines are not counted here.
const GZIP: &[u8] = b"\x1f\x8b";

/// Bad rows that are named, and the characters of an error.
const MAX_NAMED: usize = 10;
const MAX_ERROR_CHARS: usize = 300;

/// The first byte says what the others are: `r` a trace of requests, `f` one of records with
/// fields, and else a value that is written in each form.
pub(super) fn check(input: &[u8]) {
    let mut input = Input(input);
    match input.byte() {
        b'r' => check_trace(input.0, &[]),
        b'f' => check_trace(input.0, &TEMPLATES),
        _ => check_written(input.0),
    }
}

/// What is read of a trace.
#[derive(Debug, PartialEq)]
struct Read {
    rows: Vec<TraceRow>,
    bad: u64,
    passed_over: u64,
}

/// Reads a whole trace.
///
/// # Errors
/// As [`Trace`].
fn read(trace: &[u8], templates: &[&str], sorts_all: bool) -> Result<Read, String> {
    let template = |text: &&str| Templates::parse(text, Fields::Allowed).expect("a template");
    let templates: Vec<_> = templates.iter().map(template).collect();
    let requests = Requests::new(Some("d".to_owned()), &templates, None, 0);
    let text = |error: anyhow::Error| format!("{error:#}");
    let stream = Cursor::new(trace.to_vec());
    let mut trace = Trace::new(stream, requests, sorts_all, None).map_err(text)?;
    let mut rows = Vec::new();
    while let Some(row) = trace.next().map_err(text)? {
        rows.push(row);
    }
    let named: Vec<_> = trace.bad.named().concat();
    assert_eq!(named.len() as u64, trace.bad.count.min(MAX_NAMED as u64));
    for error in named {
        let what = error.split_once(": ").expect("a line and its error").1;
        // Control characters take up to ten characters.
        assert!((1..=10 * MAX_ERROR_CHARS).contains(&what.chars().count()));
        assert!(!error.contains(char::is_control), "{error:?}");
    }
    Ok(Read {
        rows,
        bad: trace.bad.count,
        passed_over: trace.passed_over,
    })
}

fn check_trace(trace: &[u8], templates: &[&str]) {
    let sorted = match read(trace, templates, true) {
        Ok(sorted) => sorted,
        Err(error) => {
            assert!(!error.is_empty());
            assert!(read(trace, templates, false).is_err(), "{error}");
            return;
        }
    };
    let order = |row: &TraceRow| (row.at, row.line);
    assert!(
        sorted
            .rows
            .is_sorted_by(|one, other| order(one) < order(other))
    );
    check_order(trace, templates, &sorted);
    if !trace.starts_with(GZIP) {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(trace).expect("compressed");
        let gzip = gzip.finish().expect("compressed");
        assert_eq!(read(&gzip, templates, true).as_ref(), Ok(&sorted));
        check_lines(trace, !templates.is_empty(), &sorted);
    }
}

/// Rows within a minute are sorted as they come, and only then.
fn check_order(trace: &[u8], templates: &[&str], sorted: &Read) {
    let by_line: BTreeMap<_, _> = sorted.rows.iter().map(|row| (row.line, row.at)).collect();
    let mut latest = Micros(0);
    let late = by_line.iter().find(|(_, at)| {
        let is_late = **at + WINDOW < latest;
        latest = latest.max(**at);
        is_late
    });
    let streamed = read(trace, templates, false);
    match late {
        None => assert_eq!(streamed.as_ref(), Ok(sorted)),
        Some((line, _)) => {
            let error = streamed.expect_err("it is too late");
            assert!(error.starts_with(&format!("line {line} is ")), "{error}");
        }
    }
}

/// Each line is a row, is counted, or is empty; and requests are those of `/json`.
fn check_lines(trace: &[u8], has_fields: bool, read: &Read) {
    let lines = trace.split(|&byte| byte == b'\n');
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let lines = (1..).zip(lines).filter(|(_, line)| !line.is_empty());
    let lines: BTreeMap<u64, _> = lines.collect();
    let first = lines.values().next().and_then(|line| line.first());
    let has_head = has_fields && first.is_some_and(|byte| !b"{[".contains(byte));
    let read_lines = read.rows.len() as u64 + read.bad + read.passed_over;
    assert_eq!(lines.len() as u64, read_lines + u64::from(has_head));
    let rows: BTreeMap<_, _> = read.rows.iter().map(|row| (row.line, row)).collect();
    assert!(rows.keys().all(|line| lines.contains_key(line)));
    for (number, line) in lines {
        if !(has_fields || line.starts_with(b"{\"@timestamp\":")) {
            let row = rows.get(&number);
            let asked = row.map(|row| {
                let request = RateLimitRequest::decode(&row.message[..]);
                (Some(row.at), request.expect("a message"))
            });
            let expected = read_as_json(line);
            let shown = line.escape_ascii();
            match &expected {
                // A text has more forms than are worth a second reader.
                Some((None, request)) => assert!(
                    asked.is_none_or(|(_, own)| own == *request),
                    "{shown}: {request:?}"
                ),
                _ => assert_eq!(asked, expected, "{shown}"),
            }
        }
    }
}

/// What a line of JSON says by the reader of `/json`: the time, if it is a number, and the request.
fn read_as_json(line: &[u8]) -> Option<(Option<Micros>, RateLimitRequest)> {
    let mut object: serde_json::Map<String, Value> = serde_json::from_slice(line).ok()?;
    let time = object.remove("time")?;
    let at = match &time {
        Value::Number(seconds) => {
            let micros = (seconds.as_f64()? * 1e6).round();
            let is_before_10000 = (0.0..253_402_300_800e6).contains(&micros);
            Some(is_before_10000.then_some(Micros(micros as u64))?)
        }
        Value::String(_) => None,
        _ => return None,
    };
    // A duration is a text as well.
    let has_duration = object.remove("duration").is_some();
    let at = at.filter(|_| !has_duration);
    let request = json::request(Value::Object(object).to_string().as_bytes()).ok()?;
    Some((at, RateLimitRequest::decode(request).ok()?))
}

/// Writes a value in each form, and reads it.
fn check_written(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let request = serde_json::json!({
        "time": 5, "domain": "d", "descriptors": [{ "entries": [{ "key": &text, "value": &text }] }]
    });
    assert_read(
        request.to_string().as_bytes(),
        &[],
        &[&[(&text, text.as_bytes())]],
    );

    // The log cuts longer ones.
    let short: String = text.chars().take(64).collect();
    let descriptor = format!("{short:?}={short:?}, other={short:?}");
    let line = format!(
        "{{\"@timestamp\":\"1970-01-01T00:00:05Z\",\"@message\":\"decision\",\"domain\":\"d\",\
         \"descriptor\":{},\"hits\":0}}",
        serde_json::json!(descriptor)
    );
    let entries = [(&*short, short.as_bytes()), ("other", short.as_bytes())];
    assert_read(line.as_bytes(), &[], &[&entries]);

    // A record is one line. An `x` keeps the value from being an address or a `-`.
    let is_in_line = |byte: &&u8| !b"\r\n".contains(byte);
    let agent: Vec<u8> = bytes.iter().filter(is_in_line).copied().collect();
    let agent = [b"x", &agent[..]].concat();
    let records: [&[(&str, &[u8])]; 2] = [
        &[("agent", &agent)],
        &[("path", b"/a \"b"), ("agent", &agent)],
    ];
    let mut csv = csv::Writer::from_writer(Vec::new());
    for record in [
        [&b"path"[..], b"user_agent", b"time"],
        [b"/a \"b", &agent, b"5"],
    ] {
        csv.write_record(record).expect("written");
    }
    assert_read(&csv.into_inner().expect("written"), &TEMPLATES, &records);

    let begin = r#"[1970-01-01T00:00:05.000Z] "GET /a "b HTTP/1.1" 200 - 0 9 12 - "10.0.0.9" ""#;
    let end = r#"" "4d-1" "shop:80" "10.1.1.1:8080""#;
    let line = [begin.as_bytes(), &agent, end.as_bytes()].concat();
    assert_read(&line, &TEMPLATES, &records);

    let agent = format!("x{text}");
    let line = serde_json::json!({ "start_time": "1970-01-01T00:00:05Z", "user_agent": &agent });
    let entries = [("agent", agent.as_bytes())];
    assert_read(line.to_string().as_bytes(), &TEMPLATES, &[&entries]);
}

/// The trace is one request of second 5 with these descriptors.
fn assert_read(trace: &[u8], templates: &[&str], descriptors: &[&[(&str, &[u8])]]) {
    let read = read(trace, templates, false).expect("a trace");
    let shown = trace.escape_ascii();
    assert!(read.bad == 0 && read.passed_over == 0, "{shown}: {read:?}");
    let [row] = &read.rows[..] else {
        panic!("one row in {shown}: {read:?}")
    };
    assert_eq!(row.at, Micros(5_000_000), "{shown}");
    let request = RateLimitRequest::decode(&row.message[..]).expect("a message");
    let expected = descriptors.iter().map(|entries| {
        let entry = |&(key, value): &(&str, &[u8])| Entry {
            key: key.into(),
            value: value.into(),
        };
        let entries: Vec<_> = entries.iter().map(entry).collect();
        entries
    });
    let entries = request.descriptors.into_iter().map(|own| own.entries);
    assert!(request.domain == "d" && entries.eq(expected), "{shown}");
}
