//! Usage while Redis is down or hangs: a hit is in its record once or, where that cannot be
//! known, counted as lost; never twice.

use std::time::{Duration, Instant};

use weir::core::proto::rate_limit_response::Code;

use super::service::{api, numbers, usage};
use crate::support::wait::eventually_async;
use crate::support::{Client, RedisServer, Weir, descriptor_with_hits, request};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shop
defaults: { track_usage: true, usage_interval: 1s, usage_buckets: 1000 }
descriptors:
  - key: few
    rate_limit: { unit: year, requests_per_unit: 100 }
",
)];

/// The answer of the store or of the denial cache; `None` when there is none.
async fn call(client: &mut Client, entry: (&str, &str), hits: i64) -> Option<Code> {
    let answer = client
        .should_rate_limit(request("shop", vec![descriptor_with_hits(&[entry], hits)]))
        .await;
    answer.ok().map(|answer| answer.into_inner().overall_code())
}

/// Hits that the denial cache refused and that are in no record, or may not be.
fn lost(weir: &Weir) -> u64 {
    let lost = weir.metric("weir_usage_hits_lost_total{redis=\"main\"}");
    lost.unwrap_or_default() as u64
}

/// Hits and refused hits of a subject, in total and of its series. `None` while the service cannot
/// ask Redis.
fn recorded(weir: &Weir, entry: &str) -> Option<[u64; 4]> {
    let (status, answer) = api(weir, &format!("usage?domain=shop&entry={entry}"));
    (status == 200).then(|| numbers(&answer))
}

/// The list of a limit by hits.
fn listed(weir: &Weir, limit: &str) -> Vec<(String, u64)> {
    let (_, top) = api(weir, &format!("usage/top?limit={limit}"));
    let subject = |subject: &serde_json::Value| {
        (
            subject["entries"][0]["value"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            subject["hits"].as_u64().unwrap_or_default(),
        )
    };
    top["subjects"]
        .as_array()
        .map(|all| all.iter().map(subject).collect())
        .unwrap_or_default()
}

/// Refused hits that certainly did not arrive wait until Redis is back. It comes back empty, so
/// that the record has only what came since.
#[tokio::test]
async fn refused_hits_wait_while_redis_is_down() {
    let mut redis = RedisServer::start();
    let weir = Weir::start(
        LIMITS,
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
    );
    let client = &mut weir.client().await;
    assert_eq!(call(client, ("few", "c"), 100).await, Some(Code::Ok));
    assert_eq!(call(client, ("few", "c"), 1).await, Some(Code::OverLimit));
    redis.kill();
    // The writer writes twice meanwhile. What it wrote to a connection that had just ended may be
    // lost; the rest finds no server.
    let (mut cached, killed) = (0, Instant::now());
    while killed.elapsed() < Duration::from_millis(800) {
        cached += u64::from(call(client, ("few", "c"), 1).await == Some(Code::OverLimit));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    redis.start_again();
    let found = || recorded(&weir, "few%3Dc").unwrap_or_default();
    let is_complete = || {
        let [hits, refused, ..] = found();
        (hits > 0 && refused == hits && hits + lost(&weir) == cached).then_some(())
    };
    assert!(
        eventually_async(is_complete).await.is_some(),
        "{:?} recorded, {} lost, {cached} refused",
        found(),
        lost(&weir)
    );
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert!(
        is_complete().is_some(),
        "and stays so: {:?}, {} lost, {cached} refused",
        found(),
        lost(&weir)
    );
}

/// A server that hangs adds the refused hits that it has received when it goes on: they are counted
/// as lost, and not sent a second time.
#[tokio::test]
async fn refused_hits_that_may_have_arrived_are_not_sent_again() {
    let redis = RedisServer::start();
    let weir = Weir::start(
        LIMITS,
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
    );
    let client = &mut weir.client().await;
    assert_eq!(call(client, ("few", "c"), 100).await, Some(Code::Ok));
    assert_eq!(call(client, ("few", "c"), 1).await, Some(Code::OverLimit));
    // The writer has a connection by then, and the denial cache has forgotten the key.
    assert!(
        eventually_async(|| (listed(&weir, "shop.few").len() == 1).then_some(()))
            .await
            .is_some()
    );
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(call(client, ("few", "c"), 1).await, Some(Code::OverLimit));
    assert_eq!(recorded(&weir, "few%3Dc"), Some([102, 2, 102, 2]));
    redis.pause();
    let mut cached = 0;
    for _ in 0..20 {
        cached += u64::from(call(client, ("few", "c"), 1).await == Some(Code::OverLimit));
    }
    assert_eq!(cached, 20, "the denial cache refused them");
    let is_lost = eventually_async(|| (lost(&weir) > 0).then_some(())).await;
    assert!(is_lost.is_some(), "their writer gave up");
    redis.resume();
    let sent = 102 + cached;
    let asked = || recorded(&weir, "few%3Dc").map_or(0, |[hits, ..]| hits);
    assert!(
        eventually_async(|| (asked() == sent).then_some(()))
            .await
            .is_some(),
        "{} of {sent}, {} lost",
        asked(),
        lost(&weir)
    );
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(usage(&weir, "few%3Dc")["hits"], sent, "none is added twice");
}
