//! Log lines about clients that cannot be served: they speak TLS to a port without it, or the other
//! way round, or their certificates are not accepted.
//!
//! Envoy lets requests pass when its connection fails, so that such a client has to be seen. It
//! tries again and again: each kind of complaint is logged once a minute at most, with the number
//! of those before.

use std::sync::Mutex;

use tokio::time::Instant;

use super::stream::Client;
use crate::core::lock;
use crate::net::throttle::Throttle;

/// Why a client cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Complaint {
    TlsToPlaintext,
    PlaintextToTls,
    NoClientCertificate,
    ClientCertificate,
    RefusedByClient,
    NoHttp2,
    OldTls,
    OtherHandshake,
}

const KINDS: usize = Complaint::OtherHandshake as usize + 1;

impl Complaint {
    /// What happened, and the remedy.
    const fn text(self) -> &'static str {
        match self {
            Self::TlsToPlaintext => {
                "a client speaks TLS to the gRPC port, which has none: set \
                 GRPC_SERVER_USE_TLS=true, or take the transport socket out of its cluster"
            }
            Self::PlaintextToTls => {
                "a client speaks to the gRPC port without TLS: give its cluster a transport socket \
                 with TLS, or set GRPC_SERVER_USE_TLS=false"
            }
            Self::NoClientCertificate => {
                "a client presents no certificate: give its cluster one (tls_certificates), or \
                 unset GRPC_CLIENT_TLS_CACERT"
            }
            Self::ClientCertificate => {
                "the certificate of a client is refused: it has to be valid, signed by an \
                 authority in GRPC_CLIENT_TLS_CACERT, and for GRPC_CLIENT_TLS_SAN if that is set"
            }
            Self::RefusedByClient => {
                "a client refuses the certificate of Weir: it has to trust the authority that \
                 signed GRPC_SERVER_TLS_CERT, and the certificate has to be valid for the name \
                 that it expects"
            }
            Self::NoHttp2 => {
                "a client offers by ALPN only protocols other than h2: set http2_protocol_options \
                 in its cluster"
            }
            Self::OldTls => "a client speaks neither TLS 1.2 nor TLS 1.3: update it",
            Self::OtherHandshake => "a TLS handshake failed",
        }
    }
}

/// The lines of each kind.
#[derive(Debug, Default)]
pub(super) struct Complaints(Mutex<[Throttle; KINDS]>);

impl Complaints {
    /// Logs the complaint, or counts it for the next line.
    pub(super) fn report(&self, complaint: Complaint, client: Client, cause: &str) {
        let Some(before) = self.count(complaint) else {
            return;
        };
        let cause = if cause.is_empty() {
            String::new()
        } else {
            format!(" ({cause})")
        };
        let before = if before == 0 {
            String::new()
        } else {
            format!("; {before} more since the last line")
        };
        tracing::warn!(client = %client, "{}{cause}{before}", complaint.text());
    }

    /// The complaints that were not logged since the last line. `None`: this one is not logged
    /// either.
    fn count(&self, complaint: Complaint) -> Option<u64> {
        let mut kinds = lock(&self.0);
        kinds[complaint as usize].admit(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, advance};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_kind_is_logged_once_a_minute() {
        let complaints = Complaints::default();
        assert_eq!(complaints.count(Complaint::TlsToPlaintext), Some(0));
        for _ in 0..1_000 {
            assert_eq!(complaints.count(Complaint::TlsToPlaintext), None);
        }
        assert_eq!(complaints.count(Complaint::OldTls), Some(0), "another kind");
        advance(Duration::from_secs(60)).await;
        assert_eq!(complaints.count(Complaint::TlsToPlaintext), Some(1_000));
        assert_eq!(complaints.count(Complaint::TlsToPlaintext), None);
    }
}
