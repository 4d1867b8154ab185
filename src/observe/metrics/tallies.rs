//! Tallies: the counters of each limit.
//!
//! The request path finds a limit's counters by its id and reads no label. Counters belong to the
//! labels of the limit (its domain, and its levels as written), not to one set of rules, because
//! they have to survive a reload.

mod features;
mod series;

use std::sync::Arc;

use super::counts::{
    COUNTERS, Cells, Core, Counts, DECISIONS, HITS, HitPartition, Label, NEAR_LIMIT, NEGATIVE_HITS,
    OUTCOMES, OVER_LIMIT, OVER_LIMIT_WITH_LOCAL_CACHE, SHADOW_MODE, TOTAL_HITS, WITHIN_LIMIT,
    partition,
};
use super::dynamic::{LimitReading, Part};
use super::exposition::{Exposition, labels};
use super::{Count, Metrics, Sample, families};
use crate::core::answer::Decision;
use crate::core::lock;
use crate::limits::plan::{Check, DecidedBy, Outcomes, Plan};
use crate::limits::rules::Rules;
use crate::limits::rules::limit::LimitId;
use crate::net::clock;
pub(super) use features::FAMILIES;
use features::FeatureCounters;
use series::{Counters, LimitSeries, SeriesOfDomain, add_decisions, add_negative_hits};
pub(super) use series::{DomainSeries, Register};

/// The path of all limits that requests bring along.
pub const REQUEST_LIMIT: &str = "(request)";

/// The counters of one set of rules.
#[derive(Clone, Debug)]
pub struct Tallies {
    /// Indexed by both indices of a [`LimitId`].
    series: Arc<[SeriesOfDomain]>,
    free: Arc<FreeByDomain>,
    metrics: Arc<Metrics>,
}

/// For each domain of the rules, the descriptors that no limit applied to. A domain that is in the
/// next rules too keeps its counter.
pub(super) type FreeByDomain = hashbrown::HashMap<Box<[u8]>, Arc<Cells<1>>>;

impl Metrics {
    /// The counters for `rules`. A limit with the labels and the name of a limit of the previous
    /// rules takes over its counters.
    pub fn tallies(self: &Arc<Self>, rules: &Rules) -> Tallies {
        self.dynamic
            .retain_domains(|domain| rules.commit(domain.as_bytes()).is_some());
        let free = self.free_by_domain(rules.domains());
        let mut register = lock(&self.series);
        let mut known = std::mem::take(&mut *register);
        let mut series = Vec::with_capacity(rules.by_number.len());
        for domain in &rules.by_number {
            let next = match known.remove(&*domain.name) {
                Some(same) if Arc::ptr_eq(&same.domain, domain) => same,
                before => Arc::new(DomainSeries::new(domain, before.as_deref())),
            };
            series.push(Arc::clone(&next.by_limit));
            register.insert(domain.name.clone(), next);
        }
        Tallies {
            series: series.into(),
            free,
            metrics: Arc::clone(self),
        }
    }

    fn free_by_domain<'d>(&self, domains: impl Iterator<Item = &'d [u8]>) -> Arc<FreeByDomain> {
        let mut register = lock(&self.free);
        let new = || Arc::new(Cells::new(self.cores));
        let cells = |domain: &[u8]| register.get(domain).cloned().unwrap_or_else(new);
        let next = domains.map(|domain| (domain.into(), cells(domain)));
        let next = Arc::new(next.collect());
        *register = Arc::clone(&next);
        next
    }

    /// Adds the descriptors that no limit applied to.
    pub(super) fn gather_free(&self, samples: &mut Vec<Sample>) {
        let by_domain = Arc::clone(&lock(&self.free));
        for (domain, cells) in &*by_domain {
            let (name, count) = (String::from_utf8_lossy(domain), cells.sums()[0]);
            samples.push(families::FREE_DESCRIPTORS.count(&[&name], count));
        }
    }

    /// Adds the counters of all limits; `add_hits` adds the counters that envoyproxy/ratelimit has
    /// too.
    pub fn gather_limits(
        &self,
        exposition: &mut Exposition,
        add_hits: impl Fn(&mut Exposition, &LimitReading<'_>),
    ) {
        let (domains, now) = (self.series_by_domain(), clock::now());
        let is_shown = |limit: &LimitSeries<'_>| {
            !self.options.omits_unused_limits || limit.own.counts.sums() != Counts::default()
        };
        let all = domains.iter().flat_map(|domain| domain.series());
        let mut all: Vec<LimitSeries<'_>> = all.filter(is_shown).collect();
        all.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        for limit in all {
            let counts = limit.own.counts.sums();
            add_hits(exposition, &limit.reading(&counts));
            limit.gather(&counts, now, exposition);
        }
        for (of_hits, counts) in self.dynamic.series() {
            let reading = LimitReading::new(&of_hits, Part::Requests, &counts, true);
            add_hits(exposition, &reading);
            let of_limit = labels([("domain", &*of_hits.domain), ("limit", REQUEST_LIMIT)]);
            let mut samples = exposition.of(of_limit);
            add_decisions(&mut samples, &counts, |_| false);
            add_negative_hits(&mut samples, &counts, false);
        }
    }

    /// Cloned, because neither a reload nor a request may wait for a reader.
    fn series_by_domain(&self) -> Vec<Arc<DomainSeries>> {
        lock(&self.series).values().cloned().collect()
    }

    /// Calls `visit` with the decisions of all limits, in no particular order: domain, path in the
    /// domain, number of peeks among them, and the count of each outcome.
    pub fn read_decisions(
        &self,
        mut visit: impl FnMut(&str, &str, u64, &mut dyn Iterator<Item = (&'static str, u64)>),
    ) {
        let outcomes =
            |counts: Counts| OUTCOMES.into_iter().zip(counts.into_iter().skip(DECISIONS));
        let domains = self.series_by_domain();
        for series in domains.iter().flat_map(|domain| domain.series()) {
            let (limit, own) = (series.limit, series.own);
            let (path, [peeks]) = (limit.path_in_domain(), own.peeks.sums());
            visit(
                &limit.domain,
                &path,
                peeks,
                &mut outcomes(own.counts.sums()),
            );
        }
        for (labels, counts) in self.dynamic.series() {
            visit(&labels.domain, REQUEST_LIMIT, 0, &mut outcomes(counts));
        }
    }

    /// The descriptors that no limit applied to.
    pub fn free_descriptors(&self) -> u64 {
        lock(&self.free).values().map(|cells| cells.sums()[0]).sum()
    }

    /// Calls `visit` with the counters of all limits that have counted hits, in no particular
    /// order.
    pub fn read_limits(&self, mut visit: impl FnMut(&LimitReading<'_>)) {
        let domains = self.series_by_domain();
        for series in domains.iter().flat_map(|domain| domain.series()) {
            let counts = series.own.counts.sums();
            if counts[..HITS.len()].iter().any(|&count| count > 0) {
                visit(&series.reading(&counts));
            }
        }
        for (labels, counts) in self.dynamic.series() {
            visit(&LimitReading::new(&labels, Part::Requests, &counts, true));
        }
    }
}

impl Tallies {
    /// Counts the decisions on one request for `domain`. The plan of `outcomes` must be made with
    /// the rules that these tallies belong to.
    pub fn observe(&self, core: Core, domain: &[u8], plan: &Plan, outcomes: &Outcomes<'_>) {
        if plan.unknown_domain {
            self.metrics.domain_not_found(domain);
        }
        let process = &self.metrics.process;
        let mut free = 0;
        for outcome in &outcomes.each {
            let id = outcome.limit.map(|limit| limit.limit.id);
            match outcome.by {
                DecidedBy::NoLimit => free += 1,
                DecidedBy::Unlimited => self.decided(core, id, Label::Unlimited),
                DecidedBy::Exempt => {
                    process.count(core, Count::Exempt);
                    self.decided(core, id, Label::Exempt);
                }
                DecidedBy::Block(_) => {
                    process.count(core, Count::Blocked);
                    self.decided(core, id, Label::Blocked);
                }
                DecidedBy::Check {
                    planned,
                    check,
                    decision,
                    effect,
                } => {
                    if planned.is_default_cost {
                        process.count(core, Count::DefaultCost);
                    }
                    if planned.is_raised {
                        process.count(core, Count::Raised);
                    }
                    process.decided(core, decision);
                    let ratio = self.metrics.options.near_limit_ratio;
                    if check.hits == 0 && !plan.checks.are_peeks() {
                        self.peeked(core, id);
                    }
                    let hits = effect.used_by(check.hits, decision.allows());
                    let counts = counts(check, hits, decision, outcomes.is_undone, ratio);
                    self.checked(core, domain, id, planned.metric.as_deref(), &counts);
                }
            }
        }
        if free > 0
            && let Some(cells) = self.free.get(domain)
        {
            cells.add(core, 0, free);
        }
    }

    /// Adds the counts of a check. If a request names labels of its own, its hits are in the series
    /// of these labels; everything else is in the series of the limit, if there is one.
    fn checked(
        &self,
        core: Core,
        domain: &[u8],
        limit: Option<LimitId>,
        levels: Option<&[String]>,
        counts: &[(usize, u64); 8],
    ) {
        let series = limit.and_then(|id| self.of_limit(id));
        let is_named = |counter| series.is_none() || levels.is_some() && counter < HITS.len();
        let counts = counts.iter().filter(|(_, count)| *count > 0);
        if levels.is_some() || series.is_none() {
            let mut named = [0; COUNTERS];
            for &(counter, count) in counts.clone().filter(|(counter, _)| is_named(*counter)) {
                named[counter] = count;
            }
            let levels = levels.unwrap_or_default();
            self.metrics.dynamic.add(domain, levels, &named);
        }
        if let Some(series) = series {
            let rows = series.own.counts.rows(self.metrics.cores);
            for &(counter, count) in counts.filter(|(counter, _)| !is_named(*counter)) {
                rows.add(core, counter, count);
            }
        }
    }

    fn of_limit(&self, id: LimitId) -> Option<&Counters> {
        self.series.get(id.domain as usize)?.get(id.limit as usize)
    }

    fn features(&self, id: LimitId) -> Option<&FeatureCounters> {
        self.of_limit(id)?.features.as_deref()
    }

    #[cold]
    fn peeked(&self, core: Core, limit: Option<LimitId>) {
        if let Some(series) = limit.and_then(|id| self.of_limit(id)) {
            series.own.peeks.rows(self.metrics.cores).add(core, 0, 1);
        }
    }

    fn decided(&self, core: Core, limit: Option<LimitId>, label: Label) {
        if let Some(series) = limit.and_then(|id| self.of_limit(id)) {
            let rows = series.own.counts.rows(self.metrics.cores);
            rows.add(core, DECISIONS + label as usize, 1);
        }
    }
}

/// The counters that a check adds to, and how much. `is_undone`: its request was refused as a
/// whole, and nothing was refunded.
fn counts(
    check: &Check,
    hits: i64,
    decision: &Decision,
    is_undone: bool,
    near_limit_ratio: f32,
) -> [(usize, u64); 8] {
    let modes = check.modes;
    let label = match decision {
        Decision::Fails(_) => Label::Error,
        Decision::PolicyAllows(_) => Label::OutageAllowed,
        Decision::PolicyRefuses(_) => Label::OutageDenied,
        counted if counted.allows() => Label::Ok,
        _ if modes.shadow => Label::ShadowOverLimit,
        _ => Label::OverLimit,
    };
    let asked = u64::try_from(hits).unwrap_or(0);
    let parts = match asked {
        0 => HitPartition::default(),
        _ => parts(check, decision, asked, near_limit_ratio),
    };
    let is_cached = matches!(decision, Decision::DenialCache(_));
    let over_cached = u64::from(is_cached) * parts.over;
    let given_back = if is_undone { 0 } else { hits.min(0) };
    [
        (DECISIONS + label as usize, 1),
        (NEGATIVE_HITS, given_back.unsigned_abs()),
        (TOTAL_HITS, asked),
        (WITHIN_LIMIT, parts.within),
        (NEAR_LIMIT, parts.near),
        (OVER_LIMIT, parts.over),
        (SHADOW_MODE, u64::from(modes.shadow) * parts.over),
        (OVER_LIMIT_WITH_LOCAL_CACHE, over_cached),
    ]
}

/// Hits within the limit, near it and over it; all 0 if neither a store nor the cache has counted
/// them.
fn parts(check: &Check, decision: &Decision, asked: u64, near_limit_ratio: f32) -> HitPartition {
    match decision {
        Decision::Store(verdict) | Decision::Lease(verdict) => {
            partition(&check.algorithm, near_limit_ratio, asked, verdict)
        }
        // The use of one replica's share does not show how near the limit is.
        Decision::Local(verdict, ..) if verdict.allowed => HitPartition {
            within: asked,
            ..HitPartition::default()
        },
        Decision::DenialCache(_) | Decision::Local(..) => HitPartition {
            over: asked,
            ..HitPartition::default()
        },
        Decision::PolicyAllows(_) | Decision::PolicyRefuses(_) | Decision::Fails(_) => {
            HitPartition::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::proto::xds::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
    use crate::limits::rules::domains::{Domains, XdsOptions};

    fn resource(domain: &str, requests_per_unit: u32) -> RateLimitConfig {
        let rate_limit = Some(RateLimitPolicy {
            unit: 1,
            requests_per_unit,
            ..RateLimitPolicy::default()
        });
        let descriptors = vec![RateLimitDescriptor {
            key: "user".into(),
            rate_limit,
            ..RateLimitDescriptor::default()
        }];
        RateLimitConfig {
            name: domain.into(),
            domain: domain.into(),
            descriptors,
        }
    }

    #[test]
    fn a_domain_that_did_not_change_keeps_its_series_as_they_are() {
        let (metrics, mut domains) = (Metrics::new(1, 0.8), Domains::default());
        let mut tallies = |resources| {
            let rules = domains
                .apply(resources, &XdsOptions::default())
                .rules
                .expect("they changed");
            let tallies = metrics.tallies(&rules);
            (rules, tallies)
        };
        let (_, first) = tallies(vec![resource("a", 1), resource("b", 1), resource("c", 1)]);
        let (rules, second) = tallies(vec![resource("b", 1), resource("c", 2), resource("d", 1)]);
        let number = |domain: &str| {
            rules
                .by_number
                .iter()
                .position(|known| *known.name == *domain)
                .expect("it is there")
        };
        let (same, other) = (number("b"), number("c"));
        assert!(
            Arc::ptr_eq(&first.series[same], &second.series[same]),
            "nothing was made for b"
        );
        assert!(!Arc::ptr_eq(&first.series[other], &second.series[other]));
        assert!(
            Arc::ptr_eq(&first.series[other][0].own, &second.series[other][0].own),
            "the limit of c goes on with its counters"
        );
        // d has the number that a had, and none of its counters.
        assert_eq!(number("d"), 0);
        assert!(!Arc::ptr_eq(
            &first.series[0][0].own,
            &second.series[0][0].own
        ));
        let names: Vec<_> = lock(&metrics.series).keys().cloned().collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }
}
