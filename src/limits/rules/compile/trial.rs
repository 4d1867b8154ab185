//! `trial` in a `rate_limit`: an amount that is counted beside the real one and refuses nothing.
//! What it does not write is settled with its limit.
//!
//! The settled options of the limit are the defaults of its trial, so that one rule says what
//! applies to another algorithm or unit.

use super::algorithm_fields::{self, AlgorithmFields};
use super::fields::{self, Section};
use super::problem::Problems;
use super::units;
use crate::core::time::{Rate, Unit};
use crate::core::usage;
use crate::limits::rules::source::{Node, Position, ValueType};

/// A `trial` as it is written.
pub(super) struct TrialFields {
    requests_per_unit: Option<u64>,
    unit: Option<Unit>,
    unit_multiplier: Option<u32>,
    pub(super) fields: AlgorithmFields,
    pub(super) at: Position,
    /// The positions of its values.
    pub(super) keys: Vec<(&'static str, Position)>,
}

/// Reads a `trial`; `None`, with an error, if it is wrong. `is_unlimited`: it cannot take its
/// amount from the limit.
pub(super) fn read(
    problems: &mut Problems,
    node: &Node,
    is_unlimited: bool,
) -> Option<TrialFields> {
    let fields = match node.value_type() {
        ValueType::Nothing => None,
        _ => {
            Some(fields::read(problems, node, Section::Trial)?).filter(|fields| !fields.is_empty())
        }
    };
    let Some(fields) = fields else {
        problems.error_at(
            node,
            "the trial says nothing",
            "write 'requests_per_unit: ' and a number below it, or remove 'trial'",
        );
        return None;
    };
    // All are read even if one is wrong, so that all problems are found at once.
    let requests_per_unit = fields
        .get("requests_per_unit")
        .map(|node| fields::amount(problems, node, "requests_per_unit"));
    let unit = fields.get("unit").map(|_| units::unit(problems, &fields));
    let unit_multiplier = units::unit_multiplier(problems, &fields);
    let options = algorithm_fields::read(problems, &fields);
    let mut is_whole = !["requests_per_unit", "unit", "unit_multiplier"]
        .iter()
        .any(|key| fields.meant(key));
    for (key, is_missing) in [
        ("requests_per_unit", requests_per_unit.is_none()),
        ("unit", unit.is_none()),
    ] {
        if is_unlimited && is_missing {
            is_whole = false;
            if !fields.meant(key) {
                let what =
                    format!("the trial has no '{key}', and the limit beside it is unlimited");
                problems.error_at(
                    fields.lack(key),
                    what,
                    format!("write '{key}: ' in the trial"),
                );
            }
        }
    }
    let is_wrong = requests_per_unit == Some(None)
        || unit == Some(None)
        || !is_whole
        || fields.has_misplaced();
    (!is_wrong).then_some(())?;
    Some(TrialFields {
        requests_per_unit: requests_per_unit.flatten(),
        unit: unit.flatten(),
        unit_multiplier: unit_multiplier.ok()?,
        fields: options?,
        at: node.at,
        keys: fields.locations().collect(),
    })
}

impl TrialFields {
    /// The same, recorded as an unlimited limit says.
    pub(super) fn with_usage(self, usage: usage::Options) -> Self {
        Self {
            fields: self.fields.with_usage(usage),
            ..self
        }
    }

    /// Its rate beside that of the real limit, which is `None` if that is unlimited. A unit of its
    /// own is one of it, whatever the real limit multiplies.
    pub(super) fn rate(&self, real: Option<Rate>) -> Option<Rate> {
        let of_real = real.filter(|_| self.unit.is_none());
        Some(Rate {
            requests_per_unit: self
                .requests_per_unit
                .or(real.map(|rate| rate.requests_per_unit))?,
            unit: self.unit.or(of_real.map(|rate| rate.unit))?,
            unit_multiplier: self
                .unit_multiplier
                .or(of_real.map(|rate| rate.unit_multiplier))
                .unwrap_or(1),
        })
    }
}
