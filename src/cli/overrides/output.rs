//! What these commands print for people.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::Value;

use super::Listed;
use crate::cli::print;
use crate::core::time::people;
use crate::desk::admin::overrides::{Ordered, Removed, Reset};
use crate::limits::overrides::{EntryRecord, Record};
use crate::limits::rules::compile::OneLine;

/// Limits of an answer that are named.
const MAX_LIMITS: usize = 5;

/// `until` is what was understood of `--until`, now, and the zone of the terminal.
pub(super) fn ordered(
    answer: &Ordered,
    until: Option<(Timestamp, Timestamp, &TimeZone)>,
) -> String {
    let (one, limits) = (&answer.r#override, &answer.limits);
    let mut text = format!("{}\n", sentence(one));
    if let Some((until, now, zone)) = until {
        let ahead = people::span(until.duration_since(now).as_secs_f64());
        let until = until.to_zoned(zone.clone()).strftime("%A %F %H:%M %Z");
        text += &format!("  ends    in {ahead}, {until}\n");
    }
    if !limits.is_empty() {
        let named = limits.iter().take(MAX_LIMITS);
        let named: Vec<_> = named.map(|limit| OneLine(limit).to_string()).collect();
        let more = match limits.len().saturating_sub(MAX_LIMITS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        text += &format!("  limits  {}{more}\n", named.join(", "));
    }
    if one.kind == "raise" && !limits.is_empty() {
        text += if answer.keeps_count {
            "  count   kept: hits that were counted still count\n"
        } else {
            "  count   starts from zero\n"
        };
    }
    if let Some(replaced) = &answer.replaced {
        text += &format!("  before  {}\n", sentence(replaced));
    }
    text += &format!("  undo    weir un{} {}\n", one.kind, OneLine(&one.id));
    text + &warnings(&answer.warnings)
}

pub(super) fn removed(Removed { removed }: &Removed) -> String {
    format!("removed: {}\n", sentence(removed))
}

pub(super) fn reset(answer: &Reset) -> String {
    let mut text = String::new();
    for counter in &answer.reset {
        let what = if counter.existed {
            "counts from zero"
        } else {
            "had counted nothing"
        };
        let (limit, counter) = (OneLine(&counter.limit), OneLine(&counter.counter));
        text += &format!("{limit} {what} (counter {counter})\n");
    }
    text + &warnings(&answer.warnings)
}

/// A record of a list.
pub(super) fn record(one: &Value) -> serde_json::Result<Record> {
    Record::deserialize(one)
}

/// A column of the list, and its cell of an override.
type Column = (&'static str, fn(&Record) -> String);

const BEFORE_END: [Column; 4] = [
    ("ID", |one| one.id.clone()),
    ("ORDER", order),
    ("DOMAIN", |one| one.domain.clone()),
    ("ENTRIES", |one| entries(&one.entries)),
];
const UNTIL: [Column; 1] = [("UNTIL", |one| instant(one.until.as_deref()))];
const ENDED: [Column; 2] = [
    ("ENDED", |one| {
        instant(one.ended.as_ref().map(|ended| &*ended.at))
    }),
    ("ENDED BY", |one| {
        one.ended
            .as_ref()
            .map_or_else(String::new, |ended| ended.by.clone())
    }),
];
const BEHIND_END: [Column; 3] = [
    ("MADE", |one| instant(one.created_at.as_deref())),
    ("BY", |one| one.by.clone()),
    ("REASON", |one| one.reason.clone()),
];

pub(super) fn listed(Listed { overrides, .. }: &Listed, ended: bool) -> String {
    if overrides.is_empty() {
        return if ended {
            "no overrides ended within the last week\n"
        } else {
            "no overrides are in force; `weir overrides --ended` lists those of the last week\n"
        }
        .to_owned();
    }
    let end = if ended { &ENDED[..] } else { &UNTIL };
    let columns = [&BEFORE_END[..], end, &BEHIND_END].concat();
    let row = |one: &Value| {
        let record = record(one);
        let cell = |(index, column): (usize, &Column)| match (&record, index) {
            (Ok(record), _) => column.1(record),
            // One that this version does not understand.
            (Err(_), 0) => one.to_string(),
            (Err(_), _) => String::new(),
        };
        let cells = columns.iter().enumerate().map(cell);
        cells
            .map(|cell| OneLine(if cell.is_empty() { "-" } else { &cell }).to_string())
            .collect()
    };
    let head = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let rows: Vec<Vec<_>> = std::iter::once(head)
        .chain(overrides.iter().map(row))
        .collect();
    print::table(&rows, 0)
}

/// An instant of a record, if there is one.
fn instant(text: Option<&str>) -> String {
    let text = text.unwrap_or_default();
    text.parse()
        .map_or_else(|_| text.to_owned(), people::instant)
}

/// What an override orders, on one line.
fn sentence(one: &Record) -> String {
    let until = match &one.until {
        Some(until) => format!("until {}", instant(Some(until))),
        None => "until it is removed".to_owned(),
    };
    let (order, entries) = (order(one), entries(&one.entries));
    OneLine(&format!("{order} {entries} in {}, {until}", one.domain)).to_string()
}

fn order(one: &Record) -> String {
    let Some(to) = &one.to else {
        return one.kind.clone();
    };
    match to.read() {
        Ok(rate) => format!("{} to {rate}", one.kind),
        Err(_) => format!("{} to {}", one.kind, to.requests_per_unit),
    }
}

/// As arguments of a command.
pub(super) fn entries(entries: &[EntryRecord]) -> String {
    print::words(entries.iter().map(|entry| match entry.pattern() {
        Ok(pattern) => pattern.to_string(),
        Err(_) => entry.key.clone(),
    }))
}

fn warnings(warnings: &[String]) -> String {
    let line = |warning: &String| format!("warning: {}\n", OneLine(warning));
    warnings.iter().map(line).collect()
}
