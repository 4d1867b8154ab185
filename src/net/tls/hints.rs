//! Messages for TLS errors of clients: the cause, and the change that fixes it.

use std::io;

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, OtherError};

use super::verify::UntrustedAuthority;

/// Names of a server and of its client's settings in messages.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Name of the server, such as `Redis`.
    pub name: &'static str,
    /// Name of the setting with the server's address.
    pub address: &'static str,
    /// The setting of the trusted authorities.
    pub authorities: &'static str,
    /// Further advice if the server's name differs from the name in `address`.
    pub other_name: Option<&'static str>,
    /// The settings of the client certificate and its key.
    pub identity: &'static str,
    /// Advice if the server does not speak TLS.
    pub without_tls: &'static str,
}

/// Explanation of a failed TLS connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Whether a certificate was refused or is missing.
    pub is_about_certificates: bool,
    /// The cause, and the remedy.
    pub text: String,
}

/// Explains a failed connection, if it failed in TLS.
pub fn hint(error: &io::Error, peer: &Peer) -> Option<Hint> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    let (name, identity, without_tls) = (peer.name, peer.identity, peer.without_tls);
    let text = match error {
        Error::InvalidCertificate(certificate) => certificate_hint(certificate, peer),
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            format!("{name} wants a client certificate: set {identity}")
        }
        Error::AlertReceived(alert) if is_about_certificates(*alert) => {
            format!("{name} refuses the client certificate ({alert:?}): check {identity}")
        }
        Error::AlertReceived(alert) => format!(
            "{name} ends the TLS handshake ({alert:?}); it may want a client certificate \
             ({identity})"
        ),
        Error::InvalidMessage(_) => format!("the port does not speak TLS: {without_tls}"),
        other => other.to_string(),
    };
    let is_about_certificates = match error {
        Error::InvalidCertificate(_) => true,
        Error::AlertReceived(alert) => is_about_certificates(*alert),
        _ => false,
    };
    Some(Hint {
        is_about_certificates,
        text,
    })
}

/// Explains the refusal of a server's certificate, with the remedy.
fn certificate_hint(error: &CertificateError, peer: &Peer) -> String {
    let (name, address, authorities) = (peer.name, peer.address, peer.authorities);
    let or = peer
        .other_name
        .map_or_else(String::new, |remedy| format!(", or {remedy}"));
    match error {
        CertificateError::UnknownIssuer => {
            format!(
                "Weir does not know the authority that signed the certificate of {name}: set \
                 {authorities} to its certificate"
            )
        }
        CertificateError::Other(OtherError(other)) if other.is::<UntrustedAuthority>() => format!(
            "{name} presents a self-signed certificate (or that of an authority) that Weir does \
             not trust: set {authorities} to a file with this certificate"
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("the certificate of {name} has expired ({error}): renew it")
        }
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            format!(
                "the certificate of {name} holds no name (subjectAltName; a common name is not \
                 enough): issue one for the name in {address}{or}"
            )
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "the certificate of {name} is for another name than {address} ({error}): connect \
                 by a name that it holds{or}"
            )
        }
        _ => format!("the certificate of {name} cannot be used: {error}"),
    }
}

/// Whether an alert of the peer (RFC 8446, section 6.2) is about a certificate that it received or
/// misses.
pub const fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, UnknownCA, UnsupportedCertificate,
    };
    matches!(
        alert,
        AccessDenied
            | BadCertificate
            | CertificateExpired
            | CertificateRequired
            | CertificateRevoked
            | CertificateUnknown
            | UnknownCA
            | UnsupportedCertificate
    )
}
