//! THE REQUEST PATH: what happens between a message from Envoy and its answer.
//!
//! gRPC and `POST /json` both end in [`Rls::answer`]. Everything that takes time or may fail is one of its verbs.

pub mod codec;
pub mod decode;
mod failure;
pub mod respond;
mod timeout;

use std::sync::Arc;
use std::time::Instant;

use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

use crate::limiter::Limiter;
use crate::live::Live;
use crate::metrics::{Core, Metrics};
use crate::plan::{self, Plan};
use crate::proto::{RateLimitResponse, RateLimitService};
use codec::Frame;
use decode::decode;
use failure::Failure;
use respond::respond;

/// How requests are read and answered.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What goes into counter keys.
    pub plan: plan::Options,
    /// What goes into answers besides the verdicts.
    pub respond: respond::Options,
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
    pub async fn answer(&self, frame: &[u8], metadata: &MetadataMap) -> Result<RateLimitResponse, Status> {
        self.decide(frame, metadata).await.map_err(|failure| {
            self.metrics.failed(self.core, matches!(failure, Failure::Store(_)));
            failure.into()
        })
    }

    async fn decide(&self, frame: &[u8], metadata: &MetadataMap) -> Result<RateLimitResponse, Failure> {
        let ask = decode(frame)?;
        let live = self.live.load().ok_or(Failure::NoRules)?;
        let plan = Arc::new(Plan::new(&live.rules, &ask, &self.options.plan));
        let decisions = self.limiter.decide(&plan, timeout::grpc_timeout(metadata)).await;
        live.tallies.observe(self.core, ask.domain, &plan, &decisions);
        let reply = respond(&ask, &plan, &decisions, &self.options.respond).map_err(Failure::Store)?;
        if reply.shadowed {
            self.metrics.global_shadow(self.core);
        }
        Ok(reply.response)
    }
}

#[tonic::async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(&self, request: Request<Frame>) -> Result<Response<RateLimitResponse>, Status> {
        let started = Instant::now();
        let answer = self.answer(&request.get_ref().0, request.metadata()).await;
        self.metrics.request(self.core, answer.as_ref().map_or_else(Status::code, |_| Code::Ok), started.elapsed());
        answer.map(Response::new)
    }
}

#[cfg(test)]
mod costs;
