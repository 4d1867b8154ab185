//! Whom Weir trusts on the way to Redis, and who it says it is: certificates out of files, which are read again after a failed connection.
//!
//! A certificate is always checked up to a trusted authority. Only the check of its name can be left out, and nothing else.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::time::{Duration, Instant};
use tokio_rustls::rustls;

/// Between two readings of the files.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The settings that name the files, which all connections to Redis share.
const CA_CERT: &str = "REDIS_TLS_CACERT";
const CLIENT_CERT: &str = "REDIS_TLS_CLIENT_CERT";
const CLIENT_KEY: &str = "REDIS_TLS_CLIENT_KEY";

/// What TLS is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities to trust, in PEM; `None`: those of the system, or Mozilla's when it has none.
    pub ca_cert: Option<PathBuf>,
    /// Weir's own certificate and those between it and the authority, in PEM; only together with the key.
    pub client_cert: Option<PathBuf>,
    /// Its private key, in PEM and not encrypted.
    pub client_key: Option<PathBuf>,
    /// Which part of the server's certificate is checked.
    pub name_check: NameCheck,
}

/// Whether the server's certificate has to be for the name that Weir connects to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameCheck {
    /// It has to.
    #[default]
    Strict,
    /// It may be for any name, as long as it comes from a trusted authority.
    Skipped,
}

/// Why the files are of no use: the setting, the file, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The operating system's reason.
    #[error("{setting}: {} cannot be read ({error}); write the path of a PEM file that Weir may read", .path.display())]
    Unreadable {
        /// Its name.
        setting: &'static str,
        /// Its value.
        path: PathBuf,
        /// The operating system's reason.
        error: std::io::Error,
    },
    /// Nothing in it is what it should be.
    #[error("{setting}: {} holds no {what}; write the path of a PEM file with one", .path.display())]
    NotPem {
        /// Its name.
        setting: &'static str,
        /// Its value.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// It is PEM, but nothing that TLS can use.
    #[error("{setting}: {} cannot be used ({error}); {remedy}", .path.display())]
    Unusable {
        /// Its name.
        setting: &'static str,
        /// Its value.
        path: PathBuf,
        /// Why.
        error: Error,
        /// What to do.
        remedy: &'static str,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("{0} needs {1}: set both, or none")]
    Alone(&'static str, &'static str),
}

/// TLS, ready to be used; clones share it.
#[derive(Clone)]
pub struct Tls(Arc<TlsState>);

struct TlsState {
    files: TlsFiles,
    config: Mutex<Arc<ClientConfig>>,
    read_at: Mutex<Instant>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// The first file that is of no use.
    pub fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let config = Mutex::new(Arc::new(config(&files)?));
        Ok(Self(Arc::new(TlsState { files, config, read_at: Mutex::new(Instant::now()) })))
    }

    /// For a new connection.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// After a connection failed: has the files read again on a thread beside the runtime, because they may have been replaced; not more
    /// than once in two seconds. Files that are of no use now change nothing: one may be replaced before the other.
    pub(crate) fn read_again(&self) {
        let shared = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || shared.read_again());
    }
}

impl TlsState {
    fn read_again(&self) {
        // Whoever comes while another one reads need not read too.
        let Ok(mut read_at) = self.read_at.try_lock() else { return };
        if read_at.elapsed() < READ_AGAIN_AFTER {
            return;
        }
        match config(&self.files) {
            Ok(config) => *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config),
            Err(error) => tracing::warn!("TLS to Redis goes on with the certificates that it has: {error}"),
        }
        *read_at = Instant::now();
    }
}

fn config(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let roots = match &files.ca_cert {
        Some(path) => trusted(path)?,
        None => trusted_by_the_system(),
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring has the ciphers of TLS 1.2 and 1.3");
    let builder = match files.name_check {
        NameCheck::Strict => builder.with_root_certificates(roots),
        NameCheck::Skipped => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyName { roots: Arc::new(roots), provider })),
    };
    match (&files.client_cert, &files.client_key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(_), None) => Err(TlsError::Alone(CLIENT_CERT, CLIENT_KEY)),
        (None, Some(_)) => Err(TlsError::Alone(CLIENT_KEY, CLIENT_CERT)),
        (Some(cert), Some(path)) => {
            let chain = certificates(CLIENT_CERT, cert)?;
            let bytes = bytes(CLIENT_KEY, path)?;
            let what = "private key that is not encrypted";
            let no_key = |_| TlsError::NotPem { setting: CLIENT_KEY, path: path.clone(), what };
            let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(no_key)?;
            let remedy = "it has to be the key of the first certificate in REDIS_TLS_CLIENT_CERT";
            let unusable = |error| TlsError::Unusable { setting: CLIENT_KEY, path: path.clone(), error, remedy };
            builder.with_client_auth_cert(chain, key).map_err(unusable)
        }
    }
}

fn bytes(setting: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| TlsError::Unreadable { setting, path: path.to_owned(), error })
}

fn certificates(setting: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes(setting, path)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsError::NotPem { setting, path: path.to_owned(), what: "certificate" }),
    }
}

fn trusted(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CA_CERT, path)? {
        let remedy = "write the certificates of the authorities that signed those of Redis";
        roots.add(certificate).map_err(|error| TlsError::Unusable { setting: CA_CERT, path: path.to_owned(), error, remedy })?;
    }
    Ok(roots)
}

fn trusted_by_the_system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Some systems have certificates that no TLS library can read; the others count.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

/// Checks a certificate in every way but for its name.
#[derive(Debug)]
struct AnyName {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_names_the_setting_and_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            Some(path)
        };
        let missing = Some(folder.path().join("missing.pem"));
        let made = rcgen::generate_simple_self_signed(["redis".to_owned()]).expect("a certificate");
        let other = rcgen::generate_simple_self_signed(["other".to_owned()]).expect("a certificate");
        let cert = write("cert.pem", &made.cert.pem());
        let key = write("key.pem", &made.signing_key.serialize_pem());
        let other_key = write("other.pem", &other.signing_key.serialize_pem());
        let text = write("text.pem", "s3cret");
        let garbage = write("garbage.pem", "-----BEGIN CERTIFICATE-----\nczNjcmV0\n-----END CERTIFICATE-----\n");
        let files = |ca_cert: &Option<PathBuf>, client_cert: &Option<PathBuf>, client_key: &Option<PathBuf>| {
            let (ca_cert, client_cert, client_key) = (ca_cert.clone(), client_cert.clone(), client_key.clone());
            TlsFiles { ca_cert, client_cert, client_key, name_check: NameCheck::Strict }
        };
        let table = [
            (files(&missing, &None, &None), ["REDIS_TLS_CACERT: ", "missing.pem", "may read"]),
            (files(&text, &None, &None), ["REDIS_TLS_CACERT: ", "text.pem", "no certificate"]),
            (files(&key, &None, &None), ["REDIS_TLS_CACERT: ", "key.pem", "no certificate"]),
            (files(&garbage, &None, &None), ["REDIS_TLS_CACERT: ", "garbage.pem", "authorities"]),
            (files(&None, &cert, &None), ["REDIS_TLS_CLIENT_CERT needs ", "REDIS_TLS_CLIENT_KEY", "both"]),
            (files(&None, &None, &key), ["REDIS_TLS_CLIENT_KEY needs ", "REDIS_TLS_CLIENT_CERT", "both"]),
            (files(&None, &missing, &key), ["REDIS_TLS_CLIENT_CERT: ", "missing.pem", "may read"]),
            (files(&None, &cert, &missing), ["REDIS_TLS_CLIENT_KEY: ", "missing.pem", "may read"]),
            (files(&None, &cert, &cert), ["REDIS_TLS_CLIENT_KEY: ", "cert.pem", "no private key"]),
            (files(&None, &cert, &other_key), ["REDIS_TLS_CLIENT_KEY: ", "other.pem", "REDIS_TLS_CLIENT_CERT"]),
        ];
        for (files, parts) in table {
            let error = Tls::read(files).expect_err("wrong").to_string();
            for part in parts {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
            assert!(!error.contains("s3cret"), "{error}");
        }
        assert!(Tls::read(files(&cert, &cert, &key)).is_ok());
        assert!(Tls::read(TlsFiles { name_check: NameCheck::Skipped, ..files(&None, &None, &None) }).is_ok());
    }

    #[test]
    fn there_is_always_somebody_to_trust() {
        assert!(!trusted_by_the_system().is_empty());
    }
}
