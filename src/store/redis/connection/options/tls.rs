//! TLS to Redis: the authorities that Weir trusts, and its client certificate, from files.
//!
//! Weir reads the files again after a failed connection, so that rotated certificates need no restart. It always verifies that a trusted
//! authority signed the server's certificate. Only the check of the host name can be switched off.

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

/// The shortest time between two reads of the files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

// The settings that name the files. The main Redis and the one of per-second limits share them.
const CA_CERT: &str = "REDIS_TLS_CACERT";
const CLIENT_CERT: &str = "REDIS_TLS_CLIENT_CERT";
const CLIENT_KEY: &str = "REDIS_TLS_CLIENT_KEY";

/// The files of certificates and keys, and what Weir verifies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the trusted authorities, in PEM; `None`: those of the system, or Mozilla's if the system has none.
    pub ca_cert: Option<PathBuf>,
    /// The client certificate, followed by the intermediate certificates, in PEM. Needs `client_key`.
    pub client_cert: Option<PathBuf>,
    /// The private key of the client certificate, in PEM and not encrypted.
    pub client_key: Option<PathBuf>,
    /// Whether the host name is verified.
    pub name_check: NameCheck,
}

/// Whether the server's certificate has to be valid for the host that Weir connects to (RFC 6125).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameCheck {
    /// It has to be valid for the host.
    #[default]
    Strict,
    /// It may be for any name. A trusted authority still has to have signed it.
    Skipped,
}

/// Why a file of certificates or keys cannot be used: the setting, the file, the reason and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("{setting}: {} cannot be read ({error}); write the path of a PEM file that Weir may read", .path.display())]
    Unreadable {
        /// The name of the setting.
        setting: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The file holds no PEM section of the needed kind.
    #[error("{setting}: {} holds no {what}; write the path of a PEM file with one", .path.display())]
    NotPem {
        /// The name of the setting.
        setting: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The needed content.
        what: &'static str,
    },
    /// The file is PEM, but TLS cannot use its content.
    #[error("{setting}: {} cannot be used ({error}); {remedy}", .path.display())]
    Unusable {
        /// The name of the setting.
        setting: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        error: Error,
        /// The remedy.
        remedy: &'static str,
    },
    /// A client certificate is set without its key, or a key without its certificate. Holds the names of the set and of the missing setting.
    #[error("{0} needs {1}: set both or neither")]
    Unpaired(&'static str, &'static str),
}

/// The TLS configuration for connections to Redis. Clones share it.
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
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let config = Mutex::new(Arc::new(config(&files)?));
        Ok(Self(Arc::new(TlsState { files, config, read_at: Mutex::new(Instant::now()) })))
    }

    /// The current configuration, for a new connection.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again on Tokio's pool of blocking threads, at most once in two seconds. Files that cannot be used change nothing: the
    /// certificate may have been replaced before the key.
    pub(crate) fn reload(&self) {
        let state = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || state.reload());
    }
}

impl TlsState {
    fn reload(&self) {
        // Another thread that holds the lock is reading the files.
        let Ok(mut read_at) = self.read_at.try_lock() else { return };
        if read_at.elapsed() < RELOAD_INTERVAL {
            return;
        }
        match config(&self.files) {
            Ok(config) => *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config),
            Err(error) => tracing::warn!("Weir keeps the current certificates for TLS to Redis: {error}"),
        }
        *read_at = Instant::now();
    }
}

fn config(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let roots = match &files.ca_cert {
        Some(path) => roots_from(path)?,
        None => system_roots(),
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring has the ciphers of TLS 1.2 and 1.3");
    let builder = match files.name_check {
        NameCheck::Strict => builder.with_root_certificates(roots),
        NameCheck::Skipped => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyNameVerifier { roots: Arc::new(roots), provider }))
        }
    };
    match (&files.client_cert, &files.client_key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(_), None) => Err(TlsError::Unpaired(CLIENT_CERT, CLIENT_KEY)),
        (None, Some(_)) => Err(TlsError::Unpaired(CLIENT_KEY, CLIENT_CERT)),
        (Some(cert), Some(path)) => {
            let chain = certificates(CLIENT_CERT, cert)?;
            let bytes = bytes(CLIENT_KEY, path)?;
            let what = "private key that is not encrypted";
            let no_key = |_| TlsError::NotPem { setting: CLIENT_KEY, path: path.clone(), what };
            let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(no_key)?;
            let remedy = "write the key of the first certificate in REDIS_TLS_CLIENT_CERT";
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

fn roots_from(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CA_CERT, path)? {
        let remedy = "write the certificates of the authorities that signed Redis's certificate";
        roots.add(certificate).map_err(|error| TlsError::Unusable { setting: CA_CERT, path: path.to_owned(), error, remedy })?;
    }
    Ok(roots)
}

/// The authorities of the system, or Mozilla's if the system has none.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Some systems hold certificates that rustls cannot parse. They are left out.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

/// Verifies a certificate in every respect except its host name.
#[derive(Debug)]
struct AnyNameVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyNameVerifier {
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
    fn errors_name_the_setting_and_the_file() {
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
            let error = Tls::read(files).expect_err("unusable files").to_string();
            for part in parts {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
            assert!(!error.contains("s3cret"), "{error}");
        }
        assert!(Tls::read(files(&cert, &cert, &key)).is_ok());
        assert!(Tls::read(TlsFiles { name_check: NameCheck::Skipped, ..files(&None, &None, &None) }).is_ok());
    }

    #[test]
    fn there_are_always_trusted_authorities() {
        assert!(!system_roots().is_empty());
    }
}
