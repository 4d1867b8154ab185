//! Features that only some limits have. This is their list for the compiler, as
//! `plan/features.rs` is for plans: each has a file of its own, which reads its fields, decides to
//! which limits it applies, and shows it.

mod concurrency;
mod leases;
mod reservations;
mod thresholds;
mod trials;
mod usage;

use super::build::Builder;
use super::fields::{self, Fields, Section};
use super::keys::{FieldValue, Form};
use super::layers::{Layers, Resolved, Terms};
use super::partial::{LayerSource, PartialLimit};
use super::problem::Problems;
use crate::core::algorithm::{AlgorithmKind, OptionError, Options};
use crate::limits::rules::diff::FieldTexts;
use crate::limits::rules::limit::{Amount, Limit, LimitInForce, Trial};
use crate::limits::rules::place::Place;
use crate::limits::rules::source::Node;
use crate::limits::rules::thresholds::Thresholds;
use crate::limits::rules::{Commit, messages};

impl Layers<'_> {
    /// Removes options that this limit cannot have with any algorithm. Returns the errors of those
    /// that are `meant` for it: options of the defaults go without an error.
    pub(super) fn remove_misplaced(
        &self,
        options: &mut Options,
        meant: &Options,
        terms: &Terms,
        is_tracked: bool,
    ) -> Vec<OptionError> {
        let lease = leases::remove_misplaced(options, meant, terms, is_tracked);
        let reservations = self.remove_reservations(options, meant, terms);
        lease.into_iter().chain(reservations).collect()
    }
}

impl Builder<'_, '_> {
    /// Adds the trial and the usage of a limit; `None`, with an error, if they are wrong.
    pub(super) fn add_features(
        &mut self,
        limit: &mut Limit,
        layers: &Layers<'_>,
        resolved: &mut Resolved,
        has_table: bool,
        at: &Place,
    ) -> Option<()> {
        if has_table {
            self.resolve_usage_of_rows(resolved, layers, at)?;
        }
        limit.trial = self.trial(limit, layers, resolved, at);
        if limit.trial.is_some() {
            leases::warn_of_trial(self.problems, layers, resolved);
        }
        limit.usage = resolved
            .usage
            .map(|usage| self.records(usage, limit, false));
        Some(())
    }
}

impl Amount {
    /// The same amount with the features in these options, and with thresholds.
    pub(super) fn with_features(self, options: &Options, notify: Thresholds) -> Self {
        Self {
            lease: options.lease == Some(true),
            reservations: options.reservations,
            notify,
            ..self
        }
    }
}

impl Limit {
    /// The memory of its features.
    pub(crate) fn memory_of_features(&self) -> usize {
        let usage = self.usage.as_ref();
        let usage = usage.map_or(0, |usage| 250 + size_of_val(&*usage.levels));
        let trial = self.trial.as_ref().map_or(0, |trial| {
            size_of::<Trial>() + 150 + trial.usage.as_ref().map_or(0, |_| usage)
        });
        let counters = self.amounts().map(|amount| {
            let has_notify = amount.notify.each().next().is_some();
            let has_tally = amount.reservations.is_some() || amount.algorithm.counts_in_flight();
            900 * usize::from(has_notify) + 1_000 * usize::from(has_tally)
        });
        usage + trial + counters.max().unwrap_or_default()
    }
}

impl FieldTexts {
    /// Adds the fields of thresholds, trials and usage.
    pub(in crate::limits::rules) fn add_features(&mut self, limit: LimitInForce<'_>) {
        self.add_thresholds(limit);
        self.add_trial(limit);
        self.add_usage(limit.limit);
    }
}
