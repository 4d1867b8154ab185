//! Weir in the place of Envoy Gateway's rate-limit service: its whole environment, its certificates
//! and its pod, with nothing but the image changed.
//!
//! Only the ports differ, because other tests run at the same time.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::xds::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};

use super::gateways::set_by_envoy_gateway;
use super::image::{image, is_root, user_of};
use super::restricted::{USER, restricted};
use crate::support::control_plane::ControlPlane;
use crate::support::tls_client::TlsClient;
use crate::support::wait::eventually_async;
use crate::support::{RedisServer, Weir, descriptor, http_client, ports, request};

const DOMAIN: &str = "default/eg/http";
const ROUTE: &str = "httproute/default/backend/rule/0/match/0/www_example_com";
const RULE: &str = "rule-0-match-0";

/// A certificate of an authority named like Envoy Gateway's, with a key as its Go code writes it:
/// RSA in PKCS#1.
fn certify(folder: &Path, name: &str, common_name: &str, names: &str) {
    let script = r#"
        [ -f ca.crt ] || {
            openssl genrsa -traditional -out ca.key 2048
            openssl req -x509 -new -key ca.key -subj /CN=envoy-gateway -days 2 -out ca.crt
        }
        openssl genrsa -traditional -out "$0.key" 2048
        openssl req -new -key "$0.key" -subj "/CN=$1" -out "$0.csr"
        printf 'subjectAltName=%s\n' "$2" >"$0.ext"
        openssl x509 -req -in "$0.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile "$0.ext" -out "$0.crt"
        chmod 644 "$0.key"
    "#;
    let output = Command::new("sh")
        .args(["-ec", script, name, common_name, names])
        .current_dir(folder)
        .output()
        .expect("openssl is installed");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        fs::read_to_string(folder.join(name).with_extension("key"))
            .expect("a key")
            .starts_with("-----BEGIN RSA PRIVATE KEY-----")
    );
}

/// TLS as Envoy Gateway's control plane has it: it asks each client for a certificate of its
/// authority.
fn control_plane_tls(certs: &Path) -> ServerConfig {
    let certificates = |name: &str| {
        CertificateDer::pem_file_iter(certs.join(name))
            .expect("a file")
            .collect::<Result<Vec<_>, _>>()
            .expect("PEM")
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates("ca.crt"));
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .expect("a root");
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions");
    let key = PrivateKeyDer::from_pem_file(certs.join("gateway.key")).expect("a key");
    let mut config = builder
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates("gateway.crt"), key)
        .expect("a pair");
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// The tree of a policy with one header match and three requests per hour.
fn policy() -> RateLimitConfig {
    let limit = RateLimitPolicy {
        unit: 3,
        requests_per_unit: 3,
        ..Default::default()
    };
    let rule = RateLimitDescriptor {
        key: RULE.into(),
        value: RULE.into(),
        rate_limit: Some(limit),
        ..Default::default()
    };
    let route = RateLimitDescriptor {
        key: ROUTE.into(),
        value: ROUTE.into(),
        descriptors: vec![rule],
        ..Default::default()
    };
    RateLimitConfig {
        name: DOMAIN.into(),
        domain: DOMAIN.into(),
        descriptors: vec![route],
    }
}

/// The metrics of four requests, of which the last was refused.
fn assert_metrics_are_there(page: &str) {
    let value = |series: &str| {
        page.lines().find_map(|line| {
            line.strip_prefix(series)?
                .strip_prefix(' ')?
                .parse::<f64>()
                .ok()
        })
    };
    let labels = format!("{{domain=\"{DOMAIN}\",key1=\"{ROUTE}_{ROUTE}\",key2=\"{RULE}_{RULE}\"}}");
    for (name, expected) in [
        ("total_hits", 4.0),
        ("within_limit", 3.0),
        ("over_limit", 1.0),
        ("near_limit", 1.0),
        ("shadow_mode", 0.0),
    ] {
        assert_eq!(
            value(&format!("ratelimit_service_rate_limit_{name}{labels}")),
            Some(expected),
            "{name}:\n{page}"
        );
    }
    for name in [
        "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}",
        "ratelimit_service_config_load_success",
        "ratelimit_service_config_load_error",
        "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}",
        "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
    ] {
        assert!(value(name).is_some(), "{name} is not in:\n{page}");
    }
}

/// All that options of Envoy Gateway add, but for the address of the metrics.
const ADDED_BY_OPTIONS: [(&str, &str); 17] = [
    ("GRPC_SERVER_USE_TLS", "true"),
    ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
    ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
    ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
    ("USE_PROMETHEUS", "true"),
    ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
    ("TRACING_ENABLED", "true"),
    ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
    ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
    ("TRACING_SERVICE_INSTANCE_ID", "envoy-ratelimit-0"),
    ("TRACING_SAMPLING_RATE", "0.6"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
    ("STORE_TIMEOUT", "5s"),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_image_alone_is_changed() {
    let (folder, root) = image();
    let certs = root.join("certs");
    fs::create_dir(&certs).expect("a folder");
    // Envoy checks no name of the service's certificate; the client of this test does.
    certify(
        &certs,
        "tls",
        "*",
        "DNS:*.envoy-gateway-system,DNS:localhost",
    );
    certify(
        &certs,
        "gateway",
        "envoy-gateway",
        "DNS:envoy-gateway,DNS:envoy-gateway.envoy-gateway-system.svc",
    );
    fs::write(root.join("etc/hosts"), "127.0.0.1 envoy-gateway redis\n").expect("written");
    let control = ControlPlane::start_with_tls(control_plane_tls(&certs));
    let (redis, metrics) = (RedisServer::start(), ports::free());
    let mut command = restricted(&root, &[]);
    let (control_plane, redis_url) = (
        control.url().replace("127.0.0.1", "envoy-gateway"),
        format!("redis:{}", redis.port()),
    );
    command.envs(set_by_envoy_gateway(&control_plane, &redis_url));
    command.envs(ADDED_BY_OPTIONS);
    command.env("PROMETHEUS_ADDR", metrics.to_string());
    let mut weir = Weir::spawn(command, folder);
    assert_eq!(
        weir.get("/healthcheck"),
        (200, "OK".to_owned()),
        "before the control plane has limits"
    );
    if is_root() {
        assert_eq!(user_of(&weir), USER);
    }
    control.set("1", [policy()]);

    let tls = TlsClient::new(
        weir.grpc_addr(),
        &fs::read_to_string(certs.join("ca.crt")).expect("PEM"),
    );
    let client = &mut tls.client().await.expect("TLS with a key in PKCS#1");
    let asked = |value: &str| request(DOMAIN, vec![descriptor(&[(ROUTE, ROUTE), (RULE, value)])]);
    let known = eventually_async(|| {
        weir.logs()
            .iter()
            .any(|line| line.contains("limits loaded"))
            .then_some(())
    })
    .await;
    assert!(known.is_some(), "{}", weir.logs().join("\n"));
    let mut codes = Vec::new();
    for _ in 0..4 {
        codes.push(
            client
                .should_rate_limit(asked(RULE))
                .await
                .expect("an answer")
                .into_inner()
                .overall_code(),
        );
    }
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit]);
    assert!(
        redis.keys().iter().any(|key| key.contains(RULE)),
        "{:?}",
        redis.keys()
    );
    assert!(weir.get("/healthcheck").0 == 200);

    assert_metrics_are_there(&http_client::get(metrics, "/metrics").body);
    assert!(weir.terminate().success());
}
