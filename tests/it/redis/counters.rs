//! Counters of fixed windows: exact counts while Redis works.

use super::*;
use crate::support::redis::{RedisServer, connect};

#[tokio::test]
async fn a_counter_that_was_lost_gets_an_expiry_again() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    let hit = async |hits: i64| {
        decide_one(&redis, "lost", 100, hits)
            .await
            .expect("Redis is well")
            .used
    };
    let mut counts = Vec::new();
    for hits in [1, 1, 2, 1, 1] {
        counts.push(hit(hits).await);
    }
    assert_eq!(counts, [1, 2, 4, 5, 6]);
    // Once on each connection; one caller uses at most two.
    assert!(
        server.calls("incrby") >= server.calls("expire") + 3,
        "{} expiries",
        server.calls("expire")
    );
    server.assert_every_key_expires();
    for hits in [1, 3] {
        server.flush();
        assert_eq!(hit(hits).await, hits as u64, "the earlier counts are gone");
        server.assert_every_key_expires();
    }
    assert_eq!(hit(1).await, 4);
    // The key now holds a value that is not a counter.
    let key = server.keys().pop().expect("one key");
    server.run::<()>(&["SET", &key, "seven"]);
    for _ in 0..4 {
        let answers = decide_all(&redis, &[("lost", check(100, 1))]).await;
        assert_eq!(
            answers.verdicts()[0],
            Err(StoreError::Data("not_an_integer"))
        );
    }
    server.assert_every_key_expires();
    assert_eq!(redis.deployment().error_counts(), [("not_an_integer", 4)]);
}

#[tokio::test]
async fn requests_that_wait_for_a_connection_are_served_in_turn() {
    let server = RedisServer::start();
    let mut options = server.options();
    options.pool_size = 2.try_into().expect("not 0");
    let redis = connect(options);
    // More than fit into two batches.
    let tasks: Vec<_> = (0..256)
        .map(|_| {
            let redis = redis.clone();
            tokio::spawn(async move {
                for _ in 0..50 {
                    decide_one(&redis, "turns", 10, 1)
                        .await
                        .expect("Redis is well");
                }
                Instant::now()
            })
        })
        .collect();
    let began = Instant::now();
    let mut ends = Vec::new();
    for task in tasks {
        ends.push((task.await.expect("no panic") - began).as_secs_f64());
    }
    let (first, last) = ends
        .iter()
        .fold((f64::MAX, 0.0_f64), |(first, last), &end| {
            (first.min(end), last.max(end))
        });
    // When requests are served in turn, all tasks end at about the same time; otherwise some end
    // when others have hardly begun.
    assert!(
        first > 0.8 * last,
        "the first task ended after {first} s, the last after {last} s"
    );
    assert_eq!(redis.deployment().connections().opened, 2);
}

#[tokio::test]
async fn a_give_back_adds_a_missing_expiry_and_clamps_counts_beyond_2_to_the_53() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    let key = stored_key("big", &decide_all(&redis, &[("big", check(1, 0))]).await);
    server.run::<()>(&["SET", &key, "9007199254740993"]);
    decide_one(&redis, "big", 5, -2)
        .await
        .expect("Redis is well");
    assert_eq!(server.run::<String>(&["GET", &key]), "9007199254740990");
    server.assert_every_key_expires();
    server.run::<()>(&["SET", &key, "9223372036854775807"]);
    assert_eq!(
        decide_one(&redis, "big", 5, i64::MIN)
            .await
            .map(|verdict| verdict.used),
        Ok(0)
    );
    assert_eq!(server.run::<String>(&["GET", &key]), "0");
}
