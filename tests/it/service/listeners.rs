//! Weir on a unix socket.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::certificates::Files;
use crate::support::envoy::{Envoy, with};
use crate::support::{Client, DEMO, Weir, ask, descriptor, http_client, tools};

fn weir(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .env_clear()
        .output()
        .expect("it runs")
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path)
        .expect("a socket")
        .permissions()
        .mode()
        & 0o777
}

#[tokio::test]
async fn a_unix_socket_is_served_and_removed() {
    let files = Files::new();
    let (path, text) = (files.path("weir.sock"), files.text("weir.sock"));
    // A process that was killed leaves its socket.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    let mut first = Weir::start(DEMO, &[("GRPC_UDS", &text), ("DRAIN_DELAY", "0s")]);
    assert_eq!(mode(&path), 0o660);
    let mut client = Client::new(unix_channel(&text).await);
    let answer = ask(&mut client, "demo", vec![descriptor(&[("year", "1")])]).await;
    assert_eq!(answer.statuses[0].limit_remaining, 1);
    let address = format!("unix:{text}");
    let hit = weir(&["hit", "-d", "demo", "year=1", "--address", &address]);
    assert!(
        hit.status.success(),
        "{}",
        String::from_utf8_lossy(&hit.stderr)
    );
    assert!(
        weir(&["health", "--grpc", "--grpc-uds", &text])
            .status
            .success()
    );

    let second = weir(&[
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--grpc-uds",
        &text,
        "--config",
        &first.config_dir().to_string_lossy(),
    ]);
    let error = String::from_utf8_lossy(&second.stderr);
    assert!(
        second.status.code() == Some(1) && error.contains("stop what uses the port or the socket"),
        "{error}"
    );
    assert!(
        weir(&["health", "--grpc", "--grpc-uds", &text])
            .status
            .success(),
        "the first is still there"
    );

    assert!(first.terminate().success());
    assert!(!path.exists(), "it is removed at the end");
    let file = files.write("file", "text");
    let refused = weir(&[
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--grpc-uds",
        &files.text("file"),
        "--config",
        &text.replace("weir.sock", ""),
    ]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1), "{error}");
    assert_eq!(std::fs::read_to_string(file).expect("still there"), "text");
}

async fn unix_channel(path: &str) -> tonic::transport::Channel {
    tonic::transport::Endpoint::try_from(format!("unix:{path}"))
        .expect("a path")
        .connect()
        .await
        .expect("a connection")
}

#[test]
fn envoy_asks_over_a_unix_socket() {
    let files = Files::new();
    let text = files.text("weir.sock");
    let example = tools::file("config/basic.yaml");
    let weir = Weir::start(
        &[("basic.yaml", &example)],
        &[("GRPC_UDS", &text), ("GRPC_UDS_MODE", "0666")],
    );
    assert_eq!(mode(&files.path("weir.sock")), 0o666);
    let configuration =
        crate::service::envoy::example_configuration(SocketAddr::from(([127, 0, 0, 1], 1)));
    let socket = "address: { socket_address: { address: 127.0.0.1, port_value: 1 } }";
    let envoy = Envoy::start(&with(
        &configuration,
        socket,
        &format!("address: {{ pipe: {{ path: {text} }} }}"),
    ));
    let response = http_client::get(envoy.listener("front"), "/");
    assert!(
        response.header("x-ratelimit-limit").is_some(),
        "{response:?}"
    );
    // Of the calls, and of health checks.
    assert_eq!(weir.metric("weir_connections"), Some(2.0));
}
