//! Decides the checks of a request: first by hits that were drawn ahead (`leases`), then by the
//! denial cache, then by the store within the caller's deadline, then by the failure policies.
//! Last it holds the request if a shaper delays it.
//!
//! `outages` logs failures of the store with the answers of the failure policies meanwhile, and
//! `replicas` follows the number of replicas that share the limits; no request waits for either.
//!
//! All of them work on one draft of the decisions, in which each check is decided or open. The
//! store does not depend on the others. It receives the open checks once, and a second time only
//! the checks that its first answer leaves open: draws that it refused where refused hits do not
//! count, and checks for which a peek was not enough.
//!
//! A trial is a check of the same draft that takes no part in the request: no lease and no denial
//! cache answers it, because it has to be counted also where they answer the limit, and no failure
//! policy applies to it. In `local` counters it would be a trial of a share of the limit, and would
//! mix two counts: hits that the store did not count are `not_counted`.
//!
//! `STORE_TIMEOUT` (500 ms) bounds callers with a longer deadline. The `grpc-timeout` of the
//! caller, less a reserve, comes first.

pub mod replicas;
mod table;

pub mod denial_cache;
pub mod failure_policies;
pub mod leases;
pub mod outages;
mod places;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::core::algorithm::Arrival;
use crate::core::algorithm::reservations::Held;
use crate::core::time::Span;
use crate::core::verdict::{Decision, Decisions, StoreError, Verdict};
use crate::limits::plan::{CheckIndex, CheckIndices, Checks};
use crate::net::clock;
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

/// The part of the caller's deadline that is reserved for the response to travel back.
const RESERVE: Duration = Duration::from_millis(3);

/// The same for callers with a deadline below [`SHORT_DEADLINE`].
const SMALL_RESERVE: Duration = Duration::from_millis(2);
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
    /// A permit per request that shapers may hold.
    hold_permits: Arc<Semaphore>,
}

/// An open check, which the store has to decide.
const OPEN: Decision = Decision::Fails(StoreError::NotExecuted("not queried yet"));

/// The answer of a store to one check.
type Answer = Result<Verdict, StoreError>;

/// Checks that are decided, or that the store has to decide.
#[derive(Debug)]
pub enum Begun<'c> {
    /// All checks are decided.
    Decided(Decisions),
    /// The store has to decide.
    Open(Draft<'c>),
}

/// Decisions of which some are open.
#[derive(Debug)]
pub struct Draft<'c> {
    checks: &'c Arc<Checks>,
    began: Instant,
    span: TraceSpan,
    /// One per check, by its index; `Fails` if the store has to decide it, or gave no answer.
    each: Decisions,
    /// The checks to send to the store, in ascending order.
    open: CheckIndices,
    /// The checks as they are sent, if some have other hits than their own.
    asked: Option<Arc<Checks>>,
    draws: Option<Box<Draws<'c>>>,
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
            hold_permits: Arc::new(Semaphore::new(options.max_waiting)),
        }
    }

    /// The same limiter with leases, which all workers share.
    #[must_use]
    pub fn with_leases(self, leases: Option<Leases>) -> Self {
        Self { leases, ..self }
    }

    /// Begins to decide checks, by leases, the denial cache or counters of this process, none of
    /// which waits. It is not async, because a future costs more than such a decision.
    #[must_use]
    pub fn begin<'c>(&'c self, checks: &'c Arc<Checks>, parent: &TraceSpan) -> Begun<'c> {
        if checks.total() == 0 {
            return Begun::Decided(Decisions::new());
        }
        let span = parent.child("decide", SpanKind::Internal);
        span.set("weir.checks", checks.len() as i64);
        if let Some(memory) = self.memory_at_once(checks) {
            let at = arriving(Span::ZERO);
            let answers = memory.decide_at(checks, &checks.all(), at).checks;
            // It answers all checks.
            return Begun::Decided(answers.into_iter().map(by_store).collect());
        }
        let draft = self.draft(checks, span);
        if draft.open.is_empty() {
            return Begun::Decided(draft.each);
        }
        Begun::Open(draft)
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
        let left = timeout.map(less_reserve);
        let most = self.options.store_timeout;
        let allowed = left.unwrap_or(Duration::MAX).min(most);
        Budget {
            deadline: began + allowed,
            max_hold: left.map_or(Span::MAX, Span::from),
            allowed,
            caller: timeout,
        }
    }

    /// Makes one decision per check and trial, in time for a caller whose deadline is `timeout`
    /// from now; `None` means no deadline.
    pub async fn decide(
        &self,
        checks: &Arc<Checks>,
        timeout: Option<Duration>,
        parent: &TraceSpan,
    ) -> Decisions {
        // Borrowed: a moved draft would take its place in this future twice.
        match &mut self.begin(checks, parent) {
            Begun::Decided(decisions) => std::mem::take(decisions),
            Begun::Open(draft) => self.finish(draft, timeout).await,
        }
    }

    /// Decides the open checks, by the store or by failure policies, and holds the request if a
    /// shaper delays it.
    pub async fn finish(&self, draft: &mut Draft<'_>, timeout: Option<Duration>) -> Decisions {
        let (checks, began) = (draft.checks, draft.began);
        let is_shaped = is_shaped(checks);
        let permit = if is_shaped {
            self.hold_permits.try_acquire().ok()
        } else {
            None
        };
        let mut budget = self.budget(began, timeout);
        if is_shaped && permit.is_none() {
            // A shaper refuses a request that would have to wait.
            budget.max_hold = Span::ZERO;
        }

        while !draft.open.is_empty() {
            let picked = std::mem::take(&mut draft.open);
            let asked = draft.asked.take();
            let asked = asked.as_ref().unwrap_or(checks);
            let trip = self.trip(&draft.span, picked.len());
            let answers = self.store.decide(asked, &picked, &budget).await.checks;
            end_trip(trip, checks, &picked, &answers);
            self.take_in(draft, picked, answers);
        }
        let mut decisions = std::mem::take(&mut draft.each);
        self.failure_policies.apply(checks, &mut decisions, || {
            let passed = Span::from(began.elapsed()).micros();
            let left = budget.max_hold.micros().saturating_sub(passed);
            arriving(Span::from_micros(left))
        });
        if checks.has_holders() || checks.has_reservations() {
            // The local counters release them too, whether the store or a policy decided the
            // releases.
            let is_open = |index: CheckIndex| !matches!(decisions[index.0], Decision::Local(..));
            let at = || arriving(Span::ZERO);
            self.failure_policies.release(checks, is_open, at);
        }
        // `decide_places` holds the others.
        let delay = if is_shaped && !checks.has_holders() {
            longest_delay(checks, &decisions[..checks.len()])
        } else {
            Span::ZERO
        };
        // A sleep takes a tick of the timer even when its time has come already.
        if delay > Span::ZERO {
            let held_until = Instant::now() + Duration::from(delay);
            let held_until = held_until.min(began + Duration::from(budget.max_hold));
            // Boxed: it would make the futures of all other requests larger.
            Box::pin(tokio::time::sleep_until(held_until)).await;
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
        let existed = match &self.store {
            Store::Memory(memory) => Ok(memory.reset(checks.key(&checks[index]))),
            Store::Redis(redis) => {
                redis
                    .reset(checks, index, Instant::now() + RESET_TIMEOUT)
                    .await
            }
        };
        let _ = self
            .failure_policies
            .local()
            .reset(checks.key(&checks[index]));
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

    /// The hits of a check that are reserved and not settled.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn reserved(
        &self,
        checks: &Checks,
        index: CheckIndex,
    ) -> Result<Option<Held>, StoreError> {
        match &self.store {
            Store::Memory(memory) => Ok(memory.held(checks.key(&checks[index]), clock::now())),
            Store::Redis(redis) => {
                let deadline = Instant::now() + RESET_TIMEOUT;
                redis.held(checks, index, deadline).await
            }
        }
    }

    /// The hits that this process has drawn ahead for a check and still holds.
    pub fn held(&self, checks: &Checks, index: CheckIndex) -> u64 {
        let leases = self.leases.as_ref();
        leases.map_or(0, |leases| leases.held(checks, index, Instant::now()))
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

/// Whether a check has no decision yet.
fn is_open(decision: &Decision) -> bool {
    decision.failure().is_some()
}

fn by_store(answer: Answer) -> Decision {
    answer.map_or_else(Decision::Fails, Decision::Store)
}

/// Arrival of a request that is decided now, and may be held for at most `max_hold`.
fn arriving(max_hold: Span) -> Arrival {
    let now = clock::now();
    Arrival { now, max_hold }
}

/// Whether a check may hold its request.
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
            .find_map(|&CheckIndex(index)| answers[index].as_ref().err())
    {
        trip.fail(error_type(*error));
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

/// The rest of a deadline without the part that is reserved for the response.
pub(crate) fn less_reserve(timeout: Duration) -> Duration {
    timeout.saturating_sub(if timeout < SHORT_DEADLINE {
        SMALL_RESERVE
    } else {
        RESERVE
    })
}

/// Time that a request is held: the longest delay of its shapers if the whole request is allowed,
/// else zero. A shaper in shadow mode does not delay.
pub(crate) fn longest_delay(checks: &Checks, decisions: &[Decision]) -> Span {
    let refused = checks.is_over_limit(decisions.iter().map(Decision::allows));
    if refused
        || decisions
            .iter()
            .any(|decision| decision.failure().is_some())
    {
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
    /// Draft of a request that begins now, as far as leases and the denial cache decide it.
    fn draft<'c>(&'c self, checks: &'c Arc<Checks>, span: TraceSpan) -> Draft<'c> {
        let began = Instant::now();
        let mut each: Decisions = SmallVec::from_elem(OPEN, checks.total());
        let (mut asked, replicas) = (None, self.failure_policies.replicas());
        let leases = self.leases.as_ref();
        let mut draws = leases.and_then(|leases| leases.begin(checks, began, replicas));
        if let Some(draws) = &draws {
            for (index, _) in checks.indexed() {
                let ahead = draws.ahead(index);
                if let Some(held) = draws.answer(index) {
                    each[index.0] = Decision::Lease(held);
                } else if ahead > 0 {
                    let asked = asked.get_or_insert_with(|| Checks::clone(checks));
                    asked.draw_ahead(index, ahead);
                }
            }
        }
        if let Some(denial_cache) = &self.denial_cache
            && each.iter().any(is_open)
        {
            let refused = denial_cache.refused(checks, began);
            for ((index, _), refusal) in checks.indexed().zip(refused) {
                let Some(refusal) = refusal.filter(|_| is_open(&each[index.0])) else {
                    continue;
                };
                let is_lifted = draws
                    .as_mut()
                    .is_some_and(|draws| draws.lifts_refusal(checks, index));
                let held = draws.as_ref().and_then(|draws| draws.answer(index));
                each[index.0] = match held {
                    Some(verdict) => Decision::Lease(verdict),
                    None if is_lifted => OPEN,
                    None => Decision::DenialCache(refusal),
                };
            }
        }
        let mut open = checks.all();
        open.retain(|index| is_open(&each[index.0]));
        let is_part = (checks.trials().len() + 1..checks.total()).contains(&open.len());
        if checks.is_all_or_none() && is_part {
            // The others only peek: they must not be counted.
            asked.insert(Checks::clone(checks)).peek_only(checks.len());
            open = checks.all();
        } else {
            self.note_refused(checks, &each);
        }
        Draft {
            checks,
            began,
            span,
            each,
            open,
            asked: asked.map(Arc::new),
            draws: draws.map(Box::new),
        }
    }

    /// Takes in the store's answers to the checks at `picked`.
    fn take_in(
        &self,
        draft: &mut Draft<'_>,
        mut picked: CheckIndices,
        mut answers: SmallVec<[Answer; 4]>,
    ) {
        let checks = draft.checks;
        let are_peeks = picked.iter().any(|index| !is_open(&draft.each[index.0]));
        if are_peeks && draft.fits(&answers) {
            self.note_refused(checks, &draft.each);
        } else if are_peeks {
            // Only the store decides which of them are over their limits.
            draft.each[..checks.len()].fill(OPEN);
            draft.open = checks.indices();
        } else if let Some(draws) = &mut draft.draws {
            draft.open = draws.finish(checks, &picked, &mut answers);
        }
        picked.retain(|index| !draft.open.contains(index));
        if let Some(denial_cache) = self.denial_cache.as_ref().filter(|_| !are_peeks) {
            denial_cache.record(checks, &picked, &answers, draft.began, Instant::now);
        }
        for index in picked {
            let each = &mut draft.each[index.0];
            if is_open(each) {
                let draws = draft.draws.as_ref();
                let held = draws.and_then(|draws| draws.answer(index));
                *each = match held {
                    Some(verdict) => Decision::Lease(verdict),
                    None => by_store(answers[index.0]),
                };
            }
        }
    }

    fn note_refused(&self, checks: &Checks, each: &Decisions) {
        if checks.is_tracked() {
            self.store.note_refused(checks, |CheckIndex(index)| {
                matches!(each[index], Decision::DenialCache(_))
            });
        }
    }
}

impl Draft<'_> {
    /// Whether each check that peeked has as many hits left as it needs.
    fn fits(&self, peeks: &[Answer]) -> bool {
        self.checks.indexed().all(|(CheckIndex(index), check)| {
            let has_left =
                |peek: &Verdict| peek.allowed && check.hits.unsigned_abs() <= peek.remaining;
            !is_open(&self.each[index]) || peeks[index].as_ref().is_ok_and(has_left)
        })
    }
}

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
        let limiter = Limiter::new(
            None,
            store,
            FailurePolicies::new(&failure_policies::Options::default()),
            Options::default(),
        );
        let decide = |key: &'static str, hits, modes| {
            let checks = Arc::new(Checks::of([(
                key.as_bytes(),
                Check::new(algorithm, hits, modes),
            )]));
            let decisions = limiter
                .decide(
                    &checks,
                    Some(Duration::from_secs(5_000)),
                    &TraceSpan::default(),
                )
                .now_or_never()?;
            Some(decisions[0].allows())
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
    fn the_deadline_leaves_a_reserve_for_the_response() {
        for (timeout_ms, left_ms) in [(20, 17), (10, 7), (9, 7), (2, 0), (0, 0), (10_000, 9_997)] {
            assert_eq!(
                less_reserve(Duration::from_millis(timeout_ms)),
                Duration::from_millis(left_ms),
                "{timeout_ms} ms"
            );
        }
    }
}
