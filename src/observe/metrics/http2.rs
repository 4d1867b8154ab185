//! Counters of HTTP/2: calls and connections that it ends for an error, and connections whose
//! authority is rewritten.
//!
//! Envoy lets a request pass when its call is reset: to each of these requests no limit was
//! applied.

use std::sync::atomic::{AtomicU64, Ordering};

use super::families::{self, Sample};

/// The names of HTTP/2's error codes, by number; the last one is for all unknown ones. Source: RFC
/// 9113, section 7.
const CODES: [&str; 15] = [
    "no_error",
    "protocol_error",
    "internal_error",
    "flow_control_error",
    "settings_timeout",
    "stream_closed",
    "frame_size_error",
    "refused_stream",
    "cancel",
    "compression_error",
    "connect_error",
    "enhance_your_calm",
    "inadequate_security",
    "http_1_1_required",
    "other",
];

/// The other reasons for which Weir ends a connection.
const CAUSES: [&str; 3] = ["header_memory", "not_read", "no_pong"];

/// Reasons with a series from the start, because alerts need it. All others get one when they
/// occur.
const USUAL_OF_STREAMS: [&str; 2] = ["protocol_error", "refused_stream"];
const USUAL_OF_CONNECTIONS: [&str; 2] = ["protocol_error", "header_memory"];

/// Reason for which Weir ended a connection, with all calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionError {
    /// HTTP/2 found an error of the client, with this code.
    Code(u32),
    /// Unfinished header blocks took all their memory.
    HeaderMemory,
    /// The client did not read in time.
    NotRead,
    /// The client did not answer a ping in time.
    NoPong,
}

/// A reason, as the metric's label, and the number of calls or connections that ended for it since
/// the start.
pub type Ended = (&'static str, u64);

/// The counters. All threads share them, because they grow seldom.
#[derive(Debug, Default)]
pub struct Http2 {
    streams: [AtomicU64; CODES.len()],
    connections: [AtomicU64; CODES.len() + CAUSES.len()],
    rewritten: AtomicU64,
}

impl Http2 {
    /// Counts a call that HTTP/2 reset with this error code.
    pub fn stream_reset(&self, code: u32) {
        self.streams[index(code)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that ended for an error.
    pub fn connection_ended(&self, error: ConnectionError) {
        let index = match error {
            ConnectionError::Code(code) => index(code),
            ConnectionError::HeaderMemory => CODES.len(),
            ConnectionError::NotRead => CODES.len() + 1,
            ConnectionError::NoPong => CODES.len() + 2,
        };
        self.connections[index].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection on which the first authority was rewritten.
    pub fn authority_rewritten(&self) {
        self.rewritten.fetch_add(1, Ordering::Relaxed);
    }

    /// The calls that were reset, by reason.
    pub fn streams(&self) -> impl Iterator<Item = Ended> {
        ended(&self.streams)
    }

    /// The connections that ended for an error, by reason.
    pub fn connections(&self) -> impl Iterator<Item = Ended> {
        ended(&self.connections)
    }

    pub(super) fn gather(&self, samples: &mut Vec<Sample>) {
        for (reason, count) in exported(self.streams(), USUAL_OF_STREAMS) {
            samples.push(families::HTTP2_STREAM_RESETS.count(&[reason], count));
        }
        for (reason, count) in exported(self.connections(), USUAL_OF_CONNECTIONS) {
            samples.push(families::HTTP2_CONNECTION_ERRORS.count(&[reason], count));
        }
        let rewritten = self.rewritten.load(Ordering::Relaxed);
        samples.push(families::CONNECTIONS_REWRITTEN.count(&[], rewritten));
    }
}

fn index(code: u32) -> usize {
    (code as usize).min(CODES.len() - 1)
}

fn ended(counts: &[AtomicU64]) -> impl Iterator<Item = Ended> {
    let counts = counts.iter().map(|count| count.load(Ordering::Relaxed));
    CODES.into_iter().chain(CAUSES).zip(counts)
}

fn exported(all: impl Iterator<Item = Ended>, usual: [&str; 2]) -> impl Iterator<Item = Ended> {
    all.filter(move |(reason, count)| *count > 0 || usual.contains(reason))
}
