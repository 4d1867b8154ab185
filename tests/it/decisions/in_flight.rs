//! `algorithm: concurrency` through real processes: rights in Redis, the admin API and commands,
//! outages, and (`in_flight/envoy.rs`) a real Envoy. `tests/vectors/decisions/in_flight.txt` has
//! the decisions.

mod envoy;

use std::time::{Duration, Instant};

use serde_json::Value;
use weir::core::proto::RateLimitResponse;
use weir::core::proto::rate_limit_response::Code;

use crate::support::redis::rights_of_the_page;
use crate::support::wait::TIMEOUT;
use crate::support::{Client, RedisServer, Weir, ask, descriptor_with_hits, http_client, request};

const LIMITS: &[(&str, &str)] = &[
    (
        "limits.yaml",
        "
domain: shop
descriptors:
  - key: user
    descriptors:
      - key: request
        rate_limit: { name: reports, algorithm: concurrency, requests_per_unit: 2, \
            max_duration: 60s, track_usage: true }
      - key: job
        rate_limit: { algorithm: concurrency, requests_per_unit: 1, max_duration: 60s, \
            on_store_failure: deny }
  - key: short
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 1, max_duration: 1s }
  - key: local
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 4, max_duration: 60s, \
            on_store_failure: local }
  - key: request
    rate_limit: { algorithm: concurrency, requests_per_unit: 3, max_duration: 60s }
  - key: shown
    detailed_metric: true
    rate_limit: { unit: year, requests_per_unit: 10 }
    descriptors:
      - key: request
        detailed_metric: true
        rate_limit: { algorithm: concurrency, requests_per_unit: 9, max_duration: 60s }
",
    ),
    (
        "whole.yaml",
        "
domain: whole
commit: all_or_none
descriptors:
  - key: user
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 2, max_duration: 60s }
  - key: team
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 1, max_duration: 60s }
",
    ),
];

async fn call(client: &mut Client, entries: &[(&str, &str)], hits: i64) -> RateLimitResponse {
    ask(client, "shop", vec![descriptor_with_hits(entries, hits)]).await
}

/// Whether it is allowed, and what remains.
async fn places(client: &mut Client, entries: &[(&str, &str)], hits: i64) -> (bool, u32) {
    let answer = call(client, entries, hits).await;
    (
        answer.overall_code() == Code::Ok,
        answer.statuses[0].limit_remaining,
    )
}

/// The places that a limit has given away, by the metric of one process.
fn holders_in(weir: &Weir, domain: &str, limit: &str) -> f64 {
    let page = weir.get("/metrics").1;
    let series = format!("weir_concurrency_holders{{domain=\"{domain}\",limit=\"{limit}\"");
    let line = page.lines().find(|line| line.starts_with(&series));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {series} in {page}"))
}

/// The rights that the page names are enough, and without them only these limits fail.
#[tokio::test]
async fn a_redis_user_needs_the_rights_of_the_page() {
    let redis = RedisServer::start();
    let [rights, own] = rights_of_the_page("algorithm: concurrency");
    assert!(own.len() > 5, "{own:?}");
    let [_, of_usage] = rights_of_the_page("track_usage");
    redis.grant(&[rights.clone(), of_usage].concat());
    let weir = Weir::start(
        LIMITS,
        &[
            ("REDIS_URL", &redis.url()),
            ("REDIS_AUTH", "weir:s3cret"),
            ("STORE_TIMEOUT", "5s"),
        ],
    );
    let client = &mut weir.client().await;
    let both = vec![
        descriptor_with_hits(&[("shown", "x")], 1),
        descriptor_with_hits(&[("user", "x"), ("job", "a")], 1),
    ];
    let answer = ask(client, "shop", both).await;
    assert_eq!(
        answer.overall_code(),
        Code::OverLimit,
        "by on_store_failure: deny"
    );
    assert_eq!(
        (
            answer.statuses[0].code(),
            answer.statuses[0].limit_remaining
        ),
        (Code::Ok, 9),
        "{answer:?}"
    );
    redis.grant(&[rights, own].concat());
    let id = |id: &str| [("request".to_owned(), id.to_owned())];
    for round in 0..2 {
        for (number, hits) in [3, 1, -1, 2].into_iter().enumerate() {
            let id = id(&format!("{round}.{}", number / 2));
            places(client, &[("user", "x"), ("job", &id[0].1)], hits).await;
            let _ = places(client, &[("short", "x"), ("request", &id[0].1)], hits).await;
            let _ = places(client, &[("request", &id[0].1)], hits).await;
        }
        // Something has expired.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    assert_eq!(
        places(client, &[("short", "x"), ("request", "last")], 1).await,
        (true, 0)
    );
}

/// The id is in no metric, and subjects, overrides, usage, explanations and resets are those of all
/// ids.
#[tokio::test]
async fn the_id_is_no_part_of_the_subject() {
    let weir = Weir::start(LIMITS, &[]);
    let client = &mut weir.client().await;
    for number in 0..4 {
        call(
            client,
            &[("user", "ann"), ("request", &format!("secret-{number}"))],
            1,
        )
        .await;
        call(
            client,
            &[("shown", "ann"), ("request", &format!("secret-{number}"))],
            1,
        )
        .await;
    }
    call(client, &[("user", "ann"), ("request", "secret-0")], -1).await;
    let metrics = weir.get("/metrics").1;
    assert!(!metrics.contains("secret-"), "{metrics}");
    assert!(metrics.contains("key2=\"request\""), "{metrics}");
    let api = |call: &str| -> Value {
        let response = http_client::get(weir.listener("debug"), &format!("/api/v1/{call}"));
        serde_json::from_str(&response.body)
            .unwrap_or_else(|_| panic!("no JSON: {}", response.body))
    };
    let usage = api("usage?domain=shop&entry=user%3Dann&entry=request%3Danything");
    assert_eq!(
        (&usage["hits"], &usage["refused"]),
        (&Value::from(4), &Value::from(2)),
        "{usage}"
    );
    let top = api("top").to_string();
    assert!(
        top.contains("shop|user=ann|request=") && !top.contains("secret-"),
        "{top}"
    );
    let explained = weir.command(&["explain", "--domain", "shop", "user=ann", "request=new"]);
    assert!(
        explained.contains("2 in flight")
            && explained.contains("max_duration 60s")
            && explained.contains("1 used, 1 left; of this replica only\n"),
        "{explained}"
    );
}

/// What was acquired while Redis was away, or before it was, is released in both stores.
#[tokio::test]
async fn releases_reach_both_stores() {
    let redis = RedisServer::start();
    let weir = Weir::start(
        LIMITS,
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "200ms")],
    );
    let client = &mut weir.client().await;
    let id = |id: &'static str| [("local", "x"), ("request", id)];
    assert_eq!(places(client, &id("before"), 1).await, (true, 3));
    assert_eq!(
        places(client, &[("user", "x"), ("request", "before")], 1).await,
        (true, 1)
    );
    redis.pause();
    assert_eq!(
        places(client, &id("during"), 1).await,
        (true, 3),
        "the replica's own places"
    );
    assert_eq!(places(client, &id("during too"), 1).await, (true, 2));
    // Neither is an error, whatever the failure policy is.
    assert_eq!(
        call(client, &[("user", "x"), ("request", "before")], -1)
            .await
            .overall_code(),
        Code::Ok
    );
    assert_eq!(
        call(client, &[("user", "x"), ("job", "before")], -1)
            .await
            .overall_code(),
        Code::Ok,
        "deny"
    );
    assert_eq!(
        places(client, &id("during"), -1).await,
        (true, 3),
        "released where it was acquired"
    );
    let new = |hits| {
        let descriptor = descriptor_with_hits(&[("user", "x"), ("request", "new")], hits);
        request("shop", vec![descriptor])
    };
    assert!(client.should_rate_limit(new(1)).await.is_err());
    redis.resume();
    let began = Instant::now();
    while client.should_rate_limit(new(0)).await.is_err() {
        assert!(began.elapsed() < TIMEOUT, "Redis is back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(weir.metric("weir_local_keys"), Some(1.0));
    // Redis decides again; the place in memory is free too.
    assert_eq!(
        call(client, &id("during too"), -1).await.overall_code(),
        Code::Ok
    );
    assert_eq!(
        call(client, &id("before"), -1).await.overall_code(),
        Code::Ok
    );
    redis.pause();
    assert_eq!(
        places(client, &id("later"), 4).await,
        (true, 0),
        "none is taken in memory"
    );
    redis.resume();
}
