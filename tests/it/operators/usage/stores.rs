//! The lists of subjects are the same in memory and in Redis.

use serde_json::Value;

use super::service::{api, hit};
use crate::support::wait::eventually_async;
use crate::support::{RedisServer, Weir};

/// Eight subjects are in each list at most.
const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 100, track_usage: true, usage_subjects: 8 }
",
)];

/// Names of which one is the begin of another, with characters that keys escape.
const USERS: [&str; 12] = [
    "1", "10", "100", "1|0", "1}", "1{", "a", "ab", "B", "ü", "", "~",
];

/// All pages of a list: its subjects, each with its hits, and the number of them.
fn list(weir: &Weir, by: &str) -> (Vec<[Value; 3]>, Value) {
    let (mut cursor, mut subjects) = ("0".to_owned(), Vec::new());
    loop {
        let (status, page) = api(
            weir,
            &format!("usage/top?domain=shop&by={by}&count=3&cursor={cursor}"),
        );
        assert_eq!(status, 200, "{page}");
        let subject = |subject: &Value| {
            [
                subject["entries"][0]["value"].clone(),
                subject["hits"].clone(),
                subject["refused"].clone(),
            ]
        };
        subjects.extend(
            page["subjects"]
                .as_array()
                .expect("a list")
                .iter()
                .map(subject),
        );
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return (subjects, page["total"].clone()),
        }
    }
}

/// Random hits, with ties, of which some are refused: fewer subjects than a list has, and more.
#[tokio::test]
async fn both_list_the_same_subjects_in_the_same_order() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for refused in [0, 3, 8, 11] {
        let redis = RedisServer::start();
        let weirs = [
            Weir::start(LIMITS, &[]),
            Weir::start(
                LIMITS,
                &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
            ),
        ];
        let mut hits: Vec<(&str, i64)> = Vec::new();
        for user in USERS {
            hits.extend((0..random.usize(1..3)).map(|_| (user, 10)));
        }
        random.shuffle(&mut hits);
        // Only once each: the denial cache writes further ones later.
        let mut users = USERS;
        random.shuffle(&mut users);
        hits.extend(
            users[..refused]
                .iter()
                .map(|&user| (user, 100 + 10 * random.i64(0..2))),
        );
        for weir in &weirs {
            let client = &mut weir.client().await;
            for &(user, hits) in &hits {
                hit(client, ("user", user), hits).await;
            }
        }
        for by in ["hits", "refused", "last-seen", "first-seen"] {
            let expected = list(&weirs[0], by);
            let listed = if by == "refused" { refused.min(8) } else { 8 };
            assert_eq!(
                (expected.0.len(), &expected.1),
                (listed, &Value::from(listed)),
                "seed {seed}: {by}: {expected:?}"
            );
            let is_equal =
                eventually_async(|| (list(&weirs[1], by) == expected).then_some(())).await;
            assert!(
                is_equal.is_some(),
                "seed {seed}: {by}: in memory {expected:?}, in Redis {:?}",
                list(&weirs[1], by)
            );
        }
    }
}

/// A subject that was refused, expired, and came again is in the list of refused hits no more.
#[tokio::test]
async fn a_subject_that_begins_anew_leaves_the_list_of_refused_hits() {
    let redis = RedisServer::start();
    let weir = Weir::start(
        LIMITS,
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
    );
    let client = &mut weir.client().await;
    for user in ["old", "other"] {
        hit(client, ("user", user), 150).await;
    }
    let users = |by: &str| {
        list(&weir, by)
            .0
            .into_iter()
            .map(|[user, ..]| user)
            .collect::<Vec<_>>()
    };
    assert!(
        eventually_async(|| (users("refused").len() == 2).then_some(()))
            .await
            .is_some()
    );
    // The counter has ended with the record.
    for key in redis.keys().iter().filter(|key| key.contains("user=old")) {
        redis.run::<i64>(&["DEL", key]);
    }
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    hit(client, ("user", "old"), 1).await;
    assert_eq!(
        list(&weir, "refused").0,
        [[Value::from("other"), Value::from(150), Value::from(150)]]
    );
    assert_eq!(
        redis.run::<i64>(&["ZCARD", "w1{shop|user}ur"]),
        1,
        "and is removed"
    );
    assert_eq!(users("hits").len(), 2, "but not from other lists");
}
