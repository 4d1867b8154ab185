//! `deploy/envoy-gateway` and `deploy/envoy-ai-gateway`: the manifests match the schemas, and a
//! Weir with their environment gets its limits.

use serde_json::Value;

use super::kubernetes::{environment, validate};
use super::{at, documents, documents_in, items, text};
use crate::service::xds::{hit, start_with, users};
use crate::support::control_plane::ControlPlane;
use crate::support::{RedisServer, tools};

const ENVOY_GATEWAY: &str = "deploy/envoy-gateway/config.yaml";
const AI_GATEWAY: &str = "deploy/envoy-ai-gateway/weir.yaml";

/// The node that Envoy AI Gateway's controller knows.
const AI_NODE: &str = "envoy-ai-gateway-ratelimit";

#[test]
fn the_manifests_match_the_schemas() {
    for file in [ENVOY_GATEWAY, AI_GATEWAY] {
        let (is_valid, output_text) = validate(&tools::repository().join(file));
        assert!(is_valid, "{output_text}");
    }
}

/// What Envoy Gateway sets whatever its options are: internal/infrastructure/kubernetes/ratelimit.
pub(super) fn set_by_envoy_gateway<'a>(
    control_plane: &'a str,
    redis: &'a str,
) -> [(&'static str, &'a str); 12] {
    [
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", control_plane),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", redis),
    ]
}

/// The names are those of the API of Envoy Gateway (api/v1alpha1) and those that its own deployment
/// has.
#[tokio::test]
async fn the_configuration_of_envoy_gateway_replaces_the_image_and_adds_variables_that_weir_knows()
{
    let config_map = documents(ENVOY_GATEWAY).remove(0);
    let config = documents_in(text(&config_map, "/data/envoy-gateway.yaml")).remove(0);
    let container = at(
        &config,
        "/provider/kubernetes/rateLimitDeployment/container",
    );
    assert_eq!(
        text(container, "/image"),
        concat!("weir:", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(at(&config, "/rateLimit/backend/type"), "Redis");
    let redis = RedisServer::start();
    let control = ControlPlane::start();
    control.set("1", [users("default/eg/http", 1)]);
    let (url, redis_url) = (control.url(), redis.url());
    let own = set_by_envoy_gateway(&url, &redis_url);
    let added = environment(container);
    let weir = start_with(&[&own[..], &added].concat());
    control.wait_for_ack("1").await;
    let client = &mut weir.client().await;
    assert!(hit(client, "default/eg/http", &[("user", "u")]).await);
    assert!(!hit(client, "default/eg/http", &[("user", "u")]).await);
}

/// The Service is where Envoy looks for it, unless `--quotaRateLimitServiceAddr` says otherwise, and
/// the Deployment has its ports and its settings.
fn assert_found_by_envoy(deployment: &Value, service: &Value) {
    assert_eq!(
        (
            text(service, "/metadata/name"),
            text(service, "/metadata/namespace")
        ),
        (AI_NODE, "envoy-gateway-system")
    );
    assert_eq!(at(service, "/spec/ports/0/port"), 8081);
    assert_eq!(
        at(service, "/spec/selector"),
        at(deployment, "/spec/template/metadata/labels")
    );
    let container = at(deployment, "/spec/template/spec/containers/0");
    let set = environment(container);
    let value = |name: &str| {
        set.iter()
            .find(|(variable, _)| *variable == name)
            .map(|(_, value)| *value)
    };
    assert_eq!(value("CONFIG_GRPC_XDS_NODE_ID"), Some(AI_NODE));
    assert_eq!(
        value("CONFIG_GRPC_XDS_SERVER_URL"),
        Some("ai-gateway-controller.envoy-ai-gateway-system:18002")
    );
    let mount = items(container, "/volumeMounts")
        .iter()
        .map(|mount| text(mount, "/mountPath"))
        .next()
        .expect("a writable folder");
    let path = value("CONFIG_GRPC_XDS_CACHE_FILE").expect("a cache");
    assert!(path.starts_with(mount), "{path} is in the writable folder");
    let port = |name: &str| {
        items(container, "/ports")
            .iter()
            .find(|port| port["name"] == name)
            .map(|port| &port["containerPort"])
    };
    assert_eq!(
        (port("grpc"), port("http")),
        (Some(&Value::from(8081)), Some(&Value::from(8080)))
    );
}

#[tokio::test]
async fn the_service_of_envoy_ai_gateway_is_found_and_gets_its_quotas() {
    let manifests = documents(AI_GATEWAY);
    let of_kind = |kind: &str| {
        manifests
            .iter()
            .find(|manifest| manifest["kind"] == kind)
            .expect("a manifest")
    };
    let (deployment, service) = (of_kind("Deployment"), of_kind("Service"));
    assert_found_by_envoy(deployment, service);
    let set = environment(at(deployment, "/spec/template/spec/containers/0"));

    let redis = RedisServer::start();
    let control = ControlPlane::start_for(AI_NODE);
    control.set("1", [users("ai-gateway-quota", 1)]);
    let folder = tempfile::tempdir().expect("a folder");
    let (url, redis_url, cache) = (
        control.url(),
        redis.url(),
        folder.path().join("limits").display().to_string(),
    );
    let here = |name: &str| match name {
        "CONFIG_GRPC_XDS_SERVER_URL" => Some(url.as_str()),
        "REDIS_URL" => Some(redis_url.as_str()),
        "CONFIG_GRPC_XDS_CACHE_FILE" => Some(cache.as_str()),
        _ => None,
    };
    let environment: Vec<_> = set
        .iter()
        .map(|&(name, value)| (name, here(name).unwrap_or(value)))
        .collect();
    let weir = start_with(&environment);
    control.wait_for_ack("1").await;
    let client = &mut weir.client().await;
    assert!(hit(client, "ai-gateway-quota", &[("user", "u")]).await);
    assert!(!hit(client, "ai-gateway-quota", &[("user", "u")]).await);
}
