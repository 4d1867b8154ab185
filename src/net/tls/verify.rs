//! Verification of peers' certificates, and the end of a certificate's validity.
//!
//! A certificate is accepted if a trusted authority has signed it (RFC 5280), or if it is the
//! trusted authority's own. An ordinary self-signed certificate (`openssl req -x509`) is the second
//! case, because it is marked as an authority. webpki refuses it as a server certificate
//! (CaUsedAsEndEntity); OpenSSL and Go accept it. It is as safe: the owner of the authority's key
//! could sign any certificate with it.

use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};

/// The names for which a server's certificate has to be valid (RFC 9525).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NameCheck {
    /// The host that the client connects to.
    #[default]
    Strict,
    /// Any name. The certificate still has to be trusted.
    Skipped,
    /// This name, instead of the host.
    Only(SubjectName),
}

/// A name that a certificate may hold (subjectAltName, RFC 5280, section 4.2.1.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectName {
    /// A DNS name or an IP address. A certificate with a wildcard is valid for it too.
    Host(ServerName<'static>),
    /// A URI such as `spiffe://cluster.local/ns/default/sa/envoy`, compared byte by byte.
    Uri(String),
}

/// A certificate of an authority that is not among the trusted ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the certificate is that of an authority (CA:TRUE), and not a trusted one")]
pub struct UntrustedAuthority;

impl SubjectName {
    /// Parses the name in a setting. `None`: it is neither a URI nor a DNS name nor an IP address.
    pub fn parse(text: &str) -> Option<Self> {
        if text.contains("://") {
            return Some(Self::Uri(text.to_owned()));
        }
        ServerName::try_from(text.to_owned()).ok().map(Self::Host)
    }

    /// Whether the certificate is valid for this name.
    fn verify(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        match self {
            Self::Host(name) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
            }
            Self::Uri(uri) => {
                let parsed = webpki::EndEntityCert::try_from(certificate)
                    .map_err(|_| CertificateError::BadEncoding)?;
                let mut names = parsed.valid_uri_names();
                let valid = names.find(|name| name == uri);
                Ok(valid.map(drop).ok_or(CertificateError::NotValidForName)?)
            }
        }
    }
}

/// Result of a verifier for a certificate, with the certificates of trusted authorities themselves
/// accepted. webpki checks the times of a certificate first, so a certificate with one of these
/// errors is valid now.
fn or_authority(
    verified: Result<(), Error>,
    certificate: &CertificateDer<'_>,
    roots: &RootCertStore,
) -> Result<(), Error> {
    let is_authority = match &verified {
        Err(Error::InvalidCertificate(CertificateError::Other(OtherError(error)))) => {
            error.downcast_ref::<webpki::Error>() == Some(&webpki::Error::CaUsedAsEndEntity)
        }
        Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => false,
        _ => return verified,
    };
    let mut own = RootCertStore::empty();
    if own.add(certificate.clone().into_owned()).is_ok()
        && own.roots.iter().any(|own| roots.roots.contains(own))
    {
        return Ok(());
    }
    if is_authority {
        Err(CertificateError::Other(OtherError(Arc::new(UntrustedAuthority))).into())
    } else {
        verified
    }
}

/// The verification of signatures in a handshake, by the field `algorithms`.
macro_rules! handshake_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signature, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

/// Verifies the certificates of servers.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    pub(super) roots: RootCertStore,
    pub(super) name_check: NameCheck,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let signed = verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        );
        or_authority(signed, end_entity, &self.roots)?;
        match &self.name_check {
            NameCheck::Strict => verify_server_name(&certificate, server_name)?,
            NameCheck::Skipped => {}
            NameCheck::Only(name) => name.verify(end_entity)?,
        }
        Ok(ServerCertVerified::assertion())
    }

    handshake_signatures!();
}

/// Verifies the certificates of clients, each of which has to present one.
#[derive(Debug)]
pub struct ClientVerifier {
    roots: Arc<RootCertStore>,
    signed: Arc<dyn ClientCertVerifier>,
    name: Option<SubjectName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientVerifier {
    /// Accepts clients whose certificates one of these authorities signed, and which are valid for
    /// the name if there is one.
    ///
    /// # Errors
    /// There are no authorities.
    pub fn try_new(
        roots: RootCertStore,
        name: Option<SubjectName>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        let roots = Arc::new(roots);
        let algorithms = provider.signature_verification_algorithms;
        let signed =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider).build()?;
        Ok(Self {
            roots,
            signed,
            name,
            algorithms,
        })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let signed = self
            .signed
            .verify_client_cert(end_entity, intermediates, now)
            .map(|_| ());
        or_authority(signed, end_entity, &self.roots)?;
        if let Some(name) = &self.name {
            name.verify(end_entity)?;
        }
        Ok(ClientCertVerified::assertion())
    }

    handshake_signatures!();
}

/// Expiry of a chain's first certificate, in seconds since 1970. `None`: it cannot be parsed.
///
/// webpki parses certificates but has no accessor for their times. Only its error about an expired
/// certificate has them. Therefore the certificate is verified at the end of time, when every
/// certificate has expired.
pub fn expiry(chain: &[CertificateDer<'_>]) -> Option<u64> {
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let of_one = |certificate: &CertificateDer<'_>| {
        let certificate = ParsedCertificate::try_from(certificate).ok()?;
        match verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &RootCertStore::empty(),
            &[],
            end_of_time,
            &[],
        ) {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after, ..
            })) => Some(not_after.as_secs()),
            _ => None,
        }
    };
    chain.iter().filter_map(of_one).min()
}
