//! Errors of TLS as a client tells them: the cause, and what to change.

use tokio_rustls::rustls::{AlertDescription, CertificateError, OtherError};

use super::verify::UntrustedAuthority;

/// How messages name a server and the settings of its client.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The server: `Redis`.
    pub name: &'static str,
    /// The setting that says where it is.
    pub address: &'static str,
    /// The setting of the trusted authorities.
    pub authorities: &'static str,
    /// What to do where the server has another name than `address` says.
    pub other_name: &'static str,
}

/// Why the certificate of a server is refused, and the remedy.
#[must_use]
pub fn certificate_hint(error: &CertificateError, peer: &Peer) -> String {
    let Peer {
        name,
        address,
        authorities,
        other_name,
    } = peer;
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
                 enough): issue one for the name in {address}, or {other_name}"
            )
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "the certificate of {name} is for another name than {address} ({error}): connect \
                 by a name that it holds, or {other_name}"
            )
        }
        _ => format!("the certificate of {name} cannot be used: {error}"),
    }
}

/// Whether an alert of the other side (RFC 8446, section 6.2) is about the certificate that it
/// received, or the one that it missed.
#[must_use]
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
