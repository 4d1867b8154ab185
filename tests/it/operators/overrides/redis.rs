//! Overrides in Redis: in force everywhere within a second, also while Redis is away.

use std::time::{Duration, Instant};

use weir::core::proto::rate_limit_response::Code;

use super::{Desk, LIMITS, code, id_of, in_seconds};
use crate::support::cluster::{Cluster, one_node};
use crate::support::redis::rights_of_the_page;
use crate::support::wait::{self, eventually};
use crate::support::{RedisServer, Weir, descriptor_with_hits, exclusive, request};

/// The key of the hash.
pub(super) const KEY: &str = "w1{|overrides}";

/// Waits until a replica answers with this code. The bound is far above what is promised, because
/// the machine of a test is busy.
pub(super) async fn becomes(weir: &Weir, key: &str, value: &str, expected: Code) {
    let mut client = weir.client().await;
    let deadline = Instant::now() + wait::TIMEOUT;
    loop {
        let answer = client
            .should_rate_limit(request(
                "shop",
                vec![descriptor_with_hits(&[(key, value)], 0)],
            ))
            .await;
        let answer = answer.map(|answer| answer.into_inner().overall_code());
        if answer.as_ref().is_ok_and(|code| *code == expected) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{key}={value} is {answer:?} and not {expected:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_is_set_in_one_replica_holds_in_all_of_them() {
    let (desk, redis) = (Desk::new(), RedisServer::start());
    let environment = [("REDIS_URL", &*redis.url())];
    let (one, other) = (
        desk.start(LIMITS, &environment),
        desk.start(LIMITS, &environment),
    );
    let block = desk.ok(
        &one,
        &["block", "-d", "shop", "vip=42", "--reason", "scraper"],
    );
    // At once in the replica that was asked.
    assert_eq!(
        code(&mut one.client().await, "vip", "42", 1).await,
        Code::OverLimit
    );
    let set = Instant::now();
    becomes(&other, "vip", "42", Code::OverLimit).await;
    println!("in force in the other replica after {:?}", set.elapsed());
    assert_eq!(
        code(&mut other.client().await, "vip", "43", 1).await,
        Code::Ok
    );

    // One that starts later has it with its first request.
    let later = desk.start(LIMITS, &environment);
    assert_eq!(
        code(&mut later.client().await, "vip", "42", 1).await,
        Code::OverLimit
    );
    for replica in [&one, &other, &later] {
        assert_eq!(replica.metric("weir_overrides{kind=\"block\"}"), Some(1.0));
        assert!(
            replica
                .metric("weir_overrides_age_seconds")
                .is_some_and(|age| age < 10.0)
        );
    }

    // Undone in another replica than it was set in.
    desk.ok(&other, &["overrides", "remove", &id_of(&block)]);
    for replica in [&one, &later] {
        becomes(replica, "vip", "42", Code::Ok).await;
    }
    let removed = other.wait_for_log("override removed").await;
    for field in [
        "\"by\":\"alice\"",
        "\"kind\":\"block\"",
        "\"entries\":\"vip=42\"",
        "\"reason\":\"scraper\"",
        "\"domain\":\"shop\"",
    ] {
        assert!(removed.contains(field), "{field}: {removed}");
    }
}

/// An override that is removed at the first replica is in force at none.
async fn removed_is_removed(desk: &Desk, replicas: &[&Weir]) {
    let listed = desk.ok(replicas[0], &["overrides", "--format", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let id = listed["overrides"][0]["id"].as_str().expect("an id");
    desk.ok(replicas[0], &["overrides", "remove", id]);
    for replica in replicas {
        becomes(replica, "vip", "long", Code::Ok).await;
    }
}

#[tokio::test]
async fn while_redis_is_away_the_last_known_ones_hold_and_end() {
    let (desk, mut redis) = (Desk::new(), RedisServer::start());
    let environment = [("REDIS_URL", &*redis.url())];
    let (one, other) = (
        desk.start(LIMITS, &environment),
        desk.start(LIMITS, &environment),
    );
    desk.ok(
        &one,
        &[
            "block",
            "-d",
            "shop",
            "vip=short",
            "--until",
            &in_seconds(4),
        ],
    );
    desk.ok(&one, &["block", "-d", "shop", "vip=long"]);
    for value in ["short", "long"] {
        becomes(&other, "vip", value, Code::OverLimit).await;
    }
    redis.kill();
    assert_eq!(
        code(&mut other.client().await, "vip", "long", 1).await,
        Code::OverLimit,
        "on_store_failure allows, the block does not"
    );
    let refused = desk.fails(&one, &["exempt", "-d", "shop", "vip=1"]);
    assert!(
        refused.starts_with("nothing was changed: Redis does not answer"),
        "{refused}"
    );
    // It ends at its instant, which no Redis tells.
    becomes(&other, "vip", "short", Code::Ok).await;
    becomes(&one, "vip", "short", Code::Ok).await;
    other.wait_for_log("override ended").await;
    assert_eq!(
        code(&mut one.client().await, "vip", "long", 1).await,
        Code::OverLimit
    );
    other.wait_for_log("overrides: cannot be read").await;

    // A replica that starts now serves all the same, without what it cannot know.
    let began = Instant::now();
    let later = desk.start(LIMITS, &environment);
    assert_eq!(
        code(&mut later.client().await, "vip", "long", 1).await,
        Code::Ok
    );
    assert!(began.elapsed() < Duration::from_secs(10));

    // Redis comes back empty: the replicas that know write what it lost.
    redis.start_again();
    becomes(&later, "vip", "long", Code::OverLimit).await;
    for replica in [&one, &other] {
        assert_eq!(
            code(&mut replica.client().await, "vip", "long", 1).await,
            Code::OverLimit
        );
    }
    assert_eq!(
        redis.run::<i64>(&["HLEN", KEY]),
        2,
        "the override and the version; the ended one is not there"
    );
    one.wait_for_log("overrides: read again").await;
    removed_is_removed(&desk, &[&later, &one, &other]).await;
}

#[tokio::test]
async fn what_a_person_wrote_wrongly_is_reported_and_the_others_hold() {
    let (desk, redis) = (Desk::new(), RedisServer::start());
    let weir = desk.start(LIMITS, &[("REDIS_URL", &redis.url())]);
    desk.ok(&weir, &["block", "-d", "shop", "vip=1"]);
    for (id, text) in [
        ("half", r#"{"kind": "block", "domain": "shop""#),
        (
            "kind",
            r#"{"kind": "blok", "domain": "shop", "entries": [{"key": "vip", "value": "2"}]}"#,
        ),
        (
            "a b",
            r#"{"kind": "block", "domain": "shop", "entries": [{"key": "vip", "value": "3"}]}"#,
        ),
        (
            "long",
            &format!(r#"{{"reason": "{}"}}"#, "x".repeat(20 << 10)),
        ),
        (
            "good",
            r#"{"kind": "block", "domain": "shop", "entries": [{"key": "vip", "value": "4"}]}"#,
        ),
    ] {
        redis.run::<i64>(&["HSET", KEY, id, text]);
    }
    becomes(&weir, "vip", "4", Code::OverLimit).await;
    let is_counted = || (weir.metric("weir_overrides_unreadable") == Some(4.0)).then_some(());
    assert!(
        eventually(is_counted).is_some(),
        "{:?}",
        weir.metric("weir_overrides_unreadable")
    );
    for (value, expected) in [("1", Code::OverLimit), ("2", Code::Ok), ("3", Code::Ok)] {
        assert_eq!(
            code(&mut weir.client().await, "vip", value, 0).await,
            expected,
            "{value}"
        );
    }
    let line = weir
        .wait_for_log("kind: write one of block, exempt, raise")
        .await;
    assert!(line.contains("\"id\":\"kind\""), "{line}");
    weir.wait_for_log("it is longer than 16 KiB").await;
    weir.wait_for_log("an id has 1 to 64 letters").await;
    // The one with a name of its own is removed by it.
    desk.ok(&weir, &["overrides", "remove", "good"]);
    assert_eq!(
        code(&mut weir.client().await, "vip", "4", 0).await,
        Code::Ok
    );

    // Something else under the key.
    redis.run::<i64>(&["DEL", KEY]);
    redis.run::<()>(&["SET", KEY, "x"]);
    weir.wait_for_log("WRONGTYPE").await;
    assert_eq!(
        code(&mut weir.client().await, "vip", "1", 0).await,
        Code::OverLimit,
        "the last known one holds"
    );
}

#[tokio::test]
async fn ended_ones_are_removed_by_the_next_change() {
    let (desk, redis) = (Desk::new(), RedisServer::start());
    let old = format!(
        r#"{{"kind":"block","domain":"shop","entries":[{{"key":"vip","value":"old"}}],"until":"{}"}}"#,
        in_seconds(-90)
    );
    let young = format!(
        r#"{{"kind":"block","domain":"shop","entries":[{{"key":"vip","value":"young"}}],"until":"{}"}}"#,
        in_seconds(-5)
    );
    redis.run::<i64>(&["HSET", KEY, "old", &old, "young", &young]);
    let weir = desk.start(LIMITS, &[("REDIS_URL", &redis.url())]);
    assert_eq!(
        desk.ok(&weir, &["overrides"]),
        "no overrides are in force; `weir overrides --ended` lists those of the last week\n"
    );
    assert_eq!(
        code(&mut weir.client().await, "vip", "old", 0).await,
        Code::Ok
    );
    desk.ok(&weir, &["exempt", "-d", "shop", "vip=1"]);
    let mut fields: Vec<String> = redis.run(&["HKEYS", KEY]);
    fields.sort();
    assert_eq!(fields.len(), 3, "{fields:?}");
    assert!(
        fields.contains(&"young".to_owned()) && !fields.contains(&"old".to_owned()),
        "the clocks of all replicas agree about the old one"
    );
}

#[tokio::test]
async fn missing_rights_are_named() {
    let (desk, redis) = (Desk::new(), RedisServer::start());
    redis.grant(&rights_of_the_page("track_usage")[0]);
    let url = format!("redis://weir:s3cret@127.0.0.1:{}", redis.port());
    let weir = desk.start(LIMITS, &[("REDIS_URL", &url)]);
    let line = weir.wait_for_log("overrides: cannot be read").await;
    assert!(
        line.contains("NOPERM")
            && line.contains("HGET HLEN HSCAN HMGET HSET HDEL HKEYS HEXISTS EVAL"),
        "{line}"
    );
    assert_eq!(
        code(&mut weir.client().await, "user", "1", 1).await,
        Code::Ok,
        "requests need none of them"
    );
    assert!(
        desk.fails(&weir, &["block", "-d", "shop", "user=1"])
            .contains("NOPERM")
    );
    // Scripts need what they call, too.
    redis.run::<()>(&["ACL", "SETUSER", "weir", "+hget", "+hlen"]);
    let refused = desk.fails(&weir, &["block", "-d", "shop", "user=1"]);
    let names_all = refused.contains("HGET HLEN HSCAN");
    assert!(names_all && refused.contains("script"), "{refused}");
    redis.run::<()>(&[
        "ACL", "SETUSER", "weir", "+hget", "+hlen", "+hscan", "+hmget", "+hset", "+hdel", "+hkeys",
        "+hexists",
    ]);
    desk.ok(&weir, &["block", "-d", "shop", "user=1"]);
    assert_eq!(
        code(&mut weir.client().await, "user", "1", 1).await,
        Code::OverLimit
    );
    let refused = desk.fails(&weir, &["reset", "-d", "shop", "user=2"]);
    assert!(refused.contains("no right to DEL"), "{refused}");
}

#[tokio::test]
async fn a_cluster_keeps_them_in_one_slot_and_resets_each_counter_where_it_is() {
    let _exclusive = exclusive();
    let (desk, cluster) = (Desk::new(), Cluster::start());
    let environment = [("REDIS_TYPE", "cluster"), ("REDIS_URL", &*cluster.url())];
    let (one, other) = (
        desk.start(LIMITS, &environment),
        desk.start(LIMITS, &environment),
    );
    desk.ok(&one, &["block", "-d", "shop", "vip=42"]);
    becomes(&other, "vip", "42", Code::OverLimit).await;
    let client = &mut other.client().await;
    for value in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(code(client, "user", value, 3).await, Code::OverLimit);
        let text = desk.ok(&one, &["reset", "-d", "shop", &format!("user={value}")]);
        assert!(text.starts_with("shop.user counts from zero"), "{text}");
        // The other replica's denial cache knows a refusal for a second at most.
        becomes_allowed(&other, value).await;
    }
}

/// One address that refuses keys of several slots together.
#[tokio::test]
async fn an_address_with_shards_keeps_them_and_resets_each_counter() {
    let (desk, server) = (Desk::new(), one_node());
    let weir = desk.start(LIMITS, &[("REDIS_URL", &*server.url())]);
    desk.ok(&weir, &["block", "-d", "shop", "vip=42"]);
    becomes(&weir, "vip", "42", Code::OverLimit).await;
    let client = &mut weir.client().await;
    for value in ["a", "b", "c"] {
        assert_eq!(code(client, "user", value, 3).await, Code::OverLimit);
        let text = desk.ok(&weir, &["reset", "-d", "shop", &format!("user={value}")]);
        assert!(text.starts_with("shop.user counts from zero"), "{text}");
        assert_eq!(code(client, "user", value, 1).await, Code::Ok);
    }
}

/// Waits until two hits of a value are allowed.
async fn becomes_allowed(weir: &Weir, value: &str) {
    let mut client = weir.client().await;
    let deadline = Instant::now() + Duration::from_secs(10);
    while code(&mut client, "user", value, 1).await != Code::Ok {
        assert!(Instant::now() < deadline, "{value}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
