//! Output to stdout and stderr, either of which may be closed, full, or a pipe whose reader has
//! ended.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use crate::admin::api::status::first_of;
use crate::core::request::Entry;
use crate::core::request::notation::shell_word;
use crate::limits::plan::key::{EntryText, Subject};
use crate::limits::rules::compile::Problem;
use crate::observe::telemetry;

/// Problems in a line of JSON; `weir check` shows them all.
const MAX_PROBLEMS: usize = 50;

/// The readers that the output is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Human-readable text.
    Text,
    /// JSON for programs.
    Json,
    /// CSV for spreadsheets, only of `weir usage`.
    #[value(skip)]
    Csv,
}

impl Format {
    /// Prints an answer for these readers. False: further output is useless, as of [`out`].
    ///
    /// # Errors
    /// stdout cannot be written.
    pub(super) fn print<T: Serialize>(
        self,
        answer: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<bool> {
        match self {
            Self::Text => out(text(answer)),
            Self::Json | Self::Csv => {
                let line = serde_json::to_string(answer);
                out(line.context("the output cannot be written as JSON")? + "\n")
            }
        }
    }
}

/// Whether stdout shows colours: it is a terminal, and `NO_COLOR` (<https://no-color.org>) does not
/// forbid them.
#[expect(
    clippy::disallowed_methods,
    reason = "variables of the terminal are no settings of the service"
)]
pub(super) fn has_colours() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_dumb = set("TERM").is_none_or(|kind| kind == "dumb");
    io::stdout().is_terminal() && set("NO_COLOR").is_none() && !is_dumb
}

/// A row of a list on one line, as words that a command takes: its entries or, where these are not
/// all of it, the name of its subject.
pub(super) fn row(entries: &[EntryText], subject: Option<&str>) -> String {
    let is_text = |entry: &Entry<'_>| {
        str::from_utf8(entry.key).is_ok() && str::from_utf8(entry.value).is_ok()
    };
    let is_words = |subject: &Subject| {
        let request = subject.exact();
        request.is_ok_and(|request| request.first().iter().all(is_text))
    };
    match subject.map(|name| (name, name.parse())) {
        Some((name, Ok(subject))) if !is_words(&subject) => {
            format!("--subject {}", shell_word(name))
        }
        _ => words(entries),
    }
}

/// These, as words that a shell reads.
pub(super) fn words(all: impl IntoIterator<Item = impl ToString>) -> String {
    let word = |word: _| shell_word(&ToString::to_string(&word)).into_owned();
    all.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

/// A value, a text without quotes.
pub(super) fn plain(value: &Value) -> String {
    let text = value.as_str().map(str::to_owned);
    text.unwrap_or_else(|| value.to_string())
}

/// Rows in columns that are as wide as their widest cell; the first ones have numbers. Without
/// `heads`, columns have no names.
pub(super) fn table(
    heads: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    numbers: usize,
) -> String {
    let head = heads.iter().map(|&head| head.to_owned()).collect();
    let head = (!heads.is_empty()).then_some(head);
    let rows: Vec<Vec<String>> = head.into_iter().chain(rows).collect();
    let mut widths = Vec::new();
    for row in &rows {
        widths.resize(row.len(), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column < numbers {
            true => format!("{cell:>width$}"),
            false => format!("{cell:width$}"),
        });
        let cells: Vec<_> = cells.collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Writes `text` to stdout as it is. False: the reader of the pipe has ended, and further
/// output is useless.
///
/// # Errors
/// Any other error of stdout.
pub(super) fn out(text: impl Display) -> anyhow::Result<bool> {
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("stdout cannot be written"),
    }
}

/// Writes an error of the command to stderr, after a line for each of its problems. As JSON it is
/// one line with all of them.
pub(super) fn failure(format: telemetry::Format, message: &str, problems: &[Problem]) {
    if format == telemetry::Format::Json {
        let problems = first_of(problems, MAX_PROBLEMS);
        let message = format!("weir cannot start: {message}");
        return error(telemetry::json_error(&message, &problems));
    }
    problems.iter().for_each(error);
    error(format_args!("weir: {message}"));
}

/// Writes a line to stderr. An error is ignored: it could not be printed either.
pub(super) fn error(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Runs what a command waits for, on this thread.
///
/// # Errors
/// The command's, or the operating system gives no event queue.
pub(super) fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(command)
}
