//! Places of requests in flight whose answers may not reach their callers.
//!
//! A caller that goes away sends no release, because it does not know of its place. An
//! acquire that was allowed therefore has [`Places`] until its answer is delivered. If they are
//! dropped before, they take the place back. A request that moves places is decided in a task of
//! its own, which continues when the call is dropped: only the store's answer shows whether there
//! is a place to take back.
//!
//! If the outcome is unknown, the place is taken back when the acquire can no longer run: the store
//! does not count a place that a failure policy gave.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use super::delays::Delay;
use super::{Decided, Limiter, Undecided, arriving, observe};
use crate::core::answer::{Decision, Decisions};
use crate::core::time::Span;
use crate::core::verdict::StoreError;
use crate::limits::plan::{CheckIndex, CheckIndices, Checks};
use crate::observe::metrics::Tallies;
use crate::store::{Budget, Store};

/// A script runs at most this much later than the deadline of its caller, by the clock of Redis,
/// which is estimated.
const RUNS_LATE: Duration = Duration::from_millis(20);

/// The pauses before further attempts to take places back, while Redis certainly did not. They are
/// long because an open circuit lasts longer than one attempt. After the last one, `max_duration`
/// frees the places.
const PAUSES_MS: [u64; 4] = [100, 300, 900, 2_700];

/// Places that a request has acquired. They are taken back if they are dropped before the answer is
/// delivered.
#[derive(Debug)]
pub struct Places {
    limiter: Limiter,
    tallies: Option<Tallies>,
    /// The checks that take them back; `None` when the answer is delivered.
    checks: Option<Arc<Checks>>,
}

impl Places {
    /// The caller has its answer.
    pub fn delivered(mut self) {
        self.checks = None;
    }

    /// The bytes of memory that they take.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.checks.as_ref().map_or(0, |checks| checks.bytes())
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if let Some(checks) = self.checks.take() {
            self.limiter.take_back(checks, self.tallies.take(), None);
        }
    }
}

impl Limiter {
    /// The allowed acquires among these checks. A request that is refused as a whole has none.
    pub(super) fn places(&self, of: Undecided<'_>, decisions: &Decisions) -> Option<Box<Places>> {
        let checks = of.checks;
        if !checks.moves_places() {
            return None;
        }
        let is_undone =
            checks.is_all_or_none() && checks.is_over_limit(decisions.iter().map(Decision::allows));
        let is_acquired = |&CheckIndex(index): &CheckIndex| {
            decisions[index].verdict().is_some() && decisions[index].allows() && !is_undone
        };
        let acquired: CheckIndices = checks.acquires().filter(is_acquired).collect();
        (!acquired.is_empty()).then(|| {
            Box::new(Places {
                limiter: self.clone(),
                tallies: of.tallies.cloned(),
                checks: Some(Arc::new(checks.taken_back(&acquired))),
            })
        })
    }

    /// Decides the checks of a request that may move places. When the future is dropped after its
    /// first poll, the decision continues, and the places that it acquires are taken back.
    pub(super) async fn decide_in_task(&self, of: Undecided<'_>) -> Decided {
        // A call that is refused because too many wait already is polled once.
        yield_now().await;
        let (sender, receiver) = oneshot::channel();
        let (limiter, checks, span) = (self.clone(), Arc::clone(of.checks), of.span.clone());
        let (timeout, tallies) = (of.timeout, of.tallies.cloned());
        spawn(async move {
            let decided = limiter.decide_with_places(Undecided {
                checks: &checks,
                timeout,
                span: &span,
                tallies: tallies.as_ref(),
            });
            // Without a receiver its places are dropped here.
            let _ = sender.send(decided.await);
        });
        let (decided, delay) = receiver.await.expect("the task ends with a decision");
        // It has its places while it waits.
        if let Some(delay) = delay {
            delay.pass().await;
        }
        decided
    }

    async fn decide_with_places(&self, of: Undecided<'_>) -> (Decided, Option<Delay>) {
        let deadline = self.budget(Instant::now(), of.timeout).deadline;
        let mut draft = self.draft(of);
        let decisions = self.complete(&mut draft).await;
        let is_unknown = |&CheckIndex(index): &CheckIndex| {
            matches!(decisions[index].store_error(), Some(StoreError::Unknown(_)))
        };
        let unknown: CheckIndices = of.checks.acquires().filter(is_unknown).collect();
        if !unknown.is_empty() {
            let checks = Arc::new(of.checks.taken_back(&unknown));
            self.take_back(checks, of.tallies.cloned(), Some(deadline + RUNS_LATE));
        }
        let places = self.places(of, &decisions);
        (Decided { decisions, places }, draft.delay.take())
    }

    /// Takes acquires back, from this instant on: in the store, and if it has failed, in the
    /// counters of this process.
    fn take_back(&self, checks: Arc<Checks>, tallies: Option<Tallies>, from: Option<Instant>) {
        let store = match &tallies {
            Some(tallies) => self.store.with_tallies(tallies),
            None => self.store.clone(),
        };
        let redis = match store {
            Store::Memory(memory) => {
                let answers = memory.decide_all(&checks, arriving(Span::ZERO));
                observe(tallies.as_ref(), &checks, answers.effects());
                return;
            }
            Store::Redis(redis) => redis,
        };
        if from.is_none() {
            let effects = self.failure_policies.release(&checks, |_| true);
            observe(tallies.as_ref(), &checks, effects);
        }
        let timeout = self.options.store_timeout;
        spawn(async move {
            if let Some(from) = from {
                sleep_until(from).await;
            }
            let mut checks = checks;
            for pause_ms in PAUSES_MS {
                let budget = Budget::until(Instant::now() + timeout);
                let answers = redis.decide(&checks, &checks.indices(), &budget).await;
                observe(tallies.as_ref(), &checks, answers.effects());
                let is_open = |&CheckIndex(index): &CheckIndex| {
                    let verdict = &answers.each[index].verdict;
                    matches!(verdict, Err(StoreError::NotExecuted(_)))
                };
                let open: CheckIndices = checks.indices().into_iter().filter(is_open).collect();
                if open.is_empty() {
                    return;
                }
                checks = Arc::new(checks.taken_back(&open));
                sleep(Duration::from_millis(pause_ms)).await;
            }
        });
    }
}

/// Starts a task that ends soon after its request. There is no runtime while the process ends; then
/// the task is not started.
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(task));
    }
}
