//! The counters of trials. A limit without `trial` has none.

use std::rc::Rc;

use super::cells::{Cells, Core};
use super::exposition::Exposition;
use super::families;
use super::partition::partition;
use crate::core::verdict::{Answers, StoreError, Verdict};
use crate::limits::plan::{Check, Trials};
use crate::limits::rules::limit::LimitId;

/// The values of the label `outcome`, in the order of their counters, which come first.
const OUTCOMES: [&str; 3] = ["ok", "over_limit", "not_counted"];

const OK: usize = 0;
const OVER_LIMIT: usize = 1;
const NOT_COUNTED: usize = 2;
const HITS: usize = OUTCOMES.len();
const OVER_LIMIT_HITS: usize = HITS + 1;
const COUNTERS: usize = OVER_LIMIT_HITS + 1;

/// The counters of one trial.
pub(super) type TrialSeries = Cells<COUNTERS>;

/// Counts the store's answers to the trials of a request.
pub(super) fn observe<'s>(
    series: impl Fn(LimitId) -> Option<&'s TrialSeries>,
    core: Core,
    trials: &Trials,
    answers: &Answers,
    near_limit_ratio: f32,
) {
    for ((_, check, of), answer) in trials.iter().zip(&answers.checks) {
        if let Some(series) = series(of.limit) {
            for (counter, count) in counts(check, answer, near_limit_ratio) {
                series.add(core, counter, count);
            }
        }
    }
}

/// What one check adds.
fn counts(
    check: &Check,
    answer: &Result<Verdict, StoreError>,
    near_limit_ratio: f32,
) -> [(usize, u64); 3] {
    let asked = u64::try_from(check.hits).unwrap_or_default();
    let (outcome, over) = match answer {
        Err(_) => (NOT_COUNTED, 0),
        Ok(verdict) => {
            let over = if asked > 0 {
                partition(&check.algorithm, near_limit_ratio, asked, verdict).over
            } else {
                0
            };
            (if verdict.allowed { OK } else { OVER_LIMIT }, over)
        }
    };
    [(outcome, 1), (HITS, asked), (OVER_LIMIT_HITS, over)]
}

/// Adds the counters of a trial.
pub(super) fn gather(series: &TrialSeries, of_limit: &Rc<str>, exposition: &mut Exposition) {
    let counts = series.sums();
    for (outcome, &count) in OUTCOMES.into_iter().zip(&counts) {
        exposition.count(&families::TRIAL_DECISIONS, of_limit, Some(outcome), count);
    }
    exposition.count(&families::TRIAL_HITS, of_limit, None, counts[HITS]);
    exposition.count(
        &families::TRIAL_OVER_LIMIT_HITS,
        of_limit,
        None,
        counts[OVER_LIMIT_HITS],
    );
}
