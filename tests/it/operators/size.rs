//! The figures of `weir size` beside real processes: what a key takes in a Redis and in the memory
//! of a service.

use std::time::Duration;

use weir::cli::size::measured::{Row, usage_bytes};
use weir::core::algorithm::AlgorithmKind;

use crate::support::wait::eventually;
use crate::support::{Client, RedisServer, Weir, descriptor, request};

/// A limit of each algorithm. Hours, so that no key expires meanwhile; a ring of short buckets, so
/// that a test can fill several.
const LIMITS: &str = "
domain: size
descriptors:
  - { key: fixed_window, rate_limit: { unit: hour, requests_per_unit: 1000 } }
  - { key: sliding_window_log, rate_limit: { unit: hour, requests_per_unit: 1000, algorithm: sliding_window_log } }
  - { key: sliding_window_counter, rate_limit: { unit: hour, requests_per_unit: 1000, algorithm: sliding_window_counter } }
  - { key: sliding_window_buckets, rate_limit: { unit: minute, requests_per_unit: 1000, algorithm: sliding_window_buckets, bucket_interval: 100ms } }
  - { key: token_bucket, rate_limit: { unit: hour, requests_per_unit: 1000, algorithm: token_bucket } }
  - { key: leaky_bucket, rate_limit: { unit: hour, requests_per_unit: 1000000, algorithm: leaky_bucket, max_delay: 1h } }
";

/// How far a key in Redis may be from the table. The buffers of connections are in what Redis
/// reports, and its allocator has steps.
const TOLERANCE: f64 = 0.15;

/// Descriptors of a request.
const TOGETHER: usize = 200;

/// A digit of each value varies, so that all keys have the same length.
fn value(key: usize, length: usize) -> String {
    format!("{key:0length$}")
}

/// Sends a hit on each of `keys` keys.
async fn hit(client: &mut Client, algorithm: &str, keys: usize, length: usize) {
    for first in (0..keys).step_by(TOGETHER) {
        let descriptors = (first..keys.min(first + TOGETHER))
            .map(|key| descriptor(&[(algorithm, &value(key, length))]))
            .collect();
        let answer = client
            .should_rate_limit(request("size", descriptors))
            .await
            .expect("an answer")
            .into_inner();
        assert!(
            answer
                .statuses
                .iter()
                .all(|status| status.current_limit.is_some()),
            "every one is counted"
        );
    }
}

/// The memory of Redis without the buffers of its clients, which shrink some seconds after a large
/// batch.
fn used_memory(redis: &RedisServer) -> f64 {
    let read = || {
        let info: String = redis.run(&["INFO", "memory"]);
        let bytes = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name))
                .expect("a size")
                .trim()
                .parse::<f64>()
                .expect("a number")
        };
        bytes("used_memory:") - bytes("mem_clients_normal:")
    };
    // Tables that grow are there twice for a while.
    let steady = eventually(|| {
        let before = read();
        std::thread::sleep(Duration::from_millis(60));
        ((read() - before).abs() < 4_096.0).then_some(before)
    });
    steady.unwrap_or_else(read)
}

#[tokio::test]
async fn a_key_in_redis_takes_what_the_model_says() {
    let redis = RedisServer::start();
    let weir = Weir::start(
        &[("size.yaml", LIMITS)],
        &[
            ("REDIS_URL", &redis.url()),
            ("WORKERS", "1"),
            ("STORE_TIMEOUT", "10s"),
        ],
    );
    let info: String = redis.run(&["INFO"]);
    let is_the_modelled =
        info.contains("redis_version:7.0.") && info.contains("mem_allocator:jemalloc");
    let mut client = weir.client().await;
    for (name, kind) in AlgorithmKind::OVER_TIME {
        // Hits on a key, and bytes of its value.
        for (keys, hits, length) in [(30_000, 1, 8), (12_000, 1, 90), (6_000, 9, 20)] {
            let is_ring = kind == AlgorithmKind::SlidingWindowBuckets;
            if hits > 1 && !is_ring && kind != AlgorithmKind::SlidingWindowLog {
                continue;
            }
            redis.flush();
            // The connection and the script are there before.
            hit(&mut client, name, 1, length).await;
            redis.flush();
            let before = used_memory(&redis);
            for round in 0..hits {
                if is_ring && round > 0 {
                    // The next bucket.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                hit(&mut client, name, keys, length).await;
            }
            assert_eq!(redis.run::<usize>(&["DBSIZE"]), keys, "{name}");
            let measured = (used_memory(&redis) - before) / keys as f64;
            let key: String = redis.run(&["RANDOMKEY"]);
            let bytes = key.split(':').next().expect("a key").len();
            // A further hit is a cell of a log, or of buckets.
            let of_hits = f64::from(hits - 1) * 10.0;
            let modelled = Row::of(kind).redis_bytes(bytes as f64) + of_hits;
            eprintln!(
                "{name}, {hits} hits, {bytes} bytes of name: {measured:.1} bytes, {modelled:.1} by \
                 the table"
            );
            let most = modelled * (1.0 + TOLERANCE);
            let least = modelled
                * if is_the_modelled {
                    1.0 - TOLERANCE
                } else {
                    0.5
                };
            assert!(
                (least..=most).contains(&measured),
                "{name}, {hits} hits: {measured:.1} bytes of {key}, {modelled:.1} by the table"
            );
        }
    }
}

/// A limit whose usage is recorded in short buckets.
const USAGE: &str = "
domain: size
descriptors:
  - { key: fixed_window, rate_limit: { unit: day, requests_per_unit: 1000, track_usage: true, usage_interval: 1s } }
";

/// The record of a subject and its entries of the lists, beside its counter.
#[tokio::test]
async fn usage_in_redis_takes_what_the_model_says() {
    const SUBJECTS: usize = 9_000;
    let redis = RedisServer::start();
    let environment = [
        ("REDIS_URL", &*redis.url()),
        ("WORKERS", "1"),
        ("STORE_TIMEOUT", "10s"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
    ];
    let weir = Weir::start(&[("size.yaml", USAGE)], &environment);
    let info: String = redis.run(&["INFO"]);
    let is_the_modelled =
        info.contains("redis_version:7.0.") && info.contains("mem_allocator:jemalloc");
    let mut client = weir.client().await;
    hit(&mut client, "fixed_window", 1, 8).await;
    redis.flush();
    std::thread::sleep(Duration::from_millis(1_100));
    redis.flush();
    let before = used_memory(&redis);
    for buckets in 1..=5 {
        hit(&mut client, "fixed_window", SUBJECTS, 8).await;
        let is_listed = || {
            (redis.run::<usize>(&["ZCARD", "w1{size|fixed_window}ut"]) == SUBJECTS).then_some(())
        };
        assert!(eventually(is_listed).is_some(), "all are in the lists");
        // The lists of another order are written right behind, and the next bucket begins.
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        if ![1, 5].contains(&buckets) {
            continue;
        }
        let measured = (used_memory(&redis) - before) / SUBJECTS as f64;
        let key = "w1{size|fixed_window=00000001}fw86400";
        let length = key.len();
        let modelled =
            Row::of(AlgorithmKind::FixedWindow).redis_bytes(length as f64) + usage_bytes(buckets);
        eprintln!("{buckets} buckets: {measured:.1} bytes, {modelled:.1} by the model at most");
        let least = if is_the_modelled { 0.75 } else { 0.5 };
        assert!(
            (modelled * least..=modelled * 1.15).contains(&measured),
            "{buckets} buckets: {measured:.1} bytes, {modelled:.1} by the model"
        );
    }
}

#[tokio::test]
async fn a_key_in_memory_takes_what_was_measured() {
    const KEYS: usize = 200_000;
    let weir = Weir::start(&[("size.yaml", LIMITS)], &[("WORKERS", "1")]);
    let resident = || weir.resident_kib() as f64 * 1_024.0;
    let mut client = weir.client().await;
    hit(&mut client, "sliding_window_counter", 1, 8).await;
    let before = resident();
    hit(&mut client, "token_bucket", KEYS, 8).await;
    let measured = (resident() - before) / KEYS as f64;
    let modelled = Row::of(AlgorithmKind::TokenBucket).key_bytes[0];
    eprintln!("{measured:.1} bytes, {modelled:.1} measured by the bench");
    assert!(
        (measured / modelled - 1.0).abs() < 0.25,
        "{measured:.1} bytes, {modelled:.1} by the table"
    );
}
