//! Output to stdout and stderr, either of which may be closed, full, or a pipe whose reader has
//! ended.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use anyhow::Context;
use serde::Serialize;

use crate::core::ask::written::shell_word;
use crate::limits::plan::key::{EntryText, Subject};
use crate::limits::rules::compile::Problem;
use crate::observe::telemetry;

/// Problems in a line of JSON; `weir check` shows them all.
const MAX_PROBLEMS: usize = 50;

/// The readers that the output is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Whether stdout shows colours: it is a terminal, and `NO_COLOR` (<https://no-color.org>) does not
/// forbid them.
#[expect(
    clippy::disallowed_methods,
    reason = "variables of the terminal are no settings of the service"
)]
pub(super) fn has_colours() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    colours(
        io::stdout().is_terminal(),
        set("NO_COLOR").is_some(),
        set("TERM").is_some_and(|kind| kind != "dumb"),
    )
}

fn colours(is_terminal: bool, is_forbidden: bool, terminal_has_them: bool) -> bool {
    is_terminal && !is_forbidden && terminal_has_them
}

/// A value as JSON on one line.
///
/// # Errors
/// A map whose keys are not text.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string(value).context("the output cannot be written as JSON")? + "\n")
}

/// A row of a list on one line, as words that a command takes: its entries or, where these do not
/// say all of it, the name of its subject.
pub(super) fn row(entries: &[EntryText], subject: Option<&str>) -> String {
    let Some((name, subject)) = subject.and_then(|name| Some((name, Subject::read(name).ok()?)))
    else {
        return words(entries);
    };
    match subject.exact() {
        Ok(exact)
            if exact.first().iter().all(|entry| {
                str::from_utf8(entry.key).is_ok() && str::from_utf8(entry.value).is_ok()
            }) =>
        {
            words(entries)
        }
        _ => shell_word(&format!("--subject={name}")).into_owned(),
    }
}

fn words(entries: &[EntryText]) -> String {
    entries
        .iter()
        .map(|entry| shell_word(&entry.written()).into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Rows in columns that are as wide as their widest cell; the first ones have numbers.
pub(super) fn table<const N: usize>(rows: &[[String; N]], numbers: usize) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells: [String; N] = std::array::from_fn(|column| {
            let (cell, width) = (&row[column], widths[column]);
            if column < numbers {
                format!("{cell:>width$}")
            } else {
                format!("{cell:width$}")
            }
        });
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Writes `text` to stdout as it is. False: the reader of the pipe has ended, so that further
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
        let problems: Vec<_> = problems
            .iter()
            .take(MAX_PROBLEMS)
            .map(ToString::to_string)
            .collect();
        return error(telemetry::json_error(
            &format!("weir cannot start: {message}"),
            &problems,
        ));
    }
    problems.iter().for_each(error);
    error(format_args!("weir: {message}"));
}

/// Writes a line to stderr. An error is ignored: it could not be printed either.
pub(super) fn error(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
