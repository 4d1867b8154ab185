//! The request path: from a `RateLimitRequest` of Envoy to the response.
//!
//! gRPC calls and `POST /json` both end in [`Rls::answer`]. Each step is one function call of it:
//! decode, load the rules, plan, decide, count, respond.

pub mod codec;
mod decision_log;
pub mod decode;
mod log_text;
mod refusal_log;
pub mod respond;
mod spans;
pub mod timeout;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::{Code, Request, Response, Status};

use crate::core::ask::Ask;
use crate::limiter::{Begun, Limiter};
use crate::limits::plan::{self, Plan};
use crate::live::Live;
use crate::observe::metrics::{Core, ErrorCause, Metrics};
use crate::observe::subjects::Subjects;
use crate::observe::traces::{TraceSpan, Tracer};
use crate::store::redis::error as redis_error;
pub use codec::{EncodedRequest, RateLimitService, RateLimitServiceServer};
pub use decision_log::DecisionFilter;
use decode::decode_into;
pub(crate) use log_text::LONGEST_TEXT;
pub use log_text::{LoggedValues, MIN_SECRET_BYTES};
pub use refusal_log::RefusalLog;
use respond::{Framed, respond};
use timeout::grpc_timeout;

/// Options of the service.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Options of the plan: the key prefix and the defaults of limits.
    pub plan: plan::Options,
    /// What responses carry besides the statuses.
    pub respond: respond::Options,
    /// The descriptors whose decisions are logged at debug level.
    pub logged: Option<DecisionFilter>,
    /// The log of refusals, if there is one.
    pub refusals: Option<Arc<RefusalLog>>,
    /// How the lines of both show values.
    pub logged_values: LoggedValues,
    /// What starts the spans of calls; `None` while tracing is off.
    pub tracer: Option<Tracer>,
}

/// The service of one worker.
#[derive(Debug)]
pub struct Rls {
    live: Arc<Live>,
    limiter: Limiter,
    metrics: Arc<Metrics>,
    subjects: Arc<Subjects>,
    core: Core,
    options: Options,
}

impl Rls {
    /// A service for `core`. `limiter` must be made in the runtime that runs the service.
    pub fn new(
        live: Arc<Live>,
        limiter: Limiter,
        metrics: Arc<Metrics>,
        subjects: Arc<Subjects>,
        core: Core,
        options: Options,
    ) -> Self {
        Self {
            live,
            limiter,
            metrics,
            subjects,
            core,
            options,
        }
    }

    /// The limiter, whose clones share its connections.
    pub const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Answers one encoded request, and counts it if it fails.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the message is malformed or has an impossible value. UNAVAILABLE if no
    /// configuration is loaded, or if the store gives no answer in time and a limit's failure
    /// policy is `error`.
    pub async fn answer(
        &self,
        message: &[u8],
        timeout: Option<Duration>,
        span: &TraceSpan,
    ) -> Result<Framed, Status> {
        let mut ask = Ask::default();
        decode_into(&mut ask, message).map_err(|error| {
            self.failed(
                ErrorCause::Service,
                Status::invalid_argument(error.to_string()),
            )
        })?;
        spans::asked(span, &ask);
        let live = self.live.load();
        let live = live.ok_or_else(|| {
            let status = Status::unavailable("no rate limit configuration loaded");
            self.failed(ErrorCause::Service, status)
        })?;
        let mut plan =
            Plan::with_overrides(&live.rules, live.overrides(), &ask, &self.options.plan);
        plan.count_holders(|limit| live.tallies.gauge(limit));
        let (limiter, checks) = (&self.limiter, &plan.checks);
        let (decisions, places) = if limiter.may_leave_places(checks) {
            // In a box of its own, which would make the futures of all other calls larger.
            Box::pin(limiter.decide_places(checks, timeout, span)).await
        } else {
            let decisions = match limiter.begin(checks, span) {
                Begun::Decided(decisions) => decisions,
                Begun::Open(draft) => limiter.finish(draft, timeout).await,
            };
            let places = limiter.places(checks, &decisions);
            (decisions, places)
        };
        let outcomes = plan.outcomes(&decisions);
        live.tallies
            .observe(self.core, ask.domain, &plan, &outcomes);
        live.tallies.observe_trials(self.core, &plan, &decisions);
        self.subjects.observe(self.core, &ask, &plan, &outcomes);
        if let Some(filter) = &self.options.logged {
            filter.log(&ask, &plan, &outcomes, &self.options.logged_values);
        }
        if let Some(refusals) = &self.options.refusals {
            refusals.observe(&ask, &outcomes, live.generation);
        }
        let reply = respond(&ask, &outcomes, &self.options.respond).map_err(|error| {
            let why = redis_error::for_callers(error);
            let status = Status::unavailable(format!("{why}; on_store_failure is error"));
            self.failed(ErrorCause::Store, status)
        })?;
        spans::decided(span, reply.code);
        if reply.shadowed {
            self.metrics.global_shadow(self.core);
        }
        Ok(reply.answer.with(places))
    }

    /// Counts a request that fails.
    #[cold]
    fn failed(&self, cause: ErrorCause, status: Status) -> Status {
        self.metrics.request_failed(self.core, cause);
        status
    }
}

#[tonic::async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(
        &self,
        request: Request<EncodedRequest>,
    ) -> Result<Response<Framed>, Status> {
        let started = Instant::now();
        let (metadata, _, EncodedRequest { message, time_left }) = request.into_parts();
        let headers = metadata.into_headers();
        let timeout = time_left.or_else(|| grpc_timeout(&headers));
        let tracer = self.options.tracer.as_ref();
        let span = tracer.map_or_else(TraceSpan::default, |tracer| spans::start(tracer, &headers));
        // They may take a megabyte.
        drop(headers);
        let answer = self.answer(&message, timeout, &span).await;
        spans::answered(&span, &answer);
        self.metrics.request_answered(
            self.core,
            answer.as_ref().map_or_else(Status::code, |_| Code::Ok),
            started.elapsed(),
        );
        answer.map(Response::new)
    }
}

#[cfg(test)]
mod cost_tests;
