//! The optional parts of a response: headers about one limit, `retry-after`, and dynamic metadata.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use super::{HeaderNames, Status};
use crate::ask::{Ask, Descriptor, Entry};
use crate::plan::{Plan, Slot};
use crate::proto::HeaderValue;
use crate::rules::limit::Metadata;
use crate::verdict::{Decisions, Wait};

/// Three headers about one descriptor: the last one that is over its limit, or else the one with the least remaining hits, the first on a tie.
/// Empty if no descriptor has a limit whose count is known. Source: envoyproxy/ratelimit.
pub(super) fn headers(plan: &Plan, statuses: &[Status<'_>], names: &HeaderNames) -> Vec<HeaderValue> {
    let refuses = |slot: &Slot| match slot {
        Slot::Checked { check, .. } => !plan.checks[*check].modes.quota,
        Slot::Free | Slot::Unlimited(_) => false,
    };
    let limited = || statuses.iter().filter(|status| status.limit.is_some() && status.reset_secs.is_some());
    let last_refusal = plan.slots.iter().zip(statuses).rev().find(|(slot, status)| status.refused && refuses(slot));
    let Some(status) = last_refusal.map(|(_, status)| status).or_else(|| limited().min_by_key(|status| status.remaining)) else {
        return Vec::new();
    };
    let header = |key: &str, value: String| HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() };
    vec![
        header(&names.limit, status.limit.map_or(0, |(rate, _)| rate.requests_per_unit).to_string()),
        header(&names.remaining, status.remaining.to_string()),
        header(&names.reset, status.reset_secs.unwrap_or(0).to_string()),
    ]
}

/// The `retry-after` header: the longest wait of the limits that refuse, in whole seconds, at least 1. `None` if the request can never pass: for a
/// limit that it can never meet, or because it can meet none of its quotas. Source: RFC 9110, section 10.2.3.
pub(super) fn retry_after(plan: &Plan, decisions: &Decisions) -> Option<HeaderValue> {
    let mut longest = None;
    for (check, decision) in plan.checks.iter().zip(decisions).filter(|(check, _)| !check.modes.shadow) {
        match decision.retry_after() {
            Some(Wait::For(span)) => longest = longest.max(Some(span)),
            Some(Wait::Never) if !check.modes.quota => return None,
            Some(Wait::Never) | None => {}
        }
    }
    let secs = longest?.secs_rounded_up().max(1);
    Some(HeaderValue { key: "retry-after".to_owned(), value: secs.to_string(), raw_value: Vec::new() })
}

/// The request, and the merged `metadata` of the limits that were not exceeded. Source: envoyproxy/ratelimit.
pub(super) fn dynamic_metadata(ask: &Ask<'_>, plan: &Plan, statuses: &[Status<'_>]) -> Struct {
    let mut fields = BTreeMap::from([("domain".to_owned(), text(ask.domain))]);
    let descriptors = ask.descriptors().map(|(descriptor, entries)| describe(descriptor, entries)).collect();
    fields.insert("descriptors".to_owned(), list(descriptors));
    if ask.hits_addend != 0 {
        fields.insert("hitsAddend".to_owned(), number(f64::from(ask.hits_addend)));
    }
    let mut merged = Metadata::new();
    for (slot, _) in plan.slots.iter().zip(statuses).filter(|(_, status)| !status.refused) {
        let (Slot::Checked { limit: Some(id), .. } | Slot::Unlimited(id)) = slot else { continue };
        if let Some(metadata) = &plan.rules.limit(*id).metadata {
            merge(&mut merged, metadata);
        }
    }
    if !merged.is_empty() {
        fields.insert("metadata".to_owned(), from_json(&serde_json::Value::Object(merged)));
    }
    Struct { fields }
}

fn describe(descriptor: &Descriptor, entries: &[Entry<'_>]) -> Value {
    let entries = entries.iter().map(|entry| text(&[entry.key, b"=", entry.value].concat())).collect();
    let mut fields = BTreeMap::from([("entries".to_owned(), list(entries))]);
    if let Some(rate) = &descriptor.limit {
        let limit = format!("requests_per_unit:{} unit:{}", rate.requests_per_unit, rate.unit.name().to_ascii_uppercase());
        fields.insert("limit".to_owned(), text(limit.as_bytes()));
    }
    if let Some(hits) = descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), number(hits as f64));
    }
    Value { kind: Some(Kind::StructValue(Struct { fields })) }
}

/// Merges objects recursively. Of two other values of one name the first one stays.
fn merge(into: &mut Metadata, from: &Metadata) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => drop(into.insert(name.clone(), value.clone())),
            (Some(serde_json::Value::Object(inner)), serde_json::Value::Object(more)) => merge(inner, more),
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
        serde_json::Value::Object(map) => {
            Kind::StructValue(Struct { fields: map.iter().map(|(name, value)| (name.clone(), from_json(value))).collect() })
        }
    };
    Value { kind: Some(kind) }
}

/// A `Struct` holds UTF-8 only: invalid bytes become U+FFFD.
fn text(bytes: &[u8]) -> Value {
    Value { kind: Some(Kind::StringValue(String::from_utf8_lossy(bytes).into_owned())) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}

fn list(values: Vec<Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values })) }
}
