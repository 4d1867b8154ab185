//! Trials: checks of what limits would do with other numbers, after all checks that take part in
//! the decision. The key of a trial is the key of its limit with a tag before the algorithm.
//!
//! No lease and no denial cache answers a trial, because it has to be counted also where they
//! answer the limit, and no failure policy applies to it. In `local` counters it would be a trial of
//! a share of the limit, and would mix two counts: hits that the store did not count are
//! `not_counted`.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::Extras;
use crate::core::algorithm::Algorithm;
use crate::core::time::Unit;
use crate::limits::plan::{
    Check, CheckIndex, Checks, Disposition, Matcher, Modes, Plan, PlannedDescriptor, Slot, key,
};
use crate::limits::rules::limit::{Limit, LimitInForce, OnStoreFailure, Trial};

impl Plan {
    /// The trials among the checks: each with the index of its descriptor, and the limit that has
    /// it.
    pub fn trials(&self) -> impl Iterator<Item = (CheckIndex, usize, &Limit)> {
        let tried = self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let found = self.limit(slot)?;
            trial_of(&slot.disposition, found).map(|_| (index, found.limit))
        });
        let all = self.checks.apart().zip(tried);
        all.map(|(check, (slot, limit))| (check, slot, limit))
    }
}

/// The trial that counts the hits of a limit; `None` where the descriptor is blocked, exempt or
/// replaced.
pub(super) fn trial_of<'r>(
    disposition: &Disposition,
    found: LimitInForce<'r>,
) -> Option<&'r Trial> {
    match disposition {
        Disposition::Checked(_) | Disposition::Unlimited => found.trial(),
        Disposition::Free | Disposition::Exempt | Disposition::Blocked(_) => None,
    }
}

impl Matcher<'_, '_> {
    /// Adds the trials of the limits that were found; `slots` has the fate of their descriptors. A
    /// trial gets the requested hits of the limit; a raise changes the real amount only.
    #[inline]
    pub(super) fn add_trials(&mut self, slots: &[Slot]) {
        let is_tried = |found: &LimitInForce<'_>| found.limit.trial.is_some();
        // Of peeks nothing is counted.
        if self.found.iter().flatten().any(is_tried) && !self.checks.are_peeks() {
            self.add_each_trial(slots);
        }
    }

    #[cold]
    fn add_each_trial(&mut self, slots: &[Slot]) {
        let found = self.found.iter().zip(slots);
        for ((descriptor, entries), (found, slot)) in self.request.descriptors().zip(found) {
            let Some(found) = *found else { continue };
            let Some(trial) = trial_of(&slot.disposition, found) else {
                continue;
            };
            let planned = PlannedDescriptor {
                descriptor,
                entries,
                limit: Some(found),
                is_settlement: false,
            };
            let start = self.add_key(planned, None).start;
            let cost = trial.amount.default_cost.map_or(1, NonZeroU64::get);
            let hits = self.request.hits_or(descriptor, cost);
            self.checks.add_trial(start, trial, hits);
        }
    }
}

impl Checks {
    /// Adds a trial, in the hash slot of its limit. Its key begins at `start`, and is written up to
    /// the tag.
    pub(super) fn add_trial(&mut self, start: usize, trial: &Trial, hits: i64) {
        write_tag(&mut self.keys, &trial.amount.algorithm);
        let Trial { amount, usage, .. } = trial;
        let extras = usage.as_ref().map(|tracking| Extras {
            usage: Some((Arc::clone(tracking), amount.period())),
            ..Extras::default()
        });
        let check = Check {
            per_second: amount.rate.unit == Unit::Second,
            on_store_failure: OnStoreFailure::Allow,
            extras: extras.map(Box::new),
            ..Check::new(amount.algorithm, hits, Modes::default())
        };
        self.push(start..self.keys.len(), check);
        self.apart += 1;
    }
}

/// Appends the part after the subject in the key of a trial: the part of the real counter's key,
/// with a mark before the algorithm.
pub(crate) fn write_tag(out: &mut Vec<u8>, algorithm: &Algorithm) {
    out.extend_from_slice(key::APART);
    algorithm.write_key_tag(out);
}

#[cfg(test)]
mod tests;
