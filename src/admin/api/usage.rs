//! `/api/v1/usage`, `/api/v1/usage/top` and `/api/v1/count`: the hits that subjects have requested
//! of limits with `track_usage`.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::explain::State;
use super::query::{Query, next};
use super::reply::{Failure, blocking};
use super::subject::{self, CountedSubject, MAX_NAMED};
use super::{Call, Parts, names};
use crate::core::algorithm::{Algorithm, SlidingWindowBuckets};
use crate::core::answer::Decision;
use crate::core::text::first_names;
use crate::core::time::people::timestamp;
use crate::core::time::{Micros, Period, Span, Unit, Window, parse_duration};
use crate::core::usage::{self, Hits, MOST_IN_TOTAL, Order, Page, Record, Tracking};
use crate::core::verdict::{StoreError, Verdict};
use crate::limits::overrides::Applied;
use crate::limits::plan::key::{self, EntryText};
use crate::limits::rules::limit::{Amount, Limit, LimitId, Units};
use crate::limits::rules::{Commit, Rules};
use crate::store;
use crate::store::redis::error as redis_error;

/// Timeout of the store.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The rights that the Redis user needs. The diagnostic `rights` in the log names the missing ones.
const MISSING_RIGHT: &str = "the Redis user is missing a right: grant it +time +get +getrange, and \
    for lists of subjects +zadd +zremrangebyrank +zrange +zrem +zcard, on the keys of Weir; see \
    the rights in deploy/redis.md";

/// Number of subjects in an answer without `count`.
pub(super) const USUAL_COUNT: usize = 20;

/// A subject, and the limit that counts it.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct CountedBy {
    /// The limit's full key.
    pub limit: String,
    /// Whether the limit's `trial` counted the hits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trial: bool,
    pub domain: String,
    /// Keys and values of the subject.
    pub entries: Vec<EntryText>,
    /// Exact name of the subject, which calls accept instead of domain and entries.
    pub subject: String,
}

/// The usage of one subject.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Usage {
    #[serde(flatten)]
    /// The subject and its limit.
    pub of: CountedBy,
    #[serde(flatten)]
    /// The current period, by the counter.
    pub current: CurrentUse,
    /// Requested hits, refused ones included, since `first_seen`.
    pub hits: u64,
    /// Requested hits that were over the limit.
    pub refused: u64,
    /// Whether hits over the limit count. Such a hit was refused, or was a charge after the
    /// response.
    pub refused_count: bool,
    /// Refunded hits.
    pub given_back: u64,
    /// First request; null if there was none, or if the record has expired.
    pub first_seen: Option<Timestamp>,
    /// Last request.
    pub last_seen: Option<Timestamp>,
    /// Kind of the override that decides the subject now.
    #[serde(default, rename = "override", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["block", "exempt", "raise", null]))]
    pub overridden: Option<String>,
    /// Hits of the subject over time.
    pub series: Series,
    /// Hits of the subject by the limit's own periods; empty if one bucket covers several periods.
    pub periods: Vec<PeriodOfUse>,
    /// Only with `period=last`, and if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_period: Option<PeriodOfUse>,
}

/// The period of a call, `period`: true for the last closed one.
///
/// # Errors
/// 400: another one.
pub(super) fn is_last(query: &Query) -> Result<bool, Failure> {
    match query.get("period") {
        None | Some("current") => Ok(false),
        Some("last") => Ok(true),
        Some(_) => Err(Failure::bad_request("period: write current or last")),
    }
}

/// The use of the current period: the state of a counter, as in an explanation, and its amount.
#[derive(Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct CurrentUse {
    /// Hits that count now, in the units of the limit, with `scale` with decimals; null if no store
    /// answered.
    pub used: Option<Units>,
    /// The same in hits, if the limit has a `scale`, as the next fields of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_hits: Option<u64>,
    /// Amount of the subject, by its plan, its row or its raise; with `burst` or `max_delay`, the
    /// amount that fits at once.
    pub amount: Units,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_hits: Option<u64>,
    /// Used hits in percent of the amount, of which 0 hits count as one.
    pub share_percent: Option<f64>,
    /// Hits that still fit now, in the units of the limit.
    pub left: Option<Units>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_hits: Option<u64>,
    /// Used hits that reservations hold, in the units of the limit; absent if the limit has no
    /// `reservations`, or the store did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Units>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_hits: Option<u64>,
    /// Seconds until the limit has fully recovered: for a period, until its end.
    pub resets_in_seconds: Option<f64>,
    /// Time zone of the limit's calendar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
}

/// The hits of one period of a limit, such as a month.
#[derive(Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct PeriodOfUse {
    /// Begin of the period.
    pub begin: Timestamp,
    /// End of the period.
    pub end: Timestamp,
    /// Whether the buckets cover the whole period, up to now.
    pub whole: bool,
    /// Requested hits, refused ones included.
    pub hits: u64,
    /// Requested hits that were over the limit.
    pub refused: u64,
    /// Refunded hits.
    pub given_back: u64,
    /// Hits that count against the limit. For the current period, the value of the counter; for
    /// earlier ones, requested hits minus refunds, and minus hits over the limit if these do not
    /// count.
    pub used: u64,
    /// Amount of the limit for a period, in hits.
    pub limit: u64,
    /// `used` in the units of the limit.
    pub used_units: Units,
    /// `limit` in the units of the limit.
    pub limit_units: Units,
    /// `used` in percent of `limit`, of which 0 hits count as one.
    pub share_percent: f64,
}

impl PeriodOfUse {
    fn new(window: Window, hits: Hits, found: &CountedSubject, amount: &Amount) -> Self {
        let counts_denied = found.check().algorithm.counts_denied();
        let uncounted = if counts_denied { 0 } else { hits.refused };
        let used = hits.asked.saturating_sub(uncounted + hits.given_back);
        let mut period = Self {
            begin: timestamp(window.begin),
            end: timestamp(window.end),
            whole: true,
            hits: hits.asked,
            refused: hits.refused,
            given_back: hits.given_back,
            limit: amount.hits(),
            limit_units: amount.scale.decimal(amount.hits()),
            ..Self::default()
        };
        period.set_used(used, amount);
        period
    }

    fn set_used(&mut self, used: u64, amount: &Amount) {
        self.used = used;
        self.used_units = amount.scale.decimal_rounded_up(used);
        self.share_percent = share_percent(used, self.limit);
    }
}

/// Used hits in percent of a limit.
fn share_percent(used: u64, limit: u64) -> f64 {
    100.0 * used as f64 / limit.max(1) as f64
}

/// Hits over time. Each list has one element per bucket, oldest first; the last bucket is the
/// current one.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "UsageSeries")]
pub struct Series {
    /// Start of the first bucket.
    pub begin: Timestamp,
    /// Length of a bucket.
    pub interval_seconds: f64,
    /// Requested hits, refused ones included.
    pub hits: Vec<u64>,
    /// Requested hits that were over the limit.
    pub refused: Vec<u64>,
    /// Refunded hits.
    pub given_back: Vec<u64>,
}

/// Subjects of a limit, sorted.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "UsageTop")]
pub struct Top {
    /// The limit's full key.
    pub limit: String,
    /// Whether the limit's `trial` counted the hits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trial: bool,
    pub domain: String,
    /// Sort order, largest first.
    pub by: String,
    /// Number of subjects in the index, at most `usage_subjects` of the limit. By share: of examined
    /// subjects that have used anything, or more than `above`.
    pub total: usize,
    /// By share, and of the last period: number of subjects that were read, in the order of their
    /// hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub examined: Option<usize>,
    /// By share, and of the last period: whether these are all subjects of the limit. Otherwise the
    /// index is full (`usage_subjects`), this replica has dropped subjects since its start
    /// (`weir_usage_index_dropped_total`, in memory `weir_usage_evicted_total`), or not all were
    /// read within 4 seconds. Of the last period also: the period is not known of some, ends after
    /// `usage_expiry`, or began before the memory store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<bool>,
    /// Subjects in the order `by`.
    pub subjects: Vec<UsageSubject>,
    /// The cursor of the next answer; null after the last.
    pub next: Option<String>,
}

/// The totals of one subject or, by share, its current period.
#[derive(Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct UsageSubject {
    /// Keys and values.
    pub entries: Vec<EntryText>,
    /// Exact name of the subject, which calls accept instead of domain and entries.
    pub subject: String,
    #[serde(flatten)]
    /// Missing by share.
    pub totals: Option<Totals>,
    #[serde(flatten)]
    /// Only by share.
    pub current: Option<CurrentUse>,
    /// Only with `period=last`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_period: Option<PeriodOfUse>,
    /// Kind of the override that decides the subject now.
    #[serde(default, rename = "override", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["block", "exempt", "raise", null]))]
    pub overridden: Option<String>,
}

/// The totals of one subject.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Totals {
    /// Requested hits, refused ones included.
    pub hits: u64,
    /// Requested hits that were over the limit.
    pub refused: u64,
    /// First request.
    pub first_seen: Timestamp,
    /// Last request.
    pub last_seen: Timestamp,
}

/// The hits of a subject in a recent interval.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Count {
    #[serde(flatten)]
    /// The subject and its limit.
    pub of: CountedBy,
    /// `usage`: requested hits. `buckets`: hits that count against the limit.
    #[schemars(extend("enum" = ["usage", "buckets"]))]
    pub source: String,
    /// The hits from `from` to `to`.
    pub hits: u64,
    /// Requested hits that were over the limit; null if the source is `buckets`.
    pub refused: Option<u64>,
    /// Hits that reservations hold now: none of `hits` if the source is `usage`, a part of them if
    /// it is `buckets`. Absent if the limit has no `reservations`, or the store did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// Start of the oldest bucket that overlaps the interval.
    pub from: Timestamp,
    /// End of the interval: now.
    pub to: Timestamp,
    /// Whether `hits` is exact for the interval. Otherwise it also contains earlier hits of the
    /// oldest bucket, or a bucket is full and there were possibly more.
    pub exact: bool,
    /// Lower bound of the hits: without the oldest bucket if it begins before the interval.
    pub at_least: u64,
}

/// The usage of one subject.
pub(super) async fn subject(parts: Arc<Parts>, call: Call) -> Result<Usage, Failure> {
    let query = &call.query;
    let found = subject::find(&parts, query)?;
    let limit = found.limit()?;
    let Some(tracking) = found.check().tracking() else {
        return Err(untracked(limit));
    };
    let is_last = is_last(query)?;
    let since = query.get("since").map(|text| duration("since", text));
    let since = since.unwrap_or_else(|| Ok(tracking.settings.span()))?;
    let (now, record) = found.record(&parts).await?;
    // A subject that was never seen has an empty series.
    let is_recorded = record.is_some();
    let none = || Record::step(None, &tracking.settings, now, Hits::default());
    let record = record.unwrap_or_else(none);
    let series = record.series(now, since);
    let (overridden, amount) = found.in_force(&parts);
    let counter = found.counter(&parts).await;
    let (mut last_period, mut all_periods) = (None, Vec::new());
    if let Some(amount) = &amount {
        last_period = found.last_period(&record, now, amount).filter(|_| is_last);
        all_periods = periods(&series, &found, amount, record.first_seen);
        if let (Some(present), Some(verdict)) = (all_periods.last_mut(), counter.verdict()) {
            present.set_used(verdict.used, amount);
        }
    }
    let each = |hits: fn(&Hits) -> u64| series.buckets.iter().map(hits).collect();
    let current = CurrentUse::new(&found, &counter);
    Ok(Usage {
        of: found.counted_by(limit),
        current: current.with_held(&found, &parts).await,
        hits: record.total.asked,
        refused: record.total.refused,
        refused_count: found.check().algorithm.counts_denied(),
        given_back: record.total.given_back,
        first_seen: is_recorded.then(|| timestamp(record.first_seen)),
        last_seen: is_recorded.then(|| timestamp(record.last_seen)),
        overridden,
        series: Series {
            begin: timestamp(series.begin),
            interval_seconds: series.interval.micros() as f64 / 1e6,
            hits: each(|hits| hits.asked),
            refused: each(|hits| hits.refused),
            given_back: each(|hits| hits.given_back),
        },
        periods: all_periods,
        last_period,
    })
}

/// The deadline of the store for a call that begins now.
pub(super) fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

impl CurrentUse {
    /// The use of a subject with this state of its counter.
    pub(super) fn new(found: &CountedSubject, counter: &Decision) -> Self {
        let check = found.check();
        let (scale, capacity) = (found.scale(), check.algorithm.capacity());
        let state = State::new(counter, scale, check, false);
        let share = |verdict: &Verdict| share_percent(verdict.used, capacity);
        Self {
            used: state.used,
            used_hits: state.used_hits,
            amount: scale.decimal(capacity),
            amount_hits: scale.exact(capacity),
            share_percent: counter.verdict().map(share),
            left: state.left,
            left_hits: state.left_hits,
            resets_in_seconds: state.resets_in_seconds,
            timezone: match check.algorithm.window() {
                Period::Calendar(calendar) => Some(calendar.zone().to_string()),
                Period::Even(_) | Period::Months(_) => None,
            },
            ..Self::default()
        }
    }

    /// The same with the hits that reservations hold, if the store answers.
    pub(super) async fn with_held(mut self, found: &CountedSubject, parts: &Parts) -> Self {
        let (held, scale) = (found.held(parts).await, found.scale());
        self.held = held.map(|hits| scale.decimal_rounded_up(hits));
        self.held_hits = held.and_then(|hits| scale.exact(hits));
        self
    }
}

impl CountedSubject {
    /// The time of the store, and the record of the subject.
    pub(super) async fn record(
        &self,
        parts: &Parts,
    ) -> Result<(Micros, Option<Record>), StoreError> {
        let record = parts.usage.record(self.checks(), self.index, deadline());
        record.await
    }

    /// The kind of the override in force, and the amount with a raise.
    pub(super) fn in_force(&self, parts: &Parts) -> (Option<String>, Option<Amount>) {
        let (overridden, applied) = subject::overrides_of(parts)(&self.name()).unzip();
        match applied {
            Some(Applied::Raise(raised)) if !self.is_trial => (overridden, Some(raised)),
            _ => (overridden, self.amount().copied()),
        }
    }

    /// The last closed period at `now` by the record of the subject; `None` if it is not known.
    pub(super) fn last_period(
        &self,
        record: &Record,
        now: Micros,
        amount: &Amount,
    ) -> Option<PeriodOfUse> {
        let (_, period) = self.check().tracked()?;
        let period = (*period)?;
        let last = period.window(period.number_at(now).checked_sub(1)?);
        Some(PeriodOfUse::new(last, record.hits_of(last)?, self, amount))
    }

    fn counted_by(&self, limit: &Limit) -> CountedBy {
        CountedBy {
            limit: limit.path(),
            trial: self.is_trial,
            domain: limit.domain.to_string(),
            entries: self.entries.clone(),
            subject: self.name(),
        }
    }
}

/// The buckets of a series by the periods of an amount: a bucket belongs to the period in which it
/// begins.
fn periods(
    series: &usage::Series,
    found: &CountedSubject,
    amount: &Amount,
    first_seen: Micros,
) -> Vec<PeriodOfUse> {
    let period = amount.period();
    let Some(period) = period.filter(|period| series.interval <= period.shortest()) else {
        return Vec::new();
    };
    let mut windows: Vec<(Window, Hits)> = Vec::new();
    let begins = (series.begin.0..).step_by(series.interval.micros() as usize);
    for (&bucket, begin) in series.buckets.iter().zip(begins) {
        let window = period.window_at(Micros(begin));
        match windows.last_mut().filter(|(last, _)| *last == window) {
            Some((_, hits)) => *hits = hits.plus(bucket, MOST_IN_TOTAL),
            None => windows.push((window, bucket)),
        }
    }
    let of_window = |(window, hits): (Window, Hits)| PeriodOfUse {
        whole: series.begin <= window.begin || first_seen >= series.begin,
        ..PeriodOfUse::new(window, hits, found, amount)
    };
    windows.into_iter().map(of_window).collect()
}

/// Whether the checks of this limit, or of its trial, are on the per-second Redis. If the rows of a
/// table have several units, the list is of the main Redis, which has the subjects with units
/// longer than a second.
fn is_per_second(rules: &Rules, limit: &Limit, is_trial: bool) -> bool {
    let is_of_second = |amount: &Amount| amount.rate.unit == Unit::Second;
    match &limit.trial {
        // A trial counts by itself, also if its domain commits all or none.
        Some(trial) if is_trial => is_of_second(&trial.amount),
        _ => {
            let commit = rules.commit(limit.domain.as_bytes());
            let mut amounts = limit.amounts().peekable();
            commit != Some(Commit::AllOrNone)
                && amounts.peek().is_some()
                && amounts.all(is_of_second)
        }
    }
}

/// The limit whose subjects a call lists.
pub(super) struct TrackedLimit {
    rules: Arc<Rules>,
    id: LimitId,
    tracking: Arc<Tracking>,
    /// Where its subjects are.
    usage: store::Usage,
}

impl TrackedLimit {
    /// The limit of the parameters `domain`, `limit` and `trial`.
    pub(super) async fn find(parts: &Parts, query: &Query) -> Result<Self, Failure> {
        let rules = Arc::clone(&parts.snapshot()?.rules);
        let is_trial = query.is("trial")?;
        // On another thread, because there may be many limits to search.
        let (searched, asked) = (Arc::clone(&rules), query.clone());
        let found = blocking(move || Ok(tracked_limit(&searched, &asked, is_trial)?.id));
        let id = found.await?;
        let limit = rules.limit(id);
        let tracking = usage_of(limit, is_trial).ok_or_else(|| untracked(limit))?;
        Ok(Self {
            id,
            tracking: Arc::clone(tracking),
            usage: (parts.usage).of_limits(is_per_second(&rules, limit, is_trial)),
            rules,
        })
    }

    pub(super) fn limit(&self) -> &Limit {
        self.rules.limit(self.id)
    }

    /// The keys of all its subjects.
    pub(super) async fn subjects(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        self.usage.subjects(&self.tracking, deadline()).await
    }

    /// Whether some subjects may be missing in a list of so many.
    pub(super) fn may_have_more(&self, count: usize) -> bool {
        count >= self.tracking.settings.subjects as usize || self.usage.has_dropped()
    }

    /// Whether records are kept until the period after one of this length has ended.
    pub(super) fn keeps(&self, period: Span) -> bool {
        2 * period.micros() <= self.tracking.settings.expiry.micros()
    }

    /// The plan of a subject, if the limit still counts it: another one may since a reload.
    pub(super) fn counted(&self, parts: &Parts, subject: &key::Subject) -> Option<CountedSubject> {
        let (limit, tracking) = (self.limit().path(), &self.tracking);
        let found = subject::counted(parts, subject, Some(&limit), tracking.is_trial).ok()?;
        let is_same = found.check().tracking()?.is_same_limit(tracking);
        is_same.then_some(found)
    }

    /// A part of its subjects.
    pub(super) fn top(
        &self,
        by: &str,
        page: Page,
        total: usize,
        subjects: Vec<UsageSubject>,
    ) -> Top {
        let limit = self.limit();
        Top {
            limit: limit.path(),
            trial: self.tracking.is_trial,
            domain: limit.domain.to_string(),
            by: by.to_owned(),
            total,
            examined: None,
            complete: None,
            subjects,
            next: next(page, total),
        }
    }
}

/// The subjects of a limit.
pub(super) async fn top(parts: Arc<Parts>, call: Call) -> Result<Top, Failure> {
    let query = &call.query;
    is_last(query)?;
    let by = query.get("by").unwrap_or("hits");
    let Some((name, order)) = Order::NAMED.into_iter().find(|(name, _)| *name == by) else {
        let orders = "by: write hits, refused, last-seen, first-seen or share";
        return Err(Failure::bad_request(orders));
    };
    let page = query.page(USUAL_COUNT)?;
    let tracked = TrackedLimit::find(&parts, query).await?;
    let top = (tracked.usage).top(&tracked.tracking, order, page, deadline());
    let top = top.await?;
    let overrides = subject::overrides_of(&parts);
    let subject = |(subject, record): &(Vec<u8>, Record)| {
        let subject = key::Subject::of_key(subject);
        let name = subject.to_string();
        UsageSubject {
            entries: subject.texts(),
            overridden: overrides(&name).map(|(kind, _)| kind),
            subject: name,
            totals: Some(Totals {
                hits: record.total.asked,
                refused: record.total.refused,
                first_seen: timestamp(record.first_seen),
                last_seen: timestamp(record.last_seen),
            }),
            ..UsageSubject::default()
        }
    };
    let subjects = top.subjects.iter().map(subject).collect();
    Ok(tracked.top(name, page, top.total, subjects))
}

/// The hits of a subject in a recent interval.
pub(super) async fn count(parts: Arc<Parts>, call: Call) -> Result<Count, Failure> {
    let query = &call.query;
    let found = subject::find(&parts, query)?;
    let limit = found.limit()?;
    let none = || Failure::bad_request("since: write an interval, such as 90s");
    let over = duration("since", query.get("since").ok_or_else(none)?)?;
    let by_record = by_record(&parts, &found, over).await?;
    let (source, counted) = match (by_record, &found.check().algorithm) {
        (Some(counted), _) => ("usage", counted),
        (None, Algorithm::SlidingWindowBuckets(buckets)) => {
            let counted = by_buckets(&parts, &found, buckets, over).await?;
            ("buckets", counted)
        }
        (None, _) => return Err(uncounted(&found, limit, over)),
    };
    let (hits, at_least) = (counted.hits.asked, counted.at_least.asked);
    Ok(Count {
        of: found.counted_by(limit),
        held: found.held(&parts).await,
        source: source.to_owned(),
        hits,
        refused: (source == "usage").then_some(counted.hits.refused),
        from: timestamp(counted.from),
        to: timestamp(counted.to),
        exact: at_least == hits && !counted.is_cut,
        at_least,
    })
}

/// Counts by the usage record of the subject. `None` if its limit records no usage, or records it
/// for less time than `over`.
async fn by_record(
    parts: &Parts,
    found: &CountedSubject,
    over: Span,
) -> Result<Option<usage::Count>, Failure> {
    if found.check().tracking().is_none() {
        return Ok(None);
    }
    let (now, record) = found.record(parts).await?;
    let from = Micros(now.0.saturating_sub(over.micros()));
    let none = usage::Count {
        from,
        to: now,
        ..usage::Count::default()
    };
    Ok(record.map_or(Some(none), |record| record.count(now, over)))
}

/// Counts by the buckets in which the limit itself counts.
async fn by_buckets(
    parts: &Parts,
    found: &CountedSubject,
    buckets: &SlidingWindowBuckets,
    over: Span,
) -> Result<usage::Count, Failure> {
    let limit = found.limit()?;
    let span = buckets.interval.saturating_mul(buckets.buckets.into());
    // The oldest bucket counts as a whole, and the interval may begin anywhere in it.
    let longest = Span::from_micros(span.saturating_sub(buckets.interval));
    if over > longest {
        let (path, origin) = (limit.path(), &limit.origin);
        return Err(Failure::bad_request(&format!(
            "since: {over} is longer than the {longest} that the buckets of {path} ({origin}) \
             cover; write less, or raise its bucket_span"
        )));
    }
    let ring = (parts.usage).ring(found.checks(), found.index, deadline());
    let (now, state) = ring.await?;
    let hits = buckets.count_over(state.as_ref(), now, over);
    let from = now.0.saturating_sub(over.micros()) + 1;
    let begin = from / buckets.interval * buckets.interval;
    // The interval without its oldest bucket, which may begin before it.
    let inside = Span::from_micros((now.0 + 1).saturating_sub(begin + buckets.interval));
    let at_least = match begin < from {
        true => buckets.count_over(state.as_ref(), now, inside).min(hits),
        false => hits,
    };
    let [hits, at_least] = [hits, at_least].map(|asked| Hits {
        asked,
        ..Hits::default()
    });
    Ok(usage::Count {
        hits,
        at_least,
        is_cut: false,
        from: Micros(begin),
        to: now,
    })
}

/// The error about hits of an interval that were not counted.
fn uncounted(found: &CountedSubject, limit: &Limit, over: Span) -> Failure {
    let (path, origin) = (limit.path(), &limit.origin);
    Failure::bad_request(&match found.check().tracking() {
        Some(tracking) if over <= tracking.settings.span() => format!(
            "since: the buckets of {path} ({origin}) began anew less than {over} ago, when its \
             usage_interval or usage_buckets was changed; write less"
        ),
        Some(tracking) => format!(
            "since: {over} is longer than the {} that the buckets of {path} ({origin}) cover; \
             write less, or raise its usage_buckets or usage_interval",
            tracking.settings.span(),
        ),
        None => format!(
            "the limit {path} ({origin}) does not record hits over time; add 'track_usage: true' \
             to it, or 'algorithm: sliding_window_buckets'"
        ),
    })
}

/// The limit that the parameters `domain` and `limit` name, or the only one with usage.
fn tracked_limit<'r>(
    rules: &'r Rules,
    query: &Query,
    is_trial: bool,
) -> Result<&'r Limit, Failure> {
    let (domain, name) = (query.get("domain"), query.get("limit"));
    names::domain(rules, domain)?;
    // The limits of a table's plans record the same as the descriptor's limit.
    let is_of_plan = |limit: &Limit| limit.table.is_some() && limit.own_table().is_none();
    let of_domain = names::limits(rules, domain).filter(|limit| !is_of_plan(limit));
    if let Some(name) = name {
        let mut named = of_domain.filter(|limit| names::is_named(limit, name));
        return match (named.next(), named.next()) {
            (Some(limit), None) => Ok(limit),
            (None, _) => Err(names::no_limit_named(rules, domain, name)),
            (Some(_), Some(_)) => Err(Failure::bad_request(&format!(
                "limit: several limits have the name {name}; write the full key, and its domain"
            ))),
        };
    }
    let tracked = of_domain.filter(|limit| usage_of(limit, is_trial).is_some());
    let tracked: Vec<_> = tracked.collect();
    let none = match tracked[..] {
        [limit] => return Ok(limit),
        [] if is_trial => "no limit here has track_usage and a trial; add both to one",
        [] => "no limit here has track_usage; add 'track_usage: true' to one",
        _ => {
            let names: Vec<_> = tracked.iter().map(|limit| limit.path()).collect();
            let names = first_names(&names, MAX_NAMED);
            let several = "limit: several have track_usage; write one of";
            return Err(Failure::bad_request(&format!("{several} {names}")));
        }
    };
    Err(Failure::not_found(none))
}

/// The `track_usage` of a limit, or of its trial.
fn usage_of(limit: &Limit, is_trial: bool) -> Option<&Arc<Tracking>> {
    match is_trial {
        true => limit.trial.as_ref()?.usage.as_ref(),
        false => limit.usage.as_ref(),
    }
}

fn untracked(limit: &Limit) -> Failure {
    let (path, origin) = (limit.path(), &limit.origin);
    let remedy = format!("add 'track_usage: true' to it, in {origin}");
    Failure::not_found(&format!("the limit {path} records no usage; {remedy}"))
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        if redis_error::name(error) == redis_error::NO_PERMISSION {
            return Self::unavailable(MISSING_RIGHT);
        }
        let why = redis_error::for_callers(error);
        Self::unavailable(&format!("the store does not answer: {why}; try again"))
    }
}

/// A duration above zero.
fn duration(name: &str, text: &str) -> Result<Span, Failure> {
    let remedy = match parse_duration(text) {
        Ok(duration) if !duration.is_zero() => return Ok(Span::from(duration)),
        Ok(_) => "write more than 0",
        Err(error) => error.report().1,
    };
    Err(Failure::bad_request(&format!("{name}: {remedy}")))
}
