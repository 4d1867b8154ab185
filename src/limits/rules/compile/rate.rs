//! The `rate_limit` of a descriptor.

use std::rc::Rc;

use super::Domain;
use super::fields::{self, Fields, Section};
use super::options::{self, NO_UNIT};
use super::partial::PartialLimit;
use super::problem::{Problems, quoted};
use crate::core::algorithm::AlgorithmKind;
use crate::core::time::{Rate, Unit};
use crate::limits::rules::place::Place;
use crate::limits::rules::source::{Node, ValueType};

/// Reads a `rate_limit`, and adds its names to those of the domain, also if the rest is wrong, so
/// that one mistake is not reported as two. `None` if something in it is wrong, which is reported.
pub(super) fn read(problems: &Problems, node: &Node, domain: &mut Domain) -> Option<PartialLimit> {
    let fields = fields::read(problems, node, Section::RateLimit)?;
    let name = fields.name();
    domain.names.extend(name.map(Into::into));
    let replaces = replaces(problems, &fields, name);
    let mut layer = PartialLimit::read(problems, &fields);
    if fields.get("plan").is_some() {
        layer = layer.filter(|layer| is_of_many(problems, &fields, layer));
    } else if fields.get("unlimited").and_then(Node::read) != Some(true) {
        layer = complete(problems, &fields, layer);
    }
    let names = replaces.iter().map(|(_, name)| name.clone()).collect();
    domain.replaced.extend(replaces);
    Some(PartialLimit {
        replaces: names,
        ..layer?
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
        problems.mistake(fields.lack(hits), what, remedy);
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

fn replaces(
    problems: &Problems,
    fields: &Fields<'_>,
    own_name: Option<&str>,
) -> Vec<(Place, Box<str>)> {
    let remedy = "write '- name: ' and the name of a limit below it";
    let replaced = |item: &Rc<Node>| {
        if item.value_type() == ValueType::Nothing {
            let remedy = "write '- name: ' and the name of a limit, or remove it";
            return problems.fail(item, "an entry of replaces is empty", remedy);
        }
        let entry = fields::read(problems, item, Section::Replaced)?;
        let what = "an entry of replaces has no name";
        entry.required(
            "name",
            what,
            "write the name of a limit, or remove the entry",
        )?;
        let (name, node) = (entry.name()?, entry.lack("name"));
        if own_name == Some(name) {
            let what = format!("the limit {} replaces itself", quoted(name));
            return problems.fail(node, what, "name another limit, or remove the entry");
        }
        Some((node.at.clone(), name.into()))
    };
    let items = fields.items("replaces", remedy).iter();
    items.filter_map(replaced).collect()
}
