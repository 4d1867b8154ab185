//! Usage with a Redis user that has few rights.

use serde_json::Value;

use super::service::{api, hit, numbers, usage};
use crate::support::redis::rights_of_the_page;
use crate::support::wait::eventually_async;
use crate::support::{RedisServer, Weir};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shop
defaults: { track_usage: true, usage_subjects: 3 }
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 100, usage_interval: 1s, usage_buckets: 3 }
  - key: tenant
    rate_limit: { unit: year, requests_per_unit: 100, algorithm: sliding_window_buckets, \
        bucket_interval: 24h, bucket_span: 9600h }
",
)];

const ADVICE: &str = "weir_redis_advice{redis=\"main\",server=\"URL\",advice=\"rights\"}";

fn users(top: &Value) -> Vec<&str> {
    let subjects = top["subjects"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    subjects
        .iter()
        .filter_map(|subject| subject["entries"][0]["value"].as_str())
        .collect()
}

/// What Redis refused to its users: the commands of `ACL LOG`.
fn objects_of_refusals(redis: &RedisServer) -> Vec<String> {
    let refused: Vec<Vec<bb8_redis::redis::Value>> = redis.run(&["ACL", "LOG", "128"]);
    let text = |value: &bb8_redis::redis::Value| {
        bb8_redis::redis::from_redis_value_ref::<String>(value).unwrap_or_default()
    };
    let object = |entry: &Vec<bb8_redis::redis::Value>| {
        let name = entry
            .iter()
            .position(|value| text(value) == "object")
            .expect("an object");
        text(&entry[name + 1])
    };
    refused.iter().map(object).collect()
}

/// Records, series, hits of the denial cache, all lists, their bound, removal of what has expired,
/// and counts.
#[tokio::test]
async fn those_of_the_page_suffice() {
    let redis = RedisServer::start();
    let [requests, lists] = rights_of_the_page("track_usage");
    assert!(
        requests.len() > 10 && lists.len() == 5,
        "{requests:?} {lists:?}"
    );
    redis.grant(&[requests, lists].concat());
    let environment = [
        ("REDIS_URL", &*redis.url()),
        ("REDIS_AUTH", "weir:s3cret"),
        ("STORE_TIMEOUT", "5s"),
    ];
    let weir = Weir::start(LIMITS, &environment);
    let client = &mut weir.client().await;
    for (number, user) in ["a", "b", "c", "d"].into_iter().enumerate() {
        for hits in [10 + number as i64, 0, -1, 100, 1, 1, 1] {
            hit(client, ("user", user), hits).await;
            hit(client, ("tenant", user), hits).await;
        }
    }
    // Several intervals of the ring, which cells of an earlier lap had.
    for _ in 0..5 {
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
        hit(client, ("user", "d"), 1).await;
    }
    let is_exact = || (numbers(&usage(&weir, "user%3Dd"))[..2] == [121, 108]).then_some(());
    assert!(
        eventually_async(is_exact).await.is_some(),
        "{}",
        usage(&weir, "user%3Dd")
    );
    for by in ["hits", "refused", "last-seen", "first-seen"] {
        let top = || api(&weir, &format!("usage/top?limit=shop.user&by={by}")).1;
        assert!(
            eventually_async(|| (users(&top()).len() == 3).then_some(()))
                .await
                .is_some(),
            "{by}: {}",
            top()
        );
    }
    redis.run::<i64>(&["DEL", "w1{shop|user=c}us"]);
    let top = api(&weir, "usage/top?limit=shop.user").1;
    assert_eq!(users(&top), ["d", "b"]);
    assert_eq!(
        redis.run::<Option<f64>>(&["ZSCORE", "w1{shop|user}ut", "shop|user=c"]),
        None,
        "it was removed"
    );
    for entry in ["user%3Dd", "tenant%3Dd"] {
        let (status, count) = api(&weir, &format!("count?domain=shop&entry={entry}&since=1s"));
        assert_eq!(status, 200, "{count}");
    }
    // INFO and CONFIG GET are for diagnostics only, and the others for overrides.
    let refused = objects_of_refusals(&redis);
    assert!(
        refused
            .iter()
            .all(|object| ["info", "config|get", "hget", "hlen"].contains(&object.as_str())),
        "{refused:?}"
    );
    let advice = ADVICE.replace("URL", &redis.url());
    assert_eq!(weir.metric(&advice), None);
    assert_eq!(
        weir.metric("weir_usage_index_dropped_total{redis=\"main\"}"),
        Some(0.0)
    );
}
