//! Decides the checks of a request: first by hits that were drawn ahead (`leases`), then by the
//! denial cache, then by the store within the caller's deadline, then by the failure policies.
//! Last it holds the request if a shaper delays it.
//!
//! `outages` logs failures of the store with the answers of the failure policies meanwhile, and
//! `replicas` follows the number of replicas that share the limits; no request waits for either.
//!
//! All of them work on one draft of the decisions, in which the state of each check is open or
//! decided; leases, the denial cache, the store and the policies decide open checks, and nothing
//! else does. The store does not depend on the others. It receives the open checks once, and a
//! second time only the checks that its first answer leaves open: draws that it refused where
//! refused hits do not count, and checks for which a peek was not enough.
//!
//! There is one door, [`Limiter::decide`]. What needs no store is decided at once, without a future;
//! everything else waits in [`Later`]: for the store, for a shaper, or for a task that continues
//! when the call is dropped.
//!
//! A trial is a check of the same draft that takes no part in the request: no lease and no denial
//! cache answers it, because it has to be counted also where they answer the limit, and no failure
//! policy applies to it. In `local` counters it would be a trial of a share of the limit, and would
//! mix two counts: hits that the store did not count are `not_counted`.
//!
//! `STORE_TIMEOUT` (500 ms) bounds callers with a longer deadline. The `grpc-timeout` of the
//! caller, less a margin, comes first.

pub mod replicas;
mod table;

pub mod denial_cache;
pub mod failure_policies;
pub mod leases;
pub mod outages;
mod places;
pub(crate) mod reservations;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::core::algorithm::Arrival;
use crate::core::answer::{Answer, Answers, Decision, Decisions, Effect, Effects, HeldHits};
use crate::core::time::Span;
use crate::core::verdict::{StoreError, Verdict};
use crate::limits::plan::{CheckIndex, CheckIndices, Checks};
use crate::net::clock;
use crate::net::rare::rare;
use crate::observe::metrics::Tallies;
use crate::observe::traces::{SpanKind, TraceSpan};
use crate::store::{Budget, Memory, Store};
pub use denial_cache::DenialCache;
pub use failure_policies::FailurePolicies;
use leases::Draws;
pub use leases::Leases;
pub use places::Places;

/// Time limits of a decision, and the maximum number of held requests.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The longest wait for the store, also for callers with a longer deadline or without one.
    pub store_timeout: Duration,
    /// The most requests of one worker that shapers hold at a time. Each costs about as much memory
    /// as a request in flight. A further request that would have to wait is refused.
    pub max_waiting: usize,
}

impl Default for Options {
    /// Half a second: enough for a Redis in another region, and so little that requests do not pile
    /// up when Redis hangs.
    fn default() -> Self {
        Self {
            store_timeout: Duration::from_millis(500),
            max_waiting: 10_000,
        }
    }
}

/// The part of the caller's deadline that the response needs to travel back.
const MARGIN: Duration = Duration::from_millis(3);

/// The same for callers with a deadline below [`SHORT_DEADLINE`].
const SMALL_MARGIN: Duration = Duration::from_millis(2);
const SHORT_DEADLINE: Duration = Duration::from_millis(10);

/// The longest wait for the reset of a counter. An operator waits longer than a request.
const RESET_TIMEOUT: Duration = Duration::from_secs(2);

/// Decides the checks of requests.
#[derive(Clone, Debug)]
pub struct Limiter {
    /// `None` if a query of the store costs no more.
    leases: Option<Leases>,
    denial_cache: Option<DenialCache>,
    store: Store,
    failure_policies: FailurePolicies,
    options: Options,
    /// A permit per request that shapers may delay.
    delay_permits: Arc<Semaphore>,
}

/// The decisions on a request, and the places in flight that it has acquired.
#[derive(Debug, Default)]
pub struct Decided {
    pub decisions: Decisions,
    pub places: Option<Box<Places>>,
}

/// The checks of a request, and what their decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Undecided<'c> {
    pub checks: &'c Arc<Checks>,
    /// The time to the caller's deadline, from now on; `None` means no deadline.
    pub timeout: Option<Duration>,
    /// The span of the call.
    pub span: &'c TraceSpan,
    /// Count the effects of the checks, where metrics do.
    pub tallies: Option<&'c Tallies>,
}

/// A decision, or the wait for it.
#[derive(Debug)]
pub enum Decide<'c> {
    Now(Decided),
    Later(Later<'c>),
}

/// A decision that has to wait.
#[derive(Debug)]
pub struct Later<'c> {
    limiter: &'c Limiter,
    of: Undecided<'c>,
    /// `None`: a task of its own decides.
    draft: Option<Draft<'c>>,
}

/// The decisions on the checks of a request that is being decided.
#[derive(Debug)]
struct Draft<'c> {
    of: Undecided<'c>,
    began: Instant,
    /// The span of the decision.
    span: TraceSpan,
    /// One per check, by its index; `None` if the check is open: the store has to decide it.
    decided: SmallVec<[Option<Decision>; 4]>,
    effects: Effects,
    /// The checks to send to the store, in ascending order: the open ones, or all of them as peeks.
    to_send: CheckIndices,
    /// The checks as they are sent, if some have other hits than their own.
    sent_as: Option<Arc<Checks>>,
    draws: Option<Box<Draws<'c>>>,
}

impl Decide<'_> {
    /// Waits for the decision, once. It is borrowed: a moved draft would take its place in the
    /// future of a call twice.
    pub async fn wait(&mut self) -> Decided {
        let Later { limiter, of, draft } = match self {
            Self::Now(decided) => return std::mem::take(decided),
            Self::Later(later) => later,
        };
        match draft {
            Some(draft) => Decided {
                decisions: limiter.complete(draft).await,
                places: None,
            },
            None => rare(limiter.decide_in_task(*of)).await,
        }
    }
}

impl Limiter {
    /// A limiter in front of `store`. All workers share the denial cache (`None` if a query of the
    /// store costs no more) and the failure policies.
    pub fn new(
        denial_cache: Option<DenialCache>,
        store: Store,
        failure_policies: FailurePolicies,
        options: Options,
    ) -> Self {
        Self {
            leases: None,
            denial_cache,
            store,
            failure_policies,
            options,
            delay_permits: Arc::new(Semaphore::new(options.max_waiting)),
        }
    }

    /// A limiter with default options in front of `store`, without a denial cache and leases.
    pub fn of(store: Store) -> Self {
        let policies = FailurePolicies::new(&failure_policies::Options::default());
        Self::new(None, store, policies, Options::default())
    }

    /// The same limiter with leases, which all workers share.
    #[must_use]
    pub fn with_leases(self, leases: Option<Leases>) -> Self {
        Self { leases, ..self }
    }

    /// Makes one decision per check and trial, in time for the caller.
    #[must_use]
    pub fn decide<'c>(&'c self, of: Undecided<'c>) -> Decide<'c> {
        if let Some(decisions) = self.decide_at_once(of) {
            let places = self.places(of, &decisions);
            return Decide::Now(Decided { decisions, places });
        }
        let mut draft = None;
        if !of.checks.has_holders() {
            let mut drafted = self.draft(of);
            if drafted.to_send.is_empty() {
                let (decisions, places) = (drafted.decisions(), None);
                return Decide::Now(Decided { decisions, places });
            }
            draft = Some(drafted);
        }
        let limiter = self;
        Decide::Later(Later { limiter, of, draft })
    }

    /// Decides checks by counters of this process, if nothing else can have a part in it.
    #[inline]
    fn decide_at_once(&self, of: Undecided<'_>) -> Option<Decisions> {
        if of.checks.total() == 0 {
            return Some(Decisions::default());
        }
        let memory = self.memory_at_once(of.checks)?;
        let _span = of.decide_span();
        let answers = memory.decide_all(of.checks, arriving(Span::ZERO));
        of.observe(answers.effects());
        // It answers all checks.
        let mut decisions = Decisions::of_store(&answers);
        if !decisions.effects.is_empty() {
            reservations::undo_in(memory, of, &mut decisions, |_| true, |algorithm| algorithm);
        }
        Some(decisions)
    }

    /// The store, if it is memory and nothing else can have a part in the decision of these checks.
    fn memory_at_once(&self, checks: &Checks) -> Option<&Memory> {
        match &self.store {
            Store::Memory(memory) if self.denial_cache.is_none() && !checks.may_delay() => {
                Some(memory)
            }
            Store::Memory(_) | Store::Redis(_) => None,
        }
    }

    /// The time of a decision that begins now, for a caller with this deadline.
    fn budget(&self, began: Instant, timeout: Option<Duration>) -> Budget {
        let left = timeout.map(less_margin);
        let most = self.options.store_timeout;
        let allowed = left.unwrap_or(Duration::MAX).min(most);
        Budget {
            deadline: began + allowed,
            max_wait: left.map_or(Span::MAX, Span::from),
            allowed,
            caller: timeout,
        }
    }

    /// Decides the open checks of a draft, by the store or by failure policies, and delays the
    /// request if a shaper does.
    async fn complete(&self, draft: &mut Draft<'_>) -> Decisions {
        let (of, checks, began) = (draft.of, draft.of.checks, draft.began);
        let is_shaped = is_shaped(checks);
        let permit = if is_shaped {
            self.delay_permits.try_acquire().ok()
        } else {
            None
        };
        let mut budget = self.budget(began, of.timeout);
        if is_shaped && permit.is_none() {
            // A shaper refuses a request that would have to wait.
            budget.max_wait = Span::ZERO;
        }

        let tallies = of.tallies.filter(|_| checks.has_effects());
        let observed = tallies.map(|tallies| self.store.with_tallies(tallies));
        let store = observed.as_ref().unwrap_or(&self.store);
        while !draft.to_send.is_empty() {
            let picked = std::mem::take(&mut draft.to_send);
            let sent = draft.sent_as.take();
            let sent = sent.as_ref().unwrap_or(checks);
            let trip = self.trip(&draft.span, picked.len());
            let answers = store.decide(sent, &picked, &budget).await;
            end_trip(trip, checks, &picked, &answers.each);
            of.observe(answers.effects());
            self.take_in(draft, picked, answers);
        }
        let mut decisions = draft.decisions();
        let effects = self.failure_policies.complete(checks, &mut decisions, || {
            let passed = Span::from(began.elapsed()).micros();
            let left = budget.max_wait.micros().saturating_sub(passed);
            arriving(Span::from_micros(left))
        });
        of.observe(effects.iter().copied());
        decisions.add_effects(effects);
        if !(is_shaped || checks.has_holds()) {
            return decisions;
        }
        // Boxed with the decisions, which would have two places in the future of each call.
        rare(self.finish(store, draft, &budget, decisions)).await
    }

    /// Ends a decision that delays its request, or that may have to give back what it has reserved.
    async fn finish(
        &self,
        store: &Store,
        draft: &Draft<'_>,
        budget: &Budget,
        mut decisions: Decisions,
    ) -> Decisions {
        let (checks, began) = (draft.of.checks, draft.began);
        self.undo(store, draft.of, budget, &mut decisions).await;
        // A request with places is delayed after its task.
        let delay = if checks.has_holders() {
            Span::ZERO
        } else {
            longest_delay(checks, &decisions[..checks.len()])
        };
        // A sleep takes a tick of the timer even when its time has come already.
        if delay > Span::ZERO {
            let delayed_until = Instant::now() + Duration::from(delay);
            let latest = began + Duration::from(budget.max_wait);
            tokio::time::sleep_until(delayed_until.min(latest)).await;
        }
        decisions
    }

    /// Resets the counter of a check to zero: in the store, and in this process if it counts by
    /// `on_store_failure: local`. `raised` are the same checks with the numbers of an override:
    /// their cached refusals are dropped too. Returns whether the store had a counter.
    ///
    /// # Errors
    /// The store did not reset the counter, or it is unknown whether it did.
    pub async fn reset(
        &self,
        checks: &Checks,
        index: CheckIndex,
        raised: &Checks,
    ) -> Result<bool, StoreError> {
        let (key, deadline) = (checks.key(&checks[index]), Instant::now() + RESET_TIMEOUT);
        let existed = match &self.store {
            Store::Memory(memory) => Ok(memory.reset(key)),
            Store::Redis(redis) => redis.reset(checks, index, deadline).await,
        };
        let _ = self.failure_policies.local().reset(key);
        if let Some(denial_cache) = &self.denial_cache {
            denial_cache.forget(checks);
            denial_cache.forget(raised);
        }
        if let Some(leases) = &self.leases {
            leases.forget(checks);
            leases.forget(raised);
        }
        existed
    }

    /// The sum of the holds of a check's counter that are not settled.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn held_hits(
        &self,
        checks: &Checks,
        index: CheckIndex,
    ) -> Result<Option<HeldHits>, StoreError> {
        match &self.store {
            Store::Memory(memory) => Ok(memory.held_hits(checks.key(&checks[index]), clock::now())),
            Store::Redis(redis) => {
                let deadline = Instant::now() + RESET_TIMEOUT;
                redis.held_hits(checks, index, deadline).await
            }
        }
    }

    /// The hits that this process has drawn ahead for a check and not used.
    pub fn leased(&self, checks: &Checks, index: CheckIndex) -> u64 {
        let leases = self.leases.as_ref();
        leases.map_or(0, |leases| leases.leased(checks, index, Instant::now()))
    }

    /// The span of a round trip to Redis for `checks` checks. It is not around the call of the
    /// store, because another future around it costs each call hundreds of instructions.
    #[inline]
    fn trip(&self, span: &TraceSpan, checks: usize) -> TraceSpan {
        match self.store {
            Store::Redis(_) if span.is_recorded() => {
                let trip = span.child("redis", SpanKind::Client);
                trip.set("db.system.name", "redis");
                trip.set("db.operation.batch.size", checks as i64);
                trip
            }
            Store::Redis(_) | Store::Memory(_) => TraceSpan::default(),
        }
    }
}

/// Arrival of a request that is decided now, and may be held for at most `max_wait`.
fn arriving(max_wait: Span) -> Arrival {
    let now = clock::now();
    Arrival { now, max_wait }
}

impl Undecided<'_> {
    /// The span of the decision.
    fn decide_span(&self) -> TraceSpan {
        let span = self.span.child("decide", SpanKind::Internal);
        span.set("weir.checks", self.checks.len() as i64);
        span
    }

    /// Counts effects of the checks.
    fn observe(&self, effects: impl IntoIterator<Item = (CheckIndex, Effect)>) {
        if let Some(tallies) = self.tallies {
            tallies.observe_effects(self.checks, effects);
        }
    }
}

/// Whether a check may delay its request.
fn is_shaped(checks: &Checks) -> bool {
    checks.iter().any(|check| check.algorithm.may_delay())
}

/// Ends a trip that was to answer the checks at `picked`. Trials do not fail it.
#[inline]
#[expect(clippy::needless_pass_by_value, reason = "the trip ends with its span")]
fn end_trip(trip: TraceSpan, checks: &Checks, picked: &[CheckIndex], answers: &[Answer]) {
    if trip.is_recorded()
        && let Some(error) = picked
            .iter()
            .filter(|&&index| !checks.is_trial(index))
            .find_map(|&CheckIndex(index)| answers[index].verdict.err())
    {
        trip.fail(error_type(error));
    }
}

/// Error type of a store's error in a span.
fn error_type(error: StoreError) -> &'static str {
    match error {
        StoreError::NotExecuted(_) => "not_executed",
        StoreError::Unknown(_) => "unknown_outcome",
        StoreError::Data(_) => "stored_data",
    }
}

/// The rest of a deadline without the margin for the response.
pub(crate) fn less_margin(timeout: Duration) -> Duration {
    timeout.saturating_sub(if timeout < SHORT_DEADLINE {
        SMALL_MARGIN
    } else {
        MARGIN
    })
}

/// Time that a request is delayed: the longest delay of its shapers if the whole request is allowed,
/// else zero. A shaper in shadow mode does not delay.
pub(crate) fn longest_delay(checks: &Checks, decisions: &[Decision]) -> Span {
    let refused = checks.is_over_limit(decisions.iter().map(Decision::allows));
    if refused || decisions.iter().find_map(Decision::failure).is_some() {
        return Span::ZERO;
    }
    let shapers = checks
        .iter()
        .zip(decisions)
        .filter(|(check, _)| !check.modes.shadow);
    shapers
        .filter_map(|(_, decision)| decision.verdict())
        .map(|verdict| verdict.delay)
        .max()
        .unwrap_or_default()
}

impl Limiter {
    /// Decides checks by leases and the denial cache, as far as these do. Neither waits.
    fn draft<'c>(&'c self, of: Undecided<'c>) -> Draft<'c> {
        let (checks, began) = (of.checks, Instant::now());
        let (leases, replicas) = (self.leases.as_ref(), self.failure_policies.replicas());
        let draws = leases.and_then(|leases| leases.draws(checks, began, replicas));
        let mut draft = Draft {
            of,
            began,
            span: of.decide_span(),
            decided: SmallVec::from_elem(None, checks.total()),
            effects: Effects::new(),
            to_send: checks.all(),
            sent_as: None,
            draws: draws.map(Box::new),
        };
        let ahead = draft.use_leases();
        if let Some(denial_cache) = &self.denial_cache {
            draft.use_denial_cache(denial_cache);
        }
        let decided = &draft.decided;
        draft.to_send.retain(|index| decided[index.0].is_none());
        let is_part = (checks.trials().len() + 1..checks.total()).contains(&draft.to_send.len());
        draft.sent_as = if checks.is_all_or_none() && is_part {
            // The others only peek: they must not be counted.
            let mut peeks = Checks::clone(checks);
            peeks.peek_only(checks.len());
            draft.to_send = checks.all();
            Some(Arc::new(peeks))
        } else {
            self.note_refused(&draft);
            ahead.map(Arc::new)
        };
        draft
    }

    /// Takes in the store's answers to the checks at `picked`.
    fn take_in(&self, draft: &mut Draft<'_>, mut picked: CheckIndices, answers: Answers) {
        let (checks, mut each) = (draft.of.checks, answers.each);
        let are_peeks = picked.iter().any(|index| !draft.is_open(*index));
        if are_peeks {
            if draft.fits(&each) {
                self.note_refused(draft);
            } else {
                // Only the store decides which of them are over their limits.
                draft.decided[..checks.len()].fill(None);
                draft.to_send = checks.indices();
            }
        } else if let Some(draws) = &mut draft.draws {
            draft.to_send = draws.take_in(checks, &picked, &mut each);
        }
        picked.retain(|index| !draft.to_send.contains(index));
        if let Some(denial_cache) = self.denial_cache.as_ref().filter(|_| !are_peeks) {
            denial_cache.record(checks, &picked, &each, draft.began, Instant::now);
        }
        for index in picked {
            if !draft.is_open(index) {
                continue;
            }
            let answer = &each[index.0];
            if answer.effect != Effect::None {
                draft.effects.push((index, answer.effect));
            }
            let decision = match draft.leased(index) {
                Some(verdict) => Decision::Lease(verdict),
                None => Decision::of_store(answer.verdict),
            };
            draft.decided[index.0] = Some(decision);
        }
    }

    /// Notes hits on tracked checks that the denial cache has refused.
    fn note_refused(&self, draft: &Draft<'_>) {
        let checks = draft.of.checks;
        if checks.is_tracked() {
            self.store.note_refused(checks, |CheckIndex(index)| {
                matches!(draft.decided[index], Some(Decision::DenialCache(_)))
            });
        }
    }
}

impl Draft<'_> {
    fn is_open(&self, CheckIndex(index): CheckIndex) -> bool {
        self.decided[index].is_none()
    }

    /// The answer of leases to a check.
    fn leased(&self, index: CheckIndex) -> Option<Verdict> {
        self.draws.as_ref()?.answer(index)
    }

    /// Decides the checks that leases answer. Returns the checks with the hits to draw ahead, if
    /// there are some.
    fn use_leases(&mut self) -> Option<Checks> {
        let (draws, mut ahead) = (self.draws.as_ref()?, None);
        for index in self.of.checks.indices() {
            let hits = draws.ahead(index);
            if let Some(verdict) = draws.answer(index) {
                self.decided[index.0] = Some(Decision::Lease(verdict));
            } else if hits > 0 {
                let checks = ahead.get_or_insert_with(|| Checks::clone(self.of.checks));
                checks.draw_ahead(index, hits);
            }
        }
        ahead
    }

    /// Decides the open checks that the denial cache refuses. Leases may lift a refusal: held hits
    /// answer it, or the store is asked.
    fn use_denial_cache(&mut self, denial_cache: &DenialCache) {
        if self.decided.iter().all(Option::is_some) {
            return;
        }
        let checks = self.of.checks;
        let refused = denial_cache.refused(checks, self.began);
        for (index, refusal) in checks.indices().into_iter().zip(refused) {
            let Some(refusal) = refusal.filter(|_| self.is_open(index)) else {
                continue;
            };
            let draws = self.draws.as_mut();
            let is_lifted = draws.is_some_and(|draws| draws.lifts_refusal(checks, index));
            let decision = match self.leased(index) {
                Some(verdict) => Decision::Lease(verdict),
                None if is_lifted => continue,
                None => Decision::DenialCache(refusal),
            };
            self.decided[index.0] = Some(decision);
        }
    }

    /// Whether each check that peeked has as many hits left as it needs.
    fn fits(&self, peeks: &[Answer]) -> bool {
        self.of.checks.indexed().all(|(index, check)| {
            let has_left =
                |peek: Verdict| peek.allowed && check.hits.unsigned_abs() <= peek.remaining;
            !self.is_open(index) || peeks[index.0].verdict.is_ok_and(has_left)
        })
    }

    /// The decisions on all checks, of which none is open.
    fn decisions(&mut self) -> Decisions {
        let not_sent = Decision::Fails(StoreError::NotExecuted("not sent"));
        let each = self
            .decided
            .iter()
            .map(|decision| decision.unwrap_or(not_sent));
        Decisions {
            each: each.collect(),
            effects: std::mem::take(&mut self.effects),
        }
    }
}

#[cfg(test)]
mod draft_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::algorithm::{Algorithm, AlgorithmKind, Options as AlgorithmOptions};
    use crate::core::time::{Rate, Unit};
    use crate::limits::plan::{Check, Modes};
    use crate::store::memory;
    use futures_util::FutureExt;

    /// A future that sleeps is not ready when it is polled for the first time, however short the
    /// sleep is.
    #[tokio::test]
    async fn a_shaped_request_that_is_not_held_does_not_sleep() {
        let max_delay = Some(Span::from_secs(3_600));
        let options = AlgorithmOptions {
            kind: AlgorithmKind::LeakyBucket,
            max_delay,
            ..AlgorithmOptions::default()
        };
        let rate = Rate {
            requests_per_unit: 2,
            unit: Unit::Hour,
            unit_multiplier: 1,
        };
        let algorithm = Algorithm::try_new(&rate, &options).expect("an algorithm");
        let store = Store::Memory(Memory::new(memory::Options::default()));
        let limiter = Limiter::of(store);
        let decide = |key: &'static str, hits, modes| {
            let checks = Arc::new(Checks::of([(
                key.as_bytes(),
                Check::new(algorithm, hits, modes),
            )]));
            let span = TraceSpan::default();
            let mut decided = limiter.decide(Undecided {
                checks: &checks,
                timeout: Some(Duration::from_secs(5_000)),
                span: &span,
                tallies: None,
            });
            let decided = decided.wait().now_or_never()?;
            Some(decided.decisions[0].allows())
        };
        let enforced = Modes::default();
        let shadow = Modes {
            shadow: true,
            ..enforced
        };
        assert_eq!(decide("key", 0, enforced), Some(true), "a peek");
        assert_eq!(
            decide("key", 1, enforced),
            Some(true),
            "a request whose slot is free"
        );
        assert_eq!(
            decide("key", 1, enforced),
            None,
            "the next slot is free in half an hour"
        );
        assert_eq!(decide("key", 9, enforced), Some(false), "a refusal");
        assert_eq!(
            decide("key", 0, enforced),
            Some(true),
            "a peek after a queue"
        );
        assert_eq!(decide("shadow", 1, shadow), Some(true));
        assert_eq!(
            decide("shadow", 1, shadow),
            Some(true),
            "shadow mode does not hold"
        );
    }

    #[test]
    fn the_deadline_leaves_a_margin_for_the_response() {
        for (timeout_ms, left_ms) in [(20, 17), (10, 7), (9, 7), (2, 0), (0, 0), (10_000, 9_997)] {
            assert_eq!(
                less_margin(Duration::from_millis(timeout_ms)),
                Duration::from_millis(left_ms),
                "{timeout_ms} ms"
            );
        }
    }
}
