//! What a `rate_limit`, a plan, a row and a trial have of a rate: its unit, the multiple of it, and
//! that there is none.

use super::algorithm_fields::{self, USAGE};
use super::fields::{self, Fields};
use super::problem::Problems;
use crate::core::time::{Rate, Unit};
use crate::core::usage;
use crate::limits::rules::source::Node;

/// The amount cannot be used, which is reported.
#[derive(Debug)]
pub(super) struct InvalidAmount;

/// An unlimited limit has no window. The Go service refuses a unit that it knows and ignores one
/// that it does not. Only its trial has usage.
pub(super) fn unlimited(problems: &mut Problems, fields: &Fields<'_>) -> usage::Options {
    let has_trial = fields.written("trial").is_some();
    if let Some(node) = fields.get("unit")
        && let Some(text) = fields::text(problems, node, "unit")
    {
        if Unit::named(text).is_some() {
            problems.error_at(
                node,
                "an unlimited limit has no unit",
                "remove 'unit', or remove 'unlimited'",
            );
        } else {
            problems.warning(
                node.at,
                "an unlimited limit has no unit; it is ignored",
                "remove 'unit'",
            );
        }
    }
    for key in ["unit_multiplier"]
        .into_iter()
        .chain(algorithm_fields::keys())
    {
        if let Some(node) = fields
            .get(key)
            .filter(|_| !(has_trial && USAGE.contains(&key)))
        {
            let remedy = match key {
                // No store is asked about it.
                "track_usage" => {
                    "remove 'track_usage', or write a large 'requests_per_unit' and \
                     'on_store_failure: allow' in place of 'unlimited'"
                }
                _ => &format!("remove '{key}', or remove 'unlimited'"),
            };
            problems.error_at(node, format!("an unlimited limit has no {key}"), remedy);
        }
    }
    if let Some(node) = fields.get("requests_per_unit")
        && fields::amount(problems, node, "requests_per_unit").is_some()
    {
        problems.warning(
            node.at,
            "'requests_per_unit' has no meaning beside 'unlimited' and is ignored",
            "remove one of them",
        );
    }
    if has_trial {
        algorithm_fields::read_usage(problems, fields).unwrap_or_default()
    } else {
        usage::Options::default()
    }
}

/// The error of a window that is too long.
pub(super) fn too_long(rate: &Rate) -> (String, &'static str) {
    let what = format!(
        "a window of {} {}s is longer than 100 years",
        rate.unit_multiplier,
        rate.unit.name()
    );
    (what, "write a smaller 'unit_multiplier'")
}

/// The `unit_multiplier`, if it is written.
pub(super) fn unit_multiplier(
    problems: &mut Problems,
    fields: &Fields<'_>,
) -> Result<Option<u32>, InvalidAmount> {
    let Some(node) = fields.get("unit_multiplier") else {
        return Ok(None);
    };
    match fields::number(problems, node, "unit_multiplier").ok_or(InvalidAmount)? {
        0 => {
            problems.error_at(
                node,
                "'unit_multiplier' is 0, which makes the window zero",
                "write 1 or more, or remove it",
            );
            Err(InvalidAmount)
        }
        multiplier => Ok(Some(multiplier)),
    }
}

/// The `unit`; `None`, with an error, if it is missing or wrong.
pub(super) fn unit(problems: &mut Problems, fields: &Fields<'_>) -> Option<Unit> {
    let node = fields.get("unit");
    let Some(node) = node.filter(|node| node.text().is_none_or(|text| !text.is_empty())) else {
        if !fields.meant("unit") {
            problems.error_at(
                node.unwrap_or_else(|| fields.lack("unit")),
                "the rate_limit has no unit",
                fields::list(&Unit::NAMED),
            );
        }
        return None;
    };
    read_unit(problems, node)
}

/// A `unit`; `None`, with an error, if it is none.
pub(super) fn read_unit(problems: &mut Problems, node: &Node) -> Option<Unit> {
    let text = fields::text(problems, node, "unit")?;
    // In any letter case.
    Unit::named(text).or_else(|| fields::one_of(problems, node, text, "unit", &Unit::NAMED))
}
