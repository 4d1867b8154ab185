//! TLS of the gRPC listener and of all clients: Redis, control plane, trace collector.
//!
//! `pem` reads certificates and keys, `verify` verifies the certificates of peers, and `hints`
//! explains errors. This file has the TLS configuration of clients, with the authorities that they
//! trust. Functions here block while they read files, and use no sockets. ring is the only provider
//! of cryptography.

mod hints;
pub(crate) mod pem;
mod verify;

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

pub use hints::{Hint, Peer, hint, is_about_certificates};
pub use pem::{FileSetting, Identity, PemFile, TlsError};
use verify::ServerVerifier;
pub use verify::{ClientVerifier, NameCheck, SubjectName, UntrustedAuthority, expiry};

/// The algorithms of ring. Each configuration gets them explicitly, and needs no process-wide
/// default.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Trusted authorities of a client, and its own certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientOptions {
    /// Certificates of the trusted authorities. `None`: the system's authorities, or Mozilla's if
    /// the system has none.
    pub authorities: Option<PemFile>,
    /// The client certificate, for servers that ask for one.
    pub identity: Option<Identity>,
    /// The names for which the server's certificate has to be valid.
    pub name_check: NameCheck,
}

impl ClientOptions {
    /// Options with these files of authorities, the client's certificate and its key.
    ///
    /// # Errors
    /// A certificate without its key, or a key without its certificate.
    pub fn try_new(
        [authorities, certificate, key]: [FileSetting<'_>; 3],
        name_check: NameCheck,
    ) -> Result<Self, TlsError> {
        Ok(Self {
            authorities: PemFile::of(authorities),
            identity: Identity::try_new(certificate, key)?,
            name_check,
        })
    }
}

/// The protocol of gRPC. Go's servers refuse a client that does not offer it. Source: RFC 7540,
/// section 3.3.
const HTTP2: &[u8] = b"h2";

/// As [`client_config`], for a client of gRPC.
///
/// # Errors
/// The first file that cannot be used.
pub fn http2_client_config(options: &ClientOptions) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = client_config(options)?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(Arc::new(config))
}

/// The configuration for connections of a client, without ALPN. Reads the files and blocks. A
/// client that calls it for each new connection uses rotated files without a restart.
///
/// # Errors
/// The first file that cannot be used.
pub fn client_config(options: &ClientOptions) -> Result<ClientConfig, TlsError> {
    let provider = provider();
    let verifier = ServerVerifier {
        roots: authorities(options.authorities.as_ref())?,
        name_check: options.name_check.clone(),
        algorithms: provider.signature_verification_algorithms,
    };
    // rustls calls every custom verifier dangerous. This one wraps webpki, and also accepts the
    // certificate of a trusted authority itself (see `verify`).
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the ciphers of TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    match &options.identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            Ok(builder
                .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.read()?))))
        }
    }
}

/// The authorities in the file and no others. Without a file: the system's authorities, or
/// Mozilla's if the system has none. Blocks.
///
/// # Errors
/// The file cannot be used.
pub fn authorities(file: Option<&PemFile>) -> Result<RootCertStore, TlsError> {
    let Some(file) = file else {
        return Ok(of_the_system());
    };
    let mut roots = RootCertStore::empty();
    for certificate in file.certificates()? {
        let remedy =
            "write the certificates of the authorities that signed those of the other side";
        roots
            .add(certificate)
            .map_err(|error| file.unusable(&error, remedy))?;
    }
    Ok(roots)
}

fn of_the_system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Some systems hold certificates that rustls cannot parse. They are left out.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

#[cfg(test)]
mod tests;
