//! `trial`: another amount that is counted next to a limit, and refuses nothing.
//!
//! The resolved options of a limit are the defaults of its trial. One rule then decides which of
//! them apply to another algorithm or unit.

use std::sync::Arc;

use super::{
    Amount, Builder, FieldTexts, LayerSource, Layers, Limit, LimitInForce, Node, PartialLimit,
    Place, Problems, Resolved, Section, Thresholds, Trial, fields, messages,
};
use crate::limits::rules::diff::rate_of;
use crate::limits::rules::source::ValueType;

impl PartialLimit {
    /// Reads a `trial`; `None`, with an error, if it is wrong.
    pub(crate) fn read_trial(problems: &Problems, node: &Node) -> Option<Box<Self>> {
        let fields = match node.value_type() {
            ValueType::Nothing => None,
            _ => Some(fields::read(problems, node, Section::Trial)?),
        };
        let Some(fields) = fields.filter(|fields| !fields.is_empty()) else {
            return problems.fail(&node.at, messages::trial_is_empty());
        };
        let read = Self::read(problems, &fields).map(Box::new);
        read.filter(|_| !fields.has_misplaced)
    }
}

impl Layers<'_> {
    /// Whether the limit has a trial.
    pub(crate) fn has_trial(&self) -> bool {
        self.all().any(|layer| layer.trial.is_some())
    }
}

impl Builder<'_, '_> {
    /// The trial of a limit: its own or else the trial of the overlay, which is left out where it
    /// does not fit. `None` if there is no trial, or, with an error, if its own is invalid.
    pub(super) fn trial(
        &mut self,
        limit: &Limit,
        layers: &Layers<'_>,
        real: &Resolved,
        at: &Place,
    ) -> Option<Box<Trial>> {
        let (layer, trial) = layers.find(|layer| Some((layer, layer.trial.as_deref()?)))?;
        let problems = match layer.source.name() {
            Some(source) => &self.problems.in_layer(at, source),
            None => self.problems,
        };
        let resolved = self
            .with_problems(problems)
            .resolve_trial(trial, layers, real)?;
        let usage = resolved.usage.map(|usage| self.records(usage, limit, true));
        let amount = resolved.amount?;
        Some(Box::new(Trial { amount, usage }))
    }

    /// A trial inherits missing options from the real limit, as far as they have a meaning for the
    /// algorithm and the unit of the trial; from the domain if the limit is unlimited.
    fn resolve_trial(
        &mut self,
        trial: &PartialLimit,
        layers: &Layers<'_>,
        real: &Resolved,
    ) -> Option<Resolved> {
        let at = &trial.places.at;
        let is_in_flight = |amount: Amount| amount.algorithm.counts_in_flight();
        if trial.counts_in_flight() || real.amount.is_some_and(is_in_flight) {
            return self.problems.fail(at, messages::trial_of_concurrency());
        }
        if let Some(at) = trial.place("lease") {
            return self.problems.fail(at, messages::trial_with_lease());
        }
        if let Some(at) = trial.place("reservations") {
            return self.problems.fail(at, messages::trial_with_reservations());
        }
        let Some(amount) = &real.amount else {
            let (requests, unit) = (trial.requests_per_unit.is_none(), trial.unit.is_none());
            let missing = [
                requests.then_some("requests_per_unit"),
                unit.then_some("unit"),
            ];
            for key in missing.into_iter().flatten() {
                self.problems.error(at, messages::trial_of_unlimited(key));
            }
            trial.requests_per_unit.and(trial.unit)?;
            let own = [trial, *layers.own.first()?];
            return self.complete(&layers.with_own(&own), at, "rate_limit");
        };
        // The whole rate, because the trial is divided among regions again. As a layer of defaults,
        // options that do not fit the algorithm of the trial are dropped without an error.
        let rate = amount.whole_rate();
        let real_layer = Arc::new(PartialLimit {
            requests_per_unit: Some(rate.requests_per_unit),
            unit: Some(rate.unit),
            unit_multiplier: Some(rate.unit_multiplier),
            algorithm: Some(real.options.kind),
            options: real.options,
            notify: Some(amount.notify),
            region_shares: layers.region_shares().map(|(_, shares)| Arc::clone(shares)),
            source: LayerSource::Defaults(None),
            ..PartialLimit::default()
        });
        let layers = Layers {
            own: &[trial],
            below: &[real_layer],
            ends_with_value: false,
        };
        let mut resolved = self.complete(&layers, at, "rate_limit")?;
        if resolved.amount == real.amount {
            self.problems.warning(at, messages::trial_of_same_limit());
        }
        if let Some(amount) = &mut resolved.amount {
            // The store is queried for each hit of a trial, which uses up nothing.
            amount.lease = false;
            amount.notify = Thresholds::default();
        }
        resolved.usage = real.usage;
        Some(resolved)
    }
}

impl FieldTexts {
    /// Adds a trial on one line: its rate, and other differences from the real limit.
    pub(super) fn add_trial(&mut self, limit: LimitInForce<'_>) {
        let Some(Trial { amount, .. }) = limit.trial() else {
            return;
        };
        let real = limit.amount().map(Self::of_amount).unwrap_or_default();
        let other = Self::of_amount(amount).without(&real);
        self.add("trial", Some(rate_of(amount) + &other.rest()));
    }
}
