//! Envoy in front of a Weir with TLS, as Envoy Gateway configures it: an authority without a name
//! to verify, a certificate of its own, no ALPN.

use super::*;
use crate::service::envoy::example_configuration;
use crate::support::envoy::{Envoy, with};

/// The example configuration with this TLS in the cluster of Weir.
fn configuration(secured: &Secured, certificate: &str) -> String {
    let tls = format!(
        "      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            validation_context: {{ trusted_ca: {{ filename: {} }} }}{certificate}
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

fn certificate(certificate: &str, key: &str) -> String {
    format!(
        "
            tls_certificates:
              - certificate_chain: {{ filename: {certificate} }}
                private_key: {{ filename: {key} }}"
    )
}

/// Weir with the example's limits.
fn secured(more: &[(&str, &str)], files: Files) -> Secured {
    let authority = Authority::new("first");
    files.write("ca.crt", &authority.pem());
    files.write_issued("tls", &authority.issue(&["*.envoy-gateway-system"]));
    let (cert, key) = (files.text("tls.crt"), files.text("tls.key"));
    let tls = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &cert),
        ("GRPC_SERVER_TLS_KEY", &key),
    ];
    let example = tools::file("config/basic.yaml");
    let weir = Weir::start(&[("basic.yaml", &example)], &[&tls[..], more].concat());
    Secured {
        weir,
        authority,
        files,
    }
}

#[test]
fn envoy_is_limited_over_tls() {
    let secured = secured(&[], Files::new());
    let envoy = Envoy::start(&configuration(&secured, ""));
    let front = envoy.listener("front");
    crate::support::wait::away_from_the_end_of_a_minute();
    let statuses: Vec<_> = (0..25)
        .map(|_| http_client::get(front, "/").status)
        .collect();
    assert_eq!(
        (&statuses[..20], &statuses[20..]),
        (&[200; 20][..], &[429; 5][..])
    );
    // Of the calls, and of health checks.
    assert_eq!(
        envoy.stat("cluster.weir.ssl.handshake"),
        2,
        "{}",
        envoy.log()
    );
    assert_eq!(
        envoy.stat("cluster.weir.ratelimit.error")
            + envoy.stat("cluster.application.ratelimit.error"),
        0
    );
}

#[test]
fn envoy_has_to_present_its_certificate_where_clients_are_verified() {
    let files = Files::new();
    let ca = files.text("ca.crt");
    let secured = secured(&[("GRPC_CLIENT_TLS_CACERT", &ca)], files);
    secured
        .files
        .write_issued("envoy", &secured.authority.issue(&["envoy"]));
    let own = certificate(
        &secured.files.text("envoy.crt"),
        &secured.files.text("envoy.key"),
    );
    let with_one = Envoy::start(&configuration(&secured, &own));
    crate::support::wait::away_from_the_end_of_a_minute();
    assert!(
        http_client::get(with_one.listener("front"), "/")
            .header("x-ratelimit-limit")
            .is_some(),
        "Weir answered"
    );
    let without = Envoy::start(&configuration(&secured, ""));
    let response = http_client::get(without.listener("front"), "/");
    assert!(
        response.status == 200 && response.header("x-ratelimit-limit").is_none(),
        "Envoy lets it pass: {response:?}"
    );
    let logged = crate::support::wait::eventually(|| {
        secured
            .weir
            .logs()
            .into_iter()
            .find(|line| line.contains("presents no certificate"))
    });
    assert!(logged.is_some(), "and Weir says why");
}

/// While connections end at an age of a second, each request is decided.
#[test]
fn no_call_is_lost_while_connections_are_replaced() {
    let secured = secured(&[("GRPC_MAX_CONNECTION_AGE", "1s")], Files::new());
    let envoy = Envoy::start(&configuration(&secured, ""));
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
