//! The series of limits: the counters of each, which pass from the previous rules to the next ones,
//! and the samples that scrapes get of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::features::FeatureCounters;
use crate::core::fingerprint::Fingerprint;
use crate::core::time::Micros;
use crate::limits::rules::Domain;
use crate::limits::rules::limit::{Level, Limit};
use crate::observe::metrics::counts::{
    COUNTERS, Counts, DECISIONS, Label, LazyCells, NEGATIVE_HITS, OUTCOMES,
};
use crate::observe::metrics::dynamic::{Labels, LimitReading, Part};
use crate::observe::metrics::exposition::{Exposition, LabelledSamples, labels};
use crate::observe::metrics::families;

/// The counters of a limit's own checks.
#[derive(Debug, Default)]
pub(super) struct OwnCells {
    pub(super) counts: LazyCells<COUNTERS>,
    /// Checks of 0 hits, for which `counts` has no room in its cache lines.
    pub(super) peeks: LazyCells<1>,
}

/// The series of all limits of a domain, by [`LimitId::limit`].
pub(super) type SeriesOfDomain = Arc<[Counters]>;

/// The counters of one limit.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) own: Arc<OwnCells>,
    /// A later limit has the same series, and scrapes show that one.
    is_hidden: bool,
    /// Few limits have any.
    pub(super) features: Option<Box<FeatureCounters>>,
}

/// Identity of a limit's series. Limits with equal labels and different names have one series in
/// the metrics of envoyproxy/ratelimit, and one each in Weir's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SeriesId<'l> {
    pub(super) labels: Labels,
    /// The label `name` of Weir's own metrics, which a limit without a name does not have.
    name: Option<&'l str>,
    /// The label `plan`, which a limit without a plan does not have.
    plan: Option<&'l str>,
}

impl<'l> SeriesId<'l> {
    fn of(limit: &'l Limit) -> Self {
        let levels: Vec<String> = limit.levels.iter().map(Level::text).collect();
        Self {
            labels: Labels::new(limit.domain.to_string(), &levels),
            name: limit.name.as_deref(),
            plan: limit.plan.as_deref(),
        }
    }
}

/// The series of one limit, as scrapes show it. Only a scrape has its texts.
#[derive(Debug)]
pub(super) struct LimitSeries<'l> {
    pub(super) limit: &'l Limit,
    pub(super) id: SeriesId<'l>,
    pub(super) own: &'l OwnCells,
    features: Option<&'l FeatureCounters>,
}

/// The series of the current rules, by the names of their domains.
///
/// A reload removes the series of limits that it removes: the configuration bounds their number. A
/// limit that comes back starts at zero, which Prometheus takes as a reset of the counter.
pub(in crate::observe::metrics) type Register = HashMap<Arc<str>, Arc<DomainSeries>>;

/// The series of a domain. A domain that the next rules share keeps them unchanged: of 100,000
/// limits, a reload touches only the changed ones.
#[derive(Debug)]
pub(in crate::observe::metrics) struct DomainSeries {
    pub(super) domain: Arc<Domain>,
    pub(super) by_limit: SeriesOfDomain,
}

impl DomainSeries {
    /// The series of a domain. A limit with the labels and the name of a limit in `known` takes
    /// over its counters.
    pub(super) fn new(domain: &Arc<Domain>, known: Option<&Self>) -> Self {
        // Texts of all limits would take more memory than their counters.
        let key = |limit: &Limit| Fingerprint::of_value(&SeriesId::of(limit));
        let known = known.into_iter().flat_map(|known| {
            let limits = known.domain.limits.iter();
            limits.map(key).zip(&*known.by_limit)
        });
        let before: HashMap<Fingerprint, &Counters> = known.collect();
        let mut own: HashMap<Fingerprint, usize> = HashMap::new();
        let mut by_limit: Vec<Counters> = Vec::with_capacity(domain.limits.len());
        for (index, limit) in domain.limits.iter().enumerate() {
            let key = key(limit);
            let same = own.insert(key, index);
            let known = same.map_or_else(|| before.get(&key).copied(), |same| by_limit.get(same));
            let features = known.and_then(|known| known.features.as_deref());
            let counters = Counters {
                own: known.map_or_else(Arc::default, |known| Arc::clone(&known.own)),
                is_hidden: false,
                features: FeatureCounters::new(limit, features),
            };
            if let Some(same) = same {
                by_limit[same].is_hidden = true;
            }
            by_limit.push(counters);
        }
        Self {
            domain: Arc::clone(domain),
            by_limit: by_limit.into(),
        }
    }

    /// The series of all limits, each once.
    pub(super) fn series(&self) -> impl Iterator<Item = LimitSeries<'_>> {
        let all = self.domain.limits.iter().zip(&*self.by_limit);
        let shown = all.filter(|(_, counters)| !counters.is_hidden);
        shown.map(|(limit, counters)| LimitSeries {
            limit,
            id: SeriesId::of(limit),
            own: &counters.own,
            features: counters.features.as_deref(),
        })
    }
}

impl LimitSeries<'_> {
    pub(super) fn reading<'a>(&'a self, counts: &'a Counts) -> LimitReading<'a> {
        let part = Part::Limit(self.id.name, self.id.plan);
        let limit = self.limit;
        // The labels of such series depend on the request.
        let is_dynamic =
            limit.detailed_metric || limit.levels.iter().any(|level| level.value_to_metric);
        let is_expected = !is_dynamic && !limit.is_unlimited();
        LimitReading::new(&self.id.labels, part, counts, is_expected)
    }

    pub(super) fn gather(&self, counts: &Counts, now: Micros, exposition: &mut Exposition) {
        let (id, is_unlimited) = (&self.id, self.limit.is_unlimited());
        let path = self.limit.path_in_domain();
        let named = id.name.map(|name| ("name", name));
        let of_plan = id.plan.map(|plan| ("plan", plan));
        let own = [("domain", &*id.labels.domain), ("limit", &path)].into_iter();
        let mut samples = exposition.of(labels(own.chain(named).chain(of_plan)));
        let expected = |outcome| {
            outcome < Label::Blocked as usize
                && is_unlimited == (outcome == Label::Unlimited as usize)
        };
        add_decisions(&mut samples, counts, expected);
        add_negative_hits(&mut samples, counts, !is_unlimited);
        let [peeks] = self.own.peeks.sums();
        if peeks > 0 {
            samples.count(&families::PEEKS, None, peeks);
        }
        if let Some(features) = self.features {
            features.gather(self.limit, now, &mut samples);
        }
    }
}

/// Adds the outcomes. A series that is not `expected` is shown once it has counted something.
pub(super) fn add_decisions(
    samples: &mut LabelledSamples<'_>,
    counts: &Counts,
    expected: impl Fn(usize) -> bool,
) {
    for (index, (outcome, &count)) in OUTCOMES.into_iter().zip(&counts[DECISIONS..]).enumerate() {
        if expected(index) || count > 0 {
            samples.count(&families::DECISIONS, Some(outcome), count);
        }
    }
}

/// Adds the refunded hits; `expected` as in [`add_decisions`].
pub(super) fn add_negative_hits(
    samples: &mut LabelledSamples<'_>,
    counts: &Counts,
    expected: bool,
) {
    let count = counts[NEGATIVE_HITS];
    if expected || count > 0 {
        samples.count(&families::NEGATIVE_HITS, None, count);
    }
}
