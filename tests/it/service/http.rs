//! The HTTP listener of the real process, and gRPC reflection as grpcurl uses it.

mod slow_clients;

use crate::support::{self, Weir, ask, descriptor, http_client};

const BODY: &str =
    r#"{"domain": "demo", "descriptors": [{"entries": [{"key": "year", "value": "json"}]}]}"#;

fn post(weir: &Weir, path: &str, body: &str) -> http_client::Response {
    http_client::post(weir.http_addr(), path, body.as_bytes())
}

#[tokio::test]
async fn a_json_request_is_decided_like_a_grpc_request() {
    let weir = Weir::start(support::DEMO, &[]);
    for (status, code, left) in [
        (200, "OK", Some(1)),
        (200, "OK", None),
        (429, "OVER_LIMIT", None),
    ] {
        let response = post(&weir, "/json", BODY);
        assert_eq!(response.status, status, "{}", response.body);
        let answer: serde_json::Value = serde_json::from_str(&response.body).expect("JSON");
        assert_eq!(answer["overallCode"], code);
        assert_eq!(answer["statuses"][0]["currentLimit"]["unit"], "YEAR");
        assert_eq!(
            answer["statuses"][0]["limitRemaining"].as_u64(),
            left,
            "defaults are left out"
        );
        assert!(
            answer["statuses"][0]["durationUntilReset"]
                .as_str()
                .is_some_and(|reset| reset.ends_with('s'))
        );
    }
    // The same key as over gRPC.
    let response = ask(
        &mut weir.client().await,
        "demo",
        vec![descriptor(&[("year", "json")])],
    )
    .await;
    assert_eq!(response.statuses[0].limit_remaining, 0);
}

/// JSON passed the client certificates of the gRPC port.
#[tokio::test]
async fn json_is_turned_off() {
    let weir = Weir::start(support::DEMO, &[("HTTP_JSON", "off")]);
    let response = post(&weir, "/json", BODY);
    let is_named = response.body.contains("HTTP_JSON=off");
    assert!(response.status == 404 && is_named, "{}", response.body);
    assert_eq!(weir.get("/healthcheck").0, 200);
    let counted = weir.get("/metrics").1.contains("weir_requests_total");
    assert!(counted && weir.get("/json").0 == 405);
}

/// A form of another site can send JSON as text without asking, and would use up the limits of
/// others.
#[tokio::test]
async fn pages_of_other_sites_count_nothing() {
    let weir = Weir::start(support::DEMO, &[]);
    let status = |headers: &[(&str, &str)]| {
        http_client::call(weir.http_addr(), "POST", "/json", headers, BODY.as_bytes()).status
    };
    for foreign in [
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "same-site"),
    ] {
        assert_eq!(status(&[foreign]), 403, "{foreign:?}");
    }
    // Both hits of the limit are left.
    for _ in 0..2 {
        assert_eq!(status(&[("host", "ratelimit.example")]), 200);
    }
    assert_eq!(status(&[]), 429);
}

#[tokio::test]
async fn a_redis_outage_answers_503_and_not_400() {
    let redis = support::RedisServer::absent();
    let weir = Weir::start(support::DEMO, &[("REDIS_URL", &redis.url())]);
    assert_eq!(post(&weir, "/json", BODY).status, 503);
    assert_eq!(
        weir.get("/healthcheck").0,
        200,
        "a Redis outage does not change health"
    );
}

/// The first calls of grpcurl, without grpcurl: both versions of reflection list the services.
#[tokio::test]
async fn reflection_lists_the_services() {
    use tonic_reflection::pb::{v1, v1alpha};
    let weir = Weir::start(support::DEMO, &[]);
    let channel = weir.channel().await;

    let message = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(
            String::new(),
        )),
    };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let mut answers = client
        .server_reflection_info(only(message))
        .await
        .expect("reflection")
        .into_inner();
    let answer = answers.message().await.expect("an answer").expect("one");
    for package in [
        "envoy.service.ratelimit.v3",
        "kuadrant.service.ratelimit.v1",
    ] {
        assert!(format!("{answer:?}").contains(&format!("{package}.RateLimitService")));
    }

    let message = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
                "envoy.service.ratelimit.v3.RateLimitRequest".to_owned(),
            ),
        ),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let mut answers = client
        .server_reflection_info(only(message))
        .await
        .expect("reflection")
        .into_inner();
    let answer = answers.message().await.expect("an answer").expect("one");
    assert!(format!("{answer:?}").contains("FileDescriptorResponse"));
}

fn only<T>(item: T) -> impl futures_util::Stream<Item = T> {
    futures_util::stream::once(std::future::ready(item))
}
