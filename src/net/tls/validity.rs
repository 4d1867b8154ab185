//! Until when certificates are valid.

use std::time::Duration;

use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore};

/// When the first certificate of a chain expires, in seconds since 1970. `None`: none can be
/// parsed.
///
/// webpki parses certificates but does not give their times. It does in its error about an expired
/// certificate, and all are at the end of time.
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
