//! The header fields about limits, in the forms that clients may know, and the field that names the
//! limits which refused.

use std::borrow::Cow;

use sfv::{KeyRef, ListSerializer, ParameterSerializer, key_ref};

use super::policies::{self, Policy};
use super::structured::{integer, string};
use super::{HeaderNames, Status};
use crate::core::ask::Ask;
use crate::core::proto::HeaderValue;
use crate::core::time::{Rate, Unit};
use crate::limits::plan::{Plan, Slot};

const QUOTA: &KeyRef = key_ref("q");
const WINDOW: &KeyRef = key_ref("w");
const REMAINING: &KeyRef = key_ref("r");
const RESET: &KeyRef = key_ref("t");
const NAME: &KeyRef = key_ref("name");

fn header(key: &str, value: String) -> HeaderValue {
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
pub(super) fn legacy(
    plan: &Plan,
    statuses: &[Status<'_>],
    names: &HeaderNames,
) -> Vec<HeaderValue> {
    let refuses = |slot: &Slot| match slot {
        Slot::Checked { check, .. } => !plan.checks[*check].modes.quota,
        Slot::Blocked { .. } => true,
        Slot::Free | Slot::Unlimited(_) | Slot::Exempt { .. } => false,
    };
    let last_refusal = plan
        .slots
        .iter()
        .zip(statuses)
        .rev()
        .find(|(slot, status)| status.refused && refuses(slot));
    let Some(status) = last_refusal
        .map(|(_, status)| status)
        .or_else(|| least(statuses))
    else {
        return Vec::new();
    };
    vec![
        header(
            &names.limit,
            status
                .limit
                .map_or(0, |(rate, _)| rate.requests_per_unit)
                .to_string(),
        ),
        header(&names.remaining, status.remaining.to_string()),
        header(&names.reset, status.reset_secs.unwrap_or(0).to_string()),
    ]
}

/// Three headers: the limit of the descriptor with the least remaining hits before a list of all
/// limits with their windows and names, and what remains of that limit. Source:
/// draft-ietf-httpapi-ratelimit-headers-03, as Envoy's `DRAFT_VERSION_03` writes it.
pub(super) fn draft_03(statuses: &[Status<'_>], names: &HeaderNames) -> Vec<HeaderValue> {
    let Some(Status {
        limit: Some((least_rate, _)),
        remaining,
        reset_secs,
        ..
    }) = least(statuses)
    else {
        return Vec::new();
    };
    let mut limits = ListSerializer::new();
    let _ = limits.bare_item(integer(least_rate.requests_per_unit));
    for index in policies::shown_statuses(statuses) {
        let Some((rate, name)) = &statuses[index].limit else {
            continue;
        };
        let item = with_window(limits.bare_item(integer(rate.requests_per_unit)), rate);
        if !name.is_empty() {
            let _ = item.parameter(NAME, string(name));
        }
    }
    vec![
        header(&names.limit, limits.finish().unwrap_or_default()),
        header(&names.remaining, remaining.to_string()),
        header(&names.reset, reset_secs.unwrap_or(0).to_string()),
    ]
}

/// `RateLimit-Policy` with all limits, and `RateLimit` with what remains of each. Source:
/// draft-ietf-httpapi-ratelimit-headers-11, sections 3 and 4.
pub(super) fn draft_11(ask: &Ask<'_>, plan: &Plan, statuses: &[Status<'_>]) -> Vec<HeaderValue> {
    let (mut quotas, mut states) = (ListSerializer::new(), ListSerializer::new());
    for Policy {
        name,
        rate,
        remaining,
        reset_secs,
    } in policies::policies(ask, plan, statuses)
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
fn least<'a, 's>(statuses: &'a [Status<'s>]) -> Option<&'a Status<'s>> {
    let is_known = |status: &&Status<'_>| {
        status
            .limit
            .is_some_and(|(rate, _)| status.reset_secs.is_some() || rate.unit == Unit::None)
    };
    statuses
        .iter()
        .filter(is_known)
        .min_by_key(|status| status.remaining)
}
