//! `commit: all_or_none` in a Redis Cluster: all keys of such a domain are on one node, and a
//! refused request counts nothing whatever its limits are. `tests/vectors/decisions` has the counts
//! of one server and of the memory store.

use std::collections::BTreeSet;

use serde_json::Value;

use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitDescriptor, RateLimitResponse};

use crate::support::cluster::Cluster;
use crate::support::wait::eventually_async;
use crate::support::{Client, Weir, ask, descriptor, descriptor_with_hits, exclusive, http_client};

/// One request of the domain `whole`.
async fn send(client: &mut Client, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    ask(client, "whole", descriptors).await
}

/// With every algorithm, records of usage and trials.
fn limits() -> String {
    let counting: String = COUNTING
        .map(|key| {
            let delay = if key == "leaky_bucket" {
                ", max_delay: 24h"
            } else {
                ""
            };
            format!(
                "  - {{ key: {key}, rate_limit: {{ unit: day, requests_per_unit: 1000, algorithm: \
                 {key}{delay}, track_usage: true, trial: {{ requests_per_unit: 3 }} }} }}\n"
            )
        })
        .concat();
    format!(
        "domain: whole
commit: all_or_none
descriptors:
{counting}
  - {{ key: none, rate_limit: {{ unit: day, requests_per_unit: 0 }} }}
  - key: held
    descriptors:
      - key: request
        rate_limit: {{ algorithm: concurrency, requests_per_unit: 1, max_duration: 600s, \
            track_usage: true }}
"
    )
}

const COUNTING: [&str; 6] = [
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
    "sliding_window_buckets",
    "token_bucket",
    "leaky_bucket",
];

const TOKEN: &str = "0123456789abcdef0123";

/// Asks the admin API.
fn api(weir: &Weir, method: &str, call: &str, body: &str) -> Value {
    let token = format!("Bearer {TOKEN}");
    let headers = [
        ("authorization", &*token),
        ("content-type", "application/json"),
    ];
    let (address, path) = (weir.listener("debug"), format!("/api/v1/{call}"));
    let response = http_client::call(address, method, &path, &headers, body.as_bytes());
    assert!(matches!(response.status, 200 | 201), "{call}: {response:?}");
    serde_json::from_str(&response.body).expect("JSON")
}

/// The hits that a limit and its trial have counted of a subject.
fn used(weir: &Weir, key: &str, value: &str) -> [u64; 2] {
    let call = format!("explain?subject=whole%7C{key}%3D{value}");
    let explained = api(weir, "POST", &call, "");
    let one = &explained["descriptors"][0];
    [&one["live"], &one["trial"]["live"]].map(|live| {
        live["used"]
            .as_u64()
            .unwrap_or_else(|| panic!("{explained}"))
    })
}

/// What a limit has counted stays after requests that another limit, or a limit of requests in
/// flight, refuses.
async fn counts_whole_requests(weir: &Weir, client: &mut Client, key: &str, value: &str) {
    let with = |hits| descriptor_with_hits(&[(key, value)], hits);
    let place = |id| descriptor_with_hits(&[("held", value), ("request", id)], 1);
    let refused = send(client, vec![with(5), descriptor(&[("none", value)])]).await;
    assert_eq!(refused.overall_code(), Code::OverLimit);
    let refused = send(client, vec![descriptor(&[("none", value)]), with(5)]).await;
    assert_eq!(refused.overall_code(), Code::OverLimit);
    assert_eq!(used(weir, key, value)[0], 0, "{key}={value}");
    let taken = send(client, vec![with(5), place("a")]).await;
    assert_eq!(taken.overall_code(), Code::Ok, "{taken:?}");
    for id in ["b", "c"] {
        let refused = send(client, vec![with(5), place(id)]).await;
        assert_eq!(refused.overall_code(), Code::OverLimit, "{refused:?}");
    }
    // A trial counts what is asked, whatever becomes of the request; only a window counts refused
    // hits.
    let tried = if key == "fixed_window" { 25 } else { 0 };
    assert_eq!(used(weir, key, value), [5, tried], "{key}={value}");
}

/// The slots and the nodes of all keys of a domain.
fn homes(cluster: &Cluster, domain: &str) -> (BTreeSet<u16>, usize) {
    let mut slots = BTreeSet::new();
    let mut keys = 0;
    for port in cluster.primaries() {
        let own: Vec<String> = cluster.node(port).run(&["KEYS", &format!("*{{{domain}*")]);
        keys += own.len();
        slots.extend(own.iter().map(|key| cluster.slot(key)));
    }
    (slots, keys)
}

#[tokio::test]
async fn a_domain_is_on_one_node() {
    let _exclusive = exclusive();
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, format!("alice:{TOKEN}\n")).expect("written");
    let cluster = Cluster::start();
    let environment = [
        ("REDIS_TYPE", "cluster"),
        ("REDIS_URL", &*cluster.url()),
        ("STORE_TIMEOUT", "5s"),
        ("ADMIN_TOKEN_FILE", tokens.to_str().expect("UTF-8")),
    ];
    let weir = Weir::start(&[("limits.yaml", &limits())], &environment);
    let client = &mut weir.client().await;
    for key in COUNTING {
        for value in 0..8 {
            counts_whole_requests(&weir, client, key, &format!("v{value}")).await;
        }
    }
    // Reads of a subject and changes by an operator find its keys.
    for key in COUNTING {
        let usage = api(
            &weir,
            "GET",
            &format!("usage?domain=whole&entry={key}%3Dv0"),
            "",
        );
        assert_eq!(
            (&usage["hits"], &usage["refused"], &usage["subject"]),
            (&5.into(), &0.into(), &format!("whole|{key}=v0").into()),
            "{usage}"
        );
        let top = || api(&weir, "GET", &format!("usage/top?limit=whole.{key}"), "");
        let listed = || (top()["total"] == 8).then_some(());
        assert!(eventually_async(listed).await.is_some(), "{}", top());
        let order = format!("{{\"subject\": \"whole|{key}=v0\"}}");
        let reset = api(&weir, "POST", "reset", &order);
        assert_eq!(reset["reset"][0]["existed"], true, "{reset}");
        assert_eq!(
            (used(&weir, key, "v0")[0], used(&weir, key, "v1")[0]),
            (0, 5),
            "{key}"
        );
    }
    let blocked = r#"{"kind": "block", "subject": "whole|token_bucket=v1", "reason": "test"}"#;
    api(&weir, "POST", "overrides", blocked);
    let both = ["token_bucket", "fixed_window"].map(|key| descriptor(&[(key, "v1")]));
    let refused = send(client, both.to_vec()).await;
    assert_eq!(refused.overall_code(), Code::OverLimit);
    assert_eq!(used(&weir, "fixed_window", "v1")[0], 5);
    let (slots, keys) = homes(&cluster, "whole");
    // Counters, records, trials and their records, and lists.
    assert!(slots.len() == 1 && keys > 6 * 8 * 3, "{slots:?}, {keys}");
    assert_eq!(slots, BTreeSet::from([cluster.slot("{whole}")]));
}
