//! The types of values: units, durations, time zones, and names of a list. Each is read, or reported
//! with how to write it.

use std::sync::Arc;

use super::fields;
use super::keys::{FieldValue, Form, MatchKind, U32, names};
use super::problem::{Problems, quoted};
use crate::core::algorithm::{AlgorithmKind, OnExpiry};
use crate::core::message::Message;
use crate::core::time::{
    Anchor, LONGEST_WINDOW, MAX_SAFE_INTEGER, ParseDurationError, PeriodKind, Rate, Span, Unit,
    WEEKDAYS, Weekday, Zone,
};
use crate::limits::rules::limit::OnStoreFailure;
use crate::limits::rules::region::RegionShares;
use crate::limits::rules::source::{Content, Node, ValueType};
use crate::limits::rules::thresholds;
use crate::limits::rules::{Commit, messages};

/// The longest duration: two of the longest windows. The sum of an instant and a longer one would
/// not be exact in Lua.
const LONGEST: Span = Span::from_micros(2 * LONGEST_WINDOW.micros());

/// Numbers with units, as Go writes them.
const DURATION: &str = "^(([0-9]+\\.?[0-9]*|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$";

/// A date, with or without a time of day.
const ANCHOR: &str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2})?)?$";

/// A percentage above 0% and at most 100%, with at most four decimals.
const SHARE: &str = "^(?!0+(\\.0+)?%)0*(100(\\.0{1,4})?|[0-9]{1,2}(\\.[0-9]{1,4})?)%$";

/// Types by their forms, and the functions that read them.
macro_rules! field_values {
    ($($type:ty, $form:expr, $read:expr;)+) => {
        $(impl FieldValue for $type {
            const FORM: Form = $form;

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
            $($type, Form::OneOf(|| names(&$named)), |problems, node, key| {
                let noun: fn(&str) -> String = $noun;
                fields::one_of(problems, node, key, &noun(key), &$named)
            };)+
        }
    };
}

field_values! {
    bool, Form::Bool, fields::bool;
    u32, Form::Whole(0, U32), fields::number;
    u64, Form::Whole(0, MAX_SAFE_INTEGER), fields::amount;
    Span, Form::Pattern("duration", DURATION), duration;
    Unit, Form::OneOfAnyCase(|| names(&Unit::NAMED)), unit;
    Zone, Form::Text, zone;
    Anchor, Form::Pattern("date", ANCHOR), anchor;
    Arc<RegionShares>, Form::PatternByName("share", SHARE), region_shares;
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
        return problems.fail(&node.at, no_unit());
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
    let (text, number) = (quoted(text), problems.written("unit_multiplier", number));
    let unit = near.map(|near| format!("'{}'", problems.written(key, near)));
    let unit = unit.as_deref().unwrap_or("the unit");
    problems.fail(&node.at, messages::unit_of_number(text, unit, number))
}

/// The error of a missing unit.
pub(super) fn no_unit() -> Message {
    messages::no_unit(fields::list(&Unit::NAMED))
}

/// A `unit_multiplier`; `None`, with an error, if it is invalid.
pub(super) fn multiplier(problems: &Problems, node: &Node, key: &str) -> Option<u32> {
    let multiplier = fields::number(problems, node, key)?;
    if multiplier == 0 {
        problems.error(&node.at, messages::multiplier_is_zero());
    }
    Some(multiplier).filter(|multiplier| *multiplier > 0)
}

/// The error of a window that is too long, if this one is.
pub(super) fn checked_window(rate: &Rate) -> Result<(), Message> {
    match (rate.window(), rate.unit) {
        (Some(_), _) | (None, Unit::None) => Ok(()),
        (None, unit) => Err(messages::window_too_long(rate.unit_multiplier, unit.name())),
    }
}

/// A time zone; `None`, with an error, if no zone has the name.
fn zone(problems: &Problems, node: &Node, key: &str) -> Option<Zone> {
    let text = fields::text(problems, node, key)?;
    Zone::named(text).or_else(|| {
        let near = fields::nearest(text, Zone::names());
        problems.fail(&node.at, messages::unknown_zone(quoted(text)).or_near(near))
    })
}

/// A date with or without a time of day; `None`, with an error, if it is invalid.
fn anchor(problems: &Problems, node: &Node, key: &str) -> Option<Anchor> {
    let text = fields::text(problems, node, key)?;
    let read = text.parse::<Anchor>();
    let message = |(what, remedy)| messages::wrong_date(key, quoted(text), what, remedy);
    problems.accept(&node.at, read.map_err(message))
}

/// Whole per cents from 1% to 100%; `None`, with an error, for any other text.
pub(super) fn percentage(problems: &Problems, node: &Node, key: &str) -> Option<u8> {
    let text = node.text().unwrap_or_default();
    let wrong = || problems.fail(&node.at, messages::not_a_percentage(key, quoted(text)));
    thresholds::percentage(text).or_else(wrong)
}

/// Shares of regions by their names; `None`, with an error, if they are none, or more than 100 %.
fn region_shares(problems: &Problems, node: &Node, key: &str) -> Option<Arc<RegionShares>> {
    let Content::Mapping(entries) = &node.content else {
        return problems.fail(
            &node.at,
            messages::shares_not_a_map(node.value_type().name()),
        );
    };
    let mut shares = RegionShares(Vec::with_capacity(entries.len()));
    for (name, share) in entries.iter() {
        let name = fields::text(problems, name, key)?;
        let text = share.text().unwrap_or_default();
        let wrong = |remedy: &str| messages::wrong_share(quoted(name), quoted(text), remedy);
        let share = problems.accept(&share.at, text.parse().map_err(wrong))?;
        shares.0.push((name.into(), share));
    }
    let checked = shares.checked().map(Arc::new);
    problems.accept(&node.at, checked.map_err(messages::shares_too_large))
}

/// A duration; `None`, with an error, when it is something else.
fn duration(problems: &Problems, node: &Node, key: &str) -> Option<Span> {
    use ValueType::{Binary, Bool, Float, Huge, Int, Mapping, Sequence};
    let (text, value_type) = (node.text().unwrap_or_default(), node.value_type());
    if matches!(value_type, Mapping | Sequence | Binary | Bool(_)) {
        let message = messages::wrong_duration(key, value_type.name(), "not a duration", how());
        return problems.fail(&node.at, message);
    }
    let is_number = matches!(value_type, Int(_) | Huge(_) | Float(_));
    let shown = quoted(text);
    let message = match (text.parse::<Span>(), text.parse::<u32>()) {
        (Ok(span), _) if span <= LONGEST => return Some(span),
        (Ok(_) | Err(ParseDurationError::TooLong), _) => messages::duration_too_long(key, shown),
        (Err(error), seconds) if is_number || error == ParseDurationError::NoUnit => {
            let written = seconds.map(|seconds| problems.written(key, format!("{seconds}s")));
            match written {
                Ok(written) => messages::duration_without_unit(key, shown, written),
                Err(_) => messages::wrong_duration(key, shown, "which has no unit", how()),
            }
        }
        (Err(error), _) => {
            let (what, remedy) = error.report();
            messages::wrong_duration(key, shown, what, remedy)
        }
    };
    problems.fail(&node.at, message)
}

/// Remedy for an invalid duration.
fn how() -> &'static str {
    ParseDurationError::Other.report().1
}
