//! Human-readable output of these commands.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::Value;

use super::OverrideList;
use crate::admin::api::overrides::{Ordered, Periods, Removed, Reset};
use crate::cli::print;
use crate::core::text::first_names;
use crate::core::time::people;
use crate::limits::overrides::{EntryRecord, RaiseRate, Record};
use crate::limits::rules::compile::OneLine;

/// Limits of an answer that are named.
const MAX_LIMITS: usize = 5;

const NONE_ENDED: &str = "no overrides ended within the last week\n";
const NONE_IN_FORCE: &str =
    "no overrides are in force; `weir overrides --ended` lists those of the last week\n";

/// `timed` is now and the zone of the terminal, for an order with `--until`.
pub(super) fn ordered(answer: &Ordered, timed: Option<(Timestamp, &TimeZone)>) -> String {
    let (one, limits) = (&answer.r#override, &answer.limits);
    let mut text = format!("{}\n", sentence(one));
    let until = one.until.as_ref();
    let until = until.and_then(|until| until.parse::<Timestamp>().ok());
    if let (Some((now, zone)), Some(until)) = (timed, until) {
        let ahead = people::span(until.duration_since(now).as_secs_f64());
        let until = until.to_zoned(zone.clone()).strftime("%A %F %H:%M %Z");
        text += &format!("  ends    in {ahead}, {until}\n");
    }
    if !limits.is_empty() {
        let limits = limits.iter().map(|limit| OneLine(limit).to_string());
        let named = first_names(&limits.collect::<Vec<_>>(), MAX_LIMITS);
        text += &format!("  limits  {named}\n");
    }
    if one.kind == "raise" && !limits.is_empty() {
        text += match answer.keeps_count {
            true => "  count   kept: hits that were counted still count\n",
            false => "  count   starts from zero\n",
        };
    }
    if let Some(Periods { end, count }) = &answer.periods {
        let count = count.map_or_else(|| "all".to_owned(), |count| count.to_string());
        let end = instant(Some(end));
        text += &format!("  periods {count}; the current one ends {end}\n");
    }
    if let Some(replaced) = &answer.replaced {
        text += &format!("  before  {}\n", sentence(replaced));
        if answer.is_sum {
            text += "  sum     of both; --replace replaces the one before\n";
        }
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
        let what = match counter.existed {
            true => "counts from zero",
            false => "had counted nothing",
        };
        let (limit, counter) = (OneLine(&counter.limit), OneLine(&counter.counter));
        text += &format!("{limit} {what} (counter {counter})\n");
    }
    text + &warnings(&answer.warnings)
}

pub(super) fn listed(OverrideList { overrides, .. }: &OverrideList, ended: bool) -> String {
    let (none, end): (_, &[&str]) = match ended {
        true => (NONE_ENDED, &["ENDED", "ENDED BY"]),
        false => (NONE_IN_FORCE, &["UNTIL"]),
    };
    if overrides.is_empty() {
        return none.to_owned();
    }
    let mut head = vec!["ID", "ORDER", "DOMAIN", "ENTRIES"];
    head.extend(end.iter().chain(&["MADE", "BY", "REASON"]));
    let shown = |cell: String| match &*cell {
        "" => "-".to_owned(),
        cell => OneLine(cell).to_string(),
    };
    let row = |value: &Value| {
        let mut cells = Record::deserialize(value).map_or_else(|_| vec![value.to_string()], cells);
        cells.resize(head.len(), String::new());
        cells.into_iter().map(shown).collect()
    };
    print::table(&head, overrides.iter().map(row), 0)
}

fn cells(record: Record) -> Vec<String> {
    let (order, entries) = (order(&record), entries(&record.entries));
    let mut cells = vec![record.id, order, record.domain, entries];
    match record.ended {
        Some(end) => cells.extend([instant(Some(&end.at)), end.by]),
        None => cells.push(instant(record.until.as_deref())),
    }
    let made = instant(record.created_at.as_deref());
    cells.extend([made, record.by, record.reason]);
    cells
}

/// An instant of a record, if there is one.
fn instant(text: Option<&str>) -> String {
    let text = text.unwrap_or_default();
    let parsed = text.parse().map(people::instant);
    parsed.unwrap_or_else(|_| text.to_owned())
}

/// Effect of an override, on one line.
fn sentence(record: &Record) -> String {
    let until = match &record.until {
        Some(until) => format!("until {}", instant(Some(until))),
        None => "until it is removed".to_owned(),
    };
    let (order, entries) = (order(record), entries(&record.entries));
    OneLine(&format!("{order} {entries} in {}, {until}", record.domain)).to_string()
}

/// The kind of an override, with its amounts.
pub(in crate::cli) fn order(record: &Record) -> String {
    let mut order = record.kind.clone();
    let rates = [
        ("by", &record.add),
        ("to", &record.to),
        ("to", &record.total),
    ];
    for (word, rate) in rates {
        let Some(rate) = rate else { continue };
        let raise = RaiseRate::to(rate).map(|raise| raise.to_string());
        let raise = raise.unwrap_or_else(|_| rate.requests_per_unit.to_string());
        order += &format!(" {word} {raise}");
    }
    order
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
