//! The `rate_limit` of a descriptor.

use super::algorithm_fields::{self, AlgorithmFields};
use super::fields::{self, Fields, Section};
use super::numbers::{self, Numbers};
use super::problem::{Problems, quoted};
use super::units::{InvalidAmount, too_long, unit, unit_multiplier, unlimited};
use crate::core::algorithm::AlgorithmKind;
use crate::core::time::{Rate, Unit};
use crate::core::usage;
use crate::limits::rules::source::{Content, Node, Position, ValueType};

/// The content of a `rate_limit`.
pub(super) struct RateLimit<'n> {
    /// `None` = unlimited.
    pub(super) amount: Result<Option<(Rate, AlgorithmFields)>, InvalidAmount>,
    /// Its position.
    pub(super) at: Position,
    /// The positions of its values by their keys, for errors that show when the algorithm is made.
    pub(super) keys: Vec<(&'static str, Position)>,
    pub(super) name: Option<&'n str>,
    /// Names of other limits, with their positions.
    pub(super) replaces: Vec<(Position, &'n str)>,
    /// Its `trial`, also if that is null.
    pub(super) trial: Option<&'n Node>,
    /// What it says of usage, if it is unlimited.
    pub(super) usage: usage::Options,
    /// The plan that it names, and the numbers that stand above those of the plan; the amount is
    /// `Ok(None)` then.
    pub(super) of_plan: Option<(Position, &'n str, Numbers)>,
    /// Otherwise the limit is that of the rows of a table only.
    pub(super) is_written: bool,
}

impl RateLimit<'_> {
    /// That of a descriptor whose table says all.
    pub(super) fn of_rows(fields: &Fields<'_>) -> Self {
        Self {
            amount: Ok(None),
            at: fields.node().at,
            keys: Vec::new(),
            name: None,
            replaces: Vec::new(),
            of_plan: None,
            is_written: false,
            trial: None,
            usage: usage::Options::default(),
        }
    }
}

/// Reads a `rate_limit`; `None`, with an error, if it is not a map.
pub(super) fn read<'n>(problems: &mut Problems, node: &'n Node) -> Option<RateLimit<'n>> {
    let fields = fields::read(problems, node, Section::RateLimit)?;
    let name = fields::name(problems, &fields);
    let replaces = replaces(problems, &fields, name);
    let trial = fields.written("trial");
    let mut usage = usage::Options::default();
    let mut of_plan = None;
    let amount = if let Some(node) = fields.get("plan") {
        let plan = fields::text(problems, node, "plan");
        let numbers = numbers::read(problems, &fields, Problems::here);
        of_plan = plan
            .zip(numbers)
            .map(|(plan, numbers)| (node.at, plan, numbers.named(name)));
        if of_plan.is_some() {
            Ok(None)
        } else {
            Err(InvalidAmount)
        }
    } else if fields::switch(problems, &fields, "unlimited") {
        usage = unlimited(problems, &fields);
        Ok(None)
    } else {
        // Both are read even if one is wrong, so that all problems are found at once.
        let (rate, options) = (
            rate(problems, &fields),
            algorithm_fields::read(problems, &fields),
        );
        rate.zip(options).map(Some).ok_or(InvalidAmount)
    };
    Some(RateLimit {
        amount,
        at: node.at,
        keys: fields.locations().collect(),
        name,
        replaces,
        trial,
        usage,
        of_plan,
        is_written: true,
    })
}

fn rate(problems: &mut Problems, fields: &Fields<'_>) -> Option<Rate> {
    let has_window =
        fields.get("algorithm").and_then(Node::text) != Some(AlgorithmKind::Concurrency.name());
    let unit = if has_window {
        unit(problems, fields)
    } else {
        no_unit(problems, fields)
    };
    let multiplier_node = fields.get("unit_multiplier").filter(|_| has_window);
    let unit_multiplier = if has_window {
        unit_multiplier(problems, fields)
            .ok()
            .map(|written| written.unwrap_or(1))
    } else {
        Some(1)
    };
    let requests_per_unit = match fields.get("requests_per_unit") {
        Some(node) => fields::amount(problems, node, "requests_per_unit"),
        None => {
            if !fields.meant("requests_per_unit") {
                let what =
                    "'requests_per_unit' is missing, which means 0: every request is refused";
                problems.mistake(
                    fields.lack("requests_per_unit").at,
                    what,
                    "write 'requests_per_unit: ' and a number, even if it is 0",
                );
            }
            Some(0)
        }
    };
    let rate = Rate {
        requests_per_unit: requests_per_unit?,
        unit: unit?,
        unit_multiplier: unit_multiplier?,
    };
    if has_window && rate.window().is_none() {
        let (what, remedy) = too_long(&rate);
        problems.error_at(
            multiplier_node.unwrap_or_else(|| fields.node()),
            what,
            remedy,
        );
        return None;
    }
    Some(rate)
}

/// A limit of requests in flight counts what is there at a time, and not within a time.
fn no_unit(problems: &mut Problems, fields: &Fields<'_>) -> Option<Unit> {
    let mut unit = Some(Unit::None);
    for key in ["unit", "unit_multiplier"] {
        if let Some(node) = fields.get(key) {
            let what = format!(
                "a concurrency limit has no '{key}': 'requests_per_unit' is how many requests may \
                 be in flight at a time"
            );
            problems.error_at(
                node,
                what,
                format!("remove '{key}', or write another 'algorithm'"),
            );
            unit = None;
        }
    }
    unit
}

fn replaces<'n>(
    problems: &mut Problems,
    fields: &Fields<'n>,
    own_name: Option<&str>,
) -> Vec<(Position, &'n str)> {
    let Some(node) = fields.get("replaces") else {
        return Vec::new();
    };
    let Content::Sequence(items) = &node.content else {
        let what = format!("'replaces' is {}, not a list", node.value_type().name());
        problems.error_at(
            node,
            what,
            "write '- name: ' and the name of a limit below it",
        );
        return Vec::new();
    };
    let mut replaces = Vec::with_capacity(items.len());
    for item in items {
        if item.value_type() == ValueType::Nothing {
            problems.error_at(
                item,
                "an entry of replaces is empty",
                "write '- name: ' and the name of a limit, or remove it",
            );
            continue;
        }
        let Some(entry) = fields::read(problems, item, Section::Replaced) else {
            continue;
        };
        let node = entry.get("name");
        let Some(node) = node.filter(|node| node.text().is_none_or(|text| !text.is_empty())) else {
            if !entry.meant("name") {
                let node = node.unwrap_or_else(|| entry.lack("name"));
                problems.error_at(
                    node,
                    "an entry of replaces has no name",
                    "write the name of a limit, or remove the entry",
                );
            }
            continue;
        };
        let Some(name) = fields::name(problems, &entry) else {
            continue;
        };
        if own_name == Some(name) {
            problems.error_at(
                node,
                format!("the limit {} replaces itself", quoted(name)),
                "name another limit, or remove the entry",
            );
            continue;
        }
        replaces.push((node.at, name));
    }
    replaces
}
