//! Failure policies: the answers while Redis is down, for each policy and for several in one
//! request, and the return to Redis afterwards.

use weir::core::proto::rate_limit_response::{Code, DescriptorStatus};
use weir::core::proto::{RateLimitDescriptor, RateLimitResponse};

use crate::support::{Client, RedisServer, Weir, descriptor, request};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &[(&str, &str)] = &[
    (
        "limits.yaml",
        "
domain: outage
descriptors:
  - key: nothing
    rate_limit: { unit: year, requests_per_unit: 4, name: no-policy }
  - key: error
    rate_limit: { unit: year, requests_per_unit: 4, on_store_failure: error }
  - key: allow
    rate_limit: { unit: year, requests_per_unit: 4, on_store_failure: allow, name: open }
  - key: deny
    rate_limit: { unit: year, requests_per_unit: 4, on_store_failure: deny, name: closed }
  - key: local
    rate_limit: { unit: year, requests_per_unit: 4, on_store_failure: local }
  - key: shadow
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 4 }
  - key: quota
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 4, on_store_failure: deny }
  - key: slow
    rate_limit: { unit: second, requests_per_unit: 2, algorithm: leaky_bucket, max_delay: 20s, on_store_failure: local }
",
    ),
    (
        "careful.yaml",
        "
domain: careful
defaults: { on_store_failure: deny }
descriptors:
  - key: nothing
    rate_limit: { unit: year, requests_per_unit: 4 }
  - key: allow
    rate_limit: { unit: year, requests_per_unit: 4, on_store_failure: allow }
",
    ),
    (
        "together.yaml",
        "
domain: together
commit: all_or_none
defaults: { on_store_failure: local }
descriptors:
  - key: few
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: many
    rate_limit: { unit: year, requests_per_unit: 3 }
",
    ),
];

/// A service whose Redis does not run.
fn without_redis(environment: &[(&str, &str)]) -> Weir {
    let url = RedisServer::absent().url();
    Weir::start(LIMITS, &[environment, &[("REDIS_URL", &url)]].concat())
}

async fn ask_descriptors(
    client: &mut Client,
    domain: &str,
    descriptors: Vec<RateLimitDescriptor>,
) -> Result<RateLimitResponse, tonic::Code> {
    let answer = client.should_rate_limit(request(domain, descriptors)).await;
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| status.code())
}

/// The overall code of a request with one descriptor for each of these keys.
async fn ask(client: &mut Client, domain: &str, keys: &[&str]) -> Result<Code, tonic::Code> {
    let descriptors = keys.iter().map(|key| descriptor(&[(key, "x")])).collect();
    ask_descriptors(client, domain, descriptors)
        .await
        .map(|answer| answer.overall_code())
}

const OK: Result<Code, tonic::Code> = Ok(Code::Ok);
const OVER: Result<Code, tonic::Code> = Ok(Code::OverLimit);
const UNAVAILABLE: Result<Code, tonic::Code> = Err(tonic::Code::Unavailable);

#[tokio::test]
async fn each_limit_has_its_policy_and_a_request_has_one_answer() {
    let weir = without_redis(&[]);
    let client = &mut weir.client().await;
    for (keys, expected) in [
        (&["nothing"][..], UNAVAILABLE),
        (&["error"], UNAVAILABLE),
        (&["allow"], OK),
        (&["deny"], OVER),
        (&["shadow"], OK),
        (&["quota"], OVER),
        (&["quota", "allow"], OVER),
        (&["allow", "error"], UNAVAILABLE),
        (&["local", "error"], UNAVAILABLE),
        (&["error", "deny"], OVER),
        (&["shadow", "error"], UNAVAILABLE),
        (&["allow", "nowhere"], OK),
        (&["nowhere"], OK),
    ] {
        assert_eq!(ask(client, "outage", keys).await, expected, "{keys:?}");
    }
    // A failed request counted nothing. The limit is 4 a year; the policy of another limit in the
    // same request does not change its count.
    for (keys, expected) in [
        (&["local"][..], OK),
        (&["local", "allow"], OK),
        (&["local", "deny"], OVER),
        (&["local"], OK),
        (&["local"], OVER),
    ] {
        assert_eq!(ask(client, "outage", keys).await, expected, "{keys:?}");
    }
    assert_eq!(weir.metric("weir_local_keys"), Some(1.0));
    assert_eq!(
        weir.metric("weir_outage_answers_total{policy=\"local\"}"),
        Some(5.0)
    );
    assert!(weir.metric("weir_outage_answers_total{policy=\"error\"}") >= Some(5.0));
    let outcome = |outcome: &str| {
        weir.metric(&format!("weir_decisions_total{{domain=\"outage\",limit=\"deny\",name=\"closed\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!(
        (
            outcome("outage_denied"),
            outcome("over_limit"),
            outcome("error")
        ),
        (Some(3.0), Some(0.0), Some(0.0))
    );
    assert_eq!(
        weir.metric("ratelimit_service_rate_limit_over_limit{domain=\"outage\",key1=\"deny\"}"),
        Some(0.0)
    );
    assert_eq!(
        weir.metric("ratelimit_service_rate_limit_total_hits{domain=\"outage\",key1=\"deny\"}"),
        Some(3.0)
    );
}

#[tokio::test]
async fn statuses_show_no_limit_whose_count_is_unknown() {
    let weir = without_redis(&[
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("RETRY_AFTER_HEADER_ENABLED", "true"),
    ]);
    let client = &mut weir.client().await;
    let of = |keys: &[&str]| {
        keys.iter()
            .map(|key| descriptor(&[(key, "x")]))
            .collect::<Vec<_>>()
    };
    let name = |status: &DescriptorStatus| status.current_limit.clone().map(|limit| limit.name);
    let count_of = |status: &DescriptorStatus| {
        (
            status.code(),
            status.limit_remaining,
            status
                .duration_until_reset
                .as_ref()
                .map(|duration| duration.seconds),
        )
    };

    let allowed = ask_descriptors(client, "outage", of(&["allow", "shadow"]))
        .await
        .expect("an answer");
    assert_eq!(
        allowed.statuses.iter().map(count_of).collect::<Vec<_>>(),
        [(Code::Ok, 0, None); 2]
    );
    assert_eq!(
        allowed.statuses.iter().map(name).collect::<Vec<_>>(),
        [None, None],
        "0 of a limit would be left"
    );
    assert!(
        allowed.response_headers_to_add.is_empty(),
        "the remaining count is unknown: {allowed:?}"
    );

    let denied = ask_descriptors(client, "outage", of(&["nothing", "deny", "local"]))
        .await
        .expect("an answer");
    let [nothing, deny, local] = &denied.statuses[..] else {
        panic!("three statuses: {denied:?}")
    };
    assert_eq!(
        (count_of(nothing), name(nothing)),
        ((Code::Ok, 0, None), None)
    );
    assert_eq!(
        (count_of(deny), name(deny)),
        ((Code::OverLimit, 0, Some(1)), Some("closed".to_owned()))
    );
    assert_eq!((local.code(), local.limit_remaining), (Code::Ok, 3));
    let headers: Vec<_> = denied
        .response_headers_to_add
        .iter()
        .map(|header| (header.key.as_str(), header.value.as_str()))
        .collect();
    assert_eq!(
        headers,
        [
            ("RateLimit-Limit", "4"),
            ("RateLimit-Remaining", "0"),
            ("RateLimit-Reset", "1"),
            ("retry-after", "1")
        ]
    );

    // Headers show the limit whose hits were counted.
    let counted = ask_descriptors(client, "outage", of(&["allow", "local"]))
        .await
        .expect("an answer");
    assert_eq!(counted.response_headers_to_add[1].value, "2");
}

#[tokio::test]
async fn a_domain_and_the_process_have_defaults() {
    let own = || {
        let mut own = descriptor(&[("brought", "along")]);
        own.limit = Some(
            weir::core::proto::rate_limit_descriptor::RateLimitOverride {
                requests_per_unit: 5,
                unit: 4,
                ..Default::default()
            },
        );
        vec![own]
    };
    let (error, local) = (
        without_redis(&[]),
        without_redis(&[("ON_STORE_FAILURE", "local")]),
    );
    let (with_error, with_local) = (&mut error.client().await, &mut local.client().await);
    for client in [&mut *with_error, &mut *with_local] {
        assert_eq!(ask(client, "careful", &["nothing"]).await, OVER);
        assert_eq!(ask(client, "careful", &["allow"]).await, OK);
        assert_eq!(
            ask_descriptors(client, "careful", own())
                .await
                .map(|answer| answer.overall_code()),
            OVER
        );
        assert_eq!(ask(client, "outage", &["error"]).await, UNAVAILABLE);
    }
    assert_eq!(ask(with_error, "outage", &["nothing"]).await, UNAVAILABLE);
    assert_eq!(
        ask_descriptors(with_error, "outage", own())
            .await
            .map(|answer| answer.overall_code()),
        UNAVAILABLE
    );
    assert_eq!(ask(with_local, "outage", &["nothing"]).await, OK);
    let counted = ask_descriptors(with_local, "outage", own())
        .await
        .expect("an answer");
    assert_eq!(counted.statuses[0].limit_remaining, 4);
}

#[tokio::test]
async fn without_redis_each_of_two_replicas_admits_its_share() {
    let replicas = [
        without_redis(&[("REPLICAS", "2")]),
        without_redis(&[("REPLICAS", "2")]),
    ];
    for weir in &replicas {
        let client = &mut weir.client().await;
        let mut passed = 0;
        for _ in 0..5 {
            passed += usize::from(ask(client, "outage", &["local"]).await == OK);
        }
        assert_eq!(passed, 2, "half of 4");
        // The limit that is shown is the share, of which the rest remains.
        for (key, own, limit, remaining) in [("local", "y", 2, 1), ("slow", "y", 21, 20)] {
            let answer = ask_descriptors(client, "outage", vec![descriptor(&[(key, own)])])
                .await
                .expect("an answer");
            let shown = answer.statuses[0].current_limit.as_ref().expect("a limit");
            assert_eq!(
                (shown.requests_per_unit, answer.statuses[0].limit_remaining),
                (limit, remaining),
                "{key}"
            );
        }
    }
}

#[tokio::test]
async fn a_group_is_decided_locally_as_a_group() {
    let weir = without_redis(&[]);
    let client = &mut weir.client().await;
    assert_eq!(ask(client, "together", &["few", "many"]).await, OK);
    for _ in 0..3 {
        assert_eq!(ask(client, "together", &["few", "many"]).await, OVER);
    }
    assert_eq!(
        ask(client, "together", &["many"]).await,
        OK,
        "the refused requests were not counted"
    );
    assert_eq!(ask(client, "together", &["many"]).await, OK);
    assert_eq!(ask(client, "together", &["many"]).await, OVER);
}

#[tokio::test]
async fn a_shaper_delays_requests_without_redis_too() {
    let weir = without_redis(&[]);
    let client = &mut weir.client().await;
    let began = std::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(ask(client, "outage", &["slow"]).await, OK);
    }
    assert!(
        began.elapsed() >= std::time::Duration::from_millis(900),
        "three slots of half a second: {:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn an_unreadable_key_is_an_outage_of_its_own_check_only() {
    let redis = RedisServer::start();
    let weir = Weir::start(LIMITS, &[("REDIS_URL", &redis.url())]);
    let client = &mut weir.client().await;
    assert_eq!(
        ask(client, "outage", &["deny", "allow", "local", "error"]).await,
        OK
    );
    for key in redis.keys() {
        if !key.contains("error") {
            redis.run::<()>(&["SET", &key, "no number", "EX", "1000"]);
        }
    }
    assert_eq!(ask(client, "outage", &["allow", "error"]).await, OK);
    assert_eq!(ask(client, "outage", &["local", "error"]).await, OK);
    assert_eq!(ask(client, "outage", &["deny", "error"]).await, OVER);
    assert!(weir.metric("weir_store_errors_total{kind=\"data\"}") >= Some(3.0));
}

#[tokio::test]
async fn redis_decides_again_after_its_restart() {
    let mut redis = RedisServer::start();
    let weir = Weir::start(LIMITS, &[("REDIS_URL", &redis.url())]);
    let client = &mut weir.client().await;
    assert_eq!(ask(client, "outage", &["deny"]).await, OK);
    redis.kill();
    let began = std::time::Instant::now();
    while ask(client, "outage", &["deny"]).await != OVER {
        assert!(
            began.elapsed() < std::time::Duration::from_secs(5),
            "the outage is not noticed"
        );
    }
    redis.start_again();
    while ask(client, "outage", &["deny"]).await != OK {
        assert!(
            began.elapsed() < std::time::Duration::from_secs(10),
            "the end of the outage is not noticed"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
