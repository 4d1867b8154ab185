//! The trees that Envoy Gateway sends, asked as its Envoys ask.
//!
//! Source of the trees: envoyproxy/gateway, internal/xds/translator/ratelimit.go (August 2026).

use weir::core::proto::RateLimitRequest;
use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::xds::RateLimitDescriptor;

use super::{config, leaf, node, start, yearly};
use crate::support::control_plane::ControlPlane;
use crate::support::{Client, descriptor, request};

/// The overall code of a request whose descriptors have these entries.
async fn code(client: &mut Client, domain: &str, descriptors: &[&[(&str, &str)]]) -> Code {
    let descriptors = descriptors
        .iter()
        .map(|entries| descriptor(entries))
        .collect();
    call(client, request(domain, descriptors)).await
}

async fn call(client: &mut Client, request: RateLimitRequest) -> Code {
    client
        .should_rate_limit(request)
        .await
        .expect("an answer")
        .into_inner()
        .overall_code()
}

/// The node of a match whose value is its own name.
fn named(name: &str, below: Vec<RateLimitDescriptor>) -> RateLimitDescriptor {
    node(name, name, below)
}

const LISTENER: &str = "default/eg/http";
const ROUTE: &str = "httproute/default/shop/rule/0/match/0/www_example_com";

/// What Envoy Gateway sends for the rules of a route.
fn rules_of_a_route() -> Vec<RateLimitDescriptor> {
    let limit = |key: &str, value: &str, amount| leaf(key, value, yearly(amount));
    vec![
        // Rule 0: one header with a value.
        limit("rule-0-match-0", "rule-0-match-0", 2),
        // Rule 1: each value of a header for itself (Distinct), with a method and a path.
        node(
            "rule-1-match-0",
            "",
            vec![named(
                "rule-1-method",
                vec![limit("rule-1-path", "rule-1-path", 1)],
            )],
        ),
        // Rule 2: a network; rule 3: each address of a network; rule 4: all but a network.
        limit("masked_remote_address", "10.0.0.0/8", 3),
        node(
            "masked_remote_address",
            "192.168.0.0/16",
            vec![limit("remote_address", "", 1)],
        ),
        limit("masked_remote_address", "invert:172.16.0.0/12", 1),
        // Rule 5: everything.
        limit("rule-5-match--1", "rule-5-match--1", 4),
        // Rule 6: shadow mode, on each node of its chain.
        RateLimitDescriptor {
            shadow_mode: true,
            descriptors: vec![RateLimitDescriptor {
                shadow_mode: true,
                ..limit("rule-6-match-1", "rule-6-match-1", 1)
            }],
            ..node("rule-6-match-0", "rule-6-match-0", Vec::new())
        },
        // Rule 7 refuses all.
        limit("rule-7-match-0", "rule-7-match-0", 0),
    ]
}

/// A request that several rules match has a descriptor for each; the policy that routes share is a
/// domain of its own.
async fn assert_several_descriptors_are_limited(client: &mut Client) {
    let both: [&[(&str, &str)]; 2] = [
        &[(ROUTE, ROUTE), ("rule-0-match-0", "rule-0-match-0")],
        &[(ROUTE, ROUTE), ("unknown", "unknown")],
    ];
    assert_eq!(code(client, LISTENER, &both).await, Code::OverLimit);
    let shared: [&[(&str, &str)]; 1] = [&[
        ("default/policy/rule/0", "default/policy/rule/0"),
        ("rule-0-match--1", "rule-0-match--1"),
    ]];
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(code(client, "default/policy", &shared).await, expected);
    }
}

#[tokio::test]
async fn the_trees_of_envoy_gateway_limit_what_their_rules_say() {
    let rules = rules_of_a_route();
    let limit = leaf("rule-0-match--1", "rule-0-match--1", yearly(2));
    let shared = named("default/policy/rule/0", vec![limit]);
    let control = ControlPlane::start();
    control.set(
        "1",
        [
            config(LISTENER, vec![named(ROUTE, rules)]),
            config("default/policy", vec![shared]),
        ],
    );
    let weir = start(&control.url(), &[]);
    let client = &mut weir.client().await;
    control.wait_for_ack("1").await;

    let first = (ROUTE, ROUTE);
    let mut expect = async |entries: &[(&str, &str)], codes: &[Code]| {
        for (number, expected) in codes.iter().enumerate() {
            let entries = [&[first], entries].concat();
            assert_eq!(
                code(client, LISTENER, &[&entries]).await,
                *expected,
                "{entries:?}, request {}",
                number + 1
            );
        }
    };
    let (ok, over) = (Code::Ok, Code::OverLimit);
    expect(&[("rule-0-match-0", "rule-0-match-0")], &[ok, ok, over]).await;
    for user in ["alice", "bob"] {
        let chain = [
            ("rule-1-match-0", user),
            ("rule-1-method", "rule-1-method"),
            ("rule-1-path", "rule-1-path"),
        ];
        expect(&chain, &[ok, over]).await;
        expect(&chain[..2], &[ok, ok]).await;
    }
    for (entry, codes) in [
        ("10.0.0.0/8", &[ok, ok, ok, over][..]),
        ("invert:172.16.0.0/12", &[ok, over]),
        ("172.16.0.0/12", &[ok, ok]),
    ] {
        expect(&[("masked_remote_address", entry)], codes).await;
    }
    for address in ["192.168.0.1", "192.168.0.2"] {
        let chain = [
            ("masked_remote_address", "192.168.0.0/16"),
            ("remote_address", address),
        ];
        expect(&chain, &[ok, over]).await;
    }
    let everything = [("rule-5-match--1", "rule-5-match--1")];
    expect(&everything, &[ok, ok, ok, ok, over]).await;
    let shadow = [
        ("rule-6-match-0", "rule-6-match-0"),
        ("rule-6-match-1", "rule-6-match-1"),
    ];
    expect(&shadow, &[ok, ok, ok]).await;
    expect(&[("rule-7-match-0", "rule-7-match-0")], &[over]).await;
    assert_several_descriptors_are_limited(client).await;
    let series = format!(
        "ratelimit_service_rate_limit_shadow_mode{{domain=\"{LISTENER}\",\
         key1=\"{ROUTE}_{ROUTE}\",\
         key2=\"rule-6-match-0_rule-6-match-0.rule-6-match-1_rule-6-match-1\"}}"
    );
    assert_eq!(weir.metric(&series), Some(2.0));
}

/// Two rules with the same network, of which one is Distinct, meet in one node: envoyproxy/gateway
/// issue 2225.
#[tokio::test]
async fn nodes_that_meet_are_merged_and_do_not_refuse_the_domain() {
    let network = "10.0.0.0/8";
    let rules = vec![
        leaf("masked_remote_address", network, yearly(2)),
        node(
            "masked_remote_address",
            network,
            vec![leaf("remote_address", "", yearly(1))],
        ),
        leaf("masked_remote_address", network, yearly(9)),
    ];
    let control = ControlPlane::start();
    control.set("1", [config(LISTENER, vec![named(ROUTE, rules)])]);
    let weir = start(&control.url(), &[]);
    let client = &mut weir.client().await;
    control.wait_for_ack("1").await;
    let base = [(ROUTE, ROUTE), ("masked_remote_address", network)];
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(
            code(client, LISTENER, &[&base]).await,
            expected,
            "the first of the two limits holds"
        );
    }
    let address = [&base[..], &[("remote_address", "10.0.0.1")]].concat();
    for expected in [Code::Ok, Code::OverLimit] {
        assert_eq!(code(client, LISTENER, &[&address]).await, expected);
    }
    weir.wait_for_log("masked_remote_address").await;
}
