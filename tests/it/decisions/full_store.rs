//! A store in memory that is full: refused clients stay refused, however many new values arrive.

use weir::core::proto::rate_limit_response::{Code, DescriptorStatus};

use crate::support::{Client, RedisServer, Weir, ask, descriptor};

/// Clients with nothing left, in a store of 2,000 keys.
const REFUSED: usize = 100;

/// Values with one hit each that arrive afterwards.
const NEW: usize = 4_000;

/// The limits: each with its key, and further options.
const LIMITS: &[(&str, &str)] = &[
    ("fixed_window", "requests_per_unit: 5"),
    (
        "sliding_window_log",
        "requests_per_unit: 5, algorithm: sliding_window_log",
    ),
    (
        "sliding_window_counter",
        "requests_per_unit: 5, algorithm: sliding_window_counter",
    ),
    (
        "sliding_window_buckets",
        "requests_per_unit: 5, algorithm: sliding_window_buckets",
    ),
    (
        "token_bucket",
        "requests_per_unit: 5, algorithm: token_bucket",
    ),
    // A new value has nothing left either, but was not refused.
    (
        "leaky_bucket",
        "requests_per_unit: 5, algorithm: leaky_bucket",
    ),
    (
        "single",
        "requests_per_unit: 1, algorithm: sliding_window_log",
    ),
    (
        "reserved",
        "requests_per_unit: 5, algorithm: token_bucket, reservations: { ttl: 24h }",
    ),
];

/// The limits that a domain with this `commit` can have.
fn limits(commit: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let is_each = commit == "each";
    LIMITS
        .iter()
        .filter(move |(key, _)| is_each || *key != "reserved")
}

fn file(commit: &str) -> String {
    let mut file = format!("domain: test\ncommit: {commit}\ndescriptors:\n");
    for (key, options) in limits(commit) {
        let limit = format!("{{ unit: year, {options}, on_store_failure: local }}");
        file += &format!("  - {{ key: {key}, rate_limit: {limit} }}\n");
    }
    file
}

/// The codes of one hit for each of these values.
async fn hit(client: &mut Client, key: &str, values: std::ops::Range<usize>) -> Vec<Code> {
    let descriptors = values.map(|value| descriptor(&[(key, &value.to_string())]));
    let answer = ask(client, "test", descriptors.collect()).await;
    answer.statuses.iter().map(DescriptorStatus::code).collect()
}

async fn refused_clients_stay_refused(commit: &str, environment: &[(&str, &str)]) {
    let file = file(commit);
    for (key, _) in limits(commit) {
        let weir = Weir::start(&[("limits.yaml", &file)], environment);
        let client = &mut weir.client().await;
        for value in 0..REFUSED {
            for _ in 0..6 {
                hit(client, key, value..value + 1).await;
            }
        }
        let all_refused = [Code::OverLimit; REFUSED];
        for first in (REFUSED..REFUSED + NEW).step_by(100) {
            let new = hit(client, key, first..first + 100).await;
            assert!(new.iter().all(|code| *code == Code::Ok), "{key}: {new:?}");
        }
        let mut codes = Vec::new();
        for value in 0..REFUSED {
            codes.extend(hit(client, key, value..value + 1).await);
        }
        let again = codes.iter().filter(|code| **code == Code::Ok).count();
        assert!(
            codes == all_refused,
            "{key}, {commit}: {again} have hits again"
        );
    }
}

#[tokio::test]
async fn in_the_memory_store() {
    refused_clients_stay_refused("each", &[("MEMORY_MAX_KEYS", "2000")]).await;
}

#[tokio::test]
async fn in_requests_that_count_as_a_whole() {
    refused_clients_stay_refused("all_or_none", &[("MEMORY_MAX_KEYS", "2000")]).await;
}

#[tokio::test]
async fn while_redis_is_away() {
    let redis = RedisServer::absent();
    let environment = [("REDIS_URL", &*redis.url()), ("LOCAL_MAX_KEYS", "2000")];
    refused_clients_stay_refused("each", &environment).await;
}
