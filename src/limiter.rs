//! Decides the checks of a request: first by hits that were drawn ahead (`leases`), then by the
//! denial cache, then by the store within the caller's deadline, then by the failure policies. Last
//! it holds the request if a shaper delays it. All of them work on one `draft` of the decisions.
//!
//! `outages` logs failures of the store, and how the failure policies answered during them;
//! `replicas` follows the number of replicas that share the limits; no request waits for either.
//!
//! The entry point is [`Limiter::decide`]. What needs no store is decided at once, without a future;
//! everything else waits in [`Later`]: for the store, for a shaper, or for a task that continues
//! when the call is dropped.

pub mod replicas;
mod table;

mod deadline;
mod delays;
pub mod denial_cache;
mod draft;
pub mod failure_policies;
pub mod leases;
pub mod outages;
mod places;
pub(crate) mod reservations;
mod traces;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::core::algorithm::Arrival;
use crate::core::answer::{Decisions, Effect};
use crate::core::time::Span;
use crate::core::verdict::StoreError;
use crate::limits::plan::{CheckIndex, Checks};
use crate::net::clock;
use crate::net::rare::rare;
use crate::observe::metrics::Tallies;
use crate::observe::traces::TraceSpan;
use crate::store::{Memory, Store};
pub(crate) use deadline::less_margin;
pub(crate) use delays::longest_delay;
use delays::{Delay, is_shaped};
pub use denial_cache::DenialCache;
use draft::Draft;
pub use failure_policies::FailurePolicies;
use leases::Draws;
pub use leases::Leases;
pub use places::Places;
use traces::end_trip;

/// Time limits of a decision, and the maximum number of held requests.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The longest wait for the store, also for callers with a longer deadline or without one.
    pub store_timeout: Duration,
    /// The most requests of one worker that shapers may delay and that are under way. Each costs
    /// about as much memory as any request in flight. A further one that would have to wait is
    /// refused.
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

/// The longest wait for a query or a reset by an operator. A request waits for less.
const OPERATOR_TIMEOUT: Duration = Duration::from_secs(2);

/// Decides the checks of requests.
#[derive(Clone, Debug)]
pub struct Limiter {
    /// `None` with a store that is as fast.
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
    /// The metrics that count the effects of the checks; `None`: nothing counts them.
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

impl Decide<'_> {
    /// Waits for the decision. Called once. By reference: a future that owned the draft would have
    /// room for it twice.
    pub async fn wait(&mut self) -> Decided {
        let Later { limiter, of, draft } = match self {
            Self::Now(decided) => return std::mem::take(decided),
            Self::Later(later) => later,
        };
        let Some(draft) = draft else {
            return rare(limiter.decide_in_task(*of)).await;
        };
        let (decisions, places) = (limiter.complete(draft).await, None);
        if let Some(delay) = draft.delay.take() {
            rare(delay.pass()).await;
        }
        Decided { decisions, places }
    }
}

impl Limiter {
    /// A limiter in front of `store`. All workers share the denial cache (`None` with a store that is
    /// as fast) and the failure policies.
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

    /// Makes one decision per check, in time for the caller.
    #[must_use]
    pub fn decide<'c>(&'c self, of: Undecided<'c>) -> Decide<'c> {
        if let Some(decisions) = self.decide_at_once(of) {
            let places = self.places(of, &decisions);
            return Decide::Now(Decided { decisions, places });
        }
        let (limiter, mut draft) = (self, None);
        if !of.checks.moves_places() {
            let draft = draft.insert(self.draft(of));
            if draft.to_send.is_empty() {
                let (decisions, places) = (draft.decisions(), None);
                return Decide::Now(Decided { decisions, places });
            }
        }
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
            of.undo_in(memory, &mut decisions, |_| true, |algorithm| algorithm);
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

    /// Decides the open checks of a draft, by the store or by failure policies, and notes the delay
    /// of the request in it.
    async fn complete(&self, draft: &mut Draft<'_>) -> Decisions {
        let (of, checks, began) = (draft.of, draft.of.checks, draft.began);
        let is_shaped = is_shaped(checks);
        let mut permit = None;
        let mut budget = self.budget(began, of.timeout);
        if is_shaped {
            permit = Arc::clone(&self.delay_permits).try_acquire_owned().ok();
            if permit.is_none() {
                // A shaper refuses a request that would have to wait.
                budget.max_wait = Span::ZERO;
            }
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
        if checks.has_holds() {
            rare(self.undo(store, of, &budget, &mut decisions)).await;
        }
        if is_shaped {
            let latest = began + Duration::from(budget.max_wait);
            draft.delay = Delay::of(checks, &decisions[..checks.len()], latest, permit);
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
        let (key, deadline) = (
            checks.key(&checks[index]),
            Instant::now() + OPERATOR_TIMEOUT,
        );
        let existed = match &self.store {
            Store::Memory(memory) => Ok(memory.reset(key)),
            Store::Redis(redis) => redis.reset(checks, index, deadline).await,
        };
        let _ = self.failure_policies.local().reset(key);
        for checks in [checks, raised] {
            if let Some(cache) = &self.denial_cache {
                cache.forget(checks);
            }
            if let Some(leases) = &self.leases {
                leases.forget(checks);
            }
        }
        existed
    }
}

/// Arrival of a request that is decided now, and may be held for at most `max_wait`.
fn arriving(max_wait: Span) -> Arrival {
    let now = clock::now();
    Arrival { now, max_wait }
}

/// Counts effects of checks in these metrics.
fn observe(
    tallies: Option<&Tallies>,
    checks: &Checks,
    effects: impl IntoIterator<Item = (CheckIndex, Effect)>,
) {
    if let Some(tallies) = tallies {
        tallies.observe_effects(checks, effects);
    }
}

impl Undecided<'_> {
    /// Counts effects of the checks.
    fn observe(&self, effects: impl IntoIterator<Item = (CheckIndex, Effect)>) {
        observe(self.tallies, self.checks, effects);
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

    /// A check of a limit of requests in flight, by request `id`, and of a shaper whose next slot
    /// is half an hour later.
    fn shaped_with_place(id: &str) -> Arc<Checks> {
        let rate = |requests_per_unit| Rate {
            requests_per_unit,
            unit: Unit::Hour,
            unit_multiplier: 1,
        };
        let made = |kind, requests, max_delay, max_duration| {
            let options = AlgorithmOptions {
                kind,
                max_delay,
                max_duration,
                ..AlgorithmOptions::default()
            };
            Algorithm::try_new(&rate(requests), &options).expect("an algorithm")
        };
        let hour = Some(Span::from_secs(3_600));
        let checks = Checks::of(
            [
                made(AlgorithmKind::LeakyBucket, 2, hour, None),
                made(AlgorithmKind::Concurrency, 100, None, hour),
            ]
            .map(|algorithm| {
                let key = algorithm.spec().name.as_bytes();
                (key, Check::new(algorithm, 1, Modes::default()))
            }),
        );
        Arc::new(checks.with_holder(CheckIndex(1), id.as_bytes()))
    }

    /// Such a call is dropped if too many wait already.
    #[tokio::test]
    async fn a_call_that_was_polled_once_acquires_nothing() {
        let limiter = Limiter::of(Store::Memory(Memory::new(memory::Options::default())));
        let (checks, span) = (shaped_with_place("a"), TraceSpan::default());
        let mut decide = limiter.decide(Undecided {
            checks: &checks,
            timeout: None,
            span: &span,
            tallies: None,
        });
        assert!(decide.wait().now_or_never().is_none());
        let tasks = tokio::runtime::Handle::current().metrics();
        assert_eq!(tasks.num_alive_tasks(), 0);
    }

    /// A request with a place counts as one that is delayed while it is.
    #[tokio::test(start_paused = true)]
    async fn delayed_requests_with_places_are_bounded() {
        let policies = FailurePolicies::new(&failure_policies::Options::default());
        let options = Options {
            max_waiting: 1,
            ..Options::default()
        };
        let store = Store::Memory(Memory::new(memory::Options::default()));
        let limiter = Limiter::new(None, store, policies, options);
        let span = TraceSpan::default();
        let decide = async |id: &str| {
            let checks = shaped_with_place(id);
            let mut decide = limiter.decide(Undecided {
                checks: &checks,
                timeout: Some(Duration::from_secs(5_000)),
                span: &span,
                tallies: None,
            });
            decide.wait().await.decisions[0].allows()
        };
        assert!(decide("a").await, "a free slot");
        let delayed = std::pin::pin!(decide("b"));
        let delayed = tokio::time::timeout(Duration::from_secs(1), delayed);
        let (delayed, other) = tokio::join!(delayed, async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            decide("c").await
        });
        assert!(delayed.is_err(), "the next slot is in half an hour");
        assert!(!other, "one request is delayed already");
    }
}
