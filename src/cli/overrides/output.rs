//! What these commands print for people.

use std::fmt::Write;

use crate::admin::overrides::{Ordered, Overrides, Removed, Reset};
use crate::ask::written::shell_word;
use crate::overrides::{EntryRecord, RateRecord, Record};
use crate::rules::compile::OneLine;

/// Limits of an answer that are named.
const MAX_LIMITS: usize = 5;

pub(super) fn ordered(answer: &Ordered) -> String {
    let Ordered { r#override: one, limits, keeps_count, replaced, warnings } = answer;
    let mut text = format!("{}\n", sentence(one));
    // Writing to a string does not fail.
    if !limits.is_empty() {
        let more = limits.len().saturating_sub(MAX_LIMITS);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let named: Vec<_> = limits.iter().take(MAX_LIMITS).map(|limit| OneLine(limit).to_string()).collect();
        let _ = writeln!(text, "  limits  {}{more}", named.join(", "));
    }
    if one.kind == "raise" && !limits.is_empty() {
        let count = if *keeps_count { "kept: hits that were counted still count" } else { "starts from zero" };
        let _ = writeln!(text, "  count   {count}");
    }
    if let Some(replaced) = replaced {
        let _ = writeln!(text, "  before  {}", sentence(replaced));
    }
    let _ = writeln!(text, "  undo    weir overrides remove {}", OneLine(&one.id));
    add_warnings(&mut text, warnings);
    text
}

pub(super) fn removed(Removed { removed }: &Removed) -> String {
    format!("removed: {}\n", sentence(removed))
}

pub(super) fn reset(Reset { reset, warnings }: &Reset) -> String {
    let mut text = String::new();
    for counter in reset {
        let what = if counter.existed { "counts from zero" } else { "had counted nothing" };
        let _ = writeln!(text, "{} {what} (counter {})", OneLine(&counter.limit), OneLine(&counter.counter));
    }
    add_warnings(&mut text, warnings);
    text
}

pub(super) fn listed(Overrides { overrides, .. }: &Overrides) -> String {
    if overrides.is_empty() {
        return "no overrides are in force\n".to_owned();
    }
    let head = ["ID", "ORDER", "DOMAIN", "ENTRIES", "UNTIL", "BY", "REASON"].map(str::to_owned);
    let rows = overrides.iter().map(|one| {
        let until = one.until.as_deref().unwrap_or("-");
        [one.id.as_str(), &order(one), &one.domain, &entries(&one.entries), until, or_dash(&one.by), or_dash(&one.reason)]
            .map(|cell| OneLine(cell).to_string())
    });
    let rows: Vec<[String; 7]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// What an override orders, on one line.
fn sentence(one: &Record) -> String {
    let until = one.until.as_ref().map_or_else(|| "until it is removed".to_owned(), |until| format!("until {until}"));
    OneLine(&format!("{} {} in {}, {until}", order(one), entries(&one.entries), one.domain)).to_string()
}

fn order(one: &Record) -> String {
    one.to.as_ref().map_or_else(|| one.kind.clone(), |to| format!("{} to {}", one.kind, rate(to)))
}

fn rate(to: &RateRecord) -> String {
    to.read().map_or_else(|_| format!("{} per {}", to.requests_per_unit, to.unit), |rate| rate.to_string())
}

/// As arguments of a command.
fn entries(entries: &[EntryRecord]) -> String {
    entries
        .iter()
        .map(|entry| shell_word(&entry.pattern().map_or_else(|_| entry.key.clone(), |pattern| pattern.to_string())).into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

fn add_warnings(text: &mut String, warnings: &[String]) {
    for warning in warnings {
        let _ = writeln!(text, "warning: {}", OneLine(warning));
    }
}
