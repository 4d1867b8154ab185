//! The optional parts of a response: headers about limits, `retry-after`, the body of a refusal,
//! and dynamic metadata.

use super::encode::Extras;
use super::policies::names;
use super::{Options, RateLimitHeaders, fields, metadata, problem};
use crate::core::ask::Ask;
use crate::core::proto::HeaderValue;
use crate::core::proto::rate_limit_response::Code;
use crate::core::time::Span;
use crate::core::verdict::Wait;
use crate::limits::plan::Outcomes;

/// The parts that `options` ask for.
pub(super) fn extras(
    ask: &Ask<'_>,
    outcomes: &Outcomes<'_>,
    overall: Code,
    options: &Options,
) -> Extras {
    let refused = overall == Code::OverLimit;
    let names_limits = refused && (options.problem_details || options.refused_by.is_some());
    let mut extras = Extras {
        headers: match &options.ratelimit_headers {
            RateLimitHeaders::Off => Vec::new(),
            RateLimitHeaders::Legacy(names) => fields::legacy(outcomes, names),
            RateLimitHeaders::Draft03(names) => fields::draft_03(ask, outcomes, names),
            RateLimitHeaders::Draft11 => fields::draft_11(ask, outcomes),
        },
        ..Extras::default()
    };
    if refused && options.retry_after {
        extras.headers.extend(retry_after(outcomes));
    }
    let violated = if names_limits || options.dynamic_metadata {
        outcomes.violated()
    } else {
        Vec::new()
    };
    if names_limits {
        let names = names(ask, outcomes, &violated);
        if let Some(key) = &options.refused_by {
            extras.headers.extend(fields::refused_by(key, &names));
        }
        if options.problem_details {
            let content_type = problem::CONTENT_TYPE.to_owned();
            extras
                .headers
                .push(fields::header("content-type", content_type));
            extras.raw_body = problem::body(outcomes, &violated, &names);
        }
    }
    if options.dynamic_metadata {
        extras.dynamic_metadata = Some(metadata::dynamic_metadata(ask, outcomes, &violated));
    }
    extras
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
