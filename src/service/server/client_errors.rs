//! Log lines about clients that cannot be served: they speak TLS to a port without it, or the other
//! way round, or their certificates are not accepted.
//!
//! Operators have to see such a client, because Envoy lets requests pass when its connection fails.
//! It retries again and again: each kind of complaint is logged at most once a minute, with the
//! number since the last line.
//!
//! At most one line a minute reports the calls and connections that HTTP/2 ended, by reason.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::core::lock;
use crate::net::throttle::Throttle;
use crate::observe::metrics::{Ended, Metrics};

/// Reasons for which clients cannot be served, with the remedy.
pub(super) const TLS_TO_PLAINTEXT: &str = "client speaks TLS to the gRPC port without TLS: set \
    GRPC_SERVER_USE_TLS=true, or remove the transport socket from its cluster";
pub(super) const PLAINTEXT_TO_TLS: &str = "client speaks plaintext to the gRPC port with TLS: \
    add a transport socket with TLS to its cluster, or set GRPC_SERVER_USE_TLS=false";
pub(super) const NO_CLIENT_CERTIFICATE: &str = "client presents no certificate: add one to its \
    cluster (tls_certificates), or unset GRPC_CLIENT_TLS_CACERT";
pub(super) const CLIENT_CERTIFICATE: &str = "client certificate rejected: it has to be valid, signed \
    by an authority in GRPC_CLIENT_TLS_CACERT, and for GRPC_CLIENT_TLS_SAN if that is set";
pub(super) const REFUSED_BY_CLIENT: &str = "client rejects Weir's certificate: the client has to \
    trust the authority that signed GRPC_SERVER_TLS_CERT, and the certificate has to be valid for \
    the expected name";
pub(super) const NO_HTTP2: &str =
    "client does not offer h2 by ALPN: set http2_protocol_options in its cluster";
pub(super) const OLD_TLS: &str = "client speaks neither TLS 1.2 nor TLS 1.3: update it";
pub(super) const OTHER_HANDSHAKE: &str = "TLS handshake failed";

/// The lines of each kind of complaint, by its text.
#[derive(Debug, Default)]
pub(super) struct ClientErrorLog(Mutex<HashMap<&'static str, Throttle>>);

impl ClientErrorLog {
    /// Logs the complaint, or counts it for the next line.
    pub(super) fn report(&self, complaint: &'static str, client: Option<IpAddr>, cause: &str) {
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
        tracing::warn!(client, "{complaint}{cause}{before}");
    }

    /// The complaints that were not logged since the last line. `None`: this one is not logged
    /// either.
    fn count(&self, complaint: &'static str) -> Option<u64> {
        let mut lines = lock(&self.0);
        lines.entry(complaint).or_default().admit(Instant::now())
    }
}

/// The time between two reads of the counters.
const POLL: Duration = Duration::from_secs(1);

/// Throttle of the lines, and the counts at the last line.
#[derive(Debug, Default)]
struct LastLine {
    lines: Throttle,
    /// Calls and connections.
    ended: [Vec<Ended>; 2],
}

/// Writes the lines. Never returns.
pub async fn log_resets(metrics: Arc<Metrics>) {
    let mut log = LastLine::default();
    loop {
        sleep(POLL).await;
        let http2 = &metrics.http2;
        let ended = [http2.streams().collect(), http2.connections().collect()];
        if let Some([calls, connections]) = log.observe(Instant::now(), ended) {
            tracing::warn!(
                calls,
                connections,
                "calls or connections ended by HTTP/2 for errors of clients; no limit was applied \
                 to these calls, and Envoy's failure mode decided"
            );
        }
    }
}

impl LastLine {
    /// Calls and connections that ended since the previous line, by reason; `None`: no line is
    /// written now.
    fn observe(&mut self, now: Instant, ended: [Vec<Ended>; 2]) -> Option<[String; 2]> {
        if !self.lines.is_due(now) {
            return None;
        }
        let grown = [0, 1].map(|kind| growth(&self.ended[kind], &ended[kind]));
        if grown.iter().all(String::is_empty) {
            return None;
        }
        self.lines.admit(now);
        self.ended = ended;
        Some(grown)
    }
}

/// The increase of each reason's count, with the reason.
fn growth(before: &[Ended], now: &[Ended]) -> String {
    let grown = now.iter().filter_map(|(reason, count)| {
        let known = before.iter().find(|(known, _)| known == reason);
        let more = count.saturating_sub(known.map_or(0, |(_, count)| *count));
        (more > 0).then(|| format!("{reason} {more}"))
    });
    grown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, advance};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_kind_is_logged_once_a_minute() {
        let error_log = ClientErrorLog::default();
        assert_eq!(error_log.count(TLS_TO_PLAINTEXT), Some(0));
        for _ in 0..1_000 {
            assert_eq!(error_log.count(TLS_TO_PLAINTEXT), None);
        }
        assert_eq!(error_log.count(OLD_TLS), Some(0), "another kind");
        advance(Duration::from_secs(60)).await;
        assert_eq!(error_log.count(TLS_TO_PLAINTEXT), Some(1_000));
        assert_eq!(error_log.count(TLS_TO_PLAINTEXT), None);
    }
}

#[cfg(test)]
mod reset_log_tests {
    use super::*;

    fn ended<const N: usize>(counts: [(&'static str, u64); N]) -> Vec<Ended> {
        counts.into()
    }

    #[expect(clippy::unnecessary_wraps, reason = "what observe returns")]
    fn line(calls: &str, connections: &str) -> Option<[String; 2]> {
        Some([calls, connections].map(str::to_owned))
    }

    #[test]
    fn one_line_a_minute_has_all_that_ended_since_the_last_one() {
        let (mut log, start) = (LastLine::default(), Instant::now());
        let mut at = |secs, calls: [u64; 2], connections: u64| {
            let calls = ended([("protocol_error", calls[0]), ("refused_stream", calls[1])]);
            let connections = ended([("no_pong", connections)]);
            log.observe(start + Duration::from_secs(secs), [calls, connections])
        };
        assert_eq!(at(0, [0, 0], 0), None, "nothing has ended");
        assert_eq!(
            at(1, [1, 0], 0),
            line("protocol_error 1", ""),
            "the first one at once"
        );
        assert_eq!(
            [at(2, [900, 0], 0), at(60, [900, 5], 1)],
            [None, None],
            "the minute is not over"
        );
        assert_eq!(
            at(61, [900, 5], 1),
            line("protocol_error 899, refused_stream 5", "no_pong 1")
        );
        assert_eq!(
            [at(62, [900, 5], 1), at(500, [900, 5], 1)],
            [None, None],
            "nothing more has ended"
        );
        assert_eq!(at(501, [900, 5], 2), line("", "no_pong 1"));
    }
}
