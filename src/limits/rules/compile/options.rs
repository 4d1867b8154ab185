//! The types of values: units, durations, time zones, and names of a list. Each is read, or reported
//! with how to write it.

use std::sync::Arc;

use super::fields::{self, FieldValue, Section};
use super::keys::MatchKind;
use super::problem::{Problems, quoted};
use crate::core::algorithm::{AlgorithmKind, OnExpiry, Reservations};
use crate::core::time::{
    Anchor, LONGEST_WINDOW, ParseDurationError, PeriodKind, Rate, Span, Unit, WEEKDAYS, Weekday,
    Zone,
};
use crate::limits::rules::Commit;
use crate::limits::rules::limit::OnStoreFailure;
use crate::limits::rules::region::RegionShares;
use crate::limits::rules::source::{Content, Node, ValueType};
use crate::limits::rules::thresholds::{self, Thresholds};

/// The longest duration: two of the longest windows. The sum of an instant and a longer one would
/// not be exact in Lua.
const LONGEST: Span = Span::from_micros(2 * LONGEST_WINDOW.micros());

/// `max_share` of reservations that do not write it, in per cent. Source: Kuadrant's RFC 0021.
const DEFAULT_MAX_SHARE: u8 = 50;

/// Types by the functions that read them.
macro_rules! field_values {
    ($($type:ty, $read:expr;)+) => {
        $(impl FieldValue for $type {
            fn read(problems: &Problems, node: &Node, key: &str) -> Option<Self> {
                $read(problems, node, key)
            }
        })+
    };
}

/// Types of which a value has one of several names.
macro_rules! named_values {
    ($($type:ty, $named:expr, $noun:expr;)+) => {
        field_values! {
            $($type, |problems, node, key| {
                let noun: fn(&str) -> String = $noun;
                fields::one_of(problems, node, key, &noun(key), &$named)
            };)+
        }
    };
}

field_values! {
    bool, fields::bool;
    u32, fields::number;
    u64, fields::amount;
    Span, duration;
    Unit, unit;
    Zone, zone;
    Anchor, anchor;
    Reservations, reservations;
    Arc<RegionShares>, region_shares;
    Thresholds, thresholds;
}

named_values! {
    AlgorithmKind, AlgorithmKind::NAMED, str::to_owned;
    MatchKind, MatchKind::NAMED, |key| format!("kind of {key}");
    OnStoreFailure, OnStoreFailure::NAMED, value_of;
    PeriodKind, PeriodKind::NAMED, value_of;
    Weekday, WEEKDAYS, value_of;
    OnExpiry, OnExpiry::NAMED, value_of;
    Commit, Commit::NAMED, value_of;
}

/// The noun for the values of a key.
fn value_of(key: &str) -> String {
    format!("value of '{key}'")
}

/// A unit, in any letter case; `None`, with an error, for any other text.
fn unit(problems: &Problems, node: &Node, key: &str) -> Option<Unit> {
    if node.text() == Some("") {
        return problems.fail(&node.at, NO_UNIT, fields::list(&Unit::NAMED));
    }
    let text = fields::text(problems, node, key)?;
    if let Some(unit) = Unit::named(text) {
        return Some(unit);
    }
    let name = text.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ' ');
    let number = text[..text.len() - name.len()].trim();
    if number.is_empty() || name.is_empty() {
        return fields::one_of(problems, node, key, key, &Unit::NAMED);
    }
    // The unit alone would be another window.
    let near = fields::nearest(name, Unit::NAMED.iter().map(|&(name, _)| name));
    let unit = near.map_or_else(|| "the unit".to_owned(), |near| format!("'{key}: {near}'"));
    let remedy = format!("write {unit}, and 'unit_multiplier: {number}' next to it");
    let what = format!("unknown {key}: {}", quoted(text));
    problems.fail(&node.at, what, remedy)
}

/// Message for a missing unit.
pub(super) const NO_UNIT: &str = "the rate_limit has no unit";

/// A `unit_multiplier`; `None`, with an error, if it is invalid.
pub(super) fn multiplier(problems: &Problems, node: &Node, key: &str) -> Option<u32> {
    let multiplier = fields::number(problems, node, key)?;
    if multiplier == 0 {
        let what = "'unit_multiplier' is 0, which makes the window zero";
        problems.error(&node.at, what, "write 1 or more, or remove it");
    }
    Some(multiplier).filter(|multiplier| *multiplier > 0)
}

/// The error of a window that is too long, if this one is.
pub(super) fn checked_window(rate: &Rate) -> Result<(), (String, &'static str)> {
    if rate.window().is_some() {
        return Ok(());
    }
    let (multiplier, unit) = (rate.unit_multiplier, rate.unit.name());
    let what = format!("a window of {multiplier} {unit}s is longer than 100 years");
    Err((what, "write a smaller 'unit_multiplier'"))
}

/// A time zone; `None`, with an error, if no zone has the name.
fn zone(problems: &Problems, node: &Node, key: &str) -> Option<Zone> {
    let text = fields::text(problems, node, key)?;
    Zone::named(text).or_else(|| {
        let near = fields::nearest(text, Zone::names()).map(|near| format!("write '{near}'"));
        let other = || "write a name of the IANA database, such as Europe/Berlin".to_owned();
        let what = format!("unknown time zone: {}", quoted(text));
        problems.fail(&node.at, what, near.unwrap_or_else(other))
    })
}

/// A date with or without a time of day; `None`, with an error, if it is invalid.
fn anchor(problems: &Problems, node: &Node, key: &str) -> Option<Anchor> {
    let text = fields::text(problems, node, key)?;
    let read = text.parse::<Anchor>();
    let message = |(what, remedy)| (format!("'{key}' is {}, {what}", quoted(text)), remedy);
    problems.accept(&node.at, read.map_err(message))
}

/// The terms of reservations; `None`, with an error, if they are incomplete or invalid.
fn reservations(problems: &Problems, node: &Node, _key: &str) -> Option<Reservations> {
    let fields = fields::read(problems, node, Section::Reservations)?;
    if fields.get("ttl").is_none() {
        let what = "'reservations' has no 'ttl', after which a reservation expires";
        let remedy = "write the time that the longest request takes, such as 'ttl: 60s'";
        return problems.fail(&node.at, what, remedy);
    }
    let share = fields.value("max_share", percentage);
    let minimum: Option<u32> = fields.read("minimum");
    let on_expiry: Option<OnExpiry> = fields.read("on_expiry");
    let ttl = fields.read("ttl")?;
    (fields.is_valid.get() && fields.meant.is_empty()).then(|| Reservations {
        ttl,
        max_share: share.unwrap_or(DEFAULT_MAX_SHARE),
        minimum: minimum.unwrap_or_default(),
        on_expiry: on_expiry.unwrap_or_default(),
    })
}

/// Whole per cents from 1% to 100%; `None`, with an error, for any other text.
fn percentage(problems: &Problems, node: &Node, key: &str) -> Option<u8> {
    let text = node.text().unwrap_or_default();
    thresholds::percentage(text).or_else(|| {
        let what = format!("'{key}' is {}, not 1% to 100%", quoted(text));
        problems.fail(&node.at, what, "write whole per cents, such as 50%")
    })
}

/// Shares of regions by their names; `None`, with an error, if they are none, or more than 100 %.
fn region_shares(problems: &Problems, node: &Node, key: &str) -> Option<Arc<RegionShares>> {
    let Content::Mapping(entries) = &node.content else {
        let what = format!("'{key}' is {}, not a map", node.value_type().name());
        let remedy = "write the share of each region by its name: '{eu: 40%, us: 60%}'";
        return problems.fail(&node.at, what, remedy);
    };
    let mut shares = RegionShares(Vec::with_capacity(entries.len()));
    for (name, share) in entries.iter() {
        let name = fields::text(problems, name, key)?;
        let text = share.text().unwrap_or_default();
        let what = || format!("the share of {} is {}", quoted(name), quoted(text));
        let read = text.parse().map_err(|remedy: &str| (what(), remedy));
        let share = problems.accept(&share.at, read)?;
        shares.0.push((name.into(), share));
    }
    let remedy = "lower them, or the regions admit more than the limit";
    let what = |sum| (format!("the shares of '{key}' are {sum} together"), remedy);
    problems.accept(&node.at, shares.checked().map(Arc::new).map_err(what))
}

/// Thresholds: a list, or its text in a cell of a table, where one needs no brackets; `None`, with
/// an error, if one is invalid.
fn thresholds(problems: &Problems, node: &Node, key: &str) -> Option<Thresholds> {
    let texts: Vec<&str> = match &node.content {
        Content::Sequence(items) => items.iter().map(|it| it.text().unwrap_or("")).collect(),
        _ => {
            let text = fields::text(problems, node, key)?.trim_matches(['[', ']']);
            text.split_terminator(',').map(str::trim).collect()
        }
    };
    let read = Thresholds::read(&texts).map_err(|wrong| {
        let wrong = quoted(wrong);
        let what = format!("'{key}' has {wrong}, not a whole percentage above the one before it");
        let remedy = "write at most 8 from 1% to 100%, such as [50%, 80%, 100%]";
        (what, remedy)
    });
    problems.accept(&node.at, read)
}

/// A duration; `None`, with an error, when it is something else.
fn duration(problems: &Problems, node: &Node, key: &str) -> Option<Span> {
    use ValueType::{Binary, Bool, Float, Huge, Int, Mapping, Sequence};
    let (text, value_type) = (node.text().unwrap_or_default(), node.value_type());
    if matches!(value_type, Mapping | Sequence | Binary | Bool(_)) {
        let what = format!("'{key}' is {}, not a duration", value_type.name());
        return problems.fail(&node.at, what, how());
    }
    let is_number = matches!(value_type, Int(_) | Huge(_) | Float(_));
    let (what, remedy) = match text.parse::<Span>() {
        Ok(span) if span <= LONGEST => return Some(span),
        Ok(_) | Err(ParseDurationError::TooLong) => {
            let remedy = "write a shorter duration";
            ("which is longer than 200 years", remedy.to_owned())
        }
        Err(error) if is_number || error == ParseDurationError::NoUnit => {
            let units = "for seconds, or another unit: h, m, s, ms, us";
            let seconds = |number: u32| format!("write '{key}: {number}s' {units}");
            let remedy = text.parse().map_or_else(|_| how(), seconds);
            ("which has no unit", remedy)
        }
        Err(error) => {
            let (what, remedy) = error.report();
            (what, remedy.to_owned())
        }
    };
    let what = format!("'{key}' is {}, {what}", quoted(text));
    problems.fail(&node.at, what, remedy)
}

/// Remedy for an invalid duration.
fn how() -> String {
    ParseDurationError::Other.report().1.to_owned()
}
