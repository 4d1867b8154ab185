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
//! A block that is looked at must be whole: `header_blocks` holds it meanwhile, within its bounds,
//! whether the end of a reading or a CONTINUATION frame cuts it. Which header fields are rewritten,
//! and how, stands in `hpack`. Here are the frames: padding and priorities are no part of a block,
//! and a block in several frames is put together, rewritten, and put back.
//!
//! Sources: RFC 9113, sections 6.2 (HEADERS) and 6.10 (CONTINUATION), RFC 7541, and RFC 3986,
//! section 3.2.2 (what an authority may hold).

mod hpack;
mod huffman;

use std::ops::Range;

use smallvec::SmallVec;

use super::frames::{CONTINUATION, END_HEADERS, FrameWalker, HEADERS, PADDED, PRIORITY};
use hpack::{Malformed, Names};

/// Bytes of a HEADERS frame in front of its block, with PRIORITY: the stream that it depends on,
/// and a weight.
const PRIORITY_BYTES: usize = 5;

/// Whether a connection's blocks are looked at any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// They are.
    Look,
    /// As before, and now the first `|` was rewritten.
    LookAfterFirst,
    /// Nothing is to be rewritten on this connection.
    Pass,
}

/// The header blocks of one connection, which are looked at and rewritten.
#[derive(Debug)]
pub(super) struct Authorities {
    walker: FrameWalker,
    names: Names,
    is_rewriting: bool,
}

impl Authorities {
    /// So many bytes precede the first frame.
    pub(super) fn after(preface_bytes: usize) -> Self {
        Self {
            walker: FrameWalker::after(preface_bytes),
            names: Names::default(),
            is_rewriting: false,
        }
    }

    /// Rewrites what arrives next on the connection. A header block that begins in `bytes` ends
    /// there.
    pub(super) fn rewrite(&mut self, bytes: &mut [u8]) -> Next {
        let was_rewriting = self.is_rewriting;
        match self.rewrite_frames(bytes) {
            Ok(true) => {}
            // HTTP/2 closes the connection.
            Ok(false) | Err(Malformed) => return Next::Pass,
        }
        if self.is_rewriting && !was_rewriting {
            Next::LookAfterFirst
        } else {
            Next::Look
        }
    }

    /// False: nothing is to be rewritten any more.
    fn rewrite_frames(&mut self, bytes: &mut [u8]) -> Result<bool, Malformed> {
        let mut fragments = SmallVec::<[Range<usize>; 1]>::new();
        let mut at = 0;
        while at < bytes.len() {
            let Some(piece) = self.walker.next(bytes, &mut at) else {
                break;
            };
            match self.walker.kind() {
                HEADERS | CONTINUATION if !piece.ends => return Err(Malformed),
                HEADERS => fragments.push(self.fragment(bytes, piece.payload)?),
                CONTINUATION => fragments.push(piece.payload),
                _ => continue,
            }
            if self.walker.has_flag(END_HEADERS)
                && !self.rewrite_block(bytes, &std::mem::take(&mut fragments))?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The part of a HEADERS frame's payload that belongs to the block.
    fn fragment(&self, bytes: &[u8], payload: Range<usize>) -> Result<Range<usize>, Malformed> {
        let (mut fragment, mut padding) = (payload, 0);
        if self.walker.has_flag(PADDED) {
            padding = usize::from(*bytes[fragment.clone()].first().ok_or(Malformed)?);
            fragment.start += 1;
        }
        if self.walker.has_flag(PRIORITY) {
            fragment.start += PRIORITY_BYTES;
        }
        fragment.end = fragment
            .end
            .checked_sub(padding)
            .filter(|&end| end >= fragment.start)
            .ok_or(Malformed)?;
        Ok(fragment)
    }

    fn rewrite_block(
        &mut self,
        bytes: &mut [u8],
        fragments: &[Range<usize>],
    ) -> Result<bool, Malformed> {
        let seen = match fragments {
            [one] => self.names.follow(&mut bytes[one.clone()])?,
            several => {
                let mut block = Vec::with_capacity(several.iter().map(Range::len).sum());
                for fragment in several {
                    block.extend_from_slice(&bytes[fragment.clone()]);
                }
                let seen = self.names.follow(&mut block)?;
                let mut rest = &block[..];
                for fragment in several.iter().filter(|_| seen.is_rewritten) {
                    let (rewritten, later) = rest.split_at(fragment.len());
                    bytes[fragment.clone()].copy_from_slice(rewritten);
                    rest = later;
                }
                seen
            }
        };
        self.is_rewriting |= seen.is_rewritten;
        Ok(self.is_rewriting || !seen.is_limit)
    }
}
