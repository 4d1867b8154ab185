//! A real Envoy whose cluster has a name as Istio generates it, with `|`. Without `authority` in
//! its filter, the name is the `:authority` of each call.

use std::net::SocketAddr;

use super::{Site, site, traced};
use crate::support::envoy::with;
use crate::support::http_client::request;

/// The name that Istio gives the cluster of Weir's Service.
const CLUSTER: &str = "outbound|8081||ratelimit.default.svc.cluster.local";

/// Requests of a test that lets the authority be evicted again and again, and threads that send
/// them.
const REQUESTS: usize = 10_000;
const THREADS: usize = 8;

/// The template with that name, and without `failure_mode_deny`: a call that fails lets its request
/// pass.
fn as_istio(template: &str) -> String {
    let template = template
        .replace("name: weir }", &format!("name: \"{CLUSTER}\" }}"))
        .replace("name: weir\n", &format!("name: \"{CLUSTER}\"\n"));
    assert_eq!(
        template.matches(CLUSTER).count(),
        3,
        "the filter, the cluster and its endpoints: {template}"
    );
    with(
        &template,
        "failure_mode_deny: true",
        "failure_mode_deny: false",
    )
}

/// Sends requests of one user, each with trace headers of its own. Returns how many were limited.
fn limited(front: SocketAddr) -> usize {
    let call = |number: usize| {
        let (parent, state) = (
            format!("00-{:032x}-{:016x}-01", number + 1, number + 1),
            format!("v={number}|{}", "~".repeat(number % 300)),
        );
        let headers: &[(&str, &[u8])] = &[
            ("x-user", b"ana"),
            ("traceparent", parent.as_bytes()),
            ("tracestate", state.as_bytes()),
        ];
        request(front, "/header", headers).status
    };
    let statuses = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    (thread..REQUESTS)
                        .step_by(THREADS)
                        .map(call)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("an answer"))
            .collect::<Vec<_>>()
    });
    statuses.into_iter().filter(|&status| status == 429).count()
}

/// All calls were decided, on one connection that was rewritten, and HTTP/2 has reset none.
fn assert_all_decided(site: &Site) {
    let stats = [
        "upstream_cx_total",
        "upstream_cx_destroy",
        "upstream_rq_tx_reset",
        "upstream_rq_rx_reset",
    ];
    assert_eq!(
        stats.map(|stat| site.envoy.stat(&format!("cluster.{CLUSTER}.{stat}"))),
        [1, 0, 0, 0]
    );
    assert_eq!(site.envoy.stat("cluster.application.ratelimit.error"), 0);
    assert_eq!(
        site.weir.metric("weir_connections_rewritten_total"),
        Some(1.0)
    );
    assert_eq!(
        site.weir
            .metric("weir_http2_stream_resets_total{reason=\"protocol_error\"}"),
        Some(0.0)
    );
}

/// With tracing, other headers evict the authority from the table of header compression, and Envoy
/// sends it again.
#[test]
fn ten_thousand_traced_requests_are_limited() {
    let site = site(&traced(&as_istio(include_str!("descriptors.yaml"))));
    assert_eq!(limited(site.front), REQUESTS - 3, "three pass in a year");
    assert_all_decided(&site);
}

#[test]
fn a_long_tracestate_is_rewritten_like_any_other() {
    let site = site(&traced(&as_istio(include_str!("descriptors.yaml"))));
    let parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let call = |kilobytes: usize, letter: &str| {
        let state = ["v=", &letter.repeat(kilobytes * 1_000)].concat();
        request(
            site.front,
            "/header",
            &[
                ("x-user", b"ana"),
                ("traceparent", parent),
                ("tracestate", state.as_bytes()),
            ],
        )
        .status
    };
    // The first call of the connection is a long one.
    assert_eq!(
        [call(60, "~"), call(0, ""), call(17, "|"), call(0, "")],
        [200, 200, 200, 429]
    );
    for kilobytes in 1..=60 {
        let sent = || {
            site.envoy
                .stat(&format!("cluster.{CLUSTER}.upstream_cx_tx_bytes_total"))
        };
        let before = sent();
        // Huffman's code is shorter than some of these letters and longer than others.
        assert_eq!(
            call(kilobytes, ["~", "|", "a"][kilobytes % 3]),
            429,
            "{kilobytes} KB"
        );
        assert!(
            sent() - before > kilobytes as u64 * 600,
            "the tracestate was in the call"
        );
    }
    assert_all_decided(&site);
}
