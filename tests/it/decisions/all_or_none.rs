//! `commit: all_or_none`, with both stores: a refused request counts nothing.

use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitDescriptor, RateLimitResponse};

use crate::support::{Client, RedisServer, Weir, descriptor, request};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: whole
commit: all_or_none
descriptors:
  - key: wide
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: narrow
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 5, algorithm: token_bucket }
  - key: shadow
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: quota
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
",
)];

async fn ask(client: &mut Client, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    client
        .should_rate_limit(request("whole", descriptors))
        .await
        .expect("an answer")
        .into_inner()
}

fn remaining(response: &RateLimitResponse) -> Vec<(bool, u32)> {
    response
        .statuses
        .iter()
        .map(|status| (status.code() == Code::Ok, status.limit_remaining))
        .collect()
}

async fn counts_all_or_none(client: &mut Client) {
    let all = |value: &str| {
        ["wide", "narrow", "bucket"]
            .map(|key| descriptor(&[(key, value)]))
            .to_vec()
    };
    assert_eq!(
        remaining(&ask(client, all("a")).await),
        [(true, 9), (true, 1), (true, 4)]
    );
    assert_eq!(
        remaining(&ask(client, all("a")).await),
        [(true, 8), (true, 0), (true, 3)]
    );
    for _ in 0..3 {
        let refused = ask(client, all("a")).await;
        assert_eq!(refused.overall_code(), Code::OverLimit);
        assert_eq!(
            remaining(&refused),
            [(true, 8), (false, 0), (true, 3)],
            "limits that were not over keep their counts"
        );
    }
    assert_eq!(
        remaining(&ask(client, vec![descriptor(&[("wide", "a")])]).await),
        [(true, 7)],
        "refused requests were not counted"
    );

    // Several checks on one key: each sees the hits of those before it, and all are dropped when
    // one does not fit.
    let twice = vec![descriptor(&[("narrow", "b")]); 3];
    assert_eq!(ask(client, twice).await.overall_code(), Code::OverLimit);
    assert_eq!(
        remaining(&ask(client, vec![descriptor(&[("narrow", "b")]); 2]).await),
        [(true, 1), (true, 0)]
    );

    // A shadow limit that is over refuses nothing; the other limits count.
    ask(client, vec![descriptor(&[("shadow", "s")])]).await;
    assert_eq!(
        remaining(
            &ask(
                client,
                vec![descriptor(&[("shadow", "s")]), descriptor(&[("wide", "s")])]
            )
            .await
        ),
        [(true, 0), (true, 9)]
    );

    // A request is refused only when all its quotas are over.
    let quotas = |left: &str, right: &str| {
        vec![
            descriptor(&[("quota", left)]),
            descriptor(&[("quota", right)]),
            descriptor(&[("wide", "q")]),
        ]
    };
    assert_eq!(ask(client, quotas("x", "y")).await.overall_code(), Code::Ok);
    assert_eq!(
        ask(client, quotas("x", "z")).await.overall_code(),
        Code::Ok,
        "one of two quotas remains"
    );
    let refused = ask(client, quotas("x", "z")).await;
    assert_eq!(
        (refused.overall_code(), remaining(&refused)[2]),
        (Code::OverLimit, (true, 8))
    );
}

#[tokio::test]
async fn in_memory() {
    counts_all_or_none(&mut Weir::start(LIMITS, &[]).client().await).await;
}

#[tokio::test]
async fn in_redis() {
    let redis = RedisServer::start();
    counts_all_or_none(
        &mut Weir::start(
            LIMITS,
            &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
        )
        .client()
        .await,
    )
    .await;
    redis.assert_every_key_expires();
}
