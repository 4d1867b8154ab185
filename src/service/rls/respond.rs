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
mod metadata;
mod policies;
mod problem;
mod structured;

use std::borrow::Cow;
use std::num::NonZeroU32;

use bytes::{Buf, Bytes};
use smallvec::SmallVec;

use crate::core::algorithm::Algorithm;
use crate::core::ask::Ask;
use crate::core::proto::rate_limit_response::Code;
use crate::core::time::{Rate, Span};
use crate::core::verdict::{Decision, Decisions, StoreError, Wait};
use crate::limits::plan::{Plan, Slot};
use crate::limits::rules::limit::{LimitId, LimitInForce, Scale};
use crate::limits::rules::table::RowNumber;
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

/// An encoded `RateLimitResponse` behind the five-byte prefix of a gRPC message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Framed(Bytes);

/// The length of the prefix of a gRPC message: one byte that says whether it is compressed (never),
/// four bytes of length, big-endian. Source: "gRPC over HTTP2", Length-Prefixed-Message.
pub const PREFIX_BYTES: usize = 5;

impl Framed {
    /// Puts the prefix in front of a message.
    #[must_use]
    pub fn new(message: &[u8]) -> Self {
        // A response is far below 4 GiB.
        Self(
            [&[0][..], &(message.len() as u32).to_be_bytes(), message]
                .concat()
                .into(),
        )
    }

    /// The prefix and the message.
    #[must_use]
    pub fn bytes(self) -> Bytes {
        self.0
    }

    /// The message without the prefix.
    #[must_use]
    pub fn message(mut self) -> Bytes {
        self.0.advance(PREFIX_BYTES);
        self.0
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

/// The content of one `DescriptorStatus`.
#[derive(Clone, Copy, Debug)]
struct Status<'a> {
    refused: bool,
    limit: Option<(Rate, &'a str)>,
    /// In the units of the limit.
    remaining: u64,
    /// Rounded up, because Envoy drops fractions of a second. `None` if unknown.
    reset_secs: Option<u64>,
}

type Statuses<'a> = SmallVec<[Status<'a>; 4]>;

/// Makes the response.
///
/// # Errors
/// The store's error, if a check fails the request.
pub fn respond(
    ask: &Ask<'_>,
    plan: &Plan,
    decisions: &Decisions,
    options: &Options,
) -> Result<Reply, StoreError> {
    if let Some(error) = decisions.iter().find_map(Decision::failure) {
        return Err(error);
    }
    let paths = if options.paths_as_names {
        paths(ask, plan)
    } else {
        Vec::new()
    };
    let path = |index: usize| paths.get(index).map_or("", |path| path);
    let statuses: Statuses<'_> = plan
        .slots
        .iter()
        .enumerate()
        .map(|(index, slot)| status(slot, plan, decisions, path(index)))
        .collect();
    let refused = plan
        .checks
        .is_over_limit(decisions.iter().map(Decision::allows));
    let shadowed = refused && options.shadow_mode;
    let code = if refused && !shadowed {
        Code::OverLimit
    } else {
        Code::Ok
    };
    let extras = if options.has_extras() {
        extras(ask, plan, (decisions, &statuses), code, options)
    } else {
        Extras::default()
    };
    Ok(Reply {
        answer: encode(code, &statuses, &extras),
        code,
        shadowed,
    })
}

/// Whether the status shows the limit. Where a failure policy allowed the check, the remaining hits
/// are unknown; beside a limit, Envoy would tell the client that none remain, and a polite client
/// would stop.
const fn is_known(decision: &Decision) -> bool {
    !matches!(decision, Decision::PolicyAllows(_))
}

/// What is shown of a limit that one of so many replicas decides by itself: its share, of which the
/// verdict says what remains.
fn share_of(shown: Rate, scale: Scale, algorithm: Algorithm, replicas: NonZeroU32) -> Rate {
    let capacity = |algorithm: Algorithm| scale.units_rounded_up(algorithm.capacity());
    let is_capacity = shown.requests_per_unit == capacity(algorithm);
    let share = if is_capacity {
        capacity(algorithm.share(replicas))
    } else {
        shown.requests_per_unit.div_ceil(replicas.get().into())
    };
    Rate {
        requests_per_unit: share,
        ..shown
    }
}

/// The names of all limits, or their paths.
fn paths<'p>(ask: &Ask<'_>, plan: &'p Plan) -> Vec<Cow<'p, str>> {
    plan.slots
        .iter()
        .zip(ask.descriptors())
        .map(|(slot, (_, entries))| policies::name(slot, plan, entries))
        .collect()
}

fn name_of(limit: Option<LimitId>, row: Option<RowNumber>, plan: &Plan) -> Option<&str> {
    limit
        .map(|id| plan.rules.in_force(id, row))
        .filter(|in_force| in_force.name().is_some())
        .map(LimitInForce::shown)
}

/// The status of one descriptor, with `path` as the name of a limit that has none. Where a failure
/// policy allowed the check, the limit and the reset time are left out.
fn status<'a>(slot: &Slot, plan: &'a Plan, decisions: &Decisions, path: &'a str) -> Status<'a> {
    let ok = Status {
        refused: false,
        limit: None,
        remaining: 0,
        reset_secs: None,
    };
    match slot {
        Slot::Free => ok,
        Slot::Unlimited(_) | Slot::Exempt { .. } => Status {
            remaining: u32::MAX.into(),
            ..ok
        },
        Slot::Blocked {
            limit,
            row,
            shown,
            ends_in,
            ..
        } => Status {
            refused: true,
            // Beside a limit without a reset time, Envoy would tell the client to come back at
            // once.
            limit: shown
                .filter(|_| ends_in.is_some())
                .map(|shown| (shown, name_of(*limit, *row, plan).unwrap_or(path))),
            remaining: 0,
            reset_secs: ends_in.map(Span::secs_rounded_up),
        },
        Slot::Checked {
            check,
            limit,
            row,
            shown,
            scale,
            ..
        } => {
            let decision = &decisions[check.0];
            let shown = match *decision {
                Decision::Local(.., replicas) => {
                    share_of(*shown, *scale, plan.checks[*check].algorithm, replicas)
                }
                _ => *shown,
            };
            let name = name_of(*limit, *row, plan);
            Status {
                refused: !decision.allows() && !plan.checks[*check].modes.shadow,
                limit: is_known(decision).then(|| (shown, name.unwrap_or(path))),
                remaining: decision
                    .verdict()
                    .map_or(0, |verdict| scale.units(verdict.remaining)),
                reset_secs: until_reset(decision, plan.checks[*check].algorithm.has_holders())
                    .map(Span::secs_rounded_up),
            }
        }
    }
}

/// The `duration_until_reset` of a status. A limit of requests in flight has none, and when it
/// refuses the time until a retry.
fn until_reset(decision: &Decision, has_holders: bool) -> Option<Span> {
    match decision.retry_after() {
        _ if !has_holders => decision.until_reset(),
        Some(Wait::For(span)) => Some(span),
        Some(Wait::Never) | None => None,
    }
}

#[cfg(test)]
mod content_tests;
#[cfg(test)]
mod tests;
