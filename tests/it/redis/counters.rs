//! Counters of fixed windows: exact counts while Redis works.

use std::collections::BTreeMap;

use weir::core::algorithm::{Arrival, State};

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
async fn give_backs_stop_at_zero_and_survive_a_script_flush() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    assert_eq!(
        decide_one(&redis, "back", 5, -3)
            .await
            .map(|verdict| (verdict.used, verdict.allowed)),
        Ok((0, true))
    );
    assert_eq!(
        server.keys(),
        Vec::<String>::new(),
        "giving back to a missing key writes nothing"
    );
    decide_one(&redis, "back", 5, 5)
        .await
        .expect("Redis is well");
    for round in 0..3 {
        server.run::<()>(&["SCRIPT", "FLUSH"]);
        let answers = decide_all(
            &redis,
            &[
                ("back", check(5, 1)),
                ("back", check(5, -1)),
                ("back", check(5, 0)),
            ],
        )
        .await;
        let used: Vec<_> = answers
            .verdicts()
            .iter()
            .map(|answer| answer.map(|verdict| verdict.used))
            .collect();
        assert_eq!(
            used,
            [Ok(6), Ok(5), Ok(5)],
            "round {round}: in their order, although the script was lost"
        );
    }
    let answers = decide_all(
        &redis,
        &[
            ("back", check(5, -2)),
            ("back", check(5, 0)),
            ("back", check(5, i64::MIN)),
            ("back", check(5, 0)),
        ],
    )
    .await;
    let used: Vec<_> = answers
        .verdicts()
        .iter()
        .map(|answer| answer.map(|verdict| verdict.used))
        .collect();
    assert_eq!(used, [Ok(3), Ok(3), Ok(0), Ok(0)]);
    assert!(
        server.run::<i64>(&["TTL", &stored_key("back", &answers)]) > 0,
        "its expiry was kept"
    );
    assert_eq!(redis.deployment().error_counts(), []);
    server.assert_every_key_expires();
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

#[tokio::test]
async fn huge_hits_are_clamped_and_an_overflow_is_over_the_limit() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    let full = decide_one(&redis, "widest", u32::MAX.into(), i64::MAX)
        .await
        .expect("Redis is well");
    assert_eq!((full.used, full.allowed), (1 << 53, false));
    let answers = decide_all(&redis, &[("full", check(10, 1))]).await;
    server.run::<()>(&[
        "SET",
        &stored_key("full", &answers),
        &i64::MAX.to_string(),
        "EX",
        "60",
    ]);
    let verdict = decide_one(&redis, "full", 10, 1)
        .await
        .expect("an overflow is no error");
    assert_eq!((verdict.allowed, verdict.remaining), (false, 0));
    assert!(
        !decide_one(&redis, "full", 10, 0)
            .await
            .expect("Redis is well")
            .allowed
    );
    assert_eq!(redis.deployment().error_counts(), []);
    server.assert_every_key_expires();
}

#[tokio::test]
async fn a_value_that_is_no_counter_fails_only_its_own_check() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    let answers = decide_all(&redis, &[("probe", check(10, 0))]).await;
    let stored = |key| stored_key(key, &answers);
    server.run::<()>(&["LPUSH", &stored("list"), "x"]);
    server.run::<()>(&["SET", &stored("text"), "abc"]);
    server.run::<()>(&["SET", &stored("below"), "-5"]);
    for hits in [1, 0, -1] {
        let checks = ["good", "list", "text", "below", "fine"].map(|key| (key, check(10, hits)));
        let answers = decide_all(&redis, &checks).await;
        assert!(
            answers.verdicts()[0].is_ok_and(|verdict| verdict.allowed),
            "{hits}: {answers:?}"
        );
        assert_eq!(
            answers.verdicts()[1],
            Err(StoreError::Data("wrongtype")),
            "{hits}"
        );
        assert_eq!(
            answers.verdicts()[2],
            Err(StoreError::Data("not_an_integer")),
            "{hits}"
        );
        let below = if hits < 0 { "not_an_integer" } else { "range" };
        assert_eq!(
            answers.verdicts()[3],
            Err(StoreError::Data(below)),
            "{hits}"
        );
        assert!(
            answers.verdicts()[4].is_ok_and(|verdict| verdict.allowed),
            "{hits}: {answers:?}"
        );
    }
    assert_eq!(
        redis.deployment().error_counts(),
        [("not_an_integer", 3), ("range", 2), ("wrongtype", 3)]
    );
    assert_eq!(
        redis.deployment().connections().opened,
        1,
        "the connection is kept"
    );
    server.assert_every_key_expires();
}

/// Runs the same random checks through Redis and through the pure step.
#[tokio::test]
async fn redis_and_the_pure_step_agree() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    // Loads the script, so that all checks of a request run in order.
    decide_one(&redis, "x", 5, -1).await.expect("Redis is well");
    let mut random = fastrand::Rng::with_seed(7);
    let mut states: BTreeMap<&str, Option<State>> = BTreeMap::new();
    let mut seen = Vec::new();
    for round in 0..400 {
        let checks: Vec<_> = (0..random.usize(1..6))
            .map(|_| {
                let hits = match random.u8(..10) {
                    0 => 0,
                    1 => i64::MAX,
                    2..5 => -random.i64(1..12),
                    _ => random.i64(1..6),
                };
                (
                    ["x", "y", "z"][random.usize(..3)],
                    check([0, 5, 20][random.usize(..3)], hits),
                )
            })
            .collect();
        let answers = decide_all(&redis, &checks).await;
        for ((key, check), answer) in checks.iter().zip(&answers.verdicts()) {
            let state = states.entry(key).or_default();
            let step = check.algorithm.step(
                state.take(),
                Arrival {
                    now: answers.now,
                    max_wait: Span::ZERO,
                },
                check.hits,
            );
            *state = step.state;
            let verdict = answer.unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert_eq!(
                verdict,
                Verdict {
                    reset_after: verdict.reset_after,
                    retry_after: verdict.retry_after,
                    ..step.verdict
                },
                "{round}"
            );
            seen.push(verdict.allowed);
        }
    }
    assert!(seen.contains(&true) && seen.contains(&false));
    server.assert_every_key_expires();
}
