//! A Redis that has lost its counters is noticed, and one that has not is left in peace.

use std::fs;

use crate::support::relay::Relay;
use crate::support::wait::eventually_async;
use crate::support::{DEMO, RedisServer, Weir};

const MARKER: &str = "w1{weir|marker=0}";
const LOSSES: &str = "weir_redis_counters_lost_total{redis=\"main\"}";

/// Waits until the marker has a value, and returns it.
async fn marker(redis: &RedisServer) -> String {
    let found = || redis.try_run::<Option<String>>(&["GET", MARKER]).ok()?;
    eventually_async(found).await.expect("a marker")
}

/// Waits until Weir has inspected Redis once more: each inspection renews the TTL.
async fn inspected(redis: &RedisServer) {
    let _: Result<i64, _> = redis.try_run(&["EXPIRE", MARKER, "1000"]);
    let renewed = || (redis.run::<i64>(&["TTL", MARKER]) > 1000).then_some(());
    eventually_async(renewed).await.expect("an inspection");
}

async fn wait_for_losses(weir: &Weir, losses: f64) {
    let is_it = || (weir.metric(LOSSES) == Some(losses)).then_some(());
    let seen = eventually_async(is_it).await;
    seen.unwrap_or_else(|| panic!("{losses}: {:?}", weir.metric(LOSSES)));
}

#[tokio::test]
async fn each_loss_is_counted_and_logged_once_by_each_replica() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let start = || Weir::start(DEMO, &[("REDIS_URL", &url)]);
    let (one, other) = (start(), start());
    let first = marker(&redis).await;
    redis.assert_every_key_expires();
    for weir in [&one, &other] {
        assert_eq!(weir.metric(LOSSES), Some(0.0));
    }
    inspected(&redis).await;
    redis.flush();
    let second = marker(&redis).await;
    assert_ne!(first, second);
    for weir in [&one, &other] {
        wait_for_losses(weir, 1.0).await;
        let line = weir.wait_for_log("Redis has lost its counters").await;
        assert!(line.contains("\"warn\"") && line.contains(&url), "{line}");
    }
    // A restart with its disk loses nothing.
    redis.run::<()>(&["SAVE"]);
    redis.kill();
    redis.start_again();
    inspected(&redis).await;
    inspected(&redis).await;
    assert_eq!(marker(&redis).await, second);
    // A restart without it.
    let saved: Vec<String> = redis.run(&["CONFIG", "GET", "dir"]);
    fs::remove_file(format!("{}/dump.rdb", saved[1])).expect("a snapshot");
    redis.kill();
    redis.start_again();
    for weir in [&one, &other] {
        wait_for_losses(weir, 2.0).await;
        let lines = weir.logs();
        let lines = lines
            .iter()
            .filter(|line| line.contains("lost its counters"));
        assert_eq!(lines.count(), 2);
    }
}

/// A replica that is promoted has the marker, and an empty server has not.
#[tokio::test]
async fn a_server_with_the_key_is_no_loss_and_an_empty_one_is() {
    let (redis, replica, empty) = (
        RedisServer::start(),
        RedisServer::start(),
        RedisServer::start(),
    );
    let relay = Relay::start(redis.port(), |_| {});
    let url = format!("127.0.0.1:{}", relay.port());
    let weir = Weir::start(DEMO, &[("REDIS_URL", &url)]);
    let first = marker(&redis).await;
    replica.run::<()>(&["REPLICAOF", "127.0.0.1", &redis.port().to_string()]);
    assert_eq!(marker(&replica).await, first);
    relay.lead_to(replica.port());
    replica.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    inspected(&replica).await;
    assert_eq!(weir.metric(LOSSES), Some(0.0));
    relay.lead_to(empty.port());
    wait_for_losses(&weir, 1.0).await;
}

/// A user without the right to write keys: the diagnostic of rights names it, and nothing is lost.
#[tokio::test]
async fn a_user_who_may_not_write_the_key_raises_no_alarm() {
    let redis = RedisServer::start();
    redis.run::<()>(&[
        "ACL", "SETUSER", "weir", "on", ">s3cret", "~w1*", "+@all", "-set",
    ]);
    let url = redis.url();
    let weir = Weir::start(DEMO, &[("REDIS_URL", &url), ("REDIS_AUTH", "weir:s3cret")]);
    let line = weir.wait_for_log("+set").await;
    assert!(line.contains("rights"), "{line}");
    assert_eq!(weir.metric(LOSSES), Some(0.0));
    assert_eq!(redis.run::<u64>(&["EXISTS", MARKER]), 0);
}
