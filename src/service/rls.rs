//! The request path: from a `RateLimitRequest` of Envoy to the response.
//!
//! gRPC calls and `POST /json` all end in `Rls::answer_by`. Each step is one function call of it:
//! decode, load the rules, plan, decide, count, respond. A method of Kuadrant's service adds to some
//! steps.
//!
//! Requests and responses of [`RateLimitService`] stay encoded. [`decode`] reads a request without
//! copying it, names the field of a mistake, where prost's decoder answers INTERNAL, and accepts
//! text that is not UTF-8.
//!
//! Weir reads `grpc-timeout` itself, and not through tonic, because it has to answer before the
//! deadline, by a failure policy if need be.
//!
//! Values of descriptors are no part of a span: clients choose them, and some are secrets. Source
//! of the names in a span: OpenTelemetry semantic conventions for RPC and gRPC, as most collectors
//! know them.

pub mod decode;
mod logs;
pub mod respond;
pub(crate) mod thresholds;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use http::{HeaderMap, HeaderName};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Response, Status};

use crate::core::answer::Decisions;
use crate::core::proto;
use crate::core::proto::rate_limit_response::Code as Overall;
use crate::core::request::DecodedRequest;
use crate::limiter::{Decide, Limiter, Undecided};
use crate::limits::plan::{self, Plan};
use crate::limits::rules::Rules;
use crate::live::Live;
use crate::observe::logged_values::LoggedValues;
use crate::observe::metrics::{Core, Count};
use crate::observe::subjects::Subjects;
use crate::observe::traces::{TraceSpan, Tracer};
use crate::store::redis::error as redis_error;
use crate::store::{Memory, Store, memory};
use decode::decode_into;
pub use generated::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
pub use logs::{DecisionFilter, RefusalLog};
use respond::{Framed, respond};
use thresholds::ThresholdLog;

/// Options of the service.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Options of the plan: the key prefix and the defaults of limits.
    pub plan: plan::Options,
    /// Optional parts of responses.
    pub respond: respond::Options,
    /// The descriptors whose decisions are logged at debug level.
    pub logged: Option<DecisionFilter>,
    /// The log of refusals, if there is one.
    pub refusals: Option<Arc<RefusalLog>>,
    /// The log of limits with `notify`.
    pub thresholds: Arc<ThresholdLog>,
    /// The form of values in the lines of `logged` and `thresholds`; `refusals` has its own.
    pub logged_values: LoggedValues,
    /// Starts the spans of calls. `None` if tracing is off.
    pub tracer: Option<Tracer>,
}

/// The service of one worker.
#[derive(Debug)]
pub struct Rls {
    live: Arc<Live>,
    limiter: Limiter,
    subjects: Arc<Subjects>,
    core: Core,
    options: Options,
}

/// The parts of a service. Each has a default, except the rules.
#[derive(Debug)]
#[must_use]
pub struct Builder {
    live: Arc<Live>,
    limiter: Option<Limiter>,
    worker: Option<(Core, Arc<Subjects>)>,
    options: Options,
}

impl Builder {
    /// The store of the counters, with the limiter's default options; memory by default.
    pub fn store(self, store: Store) -> Self {
        self.limiter(Limiter::of(store))
    }

    /// The limiter and its store. It must be made in the runtime that runs the service.
    pub fn limiter(mut self, limiter: Limiter) -> Self {
        self.limiter = Some(limiter);
        self
    }

    /// The row of counters that the service adds to, and the heaviest subjects, which all workers of
    /// a process share.
    pub fn worker(mut self, core: Core, subjects: Arc<Subjects>) -> Self {
        self.worker = Some((core, subjects));
        self
    }

    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    pub fn build(self) -> Rls {
        let memory = || Limiter::of(Store::Memory(Memory::new(memory::Options::default())));
        let (core, subjects) = (self.worker).unwrap_or_else(|| (Core(0), Subjects::new(1)));
        Rls {
            live: self.live,
            limiter: self.limiter.unwrap_or_else(memory),
            core,
            subjects,
            options: self.options,
        }
    }
}

/// The parts of a call in which a method differs from `ShouldRateLimit`.
pub(super) trait Method<'m>: Send {
    /// Whether the overall code may be OVER_LIMIT.
    const REFUSES: bool = true;

    /// The type of the request's message.
    const MESSAGE: &'static str = "RateLimitRequest";

    /// Changes the decoded request.
    ///
    /// # Errors
    /// A message for the caller: the field, and its mistake.
    fn request(&mut self, _: &Rules, _: &mut DecodedRequest<'m>) -> Result<(), String> {
        Ok(())
    }

    /// Changes the plan before it is decided.
    fn plan(&mut self, _: &mut Plan) {}

    /// Changes the decisions.
    fn decided(&mut self, _: &Plan, _: &mut Decisions) {}

    /// Gets the overall code, unless the request fails.
    fn replied(&mut self, _: Overall) {}
}

struct ShouldRateLimit;

impl Method<'_> for ShouldRateLimit {}

impl Rls {
    /// A service that decides by these rules, and counts in their metrics.
    pub fn builder(live: Arc<Live>) -> Builder {
        Builder {
            live,
            limiter: None,
            worker: None,
            options: Options::default(),
        }
    }

    /// Answers one encoded request. Metrics count its decisions or its failure, and not the call.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the message is malformed or has an impossible value. UNAVAILABLE if no
    /// configuration is loaded, or if the store gives no answer in time and a limit's failure
    /// policy is `error`.
    pub fn answer(
        &self,
        message: &[u8],
        timeout: Option<Duration>,
        span: &TraceSpan,
    ) -> impl Future<Output = Result<Framed, Status>> + Send {
        self.answer_by(ShouldRateLimit, message, timeout, span)
    }

    /// Answers one encoded request of any method.
    ///
    /// # Errors
    /// As of [`Rls::answer`]; or the method rejects the request.
    pub(super) async fn answer_by<'m, M: Method<'m>>(
        &self,
        mut method: M,
        message: &'m [u8],
        timeout: Option<Duration>,
        span: &TraceSpan,
    ) -> Result<Framed, Status> {
        let mut request = DecodedRequest::default();
        decode_into(&mut request, message)
            .map_err(|error| self.invalid(error.of(M::MESSAGE).to_string()))?;
        note_request(span, &request);
        let live = self.live.load();
        let live = live.ok_or_else(|| {
            let status = Status::unavailable("no rate limit configuration loaded");
            self.failed(Count::ServiceFailed, status)
        })?;
        method
            .request(&live.rules, &mut request)
            .map_err(|why| self.invalid(why))?;
        let mut plan =
            Plan::with_overrides(&live.rules, live.overrides(), &request, &self.options.plan);
        method.plan(&mut plan);
        let mut decided = self.limiter.decide(Undecided {
            checks: &plan.checks,
            timeout,
            span,
            tallies: Some(&live.tallies),
        });
        // A decision that is made needs no future.
        let decided = match decided {
            Decide::Now(ref mut decided) => std::mem::take(decided),
            Decide::Later(_) => decided.wait().await,
        };
        let (mut decisions, places) = (decided.decisions, decided.places);
        method.decided(&plan, &mut decisions);
        let mut outcomes = plan.outcomes(&decisions);
        outcomes.is_over_limit &= M::REFUSES;
        live.tallies
            .observe(self.core, request.domain, &plan, &outcomes);
        live.tallies.observe_features(self.core, &plan, &decisions);
        self.subjects.observe(self.core, &request, &plan, &outcomes);
        let (thresholds, values) = (&self.options.thresholds, &self.options.logged_values);
        thresholds.observe(&request, &plan, &outcomes, &live, values);
        if let Some(filter) = &self.options.logged {
            filter.log(&request, &plan, &outcomes, values);
        }
        if let Some(refusals) = &self.options.refusals {
            refusals.observe(&request, &outcomes, live.generation);
        }
        let reply = respond(&request, &outcomes, &self.options.respond);
        let reply = reply.map_err(|error| {
            let why = redis_error::for_callers(error);
            let status = Status::unavailable(format!("{why}; on_store_failure is error"));
            self.failed(Count::StoreFailed, status)
        })?;
        note_code(span, reply.code);
        if reply.shadowed {
            self.live
                .metrics()
                .process
                .count(self.core, Count::GlobalShadow);
        }
        method.replied(reply.code);
        Ok(Framed(reply.answer.0, places))
    }

    /// Counts a request that is invalid.
    #[cold]
    fn invalid(&self, why: String) -> Status {
        self.failed(Count::ServiceFailed, Status::invalid_argument(why))
    }

    /// Counts a request that fails.
    #[cold]
    fn failed(&self, cause: Count, status: Status) -> Status {
        self.live.metrics().process.count(self.core, cause);
        status
    }
}

#[tonic::async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(
        self: Arc<Self>,
        request: Request<EncodedRequest>,
    ) -> Result<Response<Framed>, Status> {
        let call = self.call(request, proto::METHOD_PATH);
        let answer = self.answer(&call.message, call.timeout, &call.span).await;
        self.count_call(&call, answer)
    }
}

/// A gRPC call.
pub(super) struct Call {
    pub(super) message: Bytes,
    /// The time from its start to the caller's deadline.
    pub(super) timeout: Option<Duration>,
    pub(super) span: TraceSpan,
    pub(super) started: Instant,
}

impl Rls {
    /// The call of the method at this path, which begins now.
    #[inline]
    pub(super) fn call(&self, request: Request<EncodedRequest>, path: &'static str) -> Call {
        let started = Instant::now();
        let (metadata, _, EncodedRequest { message, time_left }) = request.into_parts();
        // Dropped at the end of this function: they may take a megabyte.
        let headers = metadata.into_headers();
        let start = |tracer| start_span(tracer, path, &headers);
        Call {
            message,
            timeout: time_left.or_else(|| grpc_timeout(&headers)),
            span: (self.options.tracer.as_ref()).map_or_else(TraceSpan::default, start),
            started,
        }
    }

    /// Counts a call that has ended.
    #[inline]
    pub(super) fn count_call(
        &self,
        call: &Call,
        answer: Result<Framed, Status>,
    ) -> Result<Response<Framed>, Status> {
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        note_answer(&call.span, code);
        let process = &self.live.metrics().process;
        process.request(self.core, code, call.started.elapsed());
        answer.map(Response::new)
    }
}

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The caller's timeout; `None` if the header is missing or malformed.
///
/// Source: "gRPC over HTTP2", Requests: `Timeout → "grpc-timeout" TimeoutValue TimeoutUnit`, where
/// the value has at most eight digits and the units are H (hour), M (minute), S (second), m
/// (millisecond), u (microsecond) and n (nanosecond).
pub fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3_600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

/// The longest domain in a span, in bytes. Nothing else bounds the domain of a request.
const MAX_DOMAIN_BYTES: usize = 256;

/// Starts the span of a call of the method at this path, with these headers.
fn start_span(tracer: &Tracer, path: &'static str, headers: &HeaderMap) -> TraceSpan {
    let name = path.trim_start_matches('/');
    let (service, method) = name.split_once('/').unwrap_or((name, ""));
    let span = tracer.call(name, headers);
    span.set("rpc.system", "grpc");
    span.set("rpc.service", service);
    span.set("rpc.method", method);
    span
}

#[inline]
fn note_request(span: &TraceSpan, request: &DecodedRequest<'_>) {
    if span.is_recorded() {
        let domain = &request.domain[..request.domain.len().min(MAX_DOMAIN_BYTES)];
        span.set("weir.domain", String::from_utf8_lossy(domain).into_owned());
        span.set("weir.descriptors", request.len() as i64);
    }
}

#[inline]
fn note_code(span: &TraceSpan, overall: Overall) {
    if span.is_recorded() {
        span.set("weir.code", overall.as_str_name());
    }
}

/// A call counts as failed only for errors of the server.
#[inline]
fn note_answer(span: &TraceSpan, code: Code) {
    if span.is_recorded() {
        span.set("rpc.grpc.status_code", i64::from(code as i32));
        if matches!(code, Code::Unavailable | Code::Internal | Code::Unknown) {
            span.fail(code.description());
        }
    }
}

#[allow(clippy::pedantic, clippy::all, reason = "generated")]
mod generated {
    include!(concat!(
        env!("OUT_DIR"),
        "/service/envoy.service.ratelimit.v3.rs"
    ));
}

/// An encoded `RateLimitRequest`.
#[derive(Clone, Debug, Default)]
pub struct EncodedRequest {
    pub message: Bytes,
    /// Time until the caller's deadline. `None`: the `grpc-timeout` of the metadata applies.
    pub time_left: Option<Duration>,
}

/// The codec of encoded messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncodedCodec;

impl Codec for EncodedCodec {
    type Encode = Framed;
    type Decode = EncodedRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for EncodedCodec {
    type Item = Framed;
    type Error = Status;

    fn encode(&mut self, answer: Framed, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(answer.message());
        Ok(())
    }
}

impl Decoder for EncodedCodec {
    type Item = EncodedRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<EncodedRequest>, Status> {
        let message = buffer.copy_to_bytes(buffer.remaining());
        let time_left = None;
        Ok(Some(EncodedRequest { message, time_left }))
    }
}

#[cfg(test)]
mod cost_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(header: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(GRPC_TIMEOUT, header.parse().expect("a header value"));
        grpc_timeout(&headers)
    }

    #[test]
    fn every_unit_is_parsed() {
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(
            read("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3_600))
        );
        assert_eq!(read("3M"), Some(Duration::from_secs(180)));
        assert_eq!(read("1S"), Some(Duration::from_secs(1)));
        assert_eq!(read("20000u"), Some(Duration::from_millis(20)));
        assert_eq!(read("7n"), Some(Duration::from_nanos(7)));
    }

    #[test]
    fn a_malformed_header_is_no_timeout() {
        for header in [
            "",
            "m",
            "20",
            "20s",
            "-1m",
            "+1m",
            "1.5S",
            "123456789m",
            "1 m",
        ] {
            assert_eq!(read(header), None, "{header:?}");
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
    }
}
