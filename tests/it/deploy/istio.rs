//! `deploy/istio`: the patches of each filter, applied as Istio would, to a proxy whose cluster has
//! the name that Istio gives it.

use std::net::Ipv4Addr;

use serde_json::Value;

use super::{at, documents, documents_in, examples, items, kubernetes, text};
use crate::support::envoy::{Envoy, validate, with};
use crate::support::http_client::{exchange, get, request};
use crate::support::{Weir, ports, tools, wait};

/// A gateway like one of Istio's, with the patches of `envoyfilter.yaml` applied. `change` may edit
/// the filter first.
fn gateway(weir_port: u16, change: impl FnOnce(&str) -> String) -> String {
    patched(
        weir_port,
        &change(&tools::file("deploy/istio/envoyfilter.yaml")),
    )
}

/// The same with the patches of any filter for HTTP.
pub fn patched(weir_port: u16, filter: &str) -> String {
    let template = include_str!("gateway.yaml")
        .replace("APPLICATION_PORT", &ports::free().port().to_string())
        .replace("WEIR_PORT", &weir_port.to_string());
    apply("GATEWAY", filter, documents_in(&template).remove(0))
}

/// Applies the patches of a filter to a proxy, as Istio does: those of the context, to what they
/// match.
fn apply(context: &str, filter: &str, mut proxy: Value) -> String {
    let filter = documents_in(filter).remove(0);
    let labels = at(&filter, "/spec/workloadSelector/labels")
        .as_object()
        .expect("labels");
    assert!(
        !labels.is_empty(),
        "without labels it would change every workload of the namespace"
    );
    for patch in items(&filter, "/spec/configPatches") {
        assert_eq!(text(patch, "/match/context"), context);
        let value = at(patch, "/patch/value").clone();
        let chain = proxy
            .pointer_mut("/static_resources/listeners/0/filter_chains/0")
            .expect("the proxy's listener");
        match (text(patch, "/applyTo"), text(patch, "/patch/operation")) {
            ("HTTP_FILTER", "INSERT_BEFORE") => {
                assert_eq!(
                    text(patch, "/match/listener/filterChain/filter/name"),
                    chain["filters"][0]["name"]
                );
                let before = text(patch, "/match/listener/filterChain/filter/subFilter/name");
                insert_before(
                    &mut chain["filters"][0]["typed_config"]["http_filters"],
                    before,
                    value,
                );
            }
            ("NETWORK_FILTER", "INSERT_BEFORE") => {
                insert_before(
                    &mut chain["filters"],
                    text(patch, "/match/listener/filterChain/filter/name"),
                    value,
                );
            }
            ("VIRTUAL_HOST", "MERGE") => {
                for host in virtual_hosts(chain) {
                    merge(host, &value);
                }
            }
            ("HTTP_ROUTE", "MERGE") => {
                let name = patch.pointer("/match/routeConfiguration/vhost/route/name");
                let routes = virtual_hosts(chain)
                    .iter_mut()
                    .flat_map(|host| host["routes"].as_array_mut().expect("routes"));
                for route in routes.filter(|route| name.is_none_or(|name| route["name"] == *name)) {
                    merge(route, &value);
                }
            }
            other => panic!("{other:?} is a patch that this test cannot apply"),
        }
    }
    proxy.to_string()
}

fn virtual_hosts(chain: &mut Value) -> &mut Vec<Value> {
    let hosts = &mut chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"];
    hosts.as_array_mut().expect("virtual hosts")
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

fn insert_before(filters: &mut Value, name: &str, filter: Value) {
    let filters = filters.as_array_mut().expect("filters");
    let position = filters
        .iter()
        .position(|filter| filter["name"] == name)
        .unwrap_or_else(|| panic!("no filter {name}"));
    filters.insert(position, filter);
}

/// The filter with a timeout that is long enough for a busy machine.
fn with_long_timeout(filter: &str) -> String {
    with(filter, "timeout: 0.1s", "timeout: 10s")
}

#[test]
fn envoy_accepts_the_patches_and_the_cluster_is_the_service() {
    validate(&gateway(8_081, str::to_owned));
    let service = kubernetes::manifest("Service", "ratelimit");
    let grpc = items(&service, "/spec/ports")
        .iter()
        .find(|port| port["name"] == "grpc")
        .expect("a port of that name is HTTP/2 to Istio");
    let host = format!(
        "{}.default.svc.cluster.local",
        text(&service, "/metadata/name")
    );
    for file in ["envoyfilter", "sidecar", "tcp", "route"] {
        let filter = documents(&format!("deploy/istio/{file}.yaml")).remove(0);
        let asked = at(
            &filter,
            "/spec/configPatches/0/patch/value/typed_config/rate_limit_service/grpc_service/envoy_grpc",
        );
        assert_eq!(
            text(asked, "/cluster_name"),
            format!("outbound|{}||{host}", grpc["port"]),
            "{file}"
        );
        assert_eq!(text(asked, "/authority"), host, "{file}");
    }
}

/// Envoy sends the cluster's name as `:authority` unless the filter has another, and Weir accepts
/// it.
#[test]
fn the_gateway_enforces_limits_with_and_without_the_authority() {
    let limits = tools::file("deploy/kubernetes/limits/ratelimit.yaml");
    let without = |filter: &str| {
        with(
            &with_long_timeout(filter),
            "authority: ratelimit.default.svc.cluster.local",
            "",
        )
    };
    let filters: [&dyn Fn(&str) -> String; 2] = [&with_long_timeout, &without];
    for (index, change) in filters.into_iter().enumerate() {
        let weir = Weir::start(&[("ratelimit.yaml", &limits)], &[]);
        let envoy = Envoy::start(&gateway(weir.grpc_addr().port(), change));
        let front = envoy.listener("front");
        wait::away_from_the_end_of_a_minute();
        let login = |path| get(front, path).status;
        assert_eq!(
            [
                login("/login"),
                login("/login?x=1"),
                login("/login?x=2"),
                login("/login"),
                login("/login")
            ],
            [200; 5]
        );
        assert_eq!(
            [
                login("/login"),
                login("/login?x=3"),
                login("/loginx"),
                login("/")
            ],
            [429, 429, 200, 200]
        );
        assert_eq!(
            request(front, "/", &[])
                .header("x-ratelimit-limit")
                .map(|limit| limit.starts_with("100, 100;w=60")),
            Some(true)
        );
        assert_eq!(envoy.stat("cluster.application.ratelimit.error"), 0);
        assert_eq!(
            weir.metric("weir_connections_rewritten_total"),
            Some(index as f64),
            "only without the authority"
        );
    }
}

/// A Weir with the limits of `deploy/kubernetes`, and a proxy with the patches of a file.
/// `template` may edit the proxy first.
fn proxy(context: &str, file: &str, edit: impl FnOnce(&mut Value)) -> (Weir, Envoy) {
    let weir = Weir::start(
        &[(
            "ratelimit.yaml",
            &tools::file("deploy/kubernetes/limits/ratelimit.yaml"),
        )],
        &[],
    );
    let filter = with_long_timeout(&tools::file(&format!("deploy/istio/{file}.yaml")));
    let template = include_str!("gateway.yaml")
        .replace("APPLICATION_PORT", &ports::free().port().to_string())
        .replace("WEIR_PORT", &weir.grpc_addr().port().to_string());
    let mut template = documents_in(&template).remove(0);
    edit(&mut template);
    let configuration = apply(context, &filter, template);
    validate(&configuration);
    let envoy = Envoy::start(&configuration);
    (weir, envoy)
}

#[test]
fn a_sidecar_limits_what_comes_in() {
    let (weir, envoy) = proxy("SIDECAR_INBOUND", "sidecar", |_| {});
    let front = envoy.listener("front");
    wait::away_from_the_end_of_a_minute();
    let login = |path| get(front, path).status;
    assert_eq!(
        [
            login("/login"),
            login("/login?x=1"),
            login("/login?x=2"),
            login("/login"),
            login("/login")
        ],
        [200; 5]
    );
    assert_eq!(
        [
            login("/login"),
            login("/login?x=3"),
            login("/loginx"),
            login("/")
        ],
        [429, 429, 200, 200]
    );
    let limits = get(front, "/")
        .header("x-ratelimit-limit")
        .unwrap_or_default()
        .to_owned();
    assert!(
        limits.contains("per-client") && !limits.contains("login"),
        "{limits}"
    );
    assert_eq!(weir.metric("weir_connections_rewritten_total"), Some(0.0));
}

#[test]
fn a_route_has_actions_of_its_own() {
    let (_weir, envoy) = proxy("GATEWAY", "route", |proxy| {
        let chain = proxy
            .pointer_mut("/static_resources/listeners/0/filter_chains/0")
            .expect("the proxy's listener");
        let routes = virtual_hosts(chain)[0]["routes"]
            .as_array_mut()
            .expect("routes");
        let mut login = routes[0].clone();
        login["name"] = "login".into();
        login["match"] = serde_json::json!({ "prefix": "/log" });
        routes.insert(0, login);
    });
    let front = envoy.listener("front");
    wait::away_from_the_end_of_a_minute();
    assert_eq!(
        std::array::from_fn(|number| get(front, &format!("/login{number}")).status),
        [200, 200, 200, 200, 200, 429]
    );
    let other = get(front, "/");
    assert_eq!(
        (other.status, other.header("x-ratelimit-limit")),
        (200, None),
        "no other route is asked about"
    );
}

#[test]
fn tcp_connections_of_a_gateway_are_limited() {
    let (weir, envoy) = proxy("GATEWAY", "tcp", |proxy| {
        let chain = proxy
            .pointer_mut("/static_resources/listeners/0/filter_chains/0")
            .expect("the proxy's listener");
        let kind = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
        let config =
            serde_json::json!({ "@type": kind, "stat_prefix": "front", "cluster": "application" });
        chain["filters"] = serde_json::json!([{ "name": "envoy.filters.network.tcp_proxy", "typed_config": config }]);
    });
    let front = envoy.listener("front");
    wait::away_from_the_end_of_a_minute();
    let message = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let connect = |client| {
        exchange(Ipv4Addr::new(127, 0, 0, client), front, message).map(|answer| !answer.is_empty())
    };
    assert!(connect(2).is_ok_and(|answered| answered));
    examples::count(&weir, "ratelimit", "127.0.0.2", 98);
    assert!(
        connect(2).is_ok_and(|answered| answered),
        "the 100th of a minute"
    );
    assert!(!connect(2).is_ok_and(|answered| answered), "the 101st");
    assert!(connect(3).is_ok_and(|answered| answered), "another client");
    assert_eq!(envoy.stat("ratelimit.ratelimit.over_limit"), 1);
}
