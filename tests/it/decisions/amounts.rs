//! Amounts beyond 32 bits, units of several hits (`scale`), and costs (`default_cost`, `max_debt`),
//! through real sockets with both stores.

use prost_types::Struct;
use weir::core::proto::rate_limit_descriptor::RateLimitOverride;
use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use weir::core::time::Unit;

use crate::support::{Client, RedisServer, Weir, descriptor, descriptor_with_hits, json, request};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: d
descriptors:
  - key: large
    rate_limit: { unit: year, requests_per_unit: 10000000000 }
  - key: largest
    rate_limit: { unit: year, requests_per_unit: 9007199254740991 }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 5000000000, algorithm: token_bucket, burst: 20000000000 }
  - key: dollars
    rate_limit: { unit: year, requests_per_unit: 20000, scale: 1000000, name: budget }
  - key: cost
    rate_limit: { unit: year, requests_per_unit: 100, default_cost: 30 }
  - key: debt
    rate_limit: { unit: year, requests_per_unit: 100, algorithm: token_bucket, count_denied: true, max_debt: 3 }
",
)];

async fn each_store(test: impl AsyncFn(&mut Client, &Weir)) {
    let settings = [
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("RESPONSE_DYNAMIC_METADATA", "true"),
    ];
    let weir = Weir::start(LIMITS, &settings);
    test(&mut weir.client().await, &weir).await;
    let redis = RedisServer::start();
    let url = redis.url();
    let settings = [
        &settings[..],
        &[("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")],
    ]
    .concat();
    let weir = Weir::start(LIMITS, &settings);
    test(&mut weir.client().await, &weir).await;
    redis.assert_every_key_expires();
}

async fn ask(client: &mut Client, descriptor: RateLimitDescriptor) -> RateLimitResponse {
    client
        .should_rate_limit(request("d", vec![descriptor]))
        .await
        .expect("an answer")
        .into_inner()
}

/// The code; the limit and what remains in the status; and both in the headers.
fn answer(response: &RateLimitResponse) -> (Code, [u32; 2], [&str; 2]) {
    let status = &response.statuses[0];
    let header = |index: usize| &*response.response_headers_to_add[index].value;
    let limit = status
        .current_limit
        .as_ref()
        .expect("a limit")
        .requests_per_unit;
    (
        response.overall_code(),
        [limit, status.limit_remaining],
        [header(0), header(1)],
    )
}

/// The numbers that do not fit into the statuses.
fn beyond(response: &RateLimitResponse) -> serde_json::Value {
    json(
        response
            .dynamic_metadata
            .as_ref()
            .unwrap_or(&Struct::default()),
    )["limits"]
        .clone()
}

#[tokio::test]
async fn amounts_beyond_32_bits_are_exact_and_whole_in_headers_and_metadata() {
    const MOST: u32 = u32::MAX;
    each_store(async |client, _| {
        let of = |key: &str, hits: i64| descriptor_with_hits(&[(key, "a")], hits);
        let response = ask(client, of("large", 1)).await;
        assert_eq!(answer(&response), (Code::Ok, [MOST, MOST], ["10000000000", "9999999999"]));
        let whole = serde_json::json!([{ "descriptor": 0.0, "requestsPerUnit": 1e10, "limitRemaining": 9_999_999_999.0 }]);
        assert_eq!(beyond(&response), whole);
        let response = ask(client, of("large", 9_999_999_998)).await;
        assert_eq!(answer(&response), (Code::Ok, [MOST, 1], ["10000000000", "1"]));
        assert_eq!(ask(client, of("large", 1)).await.overall_code(), Code::Ok);
        assert_eq!(answer(&ask(client, of("large", 1)).await), (Code::OverLimit, [MOST, 0], ["10000000000", "0"]));

        for (hits, code, left) in [
            ((1 << 53) - 2, Code::Ok, "1"),
            (1, Code::Ok, "0"),
            (1, Code::OverLimit, "0"),
            (-2, Code::Ok, "1"),
            (i64::MAX, Code::OverLimit, "0"),
        ] {
            let response = ask(client, of("largest", hits)).await;
            assert_eq!((response.overall_code(), answer(&response).2), (code, ["9007199254740991", left]), "{hits}");
        }

        let response = ask(client, of("bucket", 19_000_000_000)).await;
        assert_eq!(answer(&response).2, ["20000000000", "1000000000"]);
        assert_eq!(beyond(&response)[0]["limitRemaining"], 1e9, "one number of the two is too \
            large");
        assert_eq!(ask(client, of("bucket", 1_100_000_000)).await.overall_code(), Code::OverLimit);
    })
    .await;
}

#[tokio::test]
async fn a_scaled_limit_is_counted_in_hits_and_shown_in_units() {
    each_store(async |client, _| {
        let of = |hits: i64| descriptor_with_hits(&[("dollars", "a")], hits);
        let response = ask(client, of(1)).await;
        assert_eq!(
            answer(&response),
            (Code::Ok, [20_000, 19_999], ["20000", "19999"]),
            "what remains is rounded down"
        );
        assert!(beyond(&response).is_null(), "all numbers fit");
        assert_eq!(answer(&ask(client, of(999_999)).await).1, [20_000, 19_999]);
        assert_eq!(
            answer(&ask(client, of(19_998_500_000)).await),
            (Code::Ok, [20_000, 0], ["20000", "0"]),
            "half a unit is none"
        );
        assert_eq!(
            ask(client, of(500_001)).await.overall_code(),
            Code::OverLimit
        );

        // A limit of the request takes the scale of the limit that it replaces.
        let own = |key: &str, hits| {
            let limit = RateLimitOverride {
                requests_per_unit: 2,
                unit: Unit::Year.number(),
                unit_multiplier: None,
            };
            RateLimitDescriptor {
                limit: Some(limit),
                ..descriptor_with_hits(&[(key, "b")], hits)
            }
        };
        assert_eq!(
            answer(&ask(client, own("dollars", 1_500_000)).await),
            (Code::Ok, [2, 0], ["2", "0"])
        );
        assert_eq!(
            ask(client, own("dollars", 500_000)).await.overall_code(),
            Code::Ok
        );
        assert_eq!(
            ask(client, own("dollars", 1)).await.overall_code(),
            Code::OverLimit
        );
        assert_eq!(
            ask(client, own("other", 3)).await.overall_code(),
            Code::OverLimit
        );
    })
    .await;
}

#[tokio::test]
async fn a_request_that_names_no_hits_is_charged_the_default_cost() {
    each_store(async |client, weir| {
        let cost = |hits_addend| RateLimitDescriptor {
            hits_addend,
            ..descriptor(&[("cost", "a")])
        };
        let left = async |client: &mut Client, request| {
            client
                .should_rate_limit(request)
                .await
                .expect("an answer")
                .into_inner()
                .statuses[0]
                .limit_remaining
        };
        assert_eq!(left(client, request("d", vec![cost(None)])).await, 70);
        assert_eq!(
            left(client, request("d", vec![cost(Some(5))])).await,
            65,
            "it names its own"
        );
        assert_eq!(
            left(client, request("d", vec![cost(Some(0))])).await,
            65,
            "a look"
        );
        let of_request = RateLimitRequest {
            hits_addend: 7,
            ..request("d", vec![cost(None)])
        };
        assert_eq!(left(client, of_request).await, 58, "the request names them");
        let back = RateLimitDescriptor {
            is_negative_hits: true,
            ..cost(None)
        };
        assert_eq!(
            left(client, request("d", vec![back])).await,
            88,
            "what was charged is given back"
        );
        assert_eq!(
            left(client, request("d", vec![descriptor(&[("debt", "a")])])).await,
            99,
            "no other limit has a default cost"
        );
        assert_eq!(weir.metric("weir_default_costs_total"), Some(2.0));
    })
    .await;
}

#[tokio::test]
async fn a_cost_that_is_known_afterwards_takes_a_key_as_far_below_zero_as_its_limit_says() {
    const YEAR: i64 = 365 * 86_400;
    each_store(async |client, _| {
        let of = |hits: i64| descriptor_with_hits(&[("debt", "b")], hits);
        let reset = |response: &RateLimitResponse| {
            response.statuses[0]
                .duration_until_reset
                .as_ref()
                .expect("a reset")
                .seconds
        };
        assert_eq!(ask(client, of(100)).await.overall_code(), Code::Ok);
        assert_eq!(
            ask(client, of(10_000)).await.overall_code(),
            Code::OverLimit
        );
        let look = ask(client, of(0)).await;
        assert_eq!(look.overall_code(), Code::OverLimit, "in debt");
        assert!(
            (2 * YEAR..=3 * YEAR).contains(&reset(&look)),
            "three full limits: {}",
            reset(&look)
        );
    })
    .await;
}
