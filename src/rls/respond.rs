//! From decisions to a `RateLimitResponse`: statuses, the overall code, and what else was asked to be in it.
//!
//! The overall code is never UNKNOWN: Envoy takes that for OK.

mod extras;

use crate::ask::Ask;
use crate::plan::{Plan, Slot};
use crate::proto::RateLimitResponse;
use crate::proto::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::time::{Rate, Span};
use crate::verdict::{Decision, Decisions, StoreError};

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

/// The answer, and what it does not tell.
#[derive(Debug)]
pub struct Reply {
    /// What the caller gets.
    pub response: RateLimitResponse,
    /// It would have been refused but for `SHADOW_MODE`.
    pub shadowed: bool,
}

/// Makes the answer.
///
/// # Errors
/// The store's, when a check fails the request.
pub fn respond(ask: &Ask<'_>, plan: &Plan, decisions: &Decisions, options: &Options) -> Result<Reply, StoreError> {
    if let Some(error) = decisions.iter().find_map(Decision::failure) {
        return Err(error);
    }
    let statuses = plan.slots.iter().map(|slot| status(slot, plan, decisions)).collect();
    let refused = plan.refuses(decisions.iter().map(Decision::allows));
    let shadowed = refused && options.shadow_mode;
    let code = if refused && !shadowed { Code::OverLimit } else { Code::Ok };
    let mut response = RateLimitResponse { overall_code: code.into(), statuses, ..Default::default() };
    if let Some(names) = &options.headers {
        response.response_headers_to_add = extras::headers(plan, &response.statuses, names);
    }
    if options.retry_after && code == Code::OverLimit {
        response.response_headers_to_add.push(extras::retry_after(plan, decisions));
    }
    if options.dynamic_metadata {
        response.dynamic_metadata = Some(extras::dynamic_metadata(ask, plan, &response.statuses));
    }
    Ok(Reply { response, shadowed })
}

/// Where a policy let the check pass, nobody knows what is left and until when: both are left out.
fn status(slot: &Slot, plan: &Plan, decisions: &Decisions) -> DescriptorStatus {
    let ok = DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
    match slot {
        Slot::Free => ok,
        Slot::Unlimited(_) => DescriptorStatus { limit_remaining: u32::MAX, ..ok },
        Slot::Checked { check, limit, rate, .. } => {
            let decision = &decisions[*check];
            let refused = !decision.allows() && !plan.checks[*check].role.shadow;
            DescriptorStatus {
                code: if refused { Code::OverLimit } else { Code::Ok }.into(),
                current_limit: Some(current_limit(rate, limit.and_then(|id| plan.rules.limit(id).name.as_deref()))),
                limit_remaining: decision.verdict().map_or(0, |verdict| verdict.remaining),
                duration_until_reset: decision.until_reset().map(whole_seconds),
                quota: None,
            }
        }
    }
}

fn current_limit(rate: &Rate, name: Option<&str>) -> RateLimit {
    RateLimit {
        name: name.unwrap_or_default().to_owned(),
        requests_per_unit: rate.requests_per_unit,
        unit: rate.unit.number(),
        unit_multiplier: (rate.unit_multiplier != 1).then_some(rate.unit_multiplier),
    }
}

/// Envoy cuts fractions off, so they are rounded up here.
fn whole_seconds(span: Span) -> prost_types::Duration {
    prost_types::Duration { seconds: i64::try_from(span.secs_rounded_up()).unwrap_or(i64::MAX), nanos: 0 }
}
