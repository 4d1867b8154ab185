//! The calls of the API: method, path, the right that they need, and their handlers.
//! `openapi.json` describes each of them.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;

use hyper::Method;
use serde::Serialize;

use super::access::Right::{self, Change, Read};
use super::query::Query;
use super::reply::{Failure, blocking, json};
use super::{
    Call, Parts, decisions, explain, limits, openapi, overrides, shares, status, top, unmatched,
    usage,
};
use crate::net::http::Page;

/// Makes the answer to a call.
type Handler = fn(Arc<Parts>, Call) -> HandlerFuture;
type HandlerFuture = Pin<Box<dyn Future<Output = Result<Page, Failure>> + Send>>;

/// A call, by its method and its path below [`BASE`].
pub(super) type Route = (Method, &'static str, Right, Handler);

/// The prefix of all paths.
pub(super) const BASE: &str = "/api/v1/";

/// All calls.
pub(super) static ROUTES: [Route; 15] = [
    get("openapi.json", |_, _| Box::pin(ready(Ok(openapi::page())))),
    get("status", |parts, call| {
        now(&status::report(&parts, &call.caller))
    }),
    get("limits", |parts, call| apart(parts, call, limits::page)),
    get("decisions", |parts, call| {
        apart(parts, call, decisions::report)
    }),
    get("history", |parts, _| now(&parts.history.read())),
    (Method::POST, "explain", Read, |parts, call| {
        later(explain::running(parts, call))
    }),
    get("usage", |parts, call| later(usage::subject(parts, call))),
    get("usage/top", |parts, call| match call.query.get("by") {
        Some("share") => later(shares::list(parts, call)),
        _ if call.query.get("period") == Some("last") => later(shares::list(parts, call)),
        _ => later(usage::top(parts, call)),
    }),
    get("count", |parts, call| later(usage::count(parts, call))),
    get("top", |parts, call| apart(parts, call, top::report)),
    get("unmatched", |parts, call| {
        apart(parts, call, unmatched::report)
    }),
    get("overrides", |parts, call| {
        apart(parts, call, overrides::list)
    }),
    (Method::POST, "overrides", Change, |parts, call| {
        Box::pin(overrides::set(parts, call))
    }),
    (Method::DELETE, "overrides/{id}", Change, |parts, call| {
        later(overrides::remove(parts, call))
    }),
    (Method::POST, "reset", Change, |parts, call| {
        later(overrides::reset(parts, call))
    }),
];

const fn get(path: &'static str, handler: Handler) -> Route {
    (Method::GET, path, Read, handler)
}

/// An answer that is there at once.
fn now(answer: &impl Serialize) -> HandlerFuture {
    Box::pin(ready(Ok(json(answer))))
}

/// An answer that waits for the store.
fn later<T: Serialize>(
    answer: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> HandlerFuture {
    Box::pin(async { Ok(json(&answer.await?)) })
}

/// An answer that is made on another thread.
fn apart<T: Serialize + 'static>(
    parts: Arc<Parts>,
    call: Call,
    make: fn(&Parts, &Query) -> Result<T, Failure>,
) -> HandlerFuture {
    Box::pin(blocking(move || Ok(json(&make(&parts, &call.query)?))))
}

/// The last part of the path of a call about one thing.
const ID: &str = "{id}";

/// The route of a request, and the last part of the path of a call about one thing (else empty).
///
/// # Errors
/// The methods of the path, if the request has another one; `None`: there is no such path.
pub(super) fn find<'p>(
    method: &Method,
    path: &'p str,
) -> Result<(&'static Route, &'p str), Option<&'static str>> {
    let path = path.strip_prefix(BASE).ok_or(None)?;
    let mut allowed = None;
    for route in &ROUTES {
        match matched(route.1, path) {
            Some(id) if route.0 == method => return Ok((route, id)),
            // No path has more than two methods.
            Some(_) if allowed.is_some() => allowed = Some("GET, POST"),
            Some(_) => allowed = Some(route.0.as_str()),
            None => {}
        }
    }
    Err(allowed)
}

/// The id in a path that a pattern matches; empty where the pattern has none.
fn matched<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    let Some(before) = pattern.strip_suffix(ID) else {
        return (pattern == path).then_some("");
    };
    let id = path.strip_prefix(before);
    id.filter(|id| !id.is_empty() && !id.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_found_by_its_method_and_path() {
        let found = |method: Method, path: &'static str| {
            find(&method, path).map(|((method, path, need, _), id)| (method, *path, *need, id))
        };
        for (method, path, expected) in [
            (Method::GET, "overrides", ("overrides", Read, "")),
            (Method::POST, "overrides", ("overrides", Change, "")),
            (
                Method::DELETE,
                "overrides/a1",
                ("overrides/{id}", Change, "a1"),
            ),
        ] {
            let (route, need, id) = expected;
            let path = format!("{BASE}{path}").leak();
            assert_eq!(found(method.clone(), path), Ok((&method, route, need, id)));
        }
        assert_eq!(
            found(Method::DELETE, "/api/v1/overrides"),
            Err(Some("GET, POST"))
        );
        assert_eq!(
            found(Method::GET, "/api/v1/overrides/a1"),
            Err(Some("DELETE"))
        );
        for path in [
            "/api/v1/overrides/",
            "/api/v1/overrides/a/b",
            "/api/v1/none",
        ] {
            assert_eq!(found(Method::DELETE, path), Err(None), "{path}");
        }
    }
}
