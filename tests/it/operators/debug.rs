//! The debug listener of a real process.

use std::net::{SocketAddr, TcpListener};

use serde_json::Value;

use crate::support::{Weir, ask, descriptor, http_client};

const LIMITS: &[(&str, &str)] = &[
    (
        "shop.yaml",
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: minute, \
         requests_per_unit: 5 }\n",
    ),
    (
        "gateway.yaml",
        "domain: default/eg/http\ndescriptors:\n  - key: route\n    value: a\n    \
         descriptors:\n      - key: client_ip\n        value: 10.0.0.1\n        rate_limit: { \
         unit: hour, requests_per_unit: 2, algorithm: sliding_window_log }\n",
    ),
];

fn get(address: SocketAddr, path: &str) -> String {
    let page = http_client::get(address, path);
    assert_eq!(page.status, 200, "{path}: {}", page.body);
    page.body
}

#[tokio::test]
async fn counters_are_shown_under_the_names_of_the_reference() {
    let weir = Weir::start(LIMITS, &[]);
    let address = weir.listener("debug");
    let client = &mut weir.client().await;
    for _ in 0..7 {
        ask(client, "shop", vec![descriptor(&[("user", "x")])]).await;
    }
    let page = get(address, "/stats");
    for line in [
        "ratelimit.service.config_load_success: 1",
        "ratelimit.service.rate_limit.shop.user.over_limit: 2",
        "ratelimit.service.rate_limit.shop.user.total_hits: 7",
        "ratelimit_server.ShouldRateLimit.response_time.count: 7",
        "ratelimit_server.ShouldRateLimit.total_requests: 7",
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line} in {page}");
    }
    assert!(
        !page.contains("client_ip"),
        "limits without hits are left out"
    );
    let page: Value = serde_json::from_str(&get(address, "/stats?format=json")).expect("JSON");
    assert_eq!(page["ratelimit.service.rate_limit.shop.user.total_hits"], 7);
    assert!(!get(address, "/stats?domain=other").contains("shop"));
}

/// Two processes on one machine, as with `hostNetwork`, and a process that wants none.
#[tokio::test]
async fn a_port_in_use_does_not_stop_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let config = tempfile::tempdir().expect("a folder");
    std::fs::write(config.path().join("shop.yaml"), LIMITS[0].1).expect("a file");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args([
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--grpc-host",
        "127.0.0.1",
        "--grpc-port",
        "0",
        "--debug-port",
        &port,
    ]);
    command.arg("--config").arg(config.path()).env_clear();
    let weir = Weir::spawn(command, config);
    let line = weir.wait_for_log("for debug").await;
    assert!(
        line.contains(&format!("cannot listen on 127.0.0.1:{port}"))
            && line.contains("set DEBUG_PORT"),
        "{line}"
    );
    assert_eq!(weir.get("/healthcheck").0, 200);
    let weir = Weir::start(LIMITS, &[("DEBUG_ENABLED", "false")]);
    assert_eq!(weir.get("/healthcheck").0, 200);
    assert!(weir.find_listener("debug").is_none());
}
