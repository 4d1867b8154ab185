//! Failure policies: an outage of one key, and the return to Redis. The answers of each policy are
//! in `tests/vectors/decisions/outage.txt`.

use weir::core::proto::rate_limit_response::Code;

use crate::support::{Client, RedisServer, Weir, descriptor, request};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: outage
descriptors:
  - key: error
    rate_limit: { unit: year, requests_per_unit: 4, on_store_failure: error }
  - key: allow
    rate_limit: { unit: year, requests_per_unit: 4, on_store_failure: allow }
  - key: deny
    rate_limit: { unit: year, requests_per_unit: 4, on_store_failure: deny }
  - key: local
    rate_limit: { unit: year, requests_per_unit: 4, on_store_failure: local }
",
)];

/// The overall code of a request with one descriptor for each of these keys.
async fn call(client: &mut Client, keys: &[&str]) -> Code {
    let descriptors = keys.iter().map(|key| descriptor(&[(key, "x")])).collect();
    let answer = client
        .should_rate_limit(request("outage", descriptors))
        .await;
    answer.expect("an answer").into_inner().overall_code()
}

#[tokio::test]
async fn an_unreadable_key_is_an_outage_of_its_own_check_only() {
    let redis = RedisServer::start();
    let weir = Weir::start(LIMITS, &[("REDIS_URL", &redis.url())]);
    let client = &mut weir.client().await;
    assert_eq!(
        call(client, &["deny", "allow", "local", "error"]).await,
        Code::Ok
    );
    for key in redis.keys() {
        if !key.contains("error") {
            redis.run::<()>(&["SET", &key, "no number", "EX", "1000"]);
        }
    }
    assert_eq!(call(client, &["allow", "error"]).await, Code::Ok);
    assert_eq!(call(client, &["local", "error"]).await, Code::Ok);
    assert_eq!(call(client, &["deny", "error"]).await, Code::OverLimit);
    assert!(weir.metric("weir_store_errors_total{kind=\"data\"}") >= Some(3.0));
}
