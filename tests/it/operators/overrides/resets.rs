//! `weir reset` for every algorithm, in both stores.

use weir::core::proto::rate_limit_response::Code;

use super::{Desk, LIMITS, call, code};
use crate::support::wait::eventually;
use crate::support::{RedisServer, Weir};

/// One limit of each algorithm, as its key, of 3 hits, which recovers slowly.
const EACH: &str = "
domain: shop
descriptors:
  - { key: fixed_window, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: by_script, rate_limit: { unit: day, requests_per_unit: 3, count_denied: false } }
  - { key: sliding_window_log, rate_limit: { unit: day, requests_per_unit: 3, \
      algorithm: sliding_window_log } }
  - { key: sliding_window_counter, rate_limit: { unit: day, requests_per_unit: 3, \
      algorithm: sliding_window_counter } }
  - { key: sliding_window_buckets, rate_limit: { unit: day, requests_per_unit: 3, \
      algorithm: sliding_window_buckets } }
  - { key: token_bucket, rate_limit: { unit: day, requests_per_unit: 3, algorithm: token_bucket } }
  - { key: leaky_bucket, rate_limit: { unit: day, requests_per_unit: 3, algorithm: leaky_bucket, \
      max_delay: 0s } }
  - { key: per_second, rate_limit: { unit: second, unit_multiplier: 100000, requests_per_unit: 3 } }
";

const KEYS: [&str; 8] = [
    "fixed_window",
    "by_script",
    "sliding_window_log",
    "sliding_window_counter",
    "sliding_window_buckets",
    "token_bucket",
    "leaky_bucket",
    "per_second",
];

async fn resets(desk: &Desk, weir: &Weir) {
    let client = &mut weir.client().await;
    for key in KEYS {
        let mut passed = 0;
        while code(client, key, "1", 1).await == Code::Ok {
            passed += 1;
            assert!(passed <= 3, "{key}");
        }
        // Refused again, perhaps by the denial cache.
        assert_eq!(code(client, key, "1", 1).await, Code::OverLimit, "{key}");
        assert_eq!(code(client, key, "2", 1).await, Code::Ok, "{key}");
        let text = desk.ok(weir, &["reset", "-d", "shop", &format!("{key}=1")]);
        assert!(
            text.starts_with(&format!(
                "shop.{key} counts from zero (counter w1{{shop|{key}=1}}"
            )),
            "{text}"
        );
        let answer = call(client, "shop", key, "1", 1).await;
        assert_eq!(
            answer.overall_code(),
            Code::Ok,
            "{key}: at once in this process"
        );
        let left = if key == "leaky_bucket" { 0 } else { 2 };
        assert_eq!(answer.statuses[0].limit_remaining, left, "{key}");
        // Only this descriptor.
        if key != "leaky_bucket" {
            assert_eq!(
                call(client, "shop", key, "2", 0).await.statuses[0].limit_remaining,
                2,
                "{key}"
            );
        }
        let nothing = desk.ok(weir, &["reset", "-d", "shop", &format!("{key}=other")]);
        assert!(
            nothing.starts_with(&format!("shop.{key} had counted nothing")),
            "{nothing}"
        );
    }
    let line = weir.wait_for_log("\"@message\":\"counter reset\"").await;
    for field in [
        "\"by\":\"alice\"",
        "\"domain\":\"shop\"",
        "\"entries\":\"fixed_window=1\"",
        "\"limit\":\"shop.fixed_window\"",
    ] {
        assert!(line.contains(field), "{field}: {line}");
    }
    assert_eq!(
        weir.metric("weir_override_changes_total{change=\"reset\"}"),
        Some(2.0 * KEYS.len() as f64)
    );
}

#[tokio::test]
async fn every_algorithm_starts_from_zero_in_memory() {
    let desk = Desk::new();
    resets(&desk, &desk.start(EACH, &[])).await;
}

#[tokio::test]
async fn every_algorithm_starts_from_zero_in_redis() {
    let (desk, redis, per_second) = (Desk::new(), RedisServer::start(), RedisServer::start());
    let environment = [
        ("REDIS_URL", &*redis.url()),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", &per_second.url()),
    ];
    let weir = desk.start(EACH, &environment);
    resets(&desk, &weir).await;
    assert!(
        per_second.calls("del") > 0,
        "the limit per second was reset where it is counted"
    );
    for server in [&redis, &per_second] {
        let keys = server.keys();
        for key in keys.iter().filter(|key| key.contains("shop")) {
            let has_ttl = || (server.run::<i64>(&["PTTL", key]) > 0).then_some(());
            assert!(
                eventually(has_ttl).is_some(),
                "{key} has no TTL after its reset"
            );
        }
    }
}

/// A connection that knows the TTL of a counter sends a bare INCRBY. A counter that was reset gets
/// a TTL again all the same.
#[tokio::test]
async fn a_counter_whose_ttl_was_known_gets_one_again() {
    let (desk, redis) = (Desk::new(), RedisServer::start());
    let weir = desk.start(LIMITS, &[("REDIS_URL", &redis.url()), ("WORKERS", "1")]);
    let client = &mut weir.client().await;
    for _ in 0..2 {
        assert_eq!(code(client, "user", "1", 1).await, Code::Ok);
    }
    let expires = redis.calls("expire");
    let key = redis
        .keys()
        .into_iter()
        .find(|key| key.contains("user=1"))
        .expect("a counter");
    desk.ok(&weir, &["reset", "-d", "shop", "user=1"]);
    assert!(!redis.keys().contains(&key));
    assert_eq!(code(client, "user", "1", 1).await, Code::Ok);
    let has_ttl = || (redis.run::<i64>(&["PTTL", &key]) > 0).then_some(());
    assert!(eventually(has_ttl).is_some(), "{key} has no TTL");
    assert_eq!(
        (redis.run::<i64>(&["GET", &key]), redis.calls("expire")),
        (1, expires + 1)
    );
}
