//! The decisions of trials.

use std::sync::Arc;

use crate::core::answer::Decisions;
use crate::limits::plan::Plan;
use crate::limits::rules::limit::Limit;
use crate::observe::metrics::counts::{
    COUNTERS, Core, DECISIONS, Label, LazyCells, OVER_LIMIT, TOTAL_HITS,
};
use crate::observe::metrics::exposition::LabelledSamples;
use crate::observe::metrics::families::families;
use crate::observe::metrics::tallies::{Tallies, counts};

families! { ALL:
    /// Requests that a trial would allow (ok) or refuse (over_limit), or that the store did not
    /// count for it (not_counted).
    TRIAL_DECISIONS = Counter "weir_trial_decisions_total" ["domain", "limit", "name", "outcome"];
    /// Hits that requests asked of a limit with a trial, without refunds.
    TRIAL_HITS = Counter "weir_trial_hits_total" ["domain", "limit", "name"];
    /// Hits beyond the trial of a limit; it refused none of them.
    TRIAL_OVER_LIMIT_HITS = Counter "weir_trial_over_limit_hits_total" ["domain", "limit", "name"];
}

/// The counters of one limit.
#[derive(Clone, Debug, Default)]
pub(super) struct TrialCounters(Arc<LazyCells<COUNTERS>>);

impl TrialCounters {
    /// The counters of `limit`: the `known` ones if there are any.
    pub(super) fn new(limit: &Limit, known: Option<&Self>) -> Option<Self> {
        limit
            .trial
            .as_ref()
            .map(|_| known.cloned().unwrap_or_default())
    }

    /// Adds the counts, as for a limit. Requests that no store has counted are `not_counted`.
    pub(super) fn gather(&self, samples: &mut LabelledSamples<'_>) {
        let counts = self.0.sums();
        for (outcome, label) in [
            ("ok", Label::Ok),
            ("over_limit", Label::OverLimit),
            ("not_counted", Label::OutageAllowed),
        ] {
            let count = counts[DECISIONS + label as usize];
            samples.count(&TRIAL_DECISIONS, Some(outcome), count);
        }
        samples.count(&TRIAL_HITS, None, counts[TOTAL_HITS]);
        let over = counts[OVER_LIMIT];
        samples.count(&TRIAL_OVER_LIMIT_HITS, None, over);
    }
}

impl Tallies {
    /// Counts the store's answers to the trials of a request.
    pub(super) fn observe_trials(&self, core: Core, plan: &Plan, decisions: &Decisions) {
        let near_limit_ratio = self.metrics.options.near_limit_ratio;
        for (index, _, limit) in plan.trials() {
            let features = self.features(limit.id);
            if let Some(TrialCounters(cells)) = features.and_then(|all| all.trial.as_ref()) {
                let rows = cells.rows(self.metrics.cores);
                let (check, decision) = (&plan.checks[index], &decisions[index.0]);
                for (counter, count) in counts(check, check.hits, decision, false, near_limit_ratio)
                {
                    rows.add(core, counter, count);
                }
            }
        }
    }
}
