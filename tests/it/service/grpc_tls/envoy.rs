//! Envoy in front of a Weir with TLS, as Envoy Gateway configures it: an authority without a name
//! to verify, no ALPN.

use super::*;
use crate::service::envoy::example_configuration;
use crate::support::envoy::{Envoy, with};

/// The example configuration with this TLS in the cluster of Weir.
fn configuration(secured: &Secured) -> String {
    let tls = format!(
        "      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            validation_context: {{ trusted_ca: {{ filename: {} }} }}
      load_assignment:
        cluster_name: weir\n",
        secured.files.text("ca.crt")
    );
    with(
        &example_configuration(secured.weir.grpc_addr()),
        "      load_assignment:\n        cluster_name: weir\n",
        &tls,
    )
}

/// Weir with the example's limits, whose connections end at an age of a second.
fn secured() -> Secured {
    let (authority, files) = (Authority::new("first"), Files::new());
    files.write("ca.crt", &authority.pem());
    files.write_issued("tls", &authority.issue(&["*.envoy-gateway-system"]));
    let (cert, key) = (files.text("tls.crt"), files.text("tls.key"));
    let tls = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &cert),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_MAX_CONNECTION_AGE", "1s"),
    ];
    let example = tools::file("config/basic.yaml");
    let weir = Weir::start(&[("basic.yaml", &example)], &tls);
    Secured {
        weir,
        authority,
        files,
    }
}

/// While connections end at an age of a second, each request is decided.
#[test]
fn no_call_is_lost_while_connections_are_replaced() {
    let secured = secured();
    let envoy = Envoy::start(&configuration(&secured));
    let front = envoy.listener("front");
    let began = std::time::Instant::now();
    let mut asked = 0;
    while began.elapsed() < Duration::from_secs(5) {
        let response = http_client::get(front, "/");
        assert!(
            response.header("x-ratelimit-limit").is_some(),
            "request {asked} was not decided: {response:?}"
        );
        asked += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        asked > 100 && envoy.stat("cluster.weir.ssl.handshake") >= 3,
        "{asked}, {}",
        envoy.stat("cluster.weir.ssl.handshake")
    );
}
