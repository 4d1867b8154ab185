//! Counts of a configuration that runs, by limit, by subject and over time, and the difference
//! between two configurations. All of it is bounded, whatever a trace holds.

use std::hash::{BuildHasher, Hash, RandomState};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use serde::Serialize;

use super::engine::Decided;
use crate::core::request::DecodedRequest;
use crate::core::time::{Micros, Span};
use crate::limits::overrides::instant;
use crate::limits::plan::key::Subject;
use crate::limits::plan::{DecidedBy, Outcome, Outcomes};
use crate::limits::rules::limit::LimitId;

/// Subjects whose counts are kept, in each configuration: as many keys as the memory store has by
/// default.
const MAX_SUBJECTS: usize = 1_000_000;

/// Rows of each list of subjects.
pub(super) const MAX_LISTED: usize = 10;

/// Kinds of descriptors without a limit that are listed.
const MAX_UNMATCHED: usize = 100;

/// Maximum number of counts over time; a chart is not much wider.
const MAX_BINS: usize = 600;

/// The counts of a limit, as they are reported.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct LimitTally {
    /// Decisions.
    pub(super) asked: u64,
    pub(super) admitted: u64,
    pub(super) refused: u64,
    pub(super) hits_asked: u64,
    hits_admitted: u64,
    pub(super) subjects: u64,
    pub(super) subjects_refused: u64,
    pub(super) first_refused: Option<String>,
    /// The most that it admitted in one window of one subject, in its units.
    pub(super) most_in_window: u64,
    pub(super) longest_delay_seconds: f64,
    /// Decisions of its trial.
    pub(super) trial_asked: u64,
    pub(super) trial_refused: u64,
    /// Refusals over time.
    #[serde(skip)]
    pub(super) refusals: TimeSeries,
}

/// The counts of a subject.
#[derive(Debug, Default)]
struct SubjectTally {
    asked: u64,
    refused: u64,
    /// Blocked by an operator.
    blocked: u64,
    /// The number of its current window, and the hits that were admitted in it.
    window: u64,
    admitted: u64,
}

/// All counts of a configuration.
#[derive(Debug, Default)]
pub(super) struct ReplayTally {
    pub(super) ok: u64,
    pub(super) over_limit: u64,
    /// Requests admitted over time, by the instant at which shapers let them pass.
    pub(super) admitted: TimeSeries,
    /// `None` is the limits that requests bring along.
    pub(super) limits: HashMap<Option<LimitId>, LimitTally>,
    subjects: Bounded<SubjectTally, MAX_SUBJECTS>,
    /// Decisions on subjects beyond those that are kept.
    pub(super) uncounted: u64,
    pub(super) most_refused: LargestSubjects,
    pub(super) unmatched: UnmatchedDescriptors,
    /// Descriptors for which something was found.
    pub(super) matched: u64,
    pub(super) blocked: u64,
    pub(super) exempt: u64,
}

impl ReplayTally {
    /// Counts what was decided on a request that was sent `at`.
    pub(super) fn observe(
        &mut self,
        at: Micros,
        request: &DecodedRequest<'_>,
        decided: &Decided,
        outcomes: &Outcomes<'_>,
    ) {
        for (slot, outcome) in outcomes.each.iter().enumerate() {
            let is_unmatched = matches!(outcome.by, DecidedBy::NoLimit) && outcome.limit.is_none();
            self.matched += u64::from(!is_unmatched);
            match outcome.by {
                DecidedBy::Check { .. } => self.check(at, outcome, outcomes.is_undone),
                DecidedBy::Block(_) => {
                    self.blocked += 1;
                    self.blocks(outcome);
                }
                DecidedBy::Exempt => self.exempt += 1,
                DecidedBy::NoLimit if is_unmatched => self.unmatched.add(request, slot),
                DecidedBy::NoLimit | DecidedBy::Unlimited => {}
            }
        }
        for (check, _, limit) in decided.plan.trials() {
            let limit = self.limits.entry(Some(limit.id)).or_default();
            limit.trial_asked += 1;
            limit.trial_refused += u64::from(!decided.decisions[check.0].allows());
        }
        if outcomes.is_over_limit {
            self.over_limit += 1;
        } else {
            self.ok += 1;
            self.admitted.add_after(at, decided.delay);
        }
    }

    fn check(&mut self, at: Micros, outcome: &Outcome<'_>, is_undone: bool) {
        let (
            DecidedBy::Check {
                planned,
                check,
                decision,
                ..
            },
            Some(key),
        ) = (&outcome.by, outcome.counter)
        else {
            return;
        };
        if check.hits < 0 {
            return;
        }
        let hits = check.hits.unsigned_abs();
        let allowed = decision.allows();
        let id = outcome.limit.map(|found| found.limit.id);
        let limit = self.limits.entry(id).or_default();
        limit.asked += 1;
        limit.hits_asked = limit.hits_asked.saturating_add(hits);
        if let Some(verdict) = decision.verdict() {
            let delay = verdict.delay.micros() as f64 / 1e6;
            limit.longest_delay_seconds = limit.longest_delay_seconds.max(delay);
        }
        if allowed {
            limit.admitted += u64::from(!is_undone);
        } else {
            limit.refused += 1;
            limit.first_refused.get_or_insert_with(|| instant(at));
            limit.refusals.add(at);
        }
        let Some((fingerprint, subject)) = self.subjects.of(key) else {
            self.uncounted += 1;
            return;
        };
        subject.asked += 1;
        limit.subjects += u64::from(subject.asked == 1);
        if !allowed {
            subject.refused += 1;
            limit.subjects_refused += u64::from(subject.refused == 1);
            let count = subject.refused + subject.blocked;
            self.most_refused.update(fingerprint, count, key);
        } else if !is_undone && !check.algorithm.counts_in_flight() {
            limit.hits_admitted = limit.hits_admitted.saturating_add(hits);
            let window = check.algorithm.window().number_at(at);
            if subject.window != window {
                (subject.window, subject.admitted) = (window, 0);
            }
            subject.admitted = subject.admitted.saturating_add(hits);
            let units = planned.scale.units(subject.admitted);
            limit.most_in_window = limit.most_in_window.max(units);
        }
    }

    fn blocks(&mut self, outcome: &Outcome<'_>) {
        let Some(key) = outcome.counter else { return };
        if let Some((fingerprint, subject)) = self.subjects.of(key) {
            subject.blocked += 1;
            let count = subject.refused + subject.blocked;
            self.most_refused.update(fingerprint, count, key);
        }
    }
}

/// At most `MOST` values by the fingerprints of their keys.
#[derive(Debug, Default)]
pub(super) struct Bounded<V, const MOST: usize> {
    values: HashMap<u64, V>,
    hasher: RandomState,
}

impl<V: Default, const MOST: usize> Bounded<V, MOST> {
    /// The fingerprint and the value of a key; `None` if it would be one too many.
    fn of(&mut self, key: impl Hash) -> Option<(u64, &mut V)> {
        let fingerprint = self.hasher.hash_one(key);
        let is_full = self.values.len() >= MOST;
        match self.values.entry(fingerprint) {
            Entry::Vacant(_) if is_full => None,
            entry => Some((fingerprint, entry.or_default())),
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.values.values()
    }
}

/// A subject in a list.
#[derive(Debug)]
pub(super) struct ListedSubject {
    fingerprint: u64,
    pub(super) count: u64,
    /// The key of its counter.
    pub(super) key: Box<[u8]>,
}

/// The subjects with the largest counts, largest first.
///
/// A subject enters when its count, which is exact, is above the smallest in the list. So those
/// with the largest counts are in it at the end.
#[derive(Debug, Default)]
pub(super) struct LargestSubjects(pub(super) Vec<ListedSubject>);

impl LargestSubjects {
    /// Updates the count of a subject, which has grown.
    fn update(&mut self, fingerprint: u64, count: u64, key: &[u8]) {
        let Self(list) = self;
        if list.len() >= MAX_LISTED && list.last().is_some_and(|last| last.count >= count) {
            return;
        }
        list.retain(|one| one.fingerprint != fingerprint);
        let at = list.partition_point(|other| other.count >= count);
        let one = ListedSubject {
            fingerprint,
            count,
            key: key.into(),
        };
        list.insert(at, one);
        list.truncate(MAX_LISTED);
    }
}

/// Counts of subjects, and those with the largest.
#[derive(Debug, Default)]
pub(super) struct RankedSubjects {
    counts: Bounded<u64, MAX_SUBJECTS>,
    pub(super) top: LargestSubjects,
}

impl RankedSubjects {
    /// Counts a subject by the key of its counter.
    pub(super) fn add(&mut self, key: &[u8]) {
        if let Some((fingerprint, count)) = self.counts.of(key) {
            *count += 1;
            self.top.update(fingerprint, *count, key);
        }
    }

    /// The number of subjects.
    pub(super) fn len(&self) -> usize {
        self.counts.values().count()
    }
}

/// Descriptors without a limit, by their domain and keys, with the first of each kind.
#[derive(Debug, Default)]
pub(super) struct UnmatchedDescriptors {
    pub(super) count: u64,
    pub(super) kinds: Bounded<UnmatchedKind, MAX_UNMATCHED>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct UnmatchedKind {
    pub(super) count: u64,
    /// The first descriptor of the kind.
    pub(super) example: String,
}

impl UnmatchedDescriptors {
    #[cold]
    fn add(&mut self, request: &DecodedRequest<'_>, slot: usize) {
        self.count += 1;
        let Some((_, entries)) = request.descriptors().nth(slot) else {
            return;
        };
        let keys: Vec<_> = entries.iter().map(|entry| entry.key).collect();
        if let Some((_, kind)) = self.kinds.of((request.domain, keys)) {
            kind.count += 1;
            if kind.count == 1 {
                kind.example = Subject::new(request.domain, entries.iter().copied()).to_string();
            }
        }
    }
}

/// A count over time, in seconds or, of a long trace, in more of them: at most 600 numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct TimeSeries {
    /// The first second, once there is one.
    begin: Option<u64>,
    /// How often the seconds of a number were doubled.
    doublings: u32,
    bins: Vec<u64>,
}

impl TimeSeries {
    /// Counts one at this instant, which is not before the first one.
    pub(super) fn add(&mut self, at: Micros) {
        self.add_after(at, Span::ZERO);
    }

    /// Counts one so long after this instant, which is not before the first one.
    pub(super) fn add_after(&mut self, at: Micros, delay: Span) {
        let second = (at + delay).0 / 1_000_000;
        let begin = *self.begin.get_or_insert(at.0 / 1_000_000);
        let mut bin = (second.saturating_sub(begin) / self.width()) as usize;
        while bin >= MAX_BINS {
            self.doublings += 1;
            self.bins = self.bins.chunks(2).map(|pair| pair.iter().sum()).collect();
            bin /= 2;
        }
        self.bins.resize(self.bins.len().max(bin + 1), 0);
        self.bins[bin] += 1;
    }

    /// The counts a second, for so many parts of the time from `begin`, each of `width` seconds.
    pub(super) fn rates(&self, begin: u64, width: u64, parts: usize) -> Vec<f64> {
        let mut rates = vec![0.0; parts];
        let own = self.begin.unwrap_or(begin).saturating_sub(begin);
        for (index, &count) in self.bins.iter().enumerate() {
            let part = (own + index as u64 * self.width()) / width;
            if let Some(rate) = rates.get_mut(part as usize) {
                *rate += count as f64 / width as f64;
            }
        }
        rates
    }

    /// Its first second.
    pub(super) fn begin(&self) -> u64 {
        self.begin.unwrap_or(0)
    }

    /// The second in which its last number ends; `None` if there is none.
    pub(super) fn end(&self) -> Option<u64> {
        Some(self.begin? + self.bins.len() as u64 * self.width())
    }

    /// The seconds of a number.
    pub(super) const fn width(&self) -> u64 {
        1 << self.doublings
    }
}

/// The difference between two configurations.
#[derive(Debug, Default)]
pub(super) struct Compare {
    pub(super) newly_refused: ChangedRequests,
    pub(super) newly_admitted: ChangedRequests,
}

/// Requests whose answers differ.
#[derive(Debug, Default)]
pub(super) struct ChangedRequests {
    pub(super) requests: u64,
    /// The subjects of the limits that refuse them in one of the configurations.
    pub(super) subjects: RankedSubjects,
    pub(super) over_time: TimeSeries,
}

impl Compare {
    /// Compares the outcomes of a request that was sent `at`.
    pub(super) fn observe<'o>(&mut self, at: Micros, was: &Outcomes<'o>, is: &Outcomes<'o>) {
        let (changed, refusing) = match (was.is_over_limit, is.is_over_limit) {
            (false, true) => (&mut self.newly_refused, is),
            (true, false) => (&mut self.newly_admitted, was),
            _ => return,
        };
        changed.requests += 1;
        changed.over_time.add(at);
        for index in refusing.violated() {
            if let Some(key) = refusing.each[index].counter {
                changed.subjects.add(key);
            }
        }
    }
}
