//! From decisions to an encoded `RateLimitResponse`: the statuses, the overall code, and optional
//! headers and metadata.
//!
//! The response is encoded directly, without an intermediate message, because most of it is a few
//! numbers. The overall code is never UNKNOWN, which Envoy would take for OK.
//!
//! Source: `envoy/service/ratelimit/v3/rls.proto` (`RateLimitResponse`).

mod encode;
mod extras;
mod fields;
pub(crate) mod metadata;
mod policies;
mod problem;
mod structured;

use crate::core::ask::Ask;
use crate::core::proto::rate_limit_response::Code;
use crate::core::verdict::StoreError;
use crate::limiter::Places;
use crate::limits::plan::Outcomes;
use bytes::{Buf, Bytes};
use encode::{Extras, encode};
use extras::extras;

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
        let paths = policies::all_names(ask, outcomes);
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
    let extras = if options.has_extras() {
        extras(ask, outcomes, code, options)
    } else {
        Extras::default()
    };
    Reply {
        answer: encode(code, &outcomes.each, &extras),
        code,
        shadowed,
    }
}

#[cfg(test)]
mod content_tests;
#[cfg(test)]
mod tests;
