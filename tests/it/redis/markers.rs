//! A Redis that has lost its counters is noticed, and one that has not is left in peace.

use std::fs;
use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::relay::Relay;
use crate::support::wait::eventually_async;
use crate::support::{DEMO, RedisServer, Weir, exclusive};

const MARKER: &str = "w1{weir|marker=0}";
const LOSSES: &str = "weir_redis_counters_lost_total{redis=\"main\"}";

/// Waits until the marker has a value, and returns it.
async fn marker(redis: &RedisServer) -> String {
    let found = || redis.try_run::<Option<String>>(&["GET", MARKER]).ok()?;
    eventually_async(found).await.expect("a marker")
}

/// Waits until Weir has inspected Redis once more: each inspection renews the TTL of its marker.
async fn inspected(redis: &RedisServer, marker: &str) {
    let _: Result<i64, _> = redis.try_run(&["EXPIRE", marker, "1000"]);
    let renewed = || (redis.run::<i64>(&["TTL", marker]) > 1000).then_some(());
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
    inspected(&redis, MARKER).await;
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
    inspected(&redis, MARKER).await;
    inspected(&redis, MARKER).await;
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
    inspected(&replica, MARKER).await;
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

/// Each primary of a cluster has a marker. Slots that move with their keys, and a failover, are no
/// loss; the keys of one primary are.
#[tokio::test]
async fn a_cluster_has_a_marker_for_each_primary() {
    let _alone = exclusive();
    let mut cluster = Cluster::start();
    let (url, kind) = (cluster.url(), ("REDIS_TYPE", "cluster"));
    let weir = Weir::start(DEMO, &[kind, ("REDIS_URL", &url)]);
    let markers = |port| -> Vec<String> { cluster.node(port).run(&["KEYS", "w1{weir|marker=*"]) };
    let [one, other, last] = cluster.primaries()[..] else {
        panic!("three primaries");
    };
    let mut first = Vec::new();
    for port in [one, other, last] {
        let found = eventually_async(|| markers(port).pop()).await;
        first.push(found.expect("a marker"));
    }
    cluster.migrate(cluster.slot(&first[0]), other, Duration::from_millis(15));
    let is_new = || markers(one).into_iter().next();
    let next = eventually_async(is_new)
        .await
        .expect("a marker in another slot");
    for (port, marker) in [(one, &next), (last, &first[2])] {
        inspected(cluster.node(port), marker).await;
    }
    assert_eq!(weir.metric(LOSSES), Some(0.0));
    cluster.kill(last);
    let promoted = cluster.wait_for_new_owner(cluster.slot(&first[2]), last);
    inspected(cluster.node(promoted), &first[2]).await;
    assert_eq!(weir.metric(LOSSES), Some(0.0));
    cluster.node(promoted).flush();
    wait_for_losses(&weir, 1.0).await;
}
