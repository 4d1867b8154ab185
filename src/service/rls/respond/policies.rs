//! The limits of a request as clients read of them: their names, which of them are shown, and which
//! of them refuse.

use std::borrow::Cow;

use crate::core::ask::{Ask, Entry};
use crate::core::time::Rate;
use crate::limits::plan::{Outcome, Outcomes};
use crate::limits::rules::shown_name::shown;

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
        || shown(&keys().join(&b'.')).into_owned().into(),
        |limit| limit.shown().into(),
    )
}

/// The name of each descriptor's limit.
pub(super) fn all_names<'p>(ask: &Ask<'_>, outcomes: &Outcomes<'p>) -> Vec<Cow<'p, str>> {
    let each = outcomes.each.iter().zip(ask.descriptors());
    each.map(|(outcome, (_, entries))| name(outcome, entries))
        .collect()
}

/// The statuses that show a limit, each with its rate and its entries. Of more than
/// [`MAX_POLICIES`], those that refuse and those with the least remaining hits.
pub(super) fn shown_statuses<'o, 'p, 'a>(
    ask: &'o Ask<'a>,
    outcomes: &'o Outcomes<'p>,
) -> Vec<(&'o Outcome<'p>, Rate, &'o [Entry<'a>])> {
    let all = outcomes.each.iter().zip(ask.descriptors()).enumerate();
    let mut shown: Vec<_> = all
        .filter_map(|(index, (outcome, (_, entries)))| {
            Some((index, (outcome, outcome.shown?, entries)))
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
pub(super) fn policies<'p>(ask: &Ask<'_>, outcomes: &Outcomes<'p>) -> Vec<Policy<'p>> {
    let mut policies: Vec<Policy<'_>> = Vec::new();
    for (outcome, rate, entries) in shown_statuses(ask, outcomes) {
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
    ask: &Ask<'_>,
    outcomes: &Outcomes<'p>,
    descriptors: &[usize],
) -> Vec<Cow<'p, str>> {
    let all = all_names(ask, outcomes);
    let mut names = Vec::new();
    for &index in descriptors {
        if names.len() < MAX_POLICIES && !names.contains(&all[index]) {
            names.push(all[index].clone());
        }
    }
    names
}
