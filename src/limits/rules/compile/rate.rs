//! The `rate_limit` of a descriptor.

use super::fields::{self, Fields, Section};
use super::options::{self, NO_UNIT};
use super::partial::PartialLimit;
use super::problem::{Location, Problems, quoted};
use crate::core::algorithm::AlgorithmKind;
use crate::core::time::{Rate, Unit};
use crate::limits::rules::source::{Node, Position, ValueType};

/// The content of a `rate_limit`.
#[derive(Default)]
pub(super) struct RateLimit<'n> {
    /// `None`: it is wrong, which is reported.
    pub(super) layer: Option<PartialLimit>,
    /// Its name, also if the rest is wrong, so that one mistake is not reported as two.
    pub(super) name: Option<&'n str>,
    /// Names of other limits, with their positions.
    pub(super) replaces: Vec<(Position, &'n str)>,
    /// The plan below it.
    pub(super) plan: Option<(Location, Box<str>)>,
}

impl RateLimit<'_> {
    /// That of a descriptor whose table says all.
    pub(super) fn of_rows(problems: &Problems, fields: &Fields<'_>) -> Self {
        let mut layer = PartialLimit::default();
        layer.places.at = problems.here(fields.node().at);
        Self {
            layer: Some(layer),
            ..Self::default()
        }
    }
}

/// Reads a `rate_limit`; `None`, with an error, if it is not a map.
pub(super) fn read<'n>(problems: &'n Problems, node: &'n Node) -> Option<RateLimit<'n>> {
    let fields = fields::read(problems, node, Section::RateLimit)?;
    let name = fields.name();
    let replaces = replaces(problems, &fields, name);
    let mut layer = PartialLimit::read(problems, &fields);
    let is_unlimited = fields.get("unlimited").and_then(Node::read) == Some(true);
    let mut plan = None;
    if let Some(node) = fields.get("plan") {
        plan = fields
            .text("plan")
            .map(|name| (problems.here(node.at), name.into()));
        layer = layer.filter(|layer| plan.is_some() && is_of_many(problems, &fields, layer));
    } else if !is_unlimited {
        layer = complete(problems, &fields, layer);
    }
    Some(RateLimit {
        layer,
        name,
        replaces,
        plan,
    })
}

/// Whether plans and rows may stand above or below a layer, which is reported if not.
pub(super) fn is_of_many(problems: &Problems, fields: &Fields<'_>, layer: &PartialLimit) -> bool {
    if layer.is_concurrency() {
        let what = "'algorithm: concurrency' is that of a whole descriptor, whose last entry is \
            the request's id";
        let remedy = "write it in the 'rate_limit' of a descriptor without table and plan";
        problems.error(fields.lack("algorithm"), what, remedy);
    }
    !layer.is_concurrency()
}

/// Requires what a limit without a plan has to say; `None`, with an error, if it does not. All is
/// looked at even if a part is wrong, so that all problems are found at once.
fn complete(
    problems: &Problems,
    fields: &Fields<'_>,
    layer: Option<PartialLimit>,
) -> Option<PartialLimit> {
    let is_concurrency =
        fields.get("algorithm").and_then(Node::text) == Some(AlgorithmKind::Concurrency.name());
    let mut is_valid = true;
    if is_concurrency {
        is_valid = has_no_window(problems, fields);
    } else if fields.get("unit").is_none() {
        is_valid = false;
        if !fields.meant("unit") {
            problems.error(fields.lack("unit"), NO_UNIT, fields::list(&Unit::NAMED));
        }
    }
    let hits = "requests_per_unit";
    if fields.get(hits).is_none() && !fields.meant(hits) {
        let what = "'requests_per_unit' is missing, which means 0: every request is refused";
        let remedy = "write 'requests_per_unit: ' and a number, even if it is 0";
        problems.mistake(fields.lack(hits).at, what, remedy);
    }
    let layer = layer.filter(|_| is_valid)?;
    let unit = layer.unit.or(is_concurrency.then_some(Unit::None))?;
    let rate = Rate {
        requests_per_unit: layer.requests_per_unit.unwrap_or(0),
        unit,
        unit_multiplier: layer.unit_multiplier.unwrap_or(1),
    };
    if !is_concurrency {
        let at = fields.lack("unit_multiplier");
        problems.accept(at, options::checked_window(&rate))?;
    }
    Some(PartialLimit {
        requests_per_unit: Some(rate.requests_per_unit),
        unit: Some(unit),
        ..layer
    })
}

/// Whether a limit of requests in flight names no window: it counts what is there at a time, and
/// not within a time.
fn has_no_window(problems: &Problems, fields: &Fields<'_>) -> bool {
    let written = ["unit", "unit_multiplier"].map(|key| Some((key, fields.get(key)?)));
    for (key, node) in written.iter().flatten() {
        let what = format!(
            "a concurrency limit has no '{key}': 'requests_per_unit' is how many requests may be \
             in flight at a time"
        );
        let remedy = format!("remove '{key}', or write another 'algorithm'");
        problems.error(*node, what, remedy);
    }
    written.iter().all(Option::is_none)
}

fn replaces<'n>(
    problems: &'n Problems,
    fields: &Fields<'n>,
    own_name: Option<&str>,
) -> Vec<(Position, &'n str)> {
    let remedy = "write '- name: ' and the name of a limit below it";
    let items = fields.items("replaces", remedy);
    let mut replaces = Vec::with_capacity(items.len());
    for item in items {
        if item.value_type() == ValueType::Nothing {
            let what = "an entry of replaces is empty";
            let remedy = "write '- name: ' and the name of a limit, or remove it";
            problems.error(item, what, remedy);
            continue;
        }
        let Some(entry) = fields::read(problems, item, Section::Replaced) else {
            continue;
        };
        let what = "an entry of replaces has no name";
        let remedy = "write the name of a limit, or remove the entry";
        let Some(name) = entry
            .required("name", what, remedy)
            .and_then(|_| entry.name())
        else {
            continue;
        };
        let node = entry.lack("name");
        if own_name == Some(name) {
            let what = format!("the limit {} replaces itself", quoted(name));
            problems.error(node, what, "name another limit, or remove the entry");
            continue;
        }
        replaces.push((node.at, name));
    }
    replaces
}
