//! The body of a refusal: a problem in JSON. Envoy sends it to its client in place of an empty
//! body.
//!
//! Source: RFC 9457, and draft-ietf-httpapi-ratelimit-headers-11, section 5, for the types, their
//! titles and `violated-policies`.

use std::borrow::Cow;

use serde::Serialize;

use crate::core::verdict::Decision;
use crate::limits::plan::{By, Outcomes};

/// The media type of the body.
pub(super) const CONTENT_TYPE: &str = "application/problem+json";

#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    title: &'static str,
    /// The status that Envoy answers with unless its `rate_limited_status` says otherwise; clients
    /// read it as advice only.
    status: u16,
    #[serde(rename = "violated-policies")]
    violated_policies: &'a [Cow<'a, str>],
}

/// The body. The names are those of `RateLimit-Policy`.
///
/// A quota is exceeded as soon as a store has counted one of the limits that refuse. A block counts
/// as one too: its reason is for operators.
pub(super) fn body(outcomes: &Outcomes<'_>, violated: &[usize], names: &[Cow<'_, str>]) -> Vec<u8> {
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
    let body = Body {
        r#type,
        title,
        status: 429,
        violated_policies: names,
    };
    // Cannot fail: there is no map with keys other than text.
    serde_json::to_vec(&body).unwrap_or_default()
}
