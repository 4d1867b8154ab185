//! Certificates that are replaced while Weir serves.

use super::*;
use crate::support::config_map::publish_all;
use crate::support::wait::eventually_async;

/// Waits for a new connection to be shown a certificate other than this one.
async fn another_is_shown(tls: &TlsClient, before: &[u8]) {
    let began = tokio::time::Instant::now();
    while tls.certificate().await == before {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "the certificate is not replaced"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_certificate_is_replaced_under_running_calls() {
    let secured = Secured::start(&[]);
    let tls = secured.tls();
    let (first, mut client) = (
        tls.certificate().await,
        tls.client().await.expect("a connection"),
    );
    let expiry = |secured: &Secured| {
        secured
            .weir
            .metric("weir_certificate_expiry_timestamp_seconds")
            .expect("a gauge")
    };
    assert!(
        expiry(&secured) > 1.8e9,
        "rcgen's certificates are valid for long"
    );
    let handshakes = secured.handshakes("completed");
    let mut calling = client.clone();
    let calls = tokio::spawn(async move {
        for _ in 0..200 {
            assert!(is_answered(&mut calling).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    secured
        .files
        .write_issued("tls", &secured.authority.issue(&["localhost"]));
    another_is_shown(&tls, &first).await;
    calls.await.expect("all are answered");
    assert!(is_answered(&mut client).await, "the connection of before");
    assert!(secured.handshakes("completed") > handshakes);
    assert_eq!(
        secured
            .weir
            .metric("weir_certificate_reloads_total{result=\"loaded\"}"),
        Some(1.0)
    );
    secured
        .weir
        .wait_for_log("certificate of the gRPC port replaced")
        .await;
    // An expired one is used too, because clients may not verify it, and the gauge shows it.
    secured
        .files
        .write_issued("tls", &secured.authority.issue_expired(&["localhost"]));
    secured.weir.wait_for_log("it has expired").await;
    assert_eq!(expiry(&secured), 1_009_843_200.0, "2002");
    assert!(tls.connect().await.is_err(), "this client verifies it");
}

#[tokio::test]
async fn files_that_cannot_be_used_change_nothing() {
    let secured = Secured::start(&[]);
    let tls = secured.tls();
    let first = tls.certificate().await;
    let reloads = |result: &str| {
        secured
            .weir
            .metric(&format!(
                "weir_certificate_reloads_total{{result=\"{result}\"}}"
            ))
            .expect("a counter")
    };
    let other = secured.authority.issue(&["localhost"]);
    secured.files.write("tls.crt", &other.certificate);
    let line = secured
        .weir
        .wait_for_log("keeping the current certificate")
        .await;
    assert!(
        line.contains("GRPC_SERVER_TLS_KEY")
            && line.contains("tls.key")
            && line.contains("first certificate"),
        "{line}"
    );
    assert_eq!(
        (
            reloads("refused"),
            secured
                .weir
                .metric("weir_certificate_last_reload_successful")
        ),
        (1.0, Some(0.0))
    );
    assert_eq!(tls.certificate().await, first);
    std::fs::remove_file(secured.files.path("tls.key")).expect("there");
    assert!(
        eventually_async(|| (reloads("refused") == 2.0).then_some(()))
            .await
            .is_some(),
        "a missing file too"
    );
    assert_eq!(tls.certificate().await, first);
    // The rest of the pair arrives.
    secured.files.write("tls.key", &other.key);
    another_is_shown(&tls, &first).await;
    assert_eq!(
        (
            reloads("loaded"),
            secured
                .weir
                .metric("weir_certificate_last_reload_successful")
        ),
        (1.0, Some(1.0))
    );
    assert!(accepts(&tls).await);
}

/// As Kubernetes replaces a Secret: a link to a folder with all files is swapped. The authority of
/// clients is replaced with them.
#[tokio::test]
async fn a_secret_of_kubernetes_is_replaced_as_a_whole() {
    let files = Files::new();
    let folder = files.path("");
    let publish = |version: &str, issued: &Issued, authority: &Authority| {
        publish_all(
            &folder,
            version,
            &[
                ("tls.crt", &issued.certificate),
                ("tls.key", &issued.key),
                ("ca.crt", &authority.pem()),
            ],
        );
    };
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    publish("..2001", &first.issue(&["localhost"]), &first);
    let ca = files.text("ca.crt");
    let secured = Secured::start_with(first, files, &[("GRPC_CLIENT_TLS_CACERT", &ca)]);
    let versions = [&rustls::version::TLS13];
    let old = secured.authority.issue(&["envoy"]);
    assert!(accepts(&secured.tls_with(Some(&old), &versions)).await);
    publish("..2002", &second.issue(&["localhost"]), &second);
    secured
        .weir
        .wait_for_log("certificate of the gRPC port replaced")
        .await;
    let client = |identity| {
        TlsClient::with(
            secured.weir.grpc_addr(),
            &second.pem(),
            Some(identity),
            &versions,
        )
    };
    let new = second.issue(&["envoy"]);
    assert!(accepts(&client(&new)).await);
    assert!(!accepts(&client(&old)).await, "the authority of before");
}

#[tokio::test]
async fn authorities_that_change_all_the_time_do_not_keep_a_certificate_out() {
    let (authority, files) = (Authority::new("first"), Files::new());
    let (pem, ca, path) = (authority.pem(), files.path("ca.crt"), files.text("ca.crt"));
    files.write("ca.crt", &pem);
    files.write_issued("tls", &authority.issue(&["localhost", "127.0.0.1"]));
    let settings = [("GRPC_CLIENT_TLS_CACERT", &*path)];
    let secured = Secured::start_with(authority, files, &settings);
    let identity = secured.authority.issue(&["client"]);
    let tls = secured.tls_with(Some(&identity), &[&rustls::version::TLS13]);
    let first = tls.certificate().await;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writes = std::thread::spawn(move || {
        for number in 1.. {
            let text = format!("{pem}# {number}\n");
            std::fs::write(&ca, text).expect("written");
            let pause = Duration::from_millis(200);
            if stopped.recv_timeout(pause) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                break;
            }
        }
    });
    secured
        .files
        .write_issued("tls", &secured.authority.issue(&["localhost"]));
    another_is_shown(&tls, &first).await;
    drop(stop);
    writes.join().expect("written");
}
