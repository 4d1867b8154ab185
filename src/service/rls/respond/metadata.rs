//! Dynamic metadata: the request, the metadata of the limits that allow it, the limits that refuse
//! it, and its reservation.
//!
//! Envoy hands it to its other filters and to its access log, and not to clients.

use std::iter;

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use serde_json::{Value as Json, json};

use crate::core::answer::Effect;
use crate::core::request::{DecodedRequest, Descriptor, Entry};
use crate::core::time::people::timestamp;
use crate::limits::plan::{DecidedBy, Outcome, Outcomes};
use crate::limits::rules::limit::{Metadata, encoded_bytes};
use crate::net::clock;

/// Maximum bytes of limits' metadata in one answer. Metadata of a further limit is left out if it
/// does not fit.
pub(crate) const MAX_MERGED_BYTES: usize = 64 << 10;

/// Maximum bytes of a limit's path, or of the id of a reservation, in an answer: a value may be
/// long.
const MAX_PATH_BYTES: usize = 1_024;

/// The request, and the merged `metadata` of the limits that were not exceeded, as
/// envoyproxy/ratelimit has them. It does not have `limits`, which is there for numbers that do not
/// fit into the message, nor `refusedBy`, which is there if a limit refuses: `violated` are the
/// descriptors, nor `reservation`, which is there if an id of the request holds hits.
pub(super) fn dynamic_metadata(
    request: &DecodedRequest<'_>,
    outcomes: &Outcomes<'_>,
    violated: &[usize],
) -> Struct {
    let descriptors = request.descriptors();
    let descriptors: Vec<Json> = descriptors
        .map(|(descriptor, entries)| describe(descriptor, entries))
        .collect();
    let mut all = json!({"domain": text(request.domain), "descriptors": descriptors});
    if request.hits_addend != 0 {
        all["hitsAddend"] = request.hits_addend.into();
    }
    let (mut merged, mut seen, mut left) = (Metadata::new(), Vec::new(), MAX_MERGED_BYTES);
    let applies =
        |outcome: &&Outcome<'_>| !outcome.refuses && !matches!(outcome.by, DecidedBy::NoLimit);
    let applied = outcomes.each.iter().filter(applies);
    for limit in applied.filter_map(|outcome| outcome.limit) {
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
        all["metadata"] = merged.into();
    }
    let each = outcomes.each.iter().enumerate();
    let beyond = each.filter_map(|(index, outcome)| beyond_32_bits(index, outcome));
    let beyond: Vec<_> = beyond.collect();
    if !beyond.is_empty() {
        all["limits"] = beyond.into();
    }
    if !violated.is_empty() {
        let refusals = violated.iter();
        let refusals = refusals.map(|&index| refusal(request, index, &outcomes.each[index]));
        all["refusedBy"] = refusals.collect();
    }
    if let Some(reservation) = reservation(request, outcomes) {
        all["reservation"] = reservation;
    }
    match all {
        Json::Object(all) => to_struct(all),
        _ => Struct::default(),
    }
}

/// The numbers of a status that do not fit in the 32 bits of the message's fields. They are below
/// 2^53: the metadata has them exactly.
fn beyond_32_bits(index: usize, outcome: &Outcome<'_>) -> Option<Json> {
    let (limit, remaining) = (outcome.rate?.requests_per_unit, outcome.remaining);
    (limit.max(remaining) > u32::MAX.into()).then(
        || json!({"descriptor": index, "requestsPerUnit": limit, "limitRemaining": remaining}),
    )
}

/// The first descriptor that has reserved hits: its index and id, the hits that the id holds, in the
/// units of the limit, and when they expire.
fn reservation(request: &DecodedRequest<'_>, outcomes: &Outcomes<'_>) -> Option<Json> {
    let mut each = request.descriptors().zip(&outcomes.each).enumerate();
    each.find_map(|(index, ((_, entries), outcome))| {
        let DecidedBy::Check {
            planned,
            check,
            effect: Effect::Hold(change),
            ..
        } = outcome.by
        else {
            return None;
        };
        let ttl = check.reservation()?.terms.ttl;
        let (hits, expires) = change.hold(ttl, clock::now())?;
        Some(json!({
            "descriptor": index,
            "id": cut(entries.last()?.value),
            "held": planned.scale.units_rounded_up(hits),
            "expires": timestamp(expires).to_string(),
        }))
    })
}

/// The index of a descriptor that is refused, and the path and name of its limit. A limit of the
/// request's own has no name, and the keys of the descriptor are its path.
fn refusal(request: &DecodedRequest<'_>, index: usize, outcome: &Outcome<'_>) -> Json {
    let mut refusal = json!({"descriptor": index});
    let own = request.descriptors().nth(index);
    if let Some((_, entries)) = own.filter(|(descriptor, _)| descriptor.limit.is_some()) {
        let keys = entries.iter().map(|entry| entry.key);
        let path = iter::once(request.domain).chain(keys).collect::<Vec<_>>();
        refusal["limit"] = cut(&path.join(&b'.'));
    }
    if let Some(in_force) = outcome.limit {
        refusal["limit"] = cut(in_force.limit.path().as_bytes());
        if let Some(plan) = &in_force.limit.plan {
            refusal["plan"] = text(plan.as_bytes());
        }
        if in_force.name().is_some() {
            refusal["name"] = text(in_force.display_name().as_bytes());
        }
    }
    refusal
}

fn describe(descriptor: &Descriptor, entries: &[Entry<'_>]) -> Json {
    let entries = entries.iter();
    let entries = entries.map(|entry| text(&[entry.key, b"=", entry.value].concat()));
    let mut described = json!({"entries": entries.collect::<Vec<_>>()});
    if let Some(rate) = &descriptor.limit {
        let unit = rate.unit.name().to_ascii_uppercase();
        let limit = format!("requests_per_unit:{} unit:{unit}", rate.requests_per_unit);
        described["limit"] = limit.into();
    }
    if let Some(hits) = descriptor.hits_addend {
        described["hitsAddend"] = hits.into();
    }
    described
}

/// Merges objects recursively. Of two other values of one name the first one stays.
fn merge(into: &mut Metadata, from: &Metadata) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => drop(into.insert(name.clone(), value.clone())),
            (Some(Json::Object(inner)), Json::Object(more)) => {
                merge(inner, more);
            }
            (Some(_), _) => {}
        }
    }
}

fn to_struct(object: Metadata) -> Struct {
    let fields = object.into_iter();
    let fields = fields.map(|(name, value)| (name, to_value(value)));
    Struct {
        fields: fields.collect(),
    }
}

fn to_value(json: Json) -> Value {
    match json {
        Json::Null => Kind::NullValue(0).into(),
        Json::Bool(flag) => flag.into(),
        Json::Number(number) => number.as_f64().unwrap_or_default().into(),
        Json::String(text) => text.into(),
        Json::Array(values) => values.into_iter().map(to_value).collect::<Vec<_>>().into(),
        Json::Object(object) => Kind::StructValue(to_struct(object)).into(),
    }
}

/// The first [`MAX_PATH_BYTES`] of a text.
fn cut(bytes: &[u8]) -> Json {
    text(&bytes[..bytes.len().min(MAX_PATH_BYTES)])
}

/// A `Struct` holds UTF-8 only: invalid bytes become U+FFFD.
fn text(bytes: &[u8]) -> Json {
    String::from_utf8_lossy(bytes).into()
}
