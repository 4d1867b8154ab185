//! `deploy/istio`: the patches of each filter, applied as Istio would, to a proxy whose cluster has
//! the name that Istio gives it.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{at, documents_in, examples, items, text};
use crate::support::envoy::{Envoy, validate, with};
use crate::support::http_client::get;
use crate::support::{Weir, ports, tools, wait};

/// A proxy without limits, in front of an application, that knows a Weir.
pub(super) fn gateway(weir: &Weir) -> Value {
    let template = include_str!("gateway.yaml")
        .replace("APPLICATION_PORT", &ports::free().port().to_string())
        .replace("WEIR_PORT", &weir.grpc_addr().port().to_string());
    documents_in(&template).remove(0)
}

/// The value at a JSON pointer, to be changed.
pub(super) fn at_mut<'a>(value: &'a mut Value, pointer: &str) -> &'a mut Value {
    value
        .pointer_mut(pointer)
        .unwrap_or_else(|| panic!("no {pointer}"))
}

/// The items of a list, to be changed.
pub(super) fn list<'a>(value: &'a mut Value, pointer: &str) -> &'a mut Vec<Value> {
    at_mut(value, pointer).as_array_mut().expect("a list")
}

const CHAIN: &str = "/static_resources/listeners/0/filter_chains/0";
const HOSTS: &str = "/filters/0/typed_config/route_config/virtual_hosts";

/// Applies the patches of a filter to a proxy, as Istio does: those of the context, to what they
/// match.
pub(super) fn patch(proxy: &mut Value, context: &str, filter: &str) {
    let filter = documents_in(filter).remove(0);
    let labels = at(&filter, "/spec/workloadSelector/labels").as_object();
    let is_narrow = labels.is_some_and(|labels| !labels.is_empty());
    assert!(is_narrow, "it would change every workload of the namespace");
    for patch in items(&filter, "/spec/configPatches") {
        assert_eq!(text(patch, "/match/context"), context);
        let value = at(patch, "/patch/value");
        let before = "/match/listener/filterChain/filter";
        let chain = at_mut(proxy, CHAIN);
        match (text(patch, "/applyTo"), text(patch, "/patch/operation")) {
            ("HTTP_FILTER", "INSERT_BEFORE") => {
                assert_eq!(at(patch, before)["name"], chain["filters"][0]["name"]);
                let filters = list(chain, "/filters/0/typed_config/http_filters");
                insert_before(
                    filters,
                    text(patch, &format!("{before}/subFilter/name")),
                    value,
                );
            }
            ("NETWORK_FILTER", "INSERT_BEFORE") => {
                let name = text(patch, &format!("{before}/name"));
                insert_before(list(chain, "/filters"), name, value);
            }
            ("VIRTUAL_HOST", "MERGE") => {
                for host in list(chain, HOSTS) {
                    merge(host, value);
                }
            }
            ("HTTP_ROUTE", "MERGE") => {
                let name = patch.pointer("/match/routeConfiguration/vhost/route/name");
                for route in list(chain, HOSTS)
                    .iter_mut()
                    .flat_map(|host| list(host, "/routes"))
                {
                    if name.is_none_or(|name| route["name"] == *name) {
                        merge(route, value);
                    }
                }
            }
            other => panic!("{other:?} is a patch that this test cannot apply"),
        }
    }
}

/// Merges as messages of protobuf are merged: fields of messages one by one, and lists are
/// appended.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, value) in patch {
                merge(target.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(target), Value::Array(patch)) => target.extend(patch.iter().cloned()),
        (target, patch) => *target = patch.clone(),
    }
}

pub(super) fn insert_before(filters: &mut Vec<Value>, name: &str, filter: &Value) {
    let position = filters.iter().position(|filter| filter["name"] == name);
    let position = position.unwrap_or_else(|| panic!("no filter {name}"));
    filters.insert(position, filter.clone());
}

/// A Weir with the limits of `deploy/kubernetes`, and a proxy with the patches of a file. `edit`
/// may change the proxy first.
fn proxy(context: &str, filter: &str, edit: impl FnOnce(&mut Value)) -> (Weir, Envoy, SocketAddr) {
    let limits = tools::file("deploy/kubernetes/limits/ratelimit.yaml");
    let weir = Weir::start(&[("ratelimit.yaml", &limits)], &[]);
    let mut proxy = gateway(&weir);
    edit(&mut proxy);
    // Long enough for a busy machine.
    patch(
        &mut proxy,
        context,
        &with(filter, "timeout: 0.1s", "timeout: 10s"),
    );
    validate(&proxy.to_string());
    let envoy = Envoy::start(&proxy.to_string());
    let front = envoy.listener("front");
    wait::away_from_the_end_of_a_minute();
    (weir, envoy, front)
}

fn file(name: &str) -> String {
    tools::file(&format!("deploy/istio/{name}.yaml"))
}

/// The cluster that Istio makes of the port of a Service, and the authority.
#[test]
fn the_cluster_is_the_service() {
    let service = tools::file("deploy/kubernetes/base/service.yaml");
    assert!(
        service.contains("  name: ratelimit\n") && service.contains("{ name: grpc, port: 8081, ")
    );
    let host = "ratelimit.default.svc.cluster.local";
    for name in ["envoyfilter", "sidecar", "tcp", "route"] {
        let filter = documents_in(&file(name)).remove(0);
        let service = "/spec/configPatches/0/patch/value/typed_config/rate_limit_service";
        let asked = at(&filter, service)["grpc_service"]["envoy_grpc"].clone();
        let expected =
            json!({ "cluster_name": format!("outbound|8081||{host}"), "authority": host });
        assert_eq!(asked, expected, "{name}");
    }
}

/// Six requests to /login from one address, of which five are allowed, and its neighbours.
fn assert_logins_are_limited(front: SocketAddr) {
    let paths = [
        "/login",
        "/login?x=1",
        "/login?x=2",
        "/login",
        "/login",
        "/login",
        "/login?x=3",
        "/loginx",
        "/",
    ];
    let statuses = paths.map(|path| get(front, path).status);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 200, 200]);
}

fn limit_of(front: SocketAddr, path: &str) -> String {
    get(front, path)
        .header("x-ratelimit-limit")
        .unwrap_or_default()
        .to_owned()
}

/// Envoy sends the cluster's name as `:authority` unless the filter has another, and Weir accepts
/// it.
#[test]
fn the_gateway_enforces_limits_with_and_without_the_authority() {
    let own = file("envoyfilter");
    let without = with(&own, "authority: ratelimit.default.svc.cluster.local", "");
    for (filter, rewritten) in [(own, 0.0), (without, 1.0)] {
        let (weir, envoy, front) = proxy("GATEWAY", &filter, |_| {});
        assert_logins_are_limited(front);
        let limit = limit_of(front, "/");
        assert!(limit.starts_with("100, 100;w=60"), "{limit}");
        assert_eq!(envoy.stat("cluster.application.ratelimit.error"), 0);
        assert_eq!(
            weir.metric("weir_connections_rewritten_total"),
            Some(rewritten)
        );
    }
}

/// A cluster for each of both services; a second Weir is envoyproxy/ratelimit.
#[test]
fn a_canary_of_the_gateway_counts_and_does_not_refuse() {
    let limits = |requests: u32| {
        format!(
            "domain: ratelimit\ndescriptors:\n- {{ key: remote_address, rate_limit: {{ unit: \
             minute, requests_per_unit: {requests} }} }}\n"
        )
    };
    let [weir, other] = [1, 2].map(|requests| Weir::start(&[("l.yaml", &limits(requests))], &[]));
    let mut proxy = gateway(&other);
    let clusters = list(&mut proxy, "/static_resources/clusters");
    let text = clusters[0].to_string();
    let port = |weir: &Weir| format!(":{}}}", weir.grpc_addr().port());
    let text = text.replace("ratelimit.default", "ratelimit.weir");
    let text = with(&text, &port(&other), &port(&weir));
    clusters.push(serde_json::from_str(&text).expect("a cluster"));
    let filter = file("canary").replace("timeout: 0.1s", "timeout: 10s");
    patch(&mut proxy, "GATEWAY", &filter);
    validate(&proxy.to_string());
    let envoy = Envoy::start(&proxy.to_string());
    let front = envoy.listener("front");
    wait::away_from_the_end_of_a_minute();
    let statuses = std::array::from_fn(|_| get(front, "/").status);
    assert_eq!(statuses, [200, 200, 429]);
    let refusals = ["weir", "ratelimit"].map(|filter| {
        envoy.stat(&format!(
            "cluster.application.ratelimit.{filter}.over_limit"
        ))
    });
    assert_eq!(refusals, [2, 1]);
}

#[test]
fn a_sidecar_limits_what_comes_in() {
    let (weir, _envoy, front) = proxy("SIDECAR_INBOUND", &file("sidecar"), |_| {});
    assert_logins_are_limited(front);
    let limit = limit_of(front, "/");
    assert!(
        limit.contains("per-client") && !limit.contains("login"),
        "{limit}"
    );
    assert_eq!(weir.metric("weir_connections_rewritten_total"), Some(0.0));
}

#[test]
fn a_route_has_actions_of_its_own() {
    let (_weir, _envoy, front) = proxy("GATEWAY", &file("route"), |proxy| {
        let routes = list(at_mut(proxy, CHAIN), &format!("{HOSTS}/0/routes"));
        let mut login = routes[0].clone();
        login["name"] = "login".into();
        login["match"] = json!({ "prefix": "/log" });
        routes.insert(0, login);
    });
    let statuses = std::array::from_fn(|number| get(front, &format!("/login{number}")).status);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(limit_of(front, "/"), "", "no other route is asked about");
    assert_eq!(get(front, "/").status, 200);
}

#[test]
fn tcp_connections_of_a_gateway_are_limited() {
    let (weir, envoy, front) = proxy("GATEWAY", &file("tcp"), |proxy| {
        let kind = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
        let config = json!({ "@type": kind, "stat_prefix": "front", "cluster": "application" });
        let filter = json!({ "name": "envoy.filters.network.tcp_proxy", "typed_config": config });
        at_mut(proxy, CHAIN)["filters"] = json!([filter]);
    });
    assert!(examples::connects(front, 2));
    examples::count(&weir, "ratelimit", "127.0.0.2", 98);
    let answered = [2, 2, 3].map(|client| examples::connects(front, client));
    assert_eq!(
        answered,
        [true, false, true],
        "the 100th, the 101st, another client"
    );
    assert_eq!(envoy.stat("ratelimit.ratelimit.over_limit"), 1);
}
