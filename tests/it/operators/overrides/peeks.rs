//! Peeks are counted by limit, and a check that a block has made a peek is not one of them.

use serde_json::Value;
use weir::core::proto::rate_limit_response::Code;

use super::Desk;
use crate::support::{Client, RedisServer, Weir, descriptor_with_hits, http_client, request};

const LIMITS: &str = "
domain: shop
descriptors:
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 5, name: calls } }
  - { key: user, rate_limit: { unit: year, requests_per_unit: 5 } }
";

const WHOLE: &str = "
domain: whole
commit: all_or_none
descriptors:
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: user, rate_limit: { unit: year, requests_per_unit: 5 } }
";

/// The code for descriptors with a key and hits each.
async fn send(client: &mut Client, domain: &str, all: &[(&str, i64)]) -> Code {
    let all = all.iter();
    let all = all.map(|(key, hits)| descriptor_with_hits(&[(key, "1")], *hits));
    let answer = client
        .should_rate_limit(request(domain, all.collect()))
        .await;
    answer.expect("an answer").into_inner().overall_code()
}

#[tokio::test]
async fn peeks_are_counted_by_limit() {
    let (desk, redis) = (Desk::new(), RedisServer::start());
    let url = redis.url();
    let tokens = desk.path("tokens");
    let tokens = ("ADMIN_TOKEN_FILE", tokens.to_str().expect("UTF-8"));
    for environment in [&[tokens][..], &[tokens, ("REDIS_URL", &url)]] {
        let weir = Weir::start(&[("shop.yaml", LIMITS), ("whole.yaml", WHOLE)], environment);
        let client = &mut weir.client().await;
        let peeks = |domain: &str, rest: &str| {
            weir.metric(&format!(
                "weir_peeks_total{{domain=\"{domain}\",limit={rest}}}"
            ))
        };
        for domain in ["shop", "whole"] {
            for hits in [0, 0, 0, 2, -1] {
                let code = send(client, domain, &[("tenant", hits)]).await;
                assert_eq!(code, Code::Ok, "{domain} {hits}");
            }
            assert_eq!(send(client, domain, &[("user", 5)]).await, Code::Ok);
            // A peek is one also in a request that is refused as a whole.
            let both = [("tenant", 0), ("user", 1)];
            assert_eq!(send(client, domain, &both).await, Code::OverLimit);
        }
        assert_eq!(peeks("shop", "\"tenant\",name=\"calls\""), Some(4.0));
        assert_eq!(peeks("whole", "\"tenant\""), Some(4.0));
        assert_eq!(peeks("shop", "\"user\""), None, "no series without a peek");
        // Under a block, all_or_none makes every check a peek, and counts none.
        desk.ok(&weir, &["block", "-d", "whole", "user=1"]);
        let blocked = [("tenant", 1), ("user", 1)];
        assert_eq!(send(client, "whole", &blocked).await, Code::OverLimit);
        assert_eq!(peeks("whole", "\"tenant\""), Some(4.0));
        let answer = http_client::get(weir.listener("debug"), "/api/v1/decisions").body;
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        for (limit, expected) in [("shop.tenant", 4), ("whole.tenant", 4), ("shop.user", 0)] {
            let mut limits = answer["limits"].as_array().expect("a list").iter();
            let found = limits
                .find(|one| one["limit"] == limit)
                .expect("it decided");
            assert_eq!(found["peeks"], expected, "{limit}: {answer}");
        }
        // An explanation peeks at the counter and is no request.
        desk.ok(&weir, &["explain", "-d", "shop", "tenant=1"]);
        assert_eq!(peeks("shop", "\"tenant\",name=\"calls\""), Some(4.0));
    }
}
