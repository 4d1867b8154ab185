//! The counters of features that only some limits have. This is their list: each has a file of its
//! own, with its metric families, its counters of a limit and their samples.

mod places;
mod reservations;
mod thresholds;
mod trials;

use self::places::PlaceGauges;
use self::reservations::HoldCounters;
use self::thresholds::CrossingCounters;
use self::trials::TrialCounters;
use super::Tallies;
use crate::core::answer::{CheckIndex, Decisions, Effect};
use crate::core::time::Micros;
use crate::limits::plan::{Check, Checks, Plan};
use crate::limits::rules::limit::Limit;
use crate::observe::metrics::counts::Core;
use crate::observe::metrics::exposition::LabelledSamples;
use crate::observe::metrics::families::Family;

/// The families of each feature, in the order of the page of metrics.
pub(in crate::observe::metrics) static FAMILIES: [&[&Family]; 4] =
    [places::ALL, reservations::ALL, thresholds::ALL, trials::ALL];

/// The counters of one limit.
#[derive(Debug)]
pub(super) struct FeatureCounters {
    places: Option<PlaceGauges>,
    holds: Option<HoldCounters>,
    crossings: Option<CrossingCounters>,
    trial: Option<TrialCounters>,
}

impl FeatureCounters {
    /// The counters of `limit`: the `known` ones go on counting. `None` if it has no feature.
    pub(super) fn new(limit: &Limit, known: Option<&Self>) -> Option<Box<Self>> {
        let new = Self {
            places: PlaceGauges::new(limit, known.and_then(|known| known.places.as_ref())),
            holds: HoldCounters::new(limit, known.and_then(|known| known.holds.as_ref())),
            crossings: CrossingCounters::new(limit, known.and_then(|it| it.crossings.as_ref())),
            trial: TrialCounters::new(limit, known.and_then(|known| known.trial.as_ref())),
        };
        let has_any = new.places.is_some()
            || new.holds.is_some()
            || new.crossings.is_some()
            || new.trial.is_some();
        has_any.then(|| Box::new(new))
    }

    /// Adds the samples of `limit`.
    pub(super) fn gather(&self, limit: &Limit, now: Micros, samples: &mut LabelledSamples<'_>) {
        if let Some(places) = &self.places {
            places.gather(now, samples);
        }
        if let Some(holds) = &self.holds {
            holds.gather(now, samples);
        }
        if let Some(crossings) = &self.crossings {
            crossings.gather(limit, samples);
        }
        if let Some(trial) = &self.trial {
            trial.gather(samples);
        }
    }
}

impl Tallies {
    /// Counts what is decided about a request apart from its outcomes.
    #[inline]
    pub fn observe_features(&self, core: Core, plan: &Plan, decisions: &Decisions) {
        self.observe_trials(core, plan, decisions);
    }

    /// Counts effects by the limits of their checks, each where its answer arrives, also after its
    /// call has ended.
    #[inline]
    pub fn observe_effects(
        &self,
        checks: &Checks,
        effects: impl IntoIterator<Item = (CheckIndex, Effect)>,
    ) {
        if checks.has_effects() {
            for (index, effect) in effects {
                self.observe_effect(&checks[index], effect);
            }
        }
    }

    /// Counts one effect, by the clock that scrapes read.
    pub fn observe_effect(&self, check: &Check, effect: Effect) {
        let Some(features) = check.limit().and_then(|limit| self.features(limit)) else {
            return;
        };
        if let Some(places) = &features.places {
            places.observe(effect);
        }
        if let Some(holds) = &features.holds {
            holds.observe(effect, check.hits);
        }
    }
}
