//! The connection to the control plane: silence, restarts, lost connections, and TLS.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::{amount, start, users, wait_for_amount};
use crate::support::certificates::{Authority, Files, Issued};
use crate::support::control_plane::{ControlPlane, Sent};
use crate::support::ports;
use crate::support::proxy::{Forwarding, Proxy};
use crate::support::wait::eventually_async;

#[tokio::test]
async fn silence_is_no_error_and_is_reported_after_ten_seconds() {
    let control = ControlPlane::start();
    let weir = start(&control.url(), &[]);
    let client = &mut weir.client().await;
    control.wait_for(|_| true).await;
    let waiting = eventually_async(|| {
        weir.metric("weir_xds_state{state=\"waiting\"}")
            .filter(|state| *state > 0.0)
    })
    .await;
    assert_eq!(waiting, Some(1.0));
    let line = weir
        .wait_for_log("the control plane has sent no limits for 10 s")
        .await;
    assert!(
        line.contains("envoy-ratelimit") && line.contains(&control.url()),
        "{line}"
    );
    assert_eq!(weir.get("/healthcheck").0, 500);
    assert_eq!(control.requests().len(), 1, "silence ends no stream");
    control.set("1", [users("a", 2)]);
    wait_for_amount(client, "a", 2).await;
}

#[tokio::test]
async fn a_node_that_the_control_plane_does_not_know_gets_nothing() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 2)]);
    let weir = start(
        &control.url(),
        &[
            ("CONFIG_GRPC_XDS_NODE_ID", "other"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ],
    );
    control.wait_for(|asked| asked.node.id == "other").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        (
            amount(&mut weir.client().await, "a").await,
            control.sent().len()
        ),
        (None, 0)
    );
}

/// The version of Envoy Gateway is a counter that begins at 1 with each start of its controller.
#[tokio::test]
async fn a_restarted_control_plane_may_use_the_same_version_for_other_limits() {
    let control = ControlPlane::start();
    let url = control.url();
    control.set("1", [users("a", 2), users("b", 2)]);
    let weir = start(&url, &[]);
    let client = &mut weir.client().await;
    wait_for_amount(client, "a", 2).await;
    control.wait_for_ack("1").await;
    drop(control);
    weir.wait_for_log("no connection to the control plane")
        .await;
    assert_eq!(weir.metric("weir_xds_connected"), Some(0.0));
    assert_eq!(
        amount(client, "a").await,
        Some(2),
        "a lost control plane changes nothing"
    );

    let control = ControlPlane::start_at(url.parse().expect("an address"));
    control.set("1", [users("a", 9)]);
    wait_for_amount(client, "a", 9).await;
    assert_eq!(amount(client, "b").await, Some(0));
    control.wait_for_ack("1").await;
    let first = &control.requests()[0];
    assert_eq!(
        (first.version.as_str(), first.nonce.as_str(), &first.error),
        ("", "", &None)
    );
}

/// The other end is gone without a word: a Kubernetes Service that moved.
#[tokio::test]
async fn a_half_open_connection_is_replaced() {
    let control = ControlPlane::start();
    control.set("1", [users("a", 2)]);
    let proxy = Proxy::start(control.address());
    let weir = start(
        &proxy.address().to_string(),
        &[("CONFIG_GRPC_XDS_PING_INTERVAL", "1s")],
    );
    let client = &mut weir.client().await;
    wait_for_amount(client, "a", 2).await;
    proxy.to_server(Forwarding::BlackHole);
    proxy.to_client(Forwarding::BlackHole);
    let begin = Instant::now();
    control.set("2", [users("a", 3)]);
    weir.wait_for_log("no connection to the control plane")
        .await;
    println!("noticed after {:?}", begin.elapsed());
    assert_eq!(amount(client, "a").await, Some(2));
    proxy.to_server(Forwarding::Pass);
    proxy.to_client(Forwarding::Pass);
    wait_for_amount(client, "a", 3).await;
}

/// The types of the frames that arrive within `time`, or until one is of the type `last`. Answers
/// the client's SETTINGS, and nothing else.
async fn frames(stream: &mut TcpStream, time: Duration, last: Option<u8>) -> Vec<u8> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const ACK: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];
    let mut types = Vec::new();
    let read = async {
        stream
            .write_all(&[SETTINGS, ACK].concat())
            .await
            .expect("written");
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.expect("a preface");
        while types.last().is_none_or(|kind| Some(*kind) != last) {
            let mut header = [0; 9];
            stream.read_exact(&mut header).await.expect("a frame");
            let mut payload =
                vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
            stream.read_exact(&mut payload).await.expect("its payload");
            types.push(header[3]);
        }
    };
    let _ = tokio::time::timeout(time, read).await;
    types
}

/// Go's gRPC servers close a connection with PINGs that come more often than every five minutes.
#[tokio::test]
async fn pings_come_as_often_as_the_setting_says_and_seldom_without_it() {
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    for (environment, pings) in [
        (&[("CONFIG_GRPC_XDS_PING_INTERVAL", "1s")][..], true),
        (&[], false),
    ] {
        let address = ports::free();
        let listener = TcpListener::bind(address).await.expect("free");
        let _weir = start(&address.to_string(), environment);
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let types = frames(&mut stream, Duration::from_secs(4), Some(PING)).await;
        assert!(types.contains(&HEADERS), "{types:?}");
        assert_eq!(types.contains(&PING), pings, "{types:?}");
    }
}

#[tokio::test]
async fn a_server_that_ends_each_stream_at_once_is_not_asked_without_a_pause() {
    let control = ControlPlane::start();
    let proxy = Proxy::start(control.address());
    proxy.to_client(Forwarding::CutAfter { bytes: 40 });
    let weir = start(
        &proxy.address().to_string(),
        &[("XDS_CLIENT_BACKOFF_JITTER", "false")],
    );
    tokio::time::sleep(Duration::from_secs(4)).await;
    let connections = proxy.traffic().connections;
    // After 0.5 s, 1 s and 2 s.
    assert!(
        (2..=5).contains(&connections),
        "{connections} connections in 4 s"
    );
    let lines = weir
        .logs()
        .iter()
        .filter(|line| line.contains("control plane"))
        .count();
    assert!(lines <= 6, "{lines} lines");
}

#[tokio::test]
async fn a_configuration_beyond_the_bound_is_refused_by_name() {
    let control = ControlPlane::start();
    control.set("1", [Sent::raw("large", vec![0; 100_000])]);
    let weir = start(
        &control.url(),
        &[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "50000")],
    );
    weir.wait_for_log("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES").await;
    control.set("2", [users("a", 2)]);
    wait_for_amount(&mut weir.client().await, "a", 2).await;
}

/// TLS as Envoy Gateway's control plane has it: a certificate of its own authority, and one asked
/// from each client.
pub(crate) fn server_config(authority: &Authority, issued: &Issued) -> ServerConfig {
    let certificates = |pem: &str| {
        CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .expect("PEM")
    };
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(&authority.pem()));
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .expect("a root");
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS 1.3")
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            certificates(&issued.certificate),
            PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).expect("a key"),
        )
        .expect("a pair");
    // Go's gRPC servers refuse a client that offers no ALPN; rustls refuses one that offers no
    // common protocol.
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

#[tokio::test]
async fn tls_with_client_certificates_follows_rotated_files() {
    let (authority, other) = (Authority::new("control plane"), Authority::new("other"));
    let files = Files::new();
    files.write("ca.crt", &authority.pem());
    files.write_issued("tls", &other.issue(&["envoy-ratelimit"]));
    let control = ControlPlane::start_with_tls(server_config(
        &authority,
        &authority.issue(&["envoy-gateway"]),
    ));
    control.set("1", [users("a", 2)]);
    let (ca, certificate, key) = (
        files.text("ca.crt"),
        files.text("tls.crt"),
        files.text("tls.key"),
    );
    let environment = [
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"),
    ];
    let weir = start(&control.url(), &environment);
    let client = &mut weir.client().await;
    let line = weir
        .wait_for_log("no connection to the control plane")
        .await;
    println!("{line}");
    assert_eq!(
        amount(client, "a").await,
        None,
        "the control plane does not trust this client"
    );
    files.write_issued("tls", &authority.issue(&["envoy-ratelimit"]));
    wait_for_amount(client, "a", 2).await;

    // A control plane that only claims to be the one.
    drop(control);
    let impostor =
        ControlPlane::start_with_tls(server_config(&authority, &other.issue(&["envoy-gateway"])));
    let weir = start(&impostor.url(), &environment);
    weir.wait_for_log("CONFIG_GRPC_XDS_SERVER_TLS_CACERT").await;
    let other_name = ControlPlane::start_with_tls(server_config(
        &authority,
        &authority.issue(&["another-name"]),
    ));
    let weir = start(&other_name.url(), &environment);
    weir.wait_for_log("CONFIG_GRPC_XDS_SERVER_TLS_SAN").await;
    assert_eq!(
        (impostor.requests().len(), other_name.requests().len()),
        (0, 0)
    );
}

#[tokio::test]
async fn plain_text_and_tls_that_meet_are_explained() {
    let control = ControlPlane::start();
    let weir = start(
        &control.url(),
        &[("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")],
    );
    weir.wait_for_log("CONFIG_GRPC_XDS_SERVER_USE_TLS").await;
    let authority = Authority::new("control plane");
    let control =
        ControlPlane::start_with_tls(server_config(&authority, &authority.issue(&["127.0.0.1"])));
    let weir = start(&control.url(), &[]);
    weir.wait_for_log("no connection to the control plane")
        .await;
}
