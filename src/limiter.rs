//! From a plan to its answers: nothing to ask, or one trip to the store within the caller's time.
//!
//! This is where a denial cache, a circuit breaker and the policy for outages stand in front of the store once they exist; the store itself
//! knows none of them.

use std::time::Duration;

use tokio::time::Instant;

use crate::plan::Plan;
use crate::store::{AnyStore, Store};
use crate::verdict::Answers;

/// How long a decision may take.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The longest wait for the store, also for callers that would wait longer or do not say.
    pub store_timeout: Duration,
}

impl Default for Options {
    /// Half a second: enough for a Redis in another region, little enough that a hanging one does not pile up callers.
    fn default() -> Self {
        Self { store_timeout: Duration::from_millis(500) }
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
}

impl Limiter {
    /// A limiter in front of `store`.
    #[must_use]
    pub const fn new(store: AnyStore, options: Options) -> Self {
        Self { store, options }
    }

    /// One answer per check, within the time of a caller that waits for `timeout`.
    pub async fn decide(&self, plan: &Plan, timeout: Option<Duration>) -> Answers {
        if plan.checks.is_empty() {
            return Answers::none();
        }
        self.store.decide(plan, Instant::now() + budget(timeout, self.options.store_timeout)).await
    }
}

fn budget(timeout: Option<Duration>, longest: Duration) -> Duration {
    match timeout {
        None => longest,
        Some(timeout) if timeout < HURRY => timeout.saturating_sub(SMALL_RESERVE).min(longest),
        Some(timeout) => timeout.saturating_sub(RESERVE).min(longest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_comes_before_the_caller_leaves() {
        let longest = Duration::from_millis(500);
        for (timeout_ms, budget_ms) in [(20, 17), (10, 7), (9, 7), (2, 0), (0, 0), (10_000, 500)] {
            assert_eq!(budget(Some(Duration::from_millis(timeout_ms)), longest), Duration::from_millis(budget_ms), "{timeout_ms} ms");
        }
        assert_eq!(budget(None, longest), longest);
    }
}
