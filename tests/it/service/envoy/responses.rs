//! What an HTTP client behind Envoy reads of limits: the headers that Weir adds, and the body of a
//! refusal.

use super::*;

/// The seconds in a parameter of a header, such as `;t=60`.
fn parameter(header: &str, name: &str) -> u64 {
    let (_, rest) = header
        .split_once(&format!(";{name}="))
        .unwrap_or_else(|| panic!("no {name} in {header}"));
    rest.split(';')
        .next()
        .and_then(|secs| secs.parse().ok())
        .unwrap_or_else(|| panic!("{name} in {header}"))
}

/// How many headers of this name a response has.
fn count(response: &http_client::Response, name: &str) -> usize {
    response
        .headers
        .iter()
        .filter(|(key, _)| key.eq_ignore_ascii_case(name))
        .count()
}

#[test]
fn draft_11_headers_and_a_problem_reach_the_client() {
    let environment = [
        ("RATELIMIT_HEADERS", "draft-11"),
        ("RETRY_AFTER_HEADER_ENABLED", "true"),
        ("PROBLEM_DETAILS_ENABLED", "true"),
        ("REFUSED_BY_HEADER", "x-refused-by"),
    ];
    let site = site_with(include_str!("descriptors.yaml"), &environment);
    // A value that a client chose stays out of the headers, whatever it looks like.
    let call = || request(site.front, "/header", &[("x-user", b"ana\", \"b\";q=9")]);
    for left in ["2", "1", "0"] {
        let response = call();
        assert_eq!(response.status, 200);
        assert_eq!(
            header(&response, "ratelimit-policy"),
            "\"per-user\";q=3;w=31536000"
        );
        let state = header(&response, "ratelimit");
        assert!(
            state.starts_with(&format!("\"per-user\";r={left};t=")),
            "{state}"
        );
        assert!(
            (1..=YEAR_AT_MOST).contains(&parameter(&state, "t")),
            "{state}"
        );
        for absent in ["retry-after", "x-refused-by"] {
            assert_eq!(response.header(absent), None, "{response:?}");
        }
        assert_eq!(
            header(&response, "content-type"),
            "text/plain",
            "that of the application"
        );
    }
    let refused = call();
    assert_eq!(refused.status, 429);
    let state = header(&refused, "ratelimit");
    assert!(state.starts_with("\"per-user\";r=0;t="), "{state}");
    assert_eq!(
        header(&refused, "retry-after"),
        parameter(&state, "t").to_string(),
        "not before the end of the effective window"
    );
    assert_eq!(header(&refused, "x-refused-by"), "\"per-user\"");
    assert_eq!(
        (
            header(&refused, "content-type"),
            count(&refused, "content-type")
        ),
        ("application/problem+json".to_owned(), 1)
    );
    let problem: serde_json::Value = serde_json::from_str(&refused.body).expect("JSON");
    assert_eq!(
        (&problem["status"], &problem["violated-policies"]),
        (&429.into(), &serde_json::json!(["per-user"])),
        "{problem}"
    );
    assert_eq!(
        header(&refused, "content-length"),
        refused.body.len().to_string()
    );
    assert_eq!(site.envoy.stat("cluster.application.ratelimit.error"), 0);
}

/// Envoy makes its header of the statuses, Weir its own: an Envoy without
/// `enable_x_ratelimit_headers` gives clients the same.
#[test]
fn draft_03_headers_are_those_of_envoy() {
    let names = [
        ("LIMIT_LIMIT_HEADER", "weir-limit"),
        ("LIMIT_REMAINING_HEADER", "weir-remaining"),
        ("LIMIT_RESET_HEADER", "weir-reset"),
        ("RATELIMIT_HEADERS", "draft-03"),
    ];
    let site = site_with(include_str!("descriptors.yaml"), &names);
    let same = |path: &str, user: &[u8]| {
        let response = request(site.front, path, &[("x-user", user)]);
        for part in ["limit", "remaining", "reset"] {
            assert_eq!(
                header(&response, &format!("weir-{part}")),
                header(&response, &format!("x-ratelimit-{part}")),
                "{path}: {part}"
            );
        }
        response.status
    };
    assert_eq!(
        [
            same("/header", b"ana"),
            same("/generic", b""),
            same("/half-minute", b""),
            same("/address", b"")
        ],
        [200; 4]
    );
    assert_eq!(
        [
            same("/header", b"ana"),
            same("/header", b"ana"),
            same("/header", b"ana")
        ],
        [200, 200, 429]
    );
}
