//! THE REQUEST PATH: what happens between a message from Envoy and its answer.
//!
//! gRPC and `POST /json` both end in [`Rls::answer`]. Everything that takes time or may fail is one of its verbs.

pub mod codec;
pub mod decode;
mod failure;
pub mod respond;
pub mod timeout;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::limiter::Limiter;
use crate::live::Live;
use crate::metrics::{Core, ErrorCause, Metrics};
use crate::plan::{self, Plan};
use decode::decode;
use failure::Failure;
use respond::{Framed, respond};

/// How requests are read and answered.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What goes into counter keys.
    pub plan: plan::Options,
    /// What goes into answers besides the verdicts.
    pub respond: respond::Options,
}

/// Who answers `ShouldRateLimit`, by whatever way it came.
pub trait ShouldRateLimit: Send + Sync + 'static {
    /// Answers one encoded `RateLimitRequest`, whose caller waits for `timeout` if it says so. A future that is dropped asks for nothing
    /// any more.
    fn should_rate_limit(&self, message: &[u8], timeout: Option<Duration>) -> impl Future<Output = Result<Framed, Status>> + Send;
}

/// The service of one core.
#[derive(Debug)]
pub struct Rls {
    live: Arc<Live>,
    limiter: Limiter,
    metrics: Arc<Metrics>,
    core: Core,
    options: Options,
}

impl Rls {
    /// The service for `core`, whose limiter was made in the runtime that will run it.
    #[must_use]
    pub fn new(live: Arc<Live>, limiter: Limiter, metrics: Arc<Metrics>, core: Core, options: Options) -> Self {
        Self { live, limiter, metrics, core, options }
    }

    /// Decides one encoded request, and counts it when it fails.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a message that is malformed or asks for something impossible; UNAVAILABLE when there are no rules yet or the
    /// store gives no answer in time.
    pub async fn answer(&self, message: &[u8], timeout: Option<Duration>) -> Result<Framed, Status> {
        self.decide(message, timeout).await.map_err(|failure| {
            let cause = if matches!(failure, Failure::Store(_)) { ErrorCause::Store } else { ErrorCause::Service };
            self.metrics.request_failed(self.core, cause);
            failure.into()
        })
    }

    async fn decide(&self, message: &[u8], timeout: Option<Duration>) -> Result<Framed, Failure> {
        let ask = decode(message)?;
        let live = self.live.load().ok_or(Failure::NoRules)?;
        let plan = Plan::new(&live.rules, &ask, &self.options.plan);
        let decisions = self.limiter.decide(&plan.checks, timeout).await;
        live.tallies.observe(self.core, ask.domain, &plan, &decisions);
        let reply = respond(&ask, &plan, &decisions, &self.options.respond).map_err(Failure::Store)?;
        if reply.shadowed {
            self.metrics.global_shadow(self.core);
        }
        Ok(reply.answer)
    }
}

impl ShouldRateLimit for Rls {
    async fn should_rate_limit(&self, message: &[u8], timeout: Option<Duration>) -> Result<Framed, Status> {
        let started = Instant::now();
        let answer = self.answer(message, timeout).await;
        self.metrics.request_answered(self.core, answer.as_ref().map_or_else(Status::code, |_| Code::Ok), started.elapsed());
        answer
    }
}

#[cfg(test)]
mod cost_tests;
