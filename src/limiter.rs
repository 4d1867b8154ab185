//! From a plan to its answers: nothing to ask, or one trip to the store within the caller's time, and then the wait that a shaper asks for.
//!
//! This is where a denial cache, a circuit breaker and the policy for outages stand in front of the store once they exist; the store itself
//! knows none of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::plan::Plan;
use crate::store::{AnyStore, Store, Within};
use crate::time::Span;
use crate::verdict::Answers;

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
    store: AnyStore,
    options: Options,
    waiting: Arc<Semaphore>,
}

impl Limiter {
    /// A limiter in front of `store`.
    #[must_use]
    pub fn new(store: AnyStore, options: Options) -> Self {
        Self { store, options, waiting: Arc::new(Semaphore::new(options.max_waiting)) }
    }

    /// One answer per check, within the time of a caller that waits for `timeout`.
    pub async fn decide(&self, plan: &Arc<Plan>, timeout: Option<Duration>) -> Answers {
        if plan.checks.is_empty() {
            return Answers::none();
        }
        let now = Instant::now();
        let left = timeout.map(less_the_way_back);
        let deadline = now + left.unwrap_or(Duration::MAX).min(self.options.store_timeout);
        if !plan.checks.iter().any(|check| check.algorithm.holds()) {
            return self.store.decide(plan, &plan.all(), Within::until(deadline)).await;
        }
        // Without a place to wait in, only what need not wait is allowed.
        let place = self.waiting.try_acquire().ok();
        let patience = if place.is_some() { left.map_or(Span::MAX, Span::from) } else { Span::ZERO };
        let answers = self.store.decide(plan, &plan.all(), Within { deadline, patience }).await;
        let held_until = Instant::now() + Duration::from(longest_delay(plan, &answers));
        tokio::time::sleep_until(left.map_or(held_until, |left| held_until.min(now + left))).await;
        answers
    }
}

fn less_the_way_back(timeout: Duration) -> Duration {
    timeout.saturating_sub(if timeout < HURRY { SMALL_RESERVE } else { RESERVE })
}

/// How long a request is held: for its slowest shaper if all of it is allowed, else not at all. A shaper in shadow mode holds nobody.
fn longest_delay(plan: &Plan, answers: &Answers) -> Span {
    let refused = plan.refuses(answers.checks.iter().map(|answer| answer.is_ok_and(|verdict| verdict.allowed)));
    if refused || answers.checks.iter().any(Result::is_err) {
        return Span::ZERO;
    }
    let holding = plan.checks.iter().zip(&answers.checks).filter(|(check, _)| !check.role.shadow);
    holding.filter_map(|(_, answer)| answer.ok()).map(|verdict| verdict.delay).max().unwrap_or_default()
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
