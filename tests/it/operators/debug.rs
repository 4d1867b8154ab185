//! The debug listener of a real process.

use std::net::{SocketAddr, TcpListener};

use serde_json::Value;

use crate::support::wait::{eventually, eventually_async};
use crate::support::{Weir, descriptor, http_client, request};

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
async fn the_limits_in_force_are_shown_with_where_they_are_written() {
    let weir = Weir::start(LIMITS, &[]);
    let address = weir.listener("debug");
    assert!(address.ip().is_loopback());
    let first = "default/eg/http.route_a.client_ip_10.0.0.1: unit=HOUR requests_per_unit=2, \
        shadow_mode: false, quota_mode: false, algorithm: sliding_window_log, from: \
        gateway.yaml:6\n";
    let second = "shop.user: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: \
        false, from: shop.yaml:3\n";
    assert_eq!(
        get(address, "/rlconfig"),
        format!("{first}{second}# generation 1: 2 limits in 2 domains\n")
    );
    assert_eq!(
        get(address, "/rlconfig?domain=default/eg/http"),
        format!("{first}# generation 1: 1 limits in 1 domains\n")
    );
    let page = http_client::get(address, "/rlconfig?format=json&domain=shop");
    assert_eq!(page.header("content-type"), Some("application/json"));
    let page: Value = serde_json::from_str(&page.body).expect("JSON");
    assert_eq!(
        page["domains"][0]["limits"][0]["from"],
        serde_json::json!({ "document": "shop.yaml", "line": 3 })
    );
    // A reload shows at once, and a refused file beside what is in force.
    let write = |name: &str, text: &str| {
        std::fs::write(weir.config_dir().join(name), text).expect("a file");
    };
    write(
        "shop.yaml",
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: minute, \
         requests_per_unit: 6 }\n",
    );
    let shows = |text: &str| eventually(|| get(address, "/rlconfig").contains(text).then_some(()));
    assert!(
        shows("shop.user: unit=MINUTE requests_per_unit=6,").is_some()
            && shows("# generation 2:").is_some()
    );
    write(
        "shop.yaml",
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: fortnight, \
         requests_per_unit: 6 }\n",
    );
    assert!(shows("# a later configuration was refused").is_some());
    let page = get(address, "/rlconfig");
    assert!(
        page.contains("# shop.yaml:4:")
            && page.contains("shop.user: unit=MINUTE requests_per_unit=6,"),
        "{page}"
    );
}

#[tokio::test]
async fn counters_are_shown_under_the_names_of_the_reference() {
    let weir = Weir::start(LIMITS, &[]);
    let address = weir.listener("debug");
    let client = &mut weir.client().await;
    for _ in 0..7 {
        client
            .should_rate_limit(request("shop", vec![descriptor(&[("user", "x")])]))
            .await
            .expect("an answer");
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

/// 100,000 limits: the page has a bound, and is made beside running requests.
#[tokio::test(flavor = "multi_thread")]
async fn very_many_limits_are_shown_within_bounds() {
    let limits: String = (0..100_000)
        .map(|number| {
            format!(
                "  - {{ key: key_{number}, rate_limit: {{ unit: hour, requests_per_unit: 10 }} }}\n"
            )
        })
        .collect();
    let weir = Weir::start(
        &[(
            "many.yaml",
            &format!("domain: many\ndescriptors:\n{limits}"),
        )],
        &[],
    );
    let address = weir.listener("debug");
    let before = weir.resident_kib();
    let page = get(address, "/rlconfig");
    assert_eq!(page.lines().count(), 100_001);
    let json = get(address, "/rlconfig?format=json");
    assert!(json.len() < (32 << 20) + 1_000, "{}", json.len());
    let json: Value = serde_json::from_str(&json).expect("JSON, cut or not");
    assert!(
        json["domains"][0]["limits"]
            .as_array()
            .expect("limits")
            .len()
            > 50_000
    );
    drop((page, json));
    let readers: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(move || get(address, "/rlconfig").len()))
        .collect();
    let client = &mut weir.client().await;
    for _ in 0..200 {
        client
            .should_rate_limit(request("many", vec![descriptor(&[("key_7", "x")])]))
            .await
            .expect("an answer");
    }
    for reader in readers {
        assert!(reader.join().expect("no panic") > 5_000_000);
    }
    // Texts are freed when they have been read.
    let grown = || weir.resident_kib().saturating_sub(before);
    assert!(
        eventually_async(|| (grown() < 150_000).then_some(()))
            .await
            .is_some(),
        "{} KiB",
        grown()
    );
}
