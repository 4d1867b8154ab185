//! What these commands print for people.

use std::fmt::Write;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::Value;

use super::Listed;
use crate::cli::print;
use crate::core::ask::written::shell_word;
use crate::core::time::people;
use crate::desk::admin::overrides::{Ordered, Removed, Reset};
use crate::limits::overrides::{Ended, EntryRecord, RateRecord, Record};
use crate::limits::rules::compile::OneLine;

/// Limits of an answer that are named.
const MAX_LIMITS: usize = 5;

/// `until` is what was understood of `--until`, now, and the zone of the terminal.
pub(super) fn ordered(
    answer: &Ordered,
    until: Option<(Timestamp, Timestamp, &TimeZone)>,
) -> String {
    let Ordered {
        r#override: one,
        limits,
        keeps_count,
        replaced,
        warnings,
    } = answer;
    let mut text = format!("{}\n", sentence(one));
    // Writing to a string does not fail.
    if let Some((until, now, zone)) = until {
        let ahead = people::span(until.duration_since(now).as_secs_f64());
        let _ = writeln!(
            text,
            "  ends    in {ahead}, {}",
            until.to_zoned(zone.clone()).strftime("%A %F %H:%M %Z")
        );
    }
    if !limits.is_empty() {
        let more = limits.len().saturating_sub(MAX_LIMITS);
        let more = if more == 0 {
            String::new()
        } else {
            format!(" and {more} more")
        };
        let named: Vec<_> = limits
            .iter()
            .take(MAX_LIMITS)
            .map(|limit| OneLine(limit).to_string())
            .collect();
        let _ = writeln!(text, "  limits  {}{more}", named.join(", "));
    }
    if one.kind == "raise" && !limits.is_empty() {
        let count = if *keeps_count {
            "kept: hits that were counted still count"
        } else {
            "starts from zero"
        };
        let _ = writeln!(text, "  count   {count}");
    }
    if let Some(replaced) = replaced {
        let _ = writeln!(text, "  before  {}", sentence(replaced));
    }
    let _ = writeln!(text, "  undo    weir un{} {}", one.kind, OneLine(&one.id));
    add_warnings(&mut text, warnings);
    text
}

pub(super) fn removed(Removed { removed }: &Removed) -> String {
    format!("removed: {}\n", sentence(removed))
}

pub(super) fn reset(Reset { reset, warnings }: &Reset) -> String {
    let mut text = String::new();
    for counter in reset {
        let what = if counter.existed {
            "counts from zero"
        } else {
            "had counted nothing"
        };
        let _ = writeln!(
            text,
            "{} {what} (counter {})",
            OneLine(&counter.limit),
            OneLine(&counter.counter)
        );
    }
    add_warnings(&mut text, warnings);
    text
}

/// A record of a list.
pub(super) fn record(one: &Value) -> serde_json::Result<Record> {
    Record::deserialize(one)
}

pub(super) fn listed(Listed { overrides, .. }: &Listed, ended: bool) -> String {
    if overrides.is_empty() {
        return if ended {
            "no overrides ended within the last week\n"
        } else {
            "no overrides are in force; `weir overrides --ended` lists those of the last week\n"
        }
        .to_owned();
    }
    let rows = overrides.iter().map(row);
    if ended {
        let head = [
            "ID", "ORDER", "DOMAIN", "ENTRIES", "ENDED", "ENDED BY", "MADE", "BY", "REASON",
        ];
        return table(head, rows);
    }
    let head = [
        "ID", "ORDER", "DOMAIN", "ENTRIES", "UNTIL", "MADE", "BY", "REASON",
    ];
    let without_end = |[id, order, domain, entries, until, _, made, by, reason]: [String; 9]| {
        [id, order, domain, entries, until, made, by, reason]
    };
    table(head, rows.map(without_end))
}

fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let shown = |row: [String; N]| row.map(|cell| OneLine(or_dash(&cell)).to_string());
    let rows: Vec<_> = std::iter::once(head.map(str::to_owned))
        .chain(rows.map(shown))
        .collect();
    print::table(&rows, 0)
}

/// The cells of an override: its id, what it orders and for which descriptors, until when, by whom
/// it was ended, when, by whom and why it was made.
fn row(one: &Value) -> [String; 9] {
    let Ok(one) = record(one) else {
        let mut cells = [const { String::new() }; 9];
        cells[0] = one.to_string();
        return cells;
    };
    let [until, by] = match &one.ended {
        Some(Ended { at, by }) => [instant(at), by.clone()],
        None => [
            one.until.as_deref().map_or_else(String::new, instant),
            String::new(),
        ],
    };
    let made = one.created_at.as_deref().map_or_else(String::new, instant);
    let order = order(&one);
    [
        one.id,
        order,
        one.domain,
        entries(&one.entries),
        until,
        by,
        made,
        one.by,
        one.reason,
    ]
}

/// An instant of a record.
fn instant(text: &str) -> String {
    text.parse()
        .map_or_else(|_| text.to_owned(), people::instant)
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// What an override orders, on one line.
fn sentence(one: &Record) -> String {
    let until = one.until.as_ref().map_or_else(
        || "until it is removed".to_owned(),
        |until| format!("until {}", instant(until)),
    );
    OneLine(&format!(
        "{} {} in {}, {until}",
        order(one),
        entries(&one.entries),
        one.domain
    ))
    .to_string()
}

fn order(one: &Record) -> String {
    one.to.as_ref().map_or_else(
        || one.kind.clone(),
        |to| format!("{} to {}", one.kind, rate(to)),
    )
}

fn rate(to: &RateRecord) -> String {
    to.read().map_or_else(
        |_| to.requests_per_unit.to_string(),
        |rate| rate.to_string(),
    )
}

/// As arguments of a command.
pub(super) fn entries(entries: &[EntryRecord]) -> String {
    entries
        .iter()
        .map(|entry| {
            shell_word(
                &entry
                    .pattern()
                    .map_or_else(|_| entry.key.clone(), |pattern| pattern.to_string()),
            )
            .into_owned()
        })
        .collect::<Vec<_>>()
        .join(" ")
}

fn add_warnings(text: &mut String, warnings: &[String]) {
    for warning in warnings {
        let _ = writeln!(text, "warning: {}", OneLine(warning));
    }
}
