//! The limits of a request as clients read of them: their names, which of them are shown, and which
//! of them refuse.

use std::borrow::Cow;

use crate::core::ask::{Ask, Entry};
use crate::core::time::Rate;
use crate::core::verdict::{Decision, Decisions};
use crate::limits::plan::{Plan, Slot};
use crate::limits::rules::shown_name::shown;

use super::Status;

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
pub(super) fn name<'p>(slot: &Slot, plan: &'p Plan, entries: &[Entry<'_>]) -> Cow<'p, str> {
    let (id, row) = match slot {
        Slot::Checked { limit, row, .. } | Slot::Blocked { limit, row, .. } => (*limit, *row),
        Slot::Exempt { limit } => (*limit, None),
        Slot::Unlimited(id) => (Some(*id), None),
        Slot::Free => (None, None),
    };
    let Some(id) = id else {
        return shown(
            &entries
                .iter()
                .map(|entry| entry.key)
                .collect::<Vec<_>>()
                .join(&b'.'),
        )
        .into_owned()
        .into();
    };
    plan.rules.in_force(id, row).shown().into()
}

/// The statuses that have a limit, by index. Of more than [`MAX_POLICIES`], those that refuse and
/// those with the least remaining hits.
pub(super) fn shown_statuses(statuses: &[Status<'_>]) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..statuses.len())
        .filter(|&index| statuses[index].limit.is_some())
        .collect();
    if shown.len() > MAX_POLICIES {
        shown.sort_by_key(|&index| (!statuses[index].refused, statuses[index].remaining));
        shown.truncate(MAX_POLICIES);
        shown.sort_unstable();
    }
    shown
}

/// The limits of the statuses that are shown. Descriptors that share a name and a rate are one
/// policy, of which the fewest hits remain.
pub(super) fn policies<'p>(
    ask: &Ask<'_>,
    plan: &'p Plan,
    statuses: &[Status<'_>],
) -> Vec<Policy<'p>> {
    let entries: Vec<_> = ask.descriptors().map(|(_, entries)| entries).collect();
    let mut policies: Vec<Policy<'_>> = Vec::new();
    for index in shown_statuses(statuses) {
        let status = &statuses[index];
        let Some((rate, _)) = status.limit else {
            continue;
        };
        let name = name(&plan.slots[index], plan, entries[index]);
        let policy = Policy {
            name,
            rate,
            remaining: status.remaining,
            reset_secs: status.reset_secs,
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

/// The descriptors whose limits refuse the request, by index: those that are blocked, those over a
/// limit that is no quota, and all quotas where none of them is left.
pub(super) fn violated(plan: &Plan, statuses: &[Status<'_>], decisions: &Decisions) -> Vec<usize> {
    let passes = |(check, decision): (&crate::limits::plan::Check, &Decision)| {
        check.modes.quota && (check.modes.shadow || decision.allows())
    };
    let a_quota_passes =
        plan.checks.passing_quotas() > 0 || plan.checks.iter().zip(decisions).any(passes);
    let refuses = |&index: &usize| match &plan.slots[index] {
        Slot::Checked { check, .. } => {
            statuses[index].refused && !(a_quota_passes && plan.checks[*check].modes.quota)
        }
        Slot::Blocked { .. } => true,
        Slot::Free | Slot::Unlimited(_) | Slot::Exempt { .. } => false,
    };
    (0..plan.slots.len()).filter(refuses).collect()
}

/// The names of the limits of these descriptors, each once, and at most [`MAX_POLICIES`].
pub(super) fn names<'p>(ask: &Ask<'_>, plan: &'p Plan, descriptors: &[usize]) -> Vec<Cow<'p, str>> {
    let entries: Vec<_> = ask.descriptors().map(|(_, entries)| entries).collect();
    let mut names = Vec::new();
    for &index in descriptors {
        let name = name(&plan.slots[index], plan, entries[index]);
        if names.len() < MAX_POLICIES && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
