//! The header fields about limits, in the forms of several drafts and gateways, and the field that
//! names the limits which refused.
//!
//! A text enters a Structured Field only as [`shown`] has it. Source: RFC 9651, sections 3.3.1 and
//! 3.3.3.

use std::borrow::Cow;

use sfv::{Integer, KeyRef, ListSerializer, ParameterSerializer, StringRef, key_ref, string_ref};

use super::HeaderNames;
use crate::core::proto::HeaderValue;
use crate::core::request::{DecodedRequest, Entry};
use crate::core::time::{Rate, Unit};
use crate::limits::plan::{Outcome, Outcomes};
use crate::limits::rules::display_name::display_name;

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
/// the least remaining hits, the first on a tie. Empty if no descriptor has a limit with a count.
/// Source: envoyproxy/ratelimit.
pub(super) fn legacy(outcomes: &Outcomes<'_>, names: &HeaderNames) -> Vec<HeaderValue> {
    let refuses = |outcome: &&Outcome<'_>| outcome.refuses && !outcome.is_quota();
    let last_refusal = outcomes.each.iter().rev().find(refuses);
    let Some(outcome) = last_refusal.or_else(|| least(outcomes)) else {
        return Vec::new();
    };
    let limit = outcome.rate.map_or(0, |rate| rate.requests_per_unit);
    three(names, limit.to_string(), outcome)
}

/// The header about limits, and the headers of the remaining hits and of the reset.
fn three(names: &HeaderNames, limit: String, outcome: &Outcome<'_>) -> Vec<HeaderValue> {
    let reset_secs = outcome.reset_secs.unwrap_or(0);
    vec![
        header(&names.limit, limit),
        header(&names.remaining, outcome.remaining.to_string()),
        header(&names.reset, reset_secs.to_string()),
    ]
}

/// Three headers: the limit of the descriptor with the least remaining hits before a list of all
/// limits with their windows and names, and the remaining hits of that limit. Source:
/// draft-ietf-httpapi-ratelimit-headers-03, as Envoy's `DRAFT_VERSION_03` writes it.
pub(super) fn draft_03(
    request: &DecodedRequest<'_>,
    outcomes: &Outcomes<'_>,
    names: &HeaderNames,
) -> Vec<HeaderValue> {
    let Some((least, least_rate)) = least(outcomes).and_then(|least| Some((least, least.rate?)))
    else {
        return Vec::new();
    };
    let mut limits = ListSerializer::new();
    let _ = limits.bare_item(integer(least_rate.requests_per_unit));
    for (outcome, rate, _) in shown_statuses(request, outcomes) {
        let item = with_window(limits.bare_item(integer(rate.requests_per_unit)), &rate);
        if !outcome.name.is_empty() {
            let _ = item.parameter(NAME, string(outcome.name));
        }
    }
    three(names, limits.finish().unwrap_or_default(), least)
}

/// `RateLimit-Policy` with all limits, and `RateLimit` with the remaining hits of each. Source:
/// draft-ietf-httpapi-ratelimit-headers-11, sections 3 and 4.
pub(super) fn draft_11(request: &DecodedRequest<'_>, outcomes: &Outcomes<'_>) -> Vec<HeaderValue> {
    let (mut quotas, mut states) = (ListSerializer::new(), ListSerializer::new());
    for policy in policies(request, outcomes) {
        let quota = quotas
            .bare_item(string(&policy.name))
            .parameter(QUOTA, integer(policy.rate.requests_per_unit));
        let _ = with_window(quota, &policy.rate);
        let state = states
            .bare_item(string(&policy.name))
            .parameter(REMAINING, integer(policy.remaining));
        if let Some(secs) = policy.reset_secs {
            let _ = state.parameter(RESET, integer(secs));
        }
    }
    let quotas = quotas
        .finish()
        .map(|value| header("RateLimit-Policy", value));
    let states = states.finish().map(|value| header("RateLimit", value));
    quotas.into_iter().chain(states).collect()
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
            .rate
            .is_some_and(|rate| outcome.reset_secs.is_some() || rate.unit == Unit::None)
    };
    let known = outcomes.each.iter().filter(is_known);
    known.min_by_key(|outcome| outcome.remaining)
}

/// A shown name as a value of a Structured Field.
pub(super) fn string(name: &str) -> &StringRef {
    // Cannot fail: all of it is printable ASCII.
    StringRef::from_str(name).unwrap_or(string_ref(""))
}

/// A number as a value of a Structured Field, which has at most 15 digits: a larger number becomes
/// the largest one.
pub(super) fn integer(number: impl TryInto<Integer>) -> Integer {
    number.try_into().unwrap_or(Integer::MAX)
}

/// The most limits that the headers or the body of a response name. A request may have 256
/// descriptors, and clients and proxies accept few KiB of headers.
pub(super) const MAX_POLICIES: usize = 16;

/// A limit with its state.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Policy<'p> {
    pub(super) name: Cow<'p, str>,
    pub(super) rate: Rate,
    pub(super) remaining: u64,
    pub(super) reset_secs: Option<u64>,
}

/// The name of a descriptor's limit: as configured, or else its path in the domain, or the keys of
/// the descriptor for a limit of the request's own. Values of the request are no part of it.
fn name<'p>(outcome: &Outcome<'p>, entries: &[Entry<'_>]) -> Cow<'p, str> {
    let keys = || entries.iter().map(|entry| entry.key).collect::<Vec<_>>();
    outcome.limit.map_or_else(
        || display_name(&keys().join(&b'.')).into_owned().into(),
        |limit| limit.display_name().into(),
    )
}

/// The name of each descriptor's limit.
pub(super) fn all_names<'p>(
    request: &DecodedRequest<'_>,
    outcomes: &Outcomes<'p>,
) -> Vec<Cow<'p, str>> {
    let each = outcomes.each.iter().zip(request.descriptors());
    each.map(|(outcome, (_, entries))| name(outcome, entries))
        .collect()
}

/// The statuses that show a limit, each with its rate and its entries. Of more than
/// [`MAX_POLICIES`], those that refuse and those with the least remaining hits.
pub(super) fn shown_statuses<'o, 'p, 'a>(
    request: &'o DecodedRequest<'a>,
    outcomes: &'o Outcomes<'p>,
) -> Vec<(&'o Outcome<'p>, Rate, &'o [Entry<'a>])> {
    let all = outcomes.each.iter().zip(request.descriptors()).enumerate();
    let mut shown: Vec<_> = all
        .filter_map(|(index, (outcome, (_, entries)))| {
            Some((index, (outcome, outcome.rate?, entries)))
        })
        .collect();
    if shown.len() > MAX_POLICIES {
        shown.sort_by_key(|(_, (outcome, ..))| (!outcome.refuses, outcome.remaining));
        shown.truncate(MAX_POLICIES);
        shown.sort_unstable_by_key(|(index, _)| *index);
    }
    shown.into_iter().map(|(_, status)| status).collect()
}

/// The limits of the statuses that are shown. Descriptors that share a name and a rate are one
/// policy, of which the fewest hits remain.
pub(super) fn policies<'p>(
    request: &DecodedRequest<'_>,
    outcomes: &Outcomes<'p>,
) -> Vec<Policy<'p>> {
    let mut policies: Vec<Policy<'_>> = Vec::new();
    for (outcome, rate, entries) in shown_statuses(request, outcomes) {
        let policy = Policy {
            name: name(outcome, entries),
            rate,
            remaining: outcome.remaining,
            reset_secs: outcome.reset_secs,
        };
        match policies
            .iter_mut()
            .find(|known| known.name == policy.name && known.rate == policy.rate)
        {
            Some(known) if known.remaining < policy.remaining => {}
            Some(known) => {
                *known = Policy {
                    reset_secs: known.reset_secs.max(policy.reset_secs),
                    ..policy
                }
            }
            None => policies.push(policy),
        }
    }
    policies
}

/// The names of the limits of these descriptors, each once, and at most [`MAX_POLICIES`].
pub(super) fn names<'p>(
    request: &DecodedRequest<'_>,
    outcomes: &Outcomes<'p>,
    descriptors: &[usize],
) -> Vec<Cow<'p, str>> {
    let all = all_names(request, outcomes);
    let mut names = Vec::new();
    for &index in descriptors {
        if names.len() < MAX_POLICIES && !names.contains(&all[index]) {
            names.push(all[index].clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sfv::{BareItem, Item, KeyRef, List, ListEntry, ListSerializer, Parser};

    use super::*;
    use crate::limits::rules::display_name::display_name;

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// Any name and any numbers are one member of a list that a parser reads back, and one line
        /// of printable ASCII.
        #[test]
        fn what_is_written_is_read_back(
            members in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..200), any::<u64>(), any::<u64>()), 1..20),
        ) {
            let (quota, window) = (KeyRef::constant("q"), KeyRef::constant("w"));
            let mut list = ListSerializer::new();
            for (name, q, w) in &members {
                let _ = list.bare_item(string(&display_name(name))).parameter(quota, integer(*q)).parameter(window, integer(*w));
            }
            let header = list.finish().expect("at least one member");
            prop_assert!(header.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header:?}");
            let parsed: List = Parser::new(&header).parse().expect("a list");
            prop_assert_eq!(parsed.len(), members.len());
            for (entry, (name, q, w)) in parsed.iter().zip(&members) {
                let ListEntry::Item(Item { bare_item: BareItem::String(read), params }) = entry else { panic!("a string: {entry:?}") };
                prop_assert_eq!(read.as_str(), display_name(name));
                let number = |key: &KeyRef| match params.get(key) { Some(BareItem::Integer(number)) => i64::from(*number), other => panic!("{other:?}") };
                let capped = |number: u64| number.min(999_999_999_999_999) as i64;
                prop_assert_eq!([number(quota), number(window)], [capped(*q), capped(*w)]);
            }
        }
    }
}
