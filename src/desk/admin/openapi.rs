//! The description of the API for programs, in OpenAPI 3.1. Tests compare it with the routes, and
//! real answers with its schemas.

use bytes::Bytes;
use hyper::StatusCode;

use crate::net::http::responses::{Page, response};

const DOCUMENT: &str = include_str!("openapi.json");

/// The document.
pub(super) fn page() -> Page {
    response(
        StatusCode::OK,
        "application/json",
        Bytes::from_static(DOCUMENT.as_bytes()),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::desk::admin::access::Need;
    use crate::desk::admin::routes::{BASE, ROUTES};

    #[test]
    fn every_call_is_described_and_nothing_else() {
        let document: Value = serde_json::from_str(DOCUMENT).expect("JSON");
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for (method, call) in methods.as_object().expect("methods") {
                let is_change = !call["security"].is_null();
                assert!(
                    call["summary"].is_string()
                        && call["responses"]["200"].is_object()
                            | call["responses"]["201"].is_object(),
                    "{path}"
                );
                described.insert((method.to_ascii_uppercase(), path.clone(), is_change));
            }
        }
        let routes = ROUTES.iter().map(|(method, path, need, _)| {
            (
                method.to_string(),
                format!("{BASE}{path}"),
                *need == Need::Change,
            )
        });
        assert_eq!(described, routes.collect());
    }
}
