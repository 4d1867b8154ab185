//! `deploy/istio`: the patches of the filter, applied as Istio would, to a gateway whose cluster has the name that Istio gives it.

use serde_json::Value;

use super::{at, documents, documents_in, items, kubernetes, text};
use crate::support::envoy::{Envoy, validate, with};
use crate::support::http_client::{get, request};
use crate::support::{Weir, ports, tools, wait};

/// A gateway like one of Istio's, with the patches applied. `change` may edit the filter first.
fn gateway(weir_port: u16, change: impl FnOnce(&str) -> String) -> String {
    let filter = documents_in(&change(&tools::file("deploy/istio/envoyfilter.yaml"))).remove(0);
    let template = include_str!("gateway.yaml")
        .replace("APPLICATION_PORT", &ports::free().port().to_string())
        .replace("WEIR_PORT", &weir_port.to_string());
    let mut gateway = documents_in(&template).remove(0);
    for patch in items(&filter, "/spec/configPatches") {
        assert_eq!(text(patch, "/match/context"), "GATEWAY");
        let value = at(patch, "/patch/value").clone();
        let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
        let manager = gateway.pointer_mut(manager).expect("the gateway's listener");
        match (text(patch, "/applyTo"), text(patch, "/patch/operation")) {
            ("HTTP_FILTER", "INSERT_BEFORE") => {
                insert_before(manager, text(patch, "/match/listener/filterChain/filter/subFilter/name"), value);
            }
            ("VIRTUAL_HOST", "MERGE") => {
                let hosts = manager.pointer_mut("/route_config/virtual_hosts").and_then(Value::as_array_mut).expect("virtual hosts");
                for host in hosts {
                    let merged = value.as_object().expect("fields").clone();
                    host.as_object_mut().expect("a virtual host").extend(merged);
                }
            }
            other => panic!("{other:?} is a patch that this test cannot apply"),
        }
    }
    gateway.to_string()
}

fn insert_before(manager: &mut Value, name: &str, filter: Value) {
    let filters = manager["http_filters"].as_array_mut().expect("filters");
    let position = filters.iter().position(|filter| filter["name"] == name).unwrap_or_else(|| panic!("no filter {name}"));
    filters.insert(position, filter);
}

/// The filter with a timeout that is long enough for a busy machine.
fn with_long_timeout(filter: &str) -> String {
    with(filter, "timeout: 0.1s", "timeout: 10s")
}

#[test]
fn envoy_accepts_the_patches_and_the_cluster_is_the_service() {
    validate(&gateway(8_081, str::to_owned));
    let filter = documents("deploy/istio/envoyfilter.yaml").remove(0);
    let service = kubernetes::manifest("Service", "ratelimit");
    let grpc = items(&service, "/spec/ports").iter().find(|port| port["name"] == "grpc").expect("a port of that name is HTTP/2 to Istio");
    let host = format!("{}.default.svc.cluster.local", text(&service, "/metadata/name"));
    let asked = at(&filter, "/spec/configPatches/0/patch/value/typed_config/rate_limit_service/grpc_service/envoy_grpc");
    assert_eq!(text(asked, "/cluster_name"), format!("outbound|{}||{host}", grpc["port"]));
    assert_eq!(text(asked, "/authority"), host);
}

/// Envoy sends the cluster's name as `:authority` unless the filter has another, and Weir accepts it.
#[test]
fn the_gateway_enforces_limits_with_and_without_the_authority() {
    let limits = tools::file("deploy/kubernetes/limits/ratelimit.yaml");
    let without = |filter: &str| with(&with_long_timeout(filter), "authority: ratelimit.default.svc.cluster.local", "");
    let filters: [&dyn Fn(&str) -> String; 2] = [&with_long_timeout, &without];
    for (index, change) in filters.into_iter().enumerate() {
        let weir = Weir::start(&[("ratelimit.yaml", &limits)], &[]);
        let envoy = Envoy::start(&gateway(weir.grpc_addr().port(), change));
        let front = envoy.listener("front");
        wait::away_from_the_end_of_a_minute();
        let login = |path| get(front, path).status;
        assert_eq!([login("/login"), login("/login?x=1"), login("/login?x=2"), login("/login"), login("/login")], [200; 5]);
        assert_eq!([login("/login"), login("/login?x=3"), login("/loginx"), login("/")], [429, 429, 200, 200]);
        assert_eq!(request(front, "/", &[]).header("x-ratelimit-limit").map(|limit| limit.starts_with("100, 100;w=60")), Some(true));
        assert_eq!(envoy.stat("cluster.application.ratelimit.error"), 0);
        assert_eq!(weir.metric("weir_connections_rewritten_total"), Some(index as f64), "only without the authority");
    }
}
