//! The headers about limits that an upstream gets (`LIMIT_REQUEST_HEADERS_ENABLED`).

use super::*;

/// The response of the application shows these headers of its request.
const SHOWN: &str = "response_headers_to_add:
                    - { header: { key: x-tokens, value: \"4\" } }
                    - { header: { key: seen-limit, value: \"%REQ(ratelimit-limit)%\" } }
                    - { header: { key: seen-left, value: \"%REQ(ratelimit-remaining)%\" } }
                    - { header: { key: seen-reset, value: \"%REQ(ratelimit-reset)%\" } }";

const FORGED: &[(&str, &[u8])] = &[
    ("ratelimit-limit", b"1000"),
    ("ratelimit-remaining", b"999"),
    ("ratelimit-reset", b"1"),
];

fn seen(response: &http_client::Response) -> [String; 3] {
    ["seen-limit", "seen-left", "seen-reset"].map(|name| header(response, name))
}

fn site_that_shows(template: &str) -> Site {
    let template = with(
        template,
        "response_headers_to_add: [{ header: { key: x-tokens, value: \"4\" } }]",
        SHOWN,
    );
    site_with(&template, &[("LIMIT_REQUEST_HEADERS_ENABLED", "true")])
}

/// The block of the page that removes headers of clients, in a listener of the template.
fn with_the_block_of_the_page(template: &str) -> String {
    let page = tools::file("deploy/envoy/README.md");
    let (_, rest) = page
        .split_once("## Headers for the upstream")
        .expect("a section");
    let (_, rest) = rest.split_once("```yaml\n").expect("a block");
    let (block, _) = rest.split_once("```").expect("its end");
    let lines = block
        .lines()
        .map(|line| format!("                {line}\n"));
    let front = "                stat_prefix: front\n";
    with(
        template,
        front,
        &(front.to_owned() + &lines.collect::<String>()),
    )
}

#[test]
fn the_upstream_gets_the_headers_and_no_client_can_forge_them() {
    let template = include_str!("descriptors.yaml");
    let site = site_that_shows(&with_the_block_of_the_page(template));
    for (left, headers) in [("1", &[][..]), ("0", FORGED)] {
        let response = request(site.front, "/generic", headers);
        assert_eq!(response.status, 200);
        let [limit, remaining, reset] = seen(&response);
        assert_eq!((&*limit, &*remaining), ("2", left));
        let reset: u64 = reset.parse().expect("one number");
        assert!((1..=YEAR_AT_MOST).contains(&reset), "{reset}");
        assert_eq!(response.header("ratelimit-limit"), None, "{response:?}");
    }
    let refused = request(site.front, "/generic", FORGED);
    assert_eq!((refused.status, refused.header("seen-limit")), (429, None));
    let unlimited = request(site.front, "/header", FORGED);
    assert_eq!(
        (unlimited.status, unlimited.header("seen-limit")),
        (200, None),
        "no limit applies"
    );
}

/// The reason for the block on the page.
#[test]
fn without_the_block_the_first_value_is_from_the_client() {
    let site = site_that_shows(include_str!("descriptors.yaml"));
    let [limit, remaining, _] = seen(&request(site.front, "/generic", FORGED));
    assert_eq!((&*limit, &*remaining), ("1000", "999"));
}
