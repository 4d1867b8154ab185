//! The protocol of xDS without its connection: the requests of one stream, and when to send them.
//!
//! A pure state machine: it gets responses, outcomes and the time, and gives requests. Sources: the
//! xDS protocol's documentation (versions, nonces, ACK and NACK), and the behaviour of
//! go-control-plane's snapshot cache, which Envoy Gateway and Envoy AI Gateway serve: it answers a
//! refusal at once with the same configuration, ignores a request whose nonce is not the last one,
//! and its versions begin anew with the process.
//!
//! Every stream begins without a version and a nonce, because the same version may mean other
//! limits after a restart of the control plane. Equal content costs no compilation. The pace of
//! refusals belongs to the content and not to the stream: a client that refuses at once keeps both
//! sides busy.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::resources::TYPE_URL;
use crate::core::proto::xds::{DiscoveryRequest, Node, Status};
use crate::core::text;

/// INVALID_ARGUMENT. Source: gRPC, "Status codes and their use in gRPC".
const INVALID_ARGUMENT: i32 = 3;

/// The longest text of a refusal. A control plane logs it; all problems are in Weir's own log.
const MAX_REFUSAL_BYTES: usize = 8 * 1_024;

/// The wait before the second refusal of the same content, which doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The result of applying a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ApplyOutcome {
    /// All of it is in force.
    #[default]
    Accepted,
    /// Some or all of it is not in force.
    Refused {
        /// The number of the content: another one for each change of it.
        content: u64,
        /// Why, for the control plane.
        message: String,
    },
}

/// The requests of one stream.
#[derive(Debug)]
pub(super) struct Stream {
    node: Node,
    /// The version of the last response that was accepted on this stream. Versions of earlier
    /// streams mean nothing, because the server may be another one.
    accepted: Bytes,
    /// A refusal that waits, with its time.
    held: Option<(Instant, DiscoveryRequest)>,
}

impl Stream {
    pub(super) fn new(node: Node) -> Self {
        Self {
            node,
            accepted: Bytes::new(),
            held: None,
        }
    }

    /// The first request. It has no version and no nonce: the server sends its configuration
    /// whatever it takes this client for.
    pub(super) fn first(&self) -> DiscoveryRequest {
        self.request(Bytes::new(), None)
    }

    /// Answers a response of this stream. Returns the request to send now; another becomes
    /// [`Stream::due`].
    pub(super) fn answer(
        &mut self,
        version: Bytes,
        nonce: Bytes,
        outcome: ApplyOutcome,
        pace: &mut RefusalPace,
        now: Instant,
    ) -> Option<DiscoveryRequest> {
        // The server ignores an answer to an earlier response.
        self.held = None;
        match outcome {
            ApplyOutcome::Accepted => {
                pace.accepted();
                self.accepted = version;
                Some(self.request(nonce, None))
            }
            ApplyOutcome::Refused { content, message } => {
                let error = Status {
                    code: INVALID_ARGUMENT,
                    message: cut(message),
                };
                self.held = Some((pace.next(content, now), self.request(nonce, Some(error))));
                self.due(pace, now)
            }
        }
    }

    /// Takes the refusal that waits, if its time has come.
    pub(super) fn due(&mut self, pace: &mut RefusalPace, now: Instant) -> Option<DiscoveryRequest> {
        let (_, request) = self.held.take_if(|(at, _)| *at <= now)?;
        pace.sent(now);
        Some(request)
    }

    /// The time at which the waiting refusal is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.as_ref().map(|(at, _)| *at)
    }

    fn request(&self, response_nonce: Bytes, error_detail: Option<Status>) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.accepted.clone(),
            node: Some(self.node.clone()),
            resource_names: Vec::new(),
            type_url: TYPE_URL.to_owned(),
            response_nonce,
            error_detail,
        }
    }
}

/// The pace of refusals, of all streams: a server that answers each one at once must not keep both
/// sides busy.
#[derive(Debug, Default)]
pub(super) struct RefusalPace {
    content: u64,
    /// The last refusal of this content, and the wait that follows it.
    last: Option<(Instant, Duration)>,
}

impl RefusalPace {
    /// The time at which a refusal of this content may be sent: now for the first one, after a
    /// growing wait for later ones.
    fn next(&mut self, content: u64, now: Instant) -> Instant {
        if self.content != content {
            (self.content, self.last) = (content, None);
        }
        self.last.map_or(now, |(sent, wait)| (sent + wait).max(now))
    }

    fn sent(&mut self, now: Instant) {
        let doubled = self.last.map(|(_, wait)| (wait * 2).min(LONGEST_WAIT));
        self.last = Some((now, doubled.unwrap_or(FIRST_WAIT)));
    }

    fn accepted(&mut self) {
        *self = Self::default();
    }
}

fn cut(mut text: String) -> String {
    if text.len() > MAX_REFUSAL_BYTES {
        text.truncate(text::cut(text.as_bytes(), MAX_REFUSAL_BYTES).len());
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests;
