//! From a plan to its decisions: the denial cache, then the store within the caller's time, then the policy for outages, and last the wait
//! that a shaper asks for.
//!
//! The store knows none of the others. What the denial cache answers asks no store, and waits for none.

pub mod denials;
pub mod outage;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::algorithm::Arrival;
use crate::plan::Plan;
use crate::store::{AnyStore, Store, Within, memory};
use crate::time::Span;
use crate::verdict::{Decision, Decisions};
pub use denials::Denials;
pub use outage::Outage;

/// How long a decision may take.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The longest wait for the store, also for callers that would wait longer or do not say.
    pub store_timeout: Duration,
    /// Requests of one core that a shaper holds at a time; each costs about as much memory as a request in flight. Beyond it, a request
    /// that would have to wait is refused.
    pub max_waiting: usize,
}

impl Default for Options {
    /// Half a second: enough for a Redis in another region, little enough that a hanging one does not pile up callers.
    fn default() -> Self {
        Self { store_timeout: Duration::from_millis(500), max_waiting: 10_000 }
    }
}

/// Kept of the caller's time for the way back.
const RESERVE: Duration = Duration::from_millis(3);

/// The same for callers in a hurry: those that wait less than [`HURRY`].
const SMALL_RESERVE: Duration = Duration::from_millis(2);
const HURRY: Duration = Duration::from_millis(10);

/// Decides plans.
#[derive(Clone, Debug)]
pub struct Limiter {
    denials: Option<Denials>,
    store: AnyStore,
    outage: Outage,
    options: Options,
    waiting: Arc<Semaphore>,
}

/// The time of one decision.
#[derive(Clone, Copy, Debug)]
struct Time {
    began: Instant,
    /// When the store has to have answered.
    deadline: Instant,
    /// When the caller has to have its answer; `None`: it waits for as long as it takes.
    leaves: Option<Instant>,
    /// There is a place to wait in, so that a shaper may hold the request.
    may_wait: bool,
}

impl Limiter {
    /// A limiter in front of `store`, with what all cores share: the refusals that are known, where a look at them is cheaper than the
    /// store, and what answers when the store does not.
    #[must_use]
    pub fn new(denials: Option<Denials>, store: AnyStore, outage: Outage, options: Options) -> Self {
        Self { denials, store, outage, options, waiting: Arc::new(Semaphore::new(options.max_waiting)) }
    }

    /// One decision per check, within the time of a caller that waits for `timeout`.
    pub async fn decide(&self, plan: &Arc<Plan>, timeout: Option<Duration>) -> Decisions {
        if plan.checks.is_empty() {
            return Decisions::new();
        }
        let is_shaped = plan.checks.iter().any(|check| check.algorithm.may_delay());
        let place = if is_shaped { self.waiting.try_acquire().ok() } else { None };
        let time = Time::new(timeout, self.options.store_timeout, place.is_some());

        let asked = self.ask(plan, &time).await;
        let decisions = self.outage.settle(plan, asked, || Arrival { now: memory::now(), max_hold: time.patience(Instant::now()) });
        if is_shaped {
            time.hold(longest_delay(plan, &decisions)).await;
        }
        decisions
    }

    /// The denial cache where it knows, else the store.
    async fn ask(&self, plan: &Arc<Plan>, time: &Time) -> outage::Asked {
        let Some(denials) = &self.denials else {
            let answers = self.store.decide(plan, &plan.all(), time.within()).await;
            return answers.checks.into_iter().map(|answer| answer.map(Decision::Store)).collect();
        };
        let known = denials.refused(plan, time.began);
        let picked: SmallVec<[usize; 4]> = (0..known.len()).filter(|&place| known[place].is_none()).collect();
        let mut asked: outage::Asked = SmallVec::new();
        if picked.is_empty() {
            asked.extend(known.into_iter().flatten().map(|verdict| Ok(Decision::DenialCache(verdict))));
            return asked;
        }
        let answers = self.store.decide(plan, &picked, time.within()).await.checks;
        denials.learn(plan, &picked, &answers, time.began, Instant::now());
        let mut answers = answers.into_iter().map(|answer| answer.map(Decision::Store));
        asked.extend(
            known.into_iter().filter_map(|known| known.map_or_else(|| answers.next(), |verdict| Some(Ok(Decision::DenialCache(verdict))))),
        );
        asked
    }
}

impl Time {
    fn new(timeout: Option<Duration>, store_timeout: Duration, may_wait: bool) -> Self {
        let began = Instant::now();
        let left = timeout.map(less_the_way_back);
        Self {
            began,
            deadline: began + left.unwrap_or(Duration::MAX).min(store_timeout),
            leaves: left.and_then(|left| began.checked_add(left)),
            may_wait,
        }
    }

    /// How long a shaper may hold the request from `now` on. Without a place to wait in, only what need not wait is allowed.
    fn patience(&self, now: Instant) -> Span {
        match self.leaves {
            _ if !self.may_wait => Span::ZERO,
            None => Span::MAX,
            Some(leaves) => leaves.saturating_duration_since(now).into(),
        }
    }

    fn within(&self) -> Within {
        Within { deadline: self.deadline, patience: self.patience(self.began) }
    }

    /// Waits for a shaper's slot, but not longer than the caller.
    async fn hold(&self, delay: Span) {
        let until = Instant::now() + Duration::from(delay);
        tokio::time::sleep_until(self.leaves.map_or(until, |leaves| until.min(leaves))).await;
    }
}

fn less_the_way_back(timeout: Duration) -> Duration {
    timeout.saturating_sub(if timeout < HURRY { SMALL_RESERVE } else { RESERVE })
}

/// How long a request is held: for its slowest shaper if all of it is allowed, else not at all. A shaper in shadow mode holds nobody.
fn longest_delay(plan: &Plan, decisions: &Decisions) -> Span {
    let refused = plan.refuses(decisions.iter().map(Decision::allows));
    if refused || decisions.iter().any(|decision| decision.failure().is_some()) {
        return Span::ZERO;
    }
    let holding = plan.checks.iter().zip(decisions).filter(|(check, _)| !check.role.shadow);
    holding.filter_map(|(_, decision)| decision.verdict()).map(|verdict| verdict.delay).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_comes_before_the_caller_leaves() {
        for (timeout_ms, left_ms) in [(20, 17), (10, 7), (9, 7), (2, 0), (0, 0), (10_000, 9_997)] {
            assert_eq!(less_the_way_back(Duration::from_millis(timeout_ms)), Duration::from_millis(left_ms), "{timeout_ms} ms");
        }
    }
}
