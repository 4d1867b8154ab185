//! The crossed thresholds of limits with `notify`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::rules::limit::{Limit, LimitId};
use crate::observe::metrics::exposition::LabelledSamples;
use crate::observe::metrics::families::families;
use crate::observe::metrics::tallies::Tallies;

families! { ALL:
    /// Thresholds of limits with notify that were crossed, by threshold in per cent: once for each
    /// subject.
    CROSSED = Counter "weir_budget_thresholds_total" ["domain", "limit", "name", "threshold"];
}

/// Crossings of each threshold of one limit, by its per cents. Cores share them, because crossings
/// are rare.
#[derive(Clone, Debug)]
pub(super) struct CrossingCounters(Arc<[AtomicU64; 101]>);

impl CrossingCounters {
    /// The counters of `limit`: the `known` ones if there are any.
    pub(super) fn new(limit: &Limit, known: Option<&Self>) -> Option<Self> {
        let new = || Self(Arc::new([const { AtomicU64::new(0) }; 101]));
        let has_one = percents(limit).next().is_some();
        has_one.then(|| known.cloned().unwrap_or_else(new))
    }

    pub(super) fn gather(&self, limit: &Limit, samples: &mut LabelledSamples<'_>) {
        for percent in percents(limit).collect::<BTreeSet<_>>() {
            let count = self.0[usize::from(percent)].load(Ordering::Relaxed);
            let mut samples = samples.with("threshold", &percent.to_string());
            samples.count(&CROSSED, None, count);
        }
    }
}

/// The thresholds of a limit's amounts, in per cent.
fn percents(limit: &Limit) -> impl Iterator<Item = u8> {
    limit.amounts().flat_map(|amount| amount.notify.each())
}

impl Tallies {
    /// Counts a crossed threshold of a limit, in per cent.
    pub fn crossed(&self, limit: LimitId, percent: u8) {
        let features = self.features(limit);
        if let Some(CrossingCounters(counts)) = features.and_then(|all| all.crossings.as_ref())
            && let Some(count) = counts.get(usize::from(percent))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::rules::compile::rules_of;
    use crate::observe::metrics::Metrics;

    #[test]
    fn crossings_of_a_limit_survive_a_reload_of_other_thresholds() {
        let metrics = Metrics::new(1, 0.8);
        let tallies = |notify: &str| {
            metrics.tallies(&rules_of(&format!(
                "domain: d\ndescriptors:\n- {{ key: a, rate_limit: {{ unit: day, \
                 requests_per_unit: 5, name: n, notify: {notify} }} }}\n- {{ key: b, \
                 rate_limit: {{ unit: day, requests_per_unit: 5 }} }}\n"
            )))
        };
        let series = || {
            let page = metrics.encode();
            let start = "weir_budget_thresholds_total{domain=\"d\",limit=\"a\",name=\"n\",";
            let of_family = page.lines().filter_map(|line| line.strip_prefix(start));
            of_family.map(ToOwned::to_owned).collect::<Vec<_>>()
        };
        let first = tallies("[50%, 100%]");
        first.crossed(LimitId::new(0, 0), 50);
        // A limit without thresholds, and invalid ones.
        first.crossed(LimitId::new(0, 1), 50);
        for percent in [0, 101] {
            first.crossed(LimitId::new(0, 0), percent);
        }
        assert_eq!(series(), ["threshold=\"100\"} 0", "threshold=\"50\"} 1"]);
        tallies("[80%]").crossed(LimitId::new(0, 0), 80);
        assert_eq!(series(), ["threshold=\"80\"} 1"]);
        tallies("[50%]");
        assert_eq!(series(), ["threshold=\"50\"} 1"]);
    }
}
