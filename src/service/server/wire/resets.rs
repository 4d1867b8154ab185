//! Counts the calls that HTTP/2 resets by itself, and the connections that end for an error.
//!
//! h2 resets a call that it cannot accept (headers that are not well-formed, more calls at a time
//! than allowed, a client that exceeds its window) without a word to its user. To Envoy that is an
//! error of the service, and by default the request passes. So what h2 writes is followed from
//! frame to frame, and each RST_STREAM is counted by its error code. The codes of resets that
//! Weir's own code causes are not among h2's: CANCEL, when a call is cut off or its task is
//! dropped, and NO_ERROR, when it was answered before its message had arrived.
//!
//! Source: RFC 9113, sections 6.4 (RST_STREAM) and 7 (error codes); h2 0.4.
//!
//! Following the frames costs some twenty instructions each.

use std::io;
use std::sync::Arc;

use h2::Reason;

use super::frames::{END_STREAM, FrameWalker, HEADERS, RST_STREAM};
use crate::observe::metrics::{ConnectionError, Metrics};
use crate::service::server::unread::OfConnection;

/// The frames of a connection as they are written.
#[derive(Debug)]
pub(super) struct Resets {
    pub(super) frames: FrameWalker,
    /// The payload of a RST_STREAM frame as far as it was written.
    pub(super) code: u32,
    pub(super) metrics: Arc<Metrics>,
    /// Observer of the answers that were written.
    pub(super) unread: Option<Arc<OfConnection>>,
}

impl Resets {
    #[inline]
    pub(super) fn follow(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let Some(piece) = self.frames.next(bytes, &mut at) else {
                return;
            };
            if self.frames.kind() == RST_STREAM {
                self.code = bytes[piece.payload]
                    .iter()
                    .fold(self.code, |code, &byte| code << 8 | u32::from(byte));
                if piece.ends
                    && ![u32::from(Reason::NO_ERROR), Reason::CANCEL.into()].contains(&self.code)
                {
                    self.metrics.http2().stream_reset(self.code);
                }
            } else if self.frames.kind() == HEADERS
                && piece.ends
                && self.frames.has_flag(END_STREAM)
                && let Some(unread) = &self.unread
            {
                unread.written(self.frames.stream());
            }
        }
    }
}

/// Counts the end of a connection, unless its client ended it or broke it off.
pub(in crate::service::server) fn connection_ended(error: &h2::Error, metrics: &Metrics) {
    let error = match (error.reason(), error.get_io().map(io::Error::kind)) {
        (Some(code), _) if error.is_library() => ConnectionError::Code(code.into()),
        (_, Some(io::ErrorKind::OutOfMemory)) => ConnectionError::HeaderMemory,
        (_, Some(io::ErrorKind::TimedOut)) => ConnectionError::NotRead,
        _ => return,
    };
    metrics.http2().connection_ended(error);
}
