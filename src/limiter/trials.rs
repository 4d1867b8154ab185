//! Decides trials beside the checks of a request.
//!
//! A trial goes from here to the store and nowhere else: neither the denial cache nor a failure
//! policy knows it, and its verdict delays nothing. Both are asked at once, so that they are in one
//! batch to Redis.
//!
//! A trial is asked about also where the denial cache refuses the real check, because its number
//! may be larger: otherwise it would count fewer hits than it tries. Its own refusals are not
//! cached: each would count as refused without its own counter.
//!
//! A request waits for its trials where the store answers, which it does in the same batch, and
//! drops them where it does not: no answer of a failure policy is late for a trial. A trial in
//! `local` counters would be that of a share of the limit, and would mix two counts: what the store
//! did not count is `not_counted`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use tokio::time::Instant;

use super::Limiter;
use crate::core::verdict::{Answers, Decision, Decisions, StoreError};
use crate::limits::plan::Checks;
use crate::observe::traces::TraceSpan;

/// The answer to a trial that the request did not wait for. It may be counted.
const ABANDONED: StoreError = StoreError::Unknown("abandoned");

impl Limiter {
    /// Decides `checks` as [`Limiter::decide`] does, and counts the trials beside them. Returns the
    /// store's answers to the trials.
    ///
    /// The request waits for its trials where the store answers. Where it does not, they would only
    /// make an answer late that a failure policy has given.
    pub async fn decide_with_trials(
        &self,
        checks: &Arc<Checks>,
        trials: &Arc<Checks>,
        timeout: Option<Duration>,
        parent: &TraceSpan,
    ) -> (Decisions, Answers) {
        let decided = pin!(self.decide(checks, timeout, parent));
        let tried = pin!(self.ask_trials(trials, timeout));
        match select(decided, tried).await {
            Either::Left((decisions, tried))
                if decisions
                    .iter()
                    .any(|decision| decision.store_error().is_some()) =>
            {
                let answers = tried.now_or_never();
                (
                    decisions,
                    answers.unwrap_or_else(|| Answers::failed(trials.len(), ABANDONED)),
                )
            }
            Either::Left((decisions, tried)) => (decisions, tried.await),
            Either::Right((answers, decided)) => (decided.await, answers),
        }
    }

    /// What the trials have left.
    pub async fn look_at_trials(&self, trials: &Arc<Checks>) -> Decisions {
        let answers = self.ask_trials(trials, None).await;
        answers
            .checks
            .into_iter()
            .map(|answer| answer.map_or_else(Decision::PolicyAllows, Decision::Store))
            .collect()
    }

    async fn ask_trials(&self, trials: &Arc<Checks>, timeout: Option<Duration>) -> Answers {
        // As for a real limit. Nothing is held.
        let budget = self.budget(Instant::now(), timeout);
        self.store.decide(trials, &trials.indices(), budget).await
    }
}
