//! The series of limits: the counters of each, which pass from the previous rules to the next ones,
//! and the samples that scrapes get of them.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::core::algorithm::Algorithm;
use crate::core::algorithm::places::Gauge;
use crate::core::algorithm::reservations::{Outcome, Tally};
use crate::core::fingerprint::Fingerprint;
use crate::core::time::{Micros, Span};
use crate::limits::rules::Domain;
use crate::limits::rules::limit::{Level, Limit};
use crate::observe::metrics::counts::{
    COUNTERS, Cells, Counts, DECISIONS, Label, NEGATIVE_HITS, OUTCOMES, OVER_LIMIT, TOTAL_HITS,
};
use crate::observe::metrics::dynamic::{Labels, LimitReading, Part};
use crate::observe::metrics::exposition::{Exposition, labels};
use crate::observe::metrics::families;

/// The counters of checks. The first check makes their rows: most limits of a large configuration
/// are never used, and a row for each core is the largest part of a limit.
#[derive(Debug, Default)]
pub(super) struct TallyCells(OnceLock<Cells<COUNTERS>>);

impl TallyCells {
    /// The rows, of so many `cores` if there are none yet.
    #[inline]
    pub(super) fn rows(&self, cores: usize) -> &Cells<COUNTERS> {
        self.0.get_or_init(|| Cells::new(cores))
    }

    pub(super) fn sums(&self) -> Counts {
        self.0.get().map_or([0; COUNTERS], Cells::sums)
    }
}

/// The counters of a limit's own checks.
#[derive(Debug, Default)]
pub(super) struct OwnCells {
    pub(super) counts: TallyCells,
    /// Checks of 0 hits, for which `counts` has no room in its cache lines.
    pub(super) peeks: OnceLock<Cells<1>>,
}

impl OwnCells {
    pub(super) fn peeks(&self) -> u64 {
        self.peeks.get().map_or(0, |cells| cells.sums()[0])
    }
}

/// The series of all limits of a domain, by [`LimitId::limit`].
pub(super) type SeriesOfDomain = Arc<[Counters]>;

/// The counters of one limit.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) own: Arc<OwnCells>,
    /// A later limit has the same series, and scrapes show that one.
    is_hidden: bool,
    /// Few limits have others.
    pub(super) others: Option<Box<OtherCounters>>,
}

/// The counters of limits with certain fields.
#[derive(Debug, Default)]
pub(super) struct OtherCounters {
    pub(super) trial: Option<Arc<TallyCells>>,
    /// Of a limit of requests in flight.
    pub(super) holders: Option<HolderGauges>,
    /// Of a limit with `reservations`.
    pub(super) holds: Option<Arc<Tally>>,
    /// Of a limit with `notify`. Cores share them, because crossings are rare.
    pub(super) thresholds: Option<Arc<ThresholdCounts>>,
}

/// Crossings of each threshold, by its per cents.
pub(super) type ThresholdCounts = [AtomicU64; 101];

impl OtherCounters {
    /// The counters of `limit`, which go on counting in the same series; `None` if it has none.
    fn new(limit: &Limit, known: Option<&Counters>) -> Option<Box<Self>> {
        let known = known.and_then(|known| known.others.as_deref());
        let trial = limit.trial.as_ref().map(|_| {
            let known = known.and_then(|known| known.trial.clone());
            known.unwrap_or_default()
        });
        let holders = HolderGauges::new(limit, known.and_then(|known| known.holders.as_ref()));
        let holds = reservations(limit, known.and_then(|known| known.holds.as_ref()));
        let thresholds = thresholds(limit).next().map(|_| {
            let known = known.and_then(|known| known.thresholds.clone());
            known.unwrap_or_else(|| Arc::new([const { AtomicU64::new(0) }; 101]))
        });
        let is_one =
            trial.is_some() || holders.is_some() || holds.is_some() || thresholds.is_some();
        is_one.then(|| {
            Box::new(Self {
                trial,
                holders,
                holds,
                thresholds,
            })
        })
    }
}

/// The thresholds of a limit's amounts, in per cent.
fn thresholds(limit: &Limit) -> impl Iterator<Item = u8> {
    limit.amounts().flat_map(|amount| amount.notify.each())
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
    others: Option<&'l OtherCounters>,
}

/// The gauges of a limit of requests in flight: one of the rules in force, and one of the previous
/// rules, by which some requests are still decided.
#[derive(Clone, Debug)]
pub(super) struct HolderGauges {
    pub(super) current: Arc<Gauge>,
    before: Option<Arc<Gauge>>,
}

impl HolderGauges {
    /// The gauges of `limit`, which takes over the counts of its previous gauges.
    fn new(limit: &Limit, known: Option<&Self>) -> Option<Self> {
        let Some(Algorithm::Concurrency(of_limit)) = limit.amount.map(|amount| amount.algorithm)
        else {
            return None;
        };
        let longest = Span::from_micros(of_limit.max_duration);
        let current = Arc::new(Gauge::new(longest));
        for gauge in known
            .into_iter()
            .flat_map(|known| known.before.iter().chain([&known.current]))
        {
            current.absorb(gauge);
        }
        Some(Self {
            current,
            before: known.map(|known| Arc::clone(&known.current)),
        })
    }

    fn places(&self, now: Micros) -> i64 {
        self.current.places(now) + self.before.as_ref().map_or(0, |before| before.places(now))
    }
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
            let counters = Counters {
                own: known.map_or_else(Arc::default, |known| Arc::clone(&known.own)),
                is_hidden: false,
                others: OtherCounters::new(limit, known),
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
            others: counters.others.as_deref(),
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
        let of_limit = labels(own.chain(named).chain(of_plan));
        let expected = |outcome| {
            outcome < Label::Blocked as usize
                && is_unlimited == (outcome == Label::Unlimited as usize)
        };
        add_decisions(exposition, &of_limit, counts, expected);
        add_negative_hits(exposition, &of_limit, counts, !is_unlimited);
        let peeks = self.own.peeks();
        if peeks > 0 {
            exposition.count(&families::PEEKS, &of_limit, None, peeks);
        }
        let Some(others) = self.others else { return };
        if let Some(trial) = &others.trial {
            add_trial(exposition, &of_limit, &trial.sums());
        }
        if let Some(holders) = &others.holders {
            let (family, places) = (&families::CONCURRENCY_HOLDERS, holders.places(now) as f64);
            exposition.push(family, "", Rc::clone(&of_limit), None, places);
        }
        if let Some(tally) = &others.holds {
            add_reservations(exposition, &of_limit, tally, now);
        }
        for percent in thresholds(self.limit).collect::<BTreeSet<_>>() {
            let counts = others.thresholds.as_ref();
            let count = counts.map_or(0, |all| all[usize::from(percent)].load(Ordering::Relaxed));
            let labels = format!("{of_limit},threshold=\"{percent}\"").into();
            exposition.count(&families::BUDGET_THRESHOLDS, &labels, None, count);
        }
    }
}

/// The tally of a limit with `reservations`: the one that was `known`, unless its terms
/// have changed.
fn reservations(limit: &Limit, known: Option<&Arc<Tally>>) -> Option<Arc<Tally>> {
    let terms = limit.amounts().filter_map(|amount| amount.reservations);
    let terms = terms.max_by_key(|terms| terms.ttl)?;
    let is_same =
        |known: &&Arc<Tally>| (known.ttl, known.on_expiry) == (terms.ttl, terms.on_expiry);
    let same = known.filter(is_same);
    Some(same.map_or_else(|| Arc::new(Tally::new(&terms)), Arc::clone))
}

/// Adds the counts of reservations and settlements.
fn add_reservations(exposition: &mut Exposition, of_limit: &Rc<str>, tally: &Tally, now: Micros) {
    let both = |one, other| tally.count(one) + tally.count(other);
    let cancelled = tally.cancelled();
    let matched = both(Outcome::Matched, Outcome::MatchedLate).saturating_sub(cancelled);
    let refused = both(Outcome::Refused, Outcome::Full);
    let repeated = both(Outcome::HeldBefore, Outcome::Overtaken);
    let settled_before = tally.count(Outcome::SettledBefore);
    let ([released, kept], [above, below]) = (tally.expired(), tally.differences());
    let (made, settled) = (&families::RESERVATIONS, &families::SETTLEMENTS);
    let (expired, difference) = (
        &families::RESERVATIONS_EXPIRED,
        &families::RESERVATION_DIFFERENCE_HITS,
    );
    for (family, label, count) in [
        (made, "held", tally.count(Outcome::Held)),
        (made, "refused", refused),
        (made, "repeated", repeated),
        (made, "shortened", tally.count(Outcome::Shortened)),
        (settled, "repeated", settled_before),
        (settled, "unknown", tally.count(Outcome::Unknown)),
        (settled, "matched", matched),
        (settled, "cancelled", cancelled),
        (expired, "release", released),
        (expired, "keep", kept),
        (difference, "above", above),
        (difference, "below", below),
    ] {
        exposition.count(family, of_limit, Some(label), count);
    }
    let refunded = tally.count(Outcome::Undone);
    exposition.count(&families::RESERVATIONS_REFUNDED, of_limit, None, refunded);
    let held = tally.held.places(now) as f64;
    let family = &families::RESERVED_HITS;
    exposition.push(family, "", Rc::clone(of_limit), None, held);
}

/// Adds the outcomes. A series that is not `expected` is shown once it has counted something.
pub(super) fn add_decisions(
    exposition: &mut Exposition,
    of_limit: &Rc<str>,
    counts: &Counts,
    expected: impl Fn(usize) -> bool,
) {
    for (index, (outcome, &count)) in OUTCOMES.into_iter().zip(&counts[DECISIONS..]).enumerate() {
        if expected(index) || count > 0 {
            exposition.count(&families::DECISIONS, of_limit, Some(outcome), count);
        }
    }
}

/// Adds the counts of a trial, as for a limit. Requests that no store has counted are
/// `not_counted`.
fn add_trial(exposition: &mut Exposition, of_limit: &Rc<str>, counts: &Counts) {
    for (outcome, label) in [
        ("ok", Label::Ok),
        ("over_limit", Label::OverLimit),
        ("not_counted", Label::OutageAllowed),
    ] {
        let count = counts[DECISIONS + label as usize];
        exposition.count(&families::TRIAL_DECISIONS, of_limit, Some(outcome), count);
    }
    let (hits, over) = (counts[TOTAL_HITS], counts[OVER_LIMIT]);
    exposition.count(&families::TRIAL_HITS, of_limit, None, hits);
    exposition.count(&families::TRIAL_OVER_LIMIT_HITS, of_limit, None, over);
}

/// Adds the refunded hits; `expected` as in [`add_decisions`].
pub(super) fn add_negative_hits(
    exposition: &mut Exposition,
    of_limit: &Rc<str>,
    counts: &Counts,
    expected: bool,
) {
    let count = counts[NEGATIVE_HITS];
    if expected || count > 0 {
        exposition.count(&families::NEGATIVE_HITS, of_limit, None, count);
    }
}
