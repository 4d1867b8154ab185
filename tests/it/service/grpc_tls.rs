//! TLS on the gRPC port of a real process: keys of every form, versions and ALPN, the certificates
//! of clients, rotation, and clients that are wrong here.

mod clients;
mod envoy;
mod floods;
mod rotation;

use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use tokio_rustls::rustls;

use crate::support::certificates::{Authority, Files, Issued};
use crate::support::tls_client::TlsClient;
use crate::support::{Client, DEMO, Weir, descriptor, http_client, request, tools};

/// A Weir with TLS, its authority and its files.
struct Secured {
    weir: Weir,
    authority: Authority,
    files: Files,
}

impl Secured {
    /// With a certificate for localhost, and these further settings.
    fn start(more: &[(&str, &str)]) -> Self {
        let (authority, files) = (Authority::new("first"), Files::new());
        files.write("ca.crt", &authority.pem());
        files.write_issued("tls", &authority.issue(&["localhost", "127.0.0.1"]));
        Self::start_with(authority, files, more)
    }

    /// With `tls.crt` and `tls.key` of these files.
    fn start_with(authority: Authority, files: Files, more: &[(&str, &str)]) -> Self {
        let (certificate, key) = (files.text("tls.crt"), files.text("tls.key"));
        let tls = [
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &certificate),
            ("GRPC_SERVER_TLS_KEY", &key),
        ];
        let weir = Weir::start(DEMO, &[&tls[..], more].concat());
        Self {
            weir,
            authority,
            files,
        }
    }

    fn tls(&self) -> TlsClient {
        TlsClient::new(self.weir.grpc_addr(), &self.authority.pem())
    }

    /// A client that shows this certificate, with these versions.
    fn tls_with(
        &self,
        identity: Option<&Issued>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> TlsClient {
        TlsClient::with(
            self.weir.grpc_addr(),
            &self.authority.pem(),
            identity,
            versions,
        )
    }

    fn handshakes(&self, outcome: &str) -> f64 {
        self.weir
            .metric(&format!(
                "weir_tls_handshakes_total{{outcome=\"{outcome}\"}}"
            ))
            .expect("a counter")
    }
}

/// Whether a call is answered.
async fn is_answered(client: &mut Client) -> bool {
    let asked = client.should_rate_limit(request("demo", vec![descriptor(&[("no", "limit")])]));
    tokio::time::timeout(Duration::from_secs(10), asked)
        .await
        .expect("in time")
        .is_ok()
}

/// Whether a new connection is accepted and its call answered.
async fn accepts(client: &TlsClient) -> bool {
    match client.client().await {
        Ok(mut client) => is_answered(&mut client).await,
        Err(_) => false,
    }
}

#[tokio::test]
async fn keys_of_every_form_are_served_in_tls_1_2_and_1_3() {
    let fixture = |name: &str| tools::file(&format!("tests/vectors/tls/{name}"));
    let generated = |algorithm| {
        KeyPair::generate_for(algorithm)
            .expect("a key")
            .serialize_pem()
    };
    let (p384, ed25519) = (
        generated(&rcgen::PKCS_ECDSA_P384_SHA384),
        generated(&rcgen::PKCS_ED25519),
    );
    for (what, pkcs8, written) in [
        ("PKCS#1", fixture("rsa.pkcs8.pem"), fixture("rsa.pkcs1.pem")),
        (
            "RSA, PKCS#8",
            fixture("rsa.pkcs8.pem"),
            fixture("rsa.pkcs8.pem"),
        ),
        ("SEC1", fixture("ec.pkcs8.pem"), fixture("ec.sec1.pem")),
        ("P-384", p384.clone(), p384),
        ("Ed25519", ed25519.clone(), ed25519),
    ] {
        let (authority, files) = (Authority::new("first"), Files::new());
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        files.write(
            "tls.crt",
            &authority.sign_for(&params, &KeyPair::from_pem(&pkcs8).expect("a key")),
        );
        files.write("tls.key", &written);
        let secured = Secured::start_with(authority, files, &[]);
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            assert!(
                accepts(&secured.tls_with(None, &[version])).await,
                "{what}, {version:?}"
            );
        }
    }
}

#[tokio::test]
async fn http2_is_offered_and_not_demanded() {
    let secured = Secured::start(&[]);
    let tls = secured.tls();
    // Weir has not read the end of a handshake when the client has finished it.
    let mut open = Vec::new();
    for (offered, chosen) in [
        (&[][..], None),
        (&[&b"h2"[..]][..], Some(&b"h2"[..])),
        (&[b"http/1.1", b"h2"], Some(b"h2")),
    ] {
        let stream = tls.offering(offered).connect().await.expect("a handshake");
        assert_eq!(stream.get_ref().1.alpn_protocol(), chosen);
        open.push(stream);
        assert!(accepts(&tls.offering(offered)).await, "{offered:?}");
    }
    assert!(tls.offering(&[b"http/1.1"]).connect().await.is_err());
    secured.weir.wait_for_log("does not offer h2").await;
    assert_eq!(secured.handshakes("failed"), 1.0);
}

#[tokio::test]
async fn a_client_that_is_wrong_on_its_port_is_answered_and_logged() {
    let secured = Secured::start(&[]);
    let weir = &secured.weir;
    let response = http_client::get(weir.grpc_addr(), "/");
    assert!(
        response.status == 400 && response.body.contains("inside TLS"),
        "{response:?}"
    );
    let line = weir.wait_for_log("client speaks plaintext").await;
    assert!(line.contains("127.0.0.1"), "{line}");
    let plain = tonic::transport::Endpoint::try_from(format!("http://{}", weir.grpc_addr()))
        .expect("an address")
        .connect()
        .await;
    if let Ok(channel) = plain {
        let asked = Client::new(channel)
            .should_rate_limit(request("demo", vec![descriptor(&[("no", "limit")])]))
            .await;
        assert!(asked.is_err(), "HTTP/2 without TLS");
    }
    assert!(accepts(&secured.tls()).await, "others are served");

    let plaintext = Weir::start(DEMO, &[]);
    assert!(
        TlsClient::new(plaintext.grpc_addr(), &secured.authority.pem())
            .connect()
            .await
            .is_err()
    );
    plaintext
        .wait_for_log("client speaks TLS to the gRPC port without TLS")
        .await;
    for _ in 0..20 {
        let _ = TlsClient::new(plaintext.grpc_addr(), &secured.authority.pem())
            .connect()
            .await;
    }
    let lines = plaintext
        .logs()
        .iter()
        .filter(|line| line.contains("speaks TLS"))
        .count();
    assert_eq!(lines, 1, "once a minute");
}

/// Runs a command; its exit code, and its output.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .env_clear()
        .output()
        .expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout) + &text(&output.stderr),
    )
}

/// `weir hit` and `weir health` with TLS.
#[test]
fn commands_speak_tls() {
    let secured = Secured::start(&[]);
    let (address, files) = (secured.weir.grpc_addr().to_string(), &secured.files);
    let (ca, certificate, key) = (
        files.text("ca.crt"),
        files.text("tls.crt"),
        files.text("tls.key"),
    );
    let hit = ["hit", "-d", "demo", "year=1", "--address", &address];
    let (code, text) = run(&[&hit[..], &["--cacert", &ca]].concat());
    assert_eq!(code, Some(0), "{text}");
    for (more, hint) in [
        (&["--tls"][..], "set --cacert"),
        (
            &["--cacert", &ca, "--server-name", "other.example"],
            "--server-name",
        ),
        (&[], "TLS if GRPC_SERVER_USE_TLS is"),
    ] {
        let (code, text) = run(&[&hit[..], more].concat());
        assert!(
            code == Some(1) && text.contains(hint),
            "{hint} is not in: {text}"
        );
    }
    let port = secured.weir.grpc_addr().port().to_string();
    let health = [
        "health",
        "--grpc",
        "--grpc-host",
        "127.0.0.1",
        "--grpc-port",
        &port,
    ];
    let tls = [
        "--grpc-server-use-tls",
        "--grpc-server-tls-cert",
        &certificate,
        "--grpc-server-tls-key",
        &key,
    ];
    let (code, text) = run(&[&health[..], &tls].concat());
    assert_eq!((code, text.as_str()), (Some(0), "healthy\n"));
    assert_eq!(run(&health).0, Some(1), "without TLS");
}

/// A service that verifies clients: its alert arrives after the handshake, and is named.
#[test]
fn commands_name_the_alert_of_a_refused_client() {
    let secured = Secured::start(&[]);
    let trusted = secured.files.text("ca.crt");
    let verifying = Secured::start(&[("GRPC_CLIENT_TLS_CACERT", &trusted)]);
    let address = verifying.weir.grpc_addr().to_string();
    let ca = verifying.files.text("ca.crt");
    let load = [
        "load",
        "--address",
        &address,
        "-d",
        "demo",
        "--descriptor",
        "a=b",
    ];
    for command in [&["hit", &address, "-d", "demo", "a=b"][..], &load] {
        for wanted in ["", "DecryptError"] {
            let (other, own) = (&verifying.files, ["--cert", "--key"]);
            let paths = [other.text("tls.crt"), other.text("tls.key")];
            let identity = [own[0], &paths[0], own[1], &paths[1]];
            let more = if wanted.is_empty() {
                &[][..]
            } else {
                &identity
            };
            let (code, text) = run(&[command, &["--cacert", &ca], more].concat());
            let alert = if wanted.is_empty() {
                "refuses the client (received fatal alert: CertificateRequired): the service wants a \
                 client certificate: set --cert and --key"
            } else {
                "refuses the client (received fatal alert: DecryptError): the service ends"
            };
            assert!(
                code == Some(1) && text.contains(alert),
                "{command:?}: {text}"
            );
        }
    }
}
