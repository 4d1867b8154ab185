//! The calls of the API: method, path, and whether they change anything. `openapi.json` describes
//! each of them.

use hyper::Method;

use super::access::Need::{self, Change, Read};

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    OpenApi,
    Status,
    Limits,
    Decisions,
    History,
    Explain,
    Usage,
    UsageTop,
    Count,
    Top,
    Unmatched,
    Overrides,
    SetOverride,
    RemoveOverride,
    Reset,
}

/// Method, path below [`BASE`] and operation of a call.
type Route = (Method, &'static str, Need, Operation);

/// Where all paths begin.
pub(super) const BASE: &str = "/api/v1/";

/// All calls.
pub(super) static ROUTES: [Route; 15] = [
    (Method::GET, "openapi.json", Read, Operation::OpenApi),
    (Method::GET, "status", Read, Operation::Status),
    (Method::GET, "limits", Read, Operation::Limits),
    (Method::GET, "decisions", Read, Operation::Decisions),
    (Method::GET, "history", Read, Operation::History),
    (Method::POST, "explain", Read, Operation::Explain),
    (Method::GET, "usage", Read, Operation::Usage),
    (Method::GET, "usage/top", Read, Operation::UsageTop),
    (Method::GET, "count", Read, Operation::Count),
    (Method::GET, "top", Read, Operation::Top),
    (Method::GET, "unmatched", Read, Operation::Unmatched),
    (Method::GET, "overrides", Read, Operation::Overrides),
    (Method::POST, "overrides", Change, Operation::SetOverride),
    (
        Method::DELETE,
        "overrides/{id}",
        Change,
        Operation::RemoveOverride,
    ),
    (Method::POST, "reset", Change, Operation::Reset),
];

/// The last part of the path of a call about one thing.
const ID: &str = "{id}";

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundRoute<'p> {
    pub(super) operation: Operation,
    pub(super) need: Need,
    /// The last part of the path of a call about one thing; else empty.
    pub(super) id: &'p str,
}

/// The operation of a request.
///
/// # Errors
/// The methods of the path, if the request has another one; `None`: there is no such path.
pub(super) fn find<'p>(
    method: &Method,
    path: &'p str,
) -> Result<FoundRoute<'p>, Option<&'static str>> {
    let path = path.strip_prefix(BASE).ok_or(None)?;
    let mut allowed = None;
    for &(ref known, pattern, need, operation) in &ROUTES {
        let Some(id) = matched(pattern, path) else {
            continue;
        };
        if known == method {
            return Ok(FoundRoute {
                operation,
                need,
                id,
            });
        }
        // No path has more than two methods.
        allowed = Some(match allowed {
            Some(_) => "GET, POST",
            None => known.as_str(),
        });
    }
    Err(allowed)
}

/// The id in a path that a pattern matches; empty where the pattern has none.
fn matched<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    match pattern.strip_suffix(ID) {
        Some(before) => path
            .strip_prefix(before)
            .filter(|id| !id.is_empty() && !id.contains('/')),
        None => (pattern == path).then_some(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_found_by_its_method_and_path() {
        for (method, path, operation, need, id) in [
            (
                Method::GET,
                "/api/v1/overrides",
                Operation::Overrides,
                Read,
                "",
            ),
            (
                Method::POST,
                "/api/v1/overrides",
                Operation::SetOverride,
                Change,
                "",
            ),
            (
                Method::DELETE,
                "/api/v1/overrides/a1",
                Operation::RemoveOverride,
                Change,
                "a1",
            ),
        ] {
            let found = FoundRoute {
                operation,
                need,
                id,
            };
            assert_eq!(find(&method, path), Ok(found));
        }
        assert_eq!(
            find(&Method::DELETE, "/api/v1/overrides"),
            Err(Some("GET, POST"))
        );
        assert_eq!(
            find(&Method::GET, "/api/v1/overrides/a1"),
            Err(Some("DELETE"))
        );
        for path in [
            "/api/v1/overrides/",
            "/api/v1/overrides/a/b",
            "/api/v1/none",
        ] {
            assert_eq!(find(&Method::DELETE, path), Err(None), "{path}");
        }
    }
}
