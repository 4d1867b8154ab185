//! Limits from a control plane: the real binary, a control plane with the traits of those in use,
//! and real requests.

mod cache;
mod connection;
mod gateways;
mod load;
mod memory;
mod overlay;
mod refusals;

pub(crate) use connection::server_config;

use std::time::{Duration, Instant};

use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::xds::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};

use crate::support::control_plane::{ControlPlane, NODE, Sent};
use crate::support::{Client, Weir, ask, descriptor, request};

/// A limit per year, so that no window ends while a test runs.
pub(crate) fn yearly(requests_per_unit: u32) -> RateLimitPolicy {
    RateLimitPolicy {
        unit: RateLimitUnit::Year.into(),
        requests_per_unit,
        ..Default::default()
    }
}

/// A node with a limit.
pub(crate) fn leaf(key: &str, value: &str, policy: RateLimitPolicy) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        rate_limit: Some(policy),
        ..Default::default()
    }
}

/// A node with others below it.
pub(crate) fn node(
    key: &str,
    value: &str,
    descriptors: Vec<RateLimitDescriptor>,
) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        descriptors,
        ..Default::default()
    }
}

/// The limits of a domain, as both gateways name them.
pub(crate) fn config(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig {
        name: domain.to_owned(),
        domain: domain.to_owned(),
        descriptors,
    }
}

/// A domain in which each `user` has this limit.
pub(crate) fn users(domain: &str, requests_per_unit: u32) -> RateLimitConfig {
    config(domain, vec![leaf("user", "", yearly(requests_per_unit))])
}

/// A resource whose limit has no unit, which refuses it.
pub(crate) fn without_unit(domain: &str) -> RateLimitConfig {
    let policy = RateLimitPolicy {
        requests_per_unit: 1,
        ..Default::default()
    };
    config(
        domain,
        vec![node("route", "r", vec![leaf("user", "", policy)])],
    )
}

/// The name of a route, as Envoy Gateway names it.
pub(crate) fn named_route(number: usize) -> String {
    format!("httproute/default/route-{number}/rule/0/match/0/www_example_com")
}

/// Starts a service that takes its limits from there.
pub(crate) fn start(url: &str, more: &[(&str, &str)]) -> Weir {
    let base = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", url),
        ("CONFIG_GRPC_XDS_NODE_ID", NODE),
        ("RUNTIME_ROOT", "/none"),
    ];
    let base = base
        .into_iter()
        .filter(|(name, _)| more.iter().all(|(other, _)| other != name));
    Weir::start(&[], &base.chain(more.iter().copied()).collect::<Vec<_>>())
}

/// Starts a service with this environment.
pub(crate) fn start_with(environment: &[(&str, &str)]) -> Weir {
    Weir::start(&[], environment)
}

/// The limit of a user of the domain that is in force, read by a look, which counts nothing; 0
/// without a limit, and `None` without limits at all.
pub(crate) async fn amount(client: &mut Client, domain: &str) -> Option<u32> {
    let peek = crate::support::descriptor_with_hits(&[("user", "looker")], 0);
    let answer = client
        .should_rate_limit(request(domain, vec![peek]))
        .await
        .ok()?
        .into_inner();
    Some(
        answer.statuses[0]
            .current_limit
            .as_ref()
            .map_or(0, |limit| limit.requests_per_unit),
    )
}

pub(crate) async fn wait_for_amount(client: &mut Client, domain: &str, expected: u32) {
    let begin = Instant::now();
    let mut found = None;
    while begin.elapsed() < crate::support::wait::TIMEOUT {
        found = amount(client, domain).await;
        if found == Some(expected) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the limit of {domain} did not become {expected}: {found:?}");
}

/// Asks for one hit, and returns whether it is allowed.
pub(crate) async fn hit(client: &mut Client, domain: &str, entries: &[(&str, &str)]) -> bool {
    let answer = ask(client, domain, vec![descriptor(entries)]).await;
    answer.overall_code() == Code::Ok
}

#[tokio::test]
async fn limits_are_those_of_the_control_plane_and_follow_its_changes() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 2), users("b", 5)]);
    let more = [
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=x"),
        (
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            "x-token:secret",
        ),
    ];
    let weir = start(&control.url(), &more);
    let client = &mut weir.client().await;
    wait_for_amount(client, "a", 2).await;
    for expected in [true, true, false] {
        assert_eq!(hit(client, "a", &[("user", "u")]).await, expected);
    }

    let ack = control.wait_for_ack("1").await;
    let first = &control.requests()[0];
    assert_eq!(
        (first.version.as_str(), first.nonce.as_str(), first.stream),
        ("", "", 0),
        "the first request of a stream knows nothing"
    );
    assert_eq!((ack.nonce.as_str(), ack.node.id.as_str()), ("1", NODE));
    assert_eq!(
        ack.node
            .metadata
            .map(|metadata| crate::support::json(&metadata).to_string())
            .as_deref(),
        Some(r#"{"zone":"x"}"#)
    );
    assert_eq!(
        control.headers()[0].get("x-token").expect("a header"),
        "secret"
    );

    control.set("2", [users("a", 4)]);
    wait_for_amount(client, "a", 4).await;
    assert!(
        hit(client, "a", &[("user", "u")]).await,
        "the limit is higher, and three hits are counted"
    );
    assert!(!hit(client, "a", &[("user", "u")]).await);
    assert_eq!(
        amount(client, "b").await,
        Some(0),
        "a resource that is missing is gone"
    );
    control.wait_for_ack("2").await;
    assert_eq!(weir.metric("weir_xds_connected"), Some(1.0));
    assert_eq!(weir.metric("weir_xds_state{state=\"synced\"}"), Some(1.0));
    assert_eq!(
        weir.metric("weir_xds_accepted_info{version=\"2\"}"),
        Some(1.0)
    );
    assert_eq!(
        weir.metric("weir_xds_responses_total{result=\"accepted\"}"),
        Some(2.0)
    );
    assert_eq!(weir.metric("weir_config_domains"), Some(1.0));
    assert_eq!(control.ignored(), 0, "{:#?}", control.requests());
    assert!(
        weir.logs().iter().all(|line| !line.contains("secret")),
        "headers are secrets"
    );
}

#[tokio::test]
async fn changes_in_quick_succession_are_summed_up_in_the_next_line() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 2), users("b", 5)]);
    let weir = start(&control.url(), &[]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "a", 2).await;
    // Both come within ten seconds of the first line.
    control.set("2", [users("a", 3)]);
    wait_for_amount(client, "a", 3).await;
    control.set("3", [users("a", 4), users("c", 1)]);
    wait_for_amount(client, "a", 4).await;
    let line = weir.wait_for_log("\"loads\":2").await;
    for field in [
        "\"version\":\"3\"",
        "\"added\":1",
        "\"removed\":1",
        "\"changed\":1",
    ] {
        assert!(line.contains(field), "{field}: {line}");
    }
    for what in [
        "limits added: c.user",
        "limits removed: b.user",
        "limits changed: a.user",
    ] {
        weir.wait_for_log(what).await;
    }
}

#[tokio::test]
async fn an_empty_list_lifts_all_limits_with_one_warning() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 0)]);
    let weir = start(&control.url(), &[]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "a", 0).await;
    assert!(
        !hit(client, "a", &[("user", "u")]).await,
        "0 is a limit that refuses everything"
    );
    control.set::<Sent>("2", []);
    control.wait_for_ack("2").await;
    assert!(hit(client, "a", &[("user", "u")]).await);
    weir.wait_for_log("sent no limits").await;
    control.set::<Sent>("3", []);
    control.wait_for_ack("3").await;
    assert_eq!(weir.metric("weir_config_domains"), Some(0.0));
    assert_eq!(
        weir.logs()
            .iter()
            .filter(|line| line.contains("sent no limits"))
            .count(),
        1
    );
    control.set("4", [users("a", 7)]);
    wait_for_amount(client, "a", 7).await;
}

#[tokio::test]
async fn an_empty_list_is_a_first_configuration_too() {
    let control = ControlPlane::start();
    control.set::<Sent>("1", []);
    let weir = start(&control.url(), &[]);
    control.wait_for_ack("1").await;
    assert!(hit(&mut weir.client().await, "a", &[("user", "u")]).await);
}

#[tokio::test]
async fn wrapped_resources_and_a_response_of_several_megabytes_are_taken() {
    let control = ControlPlane::start();
    control.set(
        "1",
        [
            Sent::from(users("a", 2)).wrapped(),
            Sent::from(users("b", 3)),
        ],
    );
    let weir = start(&control.url(), &[]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "a", 2).await;
    assert_eq!(amount(client, "b").await, Some(3));

    // 5 MiB, which is more than gRPC takes by default.
    let long = "x".repeat(1 << 20);
    let many = (0..5).map(|number| {
        node(
            &format!("{long}{number}"),
            "",
            vec![leaf("k", "", yearly(1))],
        )
    });
    control.set("2", [config("large", many.collect()), users("a", 4)]);
    wait_for_amount(client, "a", 4).await;
    assert!(hit(client, "large", &[(&format!("{long}4"), ""), ("k", "")]).await);
    assert!(!hit(client, "large", &[(&format!("{long}4"), ""), ("k", "")]).await);
}
