//! Makes calls whose `:authority` holds a `|` acceptable to HTTP/2, by rewriting it to `+` before
//! HTTP/2 sees it.
//!
//! Istio names clusters `outbound|8081||ratelimit.default.svc.cluster.local`, and Envoy sends the
//! name of the cluster as `:authority` unless its configuration sets another. RFC 3986 does not
//! allow the `|`, so that h2 resets such a call before Weir sees it, and Envoy lets the request
//! pass. envoyproxy/ratelimit accepts it. Weir has no use for the authority, so that another letter
//! in it changes nothing.
//!
//! The header blocks of a connection are looked at until the first `ShouldRateLimit`. If no
//! `:authority` held a `|` by then, all that follows passes untouched, at no cost. Otherwise all
//! blocks of the connection are rewritten to its end: the authority is sent again whenever it was
//! evicted from the dynamic table, with tracing each forty calls or so.
//!
//! A block that is looked at must be whole: `wire` holds it meanwhile, within its bounds, whether
//! the end of a reading or a CONTINUATION frame cuts it. Which header fields are rewritten, and how,
//! stands in `hpack`. Here are the frames of a block: padding and priorities are no part of it, and
//! a block in several frames is put together, rewritten, and put back.
//!
//! Sources: RFC 9113, sections 6.2 (HEADERS) and 6.10 (CONTINUATION), RFC 7541, and RFC 3986,
//! section 3.2.2 (what an authority may hold).

mod hpack;
mod huffman;

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::frames::{END_HEADERS, FrameWalker, HEADERS, PADDED, PRIORITY};
use crate::observe::metrics::Metrics;
use hpack::{Names, Seen};
use huffman::Malformed;

/// Bytes of a HEADERS frame in front of its block, with PRIORITY: the stream that it depends on,
/// and a weight.
const PRIORITY_BYTES: usize = 5;

/// What is known of the header blocks of one connection.
#[derive(Debug)]
pub(super) struct Authorities {
    names: Names,
    /// Where the parts of the block that arrives are, from the beginning of its first frame.
    fragments: SmallVec<[Range<usize>; 1]>,
    is_rewriting: bool,
    metrics: Arc<Metrics>,
}

impl Authorities {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            names: Names::default(),
            fragments: SmallVec::new(),
            is_rewriting: false,
            metrics,
        }
    }

    /// A frame has ended, the last one of those of `block`. Rewrites the block if it is whole.
    /// False: nothing is to be rewritten on this connection any more.
    pub(super) fn follow(&mut self, frame: &FrameWalker, block: &mut [u8]) -> bool {
        // HTTP/2 closes the connection where a block is malformed.
        self.follow_frame(frame, block).unwrap_or(false)
    }

    fn follow_frame(&mut self, frame: &FrameWalker, block: &mut [u8]) -> Result<bool, Malformed> {
        let fragment = fragment(frame, block)?;
        self.fragments.push(fragment);
        if !frame.has_flag(END_HEADERS) {
            return Ok(true);
        }
        let fragments = std::mem::take(&mut self.fragments);
        let seen = self.rewrite(block, &fragments)?;
        if seen.is_rewritten && !self.is_rewriting {
            self.is_rewriting = true;
            self.metrics.http2().authority_rewritten();
        }
        Ok(self.is_rewriting || !seen.is_limit)
    }

    /// Rewrites a block that is in these parts of `bytes`.
    fn rewrite(&mut self, bytes: &mut [u8], parts: &[Range<usize>]) -> Result<Seen, Malformed> {
        if let [one] = parts {
            return self.names.follow(&mut bytes[one.clone()]);
        }
        let mut block = Vec::with_capacity(parts.iter().map(Range::len).sum());
        for part in parts {
            block.extend_from_slice(&bytes[part.clone()]);
        }
        let seen = self.names.follow(&mut block)?;
        let mut rest = &block[..];
        for part in parts.iter().filter(|_| seen.is_rewritten) {
            let (rewritten, later) = rest.split_at(part.len());
            bytes[part.clone()].copy_from_slice(rewritten);
            rest = later;
        }
        Ok(seen)
    }
}

/// The part of a frame that belongs to its block. `bytes` end with the frame.
fn fragment(frame: &FrameWalker, bytes: &[u8]) -> Result<Range<usize>, Malformed> {
    let (mut start, mut end) = (bytes.len() - frame.length(), bytes.len());
    if frame.kind() == HEADERS {
        if frame.has_flag(PADDED) {
            let padding = usize::from(*bytes.get(start).ok_or(Malformed)?);
            (start, end) = (start + 1, end.checked_sub(padding).ok_or(Malformed)?);
        }
        if frame.has_flag(PRIORITY) {
            start += PRIORITY_BYTES;
        }
    }
    (start <= end).then_some(start..end).ok_or(Malformed)
}
