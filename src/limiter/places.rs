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
use tokio::time::{Instant, sleep, sleep_until};

use super::{Limiter, arriving, is_shaped, longest_delay};
use crate::core::time::Span;
use crate::core::verdict::{Decision, Decisions, StoreError};
use crate::limits::plan::{CheckIndex, CheckIndices, Checks};
use crate::observe::traces::TraceSpan;
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
            self.limiter.take_back(checks, None);
        }
    }
}

impl Limiter {
    /// The allowed acquires among these checks. A request that is refused as a whole has none.
    #[must_use]
    pub fn places(&self, checks: &Checks, decisions: &Decisions) -> Option<Box<Places>> {
        if !checks.has_holders() {
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
                checks: Some(Arc::new(checks.taken_back(&acquired))),
            })
        })
    }

    /// Whether checks move places and may wait: then [`Limiter::decide_places`] decides them.
    pub fn may_leave_places(&self, checks: &Checks) -> bool {
        checks.has_holders() && self.memory_at_once(checks).is_none()
    }

    /// Decides the checks of a request that may move places. When the future is dropped, the
    /// decision continues, and the places that it acquires are taken back.
    #[expect(
        clippy::missing_panics_doc,
        reason = "the task is not cancelled, and a panic in it is one of the request"
    )]
    pub async fn decide_places(
        &self,
        checks: &Arc<Checks>,
        timeout: Option<Duration>,
        parent: &TraceSpan,
    ) -> (Decisions, Option<Box<Places>>) {
        let (sender, receiver) = oneshot::channel();
        let (limiter, shared, span) = (self.clone(), Arc::clone(checks), parent.clone());
        spawn(async move {
            let placed = limiter.placed(&shared, timeout, &span);
            // Without a receiver its places are dropped here.
            let _ = sender.send(placed.await);
        });
        let (decisions, places) = receiver.await.expect("the task ends with a decision");
        // A shaped request is delayed here, after the decision, because it has its places while it
        // waits.
        if is_shaped(checks) {
            sleep(longest_delay(checks, &decisions).into()).await;
        }
        (decisions, places)
    }

    async fn placed(
        &self,
        checks: &Arc<Checks>,
        timeout: Option<Duration>,
        span: &TraceSpan,
    ) -> (Decisions, Option<Box<Places>>) {
        let deadline = self.budget(Instant::now(), timeout).deadline;
        let decisions = self.decide(checks, timeout, span).await;
        let is_unknown = |&CheckIndex(index): &CheckIndex| {
            matches!(decisions[index].store_error(), Some(StoreError::Unknown(_)))
        };
        let unknown: CheckIndices = checks.acquires().filter(is_unknown).collect();
        if !unknown.is_empty() {
            let checks = Arc::new(checks.taken_back(&unknown));
            self.take_back(checks, Some(deadline + RUNS_LATE));
        }
        let places = self.places(checks, &decisions);
        (decisions, places)
    }

    /// Takes acquires back, from this instant on: in the store, and if it has failed, in the
    /// counters of this process.
    fn take_back(&self, checks: Arc<Checks>, from: Option<Instant>) {
        let at = || arriving(Span::ZERO);
        let redis = match &self.store {
            Store::Memory(memory) => {
                let _ = memory.decide_at(&checks, &checks.indices(), at());
                return;
            }
            Store::Redis(redis) => redis.clone(),
        };
        if from.is_none() {
            self.failure_policies.release(&checks, |_| true, at);
        }
        let timeout = self.options.store_timeout;
        spawn(async move {
            if let Some(from) = from {
                sleep_until(from).await;
            }
            let mut checks = checks;
            for pause_ms in PAUSES_MS {
                let budget = Budget::until(Instant::now() + timeout);
                let picked = checks.indices();
                let answers = redis.decide(&checks, &picked, &budget).await.checks;
                let is_open = |&CheckIndex(index): &CheckIndex| {
                    matches!(answers[index], Err(StoreError::NotExecuted(_)))
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

/// Such a task ends at the deadline of a store, or after the last pause. There is no runtime while
/// the process ends; then the task is not started.
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(task));
    }
}
