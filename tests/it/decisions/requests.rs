//! The request path through real sockets, with both stores: requests, their answers, and requests
//! that are invalid.

use tonic::Code as GrpcCode;
use weir::core::proto::rate_limit_descriptor::RateLimitOverride;
use weir::core::proto::rate_limit_response::{Code, RateLimit};
use weir::core::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use weir::core::time::Unit;

use crate::support::{self, Client, RedisServer, Weir, descriptor, descriptor_with_hits, request};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    r#"
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 3, name: per-user }
  - key: tenant
    value: "acme*"
    share_threshold: true
    rate_limit: { unit: year, requests_per_unit: 2, name: acme }
  - key: path
    value: /login
    descriptors:
      - key: user
        rate_limit: { unit: day, requests_per_unit: 1, unit_multiplier: 30 }
  - key: free
    rate_limit: { unlimited: true, name: free }
  - key: white
  - key: shadow
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: quota
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: vip
    rate_limit: { unit: year, requests_per_unit: 5, name: vip, replaces: [ { name: per-user }, { name: free } ] }
  - key: none
    rate_limit: { unit: year, requests_per_unit: 0 }
"#,
)];

async fn each_store(test: impl AsyncFn(&mut Client)) {
    test(&mut Weir::start(LIMITS, &[]).client().await).await;
    let redis = RedisServer::start();
    test(
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

async fn ask(client: &mut Client, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    client
        .should_rate_limit(request("shop", descriptors))
        .await
        .expect("an answer")
        .into_inner()
}

async fn refusal(client: &mut Client, request: RateLimitRequest) -> tonic::Status {
    client
        .should_rate_limit(request)
        .await
        .expect_err("a refusal")
}

/// The code, what remains, and the limit's name, of each status.
fn statuses(response: &RateLimitResponse) -> Vec<(Code, u32, &str)> {
    let limit = |limit: &Option<RateLimit>| limit.as_ref().map_or("-", |_| "");
    let status = response.statuses.iter();
    status
        .map(|status| {
            let name = status
                .current_limit
                .as_ref()
                .map_or(limit(&None), |limit| &limit.name);
            (status.code(), status.limit_remaining, name)
        })
        .collect()
}

#[tokio::test]
async fn statuses_are_complete_and_in_order() {
    each_store(async |client| {
        let descriptors = vec![
            descriptor(&[("user", "a")]),
            descriptor(&[("unknown", "key")]),
            descriptor(&[("free", "")]),
            descriptor(&[("white", "x")]),
            descriptor(&[("path", "/login"), ("user", "a")]),
            descriptor(&[("path", "/login")]),
            descriptor(&[]),
        ];
        let response = ask(client, descriptors).await;
        assert_eq!(response.overall_code(), Code::Ok);
        let ok = Code::Ok;
        let expected = [
            (ok, 2, "per-user"),
            (ok, 0, "-"),
            (ok, u32::MAX, "-"),
            (ok, 0, "-"),
            (ok, 0, ""),
            (ok, 0, "-"),
            (ok, 0, "-"),
        ];
        assert_eq!(statuses(&response), expected);

        let user = response.statuses[0]
            .current_limit
            .as_ref()
            .expect("a limit");
        assert_eq!(
            (user.requests_per_unit, user.unit, user.unit_multiplier),
            (3, Unit::Year.number(), None)
        );
        let login = response.statuses[4]
            .current_limit
            .as_ref()
            .expect("a limit");
        assert_eq!(
            (login.requests_per_unit, login.unit, login.unit_multiplier),
            (1, Unit::Day.number(), Some(30))
        );
        for (index, longest) in [(0, 365 * 86_400), (4, 30 * 86_400)] {
            let reset = response.statuses[index]
                .duration_until_reset
                .as_ref()
                .expect("a reset");
            assert!(
                (1..=longest).contains(&reset.seconds) && reset.nanos == 0,
                "{reset:?}"
            );
        }
        assert!(response.statuses[1].duration_until_reset.is_none());
    })
    .await;
}

#[tokio::test]
async fn the_limit_is_exact_and_each_value_has_its_own() {
    each_store(async |client| {
        for (left, code) in [
            (2, Code::Ok),
            (1, Code::Ok),
            (0, Code::Ok),
            (0, Code::OverLimit),
            (0, Code::OverLimit),
        ] {
            let response = ask(client, vec![descriptor(&[("user", "b")])]).await;
            assert_eq!(
                (
                    response.statuses[0].limit_remaining,
                    response.overall_code()
                ),
                (left, code)
            );
        }
        assert_eq!(
            ask(client, vec![descriptor(&[("user", "c")])])
                .await
                .overall_code(),
            Code::Ok
        );
        // Values that match one pattern share its threshold.
        for (tenant, code) in [
            ("acme-1", Code::Ok),
            ("acme-2", Code::Ok),
            ("acme-3", Code::OverLimit),
        ] {
            assert_eq!(
                ask(client, vec![descriptor(&[("tenant", tenant)])])
                    .await
                    .overall_code(),
                code,
                "{tenant}"
            );
        }
        assert_eq!(
            ask(client, vec![descriptor(&[("none", "")])])
                .await
                .overall_code(),
            Code::OverLimit
        );
    })
    .await;
}

#[tokio::test]
async fn shadow_quota_and_replaces_decide_the_overall_code() {
    each_store(async |client| {
        let shadow = || descriptor(&[("shadow", "s")]);
        ask(client, vec![shadow()]).await;
        let response = ask(client, vec![shadow()]).await;
        assert_eq!(
            (
                response.overall_code(),
                response.statuses[0].code(),
                response.statuses[0].limit_remaining
            ),
            (Code::Ok, Code::Ok, 0)
        );

        let quota = |value| descriptor(&[("quota", value)]);
        ask(client, vec![quota("q1")]).await;
        let response = ask(client, vec![quota("q1"), quota("q2")]).await;
        assert_eq!(response.overall_code(), Code::Ok, "one quota remains");
        assert_eq!(response.statuses[0].code(), Code::OverLimit);
        let response = ask(
            client,
            vec![quota("q1"), quota("q2"), descriptor(&[("user", "q")])],
        )
        .await;
        assert_eq!(
            response.overall_code(),
            Code::OverLimit,
            "no quota remains, although another limit allows the request"
        );

        for _ in 0..5 {
            let response = ask(
                client,
                vec![
                    descriptor(&[("user", "r")]),
                    descriptor(&[("vip", "r")]),
                    descriptor(&[("free", "")]),
                ],
            )
            .await;
            assert_eq!(response.overall_code(), Code::Ok);
            assert_eq!(statuses(&response)[0], (Code::Ok, 0, "-"), "replaced");
            assert_eq!(
                statuses(&response)[2].1,
                u32::MAX,
                "unlimited ones cannot be replaced"
            );
        }
        let single = ask(client, vec![descriptor(&[("user", "r")])]).await;
        assert_eq!(
            statuses(&single),
            [(Code::Ok, 2, "per-user")],
            "a replaced limit is not counted"
        );
    })
    .await;
}

#[tokio::test]
async fn a_request_may_bring_its_own_limit() {
    each_store(async |client| {
        for (unit, multiplier) in [
            (1, None),
            (2, Some(5)),
            (3, None),
            (4, None),
            (5, None),
            (6, Some(2)),
            (7, None),
        ] {
            let limit = RateLimitOverride {
                requests_per_unit: 9,
                unit,
                unit_multiplier: multiplier,
            };
            let own = RateLimitDescriptor {
                limit: Some(limit),
                ..descriptor(&[("own", "x")])
            };
            let response = ask(client, vec![own]).await;
            let shown = response.statuses[0]
                .current_limit
                .as_ref()
                .expect("a limit");
            assert_eq!(
                (shown.requests_per_unit, shown.unit, shown.unit_multiplier),
                (9, unit, multiplier)
            );
            assert_eq!(
                response.statuses[0].limit_remaining, 8,
                "each unit has its own counter"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn values_of_any_length_and_any_bytes_are_limited() {
    each_store(async |client| {
        let long = "x".repeat(1 << 20);
        let last_differs = format!("{}y", "x".repeat((1 << 20) - 1));
        let not_utf8: &[u8] = b"\xff\xfe\x00 user";
        for value in [
            long.as_bytes(),
            last_differs.as_bytes(),
            not_utf8,
            b"",
            b"}{|=~#%",
            "\u{1f980}".as_bytes(),
        ] {
            for code in [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit] {
                let mut user = descriptor(&[("user", "")]);
                user.entries[0].value = value.to_vec();
                assert_eq!(
                    ask(client, vec![user]).await.overall_code(),
                    code,
                    "{} bytes",
                    value.len()
                );
            }
        }
        let hundred: Vec<_> = (0..100)
            .map(|number| descriptor(&[("user", &format!("of-100-{number}"))]))
            .collect();
        let response = ask(client, hundred).await;
        assert_eq!(
            response
                .statuses
                .iter()
                .filter(|status| status.limit_remaining == 2)
                .count(),
            100
        );
        // The same key twice in one request: the second sees the first.
        let response = ask(client, vec![descriptor(&[("user", "twice")]); 4]).await;
        assert_eq!(
            response
                .statuses
                .iter()
                .map(|status| status.limit_remaining)
                .collect::<Vec<_>>(),
            [2, 1, 0, 0]
        );
        assert_eq!(response.overall_code(), Code::OverLimit);
    })
    .await;
}

#[tokio::test]
async fn an_invalid_request_is_refused_with_a_reason() {
    let weir = Weir::start(LIMITS, &[]);
    let client = &mut weir.client().await;
    let own = |unit| {
        let limit = RateLimitOverride {
            requests_per_unit: 1,
            unit,
            unit_multiplier: None,
        };
        vec![RateLimitDescriptor {
            limit: Some(limit),
            ..descriptor(&[("own", "x")])
        }]
    };
    for (request, message) in [
        (
            request("", vec![descriptor(&[("user", "a")])]),
            "domain must not be empty",
        ),
        (request("shop", vec![]), "descriptor list must not be empty"),
        (
            request("shop", own(0)),
            "descriptors[0].limit.unit: 0 is not a unit",
        ),
        (
            request("shop", own(1_000)),
            "descriptors[0].limit.unit: 1000 is not a unit",
        ),
        (
            request("shop", vec![descriptor(&[("user", "a")]); 257]),
            "descriptors: 256 at most",
        ),
    ] {
        let status = refusal(client, request).await;
        assert_eq!(status.code(), GrpcCode::InvalidArgument);
        assert!(status.message().contains(message), "{}", status.message());
    }
    // A domain of another wire type is an unknown field.
    let status = support::raw_call(&weir, b"\x08\x01")
        .await
        .expect_err("a refusal");
    assert_eq!(
        (status.code(), status.message()),
        (
            GrpcCode::InvalidArgument,
            "rate limit domain must not be empty"
        )
    );
    for garbage in [
        &b"\x0a"[..],
        b"\x12\x05ab",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x07",
    ] {
        let status = support::raw_call(&weir, garbage)
            .await
            .expect_err("a refusal");
        assert_eq!(status.code(), GrpcCode::InvalidArgument, "{garbage:?}");
        assert!(
            status.message().starts_with("malformed RateLimitRequest: "),
            "{}",
            status.message()
        );
    }
    assert_eq!(
        ask(client, vec![descriptor(&[("user", "still")])])
            .await
            .overall_code(),
        Code::Ok,
        "the service goes on"
    );
}

#[tokio::test]
async fn an_unknown_domain_is_not_limited_and_is_counted() {
    let weir = Weir::start(LIMITS, &[]);
    let client = &mut weir.client().await;
    let response = client
        .should_rate_limit(request("shpo", vec![descriptor(&[("user", "a")]); 2]))
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(
        statuses(&response),
        [(Code::Ok, 0, "-"), (Code::Ok, 0, "-")]
    );
    assert_eq!(
        weir.metric("weir_domain_not_found_total{domain=\"shpo\"}"),
        Some(1.0)
    );
}

#[tokio::test]
async fn headers_and_metadata_come_when_asked_for() {
    let weir = Weir::start(
        support::METADATA,
        &[
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            ("RESPONSE_DYNAMIC_METADATA", "true"),
        ],
    );
    let client = &mut weir.client().await;
    let two = vec![
        descriptor(&[("wide", "x")]),
        RateLimitDescriptor {
            hits_addend: Some(2),
            ..descriptor(&[("narrow", "x")])
        },
    ];
    let response = client
        .should_rate_limit(request("meta", two.clone()))
        .await
        .expect("an answer")
        .into_inner();
    let headers: Vec<_> = response
        .response_headers_to_add
        .iter()
        .map(|header| (&header.key[..], &header.value[..]))
        .collect();
    assert_eq!(
        headers[..2],
        [("RateLimit-Limit", "3"), ("RateLimit-Remaining", "1")]
    );
    assert_eq!(headers[2].0, "RateLimit-Reset");
    assert!(headers[2].1.parse::<u64>().expect("seconds") > 0);

    let shown = support::json(response.dynamic_metadata.as_ref().expect("metadata"));
    let expected = serde_json::json!({
        "domain": "meta",
        "descriptors": [{"entries": ["wide=x"]}, {"entries": ["narrow=x"], "hitsAddend": 2.0}],
        "metadata": {"team": "first", "tags": {"a": 1.0, "b": [true, null, "x"]}},
    });
    assert_eq!(shown, expected);

    let response = client
        .should_rate_limit(request("meta", two))
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(
        response.response_headers_to_add[1].value, "0",
        "of the limit that refuses"
    );
    let shown = support::json(response.dynamic_metadata.as_ref().expect("metadata"));
    assert_eq!(
        shown["metadata"],
        serde_json::json!({"team": "first", "tags": {"a": 1.0}}),
        "only of the limits that allowed the request"
    );
}

#[tokio::test]
async fn shadow_mode_and_quota_mode_apply_to_the_whole_process() {
    let weir = Weir::start(LIMITS, &[("SHADOW_MODE", "true")]);
    let response = ask(&mut weir.client().await, vec![descriptor(&[("none", "")])]).await;
    assert_eq!(
        (response.overall_code(), response.statuses[0].code()),
        (Code::Ok, Code::OverLimit)
    );
    assert_eq!(
        weir.metric("ratelimit_service_global_shadow_mode"),
        Some(1.0)
    );

    let weir = Weir::start(LIMITS, &[("QUOTA_MODE", "true")]);
    let client = &mut weir.client().await;
    let none = || descriptor(&[("none", "")]);
    assert_eq!(
        ask(client, vec![none(), descriptor(&[("unknown", "key")])])
            .await
            .overall_code(),
        Code::Ok
    );
    assert_eq!(
        ask(client, vec![none()]).await.overall_code(),
        Code::OverLimit
    );
}

/// Refused hits count, as in a fixed window by default, and not in a token bucket.
#[tokio::test]
async fn a_limit_in_the_request_is_a_fixed_window_whatever_the_defaults_are() {
    let file = "domain: d\ndefaults: { algorithm: token_bucket }\ndescriptors:\n- key: a\n  \
        rate_limit: { unit: year, requests_per_unit: 2 }\n";
    let weir = Weir::start(&[("a.yaml", file)], &[]);
    let client = &mut weir.client().await;
    for (own, after) in [(false, Code::Ok), (true, Code::OverLimit)] {
        let mut codes = Vec::new();
        for hits in [3, 1] {
            let limit = RateLimitOverride {
                requests_per_unit: 2,
                unit: Unit::Year.number(),
                unit_multiplier: None,
            };
            let asked = RateLimitDescriptor {
                limit: own.then_some(limit),
                ..descriptor_with_hits(&[("a", "x")], hits)
            };
            codes.push(
                client
                    .should_rate_limit(request("d", vec![asked]))
                    .await
                    .expect("an answer")
                    .into_inner()
                    .overall_code(),
            );
        }
        assert_eq!(
            codes,
            [Code::OverLimit, after],
            "with a limit of its own: {own}"
        );
    }
}
