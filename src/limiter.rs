//! From a plan to its decisions: the denial cache, then the store within the caller's time, then the policy for outages, and last the wait
//! that a shaper asks for.
//!
//! The store knows none of the others. What the denial cache answers asks no store, and waits for none.

pub mod denial_cache;
pub mod failure_policies;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::algorithm::Arrival;
use crate::plan::{CheckIndex, CheckIndices, Checks};
use crate::store::{AnyStore, Budget, Store, memory};
use crate::time::Span;
use crate::verdict::{Decision, Decisions};
pub use denial_cache::DenialCache;
pub use failure_policies::FailurePolicies;
use failure_policies::PartialDecisions;

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
    denials: Option<DenialCache>,
    store: AnyStore,
    outage: FailurePolicies,
    options: Options,
    waiting: Arc<Semaphore>,
}

impl Limiter {
    /// A limiter in front of `store`, with what all cores share: the refusals that are known, where a look at them is cheaper than the
    /// store, and what answers when the store does not.
    #[must_use]
    pub fn new(denials: Option<DenialCache>, store: AnyStore, outage: FailurePolicies, options: Options) -> Self {
        Self { denials, store, outage, options, waiting: Arc::new(Semaphore::new(options.max_waiting)) }
    }

    /// One decision per check, within the time of a caller that waits for `timeout`.
    pub async fn decide(&self, checks: &Arc<Checks>, timeout: Option<Duration>) -> Decisions {
        if checks.is_empty() {
            return Decisions::new();
        }
        let began = Instant::now();
        let is_shaped = checks.iter().any(|check| check.algorithm.may_delay());
        let permit = if is_shaped { self.waiting.try_acquire().ok() } else { None };
        let left = timeout.map(less_the_way_back);
        let budget = Budget {
            deadline: began + left.unwrap_or(Duration::MAX).min(self.options.store_timeout),
            // Without a permit to wait, only what need not wait is allowed.
            max_hold: permit.as_ref().map_or(Span::ZERO, |_| left.map_or(Span::MAX, Span::from)),
        };

        let partial = self.ask(checks, began, budget).await;
        let decisions = self.outage.apply_policies(checks, partial, || Arrival {
            now: memory::now(),
            max_hold: Span::from_micros(budget.max_hold.micros().saturating_sub(Span::from(began.elapsed()).micros())),
        });
        if is_shaped {
            let held_until = Instant::now() + Duration::from(longest_delay(checks, &decisions));
            tokio::time::sleep_until(held_until.min(began + Duration::from(budget.max_hold))).await;
        }
        decisions
    }

    /// The denial cache where it knows, else the store.
    async fn ask(&self, checks: &Arc<Checks>, began: Instant, budget: Budget) -> PartialDecisions {
        let Some(denials) = &self.denials else {
            let answers = self.store.decide(checks, &checks.indices(), budget).await.checks;
            return answers.into_iter().map(|answer| answer.map(Decision::Store)).collect();
        };
        let known = denials.refused(checks, began);
        let picked: CheckIndices = (0..known.len()).filter(|&index| known[index].is_none()).map(CheckIndex).collect();
        if picked.is_empty() {
            return known.into_iter().flatten().map(|verdict| Ok(Decision::DenialCache(verdict))).collect();
        }
        let answers = self.store.decide(checks, &picked, budget).await.checks;
        denials.learn(checks, &picked, &answers, began, Instant::now());
        let decision = |(known, answer): (Option<_>, Result<_, _>)| {
            known.map_or_else(|| answer.map(Decision::Store), |verdict| Ok(Decision::DenialCache(verdict)))
        };
        known.into_iter().zip(answers).map(decision).collect()
    }
}

fn less_the_way_back(timeout: Duration) -> Duration {
    timeout.saturating_sub(if timeout < HURRY { SMALL_RESERVE } else { RESERVE })
}

/// How long a request is held: for its slowest shaper if all of it is allowed, else not at all. A shaper in shadow mode holds nobody.
fn longest_delay(checks: &Checks, decisions: &Decisions) -> Span {
    let refused = checks.is_over_limit(decisions.iter().map(Decision::allows));
    if refused || decisions.iter().any(|decision| decision.failure().is_some()) {
        return Span::ZERO;
    }
    let holding = checks.iter().zip(decisions).filter(|(check, _)| !check.modes.shadow);
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
