//! From decisions to an encoded `RateLimitResponse`: the statuses, the overall code, and what is
//! optional: headers about limits, `retry-after`, the body of a refusal, and dynamic metadata.
//!
//! The statuses are encoded directly, without an intermediate message, because most of a response is
//! a few numbers. The overall code is never UNKNOWN, which Envoy would take for OK. The body of a
//! refusal is a problem in JSON, which Envoy sends to its client in place of an empty body.
//!
//! Sources: `envoy/service/ratelimit/v3/rls.proto` (`RateLimitResponse`); RFC 9457, and
//! draft-ietf-httpapi-ratelimit-headers-11, section 5, for the types of problems, their titles and
//! `violated-policies`.

mod encode;
mod fields;
pub(crate) mod metadata;

use std::borrow::Cow;

use bytes::{Buf, Bytes};
use serde::Serialize;

use crate::core::ask::Ask;
use crate::core::proto::rate_limit_response::Code;
use crate::core::proto::{HeaderValue, RateLimitResponse};
use crate::core::time::Span;
use crate::core::verdict::{Decision, StoreError, Wait};
use crate::limiter::Places;
use crate::limits::plan::{By, Outcomes};
use encode::encode;
use fields::names;

/// What responses carry besides the statuses. The names are those of the settings.
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
    /// `RETRY_AFTER_HEADER_ENABLED`: a refused request gets a `retry-after` header.
    pub retry_after: bool,
    /// `PROBLEM_DETAILS_ENABLED`: a refused request gets a body that says which limits refused it.
    pub problem_details: bool,
    /// `REFUSED_BY_HEADER`: the name of the header in which a refused request gets the names of the
    /// limits that refused it.
    pub refused_by: Option<String>,
    /// `LIMIT_PATHS_AS_NAMES_ENABLED`: the status of a limit without a name has its path in the
    /// place of the name.
    pub paths_as_names: bool,
    /// `RESPONSE_DYNAMIC_METADATA`: the request, the `metadata` of the limits that were not
    /// exceeded, and the limits that refuse.
    pub dynamic_metadata: bool,
}

impl Options {
    /// Whether any response has more than its statuses.
    fn has_extras(&self) -> bool {
        !matches!(self.ratelimit_headers, RateLimitHeaders::Off)
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
    /// `LIMIT_LIMIT_HEADER`.
    pub limit: String,
    /// `LIMIT_REMAINING_HEADER`.
    pub remaining: String,
    /// `LIMIT_RESET_HEADER`; its value is in seconds.
    pub reset: String,
}

/// An encoded `RateLimitResponse` behind the five-byte prefix of a gRPC message, and the places
/// that its request has acquired.
#[derive(Debug)]
pub struct Framed(Bytes, Option<Box<Places>>);

/// The length of the prefix of a gRPC message: one byte that says whether it is compressed (never),
/// four bytes of length, big-endian. Source: "gRPC over HTTP2", Length-Prefixed-Message.
pub const PREFIX_BYTES: usize = 5;

impl Framed {
    /// Puts the prefix in front of a message.
    pub fn new(message: &[u8]) -> Self {
        // A response is far below 4 GiB.
        Self(
            [&[0][..], &(message.len() as u32).to_be_bytes(), message]
                .concat()
                .into(),
            None,
        )
    }

    /// The answer to a request that has acquired these places.
    pub(crate) fn with(self, places: Option<Box<Places>>) -> Self {
        Self(self.0, places)
    }

    /// The prefix and the message; and the places, which are kept once these are delivered.
    #[must_use]
    pub fn into_parts(self) -> (Bytes, Option<Box<Places>>) {
        (self.0, self.1)
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

/// A response, and what it does not show.
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
    ask: &Ask<'_>,
    outcomes: &Outcomes<'_>,
    options: &Options,
) -> Result<Reply, StoreError> {
    if let Some(error) = outcomes.failure {
        return Err(error);
    }
    Ok(if options.paths_as_names {
        let paths = fields::all_names(ask, outcomes);
        reply(ask, &outcomes.named(&paths), options)
    } else {
        reply(ask, outcomes, options)
    })
}

fn reply(ask: &Ask<'_>, outcomes: &Outcomes<'_>, options: &Options) -> Reply {
    let shadowed = outcomes.is_over_limit && options.shadow_mode;
    let code = if outcomes.is_over_limit && !shadowed {
        Code::OverLimit
    } else {
        Code::Ok
    };
    let extras = options
        .has_extras()
        .then(|| extras(ask, outcomes, code, options));
    Reply {
        answer: encode(code, &outcomes.each, extras.as_ref()),
        code,
        shadowed,
    }
}

/// The optional parts of a response that `options` ask for, and nothing else.
fn extras(
    ask: &Ask<'_>,
    outcomes: &Outcomes<'_>,
    overall: Code,
    options: &Options,
) -> RateLimitResponse {
    let refused = overall == Code::OverLimit;
    let names_limits = refused && (options.problem_details || options.refused_by.is_some());
    let mut headers = match &options.ratelimit_headers {
        RateLimitHeaders::Off => Vec::new(),
        RateLimitHeaders::Legacy(names) => fields::legacy(outcomes, names),
        RateLimitHeaders::Draft03(names) => fields::draft_03(ask, outcomes, names),
        RateLimitHeaders::Draft11 => fields::draft_11(ask, outcomes),
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
        let names = names(ask, outcomes, &violated);
        if let Some(key) = &options.refused_by {
            headers.extend(fields::refused_by(key, &names));
        }
        if options.problem_details {
            headers.push(fields::header("content-type", CONTENT_TYPE.to_owned()));
            raw_body = problem(outcomes, &violated, &names);
        }
    }
    RateLimitResponse {
        response_headers_to_add: headers,
        raw_body,
        dynamic_metadata: options
            .dynamic_metadata
            .then(|| metadata::dynamic_metadata(ask, outcomes, &violated)),
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
    /// The status that Envoy answers with unless its `rate_limited_status` says otherwise; clients
    /// read it as advice only.
    status: u16,
    #[serde(rename = "violated-policies")]
    violated_policies: &'a [Cow<'a, str>],
}

/// The body of a refusal. The names are those of `RateLimit-Policy`.
///
/// A quota is exceeded as soon as a store has counted one of the limits that refuse. A block counts
/// as one too: its reason is for operators.
fn problem(outcomes: &Outcomes<'_>, violated: &[usize], names: &[Cow<'_, str>]) -> Vec<u8> {
    let is_by_policy = |&index: &usize| {
        matches!(
            outcomes.each[index].by,
            By::Check {
                decision: Decision::PolicyRefuses(_),
                ..
            }
        )
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

#[cfg(test)]
mod content_tests;
#[cfg(test)]
mod tests;
