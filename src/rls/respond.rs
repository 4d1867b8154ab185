//! From decisions to an encoded `RateLimitResponse`: statuses, the overall code, and what else was asked to be in it.
//!
//! It is written straight into the bytes that go over the wire, as most of an answer is a handful of numbers. The overall code is never
//! UNKNOWN: Envoy takes that for OK.

mod encode;
mod extras;

use bytes::{Buf, Bytes};
use smallvec::SmallVec;

use crate::ask::Ask;
use crate::plan::{Plan, Slot};
use crate::proto::rate_limit_response::Code;
use crate::time::{Rate, Span};
use crate::verdict::{Decision, Decisions, StoreError};
use encode::{Extras, encode};

/// What goes into answers besides the verdicts; names are those of the settings.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `SHADOW_MODE`: the overall code is always OK; the statuses tell the truth.
    pub shadow_mode: bool,
    /// `LIMIT_RESPONSE_HEADERS_ENABLED`: three headers about the limit that is nearest.
    pub headers: Option<HeaderNames>,
    /// `RETRY_AFTER_HEADER_ENABLED`: a refusal says when to ask again.
    pub retry_after: bool,
    /// `RESPONSE_DYNAMIC_METADATA`: what was asked, and the metadata of the limits that passed.
    pub dynamic_metadata: bool,
}

/// Names of the three headers.
#[derive(Clone, Debug)]
pub struct HeaderNames {
    /// `LIMIT_LIMIT_HEADER`.
    pub limit: String,
    /// `LIMIT_REMAINING_HEADER`.
    pub remaining: String,
    /// `LIMIT_RESET_HEADER`; in seconds.
    pub reset: String,
}

/// An encoded `RateLimitResponse` behind the five bytes that gRPC puts in front of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Framed(Bytes);

/// What gRPC puts in front of a message: whether it is compressed (never), and its length.
pub const PREFIX_BYTES: usize = 5;

impl Framed {
    /// Puts the prefix in front of a message.
    #[must_use]
    pub fn new(message: &[u8]) -> Self {
        // A message of 4 GiB would be no answer.
        Self([&[0][..], &(message.len() as u32).to_be_bytes(), message].concat().into())
    }

    /// All of it.
    #[must_use]
    pub fn bytes(self) -> Bytes {
        self.0
    }

    /// The message alone.
    #[must_use]
    pub fn message(mut self) -> Bytes {
        self.0.advance(PREFIX_BYTES);
        self.0
    }
}

/// The answer, and what it does not tell.
#[derive(Debug)]
pub struct Reply {
    /// What the caller gets.
    pub answer: Framed,
    /// It would have been refused but for `SHADOW_MODE`.
    pub shadowed: bool,
}

/// What the answer says about one descriptor.
#[derive(Clone, Copy, Debug)]
struct Status<'a> {
    refused: bool,
    limit: Option<(Rate, &'a str)>,
    remaining: u32,
    /// Envoy cuts fractions off, so they are rounded up here.
    reset_secs: Option<u64>,
}

type Statuses<'a> = SmallVec<[Status<'a>; 4]>;

/// Makes the answer.
///
/// # Errors
/// The store's, when a check fails the request.
pub fn respond(ask: &Ask<'_>, plan: &Plan, decisions: &Decisions, options: &Options) -> Result<Reply, StoreError> {
    if let Some(error) = decisions.iter().find_map(Decision::failure) {
        return Err(error);
    }
    let statuses: Statuses<'_> = plan.slots.iter().map(|slot| status(slot, plan, decisions)).collect();
    let refused = plan.checks.is_over_limit(decisions.iter().map(Decision::allows));
    let shadowed = refused && options.shadow_mode;
    let code = if refused && !shadowed { Code::OverLimit } else { Code::Ok };
    let mut extras = Extras::default();
    if let Some(names) = &options.headers {
        extras.headers = extras::headers(plan, &statuses, names);
    }
    if options.retry_after && code == Code::OverLimit {
        extras.headers.push(extras::retry_after(plan, decisions));
    }
    if options.dynamic_metadata {
        extras.dynamic_metadata = Some(extras::dynamic_metadata(ask, plan, &statuses));
    }
    Ok(Reply { answer: encode(code, &statuses, &extras), shadowed })
}

/// Where a policy let the check pass, nobody knows what is left and until when: both are left out.
fn status<'a>(slot: &Slot, plan: &'a Plan, decisions: &Decisions) -> Status<'a> {
    let ok = Status { refused: false, limit: None, remaining: 0, reset_secs: None };
    match slot {
        Slot::Free => ok,
        Slot::Unlimited(_) => Status { remaining: u32::MAX, ..ok },
        Slot::Checked { check, limit, rate, .. } => {
            let decision = &decisions[check.0];
            let name = limit.and_then(|id| plan.rules.limit(id).name.as_deref());
            Status {
                refused: !decision.allows() && !plan.checks[*check].modes.shadow,
                limit: Some((*rate, name.unwrap_or_default())),
                remaining: decision.verdict().map_or(0, |verdict| verdict.remaining),
                reset_secs: decision.until_reset().map(Span::secs_rounded_up),
            }
        }
    }
}

#[cfg(test)]
mod tests;
