//! Traces: rows of requests with their times, from a file or a pipe, in the order of time.
//!
//! The first line decides the format: JSON objects, Envoy's default access log, or CSV with the
//! names of its columns. A row becomes the bytes that Envoy would send, which take the service's
//! own decoder.

mod fields;
mod lines;
mod order;
mod requests;
mod weir_log;

use std::io::Read;

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::cli::workload::Requests;
use crate::core::time::{Micros, Span};
use crate::limits::overrides::parse_instant;
use crate::limits::rules::compile::OneLine;
use fields::RecordReader;
use lines::LineReader;
use order::RowOrder;
use weir_log::WeirLog;

/// One request of a trace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TraceRow {
    /// When it was sent.
    pub(crate) at: Micros,
    /// Its line in the trace, from 1 on.
    pub(crate) line: u64,
    /// Its duration, if the trace has one.
    pub(crate) duration: Option<Span>,
    /// The `RateLimitRequest`, encoded. It need not be valid.
    pub(crate) message: Vec<u8>,
}

/// Bad rows that are named, and the characters of their errors, which may quote the row.
const MAX_NAMED: usize = 10;
const MAX_ERROR: usize = 300;

/// Of so many rows one may be bad.
const MOST_BAD: u64 = 100;

/// Rows that could not be used.
#[derive(Debug, Default, Serialize)]
pub(crate) struct BadRows {
    /// How many.
    pub(crate) count: u64,
    /// The first of them.
    pub(super) first: Vec<BadRow>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct BadRow {
    line: u64,
    error: String,
}

impl BadRows {
    /// Adds the row of this line.
    pub(super) fn add(&mut self, line: u64, error: &impl ToString) {
        self.count += 1;
        if self.first.len() < MAX_NAMED {
            let error = error.to_string().chars().take(MAX_ERROR).collect();
            self.first.push(BadRow { line, error });
        }
    }

    /// Adds all of others.
    pub(super) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.first.extend(other.first.iter().cloned());
        self.first.sort_by_key(|bad| bad.line);
        self.first.truncate(MAX_NAMED);
    }

    /// The first of them, as rows of a table.
    pub(crate) fn named(&self) -> Vec<Vec<String>> {
        let row = |bad: &BadRow| vec![format!("line {}: {}", bad.line, OneLine(&bad.error))];
        self.first.iter().map(row).collect()
    }

    /// # Errors
    /// More than one of a hundred rows is bad. `good` are the others.
    pub(super) fn check(&self, good: u64) -> anyhow::Result<()> {
        let (count, all) = (self.count, self.count + good);
        ensure!(
            count * MOST_BAD <= all,
            "{count} of {all} rows cannot be read, which is more than 1 %; the first:\n{}",
            self.named().concat().join("\n")
        );
        Ok(())
    }
}

/// Format of the lines.
enum LineFormat {
    /// A request, or a line of Weir's own log.
    Requests(WeirLog),
    /// Named fields.
    Records(Box<RecordReader>),
}

impl LineFormat {
    /// The format of a trace that begins with this line, and whether the line is no row.
    ///
    /// # Errors
    /// It has none.
    fn of(
        requests: Requests,
        first: &[u8],
        trusted_hops: Option<usize>,
    ) -> anyhow::Result<(Self, bool)> {
        if requests.templates.is_empty() {
            ensure!(
                first.starts_with(b"{"),
                "the trace is not JSON: CSV and access logs need --descriptor, such as \
                 --descriptor 'user={{user}}'"
            );
            return Ok((Self::Requests(WeirLog::default()), false));
        }
        let records = RecordReader::new(requests, first, trusted_hops);
        let (records, is_head) = records.map_err(anyhow::Error::msg)?;
        Ok((Self::Records(Box::new(records)), is_head))
    }

    /// The row of a line; `None` if it is about no request.
    ///
    /// # Errors
    /// What is wrong with it.
    fn row(&mut self, line: &[u8], number: u64) -> Result<Option<TraceRow>, String> {
        match self {
            Self::Records(records) => records.row(line, number),
            Self::Requests(log) if line.starts_with(weir_log::BEGIN) => log.row(line, number),
            Self::Requests(_) => requests::row(line, number).map(Some),
        }
    }
}

pub(crate) struct Trace {
    lines: LineReader,
    /// The maker of requests of records, until the first line has decided the format.
    requests: Option<Requests>,
    format: LineFormat,
    order: RowOrder,
    /// The last line was read.
    ended: bool,
    /// Rows that could not be read so far.
    pub(crate) bad: BadRows,
    /// Lines that are about no request.
    pub(crate) passed_over: u64,
    /// `xff_num_trusted_hops` of Envoy, if that is known.
    trusted_hops: Option<usize>,
}

impl Trace {
    /// The trace in this stream. `requests` makes requests of records. `sorts_all`: it is held in
    /// memory, and sorted as a whole.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn new(
        stream: impl Read + 'static,
        requests: Requests,
        sorts_all: bool,
        trusted_hops: Option<usize>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            format: LineFormat::Requests(WeirLog::default()),
            requests: Some(requests),
            passed_over: 0,
            lines: LineReader::new(stream).context(UNREADABLE)?,
            order: RowOrder::new(sorts_all),
            ended: false,
            bad: BadRows::default(),
            trusted_hops,
        })
    }

    /// Likely mistakes, although rows were read.
    pub(crate) fn warnings(&self) -> Vec<String> {
        match &self.format {
            LineFormat::Records(records) => records.warnings(),
            LineFormat::Requests(_) => Vec::new(),
        }
    }

    /// Reasons for which it shows less than it seems to.
    pub(crate) fn inconclusive(&self) -> Vec<String> {
        match &self.format {
            LineFormat::Records(records) => records.unused_templates(),
            LineFormat::Requests(log) if log.is_of_refusals() => {
                let remedy = "use lines of LOG_DECISIONS";
                vec![format!("the trace has refused requests only; {remedy}")]
            }
            LineFormat::Requests(_) => Vec::new(),
        }
    }

    /// Why no row became a request.
    pub(crate) fn why_none(&self) -> String {
        match &self.format {
            LineFormat::Records(records) if self.passed_over > 0 => records.why_none(),
            _ if self.passed_over > 0 => "its lines are about other things".to_owned(),
            _ => "the trace is empty".to_owned(),
        }
    }

    /// The next row in the order of time; `None` after the last one.
    ///
    /// # Errors
    /// The trace cannot be read, or it is too far out of order.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<TraceRow>> {
        loop {
            if let Some(row) = self.order.pop(self.ended) {
                return Ok(Some(row));
            }
            if self.ended {
                return Ok(None);
            }
            let number = self.lines.number + 1;
            let line = match self.lines.next().context(UNREADABLE)? {
                None => {
                    self.ended = true;
                    continue;
                }
                Some(Ok([])) => continue,
                Some(line) => line,
            };
            if let Some(requests) = self.requests.take_if(|_| line.is_ok())
                && let Ok(first) = &line
            {
                let (format, is_head) = LineFormat::of(requests, first, self.trusted_hops)?;
                self.format = format;
                if is_head {
                    continue;
                }
            }
            match line.and_then(|line| self.format.row(line, number)) {
                Ok(Some(row)) => self.order.push(row).map_err(anyhow::Error::msg)?,
                Ok(None) => self.passed_over += 1,
                Err(error) => self.bad.add(number, &error),
            }
        }
    }
}

const UNREADABLE: &str = "the trace cannot be read";

/// An instant: RFC 3339, or seconds since 1970.
fn time_of(text: &str) -> Result<Micros, String> {
    match text.parse() {
        Ok(seconds) => instant(seconds),
        Err(_) => parse_instant(text).map_err(|_| no_time(text)),
    }
}

/// The instant so many seconds after 1970.
fn instant(seconds: f64) -> Result<Micros, String> {
    let micros = (seconds * 1e6).round();
    match (0.0..MOST_MICROS).contains(&micros) {
        true => Ok(Micros(micros as u64)),
        false => Err(no_time(&seconds.to_string())),
    }
}

/// The end of the year 9999, in microseconds.
const MOST_MICROS: f64 = 253_402_300_800e6;

fn no_time(text: &str) -> String {
    let remedy = "write RFC 3339, such as 2026-11-23T10:00:00.5Z, or seconds since 1970";
    format!("`{}` is no time; {remedy}", text.escape_debug())
}

/// A duration with its units, or milliseconds, as Envoy writes them.
fn duration_of(text: &str) -> Result<Span, String> {
    if let Ok(millis) = text.parse::<u32>() {
        return Ok(Span::from_micros(u64::from(millis) * 1_000));
    }
    crate::cli::duration(text).map(Span::from).map_err(|_| {
        let text = text.escape_debug();
        format!("`{text}` is no duration; write milliseconds, or a unit as in 250ms or 1m30s")
    })
}
