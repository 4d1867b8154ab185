//! The counters of trials. A limit without `trial` has none.

use std::rc::Rc;

use super::cells::{Cells, Core};
use super::exposition::Exposition;
use super::families;
use super::partition::partition;
use crate::core::verdict::Decision;
use crate::limits::plan::Check;

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

/// Counts a trial: by the store's verdict, if it gave one.
pub(super) fn observe(
    series: &TrialSeries,
    core: Core,
    check: &Check,
    decision: &Decision,
    near_limit_ratio: f32,
) {
    let asked = u64::try_from(check.hits).unwrap_or_default();
    let (outcome, over) = match decision.verdict() {
        None => (NOT_COUNTED, 0),
        Some(verdict) => {
            let over = if asked > 0 {
                partition(&check.algorithm, near_limit_ratio, asked, verdict).over
            } else {
                0
            };
            (if verdict.allowed { OK } else { OVER_LIMIT }, over)
        }
    };
    for (counter, count) in [(outcome, 1), (HITS, asked), (OVER_LIMIT_HITS, over)] {
        series.add(core, counter, count);
    }
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
