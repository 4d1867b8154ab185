//! The limits of a request as clients read of them: their names, which of them are shown, and which of them refuse.

use crate::ask::{Ask, Entry};
use crate::plan::{Plan, Slot};
use crate::time::Rate;
use crate::verdict::{Decision, Decisions};

use super::Status;
use super::structured::Name;

/// The most limits that the headers or the body of a response name. A request may have 256 descriptors, and clients and proxies accept few KiB of
/// headers.
pub(super) const MAX_POLICIES: usize = 16;

/// A limit with its state.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) name: Name,
    pub(super) rate: Rate,
    pub(super) remaining: u64,
    pub(super) reset_secs: Option<u64>,
}

/// The name of a descriptor's limit: as configured, or else its path in the domain, or the keys of the descriptor for a limit of the request's own.
/// Values of the request are no part of it.
pub(super) fn name(slot: &Slot, plan: &Plan, entries: &[Entry<'_>]) -> Name {
    let (id, row) = match slot {
        Slot::Checked { limit, row, .. } | Slot::Blocked { limit, row, .. } => (*limit, *row),
        Slot::Exempt { limit } => (*limit, None),
        Slot::Unlimited(id) => (Some(*id), None),
        Slot::Free => (None, None),
    };
    let Some(id) = id else {
        return Name::new(entries.iter().map(|entry| entry.key).collect::<Vec<_>>().join(&b'.'));
    };
    let in_force = plan.rules.in_force(id, row);
    in_force.name().map_or_else(|| Name::new(in_force.limit.path_in_domain()), Name::new)
}

/// The statuses that have a limit, by index. Of more than [`MAX_POLICIES`], those that refuse and those with the least remaining hits.
pub(super) fn shown(statuses: &[Status<'_>]) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..statuses.len()).filter(|&index| statuses[index].limit.is_some()).collect();
    if shown.len() > MAX_POLICIES {
        shown.sort_by_key(|&index| (!statuses[index].refused, statuses[index].remaining));
        shown.truncate(MAX_POLICIES);
        shown.sort_unstable();
    }
    shown
}

/// The limits of the statuses that are shown. Descriptors that share a name and a rate are one policy, of which the fewest hits remain.
pub(super) fn policies(ask: &Ask<'_>, plan: &Plan, statuses: &[Status<'_>]) -> Vec<Policy> {
    let entries: Vec<_> = ask.descriptors().map(|(_, entries)| entries).collect();
    let mut policies: Vec<Policy> = Vec::new();
    for index in shown(statuses) {
        let status = &statuses[index];
        let Some((rate, _)) = status.limit else { continue };
        let name = name(&plan.slots[index], plan, entries[index]);
        let policy = Policy { name, rate, remaining: status.remaining, reset_secs: status.reset_secs };
        match policies.iter_mut().find(|known| known.name == policy.name && known.rate == policy.rate) {
            Some(known) if known.remaining < policy.remaining => {}
            Some(known) => *known = Policy { reset_secs: known.reset_secs.max(policy.reset_secs), ..policy },
            None => policies.push(policy),
        }
    }
    policies
}

/// The descriptors whose limits refuse the request, by index: those that are blocked, those over a limit that is no quota, and all quotas where none of them is left.
pub(super) fn violated(plan: &Plan, statuses: &[Status<'_>], decisions: &Decisions) -> Vec<usize> {
    let passes = |(check, decision): (&crate::plan::Check, &Decision)| check.modes.quota && (check.modes.shadow || decision.allows());
    let a_quota_passes = plan.checks.passing_quotas() > 0 || plan.checks.iter().zip(decisions).any(passes);
    let refuses = |&index: &usize| match &plan.slots[index] {
        Slot::Checked { check, .. } => statuses[index].refused && !(a_quota_passes && plan.checks[*check].modes.quota),
        Slot::Blocked { .. } => true,
        Slot::Free | Slot::Unlimited(_) | Slot::Exempt { .. } => false,
    };
    (0..plan.slots.len()).filter(refuses).collect()
}

/// The names of the limits of these descriptors, each once, and at most [`MAX_POLICIES`].
pub(super) fn names(ask: &Ask<'_>, plan: &Plan, descriptors: &[usize]) -> Vec<Name> {
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
