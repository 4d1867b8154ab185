//! The rule of `tests/vectors/holds.py` through the socket, in memory and on Redis: settlements that
//! are late, lost or repeated, requests that other limits refuse, and what is shown and reported.
//!
//! Descriptors of one request are decided at one instant, so that most worlds need no clock. The end
//! of a window or of a `ttl` is awaited at another key that was counted at the same instant.

use std::fmt::Write as _;
use std::time::Instant;

use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitRequest, RateLimitResponse};

use crate::support::wait::TIMEOUT;
use crate::support::{Client, RedisServer, Weir, descriptor_with_hits, request};

/// Each with the options of its limits.
pub(super) const ALGORITHMS: [&str; 5] = ["fixed", "counter", "log", "buckets", "bucket"];

/// One limit for each algorithm, with a key that begins with `prefix`.
pub(super) fn of_each_algorithm(prefix: &str, options: &str) -> String {
    let mut text = String::new();
    for (name, algorithm) in ALGORITHMS.into_iter().zip([
        "fixed_window",
        "sliding_window_counter",
        "sliding_window_log",
        "sliding_window_buckets",
        "token_bucket",
    ]) {
        let limit = format!("{{ algorithm: {algorithm}, {options} }}");
        let _ = writeln!(text, "  - {{ key: {prefix}{name}, rate_limit: {limit} }}");
    }
    text
}

pub(super) fn file(descriptors: &str) -> String {
    format!("domain: rule\ndescriptors:\n{descriptors}")
}

/// A request of descriptors such as `key=value reserve=1 40`, with the hits at the end.
pub(super) fn request_of<S: AsRef<str>>(descriptors: &[S]) -> RateLimitRequest {
    let one = |text: &S| {
        let (entries, hits) = text.as_ref().rsplit_once(' ').expect("entries and hits");
        let pair = |entry| str::split_once(entry, '=').expect("key=value");
        let entries: Vec<_> = entries.split(' ').map(pair).collect();
        descriptor_with_hits(&entries, hits.parse().expect("hits"))
    };
    request("rule", descriptors.iter().map(one).collect())
}

pub(super) async fn answer<S: AsRef<str>>(
    client: &mut Client,
    descriptors: &[S],
) -> RateLimitResponse {
    let answer = client.should_rate_limit(request_of(descriptors)).await;
    answer.expect("an answer").into_inner()
}

/// Whether each descriptor is within its limit, and the hits left.
pub(super) async fn all<S: AsRef<str>>(client: &mut Client, descriptors: &[S]) -> Vec<(bool, u32)> {
    let answer = answer(client, descriptors).await;
    let statuses = answer.statuses.iter();
    statuses
        .map(|status| (status.code() == Code::Ok, status.limit_remaining))
        .collect()
}

pub(super) async fn one(client: &mut Client, descriptor: &str) -> (bool, u32) {
    all(client, &[descriptor]).await[0]
}

/// Peeks until each of these keys has so many hits left.
pub(super) async fn until_left<S: AsRef<str>>(client: &mut Client, peeks: &[S], left: u32) {
    let began = Instant::now();
    while all(client, peeks).await.iter().any(|one| one.1 != left) {
        assert!(began.elapsed() < TIMEOUT, "{left} are left");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

pub(super) fn each(keys: &[&str], rest: &str) -> Vec<String> {
    keys.iter().map(|key| format!("{key}{rest}")).collect()
}

/// A thousand holds that expire at once make room for the next reservation.
#[tokio::test]
async fn all_holds_that_have_expired_make_room_at_once() {
    let year = "unit: year, requests_per_unit: 1000";
    let limits = of_each_algorithm("", &format!("{year}, reservations: {{ ttl: 2s }}"))
        + "  - { key: end, rate_limit: { unit: year, requests_per_unit: 100, \
            reservations: { ttl: 3s } } }\n";
    let redis = RedisServer::start();
    let url = redis.url();
    for environment in [&[][..], &[("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")]] {
        let weir = Weir::start(&[("limits.yaml", &file(&limits))], environment);
        let client = &mut weir.client().await;
        for key in ALGORITHMS {
            for first in (0..1_000).step_by(250) {
                let ids = first..first + 250;
                let holds: Vec<_> = ids.map(|id| format!("{key}=a reserve={id} 1")).collect();
                let answers = all(client, &holds).await;
                assert!(answers.iter().all(|(is_ok, _)| *is_ok), "{key}");
            }
        }
        all(client, &["end=a reserve=1 1"]).await;
        until_left(client, &["end=a 0"], 100).await;
        for key in ALGORITHMS {
            let fits = one(client, &format!("{key}=a reserve=next 500")).await;
            assert_eq!(fits, (true, 500), "{key}");
        }
    }
}

const REFUSING: &str = "
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 20000, track_usage: true, \
      reservations: { ttl: 60s, on_expiry: keep } } }
  - { key: model, rate_limit: { unit: year, requests_per_unit: 20000, algorithm: token_bucket, \
      reservations: { ttl: 60s, on_expiry: keep } } }
  - { key: user, descriptors: [{ key: request, rate_limit: { algorithm: concurrency, \
      requests_per_unit: 3, max_duration: 60s } }] }
  - { key: closed, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: quota, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 0 } }
";

/// A request that another limit refuses holds nothing, and its caller sees what is left without it.
#[tokio::test]
async fn a_refused_request_holds_nothing() {
    let redis = RedisServer::start();
    let url = redis.url();
    for environment in [&[][..], &[("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")]] {
        let weir = Weir::start(&[("limits.yaml", &file(REFUSING))], environment);
        let client = &mut weir.client().await;
        for id in 0..33 {
            let [tenant, model, flight] = [
                format!("tenant=a reserve={id} 400"),
                format!("model=a reserve={id} 500"),
                format!("user=a request={id} 1"),
            ];
            let answers = all(client, &[tenant, model, flight]).await;
            let admitted = 3.min(id + 1);
            assert_eq!(
                answers.iter().map(|one| one.0).collect::<Vec<_>>(),
                [true, true, id < 3]
            );
            assert_eq!(answers[0].1, 20_000 - admitted * 400, "{id}");
            assert_eq!(answers[1].1, 20_000 - admitted * 500, "{id}");
        }
        let costs: Vec<_> = (0..33)
            .map(|id| format!("tenant=a settle={id} -1"))
            .collect();
        assert_eq!(all(client, &costs[..3]).await[2].1, 20_000);
        assert_eq!(
            all(client, &costs).await[32].1,
            20_000,
            "the others held nothing"
        );
        // The id keeps what it held before the refused request.
        assert_eq!(one(client, "tenant=b reserve=1 100").await, (true, 19_900));
        let refused = all(client, &["tenant=b reserve=1 150", "closed=x 1"]).await;
        assert_eq!(refused, [(true, 19_900), (false, 0)]);
        assert_eq!(one(client, "tenant=b settle=1 70").await, (true, 19_930));
        // A reservation that the budget refuses, next to one that it admits.
        let both = ["tenant=c reserve=1 100", "tenant=d reserve=1 100"];
        assert_eq!(one(client, "tenant=d 19950").await, (true, 50));
        assert_eq!(all(client, &both).await, [(true, 20_000), (false, 50)]);
        // The modes decide as for the code of the answer.
        for (mode, code, left) in [
            ("shadow", Code::Ok, 19_900),
            ("quota", Code::OverLimit, 20_000),
        ] {
            let request = [
                format!("tenant={mode} reserve=1 100"),
                format!("{mode}=x 1"),
            ];
            assert_eq!(
                answer(client, &request).await.overall_code(),
                code,
                "{mode}"
            );
            let peek = one(client, &format!("tenant={mode} 0")).await;
            assert_eq!(peek, (true, left), "{mode}");
        }
    }
}

/// A request that fails, because the store of another limit does, holds nothing either.
#[tokio::test]
async fn a_failed_request_holds_nothing() {
    let limits = "
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 1000, \
      reservations: { ttl: 1h, on_expiry: keep } } }
  - { key: error, rate_limit: { unit: second, requests_per_unit: 1000 } }
  - { key: denied, rate_limit: { unit: second, requests_per_unit: 1000, on_store_failure: deny } }
  - { key: allowed, rate_limit: { unit: second, requests_per_unit: 1000, \
      on_store_failure: allow } }
";
    let (redis, absent) = (RedisServer::start(), RedisServer::absent());
    let environment = [
        ("REDIS_URL", &*redis.url()),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", &*absent.url()),
        ("STORE_TIMEOUT", "1s"),
    ];
    let weir = Weir::start(&[("limits.yaml", &file(limits))], &environment);
    let client = &mut weir.client().await;
    for (policy, left) in [("error", 1_000), ("denied", 1_000), ("allowed", 900)] {
        let request = [
            format!("tenant={policy} reserve=1 100"),
            format!("{policy}=x 1"),
        ];
        let answer = client.should_rate_limit(request_of(&request)).await;
        let code = answer.map(|answer| answer.into_inner().overall_code());
        match policy {
            "error" => assert!(code.is_err(), "{code:?}"),
            "denied" => assert_eq!(code.expect("an answer"), Code::OverLimit),
            _ => assert_eq!(code.expect("an answer"), Code::Ok),
        }
        let peek = one(client, &format!("tenant={policy} 0")).await;
        assert_eq!(peek, (true, left), "{policy}");
    }
}

/// In memory, the thousands of holds of some keys do not drop the holds of others.
#[tokio::test]
async fn a_key_pays_for_its_own_holds() {
    let limits = "  - { key: k, rate_limit: { unit: year, requests_per_unit: 100000, \
        reservations: { ttl: 1h } } }\n";
    let environment = [("MEMORY_MAX_BYTES", "16000000")];
    let weir = Weir::start(&[("limits.yaml", &file(limits))], &environment);
    let client = &mut weir.client().await;
    let others = |what: &str, hits: u32| -> Vec<Vec<String>> {
        let one = |number: u32| format!("k=other{number} {what}=1 {hits}");
        let all: Vec<_> = (0..2_000).map(one).collect();
        all.chunks(250).map(<[String]>::to_vec).collect()
    };
    for request in others("reserve", 1_000) {
        all(client, &request).await;
    }
    for key in 0..20 {
        for first in (0..2_000).step_by(250) {
            let hold = |id| format!("k=large{key} reserve={id} 1");
            let holds: Vec<_> = (first..first + 250).map(hold).collect();
            all(client, &holds).await;
        }
    }
    for request in others("settle", 10) {
        for answer in all(client, &request).await {
            assert_eq!(answer, (true, 99_990), "an estimate is not charged too");
        }
    }
    assert_eq!(weir.metric("weir_memory_evicted_total"), Some(0.0));
    assert_eq!(one(client, "k=large7 0").await, (true, 98_000));
}

/// The header `retry-after`.
fn retry_after(answer: &RateLimitResponse) -> Option<u64> {
    let mut headers = answer.response_headers_to_add.iter();
    let header = headers.find(|header| header.key == "retry-after")?;
    header.value.parse().ok()
}

/// What is only held is free again when it expires; what is settled, at the reset.
#[tokio::test]
async fn the_wait_for_a_held_budget_is_the_expiry_that_makes_room() {
    let limits = of_each_algorithm(
        "",
        "unit: year, requests_per_unit: 1000, reservations: { ttl: 60s }",
    ) + &of_each_algorithm(
        "kept_",
        "unit: year, requests_per_unit: 1000, reservations: { ttl: 60s, on_expiry: keep }",
    );
    let redis = RedisServer::start();
    let url = redis.url();
    let headers = ("RETRY_AFTER_HEADER_ENABLED", "true");
    for environment in [
        &[headers][..],
        &[headers, ("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")],
    ] {
        let weir = Weir::start(&[("limits.yaml", &file(&limits))], environment);
        let client = &mut weir.client().await;
        for key in ALGORITHMS {
            for (prefix, value, is_soon) in
                [("", "a", true), ("kept_", "a", false), ("", "b", false)]
            {
                let of = |rest: &str| [format!("{prefix}{key}={value} {rest}")];
                answer(client, &of("reserve=1 500")).await;
                answer(client, &of("reserve=2 500")).await;
                if value == "b" {
                    answer(client, &of("settle=1 500")).await;
                    answer(client, &of("settle=2 500")).await;
                }
                for refused in ["reserve=3 400", "400"] {
                    let answer = answer(client, &of(refused)).await;
                    assert_eq!(answer.overall_code(), Code::OverLimit);
                    let wait = retry_after(&answer).expect("a header");
                    assert_eq!(
                        wait <= 60,
                        is_soon,
                        "{prefix}{key}={value} {refused}: {wait}"
                    );
                }
            }
        }
    }
}
