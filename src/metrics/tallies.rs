//! Tallies: what each limit has decided.
//!
//! A limit's counters are found by its id, without a look at any label. They belong to the limit's labels (its domain and its levels as they
//! were written), not to one set of rules: a reload hands them on.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::cells::{Cells, Core};
use super::dynamic::Labels;
use super::families::{Families, Named, labels};
use super::partition::{Parts, near_threshold, partition};
use super::{Metrics, process};
use crate::plan::{Check, Modes, Plan, Slot};
use crate::rules::Rules;
use crate::rules::limit::{Level, Limit, LimitId};
use crate::time::Rate;
use crate::verdict::{Decision, Decisions, StoreError};

const TOTAL_HITS: usize = 0;
const WITHIN_LIMIT: usize = 1;
const NEAR_LIMIT: usize = 2;
const OVER_LIMIT: usize = 3;
const SHADOW_MODE: usize = 4;
const OVER_LIMIT_WITH_LOCAL_CACHE: usize = 5;
const NEGATIVE_HITS: usize = 6;
/// The first of the outcomes.
const DECISIONS: usize = 7;

/// The families of envoyproxy/ratelimit, by the place of their counter.
const HITS: [(&str, &str); 6] = [
    ("ratelimit_service_rate_limit_total_hits", "Hits that were asked for, looks and give-backs apart."),
    ("ratelimit_service_rate_limit_within_limit", "Hits of checks that fit."),
    ("ratelimit_service_rate_limit_near_limit", "Hits that came between the near-limit threshold and the limit."),
    ("ratelimit_service_rate_limit_over_limit", "Hits beyond the limit, those of limits in shadow mode included."),
    ("ratelimit_service_rate_limit_shadow_mode", "Hits beyond a limit in shadow mode, which were let pass."),
    ("ratelimit_service_rate_limit_over_limit_with_local_cache", "Those of the hits beyond the limit that the denial cache refused."),
];

/// Outcomes in the order of their counters.
const OUTCOMES: [&str; 7] = ["ok", "over_limit", "shadow_over_limit", "unlimited", "error", "outage_allowed", "outage_denied"];

/// The name, in place of a limit's path, of all limits that requests brought along.
const OWN_LIMIT: &str = "(request)";

/// The counters of one series: hits, then outcomes.
const COUNTERS: usize = DECISIONS + OUTCOMES.len();
pub(super) type Counts = [u64; COUNTERS];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    OverLimit,
    ShadowOverLimit,
    Unlimited,
    Error,
    OutageAllowed,
    OutageDenied,
}

type Series = Cells<COUNTERS>;

/// The counters of one set of rules.
#[derive(Clone, Debug)]
pub struct Tallies {
    series: Arc<[Arc<Series>]>,
    metrics: Arc<Metrics>,
}

/// A series that scrapes show.
#[derive(Debug)]
pub(super) struct Shown {
    series: Arc<Series>,
    /// Names the limit in Weir's own metrics.
    path: String,
    unlimited: bool,
    /// The hits are counted elsewhere, under names that depend on the request.
    dynamic: bool,
}

/// The series of the current rules.
///
/// Those of a limit that is gone are gone too: the configuration bounds how many there are. A limit that comes back starts at zero, which
/// Prometheus takes for what it is, a counter that was reset.
pub(super) type Register = HashMap<Labels, Shown>;

impl Metrics {
    /// The counters for `rules`. Limits whose labels are those of a limit of the last call's rules go on with its counters.
    #[must_use]
    pub fn tallies(self: &Arc<Self>, rules: &Rules) -> Tallies {
        self.dynamic.retain_domains(|domain| rules.commit(domain.as_bytes()).is_some());
        self.tallies_of(rules.limits())
    }

    pub(super) fn tallies_of(self: &Arc<Self>, limits: &[Limit]) -> Tallies {
        let mut register = self.series();
        let mut next = Register::with_capacity(limits.len());
        let mut series = Vec::with_capacity(limits.len());
        for limit in limits {
            let levels: Vec<String> = limit.levels.iter().map(Level::text).collect();
            let labels = Labels::new(limit.domain.to_string(), &levels);
            let known = next.get(&labels).or_else(|| register.get(&labels)).map(|shown| Arc::clone(&shown.series));
            let own = known.unwrap_or_else(|| Arc::new(Series::new(self.cores)));
            series.push(Arc::clone(&own));
            let dynamic = limit.detailed_metric || limit.levels.iter().any(|level| level.value_to_metric);
            next.insert(labels, Shown { series: own, path: limit.path(), unlimited: limit.amount.is_none(), dynamic });
        }
        *register = next;
        Tallies { series: series.into(), metrics: Arc::clone(self) }
    }

    /// Adds what limits have decided.
    pub(super) fn gather_limits(&self, families: &mut Families) {
        {
            let register = self.series();
            let mut all: Vec<(&Labels, &Shown)> = register.iter().collect();
            all.sort_unstable_by_key(|(labels, _)| *labels);
            for (labels, shown) in all {
                shown.gather(labels, families);
            }
        }
        for (of_hits, counts) in self.dynamic.series() {
            add_hits(families, &of_hits, &counts, true);
            let of_limit = labels([("domain", &*of_hits.domain), ("limit", OWN_LIMIT)]);
            for place in 0..OUTCOMES.len() {
                add_decisions(families, &of_limit, place, &counts, false);
            }
            add_negative(families, &of_limit, &counts, false);
        }
    }
}

impl Shown {
    fn gather(&self, of_hits: &Labels, families: &mut Families) {
        let counts = self.series.sums();
        add_hits(families, of_hits, &counts, !self.dynamic && !self.unlimited);
        let of_limit = labels([("domain", &*of_hits.domain), ("limit", &self.path)]);
        for place in 0..OUTCOMES.len() {
            add_decisions(families, &of_limit, place, &counts, self.unlimited == (place == Outcome::Unlimited as usize));
        }
        add_negative(families, &of_limit, &counts, !self.unlimited);
    }
}

impl Tallies {
    /// Counts the decisions on one request for `domain`. `plan` must come from the rules that these tallies were made for.
    pub fn observe(&self, core: Core, domain: &[u8], plan: &Plan, decisions: &Decisions) {
        if plan.unknown_domain {
            return self.metrics.domain_not_found(domain);
        }
        for slot in &plan.slots {
            match slot {
                Slot::Free => self.metrics.process.count(core, process::Count::Free),
                Slot::Unlimited(id) => self.decided(core, *id, Outcome::Unlimited),
                Slot::Checked { check, limit, rate, metric } => {
                    let checked = Checked { check: &plan.checks[*check], rate, decision: &decisions[check.0] };
                    self.checked(core, domain, *limit, metric.as_deref(), &checked);
                }
            }
        }
    }

    fn checked(&self, core: Core, domain: &[u8], limit: Option<LimitId>, levels: Option<&[String]>, checked: &Checked<'_>) {
        for count in process_counts(checked.decision).into_iter().flatten() {
            self.metrics.process.count(core, count);
        }
        let mut counts = checked.counts(self.metrics.near_limit_ratio);
        let Some(series) = limit.and_then(|id| self.series.get(id.0 as usize)) else {
            return self.metrics.dynamic.add(domain, levels.unwrap_or_default(), &counts);
        };
        if let Some(levels) = levels {
            let mut named = Counts::default();
            named[..HITS.len()].swap_with_slice(&mut counts[..HITS.len()]);
            self.metrics.dynamic.add(domain, levels, &named);
        }
        for (place, &count) in counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
            series.add(core, place, count);
        }
    }

    fn decided(&self, core: Core, id: LimitId, outcome: Outcome) {
        if let Some(series) = self.series.get(id.0 as usize) {
            series.add(core, DECISIONS + outcome as usize, 1);
        }
    }
}

/// What is counted of a check apart from its limit: what the store lacked, and who answered in its place.
fn process_counts(decision: &Decision) -> [Option<process::Count>; 2] {
    let error = decision.store_error().map(|error| match error {
        StoreError::NotExecuted(_) => process::Count::NotExecuted,
        StoreError::Unknown(_) => process::Count::OutcomeUnknown,
        StoreError::Data(_) => process::Count::StoredData,
    });
    let answered_by = match decision {
        Decision::Store(_) => None,
        Decision::DenialCache(_) => Some(process::Count::DenialCache),
        Decision::Local(..) => Some(process::Count::OutageLocal),
        Decision::PolicyAllows(_) => Some(process::Count::OutageAllow),
        Decision::PolicyRefuses(_) => Some(process::Count::OutageDeny),
        Decision::Fails(_) => Some(process::Count::OutageError),
    };
    [error, answered_by]
}

/// A check with what came of it.
struct Checked<'a> {
    check: &'a Check,
    rate: &'a Rate,
    decision: &'a Decision,
}

impl Checked<'_> {
    fn counts(&self, near_limit_ratio: f32) -> Counts {
        let Check { hits, modes: Modes { shadow, .. }, .. } = *self.check;
        let mut counts = Counts::default();
        let outcome = match self.decision {
            Decision::Fails(_) => Outcome::Error,
            Decision::PolicyAllows(_) => Outcome::OutageAllowed,
            Decision::PolicyRefuses(_) => Outcome::OutageDenied,
            counted if counted.allows() => Outcome::Ok,
            _ if shadow => Outcome::ShadowOverLimit,
            _ => Outcome::OverLimit,
        };
        counts[DECISIONS + outcome as usize] = 1;
        if hits < 0 {
            counts[NEGATIVE_HITS] = hits.unsigned_abs();
        }
        let Ok(asked @ 1..) = u64::try_from(hits) else { return counts };
        counts[TOTAL_HITS] = asked;
        if let Some(parts) = self.parts(asked, near_limit_ratio) {
            counts[WITHIN_LIMIT] = parts.within;
            counts[NEAR_LIMIT] = parts.near;
            counts[OVER_LIMIT] = parts.over;
            counts[SHADOW_MODE] = if shadow { parts.over } else { 0 };
            counts[OVER_LIMIT_WITH_LOCAL_CACHE] = if matches!(self.decision, Decision::DenialCache(_)) { parts.over } else { 0 };
        }
        counts
    }

    /// Which of the hits were within the limit, near it and over it; `None` when nobody has counted them.
    fn parts(&self, asked: u64, near_limit_ratio: f32) -> Option<Parts> {
        let limit = self.rate.requests_per_unit;
        match self.decision {
            Decision::Store(verdict) => Some(partition(limit, near_threshold(limit, near_limit_ratio), asked, verdict)),
            Decision::DenialCache(_) => Some(Parts { over: asked, ..Parts::default() }),
            // What is used of a share says nothing about how near the limit is.
            Decision::Local(verdict, _) if verdict.allowed => Some(Parts { within: asked, ..Parts::default() }),
            Decision::Local(..) => Some(Parts { over: asked, ..Parts::default() }),
            Decision::PolicyAllows(_) | Decision::PolicyRefuses(_) | Decision::Fails(_) => None,
        }
    }
}

/// Adds counts to counts.
pub(super) fn add_up(sums: &mut Counts, counts: &Counts) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum = sum.wrapping_add(*count);
    }
}

/// A series that nothing is expected in is shown once there is something.
fn add_hits(families: &mut Families, of_hits: &Labels, counts: &Counts, expected: bool) {
    let shared = labels(of_hits.pairs());
    for ((name, help), &count) in HITS.into_iter().zip(counts) {
        if expected || count > 0 {
            families.count(Named { name, help }, &shared, None, count);
        }
    }
}

fn add_decisions(families: &mut Families, of_limit: &Rc<str>, place: usize, counts: &Counts, expected: bool) {
    let count = counts[DECISIONS + place];
    if expected || count > 0 {
        let named = Named { name: "weir_decisions_total", help: "Descriptors that found a limit, by what came of it." };
        families.count(named, of_limit, Some(("outcome", OUTCOMES[place])), count);
    }
}

fn add_negative(families: &mut Families, of_limit: &Rc<str>, counts: &Counts, expected: bool) {
    let count = counts[NEGATIVE_HITS];
    if expected || count > 0 {
        let named = Named { name: "weir_negative_hits_total", help: "Hits that were given back, as asked." };
        families.count(named, of_limit, None, count);
    }
}
