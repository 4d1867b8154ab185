//! The header fields about limits, in the forms that clients may know, and the field that names the
//! limits which refused.

use std::borrow::Cow;

use sfv::{KeyRef, ListSerializer, ParameterSerializer, key_ref};

use super::HeaderNames;
use super::policies::{self, Policy};
use super::structured::{integer, string};
use crate::core::ask::Ask;
use crate::core::proto::HeaderValue;
use crate::core::time::{Rate, Unit};
use crate::limits::plan::{Outcome, Outcomes};

const QUOTA: &KeyRef = key_ref("q");
const WINDOW: &KeyRef = key_ref("w");
const REMAINING: &KeyRef = key_ref("r");
const RESET: &KeyRef = key_ref("t");
const NAME: &KeyRef = key_ref("name");

pub(super) fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue {
        key: key.to_owned(),
        value,
        raw_value: Vec::new(),
    }
}

/// The parameter with the window, which a limit of requests in flight does not have.
fn with_window<'s>(
    item: ParameterSerializer<&'s mut String>,
    rate: &Rate,
) -> ParameterSerializer<&'s mut String> {
    match rate.unit {
        Unit::None => item,
        unit => item.parameter(
            WINDOW,
            integer(unit.secs().saturating_mul(rate.unit_multiplier.into())),
        ),
    }
}

/// Three headers about one descriptor: the last one that is over its limit, or else the one with
/// the least remaining hits, the first on a tie. Empty if no descriptor has a limit whose count is
/// known. Source: envoyproxy/ratelimit.
pub(super) fn legacy(outcomes: &Outcomes<'_>, names: &HeaderNames) -> Vec<HeaderValue> {
    let refuses = |outcome: &&Outcome<'_>| outcome.refuses && !outcome.is_quota();
    let last_refusal = outcomes.each.iter().rev().find(refuses);
    let Some(outcome) = last_refusal.or_else(|| least(outcomes)) else {
        return Vec::new();
    };
    let limit = outcome.shown.map_or(0, |rate| rate.requests_per_unit);
    three(names, limit.to_string(), outcome)
}

/// What remains of a limit, behind its header about limits.
fn three(names: &HeaderNames, limit: String, outcome: &Outcome<'_>) -> Vec<HeaderValue> {
    let reset_secs = outcome.reset_secs.unwrap_or(0);
    vec![
        header(&names.limit, limit),
        header(&names.remaining, outcome.remaining.to_string()),
        header(&names.reset, reset_secs.to_string()),
    ]
}

/// Three headers: the limit of the descriptor with the least remaining hits before a list of all
/// limits with their windows and names, and what remains of that limit. Source:
/// draft-ietf-httpapi-ratelimit-headers-03, as Envoy's `DRAFT_VERSION_03` writes it.
pub(super) fn draft_03(
    ask: &Ask<'_>,
    outcomes: &Outcomes<'_>,
    names: &HeaderNames,
) -> Vec<HeaderValue> {
    let Some((least, least_rate)) = least(outcomes).and_then(|least| Some((least, least.shown?)))
    else {
        return Vec::new();
    };
    let mut limits = ListSerializer::new();
    let _ = limits.bare_item(integer(least_rate.requests_per_unit));
    for (outcome, rate, _) in policies::shown_statuses(ask, outcomes) {
        let item = with_window(limits.bare_item(integer(rate.requests_per_unit)), &rate);
        if !outcome.name.is_empty() {
            let _ = item.parameter(NAME, string(outcome.name));
        }
    }
    three(names, limits.finish().unwrap_or_default(), least)
}

/// `RateLimit-Policy` with all limits, and `RateLimit` with what remains of each. Source:
/// draft-ietf-httpapi-ratelimit-headers-11, sections 3 and 4.
pub(super) fn draft_11(ask: &Ask<'_>, outcomes: &Outcomes<'_>) -> Vec<HeaderValue> {
    let (mut quotas, mut states) = (ListSerializer::new(), ListSerializer::new());
    for Policy {
        name,
        rate,
        remaining,
        reset_secs,
    } in policies::policies(ask, outcomes)
    {
        let quota = quotas
            .bare_item(string(&name))
            .parameter(QUOTA, integer(rate.requests_per_unit));
        let _ = with_window(quota, &rate);
        let state = states
            .bare_item(string(&name))
            .parameter(REMAINING, integer(remaining));
        if let Some(secs) = reset_secs {
            let _ = state.parameter(RESET, integer(secs));
        }
    }
    let fields = [
        ("RateLimit-Policy", quotas.finish()),
        ("RateLimit", states.finish()),
    ];
    fields
        .into_iter()
        .filter_map(|(key, value)| Some(header(key, value?)))
        .collect()
}

/// The names of the limits that refuse, as a list of strings in a header of this name.
pub(super) fn refused_by(key: &str, names: &[Cow<'_, str>]) -> Option<HeaderValue> {
    let mut list = ListSerializer::new();
    for name in names {
        let _ = list.bare_item(string(name));
    }
    Some(header(key, list.finish()?))
}

/// The status with the least remaining hits, the first on a tie.
fn least<'o, 'p>(outcomes: &'o Outcomes<'p>) -> Option<&'o Outcome<'p>> {
    let is_known = |outcome: &&Outcome<'_>| {
        outcome
            .shown
            .is_some_and(|rate| outcome.reset_secs.is_some() || rate.unit == Unit::None)
    };
    let known = outcomes.each.iter().filter(is_known);
    known.min_by_key(|outcome| outcome.remaining)
}
