//! The calls of the API: method, path, and whether they change anything. `openapi.json` describes each of them.

use hyper::Method;

use super::access::Need;

/// What a call asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    OpenApi,
    Status,
    Limits,
    Decisions,
    Explain,
    Usage,
    UsageTop,
    Count,
    Top,
    Unmatched,
}

/// Methods, path and operation of a call.
type Route = (Method, &'static str, Need, Operation);

/// All calls.
pub(super) const ROUTES: [Route; 10] = [
    (Method::GET, "/api/v1/openapi.json", Need::Read, Operation::OpenApi),
    (Method::GET, "/api/v1/status", Need::Read, Operation::Status),
    (Method::GET, "/api/v1/limits", Need::Read, Operation::Limits),
    (Method::GET, "/api/v1/decisions", Need::Read, Operation::Decisions),
    (Method::POST, "/api/v1/explain", Need::Read, Operation::Explain),
    (Method::GET, "/api/v1/usage", Need::Read, Operation::Usage),
    (Method::GET, "/api/v1/usage/top", Need::Read, Operation::UsageTop),
    (Method::GET, "/api/v1/count", Need::Read, Operation::Count),
    (Method::GET, "/api/v1/top", Need::Read, Operation::Top),
    (Method::GET, "/api/v1/unmatched", Need::Read, Operation::Unmatched),
];

/// The operation of a request.
///
/// # Errors
/// The method of the path, if the request has another one; `None`: there is no such path.
pub(super) fn find(method: &Method, path: &str) -> Result<(Operation, Need), Option<&'static str>> {
    let mut allowed = None;
    for (known, pattern, need, operation) in &ROUTES {
        if *pattern == path {
            if known == method {
                return Ok((operation.clone(), *need));
            }
            allowed = Some(if *known == Method::GET { "GET" } else { "POST" });
        }
    }
    Err(allowed)
}
