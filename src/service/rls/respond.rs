//! Encodes decisions as a `RateLimitResponse`: the statuses, the overall code, and the optional
//! parts: headers about limits, `retry-after`, the body of a refusal, and dynamic metadata.
//!
//! The statuses are encoded directly, without an intermediate message, because most of a response
//! is a few numbers. The overall code is never UNKNOWN, which Envoy would take for OK. The body of
//! a refusal is a problem in JSON, which Envoy sends to its client instead of an empty body.
//!
//! Sources: `envoy/service/ratelimit/v3/rls.proto` (`RateLimitResponse`); RFC 9457, and
//! draft-ietf-httpapi-ratelimit-headers-11, section 5, for the types of problems, their titles and
//! `violated-policies`.
//!
//! All lengths are computed before the first byte is written, for one allocation of the right size.
//! Fields with their default value are left out, as in every proto3 encoder. prost encodes the rare
//! parts: headers, the body of a refusal and metadata. A property test compares the encoding with
//! prost's. Source: protobuf.dev, "Encoding".

mod fields;
pub(crate) mod metadata;

use std::borrow::Cow;

use bytes::{Buf, Bytes};
use prost::Message;
use serde::Serialize;

use crate::core::answer::Decision;
use crate::core::proto::rate_limit_response::Code;
use crate::core::proto::{HeaderValue, RateLimitResponse};
use crate::core::request::DecodedRequest;
use crate::core::time::{Rate, Span};
use crate::core::verdict::{StoreError, Wait};
use crate::limiter::Places;
use crate::limits::plan::{DecidedBy, Outcome, Outcomes};
use fields::names;

/// Optional parts of responses, named like the settings.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "settings that do not depend on each other"
)]
pub struct Options {
    /// `SHADOW_MODE`: the overall code is always OK. The statuses stay as they are.
    pub shadow_mode: bool,
    /// `RATELIMIT_HEADERS` and `LIMIT_RESPONSE_HEADERS_ENABLED`: the headers about limits.
    pub ratelimit_headers: RateLimitHeaders,
    /// `LIMIT_REQUEST_HEADERS_ENABLED`: the names of three headers about one limit that Envoy adds
    /// to the request for the upstream, as envoyproxy/ratelimit has them.
    pub request_headers: Option<HeaderNames>,
    /// `RETRY_AFTER_HEADER_ENABLED`: a refused request gets a `retry-after` header.
    pub retry_after: bool,
    /// `PROBLEM_DETAILS_ENABLED`: a refused request gets a body with the limits that refused it.
    pub problem_details: bool,
    /// `REFUSED_BY_HEADER`: the name of the header in which a refused request gets the names of the
    /// limits that refused it.
    pub refused_by: Option<String>,
    /// `LIMIT_PATHS_AS_NAMES_ENABLED`: the status of a limit without a name has its path instead of
    /// a name.
    pub paths_as_names: bool,
    /// `RESPONSE_DYNAMIC_METADATA`: the request, the `metadata` of the limits that were not
    /// exceeded, the limits that refuse, and the hits that the request holds.
    pub dynamic_metadata: bool,
}

impl Options {
    /// Whether any response has more than its statuses.
    fn has_extras(&self) -> bool {
        !matches!(self.ratelimit_headers, RateLimitHeaders::Off)
            || self.request_headers.is_some()
            || self.retry_after
            || self.problem_details
            || self.refused_by.is_some()
            || self.dynamic_metadata
    }
}

/// The form of the headers about limits.
#[derive(Clone, Debug, Default)]
pub enum RateLimitHeaders {
    /// None.
    #[default]
    Off,
    /// Three headers about one limit, as envoyproxy/ratelimit has them.
    Legacy(HeaderNames),
    /// Three headers about one limit, with a list of all; draft-ietf-httpapi-ratelimit-headers-03,
    /// as Envoy has them.
    Draft03(HeaderNames),
    /// `RateLimit-Policy` and `RateLimit`; draft-ietf-httpapi-ratelimit-headers-11.
    Draft11,
}

/// The names of the three headers.
#[derive(Clone, Debug)]
pub struct HeaderNames {
    /// `LIMIT_LIMIT_HEADER`, or `LIMIT_REQUEST_LIMIT_HEADER`.
    pub limit: String,
    /// `LIMIT_REMAINING_HEADER`, or `LIMIT_REQUEST_REMAINING_HEADER`.
    pub remaining: String,
    /// `LIMIT_RESET_HEADER`, or `LIMIT_REQUEST_RESET_HEADER`; its value is in seconds.
    pub reset: String,
}

/// An encoded `RateLimitResponse` with the five-byte prefix of a gRPC message, and the places that
/// its request has acquired. The request keeps them once both are delivered.
#[derive(Debug)]
pub struct Framed(pub(crate) Bytes, pub(crate) Option<Box<Places>>);

/// The length of the prefix of a gRPC message: one byte for compression (never), four bytes of
/// length, big-endian. Source: "gRPC over HTTP2", Length-Prefixed-Message.
pub const PREFIX_BYTES: usize = 5;

impl Framed {
    /// Puts the prefix in front of a message.
    pub fn new(message: &[u8]) -> Self {
        // A response is far below 4 GiB.
        let length = (message.len() as u32).to_be_bytes();
        Self([&[0][..], &length, message].concat().into(), None)
    }

    /// The answer to the same call with another message.
    pub(crate) fn with_message(self, message: &impl Message) -> Self {
        Self(Self::new(&message.encode_to_vec()).0, self.1)
    }

    /// The message without the prefix, which is on its way.
    pub fn message(self) -> Bytes {
        let Self(mut bytes, places) = self;
        if let Some(places) = places {
            places.delivered();
        }
        bytes.advance(PREFIX_BYTES);
        bytes
    }
}

/// A response, with results that are not part of it.
#[derive(Debug)]
pub struct Reply {
    /// The encoded response.
    pub answer: Framed,
    /// The overall code.
    pub code: Code,
    /// The overall code is OK only because of `SHADOW_MODE`.
    pub shadowed: bool,
}

/// Makes the response.
///
/// # Errors
/// The store's error, if a check fails the request.
pub fn respond(
    request: &DecodedRequest<'_>,
    outcomes: &Outcomes<'_>,
    options: &Options,
) -> Result<Reply, StoreError> {
    if let Some(error) = outcomes.failure {
        return Err(error);
    }
    Ok(if options.paths_as_names {
        let paths = fields::all_names(request, outcomes);
        reply(request, &outcomes.named(&paths), options)
    } else {
        reply(request, outcomes, options)
    })
}

fn reply(request: &DecodedRequest<'_>, outcomes: &Outcomes<'_>, options: &Options) -> Reply {
    let shadowed = outcomes.is_over_limit && options.shadow_mode;
    let code = code(outcomes.is_over_limit && !shadowed);
    let extras = options
        .has_extras()
        .then(|| extras(request, outcomes, code, options));
    Reply {
        answer: encode(code, &outcomes.each, extras.as_ref()),
        code,
        shadowed,
    }
}

/// The optional parts of a response that `options` select, and nothing else.
fn extras(
    request: &DecodedRequest<'_>,
    outcomes: &Outcomes<'_>,
    overall: Code,
    options: &Options,
) -> RateLimitResponse {
    let refused = overall == Code::OverLimit;
    let names_limits = refused && (options.problem_details || options.refused_by.is_some());
    let mut headers = match &options.ratelimit_headers {
        RateLimitHeaders::Off => Vec::new(),
        RateLimitHeaders::Legacy(names) => fields::legacy(outcomes, names),
        RateLimitHeaders::Draft03(names) => fields::draft_03(request, outcomes, names),
        RateLimitHeaders::Draft11 => fields::draft_11(request, outcomes),
    };
    if refused && options.retry_after {
        headers.extend(retry_after(outcomes));
    }
    let violated = if names_limits || options.dynamic_metadata {
        outcomes.violated()
    } else {
        Vec::new()
    };
    // Empty: Envoy's own body.
    let mut raw_body = Vec::new();
    if names_limits {
        let names = names(request, outcomes, &violated);
        if let Some(key) = &options.refused_by {
            headers.extend(fields::refused_by(key, &names));
        }
        if options.problem_details {
            headers.push(fields::header("content-type", CONTENT_TYPE.to_owned()));
            raw_body = problem(outcomes, &violated, &names);
        }
    }
    let names = options.request_headers.as_ref();
    RateLimitResponse {
        response_headers_to_add: headers,
        request_headers_to_add: names
            .map_or_else(Vec::new, |names| fields::legacy(outcomes, names)),
        raw_body,
        dynamic_metadata: options
            .dynamic_metadata
            .then(|| metadata::dynamic_metadata(request, outcomes, &violated)),
        ..RateLimitResponse::default()
    }
}

/// The `retry-after` header: the longest wait of the limits that refuse, in whole seconds, at
/// least 1. `None` if the request can never pass: for a limit that it can never meet, because it
/// can meet none of its quotas, whatever else refuses it, or while it is blocked without an end. Of
/// quotas the one that is met first counts. Source: RFC 9110, section 10.2.3.
fn retry_after(outcomes: &Outcomes<'_>) -> Option<HeaderValue> {
    let mut longest = Span::ZERO;
    // A quota without a check is met.
    let mut quotas = outcomes.passes_quota.then_some(Span::ZERO);
    for outcome in &outcomes.each {
        let wait = match outcome.retry_after() {
            Some(Wait::For(span)) => span,
            Some(Wait::Never) => Span::MAX,
            None => Span::ZERO,
        };
        if outcome.is_quota() {
            quotas = Some(quotas.map_or(wait, |least| least.min(wait)));
        } else {
            longest = longest.max(wait);
        }
    }
    let longest = longest.max(quotas.unwrap_or_default());
    let value = longest.secs_rounded_up().max(1).to_string();
    (longest < Span::MAX).then(|| fields::header("retry-after", value))
}

/// The media type of the body of a refusal.
const CONTENT_TYPE: &str = "application/problem+json";

#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    /// The status of Envoy's answer, unless its `rate_limited_status` is another; clients read it
    /// as advice only.
    status: u16,
    #[serde(rename = "violated-policies")]
    violated_policies: &'a [Cow<'a, str>],
}

/// The body of a refusal, with the names of `RateLimit-Policy`.
///
/// A quota is exceeded as soon as a store has counted one of the limits that refuse. A block counts
/// as one too: its reason is for operators.
fn problem(outcomes: &Outcomes<'_>, violated: &[usize], names: &[Cow<'_, str>]) -> Vec<u8> {
    let is_by_policy = |&index: &usize| match outcomes.each[index].by {
        DecidedBy::Check { decision, .. } => matches!(decision, Decision::PolicyRefuses(_)),
        _ => false,
    };
    let (r#type, title) = if violated.iter().all(is_by_policy) {
        (
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        )
    } else {
        (
            "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
        )
    };
    let problem = Problem {
        r#type,
        title,
        status: 429,
        violated_policies: names,
    };
    // Cannot fail: there is no map with keys other than text.
    serde_json::to_vec(&problem).unwrap_or_default()
}

const fn code(refuses: bool) -> Code {
    if refuses { Code::OverLimit } else { Code::Ok }
}

/// The tag of a field: `number << 3 | wire type`.
const fn tag(number: u8, wire_type: u8) -> u8 {
    number << 3 | wire_type
}

const VARINT: u8 = 0;
const BYTES: u8 = 2;

/// Encodes a response with the prefix of a gRPC message. `extras` has fields whose numbers are
/// above the numbers of the code and the statuses.
fn encode(overall: Code, outcomes: &[Outcome<'_>], extras: Option<&RateLimitResponse>) -> Framed {
    let statuses = outcomes.iter();
    let statuses = statuses.map(|outcome| field_bytes(status_bytes(outcome)));
    let length = 2 + statuses.sum::<usize>() + extras.map_or(0, Message::encoded_len);
    let mut out = Vec::with_capacity(PREFIX_BYTES + length);
    out.push(0);
    // Far below 4 GiB, because a request has at most 4 MiB.
    out.extend_from_slice(&(length as u32).to_be_bytes());
    out.extend_from_slice(&[tag(1, VARINT), overall as u8]);
    for outcome in outcomes {
        put_status(&mut out, outcome);
    }
    if let Some(extras) = extras {
        // Encoding into a `Vec` does not fail.
        let _ = extras.encode(&mut out);
    }
    debug_assert_eq!(
        out.len(),
        PREFIX_BYTES + length,
        "the computed length is the written length"
    );
    Framed(Bytes::from(out), None)
}

fn put_status(out: &mut Vec<u8>, outcome: &Outcome<'_>) {
    out.push(tag(2, BYTES));
    put_varint(out, status_bytes(outcome) as u64);
    let code = code(outcome.refuses) as u8;
    out.extend_from_slice(&[tag(1, VARINT), code]);
    if let Some(rate) = &outcome.rate {
        let name = outcome.name;
        out.push(tag(2, BYTES));
        put_varint(out, limit_bytes(rate, name) as u64);
        put_number(out, tag(1, VARINT), on_wire(rate.requests_per_unit));
        put_number(out, tag(2, VARINT), rate.on_wire().0.cast_unsigned().into());
        if !name.is_empty() {
            out.push(tag(3, BYTES));
            put_varint(out, name.len() as u64);
            out.extend_from_slice(name.as_bytes());
        }
        if let Some(multiplier) = multiplier(rate) {
            put_wrapped(out, tag(4, BYTES), multiplier);
        }
    }
    put_number(out, tag(3, VARINT), on_wire(outcome.remaining));
    if let Some(secs) = outcome.reset_secs {
        put_wrapped(out, tag(4, BYTES), whole_seconds(secs));
    }
}

fn status_bytes(outcome: &Outcome<'_>) -> usize {
    2 + outcome
        .rate
        .as_ref()
        .map_or(0, |rate| field_bytes(limit_bytes(rate, outcome.name)))
        + number_bytes(on_wire(outcome.remaining))
        + outcome
            .reset_secs
            .map_or(0, |secs| field_bytes(number_bytes(whole_seconds(secs))))
}

fn limit_bytes(rate: &Rate, name: &str) -> usize {
    number_bytes(on_wire(rate.requests_per_unit))
        + number_bytes(rate.on_wire().0.cast_unsigned().into())
        + if name.is_empty() {
            0
        } else {
            field_bytes(name.len())
        }
        + multiplier(rate).map_or(0, |multiplier| field_bytes(number_bytes(multiplier)))
}

/// A number of a limit, which is a uint32 in the message. [`metadata`] has the whole one.
fn on_wire(number: u64) -> u64 {
    number.min(u32::MAX.into())
}

/// The `unit_multiplier`; left out if it is 1.
fn multiplier(rate: &Rate) -> Option<u64> {
    let (_, multiplier) = rate.on_wire();
    (multiplier != 1).then_some(multiplier.into())
}

/// The seconds of a `google.protobuf.Duration`, which are an int64.
fn whole_seconds(secs: u64) -> u64 {
    secs.min(i64::MAX as u64)
}

/// Bytes of a length-delimited field with `content` bytes. All field numbers are below 16: a tag is
/// one byte.
fn field_bytes(content: usize) -> usize {
    1 + varint_bytes(content as u64) + content
}

/// Bytes of a varint field; 0 for the default value 0.
fn number_bytes(number: u64) -> usize {
    if number == 0 {
        0
    } else {
        1 + varint_bytes(number)
    }
}

/// Bytes of a varint: seven bits per byte.
fn varint_bytes(number: u64) -> usize {
    ((70 - (number | 1).leading_zeros()) / 7) as usize
}

fn put_number(out: &mut Vec<u8>, tag: u8, number: u64) {
    if number != 0 {
        out.push(tag);
        put_varint(out, number);
    }
}

/// A field with a message whose field 1 is a number: a `UInt32Value`, or a `Duration` of whole
/// seconds.
fn put_wrapped(out: &mut Vec<u8>, outer: u8, number: u64) {
    out.extend_from_slice(&[outer, number_bytes(number) as u8]);
    put_number(out, tag(1, VARINT), number);
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod content_tests;
#[cfg(test)]
mod tests;
