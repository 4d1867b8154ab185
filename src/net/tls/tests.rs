//! Files of certificates and keys in every form, and the certificates of servers and clients that
//! are accepted. The keys in tests/vectors/tls are made for tests: ring cannot make RSA keys.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, date_time_ymd,
};
use tempfile::TempDir;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, Error, InvalidMessage, OtherError, RootCertStore,
};

use super::*;

/// The time of all tests: 2030.
const NOW: u64 = 1_893_456_000;

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/vectors/tls")
        .join(name)
}

fn identity(certificate: Option<&Path>, key: Option<&Path>) -> Result<Option<Identity>, TlsError> {
    Identity::try_new(("CERT", certificate), ("KEY", key))
}

/// A certificate of the authority that is a key's own.
fn self_signed(key: &KeyPair, names: &[&str], is_ca: IsCa) -> rcgen::Certificate {
    let mut params = CertificateParams::new(
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>(),
    )
    .expect("names");
    params.is_ca = is_ca;
    params.self_signed(key).expect("a certificate")
}

const AUTHORITY: IsCa = IsCa::Ca(BasicConstraints::Unconstrained);

/// Files that cannot be used: the error has these parts, and nothing of their content.
fn assert_unusable<const N: usize>(table: [(Result<(), TlsError>, [&str; 3]); N]) {
    for (result, parts) in table {
        let error = result.expect_err("unusable files").to_string();
        for part in parts {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        assert!(!error.contains("s3cret"), "{error}");
    }
}

const GARBAGE: &str = "-----BEGIN CERTIFICATE-----\nczNjcmV0\n-----END CERTIFICATE-----\n";

#[test]
fn errors_of_authorities_name_the_setting_the_file_and_the_remedy() {
    let folder = Folder::new();
    let missing = folder.0.path().join("missing.pem");
    let made = rcgen::generate_simple_self_signed(["weir".to_owned()]).expect("a certificate");
    let cert = folder.write("cert.pem", &made.cert.pem());
    let text = folder.write("text.pem", "s3cret");
    let garbage = folder.write("garbage.pem", GARBAGE);
    let long = folder.write("long.pem", &"s3cret\n".repeat(700_000));
    let authorities_of = |path: &Path| {
        authorities(Some(&PemFile {
            setting: "CACERT",
            path: path.to_owned(),
        }))
        .map(|_| ())
    };
    assert_unusable([
        (
            authorities_of(&missing),
            ["CACERT: ", "missing.pem", "may read"],
        ),
        (
            authorities_of(&text),
            ["CACERT: ", "text.pem", "no certificate"],
        ),
        (
            authorities_of(&garbage),
            ["CACERT: ", "garbage.pem", "authorities"],
        ),
        (
            authorities_of(&long),
            ["CACERT: ", "long.pem", "more than 4194304 bytes"],
        ),
    ]);
    authorities_of(&cert).expect("usable");
}

#[test]
fn errors_of_an_identity_name_the_setting_the_file_and_the_remedy() {
    let folder = Folder::new();
    let missing = folder.0.path().join("missing.pem");
    let made = rcgen::generate_simple_self_signed(["weir".to_owned()]).expect("a certificate");
    let cert = folder.write("cert.pem", &made.cert.pem());
    let key = folder.write("key.pem", &made.signing_key.serialize_pem());
    let other_key = folder.write(
        "other.pem",
        &KeyPair::generate().expect("a key").serialize_pem(),
    );
    let garbage = folder.write("garbage.pem", GARBAGE);
    let garbage_key = folder.write(
        "garbage-key.pem",
        "-----BEGIN RSA PRIVATE KEY-----\nczNjcmV0\n-----END RSA PRIVATE KEY-----\n",
    );
    let pair = |certificate: Option<&Path>, key: Option<&Path>| match identity(certificate, key) {
        Ok(identity) => identity.expect("set").read().map(|_| ()),
        Err(error) => Err(error),
    };
    assert_unusable([
        (pair(Some(&cert), None), ["CERT needs ", "KEY", "both"]),
        (
            pair(Some(&garbage), Some(&key)),
            ["CERT: ", "garbage.pem", "X.509"],
        ),
        (
            pair(Some(&cert), Some(&missing)),
            ["KEY: ", "missing.pem", "may read"],
        ),
        (
            pair(Some(&cert), Some(&other_key)),
            ["KEY: ", "other.pem", "first certificate in CERT"],
        ),
        (
            pair(Some(&cert), Some(&garbage_key)),
            ["KEY: ", "garbage-key.pem", "RSA key of 2048 bits"],
        ),
        (
            pair(Some(&cert), Some(&fixture("rsa.encrypted.pem"))),
            ["KEY: ", "not encrypted", "openssl pkey"],
        ),
        (
            pair(Some(&cert), Some(&fixture("rsa.pkcs1.encrypted.pem"))),
            ["KEY: ", "not encrypted", "openssl pkey"],
        ),
    ]);
    assert_eq!(identity(None, None).expect("neither"), None);
    pair(Some(&cert), Some(&key)).expect("usable");
}

fn roots(trusted: &[&CertificateDer<'static>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for &certificate in trusted {
        roots.add(certificate.clone()).expect("an authority");
    }
    roots
}

/// Result of a client that trusts these authorities, for a server with this certificate, at this
/// time.
fn as_client(
    trusted: &[&CertificateDer<'static>],
    name_check: NameCheck,
    presented: &CertificateDer<'_>,
    secs: u64,
) -> Result<(), Error> {
    let verifier = ServerVerifier {
        roots: roots(trusted),
        name_check,
        algorithms: provider().signature_verification_algorithms,
    };
    let host = ServerName::try_from("redis.example").expect("a name");
    verifier
        .verify_server_cert(
            presented,
            &[],
            &host,
            &[],
            UnixTime::since_unix_epoch(Duration::from_secs(secs)),
        )
        .map(|_| ())
}

/// As [`as_client`], of a server that verifies its clients.
fn as_server(
    trusted: &[&CertificateDer<'static>],
    name: Option<&str>,
    presented: &CertificateDer<'_>,
    secs: u64,
) -> Result<(), Error> {
    let name = name.map(|name| SubjectName::parse(name).expect("a name"));
    let verifier = ClientVerifier::try_new(roots(trusted), name, provider()).expect("authorities");
    verifier
        .verify_client_cert(
            presented,
            &[],
            UnixTime::since_unix_epoch(Duration::from_secs(secs)),
        )
        .map(|_| ())
}

fn is_untrusted_authority(result: &Result<(), Error>) -> bool {
    matches!(
        result,
        Err(Error::InvalidCertificate(CertificateError::Other(OtherError(error))))
            if error.is::<UntrustedAuthority>()
    )
}

/// `openssl req -x509` makes such a certificate, and so do most guides for Redis.
#[test]
fn a_self_signed_certificate_is_accepted_where_it_is_trusted() {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["redis.example".to_owned()]).expect("names");
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2040, 1, 1));
    params.is_ca = AUTHORITY;
    let own = params.self_signed(&key).expect("a certificate");
    let stranger = self_signed(
        &KeyPair::generate().expect("a key"),
        &["redis.example"],
        AUTHORITY,
    );
    let (own, stranger) = (own.der(), stranger.der());
    let other_name = NameCheck::Only(SubjectName::parse("other.example").expect("a name"));

    assert_eq!(
        as_client(&[stranger, own], NameCheck::Strict, own, NOW),
        Ok(())
    );
    assert_eq!(as_client(&[own], NameCheck::Skipped, own, NOW), Ok(()));
    assert!(matches!(
        as_client(&[own], other_name, own, NOW),
        Err(Error::InvalidCertificate(
            CertificateError::NotValidForNameContext { .. }
        ))
    ));
    for name_check in [NameCheck::Strict, NameCheck::Skipped] {
        let untrusted = as_client(&[stranger], name_check.clone(), own, NOW);
        assert!(
            is_untrusted_authority(&untrusted),
            "{name_check:?}: {untrusted:?}"
        );
        let expired = as_client(&[own], name_check.clone(), own, 2_240_000_000);
        assert!(
            matches!(
                expired,
                Err(Error::InvalidCertificate(
                    CertificateError::ExpiredContext { .. }
                ))
            ),
            "{name_check:?}: {expired:?}"
        );
        let early = as_client(&[own], name_check.clone(), own, 1_000_000_000);
        assert!(
            matches!(
                early,
                Err(Error::InvalidCertificate(
                    CertificateError::NotValidYetContext { .. }
                ))
            ),
            "{name_check:?}: {early:?}"
        );
    }
    assert_eq!(as_server(&[own], None, own, NOW), Ok(()));
    assert!(is_untrusted_authority(&as_server(
        &[stranger],
        None,
        own,
        NOW
    )));
    assert!(
        as_server(&[own], None, own, 2_240_000_000).is_err(),
        "expired"
    );
}

#[test]
fn a_certificate_has_to_be_signed_by_a_trusted_authority_and_valid_for_the_name() {
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        params.is_ca = AUTHORITY;
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
            .expect("a certificate")
    };
    let (trusted, other) = (authority("trusted"), authority("other"));
    let mut params =
        CertificateParams::new(vec!["redis.example".to_owned(), "10.0.0.1".to_owned()])
            .expect("names");
    params.subject_alt_names.push(SanType::URI(
        "spiffe://cluster.local/ns/default/sa/envoy"
            .try_into()
            .expect("ASCII"),
    ));
    let presented = params
        .signed_by(&KeyPair::generate().expect("a key"), &trusted)
        .expect("a certificate");
    let (trusted, other, presented) = (trusted.der(), other.der(), presented.der());

    assert_eq!(
        as_client(&[trusted], NameCheck::Strict, presented, NOW),
        Ok(())
    );
    assert_eq!(
        as_client(&[other], NameCheck::Strict, presented, NOW),
        Err(CertificateError::UnknownIssuer.into())
    );
    assert_eq!(
        as_client(&[other], NameCheck::Skipped, presented, NOW),
        Err(CertificateError::UnknownIssuer.into())
    );
    assert_eq!(
        as_client(&[presented], NameCheck::Strict, presented, NOW),
        Ok(()),
        "it is trusted itself"
    );
    assert_eq!(as_server(&[trusted], None, presented, NOW), Ok(()));
    assert!(as_server(&[other], None, presented, NOW).is_err());
    for (name, is_valid) in [
        ("redis.example", true),
        ("10.0.0.1", true),
        ("spiffe://cluster.local/ns/default/sa/envoy", true),
        ("example", false),
        ("10.0.0.2", false),
        ("spiffe://cluster.local/ns/default/sa/other", false),
    ] {
        let only = NameCheck::Only(SubjectName::parse(name).expect("a name"));
        assert_eq!(
            as_client(&[trusted], only, presented, NOW).is_ok(),
            is_valid,
            "{name}"
        );
        assert_eq!(
            as_server(&[trusted], Some(name), presented, NOW).is_ok(),
            is_valid,
            "{name}"
        );
    }
    assert_eq!(SubjectName::parse("no name"), None);
}

#[test]
fn the_first_expiry_of_a_chain_is_known() {
    let until = |year| {
        let mut params = CertificateParams::new(vec!["weir".to_owned()]).expect("names");
        params.not_after = date_time_ymd(year, 1, 1);
        params.is_ca = if year == 2031 { AUTHORITY } else { IsCa::NoCa };
        params
            .self_signed(&KeyPair::generate().expect("a key"))
            .expect("a certificate")
            .der()
            .clone()
    };
    assert_eq!(
        expiry(&[until(2035), until(2031), until(2040)]),
        Some(1_924_992_000)
    );
    assert_eq!(expiry(&[until(2001)]), Some(978_307_200));
    assert_eq!(expiry(&[CertificateDer::from(vec![1, 2, 3])]), None);
}

const PEER: Peer = Peer {
    name: "Redis",
    address: "URL",
    authorities: "CACERT",
    other_name: Some("set SKIP=true"),
    identity: "CERT and KEY",
    without_tls: "write tls://",
};

fn hint_of(error: Error) -> Hint {
    hint(&io::Error::new(io::ErrorKind::InvalidData, error), &PEER).expect("an error of TLS")
}

#[test]
fn hints_about_certificates_name_the_setting_to_change() {
    let host = ServerName::try_from("redis.example").expect("a name");
    let not_valid = |presented: &[&str]| CertificateError::NotValidForNameContext {
        expected: host.clone(),
        presented: presented.iter().map(|&name| name.to_owned()).collect(),
    };
    for (error, parts) in [
        (
            CertificateError::UnknownIssuer,
            ["Redis", "set CACERT to its certificate"],
        ),
        (
            CertificateError::Other(OtherError(Arc::new(UntrustedAuthority))),
            ["self-signed", "set CACERT to a file with this certificate"],
        ),
        (not_valid(&[]), ["no name", "or set SKIP=true"]),
        (
            not_valid(&["other.example"]),
            ["another name than URL", "or set SKIP=true"],
        ),
        (CertificateError::Expired, ["has expired", "renew it"]),
    ] {
        let Hint {
            is_about_certificates,
            text,
        } = hint_of(Error::InvalidCertificate(error));
        for part in parts {
            assert!(
                is_about_certificates && text.contains(part),
                "{part} is not in: {text}"
            );
        }
    }
}

#[test]
fn hints_about_connections_name_the_setting_to_change() {
    for (error, is_about_certificates, text) in [
        (
            Error::AlertReceived(AlertDescription::CertificateRequired),
            true,
            "Redis wants a client certificate: set CERT and KEY",
        ),
        (
            Error::AlertReceived(AlertDescription::HandshakeFailure),
            false,
            "Redis ends the TLS handshake (HandshakeFailure); it may want a client certificate \
             (CERT and KEY)",
        ),
        (
            Error::InvalidMessage(InvalidMessage::InvalidContentType),
            false,
            "the port does not speak TLS: write tls://",
        ),
        (Error::DecryptError, false, "cannot decrypt peer's message"),
    ] {
        let expected = Hint {
            is_about_certificates,
            text: text.to_owned(),
        };
        assert_eq!(hint_of(error), expected);
    }
    let refused: io::Error = io::ErrorKind::ConnectionRefused.into();
    assert_eq!(hint(&refused, &PEER), None);
}

#[test]
fn there_are_always_trusted_authorities() {
    assert!(!of_the_system().is_empty());
}
