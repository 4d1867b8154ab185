//! Log lines about clients that cannot be served: they speak TLS to a port without it, or the other
//! way round, or their certificates are not accepted.
//!
//! Envoy lets requests pass when its connection fails, so that such a client has to be seen. It
//! tries again and again: each kind of complaint is logged once a minute at most, with the number
//! of those before.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;

use tokio::time::Instant;

use crate::core::lock;
use crate::net::throttle::Throttle;

/// Why clients cannot be served: what happened, and the remedy.
pub(super) const TLS_TO_PLAINTEXT: Complaint = Complaint(
    "a client speaks TLS to the gRPC port, which has none: set GRPC_SERVER_USE_TLS=true, or take the \
     transport socket out of its cluster",
);
pub(super) const PLAINTEXT_TO_TLS: Complaint = Complaint(
    "a client speaks to the gRPC port without TLS: give its cluster a transport socket with TLS, or \
     set GRPC_SERVER_USE_TLS=false",
);
pub(super) const NO_CLIENT_CERTIFICATE: Complaint = Complaint(
    "a client presents no certificate: give its cluster one (tls_certificates), or unset \
     GRPC_CLIENT_TLS_CACERT",
);
pub(super) const CLIENT_CERTIFICATE: Complaint = Complaint(
    "the certificate of a client is refused: it has to be valid, signed by an authority in \
     GRPC_CLIENT_TLS_CACERT, and for GRPC_CLIENT_TLS_SAN if that is set",
);
pub(super) const REFUSED_BY_CLIENT: Complaint = Complaint(
    "a client refuses the certificate of Weir: it has to trust the authority that signed \
     GRPC_SERVER_TLS_CERT, and the certificate has to be valid for the name that it expects",
);
pub(super) const NO_HTTP2: Complaint = Complaint(
    "a client offers by ALPN only protocols other than h2: set http2_protocol_options in its cluster",
);
pub(super) const OLD_TLS: Complaint =
    Complaint("a client speaks neither TLS 1.2 nor TLS 1.3: update it");
pub(super) const OTHER_HANDSHAKE: Complaint = Complaint("a TLS handshake failed");

/// A kind of complaint, by its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Complaint(&'static str);

/// The lines of each kind.
#[derive(Debug, Default)]
pub(super) struct Complaints(Mutex<HashMap<Complaint, Throttle>>);

impl Complaints {
    /// Logs the complaint, or counts it for the next line.
    pub(super) fn report(&self, complaint: Complaint, client: Option<IpAddr>, cause: &str) {
        let Some(before) = self.count(complaint) else {
            return;
        };
        let client = client.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
        let cause = match cause {
            "" => String::new(),
            cause => format!(" ({cause})"),
        };
        let before = match before {
            0 => String::new(),
            before => format!("; {before} more since the last line"),
        };
        tracing::warn!(client, "{}{cause}{before}", complaint.0);
    }

    /// The complaints that were not logged since the last line. `None`: this one is not logged
    /// either.
    fn count(&self, complaint: Complaint) -> Option<u64> {
        let mut lines = lock(&self.0);
        lines.entry(complaint).or_default().admit(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, advance};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_kind_is_logged_once_a_minute() {
        let complaints = Complaints::default();
        assert_eq!(complaints.count(TLS_TO_PLAINTEXT), Some(0));
        for _ in 0..1_000 {
            assert_eq!(complaints.count(TLS_TO_PLAINTEXT), None);
        }
        assert_eq!(complaints.count(OLD_TLS), Some(0), "another kind");
        advance(Duration::from_secs(60)).await;
        assert_eq!(complaints.count(TLS_TO_PLAINTEXT), Some(1_000));
        assert_eq!(complaints.count(TLS_TO_PLAINTEXT), None);
    }
}
