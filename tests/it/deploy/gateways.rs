//! Weir in the place of the rate-limit services of Envoy Gateway and Envoy AI Gateway: with the
//! environment that they or the files in `deploy/` set, it gets its limits from their control
//! planes. Only ports and addresses differ, because other tests run at the same time.

use std::fs;

use super::image::{assert_restricted, image, restricted};
use super::{at, documents, documents_in, environment, text};
use crate::service::xds::{config, hit, leaf, node, server_config, start_with, users, yearly};
use crate::support::certificates::Authority;
use crate::support::control_plane::ControlPlane;
use crate::support::tls_client::TlsClient;
use crate::support::{RedisServer, Weir, http_client, ports};

const DOMAIN: &str = "default/eg/http";
const ROUTE: &str = "httproute/default/backend/rule/0/match/0/www_example_com";
const RULE: &str = "rule-0-match-0";

/// Variables that Envoy Gateway sets, with all of its options, apart from addresses. Source:
/// envoyproxy/gateway, internal/infrastructure/kubernetes/ratelimit.
const SET_BY_ENVOY_GATEWAY: &str = "
    RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_IGNOREDOTFILES=true
    RUNTIME_WATCH_ROOT=false LOG_LEVEL=info USE_STATSD=false
    FORCE_START_WITHOUT_INITIAL_CONFIG=true REDIS_SOCKET_TYPE=tcp CONFIG_TYPE=GRPC_XDS_SOTW
    CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit CONFIG_GRPC_XDS_SERVER_USE_TLS=true
    CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key
    CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt GRPC_SERVER_USE_TLS=true
    GRPC_SERVER_TLS_CERT=/certs/tls.crt GRPC_SERVER_TLS_KEY=/certs/tls.key
    GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt USE_PROMETHEUS=true
    PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml TRACING_ENABLED=true
    TRACING_SERVICE_NAME=envoy-ratelimit TRACING_SERVICE_NAMESPACE=envoy-gateway-system
    TRACING_SERVICE_INSTANCE_ID=envoy-ratelimit-0 TRACING_SAMPLING_RATE=0.6
    OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1";

/// The image of `deploy/envoy-gateway/config.yaml` is all that changes in the pod of Envoy Gateway.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_gateway_starts_the_image_in_place_of_its_own() {
    let (folder, root) = image();
    let write = |file: &str, text: &str| fs::write(root.join(file), text).expect("written");
    let authority = Authority::new("envoy-gateway");
    fs::create_dir(root.join("certs")).expect("a folder");
    // Envoy checks no name of the service's certificate; the client of this test does.
    let issued = authority.issue(&["*.envoy-gateway-system", "localhost"]);
    write("certs/ca.crt", &authority.pem());
    write("certs/tls.crt", &issued.certificate);
    write("certs/tls.key", &issued.key);
    write("etc/hosts", "127.0.0.1 envoy-gateway redis\n");
    let tls = server_config(&authority, &authority.issue(&["envoy-gateway"]));
    let control = ControlPlane::start_with_tls(tls);
    let (redis, metrics) = (RedisServer::start(), ports::free());

    let config_map = documents("deploy/envoy-gateway/config.yaml").remove(0);
    let file = documents_in(text(&config_map, "/data/envoy-gateway.yaml")).remove(0);
    assert_eq!(at(&file, "/rateLimit/backend/type"), "Redis");
    let container = at(&file, "/provider/kubernetes/rateLimitDeployment/container");
    let image_name = concat!("weir:", env!("CARGO_PKG_VERSION"));
    assert_eq!(text(container, "/image"), image_name);
    let mut command = restricted(&root, &[]);
    command.envs(
        SET_BY_ENVOY_GATEWAY
            .split_whitespace()
            .filter_map(|set| set.split_once('=')),
    );
    let url = control.url().replace("127.0.0.1", "envoy-gateway");
    command.env("CONFIG_GRPC_XDS_SERVER_URL", url);
    command.env("REDIS_URL", format!("redis:{}", redis.port()));
    command.env("PROMETHEUS_ADDR", metrics.to_string());
    command
        .envs(environment(container))
        .env("STORE_TIMEOUT", "5s");
    let mut weir = Weir::spawn(command, folder);
    let health = weir.get("/healthcheck");
    assert_eq!(health, (200, "OK".to_owned()), "before it has limits");
    assert_restricted(&weir, &root);
    let tree = vec![node(ROUTE, ROUTE, vec![leaf(RULE, RULE, yearly(3))])];
    control.set("1", [config(DOMAIN, tree)]);
    control.wait_for_ack("1").await;

    let tls = TlsClient::new(weir.grpc_addr(), &authority.pem());
    let client = &mut tls.client().await.expect("TLS");
    for expected in [true, true, true, false] {
        let is_allowed = hit(client, DOMAIN, &[(ROUTE, ROUTE), (RULE, RULE)]).await;
        assert_eq!(is_allowed, expected);
    }
    let keys = redis.keys();
    assert!(keys.iter().any(|key| key.contains(RULE)), "{keys:?}");
    let page = http_client::get(metrics, "/metrics").body;
    let labels = format!("{{domain=\"{DOMAIN}\",key1=\"{ROUTE}_{ROUTE}\",key2=\"{RULE}_{RULE}\"}}");
    for value in ["total_hits 4", "within_limit 3", "over_limit 1"] {
        let (name, value) = value.split_once(' ').expect("two words");
        let series = format!("\nratelimit_service_rate_limit_{name}{labels} {value}\n");
        assert!(page.contains(&series), "no {series} in:\n{page}");
    }
    assert!(weir.terminate().success());
}

#[tokio::test]
async fn envoy_ai_gateway_gets_its_quotas_from_the_manifest() {
    let manifest = documents("deploy/envoy-ai-gateway/weir.yaml").remove(0);
    let container = at(&manifest, "/spec/template/spec/containers/0");
    let redis = RedisServer::start();
    let control = ControlPlane::start_for("envoy-ai-gateway-ratelimit");
    control.set("1", [users("ai-gateway-quota", 1)]);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("limits").display().to_string();
    let here = [
        ("CONFIG_GRPC_XDS_SERVER_URL", control.url()),
        ("REDIS_URL", redis.url()),
        ("CONFIG_GRPC_XDS_CACHE_FILE", cache),
    ];
    let mut set = environment(container);
    for (name, value) in &here {
        let given = set.iter_mut().find(|(other, _)| other == name);
        given.unwrap_or_else(|| panic!("{name} is not set")).1 = value;
    }
    let weir = start_with(&set);
    control.wait_for_ack("1").await;
    let client = &mut weir.client().await;
    assert!(hit(client, "ai-gateway-quota", &[("user", "u")]).await);
    assert!(!hit(client, "ai-gateway-quota", &[("user", "u")]).await);
}
