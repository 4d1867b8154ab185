//! What the span of a call says. Values of descriptors are no part of it: clients choose them, and
//! some are secrets.
//!
//! Source of the names: OpenTelemetry semantic conventions for RPC and gRPC, as most collectors
//! know them.

use http::HeaderMap;
use tonic::{Code, Status};

use super::respond::Framed;
use crate::core::ask::Ask;
use crate::core::proto;
use crate::core::proto::rate_limit_response::Code as Overall;
use crate::observe::traces::{TraceSpan, Tracer};

/// The longest domain in a span, in bytes. Only Envoy's configuration chooses it, but nothing else
/// bounds it.
const MAX_DOMAIN_BYTES: usize = 256;

/// Starts the span of a call with these headers.
pub(super) fn start(tracer: &Tracer, headers: &HeaderMap) -> TraceSpan {
    let span = tracer.call(proto::METHOD_PATH.trim_start_matches('/'), headers);
    span.set("rpc.system", "grpc");
    span.set("rpc.service", proto::SERVICE_NAME);
    span.set("rpc.method", "ShouldRateLimit");
    span
}

#[inline]
pub(super) fn asked(span: &TraceSpan, ask: &Ask<'_>) {
    if span.is_recorded() {
        let domain = &ask.domain[..ask.domain.len().min(MAX_DOMAIN_BYTES)];
        span.set("weir.domain", String::from_utf8_lossy(domain).into_owned());
        span.set("weir.descriptors", ask.len() as i64);
    }
}

#[inline]
pub(super) fn decided(span: &TraceSpan, overall: Overall) {
    if span.is_recorded() {
        span.set("weir.code", overall.as_str_name());
    }
}

/// A call failed if that is the server's fault.
#[inline]
pub(super) fn answered(span: &TraceSpan, answer: &Result<Framed, Status>) {
    if span.is_recorded() {
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        span.set("rpc.grpc.status_code", i64::from(code as i32));
        if matches!(code, Code::Unavailable | Code::Internal | Code::Unknown) {
            span.fail(code.description());
        }
    }
}
