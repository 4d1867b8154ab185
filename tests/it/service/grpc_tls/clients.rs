//! Certificates of clients.

use super::*;
use crate::support::certificates::self_signed;

#[tokio::test]
async fn a_client_has_to_present_a_valid_certificate() {
    let (authority, files) = (Authority::new("first"), Files::new());
    files.write("ca.crt", &authority.pem());
    files.write_issued("tls", &authority.issue(&["localhost"]));
    let (ca, own) = (files.text("ca.crt"), self_signed(&["own"]));
    files.write("ca.crt", &(authority.pem() + &own.certificate));
    let secured = Secured::start_with(authority, files, &[("GRPC_CLIENT_TLS_CACERT", &ca)]);
    let authority = &secured.authority;
    let (good, expired) = (
        authority.issue(&["envoy"]),
        authority.issue_expired(&["envoy"]),
    );
    let (strange, strange_self_signed) = (
        Authority::new("stranger").issue(&["envoy"]),
        self_signed(&["envoy"]),
    );
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for (identity, is_accepted, what) in [
            (Some(&good), true, "signed by the authority"),
            (Some(&own), true, "an authority's own"),
            (None, false, "none"),
            (Some(&strange), false, "a stranger's"),
            (Some(&strange_self_signed), false, "self-signed"),
            (Some(&expired), false, "expired"),
        ] {
            assert_eq!(
                accepts(&secured.tls_with(identity, &[version])).await,
                is_accepted,
                "{what}, {version:?}"
            );
        }
    }
    secured.weir.wait_for_log("presents no certificate").await;
    secured
        .weir
        .wait_for_log("client certificate rejected")
        .await;
    // A client of TLS 1.3 hears of the refusal after its own handshake, and may connect once more.
    assert_eq!(secured.handshakes("completed"), 4.0);
    assert!(secured.handshakes("failed") >= 8.0);
}

#[tokio::test]
async fn a_client_may_have_to_have_a_name() {
    for (san, right) in [
        ("envoy.example", "envoy.example"),
        ("spiffe://cluster.local/ns/eg/sa/envoy", "any"),
    ] {
        let files = Files::new();
        let ca = files.text("ca.crt");
        let authority = Authority::new("first");
        files.write("ca.crt", &authority.pem());
        files.write_issued("tls", &authority.issue(&["localhost"]));
        let secured = Secured::start_with(
            authority,
            files,
            &[
                ("GRPC_CLIENT_TLS_CACERT", &ca),
                ("GRPC_CLIENT_TLS_SAN", san),
            ],
        );
        let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
        let uri = if san.contains("://") {
            san
        } else {
            "spiffe://other"
        };
        let named = secured.authority.issue_with_uri(&[right], uri);
        assert!(
            accepts(&secured.tls_with(Some(&named), &versions)).await,
            "{san}"
        );
        let other = secured
            .authority
            .issue_with_uri(&["other.example"], "spiffe://other");
        assert!(
            !accepts(&secured.tls_with(Some(&other), &versions)).await,
            "{san}"
        );
    }
}
