//! Records of named fields, and the requests that Envoy would have sent of them: CSV, Envoy's
//! access log, and JSON objects.
//!
//! `--descriptor` has the actions of a route of Envoy. As there, a descriptor of which a field is
//! missing is left out, and a request without descriptors is not sent.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use csv_core::ReadRecordResult;
use indexmap::IndexSet;
use prost::Message;
use regex::bytes::Regex;
use serde_json::{Map, Value};

use super::{TraceRow, duration_of, time_of};
use crate::admin::api::names::did_you_mean;
use crate::cli::workload::{Requests, Template};
use crate::core::time::people::counted;

/// Names of the time of a record: our own, Envoy's, and names in other logs.
const TIMES: [&str; 4] = ["time", "start_time", "@timestamp", "timestamp"];

/// The other fields that have a meaning.
const DOMAIN: &str = "domain";
const HITS: &str = "hits";
const DURATION: &str = "duration";

/// Fields whose values are paths, and the name of the same with its query.
const PATH: &str = "path";
const PATH_AND_QUERY: &str = "path-and-query";

/// The header to which each proxy adds the address of its client.
const FORWARDED_FOR: &str = "x_forwarded_for";

/// A line of Envoy's default access log, with the names of its fields. Envoy escapes nothing in it:
/// a path and a user agent may have spaces and quotes. Source: Envoy, "Access logging", "Default
/// format string".
static ENVOY: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = concat!(
        r#"(?s-u)^\[(?<start_time>[^\]]+)\] "(?<method>\S+) (?<path>.*?) (?<protocol>\S+)" "#,
        r"(?<response_code>\S+) (?<response_flags>\S+) (?<bytes_received>\S+) (?<bytes_sent>\S+) ",
        r#"(?<duration>\S+) (?<upstream_service_time>\S+) "(?<x_forwarded_for>[^"]*)" "#,
        r#""(?<user_agent>.*)" "(?<request_id>[^" ]*)" "(?<authority>[^" ]*)" "#,
        r#""(?<upstream_host>[^" ]*)"$"#
    );
    Regex::new(pattern).expect("a pattern")
});

/// The values of a record, by the names that are asked for.
type FieldValues<'l> = Vec<Option<Cow<'l, [u8]>>>;

/// Reads records.
pub(super) struct RecordReader {
    requests: Requests,
    /// The fields that are asked for.
    names: Vec<String>,
    /// Of each template, which of these its fields are.
    fields: Vec<Vec<usize>>,
    form: RecordForm,
    /// Which of the names a record had so far.
    seen: Vec<bool>,
    /// The fields of the first record.
    present: Vec<String>,
    /// Addresses after the client's in a list of addresses, if that is configured.
    trusted_hops: Option<usize>,
    /// Values that were lists of addresses.
    lists: u64,
}

/// How a line holds a record.
enum RecordForm {
    /// The column of each field, if there is one.
    Csv(Box<Csv>, Vec<Option<usize>>),
    Envoy,
    Json,
}

impl RecordReader {
    /// Records in the form of this line, which is the first one, and whether it is the names of
    /// columns and no record.
    ///
    /// # Errors
    /// There is no column of that name.
    pub(super) fn new(
        requests: Requests,
        first: &[u8],
        trusted_hops: Option<usize>,
    ) -> Result<(Self, bool), String> {
        let mut names = IndexSet::<&str>::from_iter(TIMES);
        names.extend([DOMAIN, HITS, DURATION]);
        let mut index_of = |name| names.insert_full(name).0;
        let templates = requests.templates.iter().map(Template::fields);
        let fields = templates.map(|fields| fields.iter().map(|name| index_of(name)).collect());
        let fields = fields.collect();
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let (form, present) = match first.first() {
            Some(b'{') => {
                let object: Map<_, _> = serde_json::from_slice(first).unwrap_or_default();
                (RecordForm::Json, object.keys().cloned().collect())
            }
            Some(b'[') => {
                let names = ENVOY.capture_names().flatten();
                (RecordForm::Envoy, names.map(str::to_owned).collect())
            }
            _ => {
                let mut csv = Box::new(Csv::new());
                let columns = csv.read(first)?.into_iter();
                let columns = columns.map(|name| String::from_utf8_lossy(name).into_owned());
                let columns: Vec<_> = columns.collect();
                let column = |name: &String| columns.iter().position(|own| own == source(name));
                let positions = names.iter().map(column).collect();
                (RecordForm::Csv(csv, positions), columns)
            }
        };
        let records = Self {
            seen: vec![false; names.len()],
            requests,
            names,
            fields,
            form,
            present,
            trusted_hops,
            lists: 0,
        };
        let RecordForm::Csv(_, columns) = &records.form else {
            return Ok((records, false));
        };
        let missing = records.missing(|index| columns[index].is_none()).next();
        missing.map_or(Ok((records, true)), Err)
    }

    /// A sentence about each field of the templates that is missing.
    fn missing(&self, is_missing: impl Fn(usize) -> bool) -> impl Iterator<Item = String> {
        let own = TIMES.len() + 3..self.names.len();
        own.filter(move |&index| is_missing(index)).map(|index| {
            let (name, present) = (&*self.names[index], self.present.join(", "));
            let near = did_you_mean(name, self.present.iter().map(String::as_str));
            let (name, present) = (name.escape_debug(), present.escape_debug());
            format!(
                "--descriptor names {{{name}}}, which no record has; there are: {present}{near}"
            )
        })
    }

    /// Likely mistakes, although rows were read.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<_> = self.missing(|index| !self.seen[index]).collect();
        if self.lists > 0 && self.trusted_hops.is_none() {
            let what = "values are lists of addresses, of which the last one is taken, as Envoy \
                does; write --xff-num-trusted-hops if proxies are in front of it";
            warnings.push(format!("{} {what}", self.lists));
        }
        warnings
    }

    /// A reason for each template of which no record has made a descriptor.
    pub(super) fn unused_templates(&self) -> Vec<String> {
        let unused = self.requests.templates.iter().filter(|one| !one.is_used);
        let reason = |one: &Template| {
            let source = one.source.escape_debug();
            format!("no record makes a descriptor of {source}")
        };
        unused.map(reason).collect()
    }

    /// Why no record became a request.
    pub(super) fn why_none(&self) -> String {
        let missing: Vec<_> = self.missing(|index| !self.seen[index]).collect();
        if missing.is_empty() {
            return "no record has all fields of a --descriptor and matches its `if`".to_owned();
        }
        missing.join("; ")
    }

    /// The row of a line; `None` if it has no descriptors.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn row(&mut self, line: &[u8], number: u64) -> Result<Option<TraceRow>, String> {
        let object: Value;
        let values: FieldValues<'_> = match &mut self.form {
            RecordForm::Csv(csv, positions) => csv.values(line, positions)?,
            RecordForm::Envoy => envoy(line, &self.names)?,
            RecordForm::Json => {
                object = serde_json::from_slice(line)
                    .map_err(|error| format!("it is no JSON object: {error}"))?;
                let inside = |name: &str| {
                    let mut parts = name.split('.');
                    parts.try_fold(&object, |value, part| value.get(part))
                };
                let value = |name: &String| object.get(name).or_else(|| inside(source(name)));
                let names = self.names.iter();
                names.map(|name| value(name).and_then(text)).collect()
            }
        };
        let utf8 = |value: &Cow<'_, [u8]>| String::from_utf8_lossy(value).into_owned();
        let own = |index: usize| values[index].as_ref().map(utf8);
        let [domain, hits, duration] = [0, 1, 2].map(|index| own(TIMES.len() + index));
        let time = (0..TIMES.len()).find_map(own);
        let (mut sent, hops) = (vec![None; values.len()], self.trusted_hops.unwrap_or(0));
        for (index, name) in self.names.iter().enumerate() {
            if let Some(value) = &values[index] {
                let (value, is_list) = as_sent(name, value, hops);
                (self.seen[index], sent[index]) = (true, Some(value));
                self.lists += u64::from(is_list);
            }
        }
        let requests = &mut self.requests;
        let mut request = requests.of_record(|template, field| sent[self.fields[template][field]]);
        if let Some(domain) = domain {
            request.domain = domain;
        } else if self.requests.domain.is_none() {
            return Err("it names no domain; write --domain".to_owned());
        }
        if let Some(hits) = hits {
            let number = hits.parse().map_err(|_| {
                let hits = hits.escape_debug();
                format!("`{hits}` are no hits; write a whole number")
            })?;
            for descriptor in &mut request.descriptors {
                descriptor.hits_addend = Some(number);
            }
        }
        let row = TraceRow {
            at: time_of(&time.ok_or("it has no time: no field `time` or `start_time`")?)?,
            line: number,
            duration: duration.as_deref().map(duration_of).transpose()?,
            message: request.encode_to_vec(),
        };
        Ok(Some(row).filter(|_| !request.descriptors.is_empty()))
    }
}

/// The field that has the value of this name.
fn source(name: &str) -> &str {
    if name == PATH_AND_QUERY { PATH } else { name }
}

/// A value as Envoy's descriptors have it: a path without its query, and of a list of addresses the
/// client's, which is the last one before so many trusted hops; whether it was such a list. A list
/// that is too short has the address that connects to Envoy at its end. Source: Envoy, "HTTP
/// header manipulation", x-forwarded-for.
fn as_sent<'v>(name: &str, value: &'v [u8], trusted_hops: usize) -> (&'v [u8], bool) {
    let name = name.rsplit('.').next().unwrap_or(name);
    if name == PATH {
        let end = value.iter().position(|&byte| byte == b'?');
        return (&value[..end.unwrap_or(value.len())], false);
    }
    if !value.contains(&b',') {
        return (value, false);
    }
    let parts = || value.rsplit(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    let is_address =
        |part: &[u8]| str::from_utf8(part).is_ok_and(|text| text.parse::<IpAddr>().is_ok());
    let is_header = name.replace('-', "_").eq_ignore_ascii_case(FORWARDED_FOR);
    if !is_header && !parts().all(is_address) {
        return (value, false);
    }
    let address = parts().nth(trusted_hops).or_else(|| parts().next());
    (address.unwrap_or(value), true)
}

/// Lines of CSV (RFC 4180). A record is one line.
struct Csv {
    reader: csv_core::Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
    /// Columns of the first line.
    columns: usize,
}

/// Maximum number of columns.
const MAX_COLUMNS: usize = 1_024;

impl Csv {
    fn new() -> Self {
        Self {
            reader: csv_core::Reader::new(),
            text: Vec::new(),
            ends: Vec::new(),
            columns: 0,
        }
    }

    /// The fields of a line.
    fn read(&mut self, line: &[u8]) -> Result<Vec<&[u8]>, String> {
        if line.is_empty() {
            return Ok(Vec::new());
        }
        self.text.resize(self.text.len().max(line.len() + 1), 0);
        self.ends.resize(MAX_COLUMNS, 0);
        self.reader.reset();
        let (mut written, mut columns) = (0, 0);
        for (part, is_last) in [(line, false), (b"\n", true)] {
            let (text, ends) = (&mut self.text[written..], &mut self.ends[columns..]);
            let (result, read, text, ends) = self.reader.read_record(part, text, ends);
            (written, columns) = (written + text, columns + ends);
            if matches!(result, ReadRecordResult::OutputEndsFull) {
                return Err(format!("it has more than {MAX_COLUMNS} columns"));
            }
            let has_ended = matches!(result, ReadRecordResult::Record);
            if has_ended != is_last || read < part.len() {
                let what = "it ends within quotes, or has a line break: a record is one line";
                return Err(what.to_owned());
            }
        }
        if self.columns == 0 {
            self.columns = columns;
        }
        if columns != self.columns {
            let own = counted(columns as u64, "column");
            return Err(format!(
                "it has {own}, and the first line has {}",
                self.columns
            ));
        }
        let mut start = 0;
        let field = |&end: &usize| &self.text[std::mem::replace(&mut start, end)..end];
        Ok(self.ends[..columns].iter().map(field).collect())
    }

    /// The fields of these columns. An empty one is missing.
    fn values(
        &mut self,
        line: &[u8],
        columns: &[Option<usize>],
    ) -> Result<FieldValues<'_>, String> {
        let fields = self.read(line)?;
        let value = |column: &Option<usize>| {
            let field = fields.get((*column)?).filter(|field| !field.is_empty())?;
            Some(Cow::Borrowed(*field))
        };
        Ok(columns.iter().map(value).collect())
    }
}

/// The text of a value of JSON, if it has one. `-` is what Envoy writes where there is none.
fn text(value: &Value) -> Option<Cow<'_, [u8]>> {
    match value {
        Value::String(text) if text == "-" => None,
        Value::String(text) => Some(without_port(text.as_bytes())),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string().into_bytes().into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// An address with a port, such as `downstream_remote_address`, without it: Envoy's descriptors
/// have addresses only.
fn without_port(value: &[u8]) -> Cow<'_, [u8]> {
    match str::from_utf8(value).map(str::parse::<SocketAddr>) {
        Ok(Ok(socket)) => socket.ip().to_string().into_bytes().into(),
        _ => value.into(),
    }
}

/// The fields of a line of Envoy's default access log.
fn envoy<'l>(line: &'l [u8], names: &[String]) -> Result<FieldValues<'l>, String> {
    let fields = ENVOY.captures(line);
    let fields = fields.ok_or("it is no line of Envoy's default access log")?;
    let value = |name: &String| {
        let field = fields.name(source(name))?.as_bytes();
        (field != b"-").then(|| without_port(field))
    };
    Ok(names.iter().map(value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::workload::{Fields, Templates};
    use crate::core::time::{Micros, Span};

    fn records(templates: &[&str], first: &str) -> Result<(RecordReader, bool), String> {
        let template = |text: &&str| Templates::parse(text, Fields::Allowed).expect("a template");
        let templates: Vec<_> = templates.iter().map(template).collect();
        let requests = Requests::new(Some("d".to_owned()), &templates, None, 1);
        RecordReader::new(requests, first.as_bytes(), None)
    }

    #[test]
    fn values_are_those_of_descriptors() {
        for (name, value, hops, sent, is_list) in [
            ("path", "/a?b=c?d", 0, "/a", false),
            ("request.path", "/a?b", 0, "/a", false),
            ("path-and-query", "/a?b", 0, "/a?b", false),
            ("user", "a?b,c", 0, "a?b,c", false),
            (
                "x_forwarded_for",
                "1.1.1.1, 2.2.2.2,3.3.3.3",
                0,
                "3.3.3.3",
                true,
            ),
            (
                "x_forwarded_for",
                "1.1.1.1, 2.2.2.2,3.3.3.3",
                1,
                "2.2.2.2",
                true,
            ),
            ("x_forwarded_for", "x, 2.2.2.2", 1, "x", true),
            (
                "headers.X-Forwarded-For",
                "1.1.1.1,2.2.2.2",
                2,
                "2.2.2.2",
                true,
            ),
            ("client", "1.1.1.1,::2", 0, "::2", true),
            ("client", "1.1.1.1", 1, "1.1.1.1", false),
        ] {
            let found = as_sent(name, value.as_bytes(), hops);
            assert_eq!(found, (sent.as_bytes(), is_list), "{name} {value} {hops}");
        }
    }

    /// The time in seconds, and the request as it is explained.
    fn describe(row: Option<TraceRow>) -> Option<(f64, String)> {
        let row = row?;
        let request = crate::service::rls::decode::decode(&row.message).expect("a request");
        let descriptor = |(descriptor, entries): (_, &[crate::core::request::Entry<'_>])| {
            let entries: Vec<_> = entries.iter().map(ToString::to_string).collect();
            format!("{} {}", request.hits(descriptor), entries.join(","))
        };
        let all: Vec<_> = request.descriptors().map(descriptor).collect();
        let domain = String::from_utf8_lossy(request.domain);
        let text = format!("{domain} {}", all.join(" | "));
        Some((row.at.0 as f64 / 1e6, text))
    }

    #[test]
    fn csv_has_named_columns() {
        let (mut records, has_head) = records(
            &["who={who}", "path={path},who={who}"],
            "path,time,who,hits,domain",
        )
        .expect("columns");
        assert!(has_head);
        let mut row = |line: &str| records.row(line.as_bytes(), 2).map(describe);
        assert_eq!(
            row("/a,5,ann,3,shop"),
            Ok(Some((5.0, "shop 3 who=ann | 3 path=/a,who=ann".to_owned())))
        );
        assert_eq!(
            row("\"/a,\"\"b\",1970-01-01T00:00:06.5Z,ann,,"),
            Ok(Some((
                6.5,
                "d 1 who=ann | 1 path=/a,\"b,who=ann".to_owned()
            )))
        );
        assert_eq!(
            row(",7,ann,,"),
            Ok(Some((7.0, "d 1 who=ann".to_owned()))),
            "a field is missing"
        );
        assert_eq!(row("/a,8,,,"), Ok(None), "Envoy would ask nothing");
        for (line, what) in [
            ("/a,,ann,,", "no time"),
            ("/a,x,ann,,", "`x` is no time"),
            ("/a,5,ann,-1,", "no hits"),
            ("/a,5,ann", "it has 3 columns, and the first line has 5"),
            ("/a,5,\"ann", "within quotes"),
            ("/a,5,ann\r/b,6,bob", "a line break"),
        ] {
            let error = row(line).expect_err(line);
            assert!(error.contains(what), "{error}");
        }
        assert!(
            row(&",".repeat(2_000))
                .expect_err("columns")
                .contains("1024")
        );
        let Err(error) = super::tests::records(&["who={whom}"], "time,who") else {
            panic!("it is unknown")
        };
        assert!(
            error.contains("{whom}") && error.contains("time, who"),
            "{error}"
        );
    }

    #[test]
    fn the_default_access_log_of_envoy_is_read() {
        let line = r#"[2026-11-23T10:00:00.500Z] "GET /a b?c="d HTTP/1.1" 200 - 0 135 12 11 "10.0.0.9" "curl/8 "x y" "4d" "shop:80" "10.1.1.1:8080""#;
        let template = "remote_address={x_forwarded_for},path={path}";
        let (mut records, has_head) = records(
            &[template, "ua={user_agent}", "flags={response_flags}"],
            line,
        )
        .expect("a log");
        assert!(!has_head);
        let row = records
            .row(line.as_bytes(), 1)
            .expect("a row")
            .expect("descriptors");
        assert_eq!(row.duration, Some(Span::from_micros(12_000)));
        assert_eq!(row.at, Micros(1_795_428_000_500_000));
        let text = r#"d 1 remote_address=10.0.0.9,path=/a b | 1 ua=curl/8 "x y"#;
        assert_eq!(
            describe(Some(row)).map(|(_, text)| text).as_deref(),
            Some(text)
        );
        for line in [
            "[2026-11-23T10:00:00.500Z]",
            "[x",
            r#"[2026-11-23T10:00:00.500Z] "GET" 200"#,
            "[] \"  \"",
        ] {
            let error = records.row(line.as_bytes(), 1).expect_err(line);
            assert!(error.contains("no line of Envoy's"), "{error}");
        }
    }

    #[test]
    fn logs_in_json_are_read() {
        let line = r#"{"start_time": "1970-01-01T00:00:05Z", "downstream_remote_address": "[2001:db8::1]:443", "path": "/a", "code": 200, "x": null, "duration": 7, "a": {"b": {"c": "in"}, "b.c": "out"}}"#;
        let (mut records, _) = records(
            &[
                "remote_address={downstream_remote_address},path={path}",
                "x={x}",
                "code={code}",
                "in={a.b.c},b={a.b}",
                "in={a.b.c}",
            ],
            line,
        )
        .expect("a log");
        let row = records
            .row(line.as_bytes(), 1)
            .expect("a row")
            .expect("descriptors");
        assert_eq!(row.duration, Some(Span::from_micros(7_000)));
        let text = "d 1 remote_address=2001:db8::1,path=/a | 1 code=200 | 1 in=in".to_owned();
        assert_eq!(describe(Some(row)), Some((5.0, text)));
        assert!(
            records
                .row(b"{\"time\": 5}", 1)
                .is_ok_and(|row| row.is_none())
        );
        assert!(records.row(b"{", 1).is_err());
    }
}
