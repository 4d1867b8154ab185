//! Reservations through real processes: many callers at a time, lost settlements, outages, clusters
//! and clients that choose ids. `tests/vectors/decisions/reservations.txt` has the decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::{Timestamp, Unit};
use prost_types::value::Kind;
use weir::core::proto::RateLimitResponse;
use weir::core::proto::rate_limit_response::Code;

use crate::support::cluster::Cluster;
use crate::support::redis::rights_of_the_page;
use crate::support::wait::TIMEOUT;
use crate::support::{Client, RedisServer, Weir, descriptor_with_hits, request};

mod chaos;
mod refused;
mod reload;
mod rule;
mod worlds;

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: llm
descriptors:
  - key: tenant
    rate_limit: { unit: year, requests_per_unit: 10000, reservations: { ttl: 60s } }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 10000, algorithm: token_bucket, \
        reservations: { ttl: 60s } }
  - key: short
    rate_limit: { unit: year, requests_per_unit: 10000, reservations: { ttl: 2s } }
  - key: local
    rate_limit: { unit: year, requests_per_unit: 1000, on_store_failure: local, \
        reservations: { ttl: 60s } }
  - key: open
    rate_limit: { unit: year, requests_per_unit: 1000, on_store_failure: allow, \
        reservations: { ttl: 60s } }
  - key: closed
    rate_limit: { unit: year, requests_per_unit: 1000, on_store_failure: deny, \
        reservations: { ttl: 60s } }
  - key: scaled
    rate_limit: { unit: year, requests_per_unit: 100, scale: 10, reservations: { ttl: 60s } }
  - key: large
    rate_limit: { unit: year, requests_per_unit: 1000000, reservations: { ttl: 60s } }
",
)];

async fn call(client: &mut Client, entries: &[(&str, &str)], hits: i64) -> RateLimitResponse {
    let message = request("llm", vec![descriptor_with_hits(entries, hits)]);
    let answer = client.should_rate_limit(message).await;
    answer.expect("an answer").into_inner()
}

async fn left(client: &mut Client, entries: &[(&str, &str)], hits: i64) -> (bool, u32) {
    let answer = call(client, entries, hits).await;
    (
        answer.overall_code() == Code::Ok,
        answer.statuses[0].limit_remaining,
    )
}

/// The id, the held hits and the end of the reservation in the dynamic metadata, with the index of
/// its descriptor.
fn reservation(answer: &RateLimitResponse) -> Option<(usize, String, u64, Timestamp)> {
    let metadata = answer.dynamic_metadata.as_ref().expect("metadata");
    let reservation = metadata.fields.get("reservation")?;
    let Some(Kind::StructValue(own)) = &reservation.kind else {
        panic!("{reservation:?}");
    };
    let number = |name| match own.fields[name].kind {
        Some(Kind::NumberValue(number)) => number as u64,
        _ => panic!("{own:?}"),
    };
    let text = |name| match &own.fields[name].kind {
        Some(Kind::StringValue(text)) => text.clone(),
        _ => panic!("{own:?}"),
    };
    Some((
        number("descriptor") as usize,
        text("id"),
        number("held"),
        text("expires").parse().expect("RFC 3339"),
    ))
}

/// Envoy can log or forward what a request holds.
#[tokio::test]
async fn the_metadata_has_the_reservation() {
    let redis = RedisServer::start();
    let url = redis.url();
    let on_redis = [("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")];
    for store in [&[][..], &on_redis] {
        let environment = [store, &[("RESPONSE_DYNAMIC_METADATA", "true")]].concat();
        let weir = Weir::start(LIMITS, &environment);
        let client = &mut weir.client().await;
        let begin = Timestamp::now();
        let mut ends = None;
        // More hits, or fewer, of the same id, in the units of the limit: its end stays.
        for (hits, held) in [(1, 1), (25, 3), (10, 3), (900, 50)] {
            let answer = call(client, &[("scaled", "x"), ("reserve", "r-1")], hits).await;
            let (descriptor, id, shown, end) = reservation(&answer).expect("it holds hits");
            assert_eq!((descriptor, &*id, shown), (0, "r-1", held), "{hits}");
            let first = *ends.get_or_insert(end);
            assert!((end - first).total(Unit::Second).expect("a span").abs() < 1.0);
            let ttl = (end - begin).total(Unit::Second).expect("a span");
            assert!((59.0..75.0).contains(&ttl), "{ttl}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let plain = call(client, &[("scaled", "x")], 10).await;
        assert_eq!(reservation(&plain), None);
        for (entries, hits) in [
            // Refused, settled, settled before its reservation, without an id or an estimate.
            ([("scaled", "x"), ("reserve", "r-2")], 500),
            ([("scaled", "x"), ("settle", "r-1")], 10),
            ([("scaled", "x"), ("reserve", "r-1")], 10),
            ([("scaled", "x"), ("other", "r-3")], 10),
            ([("scaled", "x"), ("reserve", "r-4")], 0),
            ([("none", "x"), ("reserve", "r-5")], 10),
        ] {
            let answer = call(client, &entries, hits).await;
            assert_eq!(reservation(&answer), None, "{entries:?}");
        }
        let long = "x".repeat(5_000);
        let plain = descriptor_with_hits(&[("bucket", "x")], 1);
        let held = descriptor_with_hits(&[("tenant", "x"), ("reserve", &long)], 7);
        let message = request("llm", vec![plain, held]);
        let answer = client.should_rate_limit(message).await.expect("an answer");
        let (descriptor, id, shown, _) = reservation(&answer.into_inner()).expect("it holds hits");
        assert_eq!((descriptor, &*id, shown), (1, &long[..1_024], 7));
    }
}

/// Requests of callers that run at the same time, each with an estimate that is an upper bound of
/// its cost. Returns the costs of those that were admitted.
async fn admitted(weirs: &[Weir], key: &'static str, reserves: bool) -> u64 {
    let admitted = Arc::new(AtomicU64::new(0));
    let mut callers = Vec::new();
    for caller in 0..200_u32 {
        let mut client = weirs[caller as usize % weirs.len()].client().await;
        let admitted = Arc::clone(&admitted);
        callers.push(tokio::spawn(async move {
            for number in 0..3 {
                let id = format!("{caller}.{number}");
                let value = if reserves { "reserved" } else { "peeked" };
                let (reserve, settle, plain) = (
                    [(key, value), ("reserve", &*id)],
                    [(key, value), ("settle", &*id)],
                    [(key, value)],
                );
                let first = match reserves {
                    true => left(&mut client, &reserve, 100).await.0,
                    false => left(&mut client, &plain, 0).await.0,
                };
                if !first {
                    continue;
                }
                let cost = 50 + i64::from(caller % 51);
                admitted.fetch_add(cost.unsigned_abs(), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
                let last = if reserves { &settle[..] } else { &plain };
                call(&mut client, last, cost).await;
            }
        }));
    }
    for caller in callers {
        caller.await.expect("it ends");
    }
    admitted.load(Ordering::Relaxed)
}

/// Between a peek and its charge all others pass; reservations never admit more than the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_admit_no_more_than_the_limit() {
    let redis = RedisServer::start();
    let url = redis.url();
    for environment in [&[][..], &[("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")]] {
        let replicas = if environment.is_empty() { 1 } else { 2 };
        let weirs: Vec<_> = (0..replicas)
            .map(|_| Weir::start(LIMITS, environment))
            .collect();
        for key in ["tenant", "bucket"] {
            let reserved = admitted(&weirs, key, true).await;
            assert!(
                (8_000..=10_000).contains(&reserved),
                "{reserved} with reservations"
            );
            let client = &mut weirs[0].client().await;
            let remaining = u64::from(left(client, &[(key, "reserved")], 0).await.1);
            assert_eq!(
                remaining,
                10_000 - reserved,
                "nothing is held, lost or counted twice"
            );
        }
        let peeked = admitted(&weirs, "tenant", false).await;
        assert!(peeked > 10_500, "{peeked} with peeks");
    }
    redis.assert_every_key_expires();
}

/// Settlements that never come cost nothing for good.
#[tokio::test]
async fn lost_settlements_leave_the_whole_limit() {
    let redis = RedisServer::start();
    let weir = Weir::start(
        LIMITS,
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
    );
    let client = &mut weir.client().await;
    let mut spent = 0;
    for number in 0..60 {
        let id = number.to_string();
        assert!(
            left(client, &[("short", "x"), ("reserve", &id)], 100)
                .await
                .0
        );
        if number % 3 > 0 {
            left(client, &[("short", "x"), ("settle", &id)], 80).await;
            spent += 80;
        }
    }
    let began = Instant::now();
    while left(client, &[("short", "x")], 0).await != (true, 10_000 - spent) {
        assert!(began.elapsed() < TIMEOUT, "the lost ones expire");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A reservation of another replica, which has died, is settled here.
    let mut other = Weir::start(LIMITS, &[("REDIS_URL", &redis.url())]);
    let lost = &mut other.client().await;
    assert!(
        left(lost, &[("tenant", "x"), ("reserve", "1")], 500)
            .await
            .0
    );
    other.signal("KILL");
    other.wait();
    assert_eq!(
        left(client, &[("tenant", "x"), ("settle", "1")], 70).await,
        (true, 9_930)
    );
    redis.assert_every_key_expires();
}

/// Their requests were answered before: they fail and refuse nothing.
async fn assert_returns_refuse_nothing(client: &mut Client) {
    for key in ["tenant", "open", "closed", "local"] {
        for (entries, hits) in [
            (&[(key, "x"), ("settle", "none")][..], 100),
            (&[(key, "x"), ("settle", "none")], 0),
            (&[(key, "x"), ("settle", "other")], -1),
            (&[(key, "x")], -1),
        ] {
            let answer = left(client, entries, hits).await;
            assert!(answer.0, "{key} {entries:?} {hits}");
        }
    }
}

/// Without the store, reservations and settlements follow the failure policy.
/// With `local`, both stores settle.
#[tokio::test]
async fn reservations_during_an_outage() {
    let redis = RedisServer::start();
    let weir = Weir::start(
        LIMITS,
        &[
            ("REDIS_URL", &redis.url()),
            ("STORE_TIMEOUT", "1s"),
            ("RESPONSE_DYNAMIC_METADATA", "true"),
        ],
    );
    let client = &mut weir.client().await;
    let id = |key: &'static str, what: &'static str, id: &'static str| [(key, "x"), (what, id)];
    assert_eq!(
        left(client, &id("local", "reserve", "before"), 300).await,
        (true, 700)
    );
    redis.pause();
    assert_eq!(
        left(client, &id("local", "reserve", "during"), 400).await,
        (true, 600)
    );
    let held = call(client, &id("local", "reserve", "during"), 400).await;
    assert!(
        reservation(&held).is_some(),
        "the answer has the local hold"
    );
    assert_eq!(
        left(client, &id("local", "reserve", "too"), 500).await,
        (true, 100)
    );
    assert!(!left(client, &id("local", "reserve", "more"), 200).await.0);
    assert_eq!(
        left(client, &id("local", "settle", "during"), 100).await,
        (true, 400)
    );
    assert!(left(client, &id("open", "reserve", "1"), 100).await.0);
    assert!(!left(client, &id("closed", "reserve", "1"), 100).await.0);
    // By `error`.
    for hits in [0, 1] {
        for entries in [&id("tenant", "reserve", "1")[..], &[("tenant", "x")]] {
            let message = request("llm", vec![descriptor_with_hits(entries, hits)]);
            assert!(client.should_rate_limit(message).await.is_err());
        }
    }
    assert_returns_refuse_nothing(client).await;
    redis.resume();
    // Redis decides all checks again, not only some of them.
    let (began, mut in_a_row) = (Instant::now(), 0);
    while in_a_row < 30 {
        assert!(began.elapsed() < TIMEOUT, "Redis is back");
        tokio::time::sleep(Duration::from_millis(20)).await;
        let is_redis = left(client, &[("local", "x")], 0).await == (true, 700);
        in_a_row = if is_redis { in_a_row + 1 } else { 0 };
    }
    // Redis knows nothing of this one, and the local store releases it.
    assert_eq!(
        left(client, &id("local", "settle", "too"), 50).await,
        (true, 650)
    );
    assert_eq!(
        left(client, &id("local", "settle", "before"), 250).await,
        (true, 700)
    );
    redis.pause();
    assert_eq!(
        left(client, &[("local", "x")], 0).await,
        (true, 751),
        "100 + 100 + 50, less a refund of 1"
    );
    redis.resume();
}

/// Ids of any length and number: bounded memory, and a refusal that is no error.
#[tokio::test]
async fn a_client_cannot_hold_more_than_the_bound() {
    let redis = RedisServer::start();
    let url = redis.url();
    for environment in [&[][..], &[("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")]] {
        let weir = Weir::start(LIMITS, environment);
        let client = &mut weir.client().await;
        let long = "x".repeat(1 << 20);
        assert!(
            left(client, &[("large", "x"), ("reserve", &long)], 1)
                .await
                .0
        );
        // Many descriptors in a request, because 10,000 calls take long.
        for first in (1..10_000).step_by(250) {
            let descriptors = (first..(first + 250).min(10_000)).map(|number: u32| {
                let id = number.to_string();
                descriptor_with_hits(&[("large", "x"), ("reserve", &id)], 1)
            });
            let message = request("llm", descriptors.collect());
            let answer = client
                .should_rate_limit(message)
                .await
                .expect("an answer")
                .into_inner();
            assert_eq!(answer.overall_code(), Code::Ok);
        }
        assert_eq!(left(client, &[("large", "x")], 0).await, (true, 990_000));
        let more = [("large", "x"), ("reserve", "more")];
        assert_eq!(left(client, &more, 1).await, (false, 990_000));
        assert_eq!(
            left(client, &[("large", "x"), ("settle", &long)], 1).await,
            (true, 990_000)
        );
        assert_eq!(
            left(client, &more, 1).await,
            (true, 989_999),
            "a settled id made room"
        );
        // One id for all requests reserves once, and each settlement after the first is ignored for
        // a minute: ids have to be the proxy's.
        for _ in 0..10 {
            assert_eq!(left(client, &more, 1).await, (true, 989_999));
        }
    }
    // Slower than a millisecond: none of the calls with one check.
    let slow: Vec<String> = redis.run(&["CONFIG", "GET", "slowlog-log-slower-than"]);
    assert_eq!(slow[1], "10000");
    let entries: u64 = redis.run(&["HLEN", "w1{llm|large=x}rhfw31536000"]);
    // One of them is settled, and some are groups.
    assert!((10_001..10_300).contains(&entries), "{entries}");
    redis.assert_every_key_expires();
}

/// While the slot of a counter moves, a node may have some of its keys: then its checks are not
/// decided. Both calls can be sent again with the same id, and count once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_while_their_slot_moves() {
    let cluster = Cluster::start();
    let weir = Weir::start(
        LIMITS,
        &[
            ("REDIS_TYPE", "CLUSTER"),
            ("REDIS_URL", &cluster.url()),
            ("STORE_TIMEOUT", "5s"),
        ],
    );
    let client = &mut weir.client().await;
    let began = Instant::now();
    let peek = request("llm", vec![descriptor_with_hits(&[("tenant", "m")], 0)]);
    while client.should_rate_limit(peek.clone()).await.is_err() {
        assert!(began.elapsed() < TIMEOUT, "the cluster is known");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let slot = cluster.slot("{llm|tenant=m}");
    let from = cluster.owner(slot);
    let to = cluster
        .primaries()
        .into_iter()
        .find(|port| *port != from)
        .expect("another");
    let move_slot = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(100));
        cluster.migrate(slot, to, Duration::from_millis(200));
        cluster
    });
    let (mut spent, mut number, mut failures) = (0, 0, 0);
    while !move_slot.is_finished() {
        number += 1;
        let id = number.to_string();
        // Two counters of different slots in one request.
        let both = |what: &'static str, hits| {
            let of = |value| descriptor_with_hits(&[("tenant", value), (what, &*id)], hits);
            request("llm", vec![of("m"), of("n")])
        };
        for (what, hits) in [("reserve", 4), ("settle", 2)] {
            let began = Instant::now();
            // The status of a settlement that the store did not decide has no limit.
            while !client
                .should_rate_limit(both(what, hits))
                .await
                .is_ok_and(|answer| {
                    let mut statuses = answer.get_ref().statuses.iter();
                    statuses.all(|status| status.current_limit.is_some())
                })
            {
                failures += 1;
                assert!(began.elapsed() < TIMEOUT, "the slot has moved");
            }
        }
        spent += 2;
    }
    let cluster = move_slot.await.expect("it moves");
    assert_eq!(cluster.owner(slot), to);
    assert!(number > 5 && failures > 0, "{number}, {failures} failures");
    for value in ["m", "n"] {
        assert_eq!(
            left(client, &[("tenant", value)], 0).await,
            (true, 10_000 - spent)
        );
    }
}

/// The rights that the page names are enough.
#[tokio::test]
async fn a_redis_user_needs_the_rights_of_the_page() {
    let redis = RedisServer::start();
    redis.grant(&rights_of_the_page("reservations").concat());
    let environment = [
        ("REDIS_URL", &*redis.url()),
        ("REDIS_AUTH", "weir:s3cret"),
        ("STORE_TIMEOUT", "5s"),
    ];
    let weir = Weir::start(LIMITS, &environment);
    let client = &mut weir.client().await;
    for number in 0..300 {
        let id = number.to_string();
        for key in ["short", "bucket"] {
            assert!(left(client, &[(key, "x"), ("reserve", &id)], 20).await.0);
            assert!(left(client, &[(key, "x"), ("settle", &id)], 21).await.0);
        }
    }
    assert!(
        left(client, &[("short", "x"), ("reserve", "lost")], 20)
            .await
            .0
    );
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(left(client, &[("short", "x")], 1).await, (true, 3_699));
    // Hits have to know whether there are holds, and those of a bucket how full it was.
    assert_eq!(left(client, &[("bucket", "x")], 1).await, (true, 3_699));
    assert!(!left(client, &[("short", "x")], 5_000).await.0);
}
