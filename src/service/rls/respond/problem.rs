//! The body of a refusal: a problem in JSON. Envoy sends it to its client in place of an empty
//! body.
//!
//! Source: RFC 9457, and draft-ietf-httpapi-ratelimit-headers-11, section 5, for the types, their
//! titles and `violated-policies`.

use std::borrow::Cow;

use serde::Serialize;

/// The media type of the body.
pub(super) const CONTENT_TYPE: &str = "application/problem+json";

/// Why the request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// Limits are used up.
    QuotaExceeded,
    /// The store does not answer, and `on_store_failure` is `deny`.
    ReducedCapacity,
}

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
pub(super) fn body(problem: Problem, violated: &[Cow<'_, str>]) -> Vec<u8> {
    let (r#type, title) = match problem {
        Problem::QuotaExceeded => (
            "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        Problem::ReducedCapacity => (
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        ),
    };
    let body = Body {
        r#type,
        title,
        status: 429,
        violated_policies: violated,
    };
    // Cannot fail: there is no map with keys other than text.
    serde_json::to_vec(&body).unwrap_or_default()
}
