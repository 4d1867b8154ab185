//! The optional parts of a response: headers about limits, `retry-after`, the body of a refusal,
//! and dynamic metadata.

use super::encode::Extras;
use super::policies::{names, violated};
use super::problem::{self, Problem};
use super::{Options, RateLimitHeaders, Status, fields, metadata};
use crate::core::ask::Ask;
use crate::core::proto::HeaderValue;
use crate::core::proto::rate_limit_response::Code;
use crate::core::time::Span;
use crate::core::verdict::{Decision, Decisions, Wait};
use crate::limits::plan::{Plan, Slot};

/// The parts that `options` ask for.
pub(super) fn extras(
    ask: &Ask<'_>,
    plan: &Plan,
    (decisions, statuses): (&Decisions, &[Status<'_>]),
    overall: Code,
    options: &Options,
) -> Extras {
    let refused = overall == Code::OverLimit;
    let names_limits = refused && (options.problem_details || options.refused_by.is_some());
    let mut extras = Extras {
        headers: match &options.ratelimit_headers {
            RateLimitHeaders::Off => Vec::new(),
            RateLimitHeaders::Legacy(names) => fields::legacy(plan, statuses, names),
            RateLimitHeaders::Draft03(names) => fields::draft_03(statuses, names),
            RateLimitHeaders::Draft11 => fields::draft_11(ask, plan, statuses),
        },
        ..Extras::default()
    };
    if refused && options.retry_after {
        extras.headers.extend(retry_after(plan, decisions));
    }
    let violated = if names_limits || options.dynamic_metadata {
        violated(plan, statuses, decisions)
    } else {
        Vec::new()
    };
    if names_limits {
        let names = names(ask, plan, &violated);
        if let Some(key) = &options.refused_by {
            extras.headers.extend(fields::refused_by(key, &names));
        }
        if options.problem_details {
            extras.headers.push(HeaderValue {
                key: "content-type".to_owned(),
                value: problem::CONTENT_TYPE.to_owned(),
                raw_value: Vec::new(),
            });
            extras.raw_body = problem::body(problem(plan, decisions, &violated), &names);
        }
    }
    if options.dynamic_metadata {
        extras.dynamic_metadata = Some(metadata::dynamic_metadata(ask, plan, statuses, &violated));
    }
    extras
}

/// The `retry-after` header: the longest wait of the limits that refuse, in whole seconds, at
/// least 1. `None` if the request can never pass: for a limit that it can never meet, because it
/// can meet none of its quotas, whatever else refuses it, or while it is blocked without an end. Of
/// quotas the one that is met first counts. Source: RFC 9110, section 10.2.3.
fn retry_after(plan: &Plan, decisions: &Decisions) -> Option<HeaderValue> {
    let mut longest = Span::ZERO;
    for slot in &plan.slots {
        if let Slot::Blocked { ends_in, .. } = slot {
            longest = longest.max((*ends_in)?);
        }
    }
    // A quota without a check is met.
    let mut quotas = (plan.checks.passing_quotas() > 0).then_some(Span::ZERO);
    for (check, decision) in plan.checks.iter().zip(decisions) {
        let wait = match decision.retry_after().filter(|_| !check.modes.shadow) {
            Some(Wait::For(span)) => span,
            Some(Wait::Never) => Span::MAX,
            None => Span::ZERO,
        };
        if check.modes.quota {
            quotas = Some(quotas.map_or(wait, |least| least.min(wait)));
        } else {
            longest = longest.max(wait);
        }
    }
    let longest = longest.max(quotas.unwrap_or_default());
    let value = longest.secs_rounded_up().max(1).to_string();
    (longest < Span::MAX).then(|| HeaderValue {
        key: "retry-after".to_owned(),
        value,
        raw_value: Vec::new(),
    })
}

/// A quota is exceeded as soon as a store has counted one of the limits that refuse. A block counts
/// as one too: its reason is for operators.
fn problem(plan: &Plan, decisions: &Decisions, violated: &[usize]) -> Problem {
    let is_counted = |&index: &usize| match &plan.slots[index] {
        Slot::Checked { check, .. } => !matches!(decisions[check.0], Decision::PolicyRefuses(_)),
        Slot::Blocked { .. } => true,
        Slot::Free | Slot::Unlimited(_) | Slot::Exempt { .. } => false,
    };
    if violated.iter().any(is_counted) {
        Problem::QuotaExceeded
    } else {
        Problem::ReducedCapacity
    }
}
