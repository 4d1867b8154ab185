//! Usage while Redis fails over or hangs: a hit is in its record once or, where that cannot be
//! known, counted as lost; never twice.

use std::time::{Duration, Instant};

use bb8_redis::redis;
use weir::core::proto::rate_limit_response::Code;

use super::service::{api, numbers, usage};
use crate::support::sentinel::SentinelSet;
use crate::support::wait::{TIMEOUT, eventually_async};
use crate::support::{Client, RedisServer, Weir, descriptor_with_hits, exclusive, request};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shop
defaults: { track_usage: true, usage_interval: 1s, usage_buckets: 1000 }
descriptors:
  - key: many
    rate_limit: { unit: year, requests_per_unit: 1000000 }
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

/// The sum of a metric of all services.
fn metric(weirs: &[Weir], name: &str) -> u64 {
    weirs
        .iter()
        .filter_map(|weir| weir.metric(name))
        .sum::<f64>() as u64
}

/// Checks of which it is not known whether they ran.
fn unknown(weirs: &[Weir]) -> u64 {
    metric(weirs, "weir_store_errors_total{kind=\"unknown\"}")
}

/// Hits that the denial cache refused and that are in no record, or may not be.
fn lost(weirs: &[Weir]) -> u64 {
    metric(weirs, "weir_usage_hits_lost_total{redis=\"main\"}")
}

/// Hits and refused hits of a subject, in total and of its series. `None` while the service cannot
/// ask Redis.
fn recorded(weir: &Weir, entry: &str) -> Option<[u64; 4]> {
    let (status, answer) = api(weir, &format!("usage?domain=shop&entry={entry}"));
    (status == 200).then(|| numbers(&answer))
}

/// Returns when the replica has everything that the primary has.
fn replicate(server: &RedisServer) {
    let mut connection = server.connection();
    redis::cmd("SET")
        .arg("w1{marker}")
        .arg(1)
        .arg("EX")
        .arg(60)
        .exec(&mut connection)
        .expect("the primary takes it");
    assert_eq!(
        redis::cmd("WAIT")
            .arg(1)
            .arg(5_000)
            .query::<u32>(&mut connection),
        Ok(1),
        "a replica has it"
    );
}

/// Both services hit a subject until each of them had twenty answers more. Returns the hits with an
/// answer.
async fn hit_until_answered(weirs: &[Weir], entry: (&str, &str)) -> u64 {
    let mut answered = 0;
    for weir in weirs {
        let (client, began, mut own) = (&mut weir.client().await, Instant::now(), 0);
        while own < 20 {
            own += u64::from(call(client, entry, 1).await.is_some());
            assert!(began.elapsed() < TIMEOUT, "Redis is used again");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        answered += own;
    }
    answered
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

/// The primary `new` hangs with refused hits on their way to it, and comes back as a stale primary.
/// `old` is its replica until then, and `of_a` the hits that were answered.
async fn a_primary_hangs_and_comes_back(
    set: &mut SentinelSet,
    weirs: &[Weir; 2],
    old: u16,
    new: u16,
    mut of_a: u64,
) {
    set.start_again(old);
    set.wait_until_replica(old);
    set.wait_until_in_sync(old);
    let client = &mut weirs[0].client().await;
    assert_eq!(call(client, ("few", "c"), 100).await, Some(Code::Ok));
    replicate(set.server(new));
    assert_eq!(call(client, ("few", "c"), 1).await, Some(Code::OverLimit));
    replicate(set.server(new));
    let refused_before = recorded(&weirs[0], "few%3Dc").expect("Redis answers")[1];
    assert_eq!(refused_before, 1);
    set.server(new).pause();
    let mut cached = 0;
    for _ in 0..30 {
        cached += u64::from(call(client, ("few", "c"), 1).await == Some(Code::OverLimit));
    }
    assert!(cached > 0, "the denial cache refused some");
    set.wait_for_switch_from(new);
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The commands do not ask the old primary, although connections to it are open: it would answer
    // after the longest time only.
    let switched = Instant::now();
    assert!(
        eventually_async(|| recorded(&weirs[1], "many%3Da").map(drop))
            .await
            .is_some(),
        "the new primary is asked"
    );
    assert!(
        switched.elapsed() < Duration::from_secs(3),
        "{:?}",
        switched.elapsed()
    );
    of_a += hit_until_answered(weirs, ("many", "a")).await;
    // What was on its way to the server that hung is lost and not sent again; the rest waited and
    // is recorded.
    let is_complete = || {
        let [hits, refused, ..] = recorded(&weirs[1], "few%3Dc")?;
        (hits + lost(weirs) == 101 + cached && refused + lost(weirs) == 1 + cached).then_some(())
    };
    assert!(
        eventually_async(is_complete).await.is_some(),
        "{:?} recorded, {} lost, {cached} refused by the cache",
        recorded(&weirs[1], "few%3Dc"),
        lost(weirs)
    );
    assert!(lost(weirs) > 0, "some were on their way");
    // It takes what it had received, as a primary still, and forgets it as a replica. Earlier, its
    // answers would come in time, and no one could know.
    set.server(new).resume();
    set.wait_until_replica(new);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert!(is_complete().is_some(), "and stays so");
    let [hits, _, of_series, _] = recorded(&weirs[1], "many%3Da").expect("Redis answers");
    assert!(
        (of_a..=of_a + unknown(weirs)).contains(&hits) && of_series == hits,
        "{hits} recorded, {of_a} answered"
    );
    assert!(
        eventually_async(|| listed(&weirs[1], "shop.many")
            .contains(&("a".to_owned(), hits))
            .then_some(()))
        .await
        .is_some()
    );
}

/// The list has these subjects, in any order.
fn are_listed(weir: &Weir, expected: &[(String, u64)]) -> bool {
    let (mut found, mut expected) = (listed(weir, "shop.many"), expected.to_vec());
    found.sort();
    expected.sort();
    found == expected
}

/// A primary is killed; the next one hangs with refused hits on their way to it, and comes back as
/// a stale primary.
#[tokio::test]
async fn a_failover_of_sentinels_counts_nothing_twice() {
    let _exclusive = exclusive();
    let mut set = SentinelSet::start(1);
    let environment = [
        ("REDIS_TYPE", "sentinel"),
        ("REDIS_URL", &*set.url()),
        ("STORE_TIMEOUT", "2s"),
        ("WORKERS", "2"),
    ];
    let weirs = [(); 2].map(|()| Weir::start(LIMITS, &environment));
    let mut of_a = hit_until_answered(&weirs, ("many", "a")).await;
    assert_eq!(
        recorded(&weirs[0], "many%3Da"),
        Some([of_a, 0, of_a, 0]),
        "before"
    );

    let listed_before = [("a".to_owned(), of_a)];
    assert!(
        eventually_async(|| (listed(&weirs[0], "shop.many") == listed_before).then_some(()))
            .await
            .is_some()
    );
    let old = set.primary();
    replicate(set.server(old));
    set.kill(old);
    // Asked all the time: while there is no primary, there is no answer.
    let before = unknown(&weirs);
    let began = Instant::now();
    let mut of_b = 0;
    let client = &mut weirs[0].client().await;
    while began.elapsed() < Duration::from_millis(500) {
        of_b += u64::from(call(client, ("many", "b"), 1).await.is_some());
    }
    assert_eq!(of_b, 0, "no Redis, no answer");
    let (new, _) = set.wait_for_switch_from(old);
    of_b += hit_until_answered(&weirs, ("many", "b")).await;
    let may_have_run = unknown(&weirs) - before;
    assert_eq!(
        recorded(&weirs[1], "many%3Da"),
        Some([of_a, 0, of_a, 0]),
        "what was replicated is there, once"
    );
    let [hits, refused, of_series, _] = recorded(&weirs[0], "many%3Db").expect("Redis answers");
    assert!(
        (of_b..=of_b + may_have_run).contains(&hits) && refused == 0 && of_series == hits,
        "{hits} recorded, {of_b} answered, {may_have_run} unknown"
    );
    // The lists go on with what came before, and are made again where they are lost.
    let both = [("a".to_owned(), of_a), ("b".to_owned(), hits)];
    assert!(
        eventually_async(|| are_listed(&weirs[0], &both).then_some(()))
            .await
            .is_some(),
        "{:?}",
        listed(&weirs[0], "shop.many")
    );
    // Both have written what they knew.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    set.server(new).run::<i64>(&["DEL", "w1{shop|many}ut"]);
    of_a += hit_until_answered(&weirs, ("many", "a")).await;
    assert!(
        eventually_async(|| are_listed(&weirs[0], &[("a".to_owned(), of_a)]).then_some(()))
            .await
            .is_some(),
        "{:?}",
        listed(&weirs[0], "shop.many")
    );

    a_primary_hangs_and_comes_back(&mut set, &weirs, old, new, of_a).await;
    let primary = set.primary();
    set.server(primary).assert_every_key_expires();
}

/// Refused hits that certainly did not arrive wait until Redis is back. It comes back empty, so
/// that the record has only what came since.
#[tokio::test]
async fn refused_hits_wait_while_redis_is_down() {
    let mut redis = RedisServer::start();
    let weirs = [Weir::start(
        LIMITS,
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
    )];
    let client = &mut weirs[0].client().await;
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
    let found = || recorded(&weirs[0], "few%3Dc").unwrap_or_default();
    let is_complete = || {
        let [hits, refused, ..] = found();
        (hits > 0 && refused == hits && hits + lost(&weirs) == cached).then_some(())
    };
    assert!(
        eventually_async(is_complete).await.is_some(),
        "{:?} recorded, {} lost, {cached} refused",
        found(),
        lost(&weirs)
    );
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert!(
        is_complete().is_some(),
        "and stays so: {:?}, {} lost, {cached} refused",
        found(),
        lost(&weirs)
    );
}

/// A server that hangs adds the refused hits that it has received when it goes on: they are counted
/// as lost, and not sent a second time.
#[tokio::test]
async fn refused_hits_that_may_have_arrived_are_not_sent_again() {
    let redis = RedisServer::start();
    let weirs = [Weir::start(
        LIMITS,
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
    )];
    let client = &mut weirs[0].client().await;
    assert_eq!(call(client, ("few", "c"), 100).await, Some(Code::Ok));
    assert_eq!(call(client, ("few", "c"), 1).await, Some(Code::OverLimit));
    // The writer has a connection by then, and the denial cache has forgotten the key.
    assert!(
        eventually_async(|| (listed(&weirs[0], "shop.few").len() == 1).then_some(()))
            .await
            .is_some()
    );
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(call(client, ("few", "c"), 1).await, Some(Code::OverLimit));
    assert_eq!(recorded(&weirs[0], "few%3Dc"), Some([102, 2, 102, 2]));
    redis.pause();
    let mut cached = 0;
    for _ in 0..20 {
        cached += u64::from(call(client, ("few", "c"), 1).await == Some(Code::OverLimit));
    }
    assert_eq!(cached, 20, "the denial cache refused them");
    let is_lost = eventually_async(|| (lost(&weirs) > 0).then_some(())).await;
    assert!(is_lost.is_some(), "their writer gave up");
    redis.resume();
    let sent = 102 + cached;
    let asked = || recorded(&weirs[0], "few%3Dc").map_or(0, |[hits, ..]| hits);
    assert!(
        eventually_async(|| (asked() == sent).then_some(()))
            .await
            .is_some(),
        "{} of {sent}, {} lost",
        asked(),
        lost(&weirs)
    );
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(
        usage(&weirs[0], "few%3Dc")["hits"],
        sent,
        "none is added twice"
    );
}
