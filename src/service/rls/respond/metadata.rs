//! Dynamic metadata: the request, the metadata of the limits that allow it, and the limits that
//! refuse it.
//!
//! Envoy hands it to its other filters and to its access log, and not to clients.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use crate::core::ask::{Ask, Descriptor, Entry};
use crate::limits::plan::{By, Outcome, Outcomes};
use crate::limits::rules::limit::{Metadata, encoded_bytes};

/// The most metadata of limits in one answer, in bytes. What a further limit has is left out where
/// it does not fit.
pub(crate) const MAX_MERGED_BYTES: usize = 64 << 10;

/// The most of a limit's path in an answer, in bytes: a value in it may be long.
const MAX_PATH_BYTES: usize = 1_024;

/// The request, and the merged `metadata` of the limits that were not exceeded, as
/// envoyproxy/ratelimit has them. It does not have `limits`, which is there for numbers that do not
/// fit into the message, nor `refusedBy`, which is there if a limit refuses: `violated` are the
/// descriptors.
pub(super) fn dynamic_metadata(
    ask: &Ask<'_>,
    outcomes: &Outcomes<'_>,
    violated: &[usize],
) -> Struct {
    let mut fields = BTreeMap::from([("domain".to_owned(), text(ask.domain))]);
    let descriptors = ask
        .descriptors()
        .map(|(descriptor, entries)| describe(descriptor, entries))
        .collect();
    fields.insert("descriptors".to_owned(), list(descriptors));
    if ask.hits_addend != 0 {
        fields.insert("hitsAddend".to_owned(), number(f64::from(ask.hits_addend)));
    }
    let (mut merged, mut seen, mut left) = (Metadata::new(), Vec::new(), MAX_MERGED_BYTES);
    let applies = |outcome: &&Outcome<'_>| !outcome.refuses && !matches!(outcome.by, By::NoLimit);
    for limit in outcomes
        .each
        .iter()
        .filter(applies)
        .filter_map(|one| one.limit)
    {
        let (id, metadata) = (limit.limit.id, &limit.limit.metadata);
        let Some(metadata) = metadata.as_ref().filter(|_| !seen.contains(&id)) else {
            continue;
        };
        seen.push(id);
        if let Some(rest) = left.checked_sub(encoded_bytes(metadata)) {
            left = rest;
            merge(&mut merged, metadata);
        }
    }
    if !merged.is_empty() {
        fields.insert(
            "metadata".to_owned(),
            from_json(&serde_json::Value::Object(merged)),
        );
    }
    let beyond: Vec<_> = outcomes
        .each
        .iter()
        .enumerate()
        .filter_map(|(index, outcome)| beyond_32_bits(index, outcome))
        .collect();
    if !beyond.is_empty() {
        fields.insert("limits".to_owned(), list(beyond));
    }
    if !violated.is_empty() {
        fields.insert(
            "refusedBy".to_owned(),
            list(
                violated
                    .iter()
                    .map(|&index| refusal(index, &outcomes.each[index]))
                    .collect(),
            ),
        );
    }
    Struct { fields }
}

/// The numbers of a status that the message, which has 32 bits for each, does not show.
fn beyond_32_bits(index: usize, outcome: &Outcome<'_>) -> Option<Value> {
    let rate = outcome.shown?;
    let numbers = [
        ("requestsPerUnit", rate.requests_per_unit),
        ("limitRemaining", outcome.remaining),
    ];
    if numbers.iter().all(|&(_, shown)| shown <= u32::MAX.into()) {
        return None;
    }
    // Exact: they are below 2^53.
    let numbers = numbers.map(|(name, shown)| (name.to_owned(), number(shown as f64)));
    let fields = numbers
        .into_iter()
        .chain([("descriptor".to_owned(), number(index as f64))])
        .collect();
    Some(Value {
        kind: Some(Kind::StructValue(Struct { fields })),
    })
}

/// The index of a descriptor that is refused, and the path and name of its limit. A limit of the
/// request's own has neither.
fn refusal(index: usize, outcome: &Outcome<'_>) -> Value {
    let mut fields = BTreeMap::from([("descriptor".to_owned(), number(index as f64))]);
    if let Some(in_force) = outcome.limit {
        let path = in_force.limit.path().into_bytes();
        fields.insert(
            "limit".to_owned(),
            text(&path[..path.len().min(MAX_PATH_BYTES)]),
        );
        if let Some(plan) = &in_force.limit.plan {
            fields.insert("plan".to_owned(), text(plan.as_bytes()));
        }
        if in_force.name().is_some() {
            fields.insert("name".to_owned(), text(in_force.shown().as_bytes()));
        }
    }
    Value {
        kind: Some(Kind::StructValue(Struct { fields })),
    }
}

fn describe(descriptor: &Descriptor, entries: &[Entry<'_>]) -> Value {
    let entries = entries
        .iter()
        .map(|entry| text(&[entry.key, b"=", entry.value].concat()))
        .collect();
    let mut fields = BTreeMap::from([("entries".to_owned(), list(entries))]);
    if let Some(rate) = &descriptor.limit {
        let limit = format!(
            "requests_per_unit:{} unit:{}",
            rate.requests_per_unit,
            rate.unit.name().to_ascii_uppercase()
        );
        fields.insert("limit".to_owned(), text(limit.as_bytes()));
    }
    if let Some(hits) = descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), number(hits as f64));
    }
    Value {
        kind: Some(Kind::StructValue(Struct { fields })),
    }
}

/// Merges objects recursively. Of two other values of one name the first one stays.
fn merge(into: &mut Metadata, from: &Metadata) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => drop(into.insert(name.clone(), value.clone())),
            (Some(serde_json::Value::Object(inner)), serde_json::Value::Object(more)) => {
                merge(inner, more);
            }
            (Some(_), _) => {}
        }
    }
}

fn from_json(value: &serde_json::Value) -> Value {
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(flag) => Kind::BoolValue(*flag),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        serde_json::Value::Array(values) => return list(values.iter().map(from_json).collect()),
        serde_json::Value::Object(map) => Kind::StructValue(Struct {
            fields: map
                .iter()
                .map(|(name, value)| (name.clone(), from_json(value)))
                .collect(),
        }),
    };
    Value { kind: Some(kind) }
}

/// A `Struct` holds UTF-8 only: invalid bytes become U+FFFD.
fn text(bytes: &[u8]) -> Value {
    Value {
        kind: Some(Kind::StringValue(
            String::from_utf8_lossy(bytes).into_owned(),
        )),
    }
}

fn number(number: f64) -> Value {
    Value {
        kind: Some(Kind::NumberValue(number)),
    }
}

fn list(values: Vec<Value>) -> Value {
    Value {
        kind: Some(Kind::ListValue(ListValue { values })),
    }
}
